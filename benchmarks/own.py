"""gluongraph's side of the benchmarks: the whole step compiled, or op by op."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from workloads import Workload, batches, network, trainer


def compiled(workload: Workload) -> Callable[[], Any]:
    """A function that takes one compiled training step and returns the loss."""
    net = network(workload)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer(workload, net))
    data = cycle([(nd.array(x), nd.array(y, dtype="int32")) for x, y in batches(workload)])
    return lambda: step(*next(data))


def eager(workload: Workload) -> Callable[[], Any]:
    """The same, one op at a time."""
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
