"""ONNX's own node tests: all of them eagerly, some compiled; with GG_ONNX_ALL=1 all of them compiled."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as models
import pytest
from onnx.reference import ReferenceEvaluator

import gluongraph as mx
from gluongraph import nd
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS
from gluongraph.onnx import report
from gluongraph.onnx.report import PASSED, REFUSED, WRONG, Outcome

TEXT = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text()
ELEMENTS = re.compile("INT16|INT4|INT2|FLOAT8|FLOAT4|STRING")  # of types that do not exist here
COMPILED = (
    "test_add", "test_globalaveragepool", "test_clip", "test_concat_2d_axis_0",
    "test_conv_with_strides_and_asymmetric_padding", "test_cumsum_1d_exclusive", "test_div",
    "test_einsum_batch_matmul", "test_gather_negative_indices", "test_gemm_all_attributes",
    "test_gru_with_initial_bias", "test_layer_normalization_2d_axis1", "test_logsoftmax_axis_1", "test_matmul_3d",
    "test_maxpool_2d_uint8", "test_mod_float_edge_cases_fmod_0_float32", "test_onehot_with_axis",
    "test_reduce_mean_keepdims_example", "test_reflect_pad",
    "test_resize_downsample_scales_cubic", "test_scatternd", "test_slice_neg_steps", "test_top_k",
    "test_training_dropout_zero_ratio", "test_where_example",
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> list[report.Case]:
    return report.cases()


@pytest.fixture(scope="module")
def outcomes(found: list[report.Case]) -> list[Outcome]:
    compiled = os.environ.get("GG_ONNX_ALL", "") not in ("", "0")
    return [report.run(case, compiled) for case in found]


def listed() -> list[str]:
    """The operators that docs/onnx.md says exporters emit."""
    part = re.search(r"## What exporters emit\n.*?\n\n(.*?)\n\n", TEXT, re.S)
    assert part
    return re.findall(r"\w+", part[1])


def test_no_result_is_wrong(outcomes: list[Outcome]) -> None:
    assert [f"{o.case.name}: {o.why}" for o in outcomes if o.kind == WRONG] == []


def test_three_quarters_pass(outcomes: list[Outcome]) -> None:
    counted = [o for o in outcomes if o.case.counts]
    assert sum(o.kind == PASSED for o in counted) >= 0.75 * len(counted)


def test_what_exporters_emit_passes(outcomes: list[Outcome]) -> None:
    operators = set(listed())
    assert len(operators) >= 100
    own = [o for o in outcomes if set(o.case.operators) <= operators and o.case.counts]
    assert {o.case.operators[0] for o in own} >= operators - {"Constant", "Dropout", "Upsample"} - WITHOUT_TESTS
    bad = [f"{o.case.name}: {o.why}" for o in own if o.kind == REFUSED and not ELEMENTS.search(o.why)]
    assert [b for b in bad if "no empty arrays" not in b] == []


WITHOUT_TESTS = {"GlobalLpPool", "RandomNormalLike", "RandomUniformLike"}


def test_what_is_refused_is_named(outcomes: list[Outcome]) -> None:
    """The operator that is refused, or that reads or makes what is refused."""
    for outcome in outcomes:
        whole = "opset" in outcome.why or "of no operator" in outcome.why  # about the model, or an input nobody reads
        if outcome.kind == REFUSED and outcome.case.counts and not whole:
            inner = {name.split("::")[-1] for name in outcome.case.operators}
            assert any(name in outcome.why for name in inner), f"{outcome.case.name}: {outcome.why}"


@pytest.mark.parametrize("kind", ["simple", "pytorch-operator", "pytorch-converted"])
def test_stored_models(kind: str) -> None:
    """Models that lie in the package as files, from old versions of PyTorch."""
    outcomes = [report.run(case) for case in report.stored(kind)]
    assert [f"{o.case.name}: {o.why}" for o in outcomes if o.kind == WRONG] == []
    refused = [o.why for o in outcomes if o.kind == REFUSED]
    assert all("opset 6" in why or "STRING" in why for why in refused) and len(refused) < len(outcomes) / 2


def test_light_models() -> None:
    for case in report.light():
        if case.name in ("light_inception_v1", "light_shufflenet", "light_squeezenet"):
            assert report.run(case).kind == PASSED, case.name


def test_wrong_numbers_of_a_light_model_are_wrong() -> None:
    """Its own error in float32 excuses what is ill-conditioned, and nothing else."""
    conditioned = {}
    for case in report.light():
        if case.name in ("light_shufflenet", "light_squeezenet"):
            ((given, wanted),) = case.data
            exact, moved = report.own_error(case.model, _named(case, given), 0)
            np.testing.assert_allclose(exact, wanted[0], rtol=1e-6)
            conditioned[case.name] = moved < 1e-9
            wrong = replace(case, data=[(given, [(each * 1.01).astype(np.float32) for each in wanted])])
            assert report.run(wrong).kind == WRONG or not conditioned[case.name]
    assert conditioned == {"light_shufflenet": True, "light_squeezenet": False}


def _named(case: report.Case, given: Sequence[Any]) -> dict[str, Any]:
    stored = {tensor.name for tensor in case.model.graph.initializer}
    return dict(zip([v.name for v in case.model.graph.input if v.name not in stored], given, strict=True))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(found: list[report.Case], name: str) -> None:
    (case,) = [c for c in found if c.name == name]
    outcome = report.run(case, compiled=True)
    assert outcome.kind == PASSED, outcome.why


def test_compiled_calls_reach_no_numpy_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once compiled, a call runs kernels: neither the ops' numpy meanings nor ONNX's reference are there to be run."""

    def unreachable(*args: Any, **how: Any) -> Any:
        raise AssertionError("numpy's meaning was reached")

    monkeypatch.setattr(ReferenceEvaluator, "__init__", unreachable)
    net = mx.onnx.load(models.cnn())
    step = mx.compile(net)
    x, y = (nd.array(models.random(2, 2, 6, 6, seed=k)) for k in range(2))
    expected = net(y).asnumpy()
    step.predict(x)
    for op in OPS.values():
        if op.numpy is not None:
            monkeypatch.setitem(op.__dict__, "numpy", unreachable)
    monkeypatch.setattr(interpreter, "evaluate", unreachable)
    monkeypatch.setattr(interpreter, "apply", unreachable)
    np.testing.assert_allclose(step.predict(y).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_documented_table_is_the_table() -> None:
    """docs/onnx.md lists every operator: `python -m gluongraph.onnx.report --operators`."""
    assert report.listing() in TEXT
