"""Norms of gradients, for logging in hooks that see them."""

from __future__ import annotations

from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.errors import misconfigured


def grad_norm(module: Any, norm_type: float | int | str, group_separator: str = "/") -> dict[str, float]:
    """The `norm_type`-norm of each parameter's gradient, and of all of them together, by name: for a hook that sees
    gradients, as `on_before_optimizer_step`.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[3.0, 4.0]])
    >>> grad_norm(layer, 2)
    {'grad_2.0_norm/weight': 5.0, 'grad_2.0_norm_total': 5.0}

    Raises:
        MisconfigurationException: `norm_type` is not above 0.
    """
    order = float(norm_type)
    if not order > 0:
        raise misconfigured(f"grad_norm(norm_type={norm_type!r})", help='a number above 0, or "inf"')
    found = {
        f"grad_{order}_norm{group_separator}{name}": _norm(parameter.grad.detach(), order)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if found:
        found[f"grad_{order}_norm_total"] = _norm(import_whole("torch").tensor(list(found.values())), order)
    return found


def _norm(tensor: Any, order: float) -> float:
    """The norm of a tensor, divided by its largest element first, whose power may be beyond what a float holds."""
    wide = tensor.double()
    largest = float(wide.abs().max()) if wide.numel() else 0.0
    return largest * float((wide / largest).norm(order)) if largest else 0.0
