"""gluongraph's side of the benchmarks: the whole step compiled, or op by op."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.bench import nets, transformers
from gluongraph.bench.workloads import Workload, batches, update_shapes
from gluongraph.compiler.machine_peaks import machine
from gluongraph.gluon import eager_update
from gluongraph.ir.cost_model import costs
from gluongraph.ir.plan import Plan
from gluongraph.runtime.profile import profile
from gluongraph.step import TrainStep

MODELS: dict[str, Callable[..., gluon.HybridBlock]] = {**nets.MODELS, **transformers.MODELS}
LOSSES: dict[str, Callable[[], Any]] = {
    "cross-entropy": gluon.loss.SoftmaxCrossEntropyLoss,
    "l2": gluon.loss.L2Loss,
    "logistic": gluon.loss.SigmoidBinaryCrossEntropyLoss,
}


def network(workload: Workload) -> gluon.HybridBlock:
    """The workload's net, initialized."""
    net = MODELS[workload.model](**workload.size)
    net.initialize(mx.init.Xavier())
    return net


def trainer(workload: Workload, net: gluon.HybridBlock) -> gluon.Trainer:
    """The workload's optimizer on the net's parameters."""
    return gluon.Trainer(net.collect_params(), workload.optimizer, dict(workload.hyper))


def arrays(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """A batch as arrays of gluongraph's."""
    return tuple(nd.array(part, dtype=part.dtype) for part in batch)


def step_of(workload: Workload, **options: Any) -> tuple[TrainStep, list[tuple[Any, ...]]]:
    """The compiled step, with these options of mx.compile, and batches for it."""
    net = network(workload)
    criterion, optimizer = LOSSES[workload.loss](), trainer(workload, net)
    step = mx.compile(net, criterion, optimizer, inputs=workload.inputs, **options)
    return step, [arrays(batch) for batch in batches(workload)]


class Compiled:
    """A workload's compiled step on its batches, one after the other."""

    def __init__(self, workload: Workload, **options: Any):
        self.step, self.batches = step_of(workload, **options)
        self._data = cycle(self.batches)

    def __call__(self) -> Any:
        """One training step; returns the loss."""
        return self.step(*next(self._data))

    def kernels(self, repeat: int) -> dict[str, Any]:
        """What its kernels do, and what the machine could, as data."""
        return self.step.profile(*self.batches[0], repeat=repeat).data()

    def bound(self) -> float:
        """Seconds that the machine needs for what its kernels do."""
        return bound(self.step.plan)


def bound(plan: Plan) -> float:
    """The sum of the bounds of all launches."""
    return sum(map(machine().bound, costs(plan)))


def compiled(workload: Workload, **options: Any) -> Callable[[], Any]:
    """A function that takes one compiled training step, with these options of mx.compile, and returns the loss."""
    return Update(workload) if workload.model == "update" else Compiled(workload, **options)


def eager(workload: Workload, precision: str = "32") -> Callable[[], Any]:
    """The same, one op at a time; the update alone is one compiled call in either mode."""
    if workload.model == "update":
        return Update(workload)
    if precision != "32":
        raise SystemExit(f"eager mode has no precision {precision}")
    net = network(workload)
    optimizer, criterion = trainer(workload, net), LOSSES[workload.loss]()
    data = cycle([arrays(batch) for batch in batches(workload)])

    def step() -> Any:
        *inputs, labels = next(data)
        with autograd.record():
            loss = criterion(net(*inputs), labels)
        loss.backward()
        optimizer.step(workload.batch)
        return loss

    return step


class Update:
    """The optimizer alone, on gradients that are there; with `call` without the trainer's look at each of them.

    It is compiled however small it is: that is the update of a compiled step.
    """

    def __init__(self, workload: Workload, call: bool = False):
        eager_update.WORTH_COMPILING = 0
        rng = np.random.default_rng(0)
        parameters = [gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(update_shapes(workload))]
        for p in parameters:
            p.initialize(mx.init.Zero())
            p.data()[:], p.grad()[:] = (rng.standard_normal(p.shape, np.float32) for _ in range(2))
        self.call = call
        self.optimizer = gluon.Trainer(parameters, workload.optimizer, dict(workload.hyper))
        self.leaves = [leaf for p in parameters if (leaf := p.data()._leaf) is not None]
        self.last = parameters[-1].data()
        self._step()
        made = self.optimizer._update_cache
        assert isinstance(made, eager_update.EagerUpdate)
        self.made = made

    def _step(self) -> None:
        for leaf in self.leaves:
            leaf.fresh = True  # or the trainer would ask for a backward first
        self.optimizer.step(1)

    def __call__(self) -> Any:
        """One update; returns the last weight."""
        if self.call:
            self.made(self.optimizer)
        else:
            self._step()
        return self.last

    def kernels(self, repeat: int) -> dict[str, Any]:
        """What its kernels do, and what the machine could, as data."""
        run = self._compiled()
        code: Any = run.compiled
        return profile(run.runner, code.module(), code.plan, [], repeat, machine()).data()

    def bound(self) -> float:
        """Seconds that the machine needs for what its kernels do."""
        code: Any = self._compiled().compiled
        return bound(code.plan)

    def _compiled(self) -> eager_update._Compiled:
        run = self.made.run
        assert isinstance(run, eager_update._Compiled)
        return run


def update_call(workload: Workload, precision: str = "32") -> Callable[[], Any]:
    """The update's one call."""
    return Update(workload, call=True)
