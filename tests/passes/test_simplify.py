"""simplify: each rule on its telling case, and next to it what must not be simplified."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from random_graphs import FEW, assert_laws, assert_same_meaning, graphs

from gluongraph import ops
from gluongraph.ir.graph import OPS, Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.passes import simplify
from gluongraph.passes.simplify import holds_all

X, Y = ops.input("x", TensorType((2, 3))), ops.input("y", TensorType((2, 3)))
INT = ops.input("i", TensorType((2, 3), "i32"))
C = ops.input("c", TensorType((2, 3), "bool"))
M, N = ops.input("m", TensorType((4, 2, 3))), ops.input("n", TensorType((4, 2, 3)))
ROW = ops.input("row", TensorType((1, 3)))
P = ops.input("p", TensorType((2, 3, 4)))
INPUTS = {n.attrs["name"]: n for n in (X, Y, INT, C, M, N, P, ROW)}


def k(value: float, like: Node = X) -> Node:
    return ops.const(value, dtype=like.dtype, shape=like.shape)


def op(name: str, *src: Node, **attrs: object) -> Node:
    return OPS[name](*src, **attrs)


def turned(n: Node) -> Node:
    return op("transpose", n, axes=(0, 2, 1))


def padded(which: int, left: int, right: int, rows: int = 1) -> Node:
    """x or y with zeros beside it, and rows of zeros around."""
    return op("pad", (X, Y)[which], before=(rows, left), after=(2 * rows, right), value=0.0)


NOTHING = op("slice", X, begin=(0, 1), end=(2, 1), strides=(1, 1))  # f32[2,0]
CASES: dict[str, tuple[Node, Node]] = {
    "x beside nothing": (op("concat", X, NOTHING, axis=1), X),
    "x and y around nothing": (op("concat", X, NOTHING, Y, axis=1), op("concat", X, Y, axis=1)),
    "x * 1": (op("mul", X, k(1)), X),
    "1 * x": (op("mul", k(1), X), X),
    "i * 1": (op("mul", INT, k(1, INT)), INT),
    "x * -1": (op("mul", X, k(-1)), op("neg", X)),
    "x / 1": (op("div", X, k(1)), X),
    "x / 4": (op("div", X, k(4)), op("mul", X, k(0.25))),
    "x + -0.0": (op("add", X, k(-0.0)), X),
    "i + 0": (op("add", INT, k(0, INT)), INT),
    "x - 0.0": (op("sub", X, k(0.0)), X),
    "--x": (op("neg", op("neg", X)), X),
    "x + -y": (op("add", X, op("neg", Y)), op("sub", X, Y)),
    "-y + x": (op("add", op("neg", Y), X), op("sub", X, Y)),
    "x - -y": (op("sub", X, op("neg", Y)), op("add", X, Y)),
    "-x * 3": (op("mul", op("neg", X), k(3)), op("mul", X, k(-3))),
    "-(x * 3)": (op("neg", op("mul", X, k(3))), op("mul", X, k(-3))),
    "x ** 0": (op("pow", X, k(0)), k(1)),
    "x ** 1": (op("pow", X, k(1)), X),
    "x ** 2": (op("pow", X, k(2)), op("mul", X, X)),
    "x ** -1": (op("pow", X, k(-1)), op("div", k(1), X)),
    "abs abs": (op("abs", op("abs", X)), op("abs", X)),
    "abs of -x": (op("abs", op("neg", X)), op("abs", X)),
    "relu relu": (op("relu", op("relu", X)), op("relu", X)),
    "max(x, x)": (op("maximum", X, X), X),
    "min(x, x)": (op("minimum", X, X), X),
    "max(x, -inf)": (op("maximum", X, k(-math.inf)), X),
    "min(inf, x)": (op("minimum", X, k(math.inf)), X),
    "c and c": (op("logical_and", C, C), C),
    "c and true": (op("logical_and", C, k(True, C)), C),
    "c or false": (op("logical_or", k(False, C), C), C),
    "not not c": (op("logical_not", op("logical_not", C)), C),
    "where true": (op("where", k(True, C), X, Y), X),
    "where false": (op("where", k(False, C), X, Y), Y),
    "where of one": (op("where", C, X, X), X),
    "where not": (op("where", op("logical_not", C), X, Y), op("where", C, Y, X)),
    "cast to itself": (op("cast", X, dtype="f32"), X),
    "cast through a wider type": (op("cast", op("cast", X, dtype="f64"), dtype="f16"), op("cast", X, dtype="f16")),
    "cast there and back": (op("cast", op("cast", X, dtype="f64"), dtype="f32"), X),
    "reshape of reshape": (op("reshape", op("reshape", X, shape=(6,)), shape=(3, 2)), op("reshape", X, shape=(3, 2))),
    "expand of const": (op("expand", k(2, ROW), shape=(2, 3)), k(2)),
    "transpose back": (turned(turned(M)), M),
    "transposes compose": (
        op("transpose", op("transpose", M, axes=(1, 2, 0)), axes=(2, 1, 0)),
        op("transpose", M, axes=(0, 2, 1)),
    ),
    "transpose of ones": (op("transpose", ROW, axes=(1, 0)), op("reshape", ROW, shape=(3, 1))),
    "full slice": (op("slice", X, begin=(0, 0), end=(2, 3), strides=(1, 1)), X),
    "slice of slice": (
        op(
            "slice",
            op("slice", M, begin=(1, 0, 0), end=(4, 2, 3), strides=(1, 1, 2)),
            begin=(1, 0, 1),
            end=(3, 1, 2),
            strides=(1, 1, 1),
        ),
        op("slice", M, begin=(2, 0, 2), end=(4, 1, 3), strides=(1, 1, 2)),
    ),
    "parts side by side": (
        op("add", padded(1, 0, 3), padded(0, 3, 0)),
        op("pad", op("concat", Y, X, axis=1), before=(1, 0), after=(2, 0), value=0.0),
    ),
    "three parts that fill all": (
        op("add", op("add", padded(0, 3, 3, 0), padded(1, 6, 0, 0)), padded(0, 0, 6, 0)),
        op("concat", X, X, Y, axis=1),
    ),
    "three parts in another order": (
        op("add", op("add", padded(0, 0, 6, 0), padded(1, 6, 0, 0)), padded(0, 3, 3, 0)),
        op("concat", X, X, Y, axis=1),
    ),
    "flip twice": (op("flip", op("flip", X, axes=(1,)), axes=(1,)), X),
    "sum of one": (op("sum", ROW, axes=(0,), keepdims=False), op("reshape", ROW, shape=(3,))),
    "max of one, kept": (op("max", ROW, axes=(0,), keepdims=True), ROW),
    "transposed left": (op("matmul", turned(M), N, ta=False, tb=False), op("matmul", M, N, ta=True, tb=False)),
    "transposed twice": (op("matmul", turned(M), N, ta=True, tb=True), op("matmul", M, N, ta=False, tb=True)),
    "transposed right": (op("matmul", M, turned(N), ta=False, tb=False), op("matmul", M, N, ta=False, tb=True)),
    "transposed product": (turned(op("matmul", M, N, ta=True, tb=False)), op("matmul", N, M, ta=True, tb=False)),
    "work before expand": (
        op("mul", op("expand", ROW, shape=(2, 3)), k(0.3)),
        op("expand", op("mul", ROW, k(0.3, ROW)), shape=(2, 3)),
    ),
    "two expands": (
        op("add", op("expand", ROW, shape=(2, 3)), op("expand", op("exp", ROW), shape=(2, 3))),
        op("expand", op("add", ROW, op("exp", ROW)), shape=(2, 3)),
    ),
}

STAYS: dict[str, Node] = {
    "x + 0.0 turns -0.0 into 0.0": op("add", X, k(0.0)),
    "x - -0.0 does too": op("sub", X, k(-0.0)),
    "x * 0 hides NaN": op("mul", X, k(0.0)),
    "x - x hides NaN": op("sub", X, X),
    "x / x hides NaN": op("div", X, X),
    "x / 3 has no exact inverse": op("div", X, k(3)),
    "x / 2**20 overflows in f16": op("div", X, k(2.0**20)),
    "x == x is false for NaN": op("equal", X, X),
    "max(x, 0) is no x": op("maximum", X, k(0)),
    "where of an unknown": op("where", C, X, Y),
    "cast through a narrower type": op("cast", op("cast", X, dtype="f16"), dtype="f32"),
    "cast through an integer": op("cast", op("cast", X, dtype="i32"), dtype="f32"),
    "a real transpose": turned(M),
    "parts with a gap": op("add", padded(0, 0, 6), padded(0, 6, 0)),
    "parts that overlap": op("add", padded(0, 0, 2), padded(0, 2, 0)),
    "parts beside ones": op("add", op("pad", X, before=(0, 0), after=(0, 3), value=1.0), padded(0, 3, 0, 0)),
    "a slice": op("slice", X, begin=(0, 0), end=(1, 3), strides=(1, 1)),
    "a sum over many": op("sum", X, axes=(0,), keepdims=False),
    "an operand that is not expanded": op("add", op("expand", ROW, shape=(2, 3)), X),
    "batch axes turned under a matmul": op("matmul", op("transpose", M, axes=(1, 0, 2)), P, ta=False, tb=False),
}


def graph(n: Node) -> Graph:
    return Graph(INPUTS, {"n": n})


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, simplify)


def test_golden(golden) -> None:
    scaled = op("mul", op("expand", op("sum", X, axes=(0,), keepdims=True), shape=(2, 3)), k(0.5))
    y = op(
        "matmul", op("transpose", op("div", op("add", X, op("neg", scaled)), k(2)), axes=(1, 0)), Y, ta=False, tb=False
    )
    golden("simplify", show(simplify(Graph({"x": X, "y": Y}, {"y": y}, {"x": op("mul", k(1), op("pow", X, k(2)))}))))


@pytest.mark.parametrize("name", CASES)
def test_plain_form(name: str) -> None:
    before, after = CASES[name]
    assert simplify(graph(before)).outputs["n"] is after
    assert_same_meaning(graph(before), graph(after))


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    before = graph(STAYS[name])
    assert simplify(before) is before


def test_which_types_hold_all_values_of_which() -> None:
    yes = [
        ("f64", "f32"),
        ("f32", "bf16"),
        ("f32", "f16"),
        ("f64", "i32"),
        ("i64", "u32"),
        ("f32", "u8"),
        ("i8", "bool"),
    ]
    no = [
        ("f16", "bf16"),
        ("bf16", "f16"),
        ("f32", "i32"),
        ("f64", "i64"),
        ("u64", "i8"),
        ("i32", "u32"),
        ("f16", "u32"),
    ]
    assert all(holds_all(*pair) for pair in yes)
    assert not any(holds_all(*pair) for pair in no)
