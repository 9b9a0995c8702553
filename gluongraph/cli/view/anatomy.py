"""The facts about a compiled step that all views show: launches, buffers, live memory, graphs after each pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gluongraph.cli.view.drawing import BACKWARD, Drawing, drawing
from gluongraph.cli.view.listing import Listing, listing
from gluongraph.errors import Origin
from gluongraph.ir.cost_model import costs
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import INDEX_FLAG, Buffer, Plan
from gluongraph.ir.printer import show
from gluongraph.tracing.optimizer_updates import SCALAR

if TYPE_CHECKING:
    from gluongraph.runtime.profile import Profile

KINDS = ("kept", "gradient", "passing", "workspace")  # of what lies in scratch, the longest-lived first


@dataclass(frozen=True)
class Step:
    """One launch: what it is, what it touches, what it must do, how long it took.

    `seconds` is 0 where nothing was measured, `bound` where there is no roofline. Buffers are named; `before` and
    `after` are the launches that made what it reads and that read what it makes.
    """

    number: int
    kernel: str
    label: str
    pattern: str
    rule: str
    phase: str
    layer: str
    place: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    nbytes: int
    flops: int
    seconds: float = 0.0
    bound: float = 0.0
    limit: str = ""

    @property
    def share(self) -> float:
        """Of the roofline."""
        return self.bound / self.seconds if self.seconds else 0.0

    @property
    def lost(self) -> float:
        """Seconds beyond the bound."""
        return max(self.seconds - self.bound, 0.0) if self.bound else 0.0


@dataclass(frozen=True)
class Place:
    """A buffer in scratch: where it lies, and from which launch to which, both included, somebody needs it."""

    name: str
    type: str
    offset: int
    nbytes: int
    first: int
    last: int
    kind: str
    layer: str


@dataclass(frozen=True)
class Anatomy:
    """All of it. `stages` are the graphs by pass, `drawings` the same as boxes, `bodies` the text of each distinct
    kernel's graph."""

    name: str
    target: str
    footprint: Mapping[str, int]
    scratch: int
    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    stages: Mapping[str, Listing]
    drawings: Mapping[str, Drawing]
    bodies: Mapping[str, str]
    roofs: Mapping[str, Any] | None = None  # the machine, as measured
    machine: str = ""

    @property
    def seconds(self) -> float:
        """The time of all launches."""
        return sum(step.seconds for step in self.steps)

    @property
    def share(self) -> float:
        """Of the roofline, over all launches."""
        return sum(step.bound for step in self.steps) / self.seconds if self.seconds else 0.0

    def live(self, kind: str) -> list[int]:
        """Bytes of a kind of scratch that are needed while each launch runs."""
        found = [0] * len(self.steps)
        for place in self.places:
            if place.kind == kind:
                for i in range(place.first, place.last + 1):
                    found[i] += place.nbytes
        return found

    @property
    def peak(self) -> int:
        """The launch during which most of scratch is needed; the first of them."""
        total = [sum(row) for row in zip(*(self.live(kind) for kind in KINDS), strict=True)]
        return total.index(max(total)) if total else 0

    def at(self, number: int) -> list[Place]:
        """What is live while a launch runs, the largest first."""
        found = [p for p in self.places if p.first <= number <= p.last]
        return sorted(found, key=lambda p: (-p.nbytes, p.offset))

    def data(self) -> dict[str, Any]:
        """The same for machines: what JSON holds."""
        steps = [{**asdict(step), "share": step.share, "lost": step.lost} for step in self.steps]
        return {
            **asdict(self),
            "steps": steps,
            "live": {kind: self.live(kind) for kind in KINDS},
            "peak": self.peak,
            "stages": {name: each.data() for name, each in self.stages.items()},
        }


def anatomy(
    name: str,
    plan: Plan,
    footprint: Mapping[str, int],
    stages: Iterable[tuple[str, Graph]],
    target: str = "",
    profile: Profile | None = None,
) -> Anatomy:
    """The facts about a plan, with the times of a profile of it."""
    made = sources(plan)
    graphs = dict(stages)
    steps = tuple(_steps(plan, phases_of(plan, made), made, profile))
    return Anatomy(
        name=name,
        target=target,
        footprint=dict(footprint),
        scratch=plan.scratch_bytes,
        steps=steps,
        places=tuple(_places(plan, steps)),
        stages={stage: listing(graph) for stage, graph in graphs.items()},
        drawings={stage: drawing(graph) for stage, graph in graphs.items()},
        bodies={kernel: show(launch.group.body, kernel) for kernel, launch in plan.kernels.items()},
        roofs=asdict(profile.machine) if profile is not None and profile.machine is not None else None,
        machine=str(profile.machine) if profile is not None and profile.machine is not None else "",
    )


