"""What is tested of every optimizer: its variants, parameters of several shapes, and what float64 makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import reference

from gluongraph import gluon, nd
from gluongraph.gluon import Parameter

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5  # of max|w|, design of the project
RATE, DECAY, CLIP, BATCH = 0.05, 0.01, 0.3, 2
MATRICES = ("groupadagrad", "torch.muon")  # what they update
LARGE_BATCH = {"momentum": 0.9, "batch_scale": 2, "updates_per_epoch": 2, "warmup_epochs": 3}

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": -0.5}),
    ("nag", {}),
    ("nag", {"momentum": 0.9}),
    ("signum", {"wd_lh": 0.02}),
    ("signum", {"momentum": 0.0}),
    ("dcasgd", {"lamda": 0.5}),
    ("dcasgd", {"lamda": 0.5, "momentum": 0.9}),
    ("test", {}),
    ("adam", {}),
    ("adam", {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
    ("adamw", {}),
    ("adamw", {"correct_bias": False}),
    ("adabelief", {}),
    ("adamax", {}),
    ("nadam", {}),
    ("adagrad", {}),
    ("groupadagrad", {}),
    ("rmsprop", {}),
    ("rmsprop", {"centered": True, "gamma2": 0.8, "clip_weights": 1.2}),
    ("adadelta", {}),
    ("ftrl", {"lamda1": 0.05}),
    ("ftml", {}),
    ("lars", {"momentum": 0.9, "eta": 0.1}),
    ("lars", {"eta": 0.1, "eps": 1e-3}),
    ("lbsgd", LARGE_BATCH),
    ("lbsgd", {**LARGE_BATCH, "warmup_strategy": "power2", "begin_epoch": 1}),
    ("lbsgd", {"warmup_strategy": "sqrt", "batch_scale": 3, "updates_per_epoch": 2}),
    ("lbsgd", {"momentum": 0.9, "warmup_strategy": "lars"}),
    ("lbsgd", {"momentum": 0.9, "warmup_strategy": "lars", "batch_scale": 2}),
    ("lamb", {}),
    ("lamb", {"bias_correction": False, "lower_bound": 1.0, "upper_bound": 3.0}),
    ("lans", {"upper_bound": 3.0}),
]


# PyTorch's rules, which test_torch_rules.py holds against PyTorch, for tests of what all optimizers go through.
TORCH: list[tuple[str, dict[str, Any]]] = [
    ("torch.sgd", {}),
    ("torch.sgd", {"momentum": 0.9, "dampening": 0.5}),
    ("torch.adam", {"amsgrad": True}),
    ("torch.adamw", {}),
    ("torch.nadam", {}),
    ("torch.radam", {"betas": (0.9, 0.99)}),
    ("torch.adamax", {}),
    ("torch.adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("torch.adadelta", {}),
    ("torch.rmsprop", {"momentum": 0.9}),
    ("torch.asgd", {"lambd": 0.1, "t0": 3.0}),
    ("torch.rprop", {}),
    ("torch.lion", {}),
    ("torch.muon", {}),
]
# Of these the ones that differ by more than a formula: a first update of its own, states that are numbers, matrices.
TORCH_ON_RANKS = [(name, extra) for name, extra in TORCH if "dampening" in extra or name[6:] in ("nadam", "muon")]


def named(value: Any) -> str:
    """The id of a test of one variant."""
    return value if isinstance(value, str) else "-".join(map(str, value.values())) or "plain"


def types(optimizer: str, *mixed: str) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of the parameters: float32 ones, and one of each of the `mixed` dtypes."""
    shapes: list[tuple[int, ...]] = [(7,), (2, 3, 3, 3)]
    if optimizer in MATRICES:
        shapes = [(7, 1), (6, 9)]
    return [*((shape, "float32") for shape in shapes), *(((3, 5), dtype) for dtype in mixed)]


def settings(optimizer: str, clip: float | None) -> dict[str, Any]:
    """Rate, decay and clipping; of torch's, which call the decay otherwise, without that."""
    if optimizer.startswith("torch."):
        return {"lr": RATE, "clip_gradient": clip}
    return {"learning_rate": RATE, "wd": 0.0 if optimizer == "groupadagrad" else DECAY, "clip_gradient": clip}


def parameters(rng: np.random.Generator, wanted: Sequence[tuple[tuple[int, ...], str]]) -> list[Parameter]:
    """Parameters p0, p1, ... with random weights."""
    made = []
    for i, (shape, dtype) in enumerate(wanted):
        p = Parameter(f"p{i}", shape=shape, dtype=dtype)
        p.initialize()
        p.set_data(nd.array(rng.normal(size=shape), dtype=dtype))
        made.append(p)
    return made


def gradients(rng: np.random.Generator, params: Sequence[Parameter]) -> list[Array]:
    """A gradient for each: numbers that its dtype holds, as float32."""
    return [nd.array(rng.normal(size=p.shape), dtype=p.dtype).astype("float32").asnumpy() for p in params]


def give(p: Parameter, g: Array) -> None:
    """The gradient, as a backward would leave it."""
    p.grad()[:] = nd.array(g, dtype=p.dtype)
    p.data()._fresh_grad = True


class Expected:
    """Weights and states in float64, updated by the reference formulas."""

    def __init__(self, params: Sequence[Parameter]):
        self.weights = [p.data().astype("float64").asnumpy() for p in params]
        self.states: list[dict[str, Any]] = [{} for _ in params]
        self.t = 0

    def update(self, name: str, grads: Sequence[Array], clip: float | None, **extra: Any) -> None:
        """One update of all; `extra` are the optimizer's own arguments, or others than the usual rate and decay."""
        self.t += 1
        usual = {"lr": RATE, "wd": settings(name, clip)["wd"], "r": 1 / BATCH, "clip": clip}
        for i, (w, g) in enumerate(zip(self.weights, grads, strict=True)):
            formula = reference.FORMULAS[name]
            self.weights[i] = formula(w, g.astype(np.float64), self.states[i], self.t, **{**usual, **extra})

    def check(self, trainer: gluon.Trainer, params: Sequence[Parameter]) -> None:
        """Weights, states and master weights are near these; a 16-bit weight is its rounded master."""
        for p, want, state in zip(params, self.weights, self.states, strict=True):
            arrays = {key.partition("/")[2]: a for key, a in trainer.state_arrays([p.name]).items()}
            master = arrays.pop("master", None)
            near(p.data() if master is None else master, want, p.name)
            if master is not None:
                assert (p.data() == master.astype(p.dtype)).asnumpy().all(), p.name
            for key, array in arrays.items():
                assert array.dtype == (np.float64 if p.dtype == np.float64 else np.float32)
                near(array, state[key], f"{p.name}/{key}")


def near(found: nd.NDArray, want: Array, what: str) -> None:
    """Equal within the tolerance."""
    error = np.abs(found.asnumpy().astype(np.float64) - want).max()
    assert error <= TOLERANCE * max(np.abs(want).max(), 1e-30), f"{what}: {error} of {np.abs(want).max()}"


def updates(name: str, extra: dict[str, Any], clip: float | None, params: Sequence[Parameter]) -> Iterator[Any]:
    """Five times: gradients, and what comes of them in float64."""
    rng, expected = np.random.default_rng(1), Expected(params)
    for _ in range(5):
        grads = gradients(rng, params)
        expected.update(name, grads, clip, **extra)
        yield grads, expected
