"""Convolutions and their gradients as graphs of one public op, compiled with the algorithm that a setting names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from kernels import Case, Library

from gluongraph import ops
from gluongraph.codegen.contraction import conv
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.targets import target
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node, Op
from gluongraph.ops.blocked_layout import IN_BLOCKS, blocked
from gluongraph.ops.conv import CONV2D, DATA_GRAD, WEIGHT_GRAD

HOST = target()
assert isinstance(HOST, Cpu)
OPS: dict[str, Op] = {"conv2d": CONV2D, "conv2d_data_grad": DATA_GRAD, "conv2d_weight_grad": WEIGHT_GRAD}


@dataclass(frozen=True)
class ConvCase:
    """A convolution, the dtype of its operands, and what its kernels do: by which algorithm ("" is the default), and
    with which epilogue."""

    conv: Conv
    dtype: str = "f32"
    algorithm: str = ""
    epilogue: bool = False  # relu(result / 2 + residual) is stored, instead of the result


def attrs(op: str, c: Conv) -> dict[str, Any]:
    """The attributes of the op."""
    window = {"stride": c.stride, "padding": c.padding, "dilation": c.dilation, "groups": c.groups}
    shape = {"conv2d_data_grad": (c.n, c.c, c.h, c.w), "conv2d_weight_grad": (c.o, c.c // c.groups, *c.kernel)}
    return window | ({"shape": shape[op]} if op in shape else {})


def shapes(op: str, c: Conv) -> tuple[tuple[int, ...], ...]:
    """The shapes of both operands and of the result."""
    x, y, w = (c.n, c.c, c.h, c.w), (c.n, c.o, *c.out), (c.o, c.c // c.groups, *c.kernel)
    return {"conv2d": (x, w, y), "conv2d_data_grad": (y, w, x), "conv2d_weight_grad": (x, y, w)}[op]


OF_IMAGES = {"conv2d": (0, 2), "conv2d_data_grad": (0, 2), "conv2d_weight_grad": (0, 1)}  # operands, result: images


def into_blocks(op: str, c: Conv, position: int, array: Any, lanes: int) -> Any:
    """Return an operand or the result as it lies in memory: images in the NCHWn layout, if the convolution has it."""
    if not c.blocks or position not in OF_IMAGES[op]:
        return array
    n, *rest = array.shape
    return np.ascontiguousarray(np.moveaxis(array.reshape(n // lanes, lanes, *rest), 1, -1))


def taps(c: Conv) -> Iterator[tuple[int, int, Any]]:
    """For each tap: its place in the kernel, and the slices of padded input that it reads."""
    height, width = c.out
    for i in range(c.kernel[0]):
        for j in range(c.kernel[1]):
            top, left = i * c.dilation[0], j * c.dilation[1]
            rows = slice(top, top + (height - 1) * c.stride[0] + 1, c.stride[0])
            yield i, j, (..., rows, slice(left, left + (width - 1) * c.stride[1] + 1, c.stride[1]))


def reference(op: str, c: Conv, a: Any, b: Any) -> Any:
    """The result by numpy, from plain operands: the sum over taps of products of whole images."""
    groups, edge = c.groups, [(0, 0), (0, 0), (c.padding[0],) * 2, (c.padding[1],) * 2]
    padded = (c.n, groups, c.c // groups, c.h + 2 * c.padding[0], c.w + 2 * c.padding[1])
    kernel = (groups, c.o // groups, c.c // groups, *c.kernel)
    if op == "conv2d":
        x, w, y = np.pad(a, edge).reshape(padded), b.reshape(kernel), np.zeros((c.n, groups, c.o // groups, *c.out))
        for i, j, place in taps(c):
            y += np.einsum("ngchw,goc->ngohw", x[place], w[..., i, j])
        return y.reshape(c.n, c.o, *c.out)
    if op == "conv2d_data_grad":
        g, w, dx = a.reshape(c.n, groups, c.o // groups, *c.out), b.reshape(kernel), np.zeros(padded)
        for i, j, place in taps(c):
            dx[place] += np.einsum("ngohw,goc->ngchw", g, w[..., i, j])
        inside = dx[..., c.padding[0] : c.padding[0] + c.h, c.padding[1] : c.padding[1] + c.w]
        return inside.reshape(c.n, c.c, c.h, c.w)
    x, g, dw = np.pad(a, edge).reshape(padded), b.reshape(c.n, groups, c.o // groups, *c.out), np.zeros(kernel)
    for i, j, place in taps(c):
        dw[..., i, j] = np.einsum("ngchw,ngohw->goc", x[place], g)
    return dw.reshape(c.o, c.c // groups, *c.kernel)


Operands = Callable[[str, Conv], Sequence[Any]]


def fractions(op: str, c: Conv) -> Sequence[Any]:
    """Operands and a residual whose products are exact in 16 bits."""
    random = np.random.default_rng(3)
    return [random.integers(-99, 99, shape) / 64 for shape in shapes(op, c)]


class ConvKernels:
    """The kernels of some convolutions and of both their gradients, compiled in one module for a target."""

    def __init__(self, cases: Mapping[str, ConvCase], where: Cpu = HOST, names: Sequence[str] = tuple(OPS)):
        self.cases, self.cpu = cases, where
        self.graphs = {(name, op): self._graph(name, op) for name in cases for op in names}
        self.library = Library([*self.graphs.values()], where)

    def _graph(self, name: str, op: str) -> Case:
        case = self.cases[name]
        c, default = case.conv, conv.algorithms(op, case.conv, case.dtype, self.cpu)[0]
        types = [(blocked(s, self.cpu.lanes) if c.blocks and i in OF_IMAGES[op] else s, case.dtype)
                 for i, s in enumerate(shapes(op, c))]  # fmt: skip
        if case.dtype in ("f16", "bf16"):
            types[2] = types[2][0], "f32"
        setting = "" if case.algorithm == default else case.algorithm
        build = partial(self._build, op, case, types[2][1])
        return Case(f"{name} {op}", build, types if case.epilogue else types[:2], "conv", setting=setting)

    @staticmethod
    def _build(op: str, case: ConvCase, dtype: str, a: Node, b: Node, residual: Node | None = None) -> Node:
        how = attrs(op, case.conv) | ({"dtype": dtype} if dtype != case.dtype else {})
        result = (IN_BLOCKS if case.conv.blocks else OPS)[op](a, b, **how)
        return result if residual is None else ops.relu(result * 0.5 + residual)

    def run(self, name: str, op: str, values: Sequence[Any]) -> Any:
        """Return the result for operands, and a residual, that are given as plain float64 arrays."""
        case = self.cases[name]
        lanes, dtypes = self.cpu.lanes, [case.dtype, case.dtype, "f64" if case.dtype == "f64" else "f32"]
        memory = [
            into_blocks(op, case.conv, i, value, lanes).astype(numpy_dtype(dtype))
            for i, (value, dtype) in enumerate(zip(values, dtypes, strict=True))
        ]
        return self.library.run(self.graphs[name, op], memory if case.epilogue else memory[:2])[1][0]

    def check(self, name: str, op: str, operands: Operands = fractions, tolerance: float = 1e-5) -> None:
        """Raise AssertionError unless the result is that of numpy in float64, up to the tolerance of the largest."""
        case = self.cases[name]
        values = operands(op, case.conv)
        got, want = self.run(name, op, values), reference(op, case.conv, values[0], values[1])
        if case.epilogue:
            want = np.maximum(want * 0.5 + values[2], 0)
        want = into_blocks(op, case.conv, 2, want, self.cpu.lanes)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= tolerance * max(np.abs(want).max(), 1e-30)
