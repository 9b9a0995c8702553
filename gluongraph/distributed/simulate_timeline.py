"""What one rank does in a step: the kernels and collectives of a plan in their order, with measured or estimated times.

A plan that was made for several ranks has its collectives: a gradient is ready when the kernel that computes it has
run, a bucket of gradients starts with the last of them, and the kernel that reads a result waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gluongraph.errors import ArgumentError, with_user_location
from gluongraph.ir.cost_model import cost, costs, flops
from gluongraph.ir.entry_point import segments_of, steps_of
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Launch, Plan

CODES = "u32"  # the dtype of gradients that are sent as codes: nothing else is gathered in it
BALANCE = 16  # operations in the time of a byte, for estimates: between those of CPUs (10) and GPUs (20)


@dataclass(frozen=True)
class Work:
    """Seconds of kernels between two collectives, on as many ranks as the plan is for: of those that do the same on any
    number of ranks, of those that work on one shard of n, and of those that read the codes of all n ranks."""

    fixed: float
    sharded: float = 0.0
    decoding: float = 0.0

    def seconds(self, planned: int, ranks: int) -> float:
        """The time on that many ranks."""
        decoding = self.decoding * ranks / planned if ranks > 1 else 0.0  # one rank exchanges nothing
        return self.fixed + self.sharded * planned / ranks + decoding

    def times(self, factor: float) -> Work:
        """The same on a machine that takes so many times as long."""
        return Work(self.fixed * factor, self.sharded * factor, self.decoding * factor)


@dataclass(frozen=True)
class Exchange:
    """A collective: "all_reduce", "reduce_scatter" or "all_gather" of so many bytes; of `each` rank, if they are
    codes."""

    op: str
    nbytes: int
    each: bool = False

    def total(self, ranks: int) -> int:
        """The bytes that the collective is of, on that many ranks."""
        return self.nbytes * ranks if self.each else self.nbytes


@dataclass(frozen=True)
class Timeline:
    """A step on one of `ranks` ranks: `steps` are ("run", work), ("start", exchange), ("wait", exchange), by number.

    `host` are the seconds of a step outside kernels, `alone` those of a step on one rank, without exchange; by default
    they follow from the kernels. `samples` is the batch of one rank. `agreement` is the bytes of the allreduce by which
    ranks compare, before all others, what they are about to do.
    """

    works: tuple[Work, ...]
    exchanges: tuple[Exchange, ...]
    steps: tuple[tuple[str, int], ...]
    ranks: int = 2
    host: float = 0.0
    alone: float | None = None
    samples: int = 1
    agreement: int = 0

    def compute(self, ranks: int) -> float:
        """The seconds of a step without communication, on that many ranks; on one rank without the codes of others."""
        if ranks == 1 and self.alone is not None:
            return self.alone
        return self.host + sum(work.seconds(self.ranks, ranks) for work in self.works)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of gradients that a rank gives into collectives: compressed as they are sent."""
        return sum(e.nbytes for e in self.exchanges if e.op != "all_gather" or e.each)

    def scaled(self, seconds: float, ranks: int = 1) -> Timeline:
        """The same step on a machine where its kernels take so long, on that many ranks.

        >>> Timeline((Work(2.0),), (), (("run", 0),)).scaled(4.0).compute(8)
        4.0
        """
        factor = seconds / replace(self, host=0.0, alone=None).compute(ranks)
        return replace(self, works=tuple(w.times(factor) for w in self.works), host=0.0, alone=None)


def estimates(plan: Plan) -> list[float]:
    """Return relative times of the launches by the cost model, for plans that are not measured: what counts is which
    part of a step each of them takes."""
    return [max(cost.nbytes, cost.flops / BALANCE) for cost in costs(plan)]


def timeline(
    plan: Plan,
    seconds: Sequence[float],
    *,
    parameters: Collection[str] = (),
    bucket: int = 0,
    host: float = 0.0,
    alone: float | None = None,
    samples: int = 1,
    agreement: int = 40,
) -> Timeline:
    """The timeline of a plan, from the seconds of each launch (those of collectives do not count).

    If the plan has no collectives, the gradients of `parameters` are summed: all by one allreduce, or in buckets of so
    many bytes. They are ready when the kernels that update the parameters have run, as gradient and update are often
    one kernel; so updates are counted as work that can hide communication.

    Raises:
        ArgumentError: the plan has no collectives, and updates none of the parameters.
    """
    if len(seconds) != len(plan.launches):
        raise ArgumentError(f"{len(seconds)} times for a plan of {len(plan.launches)} launches")
    collectives = [launch for launch in plan.launches if launch.group.collective is not None]
    if not collectives:
        found = _of_one_rank(plan, seconds, frozenset(parameters), bucket)
        return replace(found, host=host, alone=alone, samples=samples, agreement=agreement)
    spent = {id(launch): each for launch, each in zip(plan.launches, seconds, strict=True)}
    shards, codes = _divided(collectives)
    works = tuple(_work(segment, spent, shards, codes) for segment in segments_of(plan))
    exchanges = tuple(map(_exchange, collectives))
    ranks = int(_collective(collectives[0]).attrs["ranks"])
    return Timeline(works, exchanges, tuple(steps_of(plan)), ranks, host, alone, samples, agreement)


