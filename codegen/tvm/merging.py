"""Function merging: kernels that differ in integers only are compiled once, with those integers as parameters.

Layers of a net differ in their numbers of channels and in their sizes. Their kernels have the same loops, with other
extents, strides and offsets. What LLVM takes for each of them is most of the time of a first step, so a class of such
kernels is one function, which they call with the integers in which they differ. Integers that they have in common stay
constants, and so do those that LLVM needs as constants: small ones; strides of rows; lanes, strides and shuffles of
vectors; arguments of intrinsics; sizes of local buffers. A division by an integer that differs is a multiplication by
its reciprocal, which is what LLVM makes of divisions by constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph.codegen.tvm.machine_code import forwarding
from gluongraph.codegen.tvm.tir import (
    Expr,
    Kernel,
    PrimFunc,
    const,
    index,
    lanes_of,
    name_of,
    tirx,
    tvm,
    tvm_dtype,
    tvm_ffi,
)

SMALL = 4  # integers up to this stay constants: steps of windows, offsets between rows, loops that LLVM unrolls
MASK = SMALL + 1  # what all others are replaced by in comparisons
ADDRESS = "tirx.tvm_access_ptr"
Callback = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Merged:
    """Kernels that have become one function: it, and the kernels, which call it. One that differs from all others is
    itself the function. `size` is the number of names in each."""

    function: PrimFunc
    kernels: tuple[PrimFunc, ...] = ()
    size: int = 0

    @property
    def functions(self) -> tuple[PrimFunc, ...]:
        """All that is to be compiled."""
        return (self.function, *self.kernels)


def merge(kernels: Sequence[Kernel]) -> list[Merged]:
    """Finish kernels, and merge those that differ in integers only.

    Results are the same to the bit: neither the order of operations nor their operands change.
    """
    by_size: dict[int, list[PrimFunc]] = {}
    for kernel in kernels:
        by_size.setdefault(kernel.size, []).append(kernel.finish())
    return [merged for size, functions in by_size.items() for merged in _merged(functions, size)]


def _merged(functions: Sequence[PrimFunc], size: int) -> list[Merged]:
    """Merge kernels of one size."""
    if len(functions) == 1:  # the comparison takes half as long as what has made the kernel
        return [Merged(functions[0], size=size)]
    classes: dict[Any, list[tuple[PrimFunc, list[int]]]] = {}
    for function in functions:
        integers = _Integers()
        form = tvm_ffi.StructuralKey(integers.replaced(function))
        classes.setdefault(form, []).append((function, integers.found))
    return [Merged(*_class(members), size=size) for members in classes.values()]


def _class(members: Sequence[tuple[PrimFunc, list[int]]]) -> tuple[PrimFunc, tuple[PrimFunc, ...]]:
    """Return the function of a class, and its kernels, which call it; only the function if it is the only kernel."""
    first, _ = members[0]
    if len(members) == 1:
        return first, ()
    parameters = _Parameters(list(zip(*(found for _, found in members), strict=True)))
    name, tensors = f"{name_of(first)}_merged", len(first.params)
    function = parameters.function(first, name)
    names = [name_of(kernel) for kernel, _ in members]
    kernels = [forwarding(kernel, name, tensors, parameters.values(i)) for i, kernel in enumerate(names)]
    return function, tuple(kernels)


class _Integers:
    """Replaces the integers of a kernel that may become parameters, in the order of the code."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def replaced(self, function: PrimFunc) -> PrimFunc:
        """Return the function without its name, and with the integers replaced."""
        callbacks: list[tuple[Any, Callback]] = [
            (tirx.IntImm, self._integer),
            (tvm.ir.TensorLoad, self._load),
            (tirx.FloorDiv, self._division),
            (tirx.FloorMod, self._division),
            (tirx.Ramp, lambda x, to: tirx.Ramp(to.mutate(x.base), x.stride, x.lanes)),
            (tirx.Broadcast, lambda x, to: tirx.Broadcast(to.mutate(x.value), x.lanes)),
            (tirx.Shuffle, lambda x, to: tirx.Shuffle([to.mutate(v) for v in x.vectors], x.indices)),
            (tvm.ir.Call, self._call),
            (tirx.AllocBuffer, self._local_buffer),
            (tirx.BufferType, self._size),
        ]
        return tvm_ffi.structural_mutate(function.without_attr("global_symbol"), callbacks)

    def number(self, value: int) -> Expr:
        """Return what stands for the next integer: here the same for all."""
        self.found.append(value)
        return index(MASK)

    def divided(self, x: Any, a: Expr, divisor: int) -> Expr:
        """Return what stands for the division or remainder x, by the next integer, of a."""
        self.found.append(divisor)
        return type(x)(a, index(MASK))

    def _integer(self, x: Any, _: Any) -> Expr:
        value = x.value
        return x if -SMALL <= value <= SMALL or x.ty.dtype != "int32" else self.number(value)

    def _load(self, x: Any, to: Any) -> Expr:
        """Leave the stride of rows that are read element by element, `(row + 3) * stride + k`: constants are parts of
        addresses, while products of a parameter take a register each. 1x1 convolutions took 1.3 times as long."""
        (at,) = x.indices
        if not (isinstance(at, tirx.Add) and isinstance(at.a, tirx.Mul) and isinstance(at.a.a, tirx.Add)):
            return to.default_mutate(x)
        rows, stride = at.a.a, at.a.b
        if not isinstance(rows.b, tirx.IntImm) or not isinstance(stride, tirx.IntImm):
            return to.default_mutate(x)
        return tirx.BufferLoad(to.mutate(x.source), [to.mutate(rows) * stride + to.mutate(at.b)])

    def _division(self, x: Any, to: Any) -> Expr:
        if lanes_of(x) > 1:
            return type(x)(to.mutate(x.a), x.b)
        if isinstance(x.b, tirx.IntImm) and x.b.value > SMALL:
            return self.divided(x, to.mutate(x.a), x.b.value)
        return to.default_mutate(x)

    def _call(self, x: Any, to: Any) -> Expr:
        args = [a if isinstance(a, tirx.IntImm) else to.mutate(a) for a in x.args]
        if x.op.name == ADDRESS:  # (type, buffer, offset, extent, access): the extent is for checks that TVM left out
            args[2:4] = to.mutate(x.args[2]), index(1)
        return tvm.ir.Call(x.op, args, x.attrs, ret_ty=x.ty)

    def _local_buffer(self, x: Any, to: Any) -> Any:
        to.var_remap_set(x.buffer, x.buffer)
        return x

    def _size(self, x: Any, to: Any) -> Any:
        """Arguments and views of memory have one size in all kernels: it means nothing in their code."""
        rest = (x.strides, x.elem_offset, x.data_alignment, x.offset_factor, x.layout, x.allocated_addr)
        return tirx.BufferType(x.dtype, x.storage_scope, [index(1)], *rest)


