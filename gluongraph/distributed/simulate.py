"""Predicted time of data-parallel steps on many ranks: kernels as measured, collectives by the alpha-beta model.

A message of m bytes takes alpha + m beta seconds: the latency of the network, and the inverse of its bandwidth. The
collectives are those of Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH
(2005); the time of additions is part of beta. What the model leaves out: ranks that wait for a slower one, and networks
whose links are shared by more than the ranks of one host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gluongraph.errors import ArgumentError
from gluongraph.ir.plan import Plan
from gluongraph.runtime.profile import Profile

STRATEGIES = ("allreduce", "zero1", "zero2", "fsdp")
# compression -> bytes on the wire of a byte of float32, and whether it is summed on the way
COMPRESSIONS = {"fp16": (1 / 2, True), "bf16": (1 / 2, True), "2bit": (1 / 16, False), "1bit": (1 / 32, False)}


@dataclass(frozen=True)
class Link:
    """A network, or the memory of a host: bytes a second of one rank, and seconds until a message arrives.

    >>> round(Link(1e9, 1e-6).allreduce(2, 1e6), 9)  # 2 messages, of half a megabyte each
    0.001001
    """

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency >= 0):
            raise ArgumentError(f"a link has a bandwidth above 0 and a latency of 0 or more, not {self}")

    def reduce_scatter(self, ranks: int, nbytes: float) -> float:
        """(n-1)/n N beta, and alpha log2 n by recursive halving, or (n-1) alpha where n is no power of two."""
        if ranks == 1:
            return 0.0
        rounds = math.log2(ranks) if ranks & (ranks - 1) == 0 else ranks - 1
        return rounds * self.latency + (ranks - 1) / ranks * nbytes / self.bandwidth

    def allgather(self, ranks: int, nbytes: float) -> float:
        """Of N bytes in the end: the time of `reduce_scatter`."""
        return self.reduce_scatter(ranks, nbytes)

    def allreduce(self, ranks: int, nbytes: float) -> float:
        """The less of reduce_scatter with allgather, and of recursive doubling, log2 n (alpha + N beta)."""
        if ranks == 1:
            return 0.0
        doubling = math.ceil(math.log2(ranks)) * (self.latency + nbytes / self.bandwidth)
        return min(self.reduce_scatter(ranks, nbytes) + self.allgather(ranks, nbytes), doubling)


@dataclass(frozen=True)
class Cluster:
    """Ranks on hosts: `per_host` of them are joined by `within`, and share the link `between` hosts."""

    between: Link
    within: Link | None = None
    per_host: int = 1

    def _shape(self, ranks: int) -> tuple[int, int]:
        """Return the ranks of a host, and the hosts."""
        inside = math.gcd(self.per_host, ranks) if self.within is not None else 1
        return inside, ranks // inside

    def allreduce(self, ranks: int, nbytes: float) -> float:
        """Within hosts a reduce_scatter, between hosts an allreduce, of all the host's parts over its one link; then an
        allgather within hosts."""
        inside, hosts = self._shape(ranks)
        if inside == 1 or self.within is None:
            return self.between.allreduce(ranks, nbytes)
        local = self.within.reduce_scatter(inside, nbytes) + self.within.allgather(inside, nbytes)
        return local + self.between.allreduce(hosts, nbytes)

    def reduce_scatter(self, ranks: int, nbytes: float) -> float:
        """The same within hosts, then between them."""
        inside, hosts = self._shape(ranks)
        if inside == 1 or self.within is None:
            return self.between.reduce_scatter(ranks, nbytes)
        return self.within.reduce_scatter(inside, nbytes) + self.between.reduce_scatter(hosts, nbytes)

    def allgather(self, ranks: int, nbytes: float) -> float:
        """As long as a reduce_scatter."""
        return self.reduce_scatter(ranks, nbytes)


@dataclass(frozen=True)
class Timeline:
    """A step on one rank: its seconds, and after which of them how many bytes of gradients are there."""

    seconds: float
    gradients: tuple[tuple[float, float], ...]

    @property
    def nbytes(self) -> float:
        """Of all gradients."""
        return sum(nbytes for _, nbytes in self.gradients)

    def scaled(self, seconds: float) -> Timeline:
        """The same step on a machine where it takes so long.

        >>> Timeline(2.0, ((1.0, 8.0),)).scaled(4.0)
        Timeline(seconds=4.0, gradients=((2.0, 8.0),))
        """
        factor = seconds / self.seconds
        return Timeline(seconds, tuple((at * factor, nbytes) for at, nbytes in self.gradients))


def timeline(plan: Plan, profile: Profile, parameters: Sequence[str]) -> Timeline:
    """The timeline of a compiled step that updates these parameters: a gradient is there when the kernel that updates
    by it has run."""
    names, now = set(parameters), 0.0
    found = []
    for launch, row in zip(plan.launches, profile, strict=True):
        now += row.seconds
        if nbytes := sum(b.type.nbytes for b in launch.writes if b.space == "state" and b.name in names):
            found.append((now, float(nbytes)))
    return Timeline(now, tuple(found))


@dataclass(frozen=True)
class Prediction:
    """A step on so many ranks, in seconds: computation, all communication, and what of it computation does not hide."""

    ranks: int
    compute: float
    communication: float
    exposed: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Computation as a part of the step: throughput of a rank, as a part of that of one rank alone."""
        return self.compute / self.seconds


