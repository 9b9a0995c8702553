"""Padded arrays: for every op, valid results and gradients equal those of exact arrays, or it is refused."""

import zlib

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import MXNetError
from gluongraph.ir import interpreter
from gluongraph.ir.composite import results_of
from gluongraph.ir.graph import OPS, Graph, TensorType
from gluongraph.ops.autodiff import differentiate
from gluongraph.tracing.padding.layout import Extents, Factor, regrouped, valid_part
from gluongraph.tracing.padding.masking import LENGTH
from gluongraph.tracing.padding.rewrite import mask_padding
from gluongraph.tracing.padding.table import REFUSED, RULES

MORE, OTHER, THIRD = 3, 5, 12  # by how much the padded extent, and those of the other traces, are larger
FOLLOWING = ("shape", "size", "depth", "begin", "end")  # attributes in which an extent stands
LEAVES = {"input", "const", "literal", "iota"}
ELSEWHERE = {"scan", "call", "get_tuple_element", "attention_grad", "dropout"}  # has a body, or is tested below


def generator(op):
    return np.random.default_rng(zlib.crc32(op.name.encode()))


def replaced(value, old, new):
    if isinstance(value, tuple):
        return tuple(new if n == old else n for n in value)
    return new if value == old else value


def padded(array, extent):
    """More elements behind the last along every axis of that extent: copies of the last."""
    for axis, n in enumerate(array.shape):
        if n == extent:
            array = np.take(array, np.minimum(np.arange(n + MORE), n - 1), axis)
    return array


def graph_of(op, arrays, attrs, extent, new):
    """The op on arrays in which one extent is another; what it gives is squared where it is a float."""
    shapes = [replaced(a.shape, extent, new) for a in arrays]
    inputs = {
        f"data{k}": ops.input(f"data{k}", TensorType(s, dtype_name(a.dtype)))
        for k, (s, a) in enumerate(zip(shapes, arrays, strict=True))
    }
    attrs = {k: replaced(v, extent, new) if k in FOLLOWING else v for k, v in attrs.items()}
    made = results_of(op(*inputs.values(), **attrs))
    return Graph(inputs, {f"out{k}": n * n if is_float(n.dtype) else n for k, n in enumerate(made)})


def cases():
    for op in OPS.values():
        if op.name in ELSEWHERE or op.name in REFUSED or op.kind == "random" or op.samples is None:
            continue
        for number, (arrays, attrs) in enumerate(op.samples(generator(op))):
            if any(isinstance(a, tuple) or dtype_name(np.asarray(a).dtype) in ("f16", "bf16") for a in arrays):
                continue
            arrays = tuple(map(np.asarray, arrays))
            for extent in sorted({n for a in arrays for n in a.shape if n > 1}):
                yield pytest.param(op, arrays, attrs, extent, id=f"{op.name}-{number}-{extent}")


CASES = list(cases())


def rewritten(op, arrays, attrs, extent):
    """The masked program for padded arrays; None where no extents of that kind fit."""
    extents = Extents(*({"n": extent + more} for more in (MORE, OTHER, THIRD)))
    try:
        graph, other, third = (graph_of(op, arrays, attrs, extent, extent + more) for more in (MORE, OTHER, THIRD))
    except (MXNetError, TypeError, ValueError):
        return None
    layouts = {
        name: tuple(extents.free("n") if n == extent else extents.axis(n, n) for n in a.shape)
        for name, a in zip(graph.inputs, arrays, strict=True)
    }
    first = next((k for k, n in graph.outputs.items() if is_float(n.dtype)), "")
    return mask_padding(graph, other, third, layouts, extents, first), first


