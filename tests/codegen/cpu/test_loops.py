"""Elementwise work and data movement in one kernel: shapes, broadcasts, tails, dtypes, memory that is shared."""

from __future__ import annotations

import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.codegen.cpu.loops import merged_axes
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Group

IMAGE = (4, 6, 5, 7)
U32 = ((4,), "u32")


def momentum(w: Node, g: Node, m: Node, lr: Node) -> tuple[Node, Node]:
    new = m * 0.9 + g
    return w - lr * new, new


def two_spaces(w: Node, g: Node, b: Node, h: Node, lr: Node) -> tuple[Node, ...]:
    return w - lr * g, b - lr * h


def langevin(s: Node, w: Node, g: Node, lr: Node) -> Node:
    return w - lr * g + ops.normal(s, w.shape, 3)


def reversed_range(x: Node, dtype: str) -> Node:
    return x + ops.flip(ops.iota(x.shape, 1, dtype), 1)


NORMALS = (1, 15, 64, 70, 128, 20_011)  # less than a vector, a run, runs with a rest, in parallel
CASES = [
    *(Case(f"size {n}", lambda x: ops.exp(x) * 2.0 + x, [(n,)], "loop") for n in (1, 15, 16, 17, 33, 1000, 20_011)),
    Case("scalar", lambda x: ops.exp(x), [()], "loop"),
    Case("ones in the shape", lambda x, y: x + y, [(1, 5, 1, 3), (1, 5, 1, 3)], "loop"),
    Case("number for all", lambda x, s: x * s, [(9, 11), ()], "loop"),
    Case("bias", lambda x, b: ops.relu(x + b), [(9, 33), (33,)], "loop"),
    Case("bias of short rows", lambda x, b: x + b, [(3000, 10), (10,)], "loop"),
    Case("bias of channels", lambda x, b: x + ops.reshape(b, (1, 6, 1, 1)), [IMAGE, (6,)], "loop"),
    Case("number per row", lambda x, s: x / ops.exp(s), [(40, 700), (40, 1)], "loop"),
    Case("middle axis", lambda x, s: x - s, [(4, 1, 9), (4, 5, 9)], "loop"),
    Case("outer product", lambda a, b: a * b, [(19, 1), (1, 37)], "loop"),
    Case("two results", lambda x, y: (x + y, ops.exp(x - y)), [(700,), (700,)], "loop"),
    Case("result read by the other", lambda x: ((a := ops.exp(x)), a * x), [(77,)], "loop"),
    Case("in place", momentum, [(3, 50), (3, 50), (3, 50), ()], "loop", inplace=((0, 0), (1, 2))),
    Case("several spaces", two_spaces, [(30, 50), (30, 50), (7,), (7,), ()], "loop", inplace=((0, 0), (1, 2))),
    Case("reshaped input", lambda x, y: ops.reshape(x, (6, 20)) + y, [(2, 3, 20), (6, 20)], "loop"),
    Case("reshaped work", lambda x, y: ops.reshape(ops.exp(x), (5, 24)) + y, [(2, 60), (5, 24)], "loop"),
    Case("reshape and bias", lambda x, b: ops.reshape(x, (8, 30)) + b, [(8, 5, 6), (30,)], "loop"),
    Case("transpose", lambda x: ops.transpose(x, (1, 0)), [(37, 50)], "loop"),
    Case("large transpose", lambda x, y: ops.transpose(x, (0, 2, 1)) + y, [(3, 130, 70), (3, 70, 130)], "loop"),
    Case("heads", lambda x: ops.transpose(ops.reshape(x, (2, 9, 4, 8)), (0, 2, 1, 3)), [(2, 9, 32)], "loop"),
    Case("slice", lambda x: ops.exp(ops.slice(x, (1, 2), (9, 40), (2, 3))), [(9, 41)], "loop"),
    Case("rows of a slice", lambda x: ops.slice(x, (1, 0), (5, 33), (1, 1)), [(9, 33)], "loop"),
    Case("pad", lambda x: ops.pad(x, (0, 0, 1, 2), (0, 0, 2, 1), 0.5), [IMAGE], "loop"),
    Case("flip", lambda x, y: ops.flip(x, (1,)) + y, [(5, 33), (5, 33)], "loop"),
    *(
        Case(f"numbers counted down as {to}", lambda x, to=to: reversed_range(x, to), [((8, n), to)], "loop")
        for to in ("u8", "u32", "u64", "i64", "f64")
        for n in (4, 17)
    ),
    Case(
        "flipped dropout",
        lambda x, s: x * ops.flip(ops.bernoulli(s, 0.8, x.shape, 3, "f64"), 1),
        [((8, 4), "f64"), U32],
        "loop",
    ),
    Case("take rows", lambda x, i: ops.take(x, i, 0), [(5, 33), ((4, 3), "i32")], "loop"),
    Case("positions", lambda x: x * ops.iota((5, 33), 1, "f32"), [(5, 33)], "loop"),
    Case("triangle", lambda x: ops.where(ops.less(ops.iota((9, 33), 0, "i32"), 3), x, 0.0), [(9, 33)], "loop"),
    Case("bools", lambda x, y: ops.logical_and(ops.less(x, y), ops.logical_not(ops.isnan(x))), [(99,), (99,)], "loop"),
    Case("choice", lambda c, x: ops.where(c, x, -x), [((99,), "bool"), (99,)], "loop"),
    Case("bf16", lambda x, y: ops.tanh(x) * y, [((500,), "bf16"), ((500,), "bf16")], "loop"),
    Case("bf16 and f32", lambda x, w: ops.cast(ops.cast(x, "f32") * w, "bf16"), [((99,), "bf16"), (99,)], "loop"),
    Case("f16", lambda x: ops.sigmoid(x), [((99,), "f16")], "loop"),
    Case("f64", lambda x: ops.erf(x) + ops.sin(x), [((99,), "f64")], "loop"),
    Case("integers", lambda x: ops.cast(x * 3, "i64"), [((99,), "i32")], "loop"),
    Case("bytes", lambda x: x + x, [((300,), "u8")], "loop"),
    Case("random", lambda s: ops.bernoulli(s, 0.5, shape=(30, 41), draw=3), [U32], "loop"),
    Case("dropout", lambda s, x: x * ops.bernoulli(s, 0.5, shape=(30, 41), draw=1) * 2.0, [U32, (30, 41)], "loop"),
    *(Case(f"normal {n}", lambda s, x: x + ops.normal(s, x.shape, 2), [U32, (n,)], "loop") for n in NORMALS),
    Case("normal, f64", lambda s: ops.normal(s, (3, 50), 1, "f64") * 2.0, [U32], "loop", tolerance=4e-6),
    Case(
        "two normals", lambda s, x: ops.normal(s, x.shape, 0) * x + ops.normal(s, x.shape, 1), [U32, (9, 30, 7)], "loop"
    ),
    Case("normal and bias", lambda s, b: ops.normal(s, (9, 33), 4) + b, [U32, (33,)], "loop"),
    Case("langevin", langevin, [U32, (40, 33), (40, 33), ()], "loop", inplace=((0, 1),)),
    Case("constants", lambda x: (ops.full((3, 7), 2.5), x), [(3, 7)], "loop"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_loop(library: Library, case: Case) -> None:
    library.check(case)


MERGED = {  # case -> axes that are counted as one
    "ones in the shape": ((1, 5, 1, 3),),
    "bias of channels": ((4,), (6,), (5, 7)),
    "number per row": ((40,), (700,)),
    "reshaped input": ((6, 20),),
    "rows of a slice": ((4, 33),),
    "heads": ((2,), (4,), (9,), (8,)),
    "take rows": ((4, 3), (33,)),
    "random": ((30, 41),),
    "triangle": ((9,), (33,)),
}


@pytest.mark.parametrize("name", MERGED)
def test_axes_that_count_as_one(name: str) -> None:
    graph = next(c for c in CASES if c.name == name).graph()
    roots = list(graph.outputs.values())
    assert merged_axes(Group(graph, "loop"), roots, roots[0].shape)[0] == MERGED[name]