class _Parameters(_Integers):
    """Replaces the integers in which the kernels of a class differ by parameters, and puts the others back.

    Args:
        columns: for each integer in the order of the code, its value in each kernel.
    """

    def __init__(self, columns: Sequence[tuple[int, ...]]):
        super().__init__()
        self._columns = iter(columns)
        self._made: dict[tuple[str, tuple[int, ...]], Expr] = {}  # parameters, by dtype and values in each kernel
        self._divides = False

    def function(self, first: PrimFunc, name: str) -> PrimFunc:
        """Return the function of the class, by its first kernel."""
        made = self.replaced(first)
        body = tirx.AttrStmt(index(0), "pragma_import_llvm", tvm.ir.StringImm(DIVIDE), made.body)
        params = [*made.params, *self._made.values()]
        attrs = {**dict(made.attrs.items()), "global_symbol": name}
        return tirx.PrimFunc(params, body if self._divides else made.body).with_attrs(attrs)

    def values(self, kernel: int) -> tuple[int, ...]:
        """Return the integers that a call of one of the kernels passes."""
        return tuple(values[kernel] for _, values in self._made)

    def number(self, value: int) -> Expr:
        """Return a constant, or the parameter."""
        return self._parameter(next(self._columns))

    def divided(self, x: Any, a: Expr, divisor: int) -> Expr:
        """Return a division by a constant, or a multiplication by the reciprocal, which is a parameter."""
        divisors = next(self._columns)
        if len(set(divisors)) == 1:
            return type(x)(a, index(divisor))
        self._divides = True
        factors, shifts = zip(*map(_reciprocal, divisors), strict=True)
        reciprocal = self._parameter(factors, "i64"), self._parameter(shifts, "i64")
        if isinstance(x, tirx.FloorDiv):
            return tirx.call_pure_extern("int32", "gluongraph_quotient", a, *reciprocal)
        return tirx.call_pure_extern("int32", "gluongraph_remainder", a, *reciprocal, self._parameter(divisors))

    def _parameter(self, values: Sequence[int], dtype: str = "i32") -> Expr:
        if len(set(values)) == 1:
            return const(values[0], dtype)
        key = dtype, tuple(values)
        if key not in self._made:
            self._made[key] = tirx.Var(f"n{len(self._made)}", tvm_dtype(dtype))
        return self._made[key]


def _reciprocal(divisor: int) -> tuple[int, int]:
    """Return (factor, shift) with x // divisor == x * factor >> shift for 0 <= x < 2**31.

    With 2**(l-1) < d <= 2**l the factor is floor(2**(31+l) / d) + 1, which is too large by e/d with 0 < e <= d <= 2**l,
    so the product by less than 2**(31+l) / d: see Granlund, Montgomery, "Division by invariant integers using
    multiplication", 1994, theorem 4.2.
    """
    shift = 31 + (divisor - 1).bit_length()
    return (1 << shift) // divisor + 1, shift


# Rounded down for negative dividends too: x // d == ~(~x // d). For others the two `xor` change nothing.
DIVIDE = """
define linkonce_odr i32 @gluongraph_quotient(i32 %x, i64 %factor, i64 %shift) alwaysinline {
  %sign = ashr i32 %x, 31
  %magnitude = xor i32 %x, %sign
  %wide = zext i32 %magnitude to i64
  %product = mul nuw nsw i64 %wide, %factor
  %shifted = lshr i64 %product, %shift
  %narrow = trunc i64 %shifted to i32
  %quotient = xor i32 %narrow, %sign
  ret i32 %quotient
}
define linkonce_odr i32 @gluongraph_remainder(i32 %x, i64 %factor, i64 %shift, i32 %divisor) alwaysinline {
  %quotient = call i32 @gluongraph_quotient(i32 %x, i64 %factor, i64 %shift)
  %multiple = mul nsw i32 %quotient, %divisor
  %remainder = sub nsw i32 %x, %multiple
  ret i32 %remainder
}
"""
