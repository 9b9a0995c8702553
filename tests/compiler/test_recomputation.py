"""Recomputation: the same numbers as without it, in less memory, and as much of it as was asked for."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from small_nets import NETS, batch, compiled

import gluongraph as mx
from gluongraph import debug, gluon, ops
from gluongraph.bench.own import step_of
from gluongraph.bench.workloads import find
from gluongraph.codegen.targets import target
from gluongraph.compiler import memory_search
from gluongraph.compiler.lower import lower
from gluongraph.compiler.memory_options import nbytes_of
from gluongraph.compiler.memory_report import Footprint
from gluongraph.compiler.pipeline import plan_kernels, plan_of, prepared
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import MXNetError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.passes import fuse
from gluongraph.passes.remat import CHEAP, KEEP, LIGHT, WHOLE, remat
from gluongraph.passes.remat_segments import Forward, forward_of


def planned(name: str, **options: Any) -> tuple[Footprint, Any]:
    """What a step will take, and the step. Nothing is compiled."""
    _, step = compiled(name, **options)
    with debug.override(backend="reference"):
        return step.memory(*batch(name)), step


def ready(name: str) -> tuple[Graph, Forward]:
    """The graph of a step, ready for `fuse`, and its forward part."""
    _, step = planned(name)
    roles = {k: "input" if k.startswith("data") else "scalar" if "rng" in k else "state" for k in step.graph.inputs}
    graph = prepared(step.graph, target())
    forward = [k for k in graph.updates if "running" in k] + list(graph.outputs)
    return graph, forward_of(graph, forward, roles)


def some_values(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    drawn = {"f32": lambda s: np.abs(rng.standard_normal(s)).astype(np.float32) * 0.5}
    drawn |= {"i32": lambda s: rng.integers(0, 4, s, np.int32), "u32": lambda s: np.full(s, 7, np.uint32)}
    drawn |= {low: lambda s, low=low: drawn["f32"](s).astype(numpy_dtype(low)) for low in ("f16", "bf16", "f64")}
    return {name: np.asarray(drawn[n.dtype](n.shape)) for name, n in graph.inputs.items()}


@pytest.mark.parametrize("how", [LIGHT, CHEAP, WHOLE], ids=["light", "cheap", "whole"])
@pytest.mark.parametrize("name", NETS)
def test_graphs_with_copies_give_the_same_bits(name: str, how: int) -> None:
    graph, forward = ready(name)
    after = remat(graph, forward, [how] * len(forward.segments))
    assert any(n.op.name == "depends_on" for n in after.nodes()) or (name, how) == ("mlp with dropout", LIGHT)
    values = some_values(graph)
    for kept, had in zip(interpreter.run(after, values), interpreter.run(graph, values), strict=True):
        assert kept.keys() == had.keys()
        for key in had:
            np.testing.assert_array_equal(kept[key], had[key], key)


TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("step", {"precision": "bf16-mixed", "clip_norm": 0.1, "ema": 0.9}),
    ("step", {"precision": "16-mixed", "detect_anomaly": True}),
    ("step", {"precision": "64", "optimizer_state": "bf16"}),
    ("step", {"precision": "16-mixed", "contexts": 2}),
    ("accumulate", {"precision": "16-mixed"}),
    ("accumulate", {"contexts": 2}),
]


@pytest.mark.parametrize(("mode", "options"), TOGETHER, ids=str)
def test_with_other_options_copies_give_the_same_bits(mode: str, options: dict[str, Any]) -> None:
    name = "convolutions with batch norm" if "contexts" in options else "mlp with dropout"
    given: list[Any] = []

    def take(*arguments: Any, **how: Any) -> Any:
        given.append(arguments)
        return lower(*arguments, **how)

    _, step = compiled(name, **options)
    step._specializations.lower = take
    with debug.override(backend="reference"):
        step._ready(batch(name))
        step._specializations.find(mode, batch(name))
    ((graph, roles, names),) = given
    graph = prepared(graph, target())
    forward = forward_of(graph, names, roles)
    after = remat(graph, forward, [WHOLE] * len(forward.segments))
    assert after is not graph
    values = some_values(graph)
    for kept, had in zip(interpreter.run(after, values), interpreter.run(graph, values), strict=True):
        assert kept.keys() == had.keys()
        for key in had:
            np.testing.assert_array_equal(kept[key], had[key], key)
    with debug.override(verify=True):
        plan_kernels(after, roles, target())  # in which no kernel overwrites what another one will read


def test_a_budget_on_two_contexts_with_a_scaled_loss() -> None:
    options = {"contexts": 2, "precision": "16-mixed"}
    whole, _ = planned("mlp with dropout", **options)
    with pytest.raises(MXNetError, match="the smallest plan found takes") as error:
        planned("mlp with dropout", memory_budget=1000, **options)
    least, _ = planned("mlp with dropout", memory_budget=whole.peak - 1, **options)
    assert least.peak < whole.peak
    smallest = re.search(r"takes ([\d.]+) KiB", str(error.value))
    assert smallest is not None and float(smallest[1]) * 1024 <= least.peak * 1.001


@pytest.mark.parametrize("name", NETS)
def test_copies_wait_for_gradients(name: str) -> None:
    """After `fuse` no kernel of the forward is needed for what a copy waits for, and nothing waits in a circle."""
    graph, forward = ready(name)
    after = fuse(remat(graph, forward, [WHOLE] * len(forward.segments)))
    orders = [n for n in after.nodes() if n.op.name == "depends_on"]
    assert orders and all(len(n.src) > 1 for n in orders)


def test_the_gradient_of_a_norm_stays_one_kernel() -> None:
    """Its copies wait for the product that it reads, not for work of its own on that."""
    graph, forward = ready("transformer")

    def kernels(graph: Graph) -> int:
        return sum(n.op.name == "fused" and n.attrs["pattern"] == "rowwise" for n in fuse(graph).nodes())

    assert kernels(remat(graph, forward, [LIGHT] * len(forward.segments))) == kernels(graph)


@pytest.mark.parametrize("name", NETS)
def test_nothing_recomputed_is_the_same_graph(name: str) -> None:
    graph, forward = ready(name)
    assert remat(graph, forward, [KEEP] * len(forward.segments)) is graph


@pytest.mark.parametrize("how", [KEEP, WHOLE], ids=["kept", "whole"])
@pytest.mark.parametrize("name", NETS)
def test_activations_in_16_bits_move_gradients_a_little_and_the_forward_not_at_all(name: str, how: int) -> None:
    graph, forward = ready(name)
    after = remat(graph, forward, [how] * len(forward.segments), "bf16")
    assert any(n.dtype == "bf16" for n in after.nodes() if not isinstance(n.type, tuple))
    values = some_values(graph)
    (outputs, updates), (had, moved) = interpreter.run(after, values), interpreter.run(graph, values)
    for key in had:
        np.testing.assert_array_equal(outputs[key], had[key], key)
    for key in moved:
        step, wanted = updates[key] - values[key], moved[key] - values[key]
        assert np.linalg.norm(step - wanted) <= 0.02 * np.linalg.norm(wanted) + 1e-6, key


def test_activations_in_16_bits_take_less() -> None:
    for name in NETS:
        less, _ = planned(name, activations="bf16")
        assert less.scratch < planned(name)[0].scratch
        least, _ = planned(name, activations="bf16", remat="blocks")  # where a workspace may be the largest part
        assert least.scratch <= planned(name, remat="blocks")[0].scratch


def test_a_compiled_step_with_activations_in_16_bits() -> None:
    """Its first loss is that of the exact step; then it trains as that does."""
    losses = []
    for options in ({}, {"activations": "bf16"}):
        _, step = compiled("mlp with dropout", **options)
        mx.random.seed(5)
        losses.append([float(step(*batch("mlp with dropout")).asnumpy().mean()) for _ in range(30)])
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.05) and losses[1][-1] < losses[1][0]


def test_a_forward_is_cut_where_one_value_goes_on() -> None:
    _, forward = ready("transformer")
    assert len(forward.segments) >= 5  # two of each layer, and what comes after
    for segment in forward.segments[:-1]:
        assert len({n for n in segment.leaving if n.op.name != "reshape"}) == 1
    longer = forward.joined(2)
    assert sum(len(part.nodes) for part in longer.segments) == sum(len(part.nodes) for part in forward.segments)
    assert longer.segments[-1] == forward.segments[-1]


def test_the_slope_of_an_activation_is_computed_again_with_what_it_is_made_from() -> None:
    """Only gradients need the density in a gelu's slope: it belongs to the segment of the gelu, not to its forward."""
    graph, forward = ready("transformer")
    slopes = {n for part in forward.segments[:-1] for n in part.nodes if n.op.name == "normal_pdf"}
    assert len(slopes) == 2 and slopes <= set(graph.nodes())
    after = remat(graph, forward, [CHEAP] * len(forward.segments))
    assert not slopes & set(after.nodes())


