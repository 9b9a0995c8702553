"""Plan -> Plan: every scratch buffer gets its offset; buffers that are never live together share memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice, product

from gluongraph.ir.graph import TensorType
from gluongraph.ir.plan import Buffer, Launch, Plan, fresh
from gluongraph.ops.collective import flat_offsets
from gluongraph.storage import aligned

# Limits of the search. An attempt examines most pairs of buffers, so with many buffers there are few attempts.
ROUNDS, TURNS = 16, 4000  # improvements of each initial order; total number of buffers placed in them
PAIRS = 1 << 25  # pairs of buffers examined in total: about a second
# Of many buffers the search ends within this fraction of the lower bound: a third of planning ResNet-50 was its
# last 0.05 %.
MANY, SLACK = 500, 512


def assign_memory(plan: Plan) -> Plan:
    """Assign offsets to scratch buffers, including workspaces, and to scalars. A result stored in place of an operand
    is the same buffer already (`schedule`)."""
    launches = _with_workspaces(plan)
    flat = _flat_memory(launches)
    offsets, total = _pack(_joined(_lifetimes(launches), flat))
    offsets |= {name: offsets[key] + at for key, members in flat.items() for name, at in members.offsets.items()}
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
class Lifetime:
    """The first and last launch at which a buffer is live, and its size rounded up to the alignment."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass
class FlatMemory:
    """Buffers that lie one after another, since a collective works on all of them: their offsets from the first, and
    the bytes of all."""

    offsets: dict[str, int]
    nbytes: int


def _flat_memory(launches: tuple[Launch, ...]) -> dict[str, FlatMemory]:
    """Return the flat memory of each collective, by a name of its own. A buffer is in one at most (`fuse`)."""
    found: dict[str, FlatMemory] = {}
    for i, launch in enumerate(launches):
        if all(buffer.space == "scratch" for buffer in launch.flat) and launch.flat:
            offsets, end = flat_offsets([buffer.type for buffer in launch.flat])
            names = [buffer.name for buffer in launch.flat]
            found[f"flat {i}"] = FlatMemory(dict(zip(names, offsets, strict=True)), max(end, launch.flat_bytes))
    return found


def _joined(lifetimes: list[Lifetime], flat: Mapping[str, FlatMemory]) -> list[Lifetime]:
    """Return the lifetimes with the buffers of each flat memory as one."""
    inside = {name: key for key, members in flat.items() for name in members.offsets}
    joined: dict[str, Lifetime] = {}
    for life in lifetimes:
        if (key := inside.get(life.name)) is None:
            joined[life.name] = life
        elif (known := joined.get(key)) is None:
            joined[key] = Lifetime(key, aligned(flat[key].nbytes), life.first, life.last)
        else:
            known.first, known.last = min(known.first, life.first), max(known.last, life.last)
    return list(joined.values())


def lower_bound(plan: Plan) -> int:
    """Return the largest sum of scratch bytes live at one launch: no placement of these buffers needs less."""
    return max(_load(_joined(_lifetimes(plan.launches), _flat_memory(plan.launches))), default=0)


def _with_workspaces(plan: Plan) -> tuple[Launch, ...]:
    """Return the launches with buffers for their workspaces, which are live for one launch."""
    used = {*plan.inputs, *plan.buffers}

    def one(i: int, launch: Launch) -> Launch:
        if not (nbytes := launch.candidate.workspace):
            return launch
        return replace(launch, workspace=Buffer(fresh(f"workspace{i}", used), TensorType((nbytes,), "u8"), "scratch"))

    return tuple(one(i, launch) for i, launch in enumerate(plan.launches))


def _lifetimes(launches: tuple[Launch, ...]) -> list[Lifetime]:
    lifetimes: dict[str, Lifetime] = {}
    for i, launch in enumerate(launches):
        for buffer in launch.buffers:
            if buffer.space == "scratch":
                life = lifetimes.setdefault(buffer.name, Lifetime(buffer.name, aligned(buffer.type.nbytes), i, i))
                life.last = i
    return list(lifetimes.values())


