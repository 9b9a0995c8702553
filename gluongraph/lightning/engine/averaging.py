"""Eager steps of PyTorch's on several ranks: one set of weights, gradients that are averaged after each backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gluongraph.lightning.ranks import Ranks
from gluongraph.torch.export import torch


class RankAverage:
    """Averages the gradients of a module over the ranks, as DistributedDataParallel does."""

    def __init__(self, module: Any, ranks: Ranks):
        self._module, self._ranks = module, ranks

    def begin(self) -> None:
        """Give all ranks the parameters and buffers of the first one."""
        names = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in self._module.state_dict().items()]
        self._ranks.agree(f"a module of {'; '.join(names)}")
        states = [*self._module.parameters(), *self._module.buffers()]
        self._in_one_array(states, self._ranks.broadcast_array)

    def share_buffers(self) -> None:
        """Give all ranks the buffers of the first one, as running statistics: each rank changes its own in a step."""
        self._in_one_array(self._module.buffers(), self._ranks.broadcast_array)

    def average(self) -> None:
        """Make gradients the means of those of all ranks, which call this together.

        Raises:
            Disagreement: they have gradients of other parameters; it names the rank.
        """
        found = {name: p.grad for name, p in self._module.named_parameters() if p.grad is not None}
        self._ranks.agree(f"a backward that gives gradients of {', '.join(found)}")
        self._in_one_array(found.values(), self._ranks.average_array)

    def _in_one_array(self, tensors: Iterable[Any], change: Callable[[Any], None]) -> None:
        """Let `change` act on all tensors of a dtype as one array, and write it back into them."""
        groups: dict[Any, list[Any]] = {}
        for tensor in tensors:
            groups.setdefault(tensor.dtype, []).append(tensor.detach())
        for dtype, members in groups.items():
            wide = torch().float32 if dtype in (torch().bfloat16, torch().float16) else dtype  # sums of 16 bits round
            flat = torch().cat([each.reshape(-1).to(wide) for each in members])
            change(flat.numpy())
            for each, part in zip(members, flat.split([each.numel() for each in members]), strict=True):
                each.copy_(part.reshape(each.shape))
