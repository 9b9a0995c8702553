"""Convolutions by Winograd's algorithm, against float64 numpy: edges, odd sizes, hard numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from gluongraph.codegen.contraction import conv
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.targets import TARGETS, target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.ops.blocked_layout import IN_BLOCKS, blocked
from gluongraph.ops.conv import CONV2D, DATA_GRAD, WEIGHT_GRAD
from gluongraph.runtime import loader

HOST = target()
assert isinstance(HOST, Cpu)
K = HOST.lanes
pytestmark = pytest.mark.skipif(K == 1, reason="this machine has no vectors of float32: images lie in no blocks here")
SAME = {"kernel": (3, 3), "padding": (1, 1), "blocks": True}
CASES = {
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
PLAIN = {"conv2d": CONV2D, "conv2d_data_grad": DATA_GRAD, "conv2d_weight_grad": WEIGHT_GRAD}
OPS = [*PLAIN]


def attrs(op: str, c: Conv) -> dict[str, Any]:
    """Of the op that it is."""
    how = {"stride": c.stride, "padding": c.padding, "dilation": c.dilation, "groups": c.groups}
    shape = {"conv2d_data_grad": (c.n, c.c, c.h, c.w), "conv2d_weight_grad": (c.o, c.c, *c.kernel)}
    return how | ({"shape": shape[op]} if op in shape else {})


def shapes(op: str, c: Conv) -> tuple[tuple[int, ...], ...]:
    """Of both operands and the result."""
    x, y, w = (c.n, c.c, c.h, c.w), (c.n, c.o, *c.out), (c.o, c.c, *c.kernel)
    x, y = (blocked(shape, K) if c.blocks else shape for shape in (x, y))
    return {"conv2d": (x, w, y), "conv2d_data_grad": (y, w, x), "conv2d_weight_grad": (x, y, w)}[op]


class Kernels:
    """All kernels of some convolutions, which add what they make to zeros, so that what is written twice shows."""

    def __init__(self, convs: dict[str, Conv], where: Any = HOST, algorithm: str = "winograd"):
        self.convs, self.cpu, self.algorithm = convs, where, algorithm
        made = [self._kernel(name, op) for name in convs for op in OPS]
        self.module = machine_code.build_kernels(made, where.tvm)

    def _kernel(self, name: str, op: str) -> Any:
        c, k = self.convs[name], tir.Kernel(f"{name}_{op}")
        first, second, made = (int(np.prod(shape)) for shape in shapes(op, c))
        a, b, y = k.param("a", first, "f32"), k.param("b", second, "f32"), k.param("y", made, "f32")
        space = k.param("space", self.workspace(name, op), "u8")

        def add(at: Any, value: Any) -> None:
            k.store(y, k.load(y, at, tir.lanes_of(value)) + value, at)

        def images(block: Any, channel: Any, row: Any, column: Any, value: Any) -> None:
            _, channels, height, width, lanes = shapes(op, c)[2]
            add(k.let((((block * channels + channel) * height + row) * width + column) * lanes), value)

        def weights(o: Any, q: Any, value: Any) -> None:
            add(k.let(o * c.q + q), value)

        def few(image: Any, channel: Any, pixel: Any, value: Any) -> None:
            _, channels, height, width = shapes(op, c)[2]
            add(k.let((image * channels + channel) * (height * width) + pixel), value)

        def pixels(buf: Any, which: int) -> Any:
            _, channels, height, width = shapes(op, c)[which]
            return lambda n, ch, p, lanes: k.load(buf, (n * channels + ch) * (height * width) + p, lanes)

        how = (self.cpu, space, self.algorithm)
        if c.blocks:
            conv.emit_blocked(k, op, c, "f32", a, b, weights if op == "conv2d_weight_grad" else images, *how)
        elif op == "conv2d_weight_grad":
            conv.emit_weight_grad(k, c, "f32", pixels(a, 0), pixels(b, 1), weights, *how)
        else:
            emit = conv.emit_forward if op == "conv2d" else conv.emit_data_grad
            emit(k, c, "f32", pixels(a, 0), lambda o, q, lanes: k.load(b, o * c.q + q, lanes), few, *how)
        return k.finish()

    def workspace(self, name: str, op: str) -> int:
        """Bytes of it."""
        c, how = self.convs[name], ("f32", self.cpu, self.algorithm)
        if c.blocks:
            return conv.blocked_workspace(op, c, *how)
        size = (conv.forward_workspace, conv.data_grad_workspace, conv.weight_grad_workspace)[OPS.index(op)]
        return size(c, *how)

    def run(self, name: str, op: str, a: Any, b: Any) -> Any:
        """The result; the workspace starts as NaNs."""
        function = self.module[f"{name}_{op}"]
        y = np.zeros(shapes(op, self.convs[name])[2], np.float32)
        function(*map(loader.view, (a, b, y, np.full(self.workspace(name, op), 255, np.uint8))))
        return y


def numbers(kind: str, random: np.random.Generator, shape: tuple[int, ...], columns: int) -> Any:
    """Small ones, far from 0, of all magnitudes, or with signs that change from column to column."""
    x = random.standard_normal(shape)
    if kind == "far":
        x += 100
    elif kind == "magnitudes":
        x *= np.exp(random.normal(0, 3, shape))
    elif kind == "signs":
        x = (1 + 0.1 * x) * np.cos(np.pi * np.indices(shape)[columns])
    return x.astype(np.float32)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(CASES)


def check(kernels: Kernels, name: str, op: str, kind: str = "small") -> None:
    """Right within 1e-5 of the largest result."""
    c, random = kernels.convs[name], np.random.default_rng(3)
    first, second, _ = shapes(op, c)
    columns = -2 if c.blocks else -1
    a, b = numbers(kind, random, first, columns), numbers("small", random, second, columns)
    want = (IN_BLOCKS if c.blocks else PLAIN)[op].numpy(a.astype("f8"), b.astype("f8"), **attrs(op, c))
    got = kernels.run(name, op, a, b)
    assert got.shape == want.shape and np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", CASES)
def test_shapes(kernels: Kernels, name: str, op: str) -> None:
    check(kernels, name, op)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["far", "magnitudes", "signs"])
@pytest.mark.parametrize("name", ["usual", "few"])
def test_hard_numbers(kernels: Kernels, name: str, kind: str, op: str) -> None:
    check(kernels, name, op, kind)


def test_small_caches_and_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of few rows, whose sums add up; pieces that own output channels."""
    monkeypatch.setattr("gluongraph.codegen.contraction.winograd_weights.SMALL", 0)
    names = ("usual", "few")
    kernels = Kernels({name: CASES[name] for name in names}, replace(HOST, l2=65536))
    for name in names:
        for op in OPS:
            check(kernels, name, op)


@pytest.mark.parametrize("algorithm", ["winograd", "images"])
def test_pieces_change_no_bit(algorithm: str) -> None:
    """More of them, for more threads: a sum has as many parts as before."""
    case, op, random = {"tall": CASES["tall"]}, "conv2d_weight_grad", np.random.default_rng(5)
    a, b, _ = (random.standard_normal(shape, np.float32) for shape in shapes(op, CASES["tall"]))
    many = replace(HOST, chunks=24)
    made = [Kernels(case, where, algorithm).run("tall", op, a, b) for where in (HOST, many)]
    assert np.array_equal(*made)


def test_threads_change_no_bit(kernels: Kernels) -> None:
    import tvm

    random = np.random.default_rng(5)
    for name, op in product(("usual", "few"), OPS):
        a, b, _ = (random.standard_normal(shape, np.float32) for shape in shapes(op, CASES[name]))
        made = []
        for threads in (1, 2):
            tvm.get_global_func("runtime.config_threadpool")(1, threads)
            made.append(kernels.run(name, op, a, b))
        assert made[0].tobytes() == made[1].tobytes()


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
