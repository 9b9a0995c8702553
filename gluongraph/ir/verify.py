"""Invariants of every graph and every plan. A violation is a compiler bug, reported after the pass that caused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakSet

from gluongraph.dtypes import DTYPES
from gluongraph.errors import MXNetError, VerifyError
from gluongraph.ir.graph import OPS, Graph, Node, Types, node, topological
from gluongraph.ir.plan import SPACES, Buffer, Launch, Plan
from gluongraph.storage import ALIGNMENT, aligned

# The passes after which the only composites are those with a kernel.
PRIMITIVE_STAGES = frozenset({"inline", "fuse"})


def verify(graph: Graph, stage: str = "", keep: Callable[[Node], bool] = lambda n: False) -> None:
    """Raise VerifyError for the first invariant that the graph violates; `stage` is the pass that returned it.

    `keep(n)`: may this composite remain after `inline`? Two updates of one input are impossible: updates are keyed by
    the input's name. A new value may depend on the old one: updates come after all readers of the old value, which
    `verify_plan` checks.
    """
    rules = (_inputs, _results, _sources, _updates, _known, _types, _interned)
    checks: Iterable[str] = (message for rule in rules for message in rule(graph))
    for message in checks:
        raise VerifyError(_after(stage) + message)
    _SOUND.update(new for new in graph.nodes() if new not in _SOUND)
    for n in graph.nodes():
        if stage in PRIMITIVE_STAGES and n.op.kind == "composite" and not keep(n):
            raise VerifyError(_after(stage) + f"{_at(graph, n)} is a composite, and should be inlined by now")
        for body in (v for v in n.attrs.values() if isinstance(v, Graph)):
            try:
                verify(body, stage, keep)
            except VerifyError as error:
                raise VerifyError(f"{error}\n  in the body of {_at(graph, n)}") from None


def _after(stage: str) -> str:
    return f"after {stage}: " if stage else ""


def _at(graph: Graph, n: Node) -> str:
    """Return the node and its origin."""
    origin = graph.origins.get(n)
    return f"{n!r}" + (f" ({origin})" if origin else "")


def _inputs(graph: Graph) -> Iterator[str]:
    """Inputs are input leaves, each listed once and under its own name."""
    for name, n in graph.inputs.items():
        if n.op.name != "input":
            yield f"input {name!r} is {n!r}, not an input leaf"
        elif n.attrs.get("name") != name:
            yield f"input {name!r} is the leaf of another name, {n.attrs.get('name')!r}"
    for n, count in Counter(graph.inputs.values()).items():
        if count > 1:
            yield f"{count} inputs are one and the same leaf {n!r}"


def _sources(graph: Graph) -> Iterator[str]:
    """Every live input leaf is listed."""
    listed = set(graph.inputs.values())
    for n in graph.nodes():
        if n.op.name == "input" and n not in listed:
            yield f"the leaf {n.attrs.get('name')!r} of type {n.type} is read and not among the inputs"


def _results(graph: Graph) -> Iterator[str]:
    """Outputs and updates are single values."""
    for kind, results in (("output", graph.outputs), ("update", graph.updates)):
        for name, n in results.items():
            if not isinstance(n, Node):
                yield f"{kind} {name!r} is {n!r}, not a node"
            elif isinstance(n.type, tuple):
                several = f"which has {len(n.type)} results: pick one with get_tuple_element"
                yield f"{kind} {name!r} is {_at(graph, n)}, {several}"


def _updates(graph: Graph) -> Iterator[str]:
    """An update writes over an input, of the same type."""
    for name, n in graph.updates.items():
        if (target := graph.inputs.get(name)) is None:
            yield f"update {name!r} writes over no input"
        elif target.type != n.type:
            yield f"update {name!r} is {n.type}, its input is {target.type}: {_at(graph, n)}"


def _known(graph: Graph) -> Iterator[str]:
    """Every op is the registered one of its name."""
    for n in graph.nodes():
        if OPS.get(n.op.name) is not n.op:
            yield f"{_at(graph, n)}: there is no op {n.op.name!r}"


# Nodes whose type and identity were right: a node never changes, and a pass leaves most of them as they are.
_SOUND: WeakSet[Node] = WeakSet()


def _types(graph: Graph) -> Iterator[str]:
    """Every node has the type that its op's rule gives."""
    for n in topological((*graph.inputs.values(), *graph.results)):
        if n in _SOUND:
            continue
        for t in n.types:
            if t.dtype not in DTYPES or not all(type(d) is int and d >= 0 for d in t.shape):
                yield f"{_at(graph, n)}: {t} is no type"
        if n.op.name == "input":
            continue
        try:
            inferred: Types = n.op.infer(*(s.type for s in n.src), **n.attrs)
        except (MXNetError, TypeError) as error:
            yield f"{_at(graph, n)}: its own rule refuses it: {error}"
        else:
            if inferred != n.type:
                yield f"{_at(graph, n)}: its own rule gives {inferred}"


