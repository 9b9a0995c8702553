"""What each op is in ONNX: its samples, exported alone, give what its numpy meaning gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import gluongraph as mx
from gluongraph import nd
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import UnsupportedError
from gluongraph.ir import interpreter
from gluongraph.ir.composite import results_of
from gluongraph.ir.graph import OPS, Graph, Op, TensorType
from gluongraph.onnx.export.prediction import standard
from gluongraph.ops import input as leaf
from gluongraph.ops.blocked_layout import IN_BLOCKS

# Ops of gradients, of random numbers, of several devices and of plans, with those of `passes/layout.py`: they are in no
# forward of a net that predicts.
ELSEWHERE = {
    "all_gather", "all_reduce", "allreduce", "bernoulli", "call", "depth_windows_grad", "dropout", "first_of", "fused",
    "gather_grad", "avg_pool2d_grad", "normal", "pack_codes", "put_rows", "random_bits", "random_word",
    "reduce_scatter", "round_by_chance", "uniform", "unpack_codes",
    *(op.name for op in IN_BLOCKS.values()),
}  # fmt: skip
SAMPLED = [
    op for op in OPS.values() if op.samples is not None and op.name not in ELSEWHERE and op.name != "get_tuple_element"
]


def samples(op: Op) -> list[Any]:
    assert op.samples is not None
    return list(op.samples(np.random.default_rng(0)))


def graph_of(op: Op, arrays: Any, attrs: dict[str, Any]) -> Graph:
    inputs = {f"x{k}": leaf(f"x{k}", TensorType(a.shape, dtype_name(a.dtype))) for k, a in enumerate(arrays)}
    made = op(*inputs.values(), **attrs)
    return Graph(inputs, {f"y{k}": n for k, n in enumerate(results_of(made))})


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_an_op_reads_back_as_what_it_is(op: Op) -> None:
    assert op.numpy is not None or op.body is not None
    for arrays, attrs in samples(op)[:3]:
        graph = graph_of(op, arrays, attrs)
        proto = standard(graph, None, {}, "op")
        onnx.checker.check_model(proto, full_check=True)
        net = mx.onnx.load(proto)
        made = net(*(nd.array(a, dtype=a.dtype) for a in arrays))
        expected = interpreter.evaluate(graph.results, dict(zip(graph.inputs.values(), arrays, strict=True)))
        for got, wanted in zip(made if isinstance(made, list) else [made], expected, strict=True):
            compare(got.asnumpy(), np.asarray(wanted))


def compare(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype and got.size == wanted.size
    low = is_float(dtype_name(wanted.dtype)) and wanted.dtype.itemsize == 2
    how = {"rtol": 2e-2, "atol": 2e-2} if low else {"rtol": 2e-5, "atol": 2e-6}
    np.testing.assert_allclose(got.reshape(wanted.shape).astype("f8"), wanted.astype("f8"), **how)


def test_ops_that_are_elsewhere_are_refused() -> None:
    for name in sorted(ELSEWHERE - {"call", "fused", "dropout", "allreduce", "avg_pool2d_grad", "put_rows"}):
        arrays, attrs = samples(OPS[name])[0]
        with pytest.raises(UnsupportedError, match=rf"export_onnx: {name}\("):
            standard(graph_of(OPS[name], arrays, attrs), None, {}, "op")
