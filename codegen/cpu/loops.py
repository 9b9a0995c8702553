"""Pattern "loop": elementwise work and data movement, each output element computed independently.

Axes that all reads run through together are counted as one, so that most groups become one loop over vectors; each
shape among the outputs gets a nest of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.evaluate import Index, Load
from gluongraph.codegen.expr.expression import Expressions, always, flat, size_of, unflatten
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Inline, Kernel, Value
from gluongraph.dtypes import DTYPES, is_float
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group
from gluongraph.ops.random import RUN, WIDTH, normal_pair, words_of

PARALLEL = 1 << 14  # elements below which a parallel region (1-2 us) costs more than it saves
BLOCK = 16  # elements of a cache line


Element = Callable[[Index, Value, int], None]  # element(outer index, first position on the last axis, lanes)


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Groups of which every op says how to compute one element."""
    return offered("loop", group) if group.pattern == "loop" else None


def offered(rule: str, group: Group) -> Candidate | None:
    """A candidate without workspace, if every op can be computed element by element."""
    if any(n.op.lower is None and n.op.name != "input" for n in group.body.nodes()):
        return None
    if any(t.size == 0 for t in (*group.inputs, *group.outputs)):
        return None
    return Candidate(rule)


def weight(nodes: Sequence[Node]) -> int:
    """What one element costs, in loads and stores."""
    return 1 + sum(n.op.cost for n in nodes)


