"""The least work of a kernel (operations, bytes) and a machine's peaks: the two sides of the roofline.

No kernel takes less time than the machine needs for its bytes, or for its arithmetic (Williams, Waterman, Patterson:
Roofline, 2009). Bytes are those of arguments and results, each counted once however often a kernel reads it; arithmetic
is that of the ops, without recomputed or unused values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gluongraph.dtypes import DTYPES
from gluongraph.errors import pluralize
from gluongraph.ir.composite import body_of
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Launch, Plan


@dataclass(frozen=True)
class Cost:
    """Bytes read and written, and arithmetic operations by unit: "bf16" for contractions of bf16, "f32" for the rest.

    `moved` has the bytes by reuse distance: the bytes that were accessed since their last access.
    """

    reads: int
    writes: int
    work: Mapping[str, int] = field(default_factory=dict)
    moved: tuple[tuple[int, int], ...] = ()  # (reuse distance, bytes); by default the launch's own bytes

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.reads + self.writes

    @property
    def flops(self) -> int:
        """All arithmetic operations."""
        return sum(self.work.values())


def cost(launch: Launch, away: Mapping[str, int] | None = None) -> Cost:
    """Return the cost of a launch. A buffer that it reads twice counts once; of one that it reads in part, that part.

    `away` are the reuse distances of buffers: the bytes that were accessed since their last access.
    """
    group = launch.group
    need = _needed(group.body, {j for j, _ in group.inplace})
    read: dict[str, int] = {}
    for buffer, n in zip(launch.reads, group.body.inputs.values(), strict=True):
        read[buffer.name] = max(read.get(buffer.name, 0), need.get(n, 0) * DTYPES[buffer.type.dtype].nbytes)
    written = {
        buffer.name: need[n] * DTYPES[n.dtype].nbytes
        for buffer, n in zip(launch.writes, group.body.outputs.values(), strict=True)
    }
    total = sum(read.values()) + sum(written.values())
    moved: dict[int, int] = {}
    for name, nbytes in (*read.items(), *written.items()):
        distance = max(total, (away or {}).get(name, 0))
        moved[distance] = moved.get(distance, 0) + nbytes
    return Cost(sum(read.values()), sum(written.values()), _work(group.body, need), tuple(moved.items()))


def costs(plan: Plan) -> list[Cost]:
    """Return the cost of each launch of a step that runs repeatedly, with reuse distances across steps.

    Memory that is written before it is read counts as near: another buffer may have been there just before.
    """
    found: list[Cost] = []
    clock, last = 0, dict[str, int]()
    for _ in range(2):
        found.clear()
        for launch in plan.launches:
            known = {b.name for b in (*launch.reads, *launch.writes) if b in launch.reads and b.name in last}
            found.append(cost(launch, {name: clock - last[name] for name in known}))
            clock += found[-1].nbytes
            last.update(dict.fromkeys((b.name for b in (*launch.reads, *launch.writes)), clock))
    return found


def flops(n: Node) -> int:
    """Return the arithmetic operations for all results of a node, as `Op.flops` defines them."""
    op = n.op
    if op.name == "scan":
        return int(n.attrs["length"]) * _total(n.attrs["body"])
    if callable(op.flops):
        return op.flops(n.type, *(s.type for s in n.src), **n.attrs)
    if op.flops is not None:
        return op.flops * _size(n)
    if op.body is not None or op.name == "call":
        return _total(body_of(n))
    if op.kind == "reduce":
        return sum(map(_size, n.src))
    return _size(n) if op.kind == "elementwise" else 0


def _total(body: Graph) -> int:
    return sum(map(flops, body.nodes()))


def _size(n: Node) -> int:
    return sum(t.size for t in n.types)


def _needed(body: Graph, inplace: set[int]) -> dict[Node, int]:
    """Return how many elements of each node the results depend on: of a selection's source only those selected."""
    need = dict.fromkeys(body.nodes(), 0)
    for j, n in enumerate(body.outputs.values()):
        put = n.op.over is not None and j in inplace  # in place, only the updated elements are written
        need[n] = _size(n.src[-1]) if put else _size(n)
    for n in reversed(body.nodes()):
        for s in dict.fromkeys(n.src):
            more = need[n] if _selects(n) else _size(s) * (need[n] > 0)
            need[s] = min(_size(s), need[s] + more)
    return need


def _selects(n: Node) -> bool:
    """Does each element of the result depend on at most one element of each source?"""
    return n.op.kind in ("elementwise", "movement") or (n.op.kind == "index" and not flops(n))


def _work(body: Graph, need: Mapping[Node, int]) -> dict[str, int]:
    work: dict[str, int] = {}
    for n, count in need.items():
        if done := round(flops(n) * count / max(_size(n), 1)):
            multiplies = n.op.kind in ("contraction", "composite")  # a composite that is not inlined is an attention
            unit = "bf16" if multiplies and n.src[0].dtype == "bf16" else "f32"
            work[unit] = work.get(unit, 0) + done
    return work


@dataclass(frozen=True)
class Level:
    """Bandwidth for repeatedly accessing so many bytes: reading, writing, adding one array to another."""

    nbytes: int
    read: float
    write: float
    add: float

    @property
    def best(self) -> float:
        """The highest of the bandwidths."""
        return max(self.read, self.write, self.add)


@dataclass(frozen=True)
class Machine:
    """The measured peaks of a machine: operations per second by unit, bandwidth by working-set size."""

    threads: int
    flops: Mapping[str, float]
    levels: Sequence[Level]

    def bound(self, cost: Cost) -> float:
        """Return the seconds that the bytes or the arithmetic take, whichever are more."""
        return max(self._moving(cost), self._computing(cost))

    def limit(self, cost: Cost) -> str:
        """Return which of them bounds the time: "memory" or "compute"."""
        return "memory" if self._moving(cost) >= self._computing(cost) else "compute"

    def _computing(self, cost: Cost) -> float:
        return sum(count / self.flops.get(unit, self.flops["f32"]) for unit, count in cost.work.items())

    def _moving(self, cost: Cost) -> float:
        return sum(n / self.bandwidth(distance) for distance, n in cost.moved or ((cost.nbytes, cost.nbytes),))

    def bandwidth(self, nbytes: int) -> float:
        """Return the highest bandwidth for so many bytes, interpolated between levels by the logarithm of the size."""
        first, last = self.levels[0], self.levels[-1]
        if nbytes <= first.nbytes:
            return first.best
        for low, high in pairwise(self.levels):
            if nbytes < high.nbytes:
                share = math.log(nbytes / low.nbytes) / math.log(high.nbytes / low.nbytes)
                return float(low.best ** (1 - share) * high.best**share)
        return last.best

    def __str__(self) -> str:
        peaks = ", ".join(f"{unit} {rate / 1e9:.0f} GFLOP/s" for unit, rate in self.flops.items())
        rates = ", ".join(
            f"{v.read / 1e9:.0f}/{v.write / 1e9:.0f}/{v.add / 1e9:.0f} within {_size_of(v.nbytes)}" for v in self.levels
        )
        return f"{pluralize(self.threads, 'thread')}: {peaks}; GB/s read/written/added {rates}"


def _size_of(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >> 20 else f"{nbytes >> 10} KiB"
