"""Products of every layout, edge and dtype against float64 numpy; each element written once; threads change no bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gluongraph.codegen.contraction import gemm, gemm_strategy
from gluongraph.codegen.contraction.gemm_strategy import OperandKind
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import CompileError

HOST = target()
assert isinstance(HOST, Cpu)


def operand(k: tir.Kernel, name: str, batch: int, rows: int, cols: int, kind: OperandKind) -> gemm.Operand:
    """A matrix per batch element, stored with its contiguous index innermost."""
    buf = k.param(name, batch * rows * cols, kind.dtype)

    def read(b: Any, i: Any, j: Any, lanes: int) -> Any:
        return k.load(buf, b * (rows * cols) + (i * cols + j if kind.contiguous == "j" else j * rows + i), lanes)

    return gemm.Operand(read, kind)


def product(
    shape: tuple[int, int, int, int],
    a_kind: OperandKind,
    b_kind: OperandKind,
    where: Any = HOST,
    threads: tuple[int, ...] = (),
) -> list[Any]:
    """The product by the kernel, added into zeros (an element written twice shows), per number of threads; by numpy."""
    import tvm

    batch, m, n, kk = shape
    k = tir.Kernel("product")
    a, b = operand(k, "a", batch, m, kk, a_kind), operand(k, "b", batch, kk, n, b_kind)
    dtype = gemm_strategy.choose(batch, m, n, kk, a_kind, b_kind, where).dtype
    out = k.param("c", batch * m * n, dtype)
    need = gemm.workspace(batch, m, n, kk, a_kind, b_kind, where)
    space = k.param("space", max(need, 1), "u8")

    def write(bb: Any, i: Any, j: Any, value: Any) -> None:
        at = bb * (m * n) + i * n + j
        k.store(out, k.load(out, at, tir.lanes_of(value)) + value, at)

    gemm.emit(k, gemm.Gemm(batch, m, n, kk, a, b, write, where, space if need else None))
    function = machine_code.build_kernels([k.finish()], where.tvm)["product"]
    random = np.random.default_rng(1)
    left = random.integers(-99, 99, (batch, m, kk)) / 64
    right = random.integers(-99, 99, (batch, kk, n)) / 64
    if not dtype.startswith("f"):
        left, right = np.round(left * 8), np.round(right * 8)
    x, y = left.astype(numpy_dtype(a_kind.dtype)), right.astype(numpy_dtype(b_kind.dtype))
    stored = [
        np.ascontiguousarray(v.swapaxes(1, 2) if kind.contiguous == "i" else v).ravel()
        for v, kind in ((x, a_kind), (y, b_kind))
    ]
    results = []
    for number in threads or (0,):
        if number:
            tvm.get_global_func("runtime.config_threadpool")(1, number)
        result = tvm.runtime.tensor(np.zeros(batch * m * n, numpy_dtype(dtype)))
        function(*map(tvm.runtime.tensor, stored), result, tvm.runtime.tensor(np.full(max(need, 1), 255, "u1")))
        results.append(result.numpy().reshape(batch, m, n))
    return [*results, x.astype("f8") @ y.astype("f8")]


def check(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    assert np.abs(got - want).max() <= tolerance * max(np.abs(want).max(), 1e-30)


SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 37),
    (1, 1, 33, 5),
    (1, 5, 1, 40),
    (1, 2, 16, 16),
    (1, 7, 5, 3),
    (1, 16, 67, 31),
    (1, 8, 64, 128),
    (3, 13, 29, 17),
    (1, 61, 48, 83),
    (1, 131, 97, 101),
    (2, 150, 130, 67),
    (9, 4, 20, 20),
]
LAYOUTS = [("j", "j"), ("j", "i"), ("i", "j"), ("i", "i")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
def test_product(shape: tuple[int, int, int, int], layout: tuple[str, str]) -> None:
    check(*product(shape, OperandKind(layout[0]), OperandKind(layout[1])))


@pytest.mark.parametrize("dtypes", [("f64", "f64"), ("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16"), ("i32", "i32")])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
def test_other_dtypes(dtypes: tuple[str, str], layout: tuple[str, str]) -> None:
    kinds = [OperandKind(contiguous, dtype) for contiguous, dtype in zip(layout, dtypes, strict=True)]
    check(*product((2, 11, 21, 37), *kinds))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
def test_operands_that_are_computed(layout: tuple[str, str]) -> None:
    a, b = OperandKind(layout[0], plain=False), OperandKind(layout[1], plain=False)
    how = gemm_strategy.choose(1, 70, 600, 33, a, b, HOST)
    assert how.form == "inner" or (how.pack_a and how.pack_b)
    check(*product((1, 70, 600, 33), a, b))


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
def test_narrower_vectors(name: str, layout: tuple[str, str]) -> None:
    """Code for fewer and shorter registers, on any x86-64 that runs these tests."""
    narrow = target(name)
    if HOST.lanes < narrow.lanes:
        pytest.skip(f"this machine has no {name} instructions")
    check(*product((1, 37, 70, 65), OperandKind(layout[0]), OperandKind(layout[1]), narrow))


def test_panels_within_cache() -> None:
    """A long K makes several panels a piece: each is read back as it was packed."""
    small = replace(HOST, l2=1 << 16)
    check(*product((1, 90, 200, 300), OperandKind("j"), OperandKind("j"), small))
    check(*product((1, 90, 200, 300), OperandKind("i"), OperandKind("i"), small))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
def test_long_sums_in_several_passes(layout: tuple[str, str]) -> None:
    """The last of them shorter, and no whole vectors: what is packed by pieces, what is before, sums that wait."""
    a, b, shape = OperandKind(layout[0], plain=False), OperandKind(layout[1]), (2, 67, 150, 523)
    for batch in (1, 2):
        how = gemm_strategy.choose(batch, *shape[1:], a, b, HOST)
        assert how.pack_a and how.passes(523) == 3
        one, two, want = product((batch, *shape[1:]), a, b, threads=(1, 2))
        check(one, want)
        assert np.array_equal(one, two)
    check(*product((1, 150, 130, 523), a, b))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
def test_b_is_packed_once_for_all_pieces(layout: tuple[str, str]) -> None:
    """Where many rows pass over a B that stays in the second cache."""
    small = replace(HOST, l1=1 << 14, l2=1 << 18)
    a, b, shape = OperandKind(layout[0]), OperandKind(layout[1]), (1, 1030, 67, 130)
    assert gemm_strategy.choose(*shape, a, b, small).ahead
    one, two, want = product(shape, a, b, small, threads=(1, 2))
    check(one, want)
    assert np.array_equal(one, two)


def test_panels_are_packed_where_many_rows_pass_over_them() -> None:
    """Packing an element takes as long as many multiply-adds: with few rows B is read where it lies."""
    plain = OperandKind()
    packed = [gemm_strategy.choose(1, m, 256, 1024, plain, plain, HOST).pack_b for m in (8, 20, 48, 512, 2048)]
    assert packed == [False, False, False, True, True]


def test_threads_change_no_bit() -> None:
    for layout in LAYOUTS:
        one, two, _ = product((1, 97, 83, 113), OperandKind(layout[0]), OperandKind(layout[1]), threads=(1, 2))
        assert np.array_equal(one, two)


def test_workspace_is_checked() -> None:
    k = tir.Kernel("product")
    a, b = operand(k, "a", 1, 200, 300, OperandKind()), operand(k, "b", 1, 300, 400, OperandKind())
    with pytest.raises(CompileError, match="bytes of workspace"):
        gemm.emit(k, gemm.Gemm(1, 200, 400, 300, a, b, lambda *_: None, HOST))
