"""Pattern "loop": elementwise work and data movement, each output element computed independently.

Axes that all reads traverse with a uniform stride are merged, so that most groups become one loop over vectors; each
output shape has a loop nest of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.evaluate import Index, Load
from gluongraph.codegen.expr.expression import Expressions, flat, size_of, unflatten, uniform_load
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
    """Claim groups all of whose ops have a rule that computes one element."""
    return elementwise_candidate("loop", group) if group.pattern == "loop" else None


def elementwise_candidate(rule: str, group: Group) -> Candidate | None:
    """Return a candidate without workspace if every op can be computed element by element and no array is empty."""
    if any(n.op.lower is None and n.op.name != "input" for n in group.body.nodes()):
        return None
    if any(t.size == 0 for t in (*group.inputs, *group.outputs)):
        return None
    return Candidate(rule)


def weight(nodes: Sequence[Node]) -> int:
    """Return the cost of one element, in loads and stores."""
    return 1 + sum(n.op.cost for n in nodes)


def vector_lanes(nodes: Sequence[Node], cpu: Cpu) -> int:
    """Return the elements of a vector: a register of the widest dtype, where dtypes of more than 4 bytes count as 4."""
    return cpu.lanes * max(1, 4 // max((DTYPES[n.dtype].nbytes for n in nodes), default=4))


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Emit one loop nest for each output shape."""
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
        values = [expressions.at(n, tuple(index)) for n, _ in results]  # all outputs before the first is stored
        for (_, buf), value in zip(results, values, strict=True):
            k.store(buf, value, k.ranges.simplify(flat(extents, (*outer, at))))

    lanes, cost = vector_lanes([n for n in nodes if not isinstance(n.type, tuple)], cpu), weight(nodes)
    drawn = [n for n in nodes if n.op.name == "normal" and n.shape == shape]
    if drawn and len(extents) == 1 and WIDTH % lanes == 0:
        normals = partial(_normals, k, group, bindings, drawn, lanes)
        _sweep_in_random_runs(k, cpu, extents[0], lanes, cost, normals, element)
    elif across is None:
        sweep(k, cpu, extents, lanes, cost, element)
    else:
        _blocked_sweep(k, cpu, extents, across, lanes, element)


def _sweep_in_random_runs(
    k: Kernel,
    cpu: Cpu,
    size: int,
    lanes: int,
    cost: int,
    normals: Callable[[Expr], dict[Node, Buf]],
    element: Callable[[Index, Value, int, Mapping[Node, Load]], None],
) -> None:
    """Emit a domain with normal random values, a run of them at a time: generating each element separately would cost
    four times as much. `normals(number)` returns the buffers of a run."""
    runs, rest = mk.ceildiv(size, RUN), size % lanes

    def run(number: Expr) -> None:
        made, algebra = normals(number), VectorAlgebra(k)
        start = k.bind(tir.index(number * RUN), "start")

        def vector(at: Value, width: int) -> None:
            known = {n: uniform_load(k.let(algebra.cast(k.load(buf, at, width), n.dtype))) for n, buf in made.items()}
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
    """Generate a run of the normal values of each of these nodes, in memory."""
    expressions = Expressions(k, group, bindings)
    algebra, normal_buffers = expressions.algebra, {}
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
        normal_buffers[n] = made
    return normal_buffers


def _blocked_sweep(k: Kernel, cpu: Cpu, extents: tuple[int, ...], across: int, lanes: int, element: Element) -> None:
    """Emit a domain whose reads are contiguous along another axis than its last one: in blocks of that axis, so that
    all of a cache line is used while it is in cache."""
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
    """Emit all elements of a domain as vectors along its last axis, in parallel where that pays."""
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
            _parallel_vectors(k, cpu, n, lanes, lambda start, width: element(at, start, width))