def predict(
    step: Timeline,
    cluster: Cluster,
    ranks: int,
    strategy: str = "allreduce",
    compression: str | None = None,
    overlap: bool = False,
    bucket: float = 4 << 20,
) -> Prediction:
    """Predict a step of which each rank computes what `step` says (weak scaling: a rank's batch stays as it is).

    With `overlap` buckets of gradients are communicated, one after another, while others are computed.

    Raises:
        ArgumentError: no such strategy or compression; compression with a strategy other than "allreduce".

    >>> step = Timeline(0.1, ((0.1, 100e6),))
    >>> round(predict(step, Cluster(Link(10e9, 1e-6)), 8).efficiency, 3)  # 100 ms, and 1.75 x 100 MB at 10 GB/s
    0.851
    """
    if ranks < 1 or strategy not in STRATEGIES or compression not in (None, *COMPRESSIONS):
        raise ArgumentError(f"no prediction for ranks={ranks}, strategy={strategy!r}, compression={compression!r}")
    if compression is not None and strategy != "allreduce":
        raise ArgumentError(f"compression={compression!r} with strategy={strategy!r}: gradients are summed as they are")
    buckets = _buckets(step, bucket) if overlap else [(step.seconds, step.nbytes)]
    free, total = 0.0, 0.0
    for ready, nbytes in buckets:
        seconds = _reduction(cluster, ranks, nbytes, strategy, compression)
        free = max(free, ready) + seconds
        total += seconds
    after = _gathers(cluster, ranks, step.nbytes, strategy)
    exposed = max(0.0, free - step.seconds) + after
    return Prediction(ranks, step.seconds, total + after, exposed)


def _buckets(step: Timeline, size: float) -> list[tuple[float, float]]:
    """Return when each bucket is complete, and its bytes."""
    found, held, ready = [], 0.0, 0.0
    for ready, nbytes in step.gradients:
        held += nbytes
        if held >= size:
            found.append((ready, held))
            held = 0.0
    return [*found, (ready, held)] if held else found


def _reduction(cluster: Cluster, ranks: int, nbytes: float, strategy: str, compression: str | None) -> float:
    """Seconds to sum gradients of so many bytes."""
    if strategy != "allreduce":
        return cluster.reduce_scatter(ranks, nbytes)
    share, summed = COMPRESSIONS[compression] if compression else (1.0, True)
    if summed:
        return cluster.allreduce(ranks, share * nbytes)
    return cluster.allgather(ranks, ranks * share * nbytes)  # codes of all ranks go to all


def _gathers(cluster: Cluster, ranks: int, nbytes: float, strategy: str) -> float:
    """Seconds to gather parameters: after the update, or with fsdp in the forward and in the backward."""
    times: Mapping[str, int] = {"zero1": 1, "zero2": 1, "fsdp": 2}
    return times.get(strategy, 0) * cluster.allgather(ranks, nbytes)
