"""Pattern "opaque": what is written better than element by element, and the fallback for any single operation."""

from __future__ import annotations

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tir
from gluongraph.codegen.expression import size_of
from gluongraph.codegen.loops import along, offered, sweep
from gluongraph.codegen.loops import emit as emit_loops
from gluongraph.codegen.math import VectorAlgebra
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.ir import Node
from gluongraph.plan import Candidate, Group


def _single(group: Group, name: str) -> Node | None:
    """The group's one operation, if it is that one, on inputs of the group."""
    outputs = list(group.body.outputs.values())
    if len(outputs) != 1 or outputs[0].op.name != name or any(s.op.name != "input" for s in outputs[0].src):
        return None
    return outputs[0]


def _claim_scatter(group: Group, cpu: Cpu) -> Candidate | None:
    n = _single(group, "scatter_add")
    return offered("scatter_add", group) if n is not None and n.dtype in ("f32", "f64") else None


def _emit_scatter(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """x, then row after row of the updates added, in order; columns are shared out, so the order never changes."""
    n = _single(group, "scatter_add")
    assert n is not None
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    x, indices, updates = (memory[s] for s in n.src)
    (y,) = bindings.outputs
    rows, width = n.shape[0], size_of(n.shape[1:])
    count = n.src[1].ty.size
    steps = mk.ceildiv(width, cpu.lanes)
    pieces = mk.pieces(steps, cpu, float(width * (rows + count)))
    with k.loop(pieces, "parallel", "piece") as piece:
        first, number = mk.share(k, steps, pieces, piece)

        def copy(at: Expr, lanes: int) -> None:
            with k.loop(rows, name="row") as r:
                k.store(y, k.load(x, r * width + at, lanes), r * width + at)

        def add(at: Expr, lanes: int) -> None:
            with k.loop(count, name="update") as u:
                wanted = tir.cast(k.load(indices, u), "i32")
                row = k.let(tir.minimum(tir.maximum(wanted, 0), rows - 1), "row")
                place = k.let(row * width + at, "place")
                k.store(y, k.load(y, place, lanes) + k.load(updates, u * width + at, lanes), place)

        mk.runs(k, width, cpu.lanes, first, number, copy)
        mk.runs(k, width, cpu.lanes, first, number, add)


def _claim_first(group: Group, cpu: Cpu) -> Candidate | None:
    n = _single(group, "first_of")
    return Candidate("first_of", 4 * n.attrs["size"]) if n is not None else None


def _emit_first(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """A table over all numbers says where each stands first. It is never cleared: an entry is believed if it names an
    earlier place and the number stands there, as in the sparse sets of Briggs and Torczon (1993)."""
    n = _single(group, "first_of")
    assert n is not None and bindings.workspace is not None
    (rows,), (y,) = bindings.inputs, bindings.outputs
    table = k.view(bindings.workspace, "i32")
    with k.loop(n.ty.size, name="i") as i:
        number = k.bind(tir.cast(k.load(rows, i), "i32"), "number")
        said = k.bind(k.load(table, number), "said")
        earlier = tir.logical("and", tir.compare("greater_equal", said, tir.index(0)), tir.compare("less", said, i))
        place = k.bind(tir.select(earlier, said, i), "place")
        stands = tir.compare("equal", tir.cast(k.load(rows, place), "i32"), number)
        first = k.bind(tir.select(stands, place, i), "first")
        k.store(y, first, i)
        k.store(table, first, number)


def _claim_put(group: Group, cpu: Cpu) -> Candidate | None:
    return offered("put_rows", group) if _single(group, "put_rows") is not None else None


def _emit_put(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Row after row to its place; what stays is copied before, unless it lies there already."""
    n = _single(group, "put_rows")
    assert n is not None
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    x, rows, values = (memory[s] for s in n.src)
    (y,) = bindings.outputs
    count, width, lanes = n.src[1].ty.size, size_of(n.shape[1:]), mk.lanes(cpu, n.dtype)
    if not group.inplace:
        _copy_rows(k, cpu, x, y, (1, n.ty.size, n.ty.size))

    def put(_: Expr, number: Expr) -> None:
        row = k.bind(tir.cast(k.load(rows, number), "i32"), "row")

        def write(at: Value, wide: int) -> None:
            k.store(y, k.load(values, number * width + at, wide), row * width + at)

        above, end = tir.compare("greater_equal", row, tir.index(0)), tir.index(n.shape[0])
        with k.when(tir.logical("and", above, tir.compare("less", row, end))):
            along(k, width, lanes, write)

    mk.spread(k, count, mk.pieces(count, cpu, float(count * width)), put)


def _claim_concat(group: Group, cpu: Cpu) -> Candidate | None:
    return offered("concat", group) if _single(group, "concat") is not None else None


def _emit_concat(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """One source after another, each to its place in every row."""
    n = _single(group, "concat")
    assert n is not None
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    (y,) = bindings.outputs
    axis = n.attrs["axis"]
    rows, width, start = size_of(n.shape[:axis]), size_of(n.shape[axis:]), 0
    for s in n.src:
        size = size_of(s.shape[axis:])
        _copy_rows(k, cpu, memory[s], y.at(start), (rows, size, width))
        start += size


def _copy_rows(k: Kernel, cpu: Cpu, x: Buf, y: Buf, sizes: tuple[int, int, int]) -> None:
    rows, size, width = sizes

    def copy(outer: tuple[Value, ...], at: Value, lanes: int) -> None:
        (row,) = outer
        k.store(y, k.load(x, row * size + at, lanes), row * width + at)

    sweep(k, cpu, (rows, size), mk.lanes(cpu, x.dtype), 1, copy)


def _claim_cumsum(group: Group, cpu: Cpu) -> Candidate | None:
    return offered("cumsum", group) if _single(group, "cumsum") is not None else None


def _emit_cumsum(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Along the last axis a vector at a time, by sums of neighbours at growing distance; along others all columns at
    once."""
    n = _single(group, "cumsum")
    assert n is not None
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    x, (y,), e = memory[n.src[0]], bindings.outputs, VectorAlgebra(k)
    axis, dtype = n.attrs["axis"], "f32" if n.dtype in ("f16", "bf16") else n.dtype
    rows, length, width = size_of(n.shape[:axis]), n.shape[axis], size_of(n.shape[axis + 1 :])

    def column(outer: tuple[Value, ...], at: Value, lanes: int) -> None:
        (row,) = outer
        total = k.local("total", lanes, dtype)
        k.store(total, tir.splat(tir.const(0, dtype), lanes), 0)
        with k.loop(length, name="along") as i:
            place = k.let((row * length + i) * width + at, "place")
            k.store(total, k.load(total, 0, lanes) + e.cast(k.load(x, place, lanes), dtype), 0)
            k.store(y, k.load(total, 0, lanes), place)

    if width > 1:
        sweep(k, cpu, (rows, width), cpu.lanes, length, column)
        return

    def line(_: Expr, row: Expr) -> None:
        total = k.local("total", 1, dtype)
        k.store(total, tir.const(0, dtype), 0)

        def vector(at: Value, lanes: int) -> None:
            place = k.let(tir.index(row * length + at), "place")
            sums = _running(k, e.cast(k.load(x, place, lanes), dtype))
            sums = k.let(sums + tir.splat(k.let(k.load(total, 0)), lanes))
            k.store(y, sums, place)
            k.store(total, tir.shuffle([sums], [lanes - 1]) if lanes > 1 else sums, 0)

        along(k, length, cpu.lanes, vector)

    mk.spread(k, rows, mk.pieces(rows, cpu, 4.0 * rows * length), line)


def _running(k: Kernel, x: Expr) -> Expr:
    """Sums of the first 1, 2, 3, ... lanes."""
    lanes, distance = tir.lanes_of(x), 1
    zero = tir.splat(tir.const(0, tir.dtype_of(x)), lanes)
    while distance < lanes:
        x = k.let(x)
        x = x + tir.shuffle([zero, x], range(lanes - distance, 2 * lanes - distance))
        distance *= 2
    return k.let(x)


def _claim_max_grad(group: Group, cpu: Cpu) -> Candidate | None:
    n = _single(group, "max_pool2d_grad")
    return offered("max_pool_grad", group) if n is not None and n.dtype in ("f32", "f64") else None


def _emit_max_grad(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Each channel is set to zero; then window after window gives what it has to its first largest element."""
    n = _single(group, "max_pool2d_grad")
    assert n is not None
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    x, y, g = (memory[s] for s in n.src)
    (z,) = bindings.outputs
    planes, image, small = n.shape[0] * n.shape[1], n.shape[2:], n.src[1].shape[2:]

    def plane(_: Expr, number: Expr) -> None:
        start = k.let(number * size_of(image), "start")
        along(k, size_of(image), cpu.lanes, lambda at, lanes: k.store(z, _zeros(n.dtype, lanes), start + at))
        with k.nest(small) as window:
            place = k.let((number * small[0] + window[0]) * small[1] + window[1], "place")
            first = start + _first_largest(k, n, x, start, window, k.let(k.load(y, place)))
            first = k.let(first, "first")
            k.store(z, k.load(z, first) + k.load(g, place), first)

    mk.spread(k, planes, mk.pieces(planes, cpu, 10.0 * y.size), plane)


def _zeros(dtype: str, lanes: int) -> Expr:
    return tir.splat(tir.const(0, dtype), lanes)


def _first_largest(k: Kernel, n: Node, x: Buf, start: Expr, window: tuple[Value, ...], largest: Expr) -> Expr:
    """Where in its image a window has its first element equal to `largest`. Places outside of the image stand for those
    at its edge, which such a window holds too."""
    a, (height, width) = n.attrs, n.shape[2:]
    rows, columns = (
        [k.let(tir.minimum(tir.maximum(w * stride + (j - padding), 0), size - 1), "edge") for j in range(kernel)]
        for w, kernel, stride, padding, size in zip(
            window, a["kernel"], a["stride"], a["padding"], (height, width), strict=True
        )
    )
    places = [k.let(r * width + c, "place") for r in rows for c in columns]
    found = places[0]
    for place in reversed(places):
        found = tir.select(tir.compare("equal", k.load(x, start + place), largest), place, found)
    return found


def _claim_any(group: Group, cpu: Cpu) -> Candidate | None:
    computing = [n for n in group.body.nodes() if n.op.kind != "leaf" and n.op.name not in ("expand", "reshape")]
    if len(computing) > 1 or group.inplace or len({t.shape for t in group.outputs}) > 1:
        return None
    return offered("fallback", group)


INDEX_RULES = (
    Rule("scatter_add", _claim_scatter, _emit_scatter),
    Rule("first_of", _claim_first, _emit_first),
    Rule("put_rows", _claim_put, _emit_put),
    Rule("max_pool_grad", _claim_max_grad, _emit_max_grad),
    Rule("concat", _claim_concat, _emit_concat),
    Rule("cumsum", _claim_cumsum, _emit_cumsum),
)
FALLBACK = Rule("fallback", _claim_any, emit_loops)
