"""Trainings with sharded state, to be compared with replicated ones: nets, batches, and what is left of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rank_checks import Array, compiled, near, own, same_everywhere

from gluongraph import gluon, nd
from gluongraph.gluon import nn

STRATEGIES = ("zero1", "zero2", "fsdp")
SAMPLES, FEATURES, CLASSES, BATCHES = 12, 6, 3, 4  # 2, 3 and 4 ranks share a batch evenly
RNG = np.random.RandomState(0)
X = RNG.randn(BATCHES, SAMPLES, FEATURES).astype(np.float32)
Y = RNG.randint(0, CLASSES, (BATCHES, SAMPLES)).astype(np.float32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
Optimizer = tuple[str, Mapping[str, Any]]
SGD: Optimizer = ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01})
ADAM: Optimizer = ("adam", {"learning_rate": 0.05, "wd": 0.01})


def filled(net: Any, ctx: Any = None, dtype: str = "float32", seed: int = 1) -> Any:
    """The net with weights that are the same on all ranks and at every call, but differ between seeds."""
    if dtype != "float32":
        net.cast(dtype)
    net.initialize(ctx=ctx)
    rng = np.random.RandomState(seed)
    for p in net.collect_params().values():
        if p.grad_req != "null":
            p.set_data(nd.array(rng.randn(*p.shape) / np.sqrt(p.shape[-1]), dtype=p.dtype))
    return net


def mlp(**how: Any) -> Any:
    """49 + 7 + 24 numbers in weights and biases of odd sizes: shards end within parameters, and the last ones are
    padded."""
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.Dense(7, in_units=FEATURES, activation="tanh"), nn.Dense(CLASSES, in_units=7))
    return filled(net, **how)


class Run:
    """A net, its trainer and its compiled step."""

    def __init__(
        self,
        strategy: str | None,
        optimizer: Optimizer = ADAM,
        make: Callable[..., Any] = mlp,
        how: Mapping[str, Any] | None = None,
        loss: Any = LOSS,
        kvstore: Any = "dist_sync",
        **options: Any,
    ):
        self.net, self.strategy = make(**(how or {})), strategy
        self.params = list(self.net.collect_params().values())
        name, settings = optimizer
        self.trainer = gluon.Trainer(
            self.net.collect_params(), name, dict(settings), kvstore=kvstore, strategy=strategy
        )
        self.step = compiled(self.net, self.trainer, loss, **options)

    def train(self, batches: Sequence[int] = range(BATCHES)) -> Run:
        """One step on this rank's part of each batch."""
        for i in batches:
            self.step(self.part(X[i]), own(Y[i]))
        return self

    def part(self, batch: Array) -> Array:
        """This rank's part of a batch, in the dtype of the weights."""
        return nd.array(own(batch), dtype=self.params[0].dtype)

    def left(self) -> dict[str, Array]:
        """Weights of every context, and the optimizer's states; all ranks call this."""
        found: dict[str, Array] = {}
        with self.trainer.whole_parameters():
            for p in self.params:
                found |= {f"{p.name} on {a.context}": wide(a) for a in p.list_data()}
        for name, states in self.trainer.whole_states().items():
            found |= {f"{name}/{key}": wide(array) for key, array in states.items()}
        return found


def wide(array: Any) -> Array:
    """The numbers of an array as float64."""
    return np.asarray(array.asnumpy(), np.float64)


def compare(found: dict[str, Array], expected: dict[str, Array], what: str, tolerance: float = 1e-6) -> None:
    """Equal up to a part of the largest element, with the same bits on all ranks."""
    near(found, expected, tolerance, what)
    same_everywhere(found, what)


def assert_equal_results(
    drive: Callable[[Run], Any], strategies: Sequence[str] = STRATEGIES, tolerance: float = 1e-6, **how: Any
) -> None:
    """`drive(run)` trains, and may return arrays to be compared beside weights and states: with every strategy these
    are those of replicated state."""

    def result(strategy: str | None) -> dict[str, Array]:
        run = Run(strategy, **how)
        more = drive(run)
        return run.left() | (more if isinstance(more, dict) else {})

    expected = result(None)
    for strategy in strategies:
        compare(result(strategy), expected, f"{strategy} {how}", tolerance)