def phases_of(plan: Plan, made: Sequence[Mapping[str, int]]) -> list[str]:
    """Of each launch whether it updates a parameter, is needed for what the program gives back, or makes gradients.

    An update in the kernel of its gradient is an update. It is known by the scalars of the optimizer that it reads;
    running statistics are written without.
    """
    updating = {
        i
        for i, launch in enumerate(plan.launches)
        if any(b.space == "state" for b in launch.writes) and any(b.name.startswith(SCALAR) for b in launch.reads)
    }
    if not updating:
        return ["forward"] * len(plan.launches)
    last = {b.name: i for i, launch in enumerate(plan.launches) for b in launch.writes}
    results = [b.name for name, b in plan.outputs.items() if name.startswith("out") or name == INDEX_FLAG]
    statistics = [b.name for launch in plan.launches for b in launch.writes if b.space == "state"]
    stack = [last[name] for name in (*results, *statistics) if name in last]
    needed: set[int] = set()
    while stack:
        i = stack.pop()
        if i not in needed and i not in updating:
            needed.add(i)
            stack.extend(made[i].values())
    return ["update" if i in updating else "forward" if i in needed else "backward" for i in range(len(plan.launches))]


def sources(plan: Plan) -> list[dict[str, int]]:
    """Of each launch the buffers that it reads and an earlier launch has written, and which launch that was."""
    last: dict[str, int] = {}
    found = []
    for i, launch in enumerate(plan.launches):
        found.append({b.name: last[b.name] for b in launch.reads if b.name in last})
        last.update((b.name, i) for b in launch.writes)
    return found


def _steps(
    plan: Plan, phases: Sequence[str], made: Sequence[Mapping[str, int]], profile: Profile | None
) -> Iterator[Step]:
    after: dict[int, list[int]] = {}
    for i, origins in enumerate(made):
        for j in dict.fromkeys(origins.values()):
            after.setdefault(j, []).append(i)
    for i, (launch, must) in enumerate(zip(plan.launches, costs(plan), strict=True)):
        layer, place = _whence(launch.origin)
        row = profile[i] if profile is not None else None
        yield Step(
            number=i,
            kernel=launch.kernel,
            label=launch.label,
            pattern=launch.group.pattern,
            rule=launch.candidate.described,
            phase=phases[i],
            layer=layer,
            place=place,
            reads=tuple(dict.fromkeys(b.name for b in launch.reads)),
            writes=tuple(b.name for b in launch.writes),
            before=tuple(sorted(set(made[i].values()))),
            after=tuple(after.get(i, ())),
            nbytes=must.nbytes,
            flops=must.flops,
            seconds=row.seconds if row is not None else 0.0,
            bound=row.bound if row is not None else 0.0,
            limit=row.limit if row is not None else "",
        )


def _whence(origin: Origin | None) -> tuple[str, str]:
    """The layer, and file and line."""
    if origin is None:
        return "", ""
    return origin.scope.removesuffix(BACKWARD), str(Origin(origin.file, origin.line))


def _places(plan: Plan, steps: Sequence[Step]) -> Iterator[Place]:
    """The buffers in scratch, by first use."""
    touched: dict[str, list[int]] = {}
    buffers: dict[str, Buffer] = {}
    for i, launch in enumerate(plan.launches):
        for b in launch.buffers:
            if b.space == "scratch":
                touched.setdefault(b.name, []).append(i)
                buffers.setdefault(b.name, b)
    workspaces = {launch.workspace.name for launch in plan.launches if launch.workspace is not None}
    for name, times in touched.items():
        b, first, last = buffers[name], steps[times[0]], steps[times[-1]]
        kind = "workspace" if name in workspaces else _kind(first.phase, last.phase)
        yield Place(name, str(b.type), b.offset or 0, b.type.nbytes, first.number, last.number, kind, first.layer)


def _kind(first: str, last: str) -> str:
    """What a buffer is that is made in one phase and last read in another."""
    if first != "forward":
        return "gradient"
    return "passing" if last == "forward" else "kept"
