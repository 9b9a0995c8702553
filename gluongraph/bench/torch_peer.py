"""PyTorch's side of the benchmarks: eager, with the default or a fused optimizer, or through torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gluongraph.bench.torch_nets import MODELS
from gluongraph.bench.workloads import Array, Workload, batches, update_shapes

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    **{"sgd": torch.optim.SGD, "nag": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW},
    **{"adamax": torch.optim.Adamax, "nadam": torch.optim.NAdam, "adagrad": torch.optim.Adagrad},
    **{"rmsprop": torch.optim.RMSprop, "adadelta": torch.optim.Adadelta},
}
FUSED = ("sgd", "nag", "adam", "adamw", "adagrad")


def network(workload: Workload) -> nn.Module:
    """The twin of the workload's net."""
    return MODELS[workload.model](**workload.size)


def optimizer(
    workload: Workload, parameters: list[torch.Tensor], fused: bool = True, foreach: bool | None = None
) -> torch.optim.Optimizer:
    """The workload's optimizer in PyTorch's names."""
    name, hyper = workload.optimizer, dict(workload.hyper)
    if name not in OPTIMIZERS or (fused and name not in FUSED):
        raise SystemExit(f"PyTorch has no {'fused ' if name in OPTIMIZERS else ''}{name}")
    given: dict[str, Any] = {"lr": hyper["learning_rate"], "weight_decay": hyper.get("wd", 0.0)}
    given |= {key: hyper[key] for key in ("momentum", "centered") if key in hyper}
    given |= {"nesterov": True} if name == "nag" else {}
    given |= {"fused": True} if fused else {"foreach": foreach}
    return OPTIMIZERS[name](parameters, **given)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all positions; classes are the last axis."""
    return functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross-entropy": cross_entropy,
    "l2": lambda outputs, labels: 0.5 * functional.mse_loss(outputs, labels),
    "logistic": functional.binary_cross_entropy_with_logits,
}


def tensors(batch: tuple[Array, ...]) -> tuple[torch.Tensor, ...]:
    """A batch; PyTorch wants class numbers as int64."""
    return tuple(torch.from_numpy(part if part.dtype == np.float32 else part.astype(np.int64)) for part in batch)


def casting(precision: str) -> Callable[[], AbstractContextManager[Any]]:
    """What forward runs in: nothing, or autocast."""
    if precision == "32":
        return nullcontext
    return lambda: torch.autocast("cpu", {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}[precision])


def contender(
    workload: Workload, threads: int, compiled: bool = False, fused: bool = True, precision: str = "32"
) -> Callable[[], Any]:
    """A function that takes one training step and returns the loss.

    With `compiled` forward and backward are what torch.compile makes of them, and so is the optimizer's step.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if workload.model == "update":
        return update(workload, threads, compiled, foreach=not fused)
    net, criterion, cast = network(workload), LOSSES[workload.loss], casting(precision)
    trainer = optimizer(workload, list(net.parameters()), fused and not compiled)

    def forward(*batch: torch.Tensor) -> torch.Tensor:
        with cast():
            return criterion(net(*batch[:-1]), batch[-1])

    update_weights: Callable[[], Any] = trainer.step
    if compiled:
        forward, update_weights = torch.compile(forward), torch.compile(trainer.step)
    data = cycle([tensors(batch) for batch in batches(workload)])

    def step() -> Any:
        trainer.zero_grad(set_to_none=True)
        loss = forward(*next(data))
        loss.backward()
        update_weights()
        return loss.detach()

    return step


def update(workload: Workload, threads: int, compiled: bool = False, foreach: bool = False) -> Callable[[], Any]:
    """The optimizer alone, on gradients that are there: fused, by lists of tensors, or compiled."""
    torch.set_num_threads(threads)
    parameters = [torch.randn(shape).requires_grad_() for shape in update_shapes(workload)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    if workload.optimizer == "sgld":
        return _langevin(parameters, workload.hyper["learning_rate"])
    trainer = optimizer(workload, parameters, fused=not compiled and not foreach, foreach=foreach or None)
    update = torch.compile(trainer.step) if compiled else trainer.step

    def step() -> Any:
        update()
        return parameters[-1].detach()

    return step


@torch.no_grad()
def _noise(tensors: list[torch.Tensor]) -> None:
    for each in tensors:
        each.normal_()


def _langevin(parameters: list[torch.Tensor], rate: float) -> Callable[[], Any]:
    """w = w - rate/2 g + sqrt(rate) e, as one writes it with PyTorch: normal_, then the update by lists."""
    weights = [p.detach() for p in parameters]
    grads, noise = [p.grad for p in parameters if p.grad is not None], [torch.empty_like(w) for w in weights]

    def step() -> Any:
        _noise(noise)
        torch._foreach_add_(weights, grads, alpha=-rate / 2)
        torch._foreach_add_(weights, noise, alpha=rate**0.5)
        return weights[-1]

    return step
