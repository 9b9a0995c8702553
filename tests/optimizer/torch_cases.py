"""PyTorch's optimizers and their options, and parameters of which both sides have a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon import Parameter
from gluongraph.step import TrainStep

Array = np.ndarray[Any, Any]
ADAMS: list[dict[str, Any]] = [{}, {"weight_decay": 0.05}, {"maximize": True}, {"betas": (0.5, 0.9), "eps": 1e-3}]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.05}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05, "maximize": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    *(("Adam", options) for options in ADAMS),
    ("Adam", {"amsgrad": True, "betas": (0.9, 0.5)}),
    ("Adam", {"weight_decay": 0.05, "decoupled_weight_decay": True}),
    *(("AdamW", options) for options in ADAMS),
    ("AdamW", {"amsgrad": True, "betas": (0.9, 0.5)}),
    *(("NAdam", options) for options in ADAMS),
    ("NAdam", {"momentum_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.05, "decoupled_weight_decay": True}),
    *(("RAdam", options) for options in ADAMS),
    ("RAdam", {"betas": (0.9, 0.5)}),  # never rectified
    ("RAdam", {"weight_decay": 0.05, "decoupled_weight_decay": True}),
    *(("Adamax", options) for options in ADAMS),
    ("Adagrad", {}),
    ("Adagrad", {"weight_decay": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adagrad", {"maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"weight_decay": 0.05, "rho": 0.5, "eps": 1e-3, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"weight_decay": 0.05, "alpha": 0.5, "eps": 1e-3, "maximize": True}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("ASGD", {}),
    ("ASGD", {"weight_decay": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": 3.0, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (0.004, 0.03), "maximize": True}),
    ("Muon", {}),
    ("Muon", {"nesterov": False, "weight_decay": 0.0}),
    ("Muon", {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.5}),
    ("Muon", {"adjust_lr_fn": "original", "ns_steps": 3, "ns_coefficients": (3.0, -3.2, 1.2), "eps": 1e-2}),
]
UPDATES = 10


def named(case: Any) -> str:
    """The id of a test."""
    if not isinstance(case, dict):
        return str(case)
    return "-".join(f"{k}={v}" for k, v in case.items()) or "plain"


def shapes_of(optimizer: str) -> list[tuple[int, ...]]:
    """What it can update."""
    return [(8, 5), (4, 9)] if optimizer == "Muon" else [(7,), (8, 5), (2, 3, 3, 3)]


def parameters(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Parameter]:
    """Parameters p0, p1, ... with random weights."""
    rng, made = np.random.default_rng(7), []
    for i, shape in enumerate(shapes):
        p = Parameter(f"p{i}", shape=shape, dtype=dtype)
        p.initialize()
        p.set_data(nd.array(rng.normal(size=shape), dtype=dtype))
        made.append(p)
    return made


def gradients(shapes: Sequence[tuple[int, ...]], dtype: str, count: int = UPDATES) -> list[list[Array]]:
    """For each update a gradient for each; large and small ones, that change."""
    rng = np.random.default_rng(1)
    return [[(rng.normal(size=s) * 10.0 ** rng.uniform(-2, 1)).astype(dtype) for s in shapes] for _ in range(count)]


def eager(params: Sequence[Parameter], trainer: gluon.Trainer) -> Callable[[Sequence[Array]], None]:
    """An update of the trainer from gradients, outside a compiled step."""

    def update(grads: Sequence[Array]) -> None:
        for p, g in zip(params, grads, strict=True):
            p.grad()[:] = nd.array(g, dtype=p.dtype)
            p.data()._fresh_grad = True
        trainer.step(1)

    return update


def compiled(params: Sequence[Parameter], trainer: gluon.Trainer, **how: Any) -> Callable[[Sequence[Array]], None]:
    """An update of the trainer from gradients, in a compiled step."""

    def loss(*gradients: nd.NDArray) -> nd.NDArray:
        return nd.add_n(*((p.data() * g).sum() for p, g in zip(params, gradients, strict=True)))

    step: TrainStep = mx.compile(loss, trainer=trainer, **how)
    return lambda grads: step(*(nd.array(g, dtype=g.dtype) for g in grads), batch_size=1)


WAYS = {"eager": eager, "compiled": compiled}


def near(params: Sequence[Parameter], tensors: Sequence[Any], tolerance: float) -> None:
    """All within this of the largest element of the tensor."""
    for p, tensor in zip(params, tensors, strict=True):
        want = tensor.detach().double().numpy()
        error = np.abs(p.data().asnumpy().astype(np.float64) - want).max() / np.abs(want).max()
        assert error <= tolerance, f"{p.name}: {error}"
