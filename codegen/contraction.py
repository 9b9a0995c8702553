"""Patterns "gemm" and "conv": a contraction whose finished elements pass through the group's elementwise work."""

from __future__ import annotations

import math
from collections.abc import Callable

from gluongraph.codegen import gemm
from gluongraph.codegen.expression import Expressions, reader
from gluongraph.codegen.gemm import Kind, Operand
from gluongraph.codegen.math import CpuAlgebra
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value, floordiv, floormod, lanes_of, ramp
from gluongraph.ir import Node
from gluongraph.plan import Candidate, Group

FLOPS = 1e11  # a guess for expected seconds; candidates of one group are compared, nothing else


def anchor(group: Group, names: tuple[str, ...]) -> Node | None:
    """The contraction of a group, if there is exactly one and its operands are inputs of the group."""
    found = [n for n in group.body.nodes() if n.op.name in names]
    if len(found) != 1 or any(s.op.name != "input" for s in found[0].src):
        return None
    shape = found[0].shape
    return found[0] if all(n.shape == shape for n in group.body.outputs.values()) else None


def epilogue(k: Kernel, group: Group, bindings: Bindings, finished: Node) -> Callable[[tuple[Value, ...], Expr], None]:
    """A function that takes an index and the contraction's value there, and stores the group's outputs.

    All outputs are computed before the first is stored: one may overwrite what another reads.
    """
    readers = {
        n: reader(k, buf, n.ty) for n, buf in zip(group.body.inputs.values(), bindings.inputs, strict=True)
    }

    def write(index: tuple[Value, ...], value: Expr) -> None:
        known = k.let(value)
        expressions = Expressions(k, group.body, {**readers, finished: lambda *_: known}, CpuAlgebra(k))
        lanes = vector_index(index, known)
        results = [expressions.at(n, lanes) for n in group.body.outputs.values()]
        for n, buf, result in zip(group.body.outputs.values(), bindings.outputs, results, strict=True):
            k.store(buf, result, flat(n.shape, index))

    return write


def flat(shape: tuple[int, ...], index: tuple[Value, ...]) -> Value:
    """Row-major position of an index."""
    at: Value = 0
    for d, i in zip(shape, index, strict=True):
        at = at * d + i
    return at


def vector_index(index: tuple[Value, ...], value: Expr) -> tuple[Value, ...]:
    """The index of all lanes of a value whose first element is at `index`."""
    return (*index[:-1], ramp(index[-1], lanes_of(value)))


def _claim_gemm(group: Group, cpu: Cpu) -> Candidate | None:
    if group.pattern != "gemm" or (product := anchor(group, ("matmul",))) is None:
        return None
    batch, m, n, kk = _extents(product)
    if min(batch, m, n, kk) < 1:
        return None
    a, b = _kinds(product)
    need = gemm.workspace(batch, m, n, kk, a, b, cpu)
    return Candidate("gemm", 2.0 * batch * m * n * kk / FLOPS, need)


def _extents(product: Node) -> tuple[int, int, int, int]:
    """batch, rows, columns of the result, length of the sum."""
    a = product.src[0].shape
    *leading, m, n = product.shape
    return math.prod(leading), m, n, a[-2] if product.attrs["ta"] else a[-1]


def _kinds(product: Node) -> tuple[Kind, Kind]:
    flags = (product.attrs["ta"], product.attrs["tb"])
    left, right = (
        Kind("i" if turned else "j", s.dtype) for s, turned in zip(product.src, flags, strict=True)
    )
    return left, right


def _emit_gemm(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    product = anchor(group, ("matmul",))
    assert product is not None
    batch, m, n, kk = _extents(product)
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    left, right = (
        Operand(_plain(k, memory[s], s, kind.contiguous), kind)
        for s, kind in zip(product.src, _kinds(product), strict=True)
    )
    store = epilogue(k, group, bindings, product)
    leading = product.shape[:-2]

    def write(at: Expr, i: Expr, j: Expr, value: Expr) -> None:
        store((*unflatten(at, leading), i, j), value)

    gemm.emit(k, batch=batch, m=m, n=n, kk=kk, a=left, b=right, write=write, cpu=cpu, workspace=bindings.workspace)


def unflatten(at: Value, shape: tuple[int, ...]) -> tuple[Value, ...]:
    """The index at a row-major position."""
    index: list[Value] = []
    for d in reversed(shape[1:]):
        index.append(floormod(at, d))
        at = floordiv(at, d)
    return (*([at] if shape else []), *reversed(index))


def _plain(k: Kernel, buf: Buf, s: Node, contiguous: str) -> Callable[[Value, Value, Value, int], Expr]:
    rows, columns = s.shape[-2:]

    def read(batch: Value, i: Value, j: Value, lanes: int) -> Expr:
        row, column = (i, j) if contiguous == "j" else (j, i)
        return k.load(buf, batch * (rows * columns) + row * columns + column, lanes)

    return read


GEMM = Rule("gemm", _claim_gemm, _emit_gemm)
