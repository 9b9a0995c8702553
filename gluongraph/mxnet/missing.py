"""What is said where somebody asks for a name of MXNet's that does not exist here."""

from __future__ import annotations

from gluongraph.errors import MissingError, with_user_location
from gluongraph.mxnet.names import INSTEAD


class MissingModule(ImportError, NotImplementedError):
    """A module of MXNet's that does not exist here; try and except ImportError finds another way."""


def beginnings(path: str) -> list[str]:
    """The path and all that it lies in, innermost first.

    >>> beginnings("gluon.nn.Dense")
    ['gluon.nn.Dense', 'gluon.nn', 'gluon']
    """
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def advice(path: str) -> str | None:
    """What to do instead of mxnet.<path>; None where nothing is known."""
    return next((INSTEAD[p] for p in beginnings(path) if p in INSTEAD), None)


def refusal(path: str, imported: bool) -> MissingError | MissingModule | None:
    """The error for gluongraph.<path>, imported or asked for as an attribute; None where nothing is known of it."""
    if (help := advice(path)) is None:
        return None
    message = with_user_location(f"gluongraph.{path} does not exist", help=help)
    return MissingModule(message, name=f"gluongraph.{path}") if imported else MissingError(message)
