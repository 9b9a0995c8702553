"""recompute: what is stored and what each reader computes again, on plans; the numbers stay the same to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from models import Builder, planned, training_step

from gluongraph import ops
from gluongraph.compiler.run_passes import run
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import Plan
from gluongraph.passes.fuse import fuse
from gluongraph.passes.fuse_recompute import MOST, recomputed
from gluongraph.passes.pipeline import Context

SHAPE = (64, 32)


def written(plan: Plan, size: int) -> list[str]:
    """What the kernels compute that write scratch of that many elements, once for each such buffer."""
    return [
        launch.label for launch in plan.launches for w in launch.writes if (w.type.size, w.space) == (size, "scratch")
    ]


def norm_relu(b: Builder, x: Node) -> Node:
    y, *_ = ops.batch_norm(x, b.param(x.shape[1]), b.param(x.shape[1]), axis=1, eps=1e-5)
    return ops.relu(y)


def convolutions(b: Builder) -> Node:
    x = norm_relu(b, b.conv(b.data("data", (8, 3, 8, 8)), 4, 3, padding=(1, 1)))
    x = norm_relu(b, b.conv(x, 4, 3, padding=(1, 1)))
    return b.cross_entropy(b.dense(ops.reshape(x, (8, 256)), 10))


def test_a_batch_norm_writes_nothing_but_its_result() -> None:
    """Forward, each layer stores what the convolution gives and what the next one reads; x - mean, its square and what
    is normalized are computed by their readers. Backward there is the gradient on both sides of relu, and of the norm.
    """
    layer = ["conv2d add", "sub mul add relu"]
    backward = ["matmul", "greater where", "sub mul", "greater conv2d_data_grad where", "sub mul"]
    assert written(planned(training_step(convolutions)), 8 * 4 * 8 * 8) == layer * 2 + backward


def test_the_numbers_stay_the_same() -> None:
    graph = training_step(convolutions)
    rng = np.random.default_rng(0)
    values = {
        name: np.asarray(rng.integers(0, 10, n.shape) if n.dtype == "i32" else rng.uniform(0.1, 1, n.shape))
        for name, n in graph.inputs.items()
    }
    values = {name: array.astype(numpy_dtype(graph.inputs[name].dtype)) for name, array in values.items()}
    graph = run(graph, Context(), "shapes", "layout")
    for kept, had in zip(interpreter.run(fuse(graph), values), interpreter.run(graph, values), strict=True):
        assert all(np.array_equal(kept[name], array) for name, array in had.items())


Make = Callable[[Node, Node, Node], Node]  # (stored value, another one, a number for each column) -> value


def chain(length: int) -> Make:
    """x - m, then + x and * m in turn."""

    def make(x: Node, other: Node, m: Node) -> Node:
        value = x - m
        for i in range(length - 1):
            value = value * m if i % 2 else value + x
        return value

    return make


CHEAP: dict[str, Make] = {
    "centred": lambda x, other, m: x - m,
    "where": lambda x, other, m: ops.where(ops.greater(x, m), x, -x),
    "of a column alone": lambda x, other, m: ops.maximum(m, 0.5),
    "in f64": lambda x, other, m: ops.cast(x - m, "f64"),
    "many": chain(MOST),
}
DEAR: dict[str, Make] = {
    "exp": lambda x, other, m: ops.exp(x - m),
    "too many": chain(MOST + 1),
    "moved": lambda x, other, m: ops.flip(x, (0,)) - m,
}


def twice_read(make: Make, *more: Callable[[Node], Node], state: bool = False) -> Plan:
    """A value that is read before and after a sum over it."""
    x, other = (ops.input(name, TensorType(SHAPE)) for name in ("data", "other"))
    m = ops.expand(ops.mean(x, axis=0, keepdims=True), SHAPE)
    value = make(x, other, m)
    total = ops.expand(ops.sum(value * value, axis=0, keepdims=True), SHAPE)
    outputs = {"y": value * total, **{f"more{i}": fn(value) for i, fn in enumerate(more)}}
    updates = {"data": x + value * total} if state else {}
    return planned(Graph({"data": x, "other": other}, outputs, updates), {"data": "state", "other": "input"})


@pytest.mark.parametrize("make", CHEAP.values(), ids=CHEAP)
def test_cheap_work_on_a_stored_value_is_recomputed(make: Make) -> None:
    assert written(twice_read(make), 64 * 32) == []


@pytest.mark.parametrize("make", DEAR.values(), ids=DEAR)
def test_what_is_dear_or_needs_more_is_stored(make: Make) -> None:
    assert written(twice_read(make), 64 * 32)


READERS: dict[str, Callable[[Node], Node]] = {
    "product": lambda n: ops.matmul(n, n, ta=True),
    "transpose": lambda n: ops.transpose(n, (1, 0)),
    "cumsum": lambda n: ops.cumsum(n, 1),
    "reshape": lambda n: ops.sum(ops.reshape(n, (32, 64)), axis=0),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_who_wants_it_in_memory_has_it_stored_for_all(reader: Callable[[Node], Node]) -> None:
    assert len(written(twice_read(CHEAP["centred"], reader), 64 * 32)) == 1


COMPARED: dict[str, Callable[[Node], Node]] = {
    "max": lambda n: ops.equal(n, ops.expand(ops.max(n, axis=0, keepdims=True), n.shape)),
    "least, the other way round": lambda n: ops.not_equal(ops.expand(ops.min(n, 0, keepdims=True), n.shape), n),
    "behind exact work": lambda n: ops.equal(-n, ops.expand(ops.max(ops.neg(ops.relu(n)), 0, keepdims=True), n.shape)),
}


@pytest.mark.parametrize("reader", COMPARED.values(), ids=COMPARED)
def test_what_is_compared_with_itself_is_computed_once(reader: Callable[[Node], Node]) -> None:
    """Two kernels may round it differently, and then no element equals the largest."""
    assert len(written(twice_read(CHEAP["centred"], reader), 64 * 32)) == 1


def test_other_comparisons_do_not_matter() -> None:
    larger = twice_read(CHEAP["centred"], lambda n: ops.greater(n, ops.mean(n, axis=0, keepdims=True)))
    known = twice_read(CHEAP["centred"], lambda n: ops.equal(n, 1.0))
    assert written(larger, 64 * 32) == written(known, 64 * 32) == []


def test_a_result_is_stored_once() -> None:
    plan = twice_read(CHEAP["centred"], lambda n: n)
    assert written(plan, 64 * 32) == []
    assert sum(r.name == "more0" for launch in plan.launches for r in launch.reads) == 2


def test_nothing_is_recomputed_from_what_is_written_over() -> None:
    """Its new value would have to wait for the readers."""
    assert len(written(twice_read(CHEAP["centred"], state=True), 64 * 32)) == 1
    assert written(twice_read(CHEAP["centred"]), 64 * 32) == []


@pytest.mark.parametrize(("values", "kernels", "again"), [(1, 9, True), (2, 1, True), (2, 2, False), (3, 1, False)])
def test_reads_are_counted_against_a_write(values: int, kernels: int, again: bool) -> None:
    inputs = {f"x{i}": ops.input(f"x{i}", TensorType(SHAPE)) for i in range(values)}
    value = functools.reduce(ops.mul, inputs.values(), ops.full(SHAPE, 3.0))
    graph = Graph(inputs, {"a": ops.exp(value), "b": ops.tanh(value)})
    assert (value in recomputed(graph, graph.nodes(), {value}, lambda n: kernels)) == again


def test_a_layer_norm_writes_nothing_but_its_result() -> None:
    """The mean and deviation of each row are stored for the way back, which nobody needed in memory before."""

    def forward(b: Builder) -> Node:
        x = ops.matmul(b.data("data", SHAPE), b.param(32, 32))
        y = ops.layer_norm(x, b.param(32), b.param(32), axis=1, eps=1e-5)
        return ops.sum(ops.tanh(x + b.dense(y, 32)), axis=1)

    plan = planned(training_step(forward))
    norm = next(launch for launch in plan.launches if "rsqrt" in launch.label)
    assert sorted(w.type.size for w in norm.writes) == [64, 64, 64 * 32]
