"""Rows of the table of ATen's operators by compiled code: some; with GG_ATEN_ALL=1 all of them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import aten_rows as rows  # noqa: E402
from aten_samples import SAMPLES  # noqa: E402

from gluongraph import ops, services  # noqa: E402
from gluongraph.dtypes import is_float  # noqa: E402
from gluongraph.ir.graph import Graph, Node  # noqa: E402
from gluongraph.ops.autodiff import gradients  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SOME = (
    "atan2.default", "bitwise_xor.Tensor", "clamp.Tensor", "conv_transpose3d.input", "cummax.default",
    "cumprod.default", "digamma.default", "embedding_bag.padding_idx", "erfinv.default", "fmod.Tensor",
    "grid_sampler_3d.default", "index_put.default", "lgamma.default", "linalg_cholesky.default",
    "linalg_norm.default", "logcumsumexp.default", "masked_scatter.default", "max_pool2d_with_indices.default",
    "median.default", "quantile.default", "scatter_reduce.two", "sort.default", "std.correction",
    "upsample_bicubic2d.vec", "xlogy.Tensor",
)  # fmt: skip
GROUP = 25  # of rows that are compiled as one graph
NAMES = sorted(SAMPLES) if os.environ.get("GG_ATEN_ALL", "") not in ("", "0") else sorted(SOME)
GROUPS = [NAMES[k : k + GROUP] for k in range(0, len(NAMES), GROUP)]
CLOSE = {"f64": 1e-9, "f32": 1e-4}  # 16 bits: 2e-2


def chosen(key: str) -> list[rows.Sample]:
    """The first sample, in float32, and the first one without floats."""
    first, *rest = SAMPLES[key]
    whole = [s for s in rest if not any(t.is_floating_point() for t in rows.tensors_of([s.args, s.kwargs]))]
    return [first.single() or first, *whole[:1]]


def add(key: str, number: int, sample: rows.Sample, outputs: dict[str, Node], env: dict[Any, Any]) -> None:
    """The results of a sample, and the gradients of their sum, as outputs of a graph."""
    expected = rows.as_list(rows.torch_operator(key)(*sample.args, **sample.kwargs))
    made, own = rows.build(key, sample.args, sample.kwargs, expected, prefix=f"{key}{number}")
    results = [n for n in made if isinstance(n, Node)]
    heads, floats = ([n for n in nodes if is_float(n.dtype)] for nodes in (results, own))
    found = gradients(heads, [ops.full(n.shape, 1.0, n.dtype) for n in heads], floats)
    for k, node in enumerate((*results, *(g for g in found if g is not None))):
        outputs[f"{key}{number}:{k}"] = node
    env.update(own)


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_compiled_rows(names: list[str]) -> None:
    outputs: dict[str, Node] = {}
    env: dict[Any, Any] = {}
    for key in names:
        for number, sample in enumerate(chosen(key)):
            add(key, number, sample, outputs, env)
    inputs = {n.attrs["name"]: n for n in env}
    made = services.get("lower")(Graph(inputs, outputs), dict.fromkeys(inputs, "input")).executor({})
    got = dict(zip(made.output_names, made([env[inputs[name]] for name in made.input_names]), strict=True))
    for name, want in zip(outputs, rows.evaluated(list(outputs.values()), env), strict=True):
        close = CLOSE.get(outputs[name].dtype, 2e-2)
        wide = [np.asarray(a).astype(np.float64) for a in (got[name], want)]
        np.testing.assert_allclose(*wide, rtol=close, atol=close, err_msg=name)
