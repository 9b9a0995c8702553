"""Training steps of the models in torch_zoo: PyTorch's eager, through torch.compile, and through `from_torch`.

All train the same module on the same batch by cross entropy and AdamW (lr 1e-4, weight decay 0.01).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gluongraph.bench import torch_zoo

RATE, DECAY = 1e-4, 0.01


def problem(name: str) -> tuple[torch_zoo.Model, torch.Tensor]:
    """A model with its batch, and the classes of its samples: the same in every process."""
    torch.manual_seed(0)
    model = torch_zoo.build(name)
    model.module.train()
    samples = next(iter((*model.args, *model.kwargs.values()))).shape[0]
    return model, torch.randint(0, torch_zoo.CLASSES, (samples,))


def peer(name: str, threads: int, compiled: bool = False) -> Callable[[], Any]:
    """A step of PyTorch's: forward and backward, and fused AdamW; with `compiled` both by torch.compile."""
    torch.set_num_threads(threads)
    model, labels = problem(name)
    optimizer = torch.optim.AdamW(model.module.parameters(), RATE, weight_decay=DECAY, fused=not compiled or None)

    def forward() -> torch.Tensor:
        return functional.cross_entropy(model.module(*model.args, **model.kwargs), labels)

    update: Callable[[], Any] = optimizer.step
    if compiled:
        forward, update = torch.compile(forward), torch.compile(optimizer.step)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        update()
        return loss.detach()

    return step


class Own:
    """A step of the same module, traced by `from_torch` and compiled as a whole."""

    def __init__(self, name: str):
        import gluongraph as mx
        from gluongraph import gluon

        model, labels = problem(name)
        net = mx.from_torch(model.module, model.args, model.kwargs)
        trainer = gluon.Trainer(net.collect_params(), "adamw", {"learning_rate": RATE, "wd": DECAY})
        self.step = mx.compile(net, functional.cross_entropy, trainer)
        self.batch = [t.numpy() for t in (*model.args, *model.kwargs.values(), labels)]

    def __call__(self) -> Any:
        """One training step; returns the loss."""
        return self.step(*self.batch)

    def kernels(self, repeat: int) -> dict[str, Any]:
        """What its kernels do, and what the machine could, as data."""
        return dict(self.step.profile(*self.batch, repeat=repeat).data())

    def bound(self) -> float:
        """Seconds that the machine needs for what its kernels do."""
        from gluongraph.bench.own import bound

        return bound(self.step.plan)