def _interned(graph: Graph) -> Iterator[str]:
    """Every node was created by `node`, so that equal nodes are one object."""
    for n in graph.nodes():
        if n in _SOUND:
            continue
        if node(n.op, n.src, n.attrs, n.copy_id, n.type if n.op.name == "input" else None) is not n:
            yield f"{_at(graph, n)} has an equal node that is another object: it was not made by node()"


def verify_plan(plan: Plan, graph: Graph | None = None) -> None:
    """Raise VerifyError for the first invariant that the plan violates, with the launch and the buffers.

    With the fused `graph` that was scheduled, the plan is also replayed on symbolic values: each kernel must read
    exactly the values of the graph, so that no buffer is overwritten before its last reader. Without it a state buffer
    must not be read after it is overwritten. The plan of a scan's body is verified separately, when it is created.
    """
    rules = (_signatures, _places, _bound, _written, _defined, _in_place, _lifetimes, _flat)
    for rule in rules:
        for message in rule(plan):
            raise VerifyError(message)
    for message in _overwritten(plan) if graph is None else _replayed(plan, graph):
        raise VerifyError(message)


def _launches(plan: Plan) -> Iterator[tuple[str, Launch]]:
    """Iterate over the launches with their names for messages."""
    for i, launch in enumerate(plan.launches):
        yield f"launch {i} ({' '.join(filter(None, (launch.kernel, launch.label)))})", launch


def _all_buffers(plan: Plan) -> Iterator[tuple[str, Buffer]]:
    """Iterate over all uses of buffers with their locations for messages."""
    for part in ("inputs", "outputs", "updates"):
        for name, buffer in getattr(plan, part).items():
            yield f"{part} {name!r}", buffer
    for at, launch in _launches(plan):
        for buffer in launch.buffers:
            yield at, buffer


def _signatures(plan: Plan) -> Iterator[str]:
    """A launch has one buffer of the right type per input and output of its kernel."""
    for at, launch in _launches(plan):
        for kind, buffers, types in (
            ("reads", launch.reads, launch.group.inputs),
            ("writes", launch.writes, launch.group.outputs),
        ):
            if len(buffers) != len(types):
                yield f"{at} {kind} {len(buffers)} buffers, its kernel has {len(types)}"
            for buffer, type in zip(buffers, types, strict=False):
                if buffer.type != type:
                    yield f"{at} {kind} {buffer}, its kernel expects {type}"


def _places(plan: Plan) -> Iterator[str]:
    """A buffer has one address: aligned, inside its arena, the same wherever it is used."""
    places: dict[str, tuple[str, int | None, int]] = {}
    for at, b in _all_buffers(plan):
        if b.space not in SPACES:
            yield f"{at}: {b} lies in no known space"
        if places.setdefault(b.name, (b.space, b.offset, b.type.nbytes)) != (b.space, b.offset, b.type.nbytes):
            yield f"{at}: {b} is elsewhere {places[b.name]}"
        if b.space not in ("scratch", "scalar"):
            continue
        size = plan.scratch_bytes if b.space == "scratch" else plan.scalar_bytes
        if b.offset is None:
            yield f"{at}: {b} has no offset"
        elif b.offset % ALIGNMENT:
            yield f"{at}: {b} is not aligned to {ALIGNMENT} bytes"
        elif b.offset < 0 or b.offset + b.type.nbytes > size:
            yield f"{at}: {b} does not fit into the {size} bytes of {b.space}"


def _defined(plan: Plan) -> Iterator[str]:
    """What a launch reads was written by an earlier one, or before the step."""
    written: set[str] = set()
    for at, launch in _launches(plan):
        for b in launch.reads:
            if b.space in ("scratch", "output") and b.name not in written:
                yield f"{at} reads {b}, which nothing has written"
            if b.space == "const" and len(plan.constants.get(b.name, b"")) != b.type.nbytes:
                yield f"{at} reads {b}, of which the plan has {len(plan.constants.get(b.name, b''))} bytes"
        written.update(b.name for b in launch.writes)


