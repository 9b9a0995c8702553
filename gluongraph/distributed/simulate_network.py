"""The time of collectives by the alpha-beta model, on a flat network or on hosts of several ranks.

A message of m bytes takes alpha + m beta seconds: the latency of the network, and the inverse of its bandwidth. To add
m received bytes to own ones takes m gamma. With p ranks and n bytes (before reduce_scatter and all_reduce, after
all_gather):

| collective | algorithm | time |
|---|---|---|
| all_gather | ring | (p-1) alpha + (p-1)/p n beta |
| | recursive doubling (Bruck's algorithm, if p is no power of two) | ceil(lg p) alpha + (p-1)/p n beta |
| reduce_scatter | ring | (p-1) alpha + (p-1)/p n (beta + gamma) |
| | recursive halving | lg p alpha + (p-1)/p n (beta + gamma) |
| all_reduce | ring | 2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma |
| | recursive halving and doubling (Rabenseifner) | 2 lg p alpha + 2(p-1)/p n beta + (p-1)/p n gamma |
| | recursive doubling | lg p (alpha + n beta + n gamma) |

If p is no power of two, the recursive reductions leave out p - 2^floor(lg p) ranks. Each sends its n bytes to a
neighbour before, and receives the result after: 2 alpha + 2 n beta + n gamma more, or 1/p of the bytes to be received
for a reduce_scatter.

Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH. International Journal of High
Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gluongraph.errors import ArgumentError, with_user_location

ALGORITHMS = ("best", "ring", "recursive")


@dataclass(frozen=True)
class Terms:
    """A time as messages one after another, bytes sent and bytes added, of a collective of one byte."""

    messages: float
    sent: float
    added: float

    def __add__(self, other: Terms) -> Terms:
        return Terms(self.messages + other.messages, self.sent + other.sent, self.added + other.added)


def _ring(reduces: bool) -> Callable[[int], Terms]:
    return lambda p: Terms(p - 1, (p - 1) / p, (p - 1) / p if reduces else 0.0)


def _power(p: int) -> int:
    """Return lg of the largest power of two up to p."""
    return p.bit_length() - 1


def _bruck(p: int) -> Terms:
    return Terms(math.ceil(math.log2(p)), (p - 1) / p, 0.0)


def _halving(p: int) -> Terms:
    q = 1 << _power(p)
    terms = Terms(_power(p), (q - 1) / q, (q - 1) / q)
    return terms if p == q else terms + Terms(2, 1 + 1 / p, 1)


def _halving_and_doubling(p: int) -> Terms:
    q = 1 << _power(p)
    terms = Terms(2 * _power(p), 2 * (q - 1) / q, (q - 1) / q)
    return terms if p == q else terms + Terms(2, 2, 1)


def _doubling(p: int) -> Terms:
    terms = Terms(_power(p), _power(p), _power(p))
    return terms if p == 1 << _power(p) else terms + Terms(2, 2, 1)


# collective -> algorithm, and how it is called in ALGORITHMS -> its terms
COLLECTIVES: Mapping[str, tuple[tuple[str, Callable[[int], Terms]], ...]] = {
    "all_gather": (("ring", _ring(False)), ("recursive", _bruck)),
    "reduce_scatter": (("ring", _ring(True)), ("recursive", _halving)),
    "all_reduce": (
        ("ring", lambda p: _ring(True)(p) + _ring(False)(p)),
        ("recursive", _halving_and_doubling),
        ("recursive", _doubling),
    ),
}


def terms(op: str, ranks: int, algorithm: str = "best") -> list[Terms]:
    """Return the terms of each algorithm of a collective that may be chosen.

    >>> terms("all_gather", 4, "ring")
    [Terms(messages=3, sent=0.75, added=0.0)]
    """
    return [found(ranks) for name, found in COLLECTIVES[op] if algorithm in ("best", name)]


@dataclass(frozen=True)
class Link:
    """What joins ranks: bytes a second that a rank sends (1/beta), seconds until a message arrives (alpha), and bytes a
    second that a rank adds (1/gamma; by default the additions are part of the bandwidth).

    Of several algorithms the one that takes least is used, or those of the name `algorithm`: "ring", "recursive".

    >>> Link(1e9, 0.0).seconds("all_reduce", 4, 1e9)  # each rank sends 3/4 of the bytes, twice
    1.5

    Raises:
        ArgumentError: a rate or a time that cannot be, no such algorithm.
    """

    bandwidth: float
    latency: float
    additions: float = math.inf
    algorithm: str = "best"

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.additions > 0 and 0 <= self.latency < math.inf):
            message = f"a link of {self.bandwidth:g} bytes a second with a latency of {self.latency:g} s"
            raise ArgumentError(with_user_location(message, help="a bandwidth above 0, a latency of 0 or more"))
        if self.algorithm not in ALGORITHMS:
            message = f"there is no algorithm {self.algorithm!r} of collectives"
            raise ArgumentError(with_user_location(message, help=f"one of {', '.join(ALGORITHMS)}"))

    def seconds(self, op: str, ranks: int, nbytes: float) -> float:
        """The time of "all_reduce", "reduce_scatter" or "all_gather" of so many bytes; 0 for one rank."""
        if ranks == 1:
            return 0.0
        return min(self.of(t, nbytes) for t in terms(op, ranks, self.algorithm))

    def of(self, t: Terms, nbytes: float) -> float:
        """The time of an algorithm with these terms."""
        return t.messages * self.latency + nbytes * (t.sent / self.bandwidth + t.added / self.additions)


@dataclass(frozen=True)
class Cluster:
    """Ranks on hosts: `per_host` of them are joined by `within`, and share their host's link, `between` hosts.

    >>> Cluster(Link(1e9, 0.0), Link(1e12, 0.0), per_host=4).seconds("all_reduce", 8, 1e9)  # between 2 hosts: 1 s
    1.0015

    Raises:
        ArgumentError: several ranks on a host, and no link within it.
    """

    between: Link
    within: Link | None = None
    per_host: int = 1

    def __post_init__(self) -> None:
        if self.per_host < 1 or (self.per_host > 1 and self.within is None):
            message = f"a cluster of {self.per_host} ranks a host, joined by {self.within}"
            raise ArgumentError(with_user_location(message, help="say by which link the ranks of a host are joined"))

    def seconds(self, op: str, ranks: int, nbytes: float) -> float:
        """The time of "all_reduce", "reduce_scatter" or "all_gather" of so many bytes; 0 for one rank.

        A reduction happens within hosts first, by reduce_scatter; each rank of a host then exchanges its part with
        those of other hosts. As the parts share the host's link, they take as long together as all bytes by themselves;
        each rank adds its own part. An all_gather takes the way back. (Horovod's and NCCL's hierarchical allreduce.)

        Raises:
            ArgumentError: the ranks do not fill hosts.
        """
        if self.within is None or self.per_host == 1:
            return self.between.seconds(op, ranks, nbytes)
        if ranks <= self.per_host:
            return self.within.seconds(op, ranks, nbytes)
        hosts, left = divmod(ranks, self.per_host)
        if left:
            message = f"{ranks} ranks on hosts of {self.per_host}: one host would have {left}"
            raise ArgumentError(with_user_location(message, help=f"a multiple of {self.per_host}, or at most as many"))
        between = Link(
            self.between.bandwidth,
            self.between.latency,
            self.between.additions * self.per_host,
            self.between.algorithm,
        )
        inner = ("reduce_scatter", "all_gather") if op == "all_reduce" else (op,)
        within = sum(self.within.seconds(each, self.per_host, nbytes) for each in inner)
        return within + between.seconds(op, hosts, nbytes)