@pytest.mark.parametrize("op, arrays, attrs, extent", CASES)
def test_ops(op, arrays, attrs, extent):
    try:
        found = rewritten(op, arrays, attrs, extent)
    except MXNetError as error:
        assert str(error).startswith("dynamic: ") and "cannot be computed on padded arrays" in str(error)
        return
    if found is None:
        return
    masked, first = found
    lengths = {"n": extent}
    assert all(extent >= least for least in masked.least.values())
    exact = graph_of(op, arrays, attrs, extent, extent)
    float_inputs = [k for k, n in exact.inputs.items() if n.dtype == "f64"] if first else []
    differentiated = masked.graph
    if float_inputs:
        exact, differentiated = (differentiate(g, first, float_inputs) for g in (exact, masked.graph))
    given = {f"data{k}": a for k, a in enumerate(arrays)}
    wide = {name: padded(a, extent) for name, a in given.items()} | {LENGTH + "n": np.int32(extent)}
    with np.errstate(all="ignore"):
        wanted, _ = interpreter.run(exact, given)
        results, _ = interpreter.run(differentiated, {k: wide[k] for k in differentiated.inputs})
    for name, layout in masked.layouts.items():
        np.testing.assert_allclose(
            valid_part(results[name], layout, lengths), wanted[name], rtol=2e-5, atol=1e-6, equal_nan=True
        )
    for name in float_inputs:
        if f"grad:{name}" in wanted:
            each = zip(given[name].shape, wide[name].shape, strict=True)
            layout = tuple((Factor(size, size, "n" if n == extent else ""),) for n, size in each)
            grad = results[f"grad:{name}"]
            part = valid_part(grad, layout, lengths)
            np.testing.assert_allclose(part, wanted[f"grad:{name}"], rtol=1e-5, atol=1e-7, equal_nan=True)
            assert np.isclose(np.nansum(grad), np.nansum(part)), "padding has a gradient"


def is_computed(*case):
    try:
        return rewritten(*case) is not None
    except MXNetError:
        return False


def test_every_op_is_in_the_table():
    """Each op has a rule that computes one of its cases, is refused for a reason, or follows from its kind."""
    computed = {case.values[0].name for case in CASES if is_computed(*case.values)}
    by_kind = {n for n, op in OPS.items() if op.kind in ("elementwise", "random") or op.body is not None}
    missing = OPS.keys() - computed - REFUSED.keys() - ELSEWHERE - LEAVES - by_kind
    assert not missing
    assert not RULES.keys() & REFUSED.keys()


# -- what the table of ops does not show


