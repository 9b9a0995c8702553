"""A training that a checkpoint has to get right: shuffled batches, dropout, running statistics, any optimizer."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(26, 5)).astype(np.float32), RNG.integers(0, 3, 26).astype(np.int32)
TOO_LARGE = 2.0**18  # a scale of the loss that overflows some times until it fits
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def network(units: int = 6, dtype: str = "float32") -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(units, in_units=5), gluon.nn.BatchNorm(in_channels=units), gluon.nn.Activation("tanh"))
    net.add(gluon.nn.Dropout(0.3), gluon.nn.Dense(3, in_units=units))
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    return net


class Training:
    """Net, trainer, compiled step and loader, all new; epochs have 7 batches, the last of 2 samples rolls over.

    With `window` the gradients of so many batches make one update; with precision="16-mixed" the scale of the loss is
    too large before the batches with these `overflows` as numbers.
    """

    def __init__(
        self,
        optimizer: Any = "adam",
        settings: dict[str, Any] | None = None,
        dtype: str = "float32",
        precision: str = "32",
        window: int = 1,
        overflows: tuple[int, ...] = (),
    ):
        self.window, self.overflows, self.seen = window, overflows, 0
        given = {"learning_rate": 0.01} if settings is None else settings
        self.net = network(dtype=dtype)
        for p in self.net.collect_params().values():
            if optimizer in ("groupadagrad", "torch.muon") and len(p.shape) != 2:
                p.grad_req = "null"  # it is for matrices
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, given)
        self.step = mx.compile(self.net, LOSS, self.trainer, precision=precision)
        data = gluon.data.ArrayDataset(X.astype(dtype), Y)
        self.loader = gluon.data.DataLoader(data, 4, shuffle=True, last_batch="rollover")
        self.batches: Any = iter(())
        self.epoch = 0

    def go(self, steps: int) -> list[Any]:
        """Train on: the losses."""
        losses = []
        for _ in range(steps):
            batch = next(self.batches, None)
            if batch is None:
                self.epoch += 1
                self.batches = iter(self.loader)
                batch = next(self.batches)
            if self.seen in self.overflows:
                self.trainer.scaler.scale[:] = TOO_LARGE
            losses.append((self.step if self.window == 1 else self.step.accumulate)(*batch).asnumpy().tolist())
            self.seen += 1
            if self.window > 1 and self.seen % self.window == 0:
                self.step.apply()
        return losses

    def save(self, run: pathlib.Path, **how: Any) -> pathlib.Path:
        extra = {"epoch": self.epoch, "seen": self.seen, "loader": self.loader.state_dict()}
        return pathlib.Path(self.step.save(run, extra=extra, **how))

    def load(self, run: pathlib.Path) -> None:
        extra = self.step.load(run)
        self.epoch, self.seen = extra["epoch"], extra["seen"]
        self.loader.load_state_dict(extra["loader"])
        self.batches = iter(self.loader)

    def state(self) -> dict[str, Any]:
        """Weights, running statistics, optimizer states, sums, counts, and what the generators draw next."""
        parameters = self.net._collect_params_with_prefix()
        own = {p.name: key for key, p in parameters.items()}
        arrays = {f"{key}@{a.context}": a.asnumpy() for key, p in parameters.items() for a in p.list_data()}
        for name, array in self.trainer.state_arrays(self.trainer.states).items():
            parameter, _, state = name.partition("/")
            parameter, at, context = parameter.partition("@")
            arrays[f"{own[parameter]}{at}{context}/{state}"] = array.asnumpy()
        arrays |= {f"sum {own[name]}": array.asnumpy() for name, array in self.step.accumulator.live.items()}
        optimizer = self.trainer.optimizer
        return {
            **{name: array.tolist() for name, array in arrays.items()},
            "counts": optimizer.counts(),
            "rate": optimizer.learning_rate,
            "scale": [*self.trainer.scaler.progress(), self.step.skipped],
            "window": [self.step.accumulator.batches, self.step.accumulator.samples],
            "next": [nd.random.uniform(shape=(2,)).asnumpy().tolist(), np.random.rand(2).tolist()],
        }


def seed(number: int) -> None:
    """Put the generators somewhere."""
    mx.random.seed(number)
    np.random.seed(number)
