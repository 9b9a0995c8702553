"""The timeline of a step on several ranks, from one process: the step is compiled as one of them, and measured.

The other ranks are simulated: collectives take this rank's part for all. So the plan is what a rank runs (gradients
apart from updates, buckets, shards, codes), and its kernels are timed on memory as they have it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph import debug
from gluongraph.compiler.lower import interprets
from gluongraph.distributed.simulate_timeline import Timeline, estimates, timeline
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.sharded import check_strategy
from gluongraph.gluon.trainer import Trainer
from gluongraph.kvstore.distributed import DistributedStore
from gluongraph.runtime.communicator.environment import use_world, world
from gluongraph.runtime.communicator.local import LocalCommunicator
from gluongraph.runtime.communicator.overlap import BUCKET
from gluongraph.step import TrainStep

PLANNED = 2  # ranks that the plan is for; times and bytes on others follow from it
_LONG = 0.5  # seconds of steps that are measured at least


class SimulatedRank(LocalCommunicator):
    """Rank 0 of several, of which the others do not exist: what they would send is this rank's own part."""

    name = "simulated"

    def __init__(self, size: int):
        self.size = self.local_size = size

    def reduce_scatter(self, source: Any, target: Any) -> None:
        """Copy this rank's part of the array."""
        np.copyto(target, source[: target.size])

    def allgather(self, source: Any, target: Any) -> None:
        """Repeat the array."""
        np.copyto(target.reshape(self.size, -1), source.reshape(1, -1))

    def exchange(self, text: str) -> Sequence[str]:
        """Return the text for each rank."""
        return (text,) * self.size


class SimulatedStore(DistributedStore):
    """The store of a simulated rank. `bucket`: bytes of gradients that are communicated while others are computed."""

    in_graph = True

    def __init__(self, bucket: int):
        super().__init__()
        self._bucket = bucket

    @property
    def bucket(self) -> int:
        """As it was given: nothing is measured."""
        return self._bucket


@contextmanager
def simulated_ranks(number: int) -> Iterator[None]:
    """Within: this process is rank 0 of so many."""
    before = world()
    use_world(SimulatedRank(number))
    try:
        yield
    finally:
        use_world(before)


def timeline_of_step(
    step: TrainStep,
    batch: Sequence[Any],
    *,
    strategy: str | None = None,
    compression: Mapping[str, Any] | None = None,
    overlap: bool = True,
    compute: float | None = None,
    repeat: int = 20,
) -> Timeline:
    """The timeline of a step on this batch, as one of several ranks with that strategy and compression (by default
    those of its trainer); with `overlap` gradients are communicated in buckets.

    Kernels are measured, in this process and with its threads. With `compute`, the seconds of a step on one rank
    somewhere else, nothing is measured or run: the cost model says how the time is divided among kernels.

    The step and its trainer are used up: weights change, and a step that is to train is made by another trainer.

    Raises:
        MXNetError: the step has no trainer, or Python acts between its gradients and updates; its times are those of a
            GPU.
        ValueError: no such strategy; a strategy with compression.

    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd")
    >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    >>> timeline_of_step(step, (nd.ones((4, 2)), nd.zeros((4, 1))), compute=0.1).gradient_bytes
    12
    """
    trainer = _trainer_of(step)
    alone = None if compute is not None else _alone(step, batch)
    with simulated_ranks(PLANNED):
        _distribute(trainer, strategy, compression, BUCKET if overlap else 0)
        if compute is not None:
            return _estimated(step, batch, PLANNED).scaled(compute)
        seconds, host = _measured(step, batch, repeat)
        samples = step._specializations.last.samples // PLANNED
        return timeline(step.plan, seconds, host=host, alone=alone, samples=samples)


def timeline_of_plan(
    step: TrainStep, batch: Sequence[Any], *, overlap: bool = True, compute: float | None = None, repeat: int = 20
) -> Timeline:
    """`timeline_of_step` of a step whose plan is made, for one rank, and cannot be another, as that of an artefact: its
    gradients are ready when its updates are, and summed by allreduce.

    Raises:
        MXNetError: as `timeline_of_step`.
    """
    names = _trainer_of(step).names
    bucket = BUCKET if overlap else 0
    if compute is not None:
        return _estimated(step, batch, 1, names, bucket).scaled(compute)
    alone = _alone(step, batch)
    seconds, host = _measured(step, batch, repeat)
    samples = step._specializations.last.samples
    return timeline(step.plan, seconds, parameters=names, bucket=bucket, host=host, alone=alone, samples=samples)


def _trainer_of(step: TrainStep) -> Trainer:
    trainer = step.trainer
    if trainer is None:
        message = "a step without a trainer has no gradients to communicate"
        raise MXNetError(with_user_location(message, help="mx.compile(net, loss, trainer)"))
    return trainer


def _check_whole(trainer: Trainer) -> None:
    """Refuse a step of which a part is no kernel."""
    if trainer.in_python:
        message = "Python acts between gradients and updates, which is no part of a plan"
        raise MXNetError(with_user_location(message, help="use an optimizer with a formula"))


def _check_measurable(step: TrainStep) -> None:
    """Refuse to measure what is not run here as it would be on several ranks."""
    if not interprets() and step.artefact.gpu:  # what is interpreted is refused when it is profiled
        message = "kernels of a GPU are not measured as those of one of several ranks"
        raise MXNetError(with_user_location(message, help="say how long a step takes on one: compute=, --compute"))


def _distribute(trainer: Trainer, strategy: str | None, compression: Mapping[str, Any] | None, bucket: int) -> None:
    """Let the trainer be that of a worker, as if it had been made so."""
    check_strategy(strategy, "dist_sync")
    if strategy is not None:
        trainer._strategy = strategy
    if compression is not None:
        trainer._compression_params = dict(compression)
    trainer._kvstore_params["kvstore"] = SimulatedStore(bucket)
    trainer._kv_initialized = False


def _alone(step: TrainStep, batch: Sequence[Any]) -> float:
    """Seconds of a step on one rank."""
    with simulated_ranks(1):
        step.memory(*batch)
        _check_whole(_trainer_of(step))
        _check_measurable(step)
        return _seconds(lambda: step(*batch))


def _estimated(
    step: TrainStep, batch: Sequence[Any], ranks: int, parameters: Collection[str] = (), bucket: int = 0
) -> Timeline:
    """The timeline with the estimates of the cost model. Nothing is compiled: planning is enough."""
    with debug.override(backend="reference"):
        step.memory(*batch)
        _check_whole(_trainer_of(step))
        plan, samples = step.plan, step._specializations.last.samples // ranks
        return timeline(plan, estimates(plan), parameters=parameters, bucket=bucket, samples=samples)


def _measured(step: TrainStep, batch: Sequence[Any], repeat: int) -> tuple[list[float], float]:
    """Seconds of each launch, and those of a step outside of launches."""
    whole = _seconds(lambda: step(*batch))
    rows = step.profile(*batch, repeat=repeat, roofline=False)
    return [row.seconds for row in rows], max(0.0, whole - rows.seconds)


def _seconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    call()
    times: list[float] = []
    until = time.perf_counter() + _LONG
    while len(times) < 5 or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