def test_a_large_step_recomputes_what_takes_next_to_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def now(large: int, saved: float, unasked: float) -> Footprint:
        for name, value in (("LARGE", large), ("SAVED", saved), ("UNASKED", unasked)):
            monkeypatch.setattr(memory_search, name, value)
        return planned("transformer")[0]

    kept, _ = planned("transformer")
    less = now(kept.scratch, 0.01, 1.0)
    assert less.scratch <= kept.scratch * 0.99 and less.extra_time > 0
    assert kept == now(kept.scratch + 1, 0.01, 1.0) == now(kept.scratch, 0.9, 1.0) == now(kept.scratch, 0.01, 0.0)


@pytest.mark.parametrize("name", NETS)
def test_compiled_steps_train_alike(name: str) -> None:
    """Losses, parameters and running statistics of three steps; so dropout has drawn the same, and statistics moved
    once."""
    results = []
    for options in ({}, {"remat": "blocks"}):
        net, step = compiled(name, **options)
        mx.random.seed(5)
        losses = [step(*batch(name)).asnumpy() for _ in range(3)]
        found = {
            p.name.split("_", 1)[1] + str(i): p.data().asnumpy() for i, p in enumerate(net.collect_params().values())
        }
        results.append((losses, found, step.memory(*batch(name)).scratch))
    (losses, had, before), (again, has, after) = results
    assert after < before
    np.testing.assert_allclose(again, losses, rtol=2e-5, atol=2e-6)
    assert has.keys() == had.keys()
    for key in had:
        np.testing.assert_allclose(has[key], had[key], rtol=1e-3, atol=2e-5, err_msg=key)


