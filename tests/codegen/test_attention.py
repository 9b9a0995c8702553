"""Attention as one kernel, forward and backward, over a table of cases, against its own definition in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from gluongraph import ops, reference
from gluongraph.codegen.attention import LONGEST, suits
from gluongraph.codegen.targets import TARGETS, target
from gluongraph.compiler import lower
from gluongraph.ir import OPS, Graph, Node, TensorType

RNG = np.random.default_rng(0)


class Case(NamedTuple):
    """Samples, heads, queries, keys, sizes of key and value; which keys are seen."""

    shape: tuple[int, int, int, int, int, int]
    causal: bool = False
    mask: tuple[int, ...] | None = None


CASES = {
    "small": Case((2, 3, 5, 7, 4, 6)),
    "causal": Case((1, 2, 70, 70, 32, 32), causal=True),
    "cross, odd": Case((2, 2, 33, 130, 20, 36)),
    "causal, more queries than keys": Case((2, 2, 9, 5, 4, 4), causal=True),
    "causal, fewer queries": Case((1, 2, 20, 84, 8, 8), causal=True),
    "causal and masked": Case((2, 3, 5, 9, 4, 4), causal=True, mask=(2, 1, 5, 9)),
    "padding mask": Case((3, 2, 17, 40, 64, 64), mask=(3, 1, 1, 40)),
    "queries masked": Case((1, 4, 66, 64, 80, 80), mask=(66, 1)),
    "one key": Case((1, 1, 3, 1, 2, 2)),
    "head of 128": Case((1, 2, 40, 48, 128, 128), causal=True),
}


def node(case: Case, backward: bool) -> tuple[Node, list[Any]]:
    b, h, t, s, d, e = case.shape
    shapes = ([(b, h, t, e)] if backward else []) + [(b, h, t, d), (b, h, s, d), (b, h, s, e)]
    arrays: list[Any] = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    if case.mask is not None:
        arrays.append(RNG.random(case.mask) > 0.4)
        arrays[-1].reshape(-1)[:3] = False
    types = [TensorType(a.shape, "bool" if a.dtype == bool else "f32") for a in arrays]
    sources = [ops.input(f"x{i}", ty) for i, ty in enumerate(types)]
    return OPS["attention_grad" if backward else "attention"](*sources, causal=case.causal, scale=d**-0.5), arrays


def graph_of(n: Node) -> Graph:
    results = [ops.item(n, index=i) for i in range(3)] if isinstance(n.type, tuple) else [n]
    return Graph({s.attrs["name"]: s for s in n.src}, {f"y{i}": r for i, r in enumerate(results)})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_against_the_definition(name: str, backward: bool) -> None:
    n, arrays = node(CASES[name], backward)
    graph = graph_of(n)
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"))
    assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    run = compiled.executor({})
    found = dict(zip(run.output_names, run([arrays[int(x[1:])] for x in run.input_names]), strict=True))
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    doubles = [ops.input(s.attrs["name"], TensorType(s.shape, "bool" if s.dtype == "bool" else "f64")) for s in n.src]
    exact, _ = reference.run(graph_of(n.op(*doubles, **n.attrs)), dict(zip(graph.inputs, wide, strict=True)))
    for key, expected in exact.items():
        scale = max(abs(expected).max(), 1e-3)
        np.testing.assert_allclose(found[key], expected, atol=3e-6 * scale, err_msg=key)


def test_the_scores_are_never_in_memory() -> None:
    """256 queries and keys, 8 heads: all scores would be 2 MiB."""
    for backward in (False, True):
        n, _ = node(Case((2, 4, 256, 256, 32, 32), causal=True), backward)
        graph = graph_of(n)
        plan = lower(graph, dict.fromkeys(graph.inputs, "input")).plan
        assert plan.scratch_bytes < 2 * 2**20 // (1 if backward else 2)
        cpu = target().cpu
        assert cpu is not None
        assert all(b.type.size < 2 * 4 * 256 * 256 for launch in plan.launches for b in launch.writes)


def test_gradients_of_one_source_alone() -> None:
    n, arrays = node(CASES["small"], backward=True)
    graph = Graph({s.attrs["name"]: s for s in n.src}, {"y": ops.item(n, index=1)})
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"))
    assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    run = compiled.executor({})
    (found,) = run([arrays[int(x[1:])] for x in run.input_names])
    exact, _ = reference.run(graph, dict(zip(graph.inputs, arrays, strict=True)))
    np.testing.assert_allclose(found, exact["y"], atol=1e-5)


def test_what_it_does_not_take() -> None:
    cpu = TARGETS["x86-64-v3"].cpu
    assert cpu is not None
    n, _ = node(CASES["small"], backward=False)
    assert suits(n, cpu)
    assert not suits(n.op(*(ops.input("x", TensorType(s.shape, "f64")) for s in n.src), **n.attrs), cpu)
    long = [ops.input("x", TensorType((1, 1, t, 2), "f32")) for t in (1, LONGEST + 1, LONGEST + 1)]
    assert not suits(n.op(*long, **n.attrs), cpu)
    assert not suits(ops.tanh(ops.input("x", TensorType((2,), "f32"))), cpu)