def vector_lanes(nodes: Sequence[Node], cpu: Cpu) -> int:
    """Elements at a time: a register of the widest dtype, as far as it has at most 4 bytes."""
    return cpu.lanes * max(1, 4 // max((DTYPES[n.dtype].nbytes for n in nodes), default=4))


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """One loop nest for each shape among the outputs."""
    spaces: dict[tuple[int, ...], list[tuple[Node, Buf]]] = {}
    for n, buf in zip(group.body.outputs.values(), bindings.outputs, strict=True):
        spaces.setdefault(n.shape, []).append((n, buf))
    for shape, results in spaces.items():
        _space(k, group, bindings, cpu, shape, results)


def _space(
    k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, shape: tuple[int, ...], results: list[tuple[Node, Buf]]
) -> None:
    nodes = topological([n for n, _ in results])
    parts, across = merged_axes(group, [n for n, _ in results], shape)
    extents = tuple(map(size_of, parts))

    def element(outer: Index, at: Value, lanes: int, known: Mapping[Node, Load] | None = None) -> None:
        expressions = Expressions(k, group, bindings, known)
        last = expressions.along(at, lanes, extents[-1])
        index = [i for place, part in zip((*outer, last), parts, strict=True) for i in unflatten(place, part)]
        values = [expressions.at(n, tuple(index)) for n, _ in results]  # all of them before the first is stored
        for (_, buf), value in zip(results, values, strict=True):
            k.store(buf, value, k.ranges.simplify(flat(extents, (*outer, at))))

    lanes, cost = vector_lanes([n for n in nodes if not isinstance(n.type, tuple)], cpu), weight(nodes)
    drawn = [n for n in nodes if n.op.name == "normal" and n.shape == shape]
    if drawn and len(extents) == 1 and WIDTH % lanes == 0:
        normals = partial(_normals, k, group, bindings, drawn, lanes)
        _in_runs(k, cpu, extents[0], lanes, cost, normals, element)
    elif across is None:
        sweep(k, cpu, extents, lanes, cost, element)
    else:
        _turned(k, cpu, extents, across, lanes, element)


def _in_runs(
    k: Kernel,
    cpu: Cpu,
    size: int,
    lanes: int,
    cost: int,
    normals: Callable[[Expr], dict[Node, Buf]],
    element: Callable[[Index, Value, int, Mapping[Node, Load]], None],
) -> None:
    """A space with normal random numbers, a run of them at a time: made by themselves, they would cost four times as
    much. `normals(number)` are the arrays of one run."""
    runs, rest = mk.ceildiv(size, RUN), size % lanes

    def run(number: Expr) -> None:
        made, algebra = normals(number), VectorAlgebra(k)
        start = k.bind(tir.index(number * RUN), "start")

        def vector(at: Value, width: int) -> None:
            known = {n: always(k.let(algebra.cast(k.load(buf, at, width), n.dtype))) for n, buf in made.items()}
            element((), k.ranges.simplify(start + at), width, known)

        count: Value = RUN // lanes
        if size % RUN:
            count = k.bind(tir.minimum(tir.index(RUN // lanes), tir.floordiv(size - start, lanes)), "count")
        with k.loop(count, name="v") as v:
            vector(v * lanes, lanes)
        if rest:
            with k.when(tir.compare("equal", number, tir.index(runs - 1))):
                vector(size % RUN - rest, rest)

    num_chunks = min(runs, cpu.chunks) if size * cost >= PARALLEL else 1
    with k.loop(num_chunks, "parallel" if num_chunks > 1 else "serial", "piece") as chunk:
        first, count = mk.chunk_range(k, runs, num_chunks, chunk)
        with k.loop(count, name="run") as r:
            run(k.bind(tir.index(first + r), "number"))


def _normals(
    k: Kernel, group: Group, bindings: Bindings, drawn: Sequence[Node], lanes: int, number: Expr
) -> dict[Node, Buf]:
    """A run of the normal numbers of each of these nodes, in memory."""
    expressions = Expressions(k, group, bindings)
    algebra, found = expressions.algebra, {}
    for n in drawn:
        words, made = k.local("word", RUN, "u32"), k.local("normal", RUN, "f32")
        with k.loop(WIDTH // lanes, name="part") as part:
            counter = k.let(tir.cast(tir.ramp(k.bind(number * WIDTH + part * lanes, "counter"), lanes), "u32"))
            for i, word in enumerate(words_of(algebra, counter, expressions.source(n.src[0]), n.attrs["draw"])):
                k.store(words, word, k.ranges.simplify(part * lanes + i * WIDTH))
        with k.loop(2, name="pair") as pair, k.loop(WIDTH // lanes, name="part") as part:
            at = k.bind(pair * (2 * WIDTH) + part * lanes, "at")
            first, second = (k.let(k.load(words, at + i * WIDTH, lanes)) for i in range(2))
            for i, value in enumerate(normal_pair(algebra, first, second)):
                k.store(made, value, at + i * WIDTH)
        found[n] = made
    return found


def _turned(k: Kernel, cpu: Cpu, extents: tuple[int, ...], across: int, lanes: int, element: Element) -> None:
    """A space whose reads lie side by side along another axis than its last one: in blocks of that axis, so that what
    one vector brings into the cache serves its neighbours."""
    blocks = mk.ceildiv(extents[across], BLOCK)
    outer = (*extents[:across], blocks, *extents[across + 1 : -1])
    rows = size_of(outer)
    parallel = size_of(extents) * 4 >= PARALLEL

    def row(_: Expr, unit: Expr) -> None:
        k.ranges.bind(unit, rows)
        where = list(unflatten(unit, outer))
        block = where[across]
        start = k.bind(tir.index(block * BLOCK), "start")
        end = tir.minimum(start + BLOCK, extents[across])

        def vector(at: Value, width: int) -> None:
            with k.loop(k.bind(end - start, "count"), name="b") as b:
                where[across] = k.bind(start + b, "at")
                k.ranges.bind(where[across], extents[across])
                element(tuple(where), at, width)

        mk.for_vectors(k, extents[-1], lanes, vector)

    mk.parallel_chunks(k, rows, min(rows, cpu.chunks) if parallel else 1, row)


def sweep(k: Kernel, cpu: Cpu, extents: tuple[int, ...], lanes: int, cost: int, element: Element) -> None:
    """Everything of a space, vector by vector along its last axis, in parallel where that pays."""
    *outer, n = extents
    rows = size_of(tuple(outer))
    if rows * n * cost < PARALLEL:
        with k.nest(outer) as at:
            mk.for_vectors(k, n, lanes, lambda start, width: element(at, start, width))
    elif rows >= cpu.chunks or rows > n // lanes:

        def row(_: Expr, unit: Expr) -> None:
            k.ranges.bind(unit, rows)
            where = unflatten(unit, tuple(outer))
            mk.for_vectors(k, n, lanes, lambda start, width: element(where, start, width))

        mk.parallel_chunks(k, rows, min(rows, cpu.chunks), row)
    else:
        with k.nest(outer) as at:
            _pieces(k, cpu, n, lanes, lambda start, width: element(at, start, width))


def _pieces(k: Kernel, cpu: Cpu, n: int, lanes: int, body: Callable[[Value, int], None]) -> None:
    """The same in parallel; the end that fills no vector is done at last."""
    full, rest = divmod(n, lanes)
    num_chunks = min(full, cpu.chunks)
    with k.loop(num_chunks, "parallel", "piece") as chunk:
        first, count = mk.chunk_range(k, full, num_chunks, chunk)
        with k.loop(count, name="v") as v:
            body((first + v) * lanes, lanes)
    if rest:
        body(full * lanes, rest)


def merged_axes(
    group: Group, roots: Sequence[Node], shape: tuple[int, ...], kinds: Sequence[Hashable] = ()
) -> tuple[tuple[tuple[int, ...], ...], int | None]:
    """The axes of a space as runs: axes of a run may be counted as one, since every read steps through them evenly.
    With it the run along which reads lie side by side where they do not along the last.

    Axes of different `kinds` are kept apart.
    """
    if not shape:
        return ((),), None
    if not kinds and all(_passes(n, shape) for n in topological(roots)):
        return (shape,), None
    probe = _Probe(group)
    axes = [tir.index(0) if d == 1 else tir.variable(f"i{a}") for a, d in enumerate(shape)]
    for axis, d in zip(axes, shape, strict=True):
        probe.k.ranges.bind(axis, d)
    for n in roots:
        probe.at(n, tuple(axes))
    steps = [[probe.step(place, axis) for axis in axes] for place in (*probe.places, *probe.numbers)]
    runs: list[list[int]] = [[0]]
    for a in range(1, len(shape)):
        before = next((b for b in reversed(runs[-1]) if shape[b] > 1), None)
        together = before is None or shape[a] == 1 or all(_even(s[before], s[a], shape[a]) for s in steps)
        apart = bool(kinds) and kinds[a] != kinds[a - 1]
        runs[-1].append(a) if together and not apart else runs.append([a])
    far = [s for s in steps[: len(probe.places)] if s[-1] is not None and abs(s[-1]) >= BLOCK and shape[-1] > 1]
    side = [i for i, run in enumerate(runs[:-1]) if far and far[0][max(run, key=lambda a: (shape[a] > 1, a))] == 1]
    return tuple(tuple(shape[a] for a in run) for run in runs), side[0] if side else None


def _passes(n: Node, shape: tuple[int, ...]) -> bool:
    """Does n only pass its index on?"""
    if n.op.name in ("input", "const") or n.op.kind == "elementwise":
        return n.shape == shape or n.ty.size == 1
    return n.op.name == "expand" and n.src[0].ty.size == 1


def _even(outer: int | None, inner: int | None, extent: int) -> bool:
    return outer is not None and inner is not None and outer == inner * extent


class _Probe(Expressions):
    """Evaluates indices only, and notes which memory is read and where a coordinate is used as a number."""

    def __init__(self, group: Group):
        nothing: Any = (None,) * len(group.inputs)
        super().__init__(Inline("probe"), group, Bindings(nothing, ()))
        self.places: list[Expr] = []  # read
        self.numbers: list[Expr] = []
        self.algebra = _Indices(self.k, self.numbers)

    def load(self, buf: Buf, n: Node, index: Index) -> Expr:
        """Some number; the place is noted."""
        self.places.append(flat(n.shape, index))
        return self.algebra.const(1, n.dtype)

    def step(self, place: Value, axis: Expr) -> int | None:
        """By how much a place moves along an axis; None if unevenly."""
        found = self.k.ranges.linear(self.k.ranges.simplify(place), axis)
        return None if found is None else found[0]


class _Indices(VectorAlgebra):
    """Index arithmetic as it is; of other numbers only the dtype is right."""

    def __init__(self, k: Kernel, places: list[Expr]):
        super().__init__(k)
        self.places = places

    def _note(self, *values: Expr) -> None:
        self.places.extend(v for v in values if not isinstance(v, int | float) and tir.dtype_of(v) == "i32")

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Some number of that dtype; an index keeps its value."""
        if not isinstance(x, int | float):
            if tir.dtype_of(x) == dtype:
                return x
            self._note(x)
        return self.const(1, dtype)

    def unary(self, name: str, x: Expr) -> Expr:
        """x, or no."""
        return self.const(False, "bool") if name in ("isnan", "isfinite", "logical_not") else x

    def binary(self, name: str, x: Expr, y: Expr) -> Expr:
        """Arithmetic of indices; otherwise x, or no."""
        x, y = self._even(x, y)
        if name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
            self._note(x, y)
            return self.const(False, "bool")
        if name.startswith("logical") or is_float(tir.dtype_of(x)) or tir.dtype_of(x) != "i32":
            return x
        return super().binary(name, x, y)

    def where(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """One of the two."""
        return self._even(yes, no)[0]

    def reduce(
        self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str, lanes: int | None = None
    ) -> Expr:
        """One element."""
        return element(*(tir.variable("r") for _ in extents))


LOOP = Rule("loop", claim, emit)
