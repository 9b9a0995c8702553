"""inline: composites and calls become their bodies, down to primitives, unless a kernel wants them whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from random_graphs import FEW, SAMPLES, assert_laws, assert_same_meaning, graphs

from gluongraph import ops
from gluongraph.dtypes import dtype_name
from gluongraph.errors import Origin
from gluongraph.ir.graph import OPS, Graph, TensorType, node
from gluongraph.ir.printer import show
from gluongraph.ir.verify import verify
from gluongraph.passes import inline

X = ops.input("x", TensorType((2, 3)))
COMPOSITES = sorted(name for name, op in OPS.items() if op.kind == "composite")


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, inline)


def test_golden(golden) -> None:
    origin = Origin("net.py", 9, "attention")
    y = OPS["softmax"](X, axis=1)
    golden("inline", show(inline(Graph({"x": X}, {"y": y}, origins={y: origin}))))


@pytest.mark.parametrize("name", COMPOSITES)
def test_every_composite_is_its_body(name: str) -> None:
    assert SAMPLES[name], f"composite {name} has no samples in f32"
    for arrays, attrs in SAMPLES[name]:
        src = [ops.input(f"x{i}", TensorType(a.shape, dtype_name(a.dtype))) for i, a in enumerate(arrays)]
        n = OPS[name](*src, **attrs)
        results = [ops.get_tuple_element(n, index=i) for i in range(len(n.types))] if isinstance(n.type, tuple) else [n]
        before = Graph({f"x{i}": s for i, s in enumerate(src)}, {f"y{i}": r for i, r in enumerate(results)})
        after = inline(before)
        verify(after, "inline")
        assert_same_meaning(before, after, {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)})


def test_what_a_kernel_claims_is_kept() -> None:
    graph = Graph({"x": X}, {"y": OPS["softmax"](X, axis=1)})
    assert inline(graph, keep=lambda n: n.op.name == "softmax") is graph


def test_what_a_recomputed_composite_expands_to_is_recomputed() -> None:
    first = OPS["softmax"](X, axis=1)
    copy = node(first.op, first.src, first.attrs, copy_id=3)
    after = inline(Graph({"x": X}, {"a": first, "b": copy}))
    originals = set(Graph({"x": X}, {"a": after.outputs["a"]}).nodes())
    copies = [n for n in Graph({"x": X}, {"b": after.outputs["b"]}).nodes() if n not in originals]
    assert copies and all(n.copy_id == 3 for n in copies if n.op.kind != "leaf")
    assert len(copies) >= len([n for n in originals if n.src])


def test_calls_are_inlined_and_loops_hold_primitives() -> None:
    c0 = ops.input("c0", X.ty)
    body = Graph({"c0": c0}, {"y": OPS["softmax"](c0, axis=1)})
    call = OPS["call"](X, body=body)
    called = ops.get_tuple_element(call, index=0) if isinstance(call.type, tuple) else call
    loop = OPS["scan"](
        X, body=Graph({"c0": c0}, {"c0": OPS["softmax"](c0, axis=1)}), length=2, carries=1, xs=0, reverse=False
    )
    after = inline(Graph({"x": X}, {"a": called, "b": ops.get_tuple_element(loop, index=0)}))
    verify(after, "inline")
    names = {n.op.name for n in after.nodes()}
    assert "call" not in names and "scan" in names
