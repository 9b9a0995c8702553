"""Plan -> Plan: every scratch buffer gets its place, shared by values that are never alive together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gluongraph.ir import TensorType
from gluongraph.plan import Buffer, Launch, Plan, fresh
from gluongraph.storage import aligned


def memory(plan: Plan) -> Plan:
    """Offsets for scratch and scalars. Largest first, each at the lowest place that is free over its lifetime;
    an elementwise result takes the place of an operand that dies with it."""
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
    """The largest sum of scratch bytes alive at one launch: no placement needs less (values in place aside)."""
    lives = _lifetimes(plan.launches)
    return max((sum(v.nbytes for v in lives if v.first <= i <= v.last) for i in range(len(plan.launches))), default=0)


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
    """Best-fit by decreasing size; ties by first use, then by name order of appearance."""
    placed: list[tuple[int, Life]] = []
    offsets: dict[str, int] = {}
    for life in sorted(lives, key=lambda v: (-v.nbytes, v.first)):
        busy = sorted((at, at + v.nbytes) for at, v in placed if v.first <= life.last and life.first <= v.last)
        at, gap = 0, None
        for start, end in busy:
            room = start - at
            if room >= life.nbytes and (gap is None or room < gap[0]):
                gap = (room, at)
            at = max(at, end)
        offset = gap[1] if gap is not None else at
        offsets[life.name] = offset
        placed.append((offset, life))
    return offsets, max((at + v.nbytes for at, v in placed), default=0)


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
