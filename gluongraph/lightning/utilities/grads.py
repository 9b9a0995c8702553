"""Norms of gradients, for logging in hooks that see them."""

from __future__ import annotations

from typing import Any

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
        f"grad_{order}_norm{group_separator}{name}": float(parameter.grad.detach().norm(order))
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if found:
        largest = max(found.values())
        # Divided by the largest first: powers of large norms are beyond what a float holds.
        powers = 0.0 if order == float("inf") or not largest else sum((n / largest) ** order for n in found.values())
        found[f"grad_{order}_norm_total"] = largest * powers ** (1 / order) if powers else largest
    return found
