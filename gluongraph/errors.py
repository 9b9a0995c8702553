"""What can go wrong, by type; and where in the user's program it did.

The types follow MXNet where it has one (MXNetError, DeferredInitializationError), so that code which catches
them goes on working. A message says: the op, the types it got, the user's line, what to do.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pathlib
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_HERE = pathlib.Path(__file__).resolve().parent
# The three sibling packages lie beside this folder in a checkout and inside it once installed. Between gluongraph
# and the user's line are Python's own contextlib, of `with`, functools, of properties that are computed once, and
# inspect, which tells what does not fit a signature.
_OWN = (
    *(str(folder) + "/" for folder in (_HERE, *(_HERE.parent / name for name in ("passes", "codegen", "runtime")))),
    contextlib.__file__,
    functools.__file__,
    inspect.__file__,
)


class MXNetError(RuntimeError):
    """What the engine refuses; the name is MXNet's, so that `except mx.MXNetError` still works."""


class ShapeError(MXNetError, ValueError):
    """Shapes that do not fit an op."""


class DTypeError(MXNetError, TypeError):
    """Element types that do not fit an op, or that do not exist."""


class ArgumentError(MXNetError, ValueError):
    """An argument of the right type whose value makes no sense."""


class IndexRangeError(MXNetError, IndexError):
    """A label, a token id or another index that is out of range."""


class TraceError(MXNetError):
    """Python asked a traced value for something that only a computed value has."""


class HostCallError(TraceError):
    """Code in Python that cannot be part of a graph: a hybridized block with it runs in eager mode."""


class MissingError(NotImplementedError, AttributeError):
    """A name of MXNet's that does not exist here; hasattr says no."""


class NamesInstead:
    """A class of MXNet's that lacks some of its names: `_instead` says what to use in place of each."""

    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a checker is to go on knowing which names there are

        def __getattr__(self, name: str) -> Any:
            if (advice := self._instead.get(name)) is None:
                return object.__getattribute__(self, name)  # raises, and what a property itself raised is seen
            raise MissingError(with_user_location(f"{type(self).__name__}.{name} does not exist", help=advice))


class VerifyError(MXNetError):
    """A graph or plan breaks a rule that every graph or plan must keep: a fault of the compiler."""


class CompileError(MXNetError):
    """A plan could not be turned into code."""


class NameNotFoundError(MXNetError, KeyError):
    """A name that is not among those that there are."""

    __str__ = Exception.__str__  # a KeyError shows the text as a literal, on one line


class FormatError(MXNetError, ValueError):
    """A text or file that is not what it should be: a dump that cannot be read back, JSON of another version."""


class UnsupportedError(MXNetError, NotImplementedError):
    """Something that a file may ask for and that does not exist here: an operator, an attribute, an element type."""


class NotFiniteError(MXNetError):
    """A NaN or an infinity, where somebody was asked to look for them (`detect_anomaly`, `GG_CHECK=nan`)."""


@dataclass(frozen=True)
class Origin:
    """Where a node came from: the user's file and line, and the path of the layer that was running."""

    file: str
    line: int
    scope: str = ""

    def __str__(self) -> str:
        place = f"{pathlib.Path(self.file).name}:{self.line}" if self.file else ""
        return " ".join(part for part in (self.scope, place) if part)


@functools.cache
def is_own_file(filename: str) -> bool:
    """Is this a source file of gluongraph itself, or code that no user wrote?"""
    return filename.startswith((*_OWN, "<frozen ", "<gluongraph "))


@functools.cache
def is_library_file(filename: str) -> bool:
    """Is this a file of gluongraph's, or of PyTorch's, which calls back what it is given (a closure, a hook)?"""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    return is_own_file(filename) or (torch is not None and filename.startswith(torch.removesuffix("__init__.py")))


def user_origin(scope: str = "") -> Origin:
    """The first frame of a user's, counted from the caller upwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return Origin("", 0, scope)
    return Origin(frame.f_code.co_filename, frame.f_lineno, scope)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning of the user's line: of the first frame that is a user's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_library_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def pluralize(number: int, thing: str) -> str:
    """So many things, in words.

    >>> pluralize(1, "array"), pluralize(2, "array"), pluralize(0, "batch")
    ('1 array', '2 arrays', '0 batches')
    """
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith('ch') else 's'}"


_RUNNERS: set[CodeType] = set()


def runs_a_layer(method: F) -> F:
    """Decorator of the methods that run a layer, `self`: messages from within name it."""
    _RUNNERS.add(cast(FunctionType, method).__code__)
    return method


def _layer() -> str:
    """The name of the innermost layer that is running, found on the stack: only who fails pays for it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _RUNNERS:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_locals["self"].name)


def with_user_location(message: str, *, help: str = "", scope: str = "") -> str:
    """`message`, the user's line and the layer that was running under it, the way out: the shape of all messages."""
    scope = scope or _layer()
    origin = user_origin(scope)
    lines = [message]
    if origin.file:
        lines.append(f"  at {origin.file}:{origin.line}" + (f" in {scope}" if scope else ""))
    if help:
        lines.append(f"  help: {help}")
    return "\n".join(lines)
