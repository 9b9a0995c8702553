"""Row by row: softmax, norms, cross entropy and their gradients, for short rows, long rows, rows with a tail."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.codegen.rule import bind, emit
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import tir
from gluongraph.compiler.lower import compile_graph
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType

SHAPES = [(1, 7), (3, 10), (128, 10), (5, 16), (4, 33), (3, 200), (2, 3, 17), (6, 5000), (300, 100), (64, 1), (2, 9000)]


def softmax_grad(g: Node, y: Node) -> Node:
    return (g - ops.sum(g * y, axis=-1, keepdims=True)) * y


def norm_grad(x: Node, g: Node) -> tuple[Node, Node]:
    """The gradient of a plain layer norm, and 1 / deviation."""
    off = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(off * off, axis=-1, keepdims=True) + 1e-5)
    y = off * scale
    inner = g - ops.mean(g, axis=-1, keepdims=True) - y * ops.mean(g * y, axis=-1, keepdims=True)
    return inner * scale, scale


def layer_norm(x: Node, gamma: Node, beta: Node) -> Node:
    return ops.layer_norm(x, gamma, beta, axis=-1, eps=1e-5)


def dense_loss(x: Node, y: Node) -> Node:
    return ops.softmax_cross_entropy(x, y, axis=-1, sparse=False)


def sparse_loss(x: Node, label: Node) -> Node:
    return ops.softmax_cross_entropy(x, label, axis=-1, sparse=True)


def loss_and_grad(x: Node, label: Node) -> tuple[Node, Node]:
    hot = ops.one_hot(label, x.shape[-1])
    y = ops.softmax(x, axis=-1)
    return ops.softmax_cross_entropy(x, label, axis=-1, sparse=True), y - hot


CASES = [
    *(Case(f"softmax {s}", lambda x: ops.softmax(x, axis=-1), [s], "rowwise") for s in SHAPES),
    *(Case(f"log softmax {s}", lambda x: ops.log_softmax(x, axis=-1), [s], "rowwise") for s in SHAPES[::3]),
    *(Case(f"layer norm {s}", layer_norm, [s, s[-1:], s[-1:]], "rowwise") for s in SHAPES[1:9]),
    *(Case(f"softmax gradient {s}", softmax_grad, [s, s], "rowwise") for s in SHAPES[::2]),
    *(Case(f"norm gradient {s}", norm_grad, [s, s], "rowwise") for s in SHAPES[2:9:2]),
    *(Case(f"loss {s}", sparse_loss, [s, (s[:-1], "i32")], "rowwise") for s in SHAPES[1:8:2]),
    Case("dense loss", dense_loss, [(9, 10), (9, 10)], "rowwise"),
    Case("loss and gradient", loss_and_grad, [(32, 10), ((32,), "i32")], "rowwise"),
    Case("argmax", lambda x: ops.argmax(x, axis=-1), [(9, 40)], "rowwise"),
    Case("rows of rows", lambda x, b: ops.sum(ops.tanh(x) * b, axis=(1, 2)), [(9, 4, 5), (1, 4, 5)], "rowwise"),
    Case("mean of an image", lambda x: ops.mean(x, axis=(2, 3)), [(4, 6, 5, 7)], "rowwise"),
    Case("scaled scores", lambda x: ops.softmax(x * 0.125, axis=-1), [(2, 4, 9, 9)], "rowwise"),
    Case("in place", lambda x: ops.softmax(x, axis=-1), [(9, 50)], "rowwise", inplace=((0, 0),)),
    Case("f64", lambda x: ops.softmax(x, axis=-1), [((9, 50), "f64")], "rowwise"),
    Case("bf16", lambda x: ops.softmax(x, axis=-1), [((9, 50), "bf16")], "rowwise"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rowwise(library: Library, case: Case) -> None:
    library.check(case)


@pytest.mark.parametrize("columns, asked", [(96, False), (8000, True)])
def test_of_long_rows_the_next_is_asked_for_while_exponentials_are_computed(columns: int, asked: bool) -> None:
    launch = Library([Case("", lambda x: ops.softmax(x, axis=-1), [(4, columns)], "rowwise")]).launches[""]
    cpu = target()
    assert cpu is not None
    k = tir.Kernel("k")
    emit(k, launch.group, launch.candidate, bind(k, launch), cpu)
    assert ("prefetch" in str(k.finish())) == asked


def test_positions_within_rows_of_rows() -> None:
    """Axes that some node looks at by themselves do not count as one."""
    x = ops.input("x", TensorType((3, 4, 5)))
    column = ops.expand(ops.iota((1, 4, 5), 2, "f32"), x.shape)
    graph = Graph({"x": x}, {"y": ops.sum(ops.tanh(x) * column, axis=(1, 2))})
    values = {"x": np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 4, 5)}
    (got, _), (want, _) = compile_graph(graph, "positions")(values), interpreter.run(graph, values)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5)