def _written(plan: Plan) -> Iterator[str]:
    """Launches write scratch, outputs, and the inputs that the plan updates; each result has a buffer of its own."""
    updated = {b.name for b in plan.updates.values()}
    for at, launch in _launches(plan):
        for b in launch.writes:
            if b.space in ("scalar", "const") or (b.space in ("input", "state") and b.name not in updated):
                yield f"{at} writes {b}, which is not its to write"
        if len({b.name for b in launch.writes}) < len(launch.writes):
            yield f"{at} writes one buffer twice: {', '.join(map(str, launch.writes))}"


@dataclass(frozen=True)
class _Life:
    """Bytes [start, stop) of scratch that are used from the first launch to the last."""

    buffer: Buffer
    start: int
    stop: int
    first: int
    last: int


def _lives(plan: Plan) -> list[_Life]:
    first: dict[str, tuple[int, Buffer]] = {}
    last: dict[str, int] = {}
    for i, launch in enumerate(plan.launches):
        for b in launch.buffers:
            if b.space == "scratch":
                first.setdefault(b.name, (i, b))
                last[b.name] = i
    return [
        _Life(b, b.offset or 0, (b.offset or 0) + b.type.nbytes, i, last[b.name])
        for i, b in first.values()
        if b.type.nbytes
    ]


def _lifetimes(plan: Plan) -> Iterator[str]:
    """Scratch buffers with overlapping lifetimes share no byte, except for in-place pairs of a launch."""
    alive: list[_Life] = []
    handed = [
        {frozenset((launch.writes[o].name, launch.reads[i].name)) for o, i in launch.group.inplace}
        for launch in plan.launches
    ]
    for life in sorted(_lives(plan), key=lambda v: v.first):
        alive = [a for a in alive if a.last >= life.first]
        for a in alive:
            if a.start < life.stop and life.start < a.stop:
                pair = frozenset((a.buffer.name, life.buffer.name))
                if a.last > life.first or pair not in handed[life.first]:
                    yield f"launch {life.first} puts {life.buffer} on {a.buffer}, which is in use until launch {a.last}"
        alive.append(life)


def _flat(plan: Plan) -> Iterator[str]:
    """The arguments of a collective that works on flat memory lie one after another; in scratch nothing else that is
    used later lies between them, or behind the last one where that is a rank's part, too."""
    lives = _lives(plan)
    for i, (at, launch) in enumerate(_launches(plan)):
        flat = launch.flat
        if not flat:
            continue
        if len({b.space for b in flat}) > 1 or flat[0].space not in ("scratch", "state"):
            yield f"{at} works on flat memory, and its arguments lie in {', '.join(b.space for b in flat)}"
        if flat[0].space != "scratch":
            continue  # the memory of parameters, which `Segments` checks
        start = end = flat[0].offset or 0
        for b in flat:
            if b.offset != end:
                yield f"{at} works on flat memory, and {b} does not lie at {end:#x}"
            end += aligned(b.type.nbytes)
        end = max(end, start + launch.flat_bytes)
        if end > aligned(plan.scratch_bytes):
            yield f"{at} works on flat memory up to {end:#x}, behind the {plan.scratch_bytes} bytes of scratch"
        names = {b.name for b in launch.buffers}
        for life in lives:
            inside = life.start < end and start < life.stop and life.first <= i <= life.last
            if inside and life.buffer.name not in names:
                yield f"{at} works on flat memory, and {life.buffer} lies in it"


def _in_place(plan: Plan) -> Iterator[str]:
    """Declared in-place pairs have the same address and size; a buffer that is read and written is declared."""
    for at, launch in _launches(plan):
        pairs = launch.group.inplace
        for o, i in pairs:
            if not (0 <= o < len(launch.writes) and 0 <= i < len(launch.reads)):
                yield f"{at}: in-place pair ({o}, {i}) names no buffers"
                continue
            w, r = launch.writes[o], launch.reads[i]
            if w.type.nbytes != r.type.nbytes:
                yield f"{at} works in place on {w} and {r}, which differ in size"
            if (w.space, w.offset) != (r.space, r.offset) or (w.offset is None and w.name != r.name):
                yield f"{at} works in place on {w} and {r}, which are two places"
        for o, w in enumerate(launch.writes):
            for i, r in enumerate(launch.reads):
                if w.name == r.name and (o, i) not in pairs:
                    yield f"{at} reads and writes {w}, and does not say that it works in place"


