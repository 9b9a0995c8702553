"""Predicted time of data-parallel steps on many ranks: kernels as measured, collectives by the alpha-beta model.

    >>> cluster = Cluster(Link(bandwidth=12.5e9, latency=5e-6))
    >>> step = Timeline((Work(0.1),), (Exchange("all_reduce", 100_000_000),), (("run", 0), ("start", 0), ("wait", 0)))
    >>> found = predict(step, cluster, 256)
    >>> f"{found.communication * 1e3:.1f} ms on the network, efficiency {found.efficiency:.0%}"
    '16.0 ms on the network, efficiency 86%'

`timeline(plan, seconds)` makes the timeline of a plan; `timeline_of_step` in `simulate_step.py` compiles a step as for
several ranks and measures it; `simulate_calibration.py` measures the network.

What the model leaves out: ranks that wait for a slower one, networks whose links are shared by more than the ranks of
one host, and kernels that are slower while the same cores, or the same memory, communicate.
"""

from __future__ import annotations

from dataclasses import dataclass

from gluongraph.distributed.simulate_network import Cluster, Link
from gluongraph.distributed.simulate_timeline import Exchange, Timeline, Work, estimates, timeline
from gluongraph.errors import ArgumentError

__all__ = ["Cluster", "Exchange", "Link", "Prediction", "Timeline", "Work", "estimates", "predict", "timeline"]


@dataclass(frozen=True)
class Prediction:
    """A step on so many ranks, in seconds: computation, all communication, what of it computation does not hide, and
    the step on one rank. `samples` is the batch of one rank."""

    ranks: int
    compute: float
    communication: float
    exposed: float
    alone: float
    samples: int = 1

    @property
    def seconds(self) -> float:
        """The time of the step."""
        return self.compute + self.exposed

    @property
    def throughput(self) -> float:
        """Samples a second, of all ranks."""
        return self.ranks * self.samples / self.seconds

    @property
    def efficiency(self) -> float:
        """Throughput of a rank, as a part of that of one rank alone (weak scaling)."""
        return self.alone / self.seconds


def predict(step: Timeline, cluster: Cluster, ranks: int, *, overlap: bool = True) -> Prediction:
    """Predict a step on so many ranks, each with a batch as large as that of the timeline (weak scaling).

    The network carries one collective after another, in the order of the plan. With `overlap` a rank computes on while
    it does, until a kernel needs the result; without, it waits for each collective.

    Raises:
        ArgumentError: a number of ranks below 1, or one that does not fill the hosts of the cluster.

    >>> cluster = Cluster(Link(bandwidth=1e9, latency=0.0))
    >>> steps = (("run", 0), ("start", 0), ("run", 1), ("wait", 0))
    >>> step = Timeline((Work(0.5), Work(0.5)), (Exchange("all_reduce", 750_000_000),), steps)
    >>> predict(step, cluster, 2).exposed, predict(step, cluster, 2, overlap=False).exposed
    (0.25, 0.75)
    """
    if ranks < 1:
        raise ArgumentError(f"a step on {ranks} ranks: there is at least 1")
    alone = step.compute(1)
    if ranks == 1:
        return Prediction(1, alone, 0.0, 0.0, alone, step.samples)
    durations = [cluster.seconds(each.op, ranks, each.total(ranks)) for each in step.exchanges]
    agreement = cluster.seconds("all_reduce", ranks, step.agreement) if step.exchanges and step.agreement else 0.0
    now = step.host + agreement
    free = now  # when the network has carried what was started
    complete: dict[int, float] = {}
    for what, number in step.steps:
        if what == "run":
            now += step.works[number].seconds(step.ranks, ranks)
        elif what == "start":
            complete[number] = free = max(now, free) + durations[number]
            now = now if overlap else free
        else:
            now = max(now, complete[number])
    compute = step.compute(ranks)
    return Prediction(ranks, compute, sum(durations) + agreement, now - compute, alone, step.samples)
