"""Products of 16-bit operands: in tiles or vectors of pairs where the machine has them, else with float32 beneath."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.codegen.contraction import gemm_amx
from gluongraph.codegen.contraction.gemm_strategy import OperandKind
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.compiler.lower import lower
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ops.matmul import MATMUL

SHAPE = (2, 33, 150, 97)  # batch, m, n, k: a rest everywhere, an odd k
WIDE = (2, 18, 150, 97)  # so few rows that the product is computed turned, where k runs along the columns of B
LONG = (1, 40, 130, 6000)  # more columns than a stripe has, and few rows
WHOLE = (2, 64, 70, 96)  # tiles of A are read where it lies
BROAD = (1, 90, 600, 97)  # more columns than rows: pieces have some of them, and copy what they need of B


def products(dtype: str, batch: int, m: int, n: int, kk: int) -> Graph:
    """relu of products, each operand both ways round; rounded and as summed."""
    inputs: dict[str, Node] = {}
    outputs: dict[str, Node] = {}
    for number, (ta, tb) in enumerate(itertools.product((False, True), repeat=2)):
        a, b = ((batch, kk, m) if ta else (batch, m, kk)), ((batch, n, kk) if tb else (batch, kk, n))
        for name, shape in ((f"a{number}", a), (f"b{number}", b)):
            inputs[name] = ops.input(name, TensorType(shape if batch > 1 else shape[1:], dtype))
        wide = {"dtype": "f32"} if number % 2 else {}
        outputs[f"y{number}"] = ops.relu(MATMUL(inputs[f"a{number}"], inputs[f"b{number}"], ta=ta, tb=tb, **wide))
    return Graph(inputs, outputs)


def check(graph: Graph, on: str) -> None:
    """Compiled for a target as in numpy."""
    rng = np.random.default_rng(0)
    given = {k: rng.normal(size=n.shape).astype(numpy_dtype(n.dtype)) for k, n in graph.inputs.items()}
    runner: Any = lower(graph, dict.fromkeys(graph.inputs, "input"), on=target(on)).executor({})
    found = dict(zip(runner.output_names, runner([given[k] for k in runner.input_names]), strict=True))
    for name, want in interpreter.run(graph, given)[0].items():
        exact, got = (np.asarray(x, np.float64) for x in (want, found[name]))
        rounding = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}[graph.outputs[name].dtype]
        assert np.abs(got - exact).max() <= rounding * np.abs(exact).max(), (name, graph.outputs[name])


@pytest.mark.skipif(not target() or not target().tiles, reason="this machine has no tiles")
def test_tiles() -> None:
    cpu = target()
    assert cpu is not None
    kind = OperandKind(dtype="bf16")
    assert gemm_amx.is_profitable(*SHAPE, kind, kind, cpu)
    check(products("bf16", *SHAPE), "cpu")
    check(products("bf16", *WIDE), "cpu")
    check(products("bf16", *LONG), "cpu")
    check(products("bf16", *BROAD), "cpu")
    check(products("bf16", *WHOLE), "cpu")
    check(products("bf16", 1, 32, 512, 64), "cpu")


@pytest.mark.skipif("avx512_bf16" not in cpu_flags(), reason="this machine has no AVX512-BF16")
def test_vectors_of_pairs() -> None:
    check(products("bf16", *SHAPE), "avx512-bf16")
    check(products("bf16", *WIDE), "avx512-bf16")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.skipif(not cpu_flags().issuperset(TARGETS["x86-64-v3"].needs), reason="this machine has no AVX2")
def test_float32_beneath_on_avx2(dtype: str) -> None:
    check(products(dtype, 1, 33, 50, 45), "x86-64-v3")


def test_what_is_no_product_for_tiles() -> None:
    cpu = TARGETS["sapphirerapids"]
    assert cpu is not None
    bf16, f16, f32 = (OperandKind(dtype=dtype) for dtype in ("bf16", "f16", "f32"))
    assert gemm_amx.is_profitable(1, 64, 64, 64, bf16, bf16, cpu)
    assert not gemm_amx.is_profitable(1, 64, 64, 64, f16, f16, cpu)
    assert not gemm_amx.is_profitable(1, 64, 64, 64, f32, f32, cpu)
    assert not gemm_amx.is_profitable(1, 64, 8, 640, bf16, bf16, cpu)  # a tile would be half empty
    assert not gemm_amx.is_profitable(1, 16, 16, 16, bf16, bf16, cpu)  # too little work to copy for
    other = TARGETS["x86-64-v4"]
    assert other is not None
    assert not gemm_amx.is_profitable(1, 64, 64, 64, bf16, bf16, other)
