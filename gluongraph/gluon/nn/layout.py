"""What layers on lines, images and volumes share: layouts by name, and one number for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph.errors import ShapeError, located
from gluongraph.gluon.block import Block, HybridBlock

Extents = int | Sequence[int]  # one number for each axis, or one for all


def check_count(block: Block, what: str, value: int) -> None:
    """Raise unless it is a whole number from 1 on."""
    if not hasattr(value, "__index__") or value < 1:
        raise ValueError(located(f"{type(block).__name__}: {what} is a whole number from 1 on, not {value!r}"))


def each_axis(block: HybridBlock, what: str, value: Extents, axes: int) -> tuple[int, ...]:
    """One number for each of so many axes."""
    given = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(given) != axes:
        raise AssertionError(f"{type(block).__name__}: {what} is a number or {axes} of them, not {value!r}")
    return given


def check_layout(block: HybridBlock, layout: str, known: Sequence[str]) -> str:
    """The layout, if the block knows it."""
    if layout not in known:
        raise AssertionError(f"{type(block).__name__}: no layout {layout!r}; there are {', '.join(known)}")
    return layout


def check_rank(block: HybridBlock, x: Any, layout: str) -> None:
    """Raise unless x has an axis for each letter of the layout."""
    if x.ndim != len(layout):
        raise ShapeError(
            located(
                f"{type(block).__name__} {block.name!r} takes ({', '.join(layout)}), and got {x.type}",
                help=f"reshape the input to {len(layout)} axes",
                scope=block.name,
            )
        )
