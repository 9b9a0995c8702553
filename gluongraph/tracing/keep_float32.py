"""The parts of a program that stay in float32 under mixed precision: regions, or whole blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gluongraph.eager.tape import STATE


@contextmanager
def float32() -> Iterator[None]:
    """Within: a program that is compiled with precision="bf16-mixed" or "16-mixed" multiplies in float32, and so do the
    gradients of what it does here. Elsewhere this changes nothing."""
    _pin(1)
    try:
        yield
    finally:
        _pin(-1)


def keep_float32(block: Any) -> Any:
    """The block, whose calls are from now on as within `with float32()`.

    Steps that have been compiled already stay as they are.

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
