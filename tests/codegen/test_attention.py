"""Attention as one kernel, forward and backward, in float32 and in bf16, over a table of cases, against its own
definition in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from gluongraph import ops, reference
from gluongraph.codegen.attention import LONGEST, suits
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.compiler import lower
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import OPS, Graph, Node, TensorType
from gluongraph.planning import plan_of

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
    "causal, masked, more queries than keys": Case((1, 2, 70, 34, 4, 6), causal=True, mask=(1, 2, 70, 34)),
    "head of 128": Case((1, 2, 40, 48, 128, 128), causal=True),
}
ROUNDING = {"f32": 3e-6, "bf16": 8e-3}
AMX = pytest.mark.skipif(not getattr(target().cpu, "tiles", False), reason="no AMX here")
DOTS = pytest.mark.skipif("avx512_bf16" not in cpu_flags(), reason="no AVX512-BF16 here")
MASKED = "causal, masked, more queries than keys"
# In tiles keys come by 32 and queries by 64: cases with a rest of each, with rows that see nothing, and with a mask.
# Loops of AVX512-BF16 are the same but for the unit.
BY_UNIT = [
    *(pytest.param(name, "cpu", marks=AMX) for name in ("cross, odd", MASKED, "queries masked")),
    pytest.param(MASKED, "avx512-bf16", marks=DOTS),
]


def node(case: Case, backward: bool, dtype: str = "f32") -> tuple[Node, list[Any]]:
    b, h, t, s, d, e = case.shape
    shapes = ([(b, h, t, e)] if backward else []) + [(b, h, t, d), (b, h, s, d), (b, h, s, e)]
    arrays: list[Any] = [RNG.normal(size=shape).astype(numpy_dtype(dtype)) for shape in shapes]
    if case.mask is not None:
        arrays.append(RNG.random(case.mask) > 0.4)
        arrays[-1].reshape(-1)[:3] = False
    types = [TensorType(a.shape, "bool" if a.dtype == bool else dtype) for a in arrays]
    sources = [ops.input(f"x{i}", ty) for i, ty in enumerate(types)]
    return OPS["attention_grad" if backward else "attention"](*sources, causal=case.causal, scale=d**-0.5), arrays


def graph_of(n: Node) -> Graph:
    results = [ops.item(n, index=i) for i in range(3)] if isinstance(n.type, tuple) else [n]
    return Graph({s.attrs["name"]: s for s in n.src}, {f"y{i}": r for i, r in enumerate(results)})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_against_the_definition(name: str, backward: bool) -> None:
    n, arrays = node(CASES[name], backward)
    check(n, arrays, "cpu")


@pytest.mark.parametrize(("name", "unit"), BY_UNIT)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_of_bf16_against_the_definition(name: str, unit: str, backward: bool) -> None:
    n, arrays = node(CASES[name], backward, "bf16")
    check(n, arrays, unit)


def test_of_bf16_with_negative_scale_and_sums_as_they_are() -> None:
    n, arrays = node(CASES[MASKED], True, "bf16")
    check(n.op(*n.src, **{**n.attrs, "scale": -0.3, "dtype": "f32"}), arrays, None)


def check(n: Node, arrays: list[Any], unit: str | None) -> None:
    """One kernel, within the rounding of its dtype; without a unit whatever is made of it here."""
    graph = graph_of(n)
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"), target(unit or "cpu"))
    if unit is not None:
        assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    run = compiled.executor({})
    found = dict(zip(run.output_names, run([arrays[int(x[1:])] for x in run.input_names]), strict=True))
    wide = [a if a.dtype == bool else a.astype(np.float64) for a in arrays]
    doubles = [ops.input(s.attrs["name"], TensorType(s.shape, "bool" if s.dtype == "bool" else "f64")) for s in n.src]
    how = {k: v for k, v in n.attrs.items() if k != "dtype"}
    exact, _ = reference.run(graph_of(n.op(*doubles, **how)), dict(zip(graph.inputs, wide, strict=True)))
    for key, expected in exact.items():
        error = ROUNDING[n.src[0].dtype] * max(abs(expected).max(), 1e-3)
        np.testing.assert_allclose(found[key].astype(np.float64), expected, rtol=0, atol=error, err_msg=key)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_scores_are_never_in_memory(dtype: str) -> None:
    """1024 queries and keys, 8 heads: all scores in float32 would be 32 MiB."""
    on = target("sapphirerapids")
    for backward in (False, True):
        n, _ = node(Case((2, 4, 1024, 1024, 32, 32), causal=True), backward, dtype)
        graph = graph_of(n)
        plan, _ = plan_of(graph, dict.fromkeys(graph.inputs, "input"), on)
        assert [launch.candidate.rule for launch in plan.launches] == ["attention"]
        assert plan.scratch_bytes < (16 if backward else 8) * 2**20
        assert all(b.type.size < 2 * 4 * 1024 * 1024 for launch in plan.launches for b in launch.writes)


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
    low, _ = node(CASES["causal"], False, "bf16")
    unit = TARGETS["sapphirerapids"].cpu
    assert unit is not None
    assert suits(low, unit) and not suits(low, cpu)
    assert not suits(low.op(*low.src, causal=False, scale=0.0), unit)
    assert not suits(node(CASES["small"], False, "bf16")[0], unit)
