"""Errors of the training loop."""

from __future__ import annotations

from gluongraph.errors import MXNetError, with_user_location


class MisconfigurationException(MXNetError, ValueError):
    """Arguments, hooks or loaders that contradict each other, or that mean nothing.

    >>> import gluongraph.lightning as L
    >>> L.Trainer(max_epochs=1, gradient_clip_algorithm="norms")
    Traceback (most recent call last):
        ...
    gluongraph.lightning.errors.MisconfigurationException: gradient_clip_algorithm='norms'...
    """


class SIGTERMException(SystemExit):
    """The process was asked to end by SIGTERM: raised after the batch, so that callbacks see it in `on_exception`."""


def misconfigured(message: str, *, help: str = "") -> MisconfigurationException:
    """The error with the user's line and the way out."""
    return MisconfigurationException(with_user_location(message, help=help))