def _bound(plan: Plan) -> Iterator[str]:
    """Outputs exist after the step and outlive scratch; updates write the buffers of their inputs."""
    written = {b.name for launch in plan.launches for b in launch.writes}
    for name, b in plan.outputs.items():
        if b.space == "scratch":
            yield f"output {name!r} lies in scratch: {b}"
        if b.space == "output" and b.name not in written:
            yield f"output {name!r} is never written: {b}"
    for name, b in plan.updates.items():
        if name not in plan.inputs or plan.inputs[name].name != b.name:
            yield f"update {name!r} writes {b}, which is not the buffer of that input"
        if b.name not in written:
            yield f"update {name!r} is never written: {b}"


def _overwritten(plan: Plan) -> Iterator[str]:
    """No launch reads a state or input buffer that an earlier one has overwritten."""
    writer: dict[str, str] = {}
    for at, launch in _launches(plan):
        for b in launch.reads:
            if b.name in writer:
                yield f"{at} reads {b}, which {writer[b.name]} has overwritten"
        writer.update((b.name, at) for b in launch.writes if b.space in ("state", "input"))


Value = tuple[object, ...]  # the contents of a buffer: ("input", name), ("literal", bytes), or a result of a kernel


class _Values:
    """Numbers symbolic values, so that equal values have equal numbers and comparing them is cheap."""

    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def kernel(self, body: Graph, pattern: str, reads: tuple[int, ...]) -> list[int]:
        """Return the results of a kernel on these values; a result that is an unchanged input is that value."""
        inputs = dict(zip(body.inputs.values(), reads, strict=True))
        ran = self.number(("kernel", body, pattern, reads))
        return [
            inputs[n] if n in inputs else self.number(("result", ran, j)) for j, n in enumerate(body.outputs.values())
        ]


def _replayed(plan: Plan, graph: Graph) -> Iterator[str]:
    """The plan's launches, run in order on symbolic memory, leave the graph's values in every output and update."""
    values = _Values()
    memory: dict[str, int] = {name: values.number(("literal", data)) for name, data in plan.constants.items()}
    for name, b in plan.inputs.items():
        memory[b.name] = values.number(("input", name))
    expected = _graph_values(graph, values)
    known = set(expected.values())
    for at, launch in _launches(plan):
        reads = tuple(memory.get(b.name, -1) for b in launch.reads)
        results = values.kernel(launch.group.body, launch.group.pattern, reads)
        for b, value in zip(launch.writes, results, strict=True):
            memory[b.name] = value
            if b.space != "scratch" and value not in known:
                yield f"{at} writes into {b} what the graph never computes; it read {', '.join(map(str, launch.reads))}"
    for kind, buffers, nodes in (("output", plan.outputs, graph.outputs), ("update", plan.updates, graph.updates)):
        if set(buffers) != set(nodes):
            yield f"the plan's {kind}s are {sorted(buffers)}, the graph's are {sorted(nodes)}"
            continue
        for name, n in nodes.items():
            if memory.get(buffers[name].name) != expected[n]:
                yield f"{kind} {name!r}: after the last launch {buffers[name]} does not hold what the graph says"


def _graph_values(graph: Graph, values: _Values) -> dict[Node, int]:
    """Return the number of every value of a fused graph; a reshape has the number of its source."""
    found: dict[Node, int] = {}
    kernels: dict[Node, list[int]] = {}
    for n in graph.nodes():
        match n.op.name:
            case "input":
                found[n] = values.number(("input", n.attrs["name"]))
            case "literal":
                found[n] = values.number(("literal", n.attrs["data"]))
            case "reshape" | "depends_on":
                found[n] = found[n.src[0]]
            case "fused":
                reads = tuple(found[s] for s in n.src)
                kernels[n] = values.kernel(n.attrs["body"], n.attrs["pattern"], reads)
                found[n] = values.number(("kernel", n.attrs["body"], n.attrs["pattern"], reads))
            case "get_tuple_element":
                found[n] = kernels[n.src[0]][n.attrs["index"]]
            case _:
                raise VerifyError(f"{n!r} is outside every kernel, and is no view")
    return found
