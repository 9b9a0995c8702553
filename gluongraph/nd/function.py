"""Builders as functions of `nd`: behind `invoke`, with MXNet's `out` and `name`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from gluongraph.ndarray import NDArray, invoke

# What MXNet's operators take beside their meaning: how to tune, never what to compute.
TUNING = ("workspace", "cudnn_tune", "cudnn_off")


def function(build: Callable[..., Any], name: str | None = None, ignored: Collection[str] = ()) -> Callable[..., Any]:
    """The builder as a function of arrays; `ignored` are arguments of MXNet's that change nothing here.

    Every such function also takes `out`, an array (or a list of them) that the result is written into, and `name`,
    which names a node of MXNet's graphs and means nothing here.
    """

    def call(*args: Any, out: Any = None, name: str | None = None, **kwargs: Any) -> Any:
        for unused in ignored:
            kwargs.pop(unused, None)
        made = invoke(build, *args, **kwargs)
        return made if out is None else into(out, made)

    call.__name__ = call.__qualname__ = name or build.__name__
    call.__module__ = sys._getframe(1).f_globals["__name__"]  # where users find it
    call.__doc__ = build.__doc__
    call.__wrapped__ = build  # type: ignore[attr-defined]  # help() shows its parameters
    return call


def into(out: Any, made: Any) -> Any:
    """Write a result into `out`, or several results into a list of arrays."""
    if isinstance(out, NDArray):
        out[:] = made
    else:
        for target, each in zip(out, made, strict=True):
            target[:] = each
    return out