MIXED: list[tuple[str, dict[str, Any]]] = [
    ("step", {"precision": "bf16-mixed", "clip_norm": 0.1}),
    ("step", {"precision": "16-mixed", "grad_req": "add"}),
    ("accumulate", {"precision": "bf16-mixed", "grad_req": "add"}),
    ("accumulate", {"precision": "16-mixed", "contexts": 2}),
]


@pytest.mark.parametrize(("mode", "options"), MIXED, ids=str)
def test_compiled_steps_of_16_bits_give_the_same_bits(mode: str, options: dict[str, Any]) -> None:
    """Losses, gradients that are added to, weights; with a scaled loss the first steps overflow and are left out."""
    results = []
    for more in ({}, {"remat": "blocks"}):
        net, step = compiled("mlp with dropout", **options, **more)
        mx.random.seed(5)
        x, y = batch("mlp with dropout")
        if "16-mixed" in options["precision"]:
            step.trainer.scaler.scale[:] = 2.0**24
        losses = []
        for _ in range(4):
            if mode == "step":
                losses.append(step(x, y))
            else:
                losses += [step.accumulate(x[:24], y[:24]), step.accumulate(x[24:], y[24:])]
                step.apply()
        parameters = net.collect_params().values()
        arrays = [a for p in parameters for a in (*p.list_data(), *(p.list_grad() if p.grad_req == "add" else ()))]
        results.append(([a.asnumpy() for a in (*losses, *arrays)], step.skipped, step.plan.scratch_bytes))
    (had, skipped, before), (has, left_out, after) = results
    assert skipped == left_out and (skipped > 0) == (options["precision"] == "16-mixed")
    assert mode == "accumulate" or after < before  # the last plan is that of `apply`, which runs no net
    for one, other in zip(has, had, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_budget_is_kept_with_no_more_recomputation_than_it_needs() -> None:
    whole, _ = planned("transformer")
    least, _ = planned("transformer", remat="blocks")
    assert least.peak < whole.peak and least.extra_time > 0
    budget = (whole.peak + least.peak) // 2
    found, step = planned("transformer", memory_budget=budget)
    assert least.peak <= found.peak <= budget and 0 < found.extra_time <= least.extra_time
    assert found.scratch == step.plan.scratch_bytes < whole.scratch
    assert planned("transformer", memory_budget=whole.peak)[0] == whole


def test_auto_spends_little_time() -> None:
    whole, _ = planned("convolutions with batch norm")
    found, _ = planned("convolutions with batch norm", remat="auto")
    assert found.peak <= whole.peak and found.extra_time <= 0.1


def test_a_gpt_takes_less_the_more_of_it_is_computed_again() -> None:
    """The small one of `gluongraph bench`, by its plans."""

    def found(remat: str | None) -> Footprint:
        step, (given, *_) = step_of(find("gpt-small"), remat=remat)
        with debug.override(backend="reference"):
            return step.memory(*given)

    kept, auto, least = map(found, (None, "auto", "blocks"))
    assert least.scratch <= 0.55 * kept.scratch and auto.scratch <= 0.7 * kept.scratch
    assert 0 == kept.extra_time < auto.extra_time <= 0.1 < least.extra_time < 0.3


def test_an_impossible_budget_is_refused_with_the_smallest_that_was_found() -> None:
    least, _ = planned("transformer", remat="blocks")
    with pytest.raises(
        MXNetError, match="memory_budget: 1000 bytes are too few; the smallest plan found takes"
    ) as error:
        planned("transformer", memory_budget=1000)
    assert str(least) in str(error.value) and f"at {__file__}" in str(error.value)


def test_what_predicts_is_not_touched_by_a_budget_that_fits() -> None:
    _, step = compiled("mlp with dropout", memory_budget="1GiB")
    x, _ = batch("mlp with dropout")
    with debug.override(backend="reference"):
        assert step.predict(x).shape == (64, 4)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"remat": "some"}, "remat is None, 'auto' or 'blocks', not 'some'"),
    ({"memory_budget": "many"}, "memory_budget='many' is no number of bytes"),
    ({"memory_budget": -1}, "memory_budget=-1 is no number of bytes"),
    ({"activations": "8bit"}, "activations is None or 'bf16', not '8bit'"),
    ({"memory_budget": "0GB"}, "memory_budget='0GB' is no number of bytes"),
    ({"remat": "auto", "memory_budget": "1GiB"}, "remat and memory_budget together"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        mx.compile(gluon.nn.Dense(2, in_units=2), **options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "wanted"), [(5, 5), ("5", 5), ("2GiB", 2**31), ("512 MiB", 2**29), ("1.5GB", 1_500_000_000), ("3k", 3000)]
)
def test_numbers_of_bytes(text: int | str, wanted: int) -> None:
    assert nbytes_of(text) == wanted


def test_a_kernel_behind_an_order_runs_when_what_it_waits_for_is_done() -> None:
    """`after` keeps a copy out of the kernels of the forward, and is nothing but a view in the plan."""
    x, w = ops.input("x", TensorType((64, 64))), ops.input("w", TensorType((64, 64)))

    def value(x: Node) -> Node:
        return ops.tanh(ops.matmul(x, w))

    first = ops.matmul(value(x), w)
    again = value(ops.depends_on(x, first))
    plan, _ = plan_of(Graph({"x": x, "w": w}, {"y": first * again}), {"x": "input", "w": "state"}, target("cpu"))
    assert [launch.label for launch in plan.launches] == ["matmul tanh", "matmul", "matmul tanh mul"]
