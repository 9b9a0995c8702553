"""The parts of a program that stay in float32 under mixed precision: regions, or whole blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gluongraph.eager.tape import STATE


@contextmanager
def float32() -> Iterator[None]:
    """A region whose contractions, and their gradients, stay in float32 in programs that are compiled with
    precision="bf16-mixed" or "16-mixed". Otherwise it has no effect."""
    _pin(1)
    try:
        yield
    finally:
        _pin(-1)


def keep_float32(block: Any) -> Any:
    """Let all calls of a block be as within `with float32()`, and return the block.

    Steps that have been compiled already do not change.

    >>> from gluongraph import gluon
    >>> net = gluon.nn.HybridSequential()
    >>> net.add(gluon.nn.Dense(128, activation="relu"), keep_float32(gluon.nn.Dense(10)))
    """
    block.register_forward_pre_hook(lambda *_: _pin(1))
    block.register_forward_hook(lambda *_: _pin(-1))
    return block


def _pin(by: int) -> None:
    if STATE.tracer is not None:
        STATE.tracer.pins += by
