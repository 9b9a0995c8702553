"""Plan -> Plan: every scratch buffer gets its offset; buffers that are never live together share memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice, product

from gluongraph.ir.graph import TensorType
from gluongraph.ir.plan import Buffer, Launch, Plan, fresh
from gluongraph.storage import aligned

# How often it is tried to place better. An attempt looks at most pairs of buffers, so of many buffers there are few.
ROUNDS, TURNS = 16, 4000  # after each simple order; so many buffers are placed again, at most
PAIRS = 1 << 25  # looked at in all: a second


def assign_memory(plan: Plan) -> Plan:
    """Offsets for scratch, workspaces among it, and for scalars. Results over an operand are `schedule`'s doing: here
    the two are one buffer."""
    launches = _with_workspaces(plan)
    offsets, total = _pack(_lifetimes(launches))
    scalars, scalar_bytes = _scalar_offsets(plan.inputs)

    def placed(buffer: Buffer) -> Buffer:
        if buffer.space == "scratch":
            return replace(buffer, offset=offsets[buffer.name])
        return replace(buffer, offset=scalars[buffer.name]) if buffer.space == "scalar" else buffer

    return replace(
        plan,
        launches=tuple(_placed(launch, placed) for launch in launches),
        inputs={name: placed(b) for name, b in plan.inputs.items()},
        scratch_bytes=total,
        scalar_bytes=scalar_bytes,
    )


@dataclass
class Life:
    """From which launch to which a buffer holds a value, and its size rounded up to the alignment."""

    name: str
    nbytes: int
    first: int
    last: int


def lower_bound(plan: Plan) -> int:
    """The largest sum of scratch bytes alive at one launch: no placement of these buffers needs less."""
    return max(_load(_lifetimes(plan.launches)), default=0)


def _with_workspaces(plan: Plan) -> tuple[Launch, ...]:
    """Workspaces are buffers that live for one launch."""
    taken = {*plan.inputs, *plan.buffers}

    def one(i: int, launch: Launch) -> Launch:
        if not (nbytes := launch.candidate.workspace):
            return launch
        return replace(launch, workspace=Buffer(fresh(f"workspace{i}", taken), TensorType((nbytes,), "u8"), "scratch"))

    return tuple(one(i, launch) for i, launch in enumerate(plan.launches))


def _lifetimes(launches: tuple[Launch, ...]) -> list[Life]:
    lives: dict[str, Life] = {}
    for i, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.space == "scratch":
                life = lives.setdefault(buffer.name, Life(buffer.name, aligned(buffer.type.nbytes), i, i))
                life.last = i
    return list(lives.values())


def _pack(lives: list[Life]) -> tuple[dict[str, int], int]:
    """Offsets, and the bytes that they take: the best of several orders of placing, each simple."""
    load = _load(lives)
    bound = max(load, default=0)

    def crowded(v: Life) -> int:
        return max(load[v.first : v.last + 1])

    orders: tuple[Callable[[Life], tuple[int, ...]], ...] = (
        lambda v: (-crowded(v), -v.nbytes, v.first),  # where there is least freedom: mostly enough
        lambda v: (-v.nbytes, v.first),  # the large ones, before the free room is in pieces
        lambda v: (v.first - v.last, -v.nbytes),  # those that are in the way for long
        lambda v: (-v.nbytes * (v.last - v.first + 1), v.first),
        lambda v: (-crowded(v), v.first - v.last, -v.nbytes),
        lambda v: (v.first, -v.nbytes),  # as they come
        lambda v: (-v.last, -v.nbytes),
    )
    rounds = min(ROUNDS, TURNS // max(len(lives), 1))
    tries = max(1, PAIRS // (len(lives) ** 2 * (1 + rounds) + 1))
    best: tuple[dict[str, int], int] | None = None
    for order, fit in islice(product(orders, (_tightest, _lowest)), tries):
        found = _squeezed(sorted(lives, key=order), fit, bound, rounds)
        if best is None or found[1] < best[1]:
            best = found
        if found[1] <= bound:
            return found
    assert best is not None
    return best


def _squeezed(
    order: list[Life], fit: Callable[[list[Gap]], int], bound: int, rounds: int
) -> tuple[dict[str, int], int]:
    """The best of several placements: after each one, what stuck out at the top is placed first in the next (Joslin,
    Clements: Squeaky wheel optimization, 1999)."""
    best = _placed_in(order, fit)
    last = best
    for _ in range(rounds):
        if best[1] <= bound:
            break
        offsets, total = last
        out = [v for v in order if offsets[v.name] + v.nbytes == total]
        order = out + [v for v in order if v not in out]
        last = _placed_in(order, fit)
        best = min(best, last, key=lambda found: found[1])
    return best


def _load(lives: list[Life]) -> list[int]:
    """Bytes alive at each launch."""
    change = [0] * (max((v.last for v in lives), default=-1) + 2)
    for v in lives:
        change[v.first] += v.nbytes
        change[v.last + 1] -= v.nbytes
    return list(accumulate(change[:-1]))


Gap = tuple[int, int]  # room, offset


def _tightest(gaps: list[Gap]) -> int:
    return min(gaps)[1]


def _lowest(gaps: list[Gap]) -> int:
    return gaps[0][1]


def _placed_in(lives: list[Life], fit: Callable[[list[Gap]], int]) -> tuple[dict[str, int], int]:
    """One after the other in a gap among those placed that live at the same time; above them where there is none."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last: by offset
    offsets: dict[str, int] = {}
    for life in lives:
        begins, ends, end, gaps = life.first, life.last, 0, []
        beside = [(start, stop) for start, stop, first, last in placed if first <= ends and begins <= last]
        for start, stop in beside:  # half of the time that planning a large net takes: no calls here
            if start - end >= life.nbytes:
                gaps.append((start - end, end))
            if stop > end:
                end = stop
        offsets[life.name] = at = fit(gaps) if gaps else end
        insort(placed, (at, at + life.nbytes, life.first, life.last))
    return offsets, max((stop for _, stop, _, _ in placed), default=0)


def _scalar_offsets(inputs: Mapping[str, Buffer]) -> tuple[dict[str, int], int]:
    """Each scalar on an alignment boundary of its own: kernels take aligned views."""
    names = [b for b in inputs.values() if b.space == "scalar"]
    offsets, at = {}, 0
    for buffer in names:
        offsets[buffer.name] = at
        at += aligned(buffer.type.nbytes)
    return offsets, at


def _placed(launch: Launch, placed: Callable[[Buffer], Buffer]) -> Launch:
    return replace(
        launch,
        reads=tuple(map(placed, launch.reads)),
        writes=tuple(map(placed, launch.writes)),
        workspace=placed(launch.workspace) if launch.workspace else None,
    )