def _pack(lifetimes: list[Lifetime]) -> tuple[dict[str, int], int]:
    """Return offsets, and the total bytes: the best placement of several heuristic orders."""
    load = _load(lifetimes)
    bound = max(load, default=0)
    enough = bound + bound // SLACK if len(lifetimes) >= MANY else bound

    def crowded(v: Lifetime) -> int:
        return max(load[v.first : v.last + 1])

    orders: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
        lambda v: (-crowded(v), -v.nbytes, v.first),  # where most memory is live: usually sufficient
        lambda v: (-v.nbytes, v.first),  # large ones, before free memory is fragmented
        lambda v: (v.first - v.last, -v.nbytes),  # long-lived ones
        lambda v: (-v.nbytes * (v.last - v.first + 1), v.first),
        lambda v: (-crowded(v), v.first - v.last, -v.nbytes),
        lambda v: (v.first, -v.nbytes),  # in order of launches
        lambda v: (-v.last, -v.nbytes),
    )
    rounds = min(ROUNDS, TURNS // max(len(lifetimes), 1))
    tries = max(1, PAIRS // (len(lifetimes) ** 2 * (1 + rounds) + 1))
    best: tuple[dict[str, int], int] | None = None
    for order, fit in islice(product(orders, (_tightest, _lowest)), tries):
        found = _improve_placement(sorted(lifetimes, key=order), fit, enough, rounds)
        if best is None or found[1] < best[1]:
            best = found
        if found[1] <= enough:
            return found
    assert best is not None
    return best


def _improve_placement(
    order: list[Lifetime], fit: Callable[[list[Gap]], int], enough: int, rounds: int
) -> tuple[dict[str, int], int]:
    """Return the best of several placements: after each one, the buffers that end at its top are placed first in the
    next (Joslin, Clements: Squeaky wheel optimization, 1999)."""
    best = _place_in_gaps(order, fit)
    last = best
    for _ in range(rounds):
        if best[1] <= enough:
            break
        offsets, total = last
        out = [v for v in order if offsets[v.name] + v.nbytes == total]
        order = out + [v for v in order if v not in out]
        last = _place_in_gaps(order, fit)
        best = min(best, last, key=lambda found: found[1])
    return best


def _load(lifetimes: list[Lifetime]) -> list[int]:
    """Return the bytes live at each launch."""
    change = [0] * (max((v.last for v in lifetimes), default=-1) + 2)
    for v in lifetimes:
        change[v.first] += v.nbytes
        change[v.last + 1] -= v.nbytes
    return list(accumulate(change[:-1]))


Gap = tuple[int, int]  # room, offset


def _tightest(gaps: list[Gap]) -> int:
    return min(gaps)[1]


def _lowest(gaps: list[Gap]) -> int:
    return gaps[0][1]


def _place_in_gaps(lifetimes: list[Lifetime], fit: Callable[[list[Gap]], int]) -> tuple[dict[str, int], int]:
    """Place buffers one after another in a gap between placed ones with overlapping lifetimes, or above them."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last: by offset
    offsets: dict[str, int] = {}
    for life in lifetimes:
        begins, ends, end, gaps = life.first, life.last, 0, []
        overlapping = [(start, stop) for start, stop, first, last in placed if first <= ends and begins <= last]
        for start, stop in overlapping:  # half of the time of planning a large network: no calls here
            if start - end >= life.nbytes:
                gaps.append((start - end, end))
            if stop > end:
                end = stop
        offsets[life.name] = at = fit(gaps) if gaps else end
        insort(placed, (at, at + life.nbytes, life.first, life.last))
    return offsets, max((stop for _, stop, _, _ in placed), default=0)


def _scalar_offsets(inputs: Mapping[str, Buffer]) -> tuple[dict[str, int], int]:
    """Return an aligned offset for each scalar, since kernels take aligned views; and the total bytes."""
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
