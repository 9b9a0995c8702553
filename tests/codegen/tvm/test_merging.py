"""Kernels that differ in integers only are one function, and compute what they compute by themselves, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import compiled

import gluongraph as mx
from gluongraph.codegen import build
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm.merging import SMALL, Merged, merge
from gluongraph.codegen.tvm.tir import Kernel, floordiv, floormod, name_of, ramp, splat
from gluongraph.compiler.lower import compile_graph
from gluongraph.ir.graph import Graph
from gluongraph.runtime import loader

LANES = 16
DIVISORS = (5, 7, 16, 17, 60, 64, 992, 1000, 65535, 65536, 65537, 2**31 - 1)
EDGES = (0, 1, 4, 5, 6, 15, 16, 17, 991, 992, 993, 2**31 - 1, 2**31 - 2, 2**30)


def _scaled(name: str, rows: int, columns: int) -> Kernel:
    """y[i, j] = x[i, j] * scale[j]: the sizes are extents, strides, and the divisor that gives j."""
    k = Kernel(name)
    size = rows * columns
    x, scale, y = k.param("x", size, "f32"), k.param("scale", columns, "f32"), k.param("y", size, "f32")
    with k.loop(rows, "parallel") as row, k.loop(columns) as column:
        at = row * columns + column
        k.store(y, k.load(x, at) * k.load(scale, floormod(at, columns)), at)
    return k


def test_kernels_of_different_sizes_are_one_function() -> None:
    sizes = {"a": (20, 48), "b": (24, 992), "c": (1000, 17), "d": (20, 48)}
    (merged,) = merge([_scaled(name, *size) for name, size in sizes.items()])
    assert [name_of(kernel) for kernel in merged.kernels] == list("abcd")
    kernels = compiled([_scaled(name, *size) for name, size in sizes.items()], target())
    rng = np.random.default_rng(0)
    for name, (rows, columns) in sizes.items():
        x, scale = rng.standard_normal((rows, columns), np.float32), rng.standard_normal(columns, np.float32)
        got = np.full_like(x, np.nan)
        kernels[name](*map(loader.view, (x, scale, got)))
        np.testing.assert_array_equal(got, x * scale)


def _divided(name: str, divisor: int, count: int) -> Kernel:
    k = Kernel(name)
    x, quotients, remainders = (k.param(each, count, "i32") for each in ("x", "quotients", "remainders"))
    with k.loop(count) as i:
        value = k.load(x, i)
        k.store(quotients, floordiv(value, divisor), i)
        k.store(remainders, floormod(value, divisor), i)
    return k


def test_division_by_a_parameter_is_exact_for_all_dividends() -> None:
    rng = np.random.default_rng(1)
    near = [d * factor + step for d in DIVISORS for factor in (1, 2, 3, 1000) for step in (-1, 0, 1)]
    positive = np.array([*EDGES, *(v for v in near if v < 2**31), *rng.integers(0, 2**31, 1000)], np.int64)
    x = np.concatenate([positive, -positive, [-(2**31)]]).astype(np.int32)
    assert len(merge([_divided(f"by_{d}", d, x.size) for d in DIVISORS])) == 1
    kernels = compiled([_divided(f"by_{d}", d, x.size) for d in DIVISORS], target())
    for divisor in DIVISORS:
        quotients, remainders = np.empty_like(x), np.empty_like(x)
        kernels[f"by_{divisor}"](*map(loader.view, (x, quotients, remainders)))
        np.testing.assert_array_equal(quotients, x.astype(np.int64) // divisor)
        np.testing.assert_array_equal(remainders, x.astype(np.int64) % divisor)


def _summed(
    name: str, extent: int = 100, local: int = 64, divisor: int = 3, stride: int = 1, offset: int = 9, row: int = 50
) -> Kernel:
    """Each integer is where it must be a constant, but for `offset`, and for large extents."""
    k = Kernel(name)
    x, y = k.param("x", 1 << 20, "f32"), k.param("y", LANES, "f32")
    memory = k.local("memory", local, "f32")
    k.store(memory, splat(0.0, LANES), 0)
    with k.loop(extent) as i:
        at = floordiv(ramp(i, LANES), splat(divisor, LANES, "i32"))
        value = k.load(x, ramp(i * 4 + offset, LANES, stride)) + k.load(x, at)
        value = value + k.load(x, (i + 3) * row + i)
        k.store(memory, k.load(memory, 0, LANES) + value, 0)
    k.store(y, k.load(memory, 0, LANES), 0)
    return k


@pytest.mark.parametrize(
    ("first", "second", "functions"),
    [
        ({}, {}, 1),
        ({"extent": 100}, {"extent": 101}, 1),
        ({"extent": SMALL - 1}, {"extent": SMALL}, 2),
        ({"extent": SMALL}, {"extent": SMALL + 1}, 2),
        ({"offset": SMALL + 1}, {"offset": SMALL + 2}, 1),
        ({"offset": SMALL - 1}, {"offset": SMALL}, 2),
        *(({"offset": small}, {"offset": SMALL + 5}, 2) for small in range(SMALL + 1)),
        ({"local": 64}, {"local": 32}, 2),
        ({"divisor": 6}, {"divisor": 7}, 2),
        ({"stride": 8}, {"stride": 9}, 2),
        ({"row": 50}, {"row": 51}, 2),
    ],
)
def test_what_llvm_needs_as_constants_stays_constant(
    first: dict[str, int], second: dict[str, int], functions: int
) -> None:
    merged = merge([_summed("a", **first), _summed("b", **second)])
    assert len(merged) == functions
    assert [len(each.kernels) for each in merged] == ([2] if functions == 1 else [0, 0])


def test_other_operations_are_other_functions() -> None:
    def kernel(name: str, halves: bool) -> Kernel:
        k = Kernel(name)
        x, y = k.param("x", 64, "f32"), k.param("y", 64, "f32")
        with k.loop(64) as i:
            k.store(y, k.load(x, i) * (0.5 if halves else 2.0), i)
        return k

    halves, doubles = merge([kernel("a", True), kernel("b", False), kernel("c", True)])
    assert [name_of(each) for each in halves.kernels] == ["a", "c"]
    assert name_of(doubles.function) == "b"


def test_a_kernel_alone_keeps_its_integers() -> None:
    (merged,) = merge([_scaled("alone", 20, 48)])
    assert "range(48)" in merged.function.script() and not merged.kernels


def test_a_plan_without_kernels_has_an_entry_point() -> None:
    graph = Graph({}, {})
    assert list(compile_graph(graph, "nothing")({})[0]) == []


class _Dense(mx.gluon.nn.HybridBlock):
    """Each layer's input is what all before it have made, as in DenseNet: many widths."""

    def __init__(self, layers: int, growth: int):
        super().__init__()
        self.layers = [self._layer(growth) for _ in range(layers)]
        for i, layer in enumerate(self.layers):
            self.register_child(layer, f"layer{i}")
        self.head = mx.gluon.nn.Dense(10)

    @staticmethod
    def _layer(growth: int) -> mx.gluon.nn.HybridSequential:
        layer = mx.gluon.nn.HybridSequential()
        layer.add(mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"), mx.gluon.nn.Conv2D(growth, 3, padding=1))
        return layer

    def forward(self, x: mx.nd.NDArray) -> mx.nd.NDArray:
        for layer in self.layers:
            x = mx.nd.concat(x, layer(x), dim=1)
        return self.head(x.mean((2, 3)))


def _weights_after_steps() -> list[np.ndarray]:
    """Whose kernels can be called by themselves, too."""
    mx.random.seed(3)
    net = _Dense(layers=4, growth=16)
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    step = mx.compile(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 160, 6, 6), np.float32), rng.integers(0, 10, 4).astype(np.float32)
    for _ in range(3):
        step(x, y)
    weights = [p.data().asnumpy() for p in net.collect_params().values()]
    assert {row.kernel for row in step.profile(x, y, repeat=1, roofline=False)} == set(step.plan.kernels)
    return weights


def test_a_step_computes_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    functions: list[Merged] = []

    def noted(kernels: list[Kernel]) -> list[Merged]:
        functions.extend(made := merge(kernels))
        return made

    def alone(kernels: list[Kernel]) -> list[Merged]:
        return [Merged(kernel.finish()) for kernel in kernels]

    results = []
    for number, merging_by in enumerate((noted, alone)):
        monkeypatch.setenv("GG_CACHE", str(tmp_path / str(number)))
        monkeypatch.setattr(build, "merge", merging_by)
        results.append(_weights_after_steps())
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
    kernels = sum(max(len(each.kernels), 1) for each in functions)
    assert len(functions) < 0.7 * kernels, (len(functions), kernels)
