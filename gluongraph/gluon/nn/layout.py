"""What layers on lines, images and volumes share: layouts by name, and one number for each axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from gluongraph.errors import ArgumentError, ShapeError, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.ir.plain import plain
from gluongraph.ranges import check_count

Extents = int | Sequence[int]  # one number for each axis, or one for all
_LEAST = {"padding": 0, "output_padding": 0, "i2h_pad": 0}  # of all others 1


def each_axis(block: HybridBlock, what: str, value: Extents, axes: int) -> tuple[int, ...]:
    """One number for each of so many axes.

    >>> from gluongraph.gluon import nn
    >>> each_axis(nn.Flatten(), "strides", 2, 3)
    (2, 2, 2)

    Raises:
        ArgumentError: one of them is no whole number, or less than makes sense.
        AssertionError: there are not as many numbers as axes.
    """
    found = plain(value)
    given = found if isinstance(found, tuple) else (found,) * axes
    if len(given) != axes:
        raise AssertionError(
            with_user_location(f"{type(block).__name__}: {what} is a number or {axes} of them, not {value!r}")
        )
    least = _LEAST.get(what, 1)
    if any(not hasattr(n, "__index__") or n < least for n in given):
        message = f"{type(block).__name__}: {what} is whole numbers from {least} on, not {value!r}"
        raise ArgumentError(with_user_location(message))
    return tuple(map(operator.index, given))


def check_groups(block: Block, groups: int, channels: int, in_channels: int) -> None:
    """Raise unless the channels divide into the groups; `in_channels` of 0 or less are not known yet.

    >>> from gluongraph.gluon import nn
    >>> check_groups(nn.Flatten(), 2, 4, 0)

    Raises:
        ValueError: `groups` is no whole number from 1 on.
        ShapeError: they do not.
    """
    check_count(block, "groups", groups)
    for what, count in (("channels", channels), ("in_channels", max(in_channels, 0))):
        if count % groups:
            raise ShapeError(
                with_user_location(f"{type(block).__name__}: {count} {what} do not divide into {groups} groups")
            )


def check_layout(block: HybridBlock, layout: str, known: Sequence[str]) -> str:
    """The layout, if the block knows it.

    >>> from gluongraph.gluon import nn
    >>> check_layout(nn.Flatten(), "NHWC", ("NCHW", "NHWC"))
    'NHWC'

    Raises:
        AssertionError: it does not.
    """
    if layout not in known:
        raise AssertionError(
            with_user_location(f"{type(block).__name__}: no layout {layout!r}; there are {', '.join(known)}")
        )
    return layout


def check_rank(block: HybridBlock, x: Any, layout: str) -> None:
    """Raise unless x has an axis for each letter of the layout.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> check_rank(nn.Flatten(), nd.zeros((2, 3, 4)), "NCW")

    Raises:
        ShapeError: it has more or fewer.
    """
    if x.ndim != len(layout):
        raise ShapeError(
            with_user_location(
                f"{type(block).__name__} {block.name!r} takes ({', '.join(layout)}), and got {x.type}",
                help=f"reshape the input to {len(layout)} axes",
                scope=block.name,
            )
        )