def _collective(launch: Launch) -> Node:
    assert launch.group.collective is not None
    return launch.group.collective


def _op(launch: Launch) -> str:
    return _collective(launch).op.name


def _is_of_codes(launch: Launch) -> bool:
    return _op(launch) == "all_gather" and launch.reads[0].type.dtype == CODES


def _exchange(launch: Launch) -> Exchange:
    """Return what a collective exchanges."""
    if _is_of_codes(launch):
        return Exchange("all_gather", launch.reads[0].type.nbytes, each=True)
    whole = launch.writes if _op(launch) == "all_gather" else launch.reads
    return Exchange(_op(launch), sum(buffer.type.nbytes for buffer in whole))


def _divided(collectives: Sequence[Launch]) -> tuple[set[str], set[str]]:
    """Return the buffers that are one shard of n, and those that hold the codes of all n ranks."""
    shards: set[str] = set()
    codes: set[str] = set()
    for launch in collectives:
        if _op(launch) == "reduce_scatter":
            shards.add(launch.writes[0].name)
        elif _is_of_codes(launch):
            codes |= {buffer.name for buffer in launch.writes}
        elif _op(launch) == "all_gather":
            shards.add(launch.reads[0].name)
    return shards, codes


def _work(segment: Sequence[Launch], spent: dict[int, float], shards: set[str], codes: set[str]) -> Work:
    """Return the times of a segment's kernels, by how they depend on the number of ranks."""
    fixed = sharded = decoding = 0.0
    for launch in segment:
        names, seconds = {buffer.name for buffer in launch.buffers}, spent[id(launch)]
        if not codes.isdisjoint(names):
            share = _share_of_decoding(launch)
            decoding, fixed = decoding + share * seconds, fixed + (1 - share) * seconds
        elif not shards.isdisjoint(names):
            sharded += seconds
        else:
            fixed += seconds
    return Work(fixed, sharded, decoding)


def _share_of_decoding(launch: Launch) -> float:
    """Return how much of a kernel's time is that of decoding: by operations, as it may compute an update as well."""
    decoded = sum(flops(n) for n in launch.group.body.nodes() if n.op.name == "unpack_codes")
    return decoded / max(cost(launch).flops, decoded, 1)


def _of_one_rank(plan: Plan, seconds: Sequence[float], parameters: frozenset[str], bucket: int) -> Timeline:
    """Return the timeline of a plan without collectives, as if the gradients were summed."""
    updated = {plan.updates[name].name: name for name in parameters if name in plan.updates}
    if not updated:
        message = "the plan has no collectives, and updates none of the parameters"
        raise ArgumentError(with_user_location(message, help="name the parameters of the trainer"))
    works: list[Work] = []
    exchanges: list[Exchange] = []
    for spent, nbytes in _buckets(plan, seconds, updated, bucket):
        works.append(Work(spent))
        if nbytes:
            exchanges.append(Exchange("all_reduce", nbytes))
    steps: list[tuple[str, int]] = []
    for number in range(len(works)):
        steps += [("run", number), *([("start", number)] if number < len(exchanges) else [])]
    steps += [("wait", number) for number in range(len(exchanges))]
    return Timeline(tuple(works), tuple(exchanges), tuple(steps))


def _buckets(
    plan: Plan, seconds: Sequence[float], updated: Collection[str], bucket: int
) -> Iterator[tuple[float, int]]:
    """Iterate over parts of the plan: their seconds, and the bytes of gradients that are ready then; 0 for what comes
    after the last gradient."""
    left = {name: plan.buffers[name].type.nbytes for name in updated if name in plan.buffers}
    spent, ready = 0.0, 0
    for launch, each in zip(plan.launches, seconds, strict=True):
        spent += each
        ready += sum(left.pop(buffer.name, 0) for buffer in launch.writes)
        if ready and (not left or 0 < bucket <= ready):
            yield spent, ready
            spent, ready = 0.0, 0
    yield spent, ready
