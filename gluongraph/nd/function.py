"""Builders as functions of `nd`: behind `invoke`, with MXNet's `out` and `name`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, overload

from gluongraph.errors import MissingError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.ndarray import NDArray, invoke, of_arrays

# What MXNet's operators take beside their meaning: how to tune, never what to compute.
TUNING = ("workspace", "cudnn_tune", "cudnn_off")
_ALSO = "Every `Node` is an NDArray here. With `out` the result is written into that array; `name` has no effect."
Out = TypeVar("Out", NDArray, Sequence[NDArray])


@overload
def function(
    build: Callable[..., Node], name: str | None = None, ignored: Collection[str] = ()
) -> Callable[..., NDArray]: ...
@overload
def function(
    build: Callable[..., Sequence[Node]], name: str | None = None, ignored: Collection[str] = ()
) -> Callable[..., list[NDArray]]: ...
def function(build: Callable[..., Any], name: str | None = None, ignored: Collection[str] = ()) -> Callable[..., Any]:
    """The builder as a function of arrays; `ignored` are arguments of MXNet's that change nothing here.

    Every such function also takes `out`, an array (or a list of them) that the result is written into, and `name`,
    which names a node of MXNet's graphs and means nothing here. One that takes arrays alone ignores other keywords, as
    in MXNet.
    """
    only = of_arrays(build)

    @wraps(build, assigned=())
    def call(*args: Any, out: Any = None, name: str | None = None, **kwargs: Any) -> Any:
        for unused in ignored:
            kwargs.pop(unused, None)
        if kwargs and only:
            kwargs = {key: value for key, value in kwargs.items() if key in only}
        made = invoke(build, *args, **kwargs)
        return made if out is None else into(out, made)

    call.__doc__ = extended(build.__doc__, _ALSO)
    call.__name__ = call.__qualname__ = name or build.__name__
    call.__module__ = sys._getframe(1).f_globals["__name__"]  # where users find it
    return call


def extended(doc: str | None, paragraph: str) -> str | None:
    """A docstring with another paragraph; none where Python has taken docstrings off (-OO).

    >>> extended("One line.", "More.")
    'One line.\\n\\nMore.'
    """
    if doc is None:
        return None
    margin = doc[len(doc.rstrip(" ")) :]  # that of the closing quotes; since Python 3.13 there is none
    more = f"\n\n{paragraph.strip()}".replace("\n", f"\n{margin}")
    return doc.rstrip() + more + (f"\n{margin}" if margin else "")


def no_such(module: str, names: Mapping[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of a module of functions, `nd.contrib` say: names that do not exist raise, with those near."""
    shown = module.removeprefix("gluongraph.")

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        near = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], cutoff=0.5)
        write = "write it with those that do, or as autograd.Function"
        help = f"the nearest that do: {', '.join(near)}" if near else write
        raise MissingError(with_user_location(f"{shown}.{name} does not exist", help=help))

    return __getattr__


def into(out: Out, made: Any) -> Out:
    """Write a result into `out`, or several results into a list of arrays."""
    if isinstance(out, NDArray):
        out[:] = made
    else:
        for target, each in zip(out, made, strict=True):
            target[:] = each
    return out