def masked_pair(build, given, lengths, free, sizes, others):
    """The outputs of a program on exact arrays, and the valid part of those on padded ones; with the gradients."""
    third = {name: n + 7 + 2 * k for k, (name, n) in enumerate(others.items())}
    extents = Extents(sizes, others, third)

    def graph(of):
        inputs = {}
        for name, array in given.items():
            shape = tuple(of[free[name][k]] if k in free.get(name, {}) else n for k, n in enumerate(array.shape))
            inputs[name] = ops.input(name, TensorType(shape, dtype_name(array.dtype)))
        outputs = build(*inputs.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return Graph(inputs, {f"out{k}": n for k, n in enumerate(outputs)})

    layouts = {
        name: tuple(
            extents.free(free[name][k]) if k in free.get(name, {}) else extents.axis(n, n)
            for k, n in enumerate(array.shape)
        )
        for name, array in given.items()
    }
    exact, masked = graph(lengths), mask_padding(graph(sizes), graph(others), graph(third), layouts, extents, "out0")
    wide = {}
    for name, array in given.items():
        for axis, symbol in free.get(name, {}).items():
            n = array.shape[axis]
            array = np.take(array, np.minimum(np.arange(sizes[symbol]), n - 1), axis)
        wide[name] = array
    wrt = [name for name, n in exact.inputs.items() if is_float(n.dtype)]
    exact, program = (differentiate(g, "out0", wrt) for g in (exact, masked.graph))
    wide |= {LENGTH + name: np.int32(n) for name, n in lengths.items()}
    wanted, _ = interpreter.run(exact, given)
    results, _ = interpreter.run(program, {k: wide[k] for k in program.inputs})
    for name, layout in masked.layouts.items():
        np.testing.assert_allclose(valid_part(results[name], layout, lengths), wanted[name], rtol=1e-9, atol=1e-12)
    for name in wrt:
        part = valid_part(results[f"grad:{name}"], layouts[name], lengths)
        np.testing.assert_allclose(part, wanted[f"grad:{name}"], rtol=1e-9, atol=1e-12)
    return masked


def scanned(reverse, with_output):
    def build(xs, h0, w):
        def step(carries, slices):
            new = ops.tanh(ops.matmul(carries[0], w) + slices[0])
            return (new,), (new if with_output else new * carries[0],)

        (last,), (ys,) = ops.scan(step, (h0,), (xs,), reverse=reverse)
        return ops.sum(last * last, 1) + ops.sum(ops.sum(ys * ys, 2), 0), ys

    return build


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_output", [False, True])
def test_scan_over_a_free_axis(reverse, with_output):
    rng = np.random.default_rng(0)
    given = {"xs": rng.normal(size=(5, 2, 3)), "h0": rng.normal(size=(2, 3)), "w": rng.normal(size=(3, 3))}
    lengths, sizes, others = {"t": 5, "b": 2}, {"t": 8, "b": 4}, {"t": 3, "b": 7}
    masked_pair(scanned(reverse, with_output), given, lengths, {"xs": {0: "t", 1: "b"}, "h0": {0: "b"}}, sizes, others)


def entropy(x):
    p = ops.softmax(x, 1)
    return -ops.sum(p * ops.log(p), 1)


def unbiased(x):
    n = x.shape[0] * x.shape[1]
    rest = x - ops.broadcast_to(ops.mean(x, (0, 1), keepdims=True), x.shape)
    return ops.sum(rest * rest, (0, 1)) * (1 / (n - 1))


def shifted(x):
    """What is before predicts what comes next: extents of one less."""
    n = x.shape[1]
    rest = ops.part(x, 1, 1, n) - ops.part(x, 1, 0, n - 1)
    return ops.mean(rest * rest, 1) + ops.reshape(ops.part(x, 1, n - 1, n), (x.shape[0], 2))


def merged(x):
    """Both free axes as one, and apart again."""
    rows = ops.reshape(x, (x.shape[0] * x.shape[1], 2))
    whole = ops.softmax(rows, 0)
    return ops.sum(ops.reshape(whole, x.shape) * x, (1, 2))


def with_class_token(x):
    first = ops.broadcast_to(ops.const(0.5, "f64"), (x.shape[0], 1, 2))
    joined = ops.concat(first, x, axis=1)
    return ops.sum(ops.mean(joined, 1) * ops.reshape(ops.part(joined, 1, 0, 1), (x.shape[0], 2)), 1)


def numbered(x):
    """Numbers of places, and of how many there are."""
    place = ops.broadcast_to(ops.reshape(ops.iota((x.shape[1],), 0, "f64"), (1, x.shape[1], 1)), x.shape)
    return ops.sum(x * place, (1, 2)) * (1.0 / x.shape[1] ** 0.5) + float(x.shape[0] - 1)


def padded_to_ten(x):
    wide = ops.pad(x, (0, 0, 0), (0, 24 - x.shape[1], 0), 0.25)
    return ops.sum(ops.exp(wide), (1, 2))


def read_by_number(x):
    """Rows of both axes as one, by numbers of exact ones."""
    batch, length = x.shape[:2]
    flat = ops.reshape(x, (batch * length, 2))
    row = ops.broadcast_to(ops.reshape(ops.iota((batch,)), (batch, 1)), (batch, length))
    place = ops.broadcast_to(ops.reshape(ops.iota((length,)), (1, length)), (batch, length))
    return ops.sum(ops.take(flat, row * length + (length - 1 - place), 0) * x * x, (1, 2))


def with_a_table(x):
    """As many rows of a table as there are elements."""
    table = ops.literal(np.arange(60.0).reshape(1, 30, 2))
    return ops.sum(x * ops.broadcast_to(ops.part(table, 1, 2, 2 + x.shape[1]), x.shape), (1, 2))


def repeated(x):
    """A number for each of both axes, spread and merged."""
    scale = ops.broadcast_to(ops.reshape(ops.const(0.5, "f64", (x.shape[1],)), (1, x.shape[1], 1)), x.shape)
    rows = ops.reshape(scale, (x.shape[0] * x.shape[1], 2)) * ops.reshape(x, (x.shape[0] * x.shape[1], 2))
    return ops.sum(ops.reshape(rows, x.shape), (1, 2))


PROGRAMS = [read_by_number, with_a_table, repeated, entropy, unbiased, shifted, merged, with_class_token, numbered]
PROGRAMS += [padded_to_ten]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(program):
    x = np.random.default_rng(1).normal(size=(3, 5, 2))
    lengths, sizes, others = {"b": 3, "t": 5}, {"b": 6, "t": 9}, {"b": 4, "t": 12}
    masked_pair(program, {"data0": x}, lengths, {"data0": {0: "b", 1: "t"}}, sizes, others)


def test_composites_without_padding_along_their_axis_stay_whole():
    x = np.ones((3, 4))
    masked = masked_pair(
        lambda x, g, b: ops.softmax(ops.layer_norm(x, g, b), 1),
        {"data0": x, "gamma": np.ones(4), "beta": np.ones(4)},
        {"b": 3},
        {"data0": {0: "b"}},
        {"b": 8},
        {"b": 5},
    )
    assert {"layer_norm", "softmax"} <= {n.op.name for n in masked.graph.nodes()}


def test_padding_need_not_be_an_index():
    """Places that are numbered up to the padded length may be more than a table has rows."""

    def program(x, table):
        places = ops.checked_index(ops.iota((x.shape[0],)), table.shape[0], what="index", help="")
        return ops.sum(x * ops.take(table, places, 0), 1)

    rng = np.random.default_rng(0)
    given = {"data0": rng.normal(size=(5, 2)), "table": rng.normal(size=(6, 2))}
    masked_pair(program, given, {"t": 5}, {"data0": {0: "t"}}, {"t": 16}, {"t": 9})


def refusal(build):
    extents = Extents({"n": 8}, {"n": 5}, {"n": 7})
    graphs = []
    for n in (8, 5, 7):
        x = ops.input("data0", TensorType((n, 4), "f64"))
        graphs.append(Graph({"data0": x}, {"out0": build(x)}))
    with pytest.raises(MXNetError) as caught:
        mask_padding(*graphs, {"data0": (extents.free("n"), *(extents.axis(4, 4),))}, extents)
    return str(caught.value)


@pytest.mark.parametrize(
    "build, why",
    [
        (lambda x: ops.concat(x, ops.zeros(TensorType((2, 4), "f64"))), "behind elements of which the number varies"),
        (lambda x: ops.slice(x, (0, 0), x.shape, (2, 1)), "it takes every so many elements"),
        (lambda x: x * float(x.shape[0] ** 3 + 2), "in a way that is not known"),
        (lambda x: ops.exp(x) if x.shape[0] > 6 else ops.log(x), "for another length the program computes log"),
        (lambda x: ops.allreduce(x, ranks=2), "across ranks"),
    ],
)
def test_refusals_say_why(build, why):
    message = refusal(build)
    assert why in message and "help: " in message and "exact" in message


def test_regrouped_factors():
    free = Extents({"n": 8}, {"n": 5}, {"n": 7}).free("n")
    four = (Factor(4, 4),)
    assert regrouped((free, four), (8, 2, 2), (5, 2, 2)) == (free, (Factor(2, 2),), (Factor(2, 2),))
    assert regrouped((four, free), (32,), (20,)) == ((Factor(4, 4), *free),)
