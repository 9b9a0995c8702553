"""The passes in their order, each with the reason for its place. What runs them is `gluongraph.compiler.pipeline`."""

from __future__ import annotations

from collections.abc import Callable

from gluongraph.ir.graph import Graph
from gluongraph.passes.amp import amp
from gluongraph.passes.cse import cse
from gluongraph.passes.fold import fold
from gluongraph.passes.fuse import fuse
from gluongraph.passes.inline import inline
from gluongraph.passes.layout import layout
from gluongraph.passes.memory import memory
from gluongraph.passes.prune import prune
from gluongraph.passes.remat import remat
from gluongraph.passes.reshapes import reshapes
from gluongraph.passes.schedule import schedule
from gluongraph.passes.select import select
from gluongraph.passes.shapes import shapes
from gluongraph.passes.simplify import simplify

Pass = Callable[[Graph], Graph]

PIPELINE: tuple[Pass, ...] = (
    shapes,  # first: every rule is checked again, so that nothing below guesses a shape
    inline,  # composites that no kernel claims become primitives, now that differentiation has seen them whole
    prune,  # differentiation is over: what loops hand out for gradients alone is read, or never will be
    fold,  # before simplify, which then meets fewer constants in disguise
    simplify,
    reshapes,  # after simplify, which has brought chains of movement to one
    cse,  # after simplify, which brings equal things to one form
    layout,  # after all that looks for convolutions and what is around them by their own shapes
    fuse,  # last: after it a node is a kernel
)

# `amp` comes before all of these, and before the updates are added: it takes composites whole, and leaves float32 what
# the optimizer computes. `remat` comes right before `fuse`, where it is asked for or costs next to nothing: it weighs
# what will be stored, and nothing after it would take a copy for the original.

__all__ = [
    "PIPELINE",
    "amp",
    "cse",
    "fold",
    "fuse",
    "inline",
    "layout",
    "memory",
    "prune",
    "remat",
    "reshapes",
    "schedule",
    "select",
    "shapes",
    "simplify",
]
