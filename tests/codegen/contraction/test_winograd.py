"""Convolutions by Winograd's algorithm, against float64 numpy: edges, odd sizes, hard numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from conv_kernels import HOST, OPS, ConvCase, ConvKernels, shapes

from gluongraph.codegen.contraction import conv
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.targets import TARGETS

K = HOST.lanes
pytestmark = pytest.mark.skipif(K == 1, reason="this machine has no vectors of float32: images lie in no blocks here")
SAME = {"kernel": (3, 3), "padding": (1, 1), "blocks": True}
CONVS = {
    "usual": Conv(2 * K, 13, 9, 16, 17, **SAME),
    "one": Conv(K, 1, 1, 1, 1, **SAME),
    "ragged": Conv(3 * K, 5, 6, 11, 6, **SAME),
    "bare": Conv(K, 3, 7, 9, 14, (3, 3), blocks=True),
    "far": Conv(K, 4, 3, 5, 2, (2, 3), padding=(4, 5), blocks=True),
    "line": Conv(K, 12, 4, 8, 5, (1, 3), padding=(0, 1), blocks=True),
    "four": Conv(K, 5, 3, 7, 6, (2, 4), padding=(1, 2), blocks=True),
    "five": Conv(2 * K, 6, 6, 8, 7, (5, 5), blocks=True),
    "tall": Conv(9 * K, 4, 5, 8, 4, (5, 3), padding=(2, 1), blocks=True),
    # Few images, channels in vectors: weights in several chunks, a rest of panels and tiles.
    "few": Conv(3, 6 * K, 9, 7, 5 * K, (3, 3), padding=(1, 1)),
    "few, bare": Conv(2, K, 6, 8, K, (3, 3)),
    "few, far": Conv(1, K, 2, 5, 2 * K, (3, 3), padding=(2, 0)),
}
CASES = {name: ConvCase(c, algorithm="winograd") for name, c in CONVS.items()}
CASES |= {f"{name}, epilogue": replace(CASES[name], epilogue=True) for name in ("usual", "few")}


def numbers(kind: str, op: str, c: Conv) -> Sequence[Any]:
    """Operands and a residual; the first operand small, far from 0, of all magnitudes, or with signs that change from
    column to column."""
    random = np.random.default_rng(3)
    x, *others = (random.standard_normal(shape) for shape in shapes(op, c))
    if kind == "far":
        x += 100
    elif kind == "magnitudes":
        x *= np.exp(random.normal(0, 3, x.shape))
    elif kind == "signs":
        x = (1 + 0.1 * x) * np.cos(np.pi * np.indices(x.shape)[-1])
    return [each.astype(np.float32).astype(np.float64) for each in (x, *others)]


@pytest.fixture(scope="module")
def kernels() -> ConvKernels:
    return ConvKernels(CASES)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", CASES)
def test_shapes(kernels: ConvKernels, name: str, op: str) -> None:
    kernels.check(name, op, partial(numbers, "small"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["far", "magnitudes", "signs"])
@pytest.mark.parametrize("name", ["usual", "few"])
def test_hard_numbers(kernels: ConvKernels, name: str, kind: str, op: str) -> None:
    kernels.check(name, op, partial(numbers, kind))


def test_small_caches_and_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of few rows, whose sums add up; chunks that own output channels."""
    monkeypatch.setattr("gluongraph.codegen.contraction.winograd_weights.SMALL", 0)
    names = ("usual", "few")
    kernels = ConvKernels({name: CASES[name] for name in names}, replace(HOST, l2=65536))
    for name, op in product(names, OPS):
        kernels.check(name, op, partial(numbers, "small"))


@pytest.mark.parametrize("algorithm", ["winograd", "images"])
def test_chunks_change_no_bit(algorithm: str) -> None:
    """More of them, for more threads: a sum has as many parts as before."""
    case, op = ConvCase(CONVS["tall"], algorithm=algorithm), "conv2d_weight_grad"
    results = [
        ConvKernels({"tall": case}, where, [op]).run("tall", op, numbers("small", op, case.conv))
        for where in (HOST, replace(HOST, chunks=24))
    ]
    assert np.array_equal(*results)


def test_threads_change_no_bit(kernels: ConvKernels) -> None:
    for name, op in product(("usual", "few"), OPS):
        results = []
        for threads in (1, 2):
            tvm.get_global_func("runtime.config_threadpool")(1, threads)
            results.append(kernels.run(name, op, numbers("small", op, CONVS[name])))
        assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize(("on", "many"), [("x86-64-v4", 256), ("x86-64-v3", 512), ("x86-64", 1024)])
def test_which_layers_it_is_for(on: str, many: int) -> None:
    """By the target, whatever this machine is; `many` channels by as many no longer fit beside each other."""
    cpu = TARGETS[on]
    assert cpu is not None
    layer = Conv(4 * cpu.lanes, 16, 32, 32, 16, **SAME)

    def first(c: Conv) -> set[str]:
        return {conv.algorithms(op, c, "f32", cpu)[0] for op in OPS}

    assert first(layer) == first(replace(layer, c=64, o=64, h=8, w=8)) == {"winograd"}
    assert first(replace(layer, c=many // 2, o=many // 2)) == {"winograd"}
    assert first(replace(layer, c=many, o=many)) == {"winograd", "images"}
    few, narrow, badly_covered = replace(layer, c=3), replace(layer, w=4), replace(layer, w=9)
    assert first(few) == first(narrow) == first(badly_covered) == {"images"}
    lenet = Conv(4 * cpu.lanes, 20, 12, 12, 50, (5, 5), blocks=True)
    assert [conv.algorithms(op, lenet, "f32", cpu)[0] for op in OPS] == ["winograd", "images", "winograd"]
    for other in ({"stride": (2, 1)}, {"dilation": (1, 2)}, {"groups": 2}, {"kernel": (3, 7)}):
        assert all(conv.algorithms(op, replace(layer, **other), "f32", cpu) == ["images"] for op in OPS)


def test_which_layers_of_few_images_it_is_for() -> None:
    cpu, layer = TARGETS["x86-64-v4"], Conv(8, 128, 16, 16, 128, (3, 3), padding=(1, 1))

    def first(c: Conv) -> list[str]:
        return [conv.algorithms(op, c, "f32", cpu)[0] for op in OPS]

    assert first(layer) == first(replace(layer, n=1)) == first(replace(layer, h=8, w=8)) == ["winograd"] * 3
    assert first(replace(layer, h=4, w=4)) == ["bands", "bands", "winograd"]  # few pixels
    assert first(replace(layer, h=5, w=5)) == ["channels"] * 3  # badly covered
    for other in ({"stride": (2, 2)}, {"dilation": (2, 2)}, {"groups": 4}, {"kernel": (5, 5)}, {"c": 40}, {"n": 32}):
        assert "winograd" not in first(replace(layer, **other))
    assert all("winograd" not in conv.algorithms(op, layer, "bf16", cpu) for op in OPS)
