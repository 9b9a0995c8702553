"""gluongraph's side of the benchmarks: the whole step compiled, or op by op."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.gluon import eager_update
from workloads import Workload, batches, network, trainer, update_shapes


def compiled(workload: Workload, **options: Any) -> Callable[[], Any]:
    """A function that takes one compiled training step, with these options of mx.compile, and returns the loss."""
    if workload.model == "update":
        return update(workload)
    net = network(workload)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer(workload, net), **options)
    data = cycle([(nd.array(x), nd.array(y, dtype="int32")) for x, y in batches(workload)])
    return lambda: step(*next(data))


def eager(workload: Workload) -> Callable[[], Any]:
    """The same, one op at a time; the update alone is one compiled call in either mode."""
    if workload.model == "update":
        return update(workload)
    net = network(workload)
    optimizer, criterion = trainer(workload, net), gluon.loss.SoftmaxCrossEntropyLoss()
    data = cycle([(nd.array(x), nd.array(y, dtype="int32")) for x, y in batches(workload)])

    def step() -> Any:
        x, y = next(data)
        with autograd.record():
            loss = criterion(net(x), y)
        loss.backward()
        optimizer.step(workload.batch)
        return loss

    return step


def update(workload: Workload, call: bool = False) -> Callable[[], Any]:
    """The optimizer alone, on gradients that are there; with `call` without the trainer's look at each of them.

    It is compiled however small it is: that is the update of a compiled step.
    """
    eager_update.WORTH_COMPILING = 0
    rng = np.random.default_rng(0)
    parameters = [gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(update_shapes(workload))]
    for p in parameters:
        p.initialize(mx.init.Zero())
        p.data()[:], p.grad()[:] = (rng.standard_normal(p.shape, np.float32) for _ in range(2))
    optimizer = gluon.Trainer(parameters, workload.optimizer, dict(workload.hyper))
    leaves, last = [p.data()._leaf for p in parameters], parameters[-1].data()

    def step() -> Any:
        for leaf in leaves:
            leaf.fresh = True  # or the trainer would ask for a backward first
        optimizer.step(1)
        return last

    def alone() -> Any:
        made(optimizer)
        return last

    step()
    made = optimizer._update_cache
    return alone if call else step