def _parallel_vectors(k: Kernel, cpu: Cpu, n: int, lanes: int, body: Callable[[Value, int], None]) -> None:
    """Emit body(start, lanes) for one row with its vectors in parallel, then for its partial vector."""
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
    """Return the axes of a domain as runs of axes that can be merged, since every read traverses them with a uniform
    stride; and the run along which reads are contiguous if they are not along the last, else None.

    Axes of different `kinds` are not merged.
    """
    if not shape:
        return ((),), None
    if not kinds and all(_reads_own_index(n, shape) for n in topological(roots)):
        return (shape,), None
    probe = _AccessProbe(group)
    axes = [tir.index(0) if d == 1 else tir.variable(f"i{a}") for a, d in enumerate(shape)]
    for axis, d in zip(axes, shape, strict=True):
        probe.k.ranges.bind(axis, d)
    for n in roots:
        probe.at(n, tuple(axes))
    steps = [[probe.step(place, axis) for axis in axes] for place in (*probe.places, *probe.numbers)]
    runs: list[list[int]] = [[0]]
    for a in range(1, len(shape)):
        before = next((b for b in reversed(runs[-1]) if shape[b] > 1), None)
        together = before is None or shape[a] == 1 or all(_strides_match(s[before], s[a], shape[a]) for s in steps)
        apart = bool(kinds) and kinds[a] != kinds[a - 1]
        runs[-1].append(a) if together and not apart else runs.append([a])
    far = [s for s in steps[: len(probe.places)] if s[-1] is not None and abs(s[-1]) >= BLOCK and shape[-1] > 1]
    side = [i for i, run in enumerate(runs[:-1]) if far and far[0][max(run, key=lambda a: (shape[a] > 1, a))] == 1]
    return tuple(tuple(shape[a] for a in run) for run in runs), side[0] if side else None


def _reads_own_index(n: Node, shape: tuple[int, ...]) -> bool:
    """Does n read its sources only at its own index, or as scalars?"""
    if n.op.name in ("input", "const") or n.op.kind == "elementwise":
        return n.shape == shape or n.ty.size == 1
    return n.op.name == "expand" and n.src[0].ty.size == 1


def _strides_match(outer: int | None, inner: int | None, extent: int) -> bool:
    return outer is not None and inner is not None and outer == inner * extent


class _AccessProbe(Expressions):
    """Evaluates indices only, and records which positions are read and where a coordinate is used as a value."""

    def __init__(self, group: Group):
        nothing: Any = (None,) * len(group.inputs)
        super().__init__(Inline("probe"), group, Bindings(nothing, ()))
        self.places: list[Expr] = []  # positions that are read
        self.numbers: list[Expr] = []  # coordinates that are used as values
        self.algebra = _IndexAlgebra(self.k, self.numbers)

    def load(self, buf: Buf, n: Node, index: Index) -> Expr:
        """Record the position; return a placeholder of the dtype."""
        self.places.append(flat(n.shape, index))
        return self.algebra.const(1, n.dtype)

    def step(self, place: Value, axis: Expr) -> int | None:
        """Return the stride of a position along an axis; None if it is not uniform."""
        equation = self.k.ranges.linear(self.k.ranges.simplify(place), axis)
        return None if equation is None else equation[0]


class _IndexAlgebra(VectorAlgebra):
    """Computes index arithmetic; other values are placeholders of the right dtype."""

    def __init__(self, k: Kernel, places: list[Expr]):
        super().__init__(k)
        self.places = places

    def _note(self, *values: Expr) -> None:
        self.places.extend(v for v in values if not isinstance(v, int | float) and tir.dtype_of(v) == "i32")

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Return a placeholder of that dtype, or the index itself."""
        if not isinstance(x, int | float):
            if tir.dtype_of(x) == dtype:
                return x
            self._note(x)
        return self.const(1, dtype)

    def unary(self, name: str, x: Expr) -> Expr:
        """Return x, or False for predicates."""
        return self.const(False, "bool") if name in ("isnan", "isfinite", "logical_not") else x

    def binary(self, name: str, x: Expr, y: Expr) -> Expr:
        """Compute arithmetic of indices; otherwise return x, or False for comparisons."""
        x, y = self._broadcast(x, y)
        if name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
            self._note(x, y)
            return self.const(False, "bool")
        if name.startswith("logical") or is_float(tir.dtype_of(x)) or tir.dtype_of(x) != "i32":
            return x
        return super().binary(name, x, y)

    def where(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """Return one of the two."""
        return self._broadcast(yes, no)[0]

    def reduce(
        self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str, lanes: int | None = None
    ) -> Expr:
        """Return one element."""
        return element(*(tir.variable("r") for _ in extents))


LOOP = Rule("loop", claim, emit)
