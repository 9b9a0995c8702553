"""Attention as one kernel, forward and backward, in float32 and in bf16, over a table of cases, against its own
definition in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.codegen.contraction.attention import LONGEST, is_profitable
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.compiler.lower import lower
from gluongraph.compiler.pipeline import plan_of
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Node, TensorType

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
AMX = pytest.mark.skipif(not getattr(target(), "tiles", False), reason="no AMX here")
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
    results = [ops.get_tuple_element(n, index=i) for i in range(3)] if isinstance(n.type, tuple) else [n]
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
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"), on=target(unit or "cpu"))
    if unit is not None:
        assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    run = compiled.executor({})
    found = dict(zip(run.output_names, run([arrays[int(x[1:])] for x in run.input_names]), strict=True))
    wide = [a if a.dtype == bool else a.astype(np.float64) for a in arrays]
    doubles = [ops.input(s.attrs["name"], TensorType(s.shape, "bool" if s.dtype == "bool" else "f64")) for s in n.src]
    how = {k: v for k, v in n.attrs.items() if k != "dtype"}
    exact, _ = interpreter.run(graph_of(n.op(*doubles, **how)), dict(zip(graph.inputs, wide, strict=True)))
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


# -- where heads lie


B, H, T, D = 2, 3, 70, 32  # two blocks of queries, and of everything a rest


def by_head(x: Node) -> Node:
    return ops.transpose(ops.reshape(x, (B, T, x.shape[-1] // D, D)), (0, 2, 1, 3))


def joined(y: Node) -> Node:
    return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (B * T, H * D))


def joint(dtype: str) -> tuple[list[Node], list[Node]]:
    """Queries, keys and values of one projection, its outputs in groups of each; and that as input."""
    x = ops.input("x0", TensorType((B * T, 3 * H * D), dtype))
    turned = ops.transpose(ops.reshape(x, (B, T, 3, H, D)), (2, 0, 3, 1, 4))
    parts = [ops.slice(turned, (i, 0, 0, 0, 0), (i + 1, B, H, T, D), (1,) * 5) for i in range(3)]
    return [ops.reshape(part, (B, H, T, D)) for part in parts], [x]


def split(dtype: str) -> tuple[list[Node], list[Node]]:
    """The same, split before heads are told apart, as ONNX has it."""
    x = ops.input("x0", TensorType((B, T, 3 * H * D), dtype))
    width = H * D
    return [by_head(ops.slice(x, (0, 0, i * width), (B, T, (i + 1) * width), (1, 1, 1))) for i in range(3)], [x]


def three(dtype: str) -> tuple[list[Node], list[Node]]:
    """Three projections."""
    given = [ops.input(f"x{i}", TensorType((B * T, H * D), dtype)) for i in range(3)]
    return [by_head(x) for x in given], given


def shared(dtype: str) -> tuple[list[Node], list[Node]]:
    """One head of keys and values for all heads of queries."""
    given = [ops.input(f"x{i}", TensorType((B, T, width), dtype)) for i, width in enumerate((H * D, D, D))]
    q, k, v = map(by_head, given)
    return [q, ops.expand(k, q.shape), ops.expand(v, q.shape)], given


FORMS = {"joint": joint, "split": split, "three": three, "shared": shared}


def moved(form: str, backward: bool, dtype: str = "f32", out: str | None = None) -> Graph:
    """Attention in one of the forms, its result as the next projection reads it; or the gradient, whose parts are put
    together as the product behind them reads them."""
    operands, given = FORMS[form](dtype)
    how: dict[str, Any] = {"causal": True, "scale": 0.3, **({"dtype": out} if out else {})}
    if not backward:
        y = joined(OPS["attention"](*operands, **how))
        return Graph({x.attrs["name"]: x for x in given}, {"y": y})
    g = ops.input("x3", TensorType((B * T, H * D), dtype))
    n = OPS["attention_grad"](by_head(g), *operands, **how)
    found = [ops.get_tuple_element(n, index=i) for i in range(3)]
    if form == "joint":
        parts = ops.concat(*(ops.reshape(x, (1, B, H, T, D)) for x in found), axis=0)
        parts = ops.cast(parts, dtype) if out else parts
        results = [ops.reshape(ops.transpose(parts, (1, 3, 0, 2, 4)), (B * T, 3 * H * D))]
    elif form == "split":
        parts = ops.concat(*(ops.reshape(joined(x), (B, T, H * D)) for x in found), axis=2)
        results = [ops.reshape(parts, (B * T, 3 * H * D))]
    else:
        results = list(map(joined, found))
    return Graph({x.attrs["name"]: x for x in (*given, g)}, {f"y{i}": y for i, y in enumerate(results)})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_heads_are_not_copied(form: str, backward: bool, dtype: str) -> None:
    graph = moved(form, backward, dtype)
    plan, _ = plan_of(graph, dict.fromkeys(graph.inputs, "input"), target("sapphirerapids"))
    assert [launch.candidate.rule for launch in plan.launches] == ["attention"]
    assert len(plan.launches[0].reads) == len(graph.inputs) and len(plan.launches[0].writes) == len(graph.outputs)


IN_PLACE = [
    *(("f32", form, backward, None) for form, backward in (("split", True), ("joint", True), ("shared", False))),
    *(pytest.param("bf16", "joint", backward, "f32", marks=AMX) for backward in (False, True)),
]


@pytest.mark.parametrize(("dtype", "form", "backward", "out"), IN_PLACE)
def test_heads_where_they_lie(dtype: str, form: str, backward: bool, out: str | None) -> None:
    """A result in float32 is rounded by the kernel where it is rounded next."""
    graph = moved(form, backward, dtype, out)
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"), on=target("cpu"))
    assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    arrays = {key: RNG.normal(size=n.shape).astype(numpy_dtype(dtype)) for key, n in graph.inputs.items()}
    run = compiled.executor({})
    found = dict(zip(run.output_names, run([arrays[key] for key in run.input_names]), strict=True))
    exact, _ = interpreter.run(moved(form, backward, "f64"), {key: a.astype(np.float64) for key, a in arrays.items()})
    for key, expected in exact.items():
        error = ROUNDING[dtype] * abs(expected).max()
        np.testing.assert_allclose(found[key].astype(np.float64), expected, rtol=0, atol=error, err_msg=key)


def test_gradients_that_are_rounded_are_summed_before() -> None:
    """dv of 70 queries in bf16, within the rounding of one number."""
    n, arrays = node(CASES["causal"], True)
    graph = Graph({s.attrs["name"]: s for s in n.src}, {"y": ops.cast(ops.get_tuple_element(n, index=2), "bf16")})
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"))
    assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    run = compiled.executor({})
    (found,) = run([arrays[int(x[1:])] for x in run.input_names])
    exact, _ = interpreter.run(graph_of(n), dict(zip(graph.inputs, arrays, strict=True)))
    np.testing.assert_allclose(found.astype(np.float32), exact["y2"], rtol=2**-8, atol=1e-5)


def test_movement_that_others_read_is_stored() -> None:
    (q, k, v), (x,) = joint("f32")
    y = joined(OPS["attention"](q, k, v, causal=True, scale=0.3))
    graph = Graph({"x0": x}, {"y": y, "keys": k})
    plan, _ = plan_of(graph, {"x0": "input"}, target("sapphirerapids"))
    assert {launch.candidate.rule for launch in plan.launches} == {"attention", "loop"}
    graph = Graph({"x0": x}, {"y": y, "turned": ops.tanh(ops.reshape(y, (T, B * H * D)))})
    plan, _ = plan_of(graph, {"x0": "input"}, target("sapphirerapids"))
    assert [launch.candidate.rule for launch in plan.launches] == ["attention", "loop"]


def test_gradients_of_one_source_alone() -> None:
    n, arrays = node(CASES["small"], backward=True)
    graph = Graph({s.attrs["name"]: s for s in n.src}, {"y": ops.get_tuple_element(n, index=1)})
    compiled = lower(graph, dict.fromkeys(graph.inputs, "input"))
    assert [launch.candidate.rule for launch in compiled.plan.launches] == ["attention"]
    run = compiled.executor({})
    (found,) = run([arrays[int(x[1:])] for x in run.input_names])
    exact, _ = interpreter.run(graph, dict(zip(graph.inputs, arrays, strict=True)))
    np.testing.assert_allclose(found, exact["y"], atol=1e-5)


def test_what_it_does_not_take() -> None:
    cpu = TARGETS["x86-64-v3"]
    assert cpu is not None
    n, _ = node(CASES["small"], backward=False)
    assert is_profitable(n, cpu)
    assert not is_profitable(n.op(*(ops.input("x", TensorType(s.shape, "f64")) for s in n.src), **n.attrs), cpu)
    long = [ops.input("x", TensorType((1, 1, t, 2), "f32")) for t in (1, LONGEST + 1, LONGEST + 1)]
    assert not is_profitable(n.op(*long, **n.attrs), cpu)
    assert not is_profitable(ops.tanh(ops.input("x", TensorType((2,), "f32"))), cpu)
    low, _ = node(CASES["causal"], False, "bf16")
    unit = TARGETS["sapphirerapids"]
    assert unit is not None
    assert is_profitable(low, unit) and not is_profitable(low, cpu)
    assert not is_profitable(low.op(*low.src, causal=False, scale=0.0), unit)
    assert not is_profitable(node(CASES["small"], False, "bf16")[0], unit)
