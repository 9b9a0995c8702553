"""MXNet's side of the benchmarks: the very file of gluongraph's nets, hybridized with static memory.

It runs in an interpreter that has MXNet 1.9.1 and not gluongraph; worker.py lends MXNet that name there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import mxnet as mx

from gluongraph.bench.nets import MODELS
from gluongraph.bench.workloads import Workload, batches, update_shapes

LOSSES: dict[str, Callable[[], Any]] = {
    "cross-entropy": mx.gluon.loss.SoftmaxCrossEntropyLoss,
    "l2": mx.gluon.loss.L2Loss,
    "logistic": mx.gluon.loss.SigmoidBinaryCrossEntropyLoss,
}


def contender(workload: Workload, threads: int) -> Callable[[], Any]:
    """A function that takes one training step and returns the loss; the number of threads is OMP_NUM_THREADS."""
    if workload.model == "update":
        return _update(workload)
    if workload.model not in MODELS:
        raise SystemExit(f"MXNet 1.9.1 has no op for the attention of {workload.name}")
    net, criterion = MODELS[workload.model](**workload.size), LOSSES[workload.loss]()
    net.initialize(mx.init.Xavier())
    for block in (net, criterion):
        block.hybridize(static_alloc=True, static_shape=True)
    trainer = mx.gluon.Trainer(net.collect_params(), workload.optimizer, dict(workload.hyper))
    data = cycle([tuple(mx.nd.array(part, dtype=part.dtype) for part in batch) for batch in batches(workload)])

    def step() -> Any:
        *inputs, labels = next(data)
        with mx.autograd.record():
            loss = criterion(net(*inputs), labels)
        loss.backward()
        trainer.step(workload.batch)
        mx.nd.waitall()
        return loss.asnumpy()

    return step


def _update(workload: Workload) -> Callable[[], Any]:
    parameters = [mx.gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(update_shapes(workload))]
    for p in parameters:
        p.initialize(mx.init.Normal(1.0))
        p.grad()[:] = mx.nd.random.normal(shape=p.shape)
    trainer = mx.gluon.Trainer(parameters, workload.optimizer, dict(workload.hyper))

    def step() -> Any:
        for p in parameters:
            p.data()._fresh_grad = True
        trainer.step(1)
        mx.nd.waitall()
        return parameters[-1].data().asnumpy()

    return step
