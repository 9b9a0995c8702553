"""The operations of a step of PyTorch's, which users give to ThroughputMonitor as `flops_per_batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.host.interrupts import import_whole


def measure_flops(
    model: Any, forward_fn: Callable[[], Any], loss_fn: Callable[[Any], Any] | None = None, display: bool = False
) -> int:
    """The floating-point operations of `forward_fn()`, and with `loss_fn`, which takes its result, of the backward pass
    too, as PyTorch counts them. `display` prints them for each layer.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    >>> measure_flops(model, lambda: model(x)), measure_flops(model, lambda: model(x), lambda y: y.sum())
    (48, 96)
    """
    import_whole("torch.utils.flop_counter")
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=display)
    with counter:
        result = forward_fn()
        if loss_fn is not None:
            loss_fn(result).backward()
    return int(counter.get_total_flops())
