"""The algebra of `lower` rules over expressions of the kernel builder, for any number of lanes.

Elementary functions are those of `vector_math`; 16-bit floats are computed in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.expr import vector_math
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Expr, Kernel
from gluongraph.dtypes import DTYPES, is_float, numpy_dtype
from gluongraph.errors import CompileError

_INTEGER_POWERS = 8  # x**n up to this n is expanded into multiplications


class CpuAlgebra:
    """`gluongraph.ops.lowering.Algebra` on a CPU: expressions of `kernel`, every shared value named once."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.lanes = 1  # of the index that is being evaluated, and of the accumulator of `reduce`

    def const(self, value: float | int | bool, dtype: str) -> Expr:
        """Return a scalar constant, which is broadcast to the lanes of other operands."""
        return tir.const(value, dtype)

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Return x as another dtype; True is 1, and any value but 0 is True."""
        if isinstance(x, int | float):
            return tir.const(x, dtype)
        have = tir.dtype_of(x)
        if have == dtype:
            return x
        if dtype == "bool":
            return tir.compare("not_equal", x, tir.const(0, have))
        if (number := tir.constant_value(x)) is not None and not is_float(dtype) and not is_float(have):
            return tir.splat(tir.const(wrap_integer(number, dtype), dtype), tir.lanes_of(x))
        if (have, dtype) == ("u64", "u32"):  # TVM computes bounds of Philox's words, and fails beyond 32 bits
            x = tir.bitcast(x, "i64")
        elif DTYPES[have].family == "int" and DTYPES[dtype].family == "uint":
            # in two steps: TVM moves a cast into a ramp, and fails where a negative stride (`flip`) becomes unsigned
            return tir.bitcast(tir.cast(x, f"i{8 * DTYPES[dtype].nbytes}"), dtype)
        return tir.cast(x, dtype)

    def bitcast(self, x: Expr, dtype: str) -> Expr:
        """Return the same bits as another dtype."""
        return tir.bitcast(x, dtype)

    def where(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """Return `yes` where the condition holds, else `no`."""
        yes, no = self._broadcast(yes, no)
        return tir.select(condition, yes, no)

    def unary(self, name: str, x: Expr) -> Expr:
        """See Algebra."""
        dtype = tir.dtype_of(x)
        if name == "logical_not":
            # bound to a name first: TVM would rewrite not (x < y) to y <= x, which is wrong for NaN
            return tir.logical("not", self.kernel.let(self.cast(x, "bool")))
        if dtype in ("f16", "bf16"):
            result = self.unary(name, self.kernel.let(tir.cast(x, "f32")))
            return result if tir.dtype_of(result) == "bool" else tir.cast(result, dtype)
        x = self.kernel.let(x)
        if is_float(dtype):
            if name in _EXACT:
                return _EXACT[name](self, x)
            return (vector_math.f32 if dtype == "f32" else vector_math.f64)(self.kernel, name, x)
        if name in ("isnan", "isfinite"):
            return tir.splat(tir.const(name == "isfinite", "bool"), tir.lanes_of(x))
        if name in ("floor", "ceil", "round"):
            return x
        if name not in ("neg", "abs", "sign"):
            raise CompileError(f"{name} of {dtype}: cast to a float first")
        return _EXACT[name](self, x)

    def binary(self, name: str, x: Expr, y: Expr) -> Expr:
        """See Algebra."""
        x, y = self._broadcast(x, y)
        dtype = tir.dtype_of(x)
        if dtype in ("f32", "f64") and (guarded := self._guarded(name, x, y)) is not None:
            return guarded
        if name == "not_equal" and is_float(dtype):  # TVM's own is false for NaN
            return tir.logical("not", self.kernel.let(tir.compare("equal", *self._as_float32(x, y))))
        if name in _COMPARISONS:
            return tir.compare(name, *self._as_float32(x, y))
        if name in ("logical_and", "logical_or"):
            return tir.logical(name[8:], self.cast(x, "bool"), self.cast(y, "bool"))
        if dtype == "bool":
            return self.cast(self.binary(name, tir.cast(x, "u8"), tir.cast(y, "u8")), "bool")
        if dtype in ("f16", "bf16"):
            return tir.cast(self.binary(name, *self._as_float32(x, y)), dtype)
        return _BINARY[name](self, x, y)

    def fma(self, x: Expr, y: Expr | float, z: Expr | float) -> Expr:
        """x * y + z"""
        lanes = max(tir.lanes_of(v) for v in (x, y, z) if not isinstance(v, int | float))
        return vector_math.fma(tir.splat(x, lanes), y, z)

    def _guarded(self, name: str, x: Expr, y: Expr) -> Expr | None:
        """Return a form of x * 0, x - x or x == x that TVM does not fold as if there were no infinities and NaN; else
        None."""
        if name == "mul":
            x, y = (y, x) if tir.constant_value(x) == 0 else (x, y)
            return self.fma(x, y, -0.0) if tir.constant_value(y) == 0 else None
        if not tir.same(x, y):
            return None
        if name == "sub":
            return self.fma(x, -1.0, x)
        if name == "not_equal":
            return self.unary("isnan", x)
        return tir.logical("not", self.kernel.let(self.unary("isnan", x))) if name == "equal" else None

    def named(self, x: Expr) -> Expr:
        """See Algebra."""
        return self.kernel.let(x)

    def reduce(
        self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str, lanes: int | None = None
    ) -> Expr:
        """Emit loops over the extents that reduce into an accumulator, by default with the lanes of the current
        index."""
        k, lanes = self.kernel, self.lanes if lanes is None else lanes
        acc_dtype = accumulator_dtype(dtype)
        total = k.local("total", lanes, acc_dtype)
        k.store(total, tir.splat(identity(name, acc_dtype), lanes), 0)
        (result,), settle = mk.totals(k, [total], math.prod(extents) if name == "sum" else 0)
        with mk.chained(k, settle, extents) as at:
            k.store(total, self.fold(name, k.load(total, 0, lanes), self.cast(element(*at), acc_dtype)), 0)
        return self.cast(k.let(k.load(result, 0, lanes)), dtype)

    def fold(self, name: str, total: Expr, x: Expr) -> Expr:
        """Combine an element with a sum, prod, max or min; max and min propagate NaN."""
        return self.binary({"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[name], total, x)

    def _broadcast(self, x: Expr, y: Expr) -> tuple[Expr, Expr]:
        """Broadcast both to the same lanes; a Python number gets the dtype of the other."""
        if isinstance(x, int | float):
            x = tir.const(x, "i32" if isinstance(y, int | float) else tir.dtype_of(y))
        if isinstance(y, int | float):
            y = tir.const(y, tir.dtype_of(x))
        lanes = max(tir.lanes_of(x), tir.lanes_of(y))
        return tir.splat(x, lanes), tir.splat(y, lanes)

    def _as_float32(self, x: Expr, y: Expr) -> tuple[Expr, Expr]:
        if tir.dtype_of(x) in ("f16", "bf16"):
            return tir.cast(x, "f32"), tir.cast(y, "f32")
        return x, y


class VectorAlgebra(CpuAlgebra):
    """A CpuAlgebra in which bf16 values are f32 expressions, rounded by casts and by stores.

    TVM's own legalization of bf16 arithmetic is incomplete.
    """

    def const(self, value: float | int | bool, dtype: str) -> Expr:
        """Return a scalar constant; of bf16 it is an f32 constant, rounded."""
        if dtype != "bf16":
            return tir.const(value, dtype)
        return tir.const(float(np.float32(value).astype(numpy_dtype("bf16"))), "f32")

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Return x as another dtype; to bf16 by rounding an f32 to the nearest with 8 significant bits."""
        if not isinstance(x, int | float) and tir.dtype_of(x) == "bf16":
            x = tir.cast(x, "f32")
        return super().cast(x, dtype) if dtype != "bf16" else self.rounded(super().cast(x, "f32"))

    def rounded(self, x: Expr) -> Expr:
        """Return an f32 rounded to the precision of bf16, to nearest, ties to even."""
        x = self.kernel.let(x)
        if (rounded := self.kernel.rounded_to_bf16(x)) is not None:
            return rounded
        bits, sixteen = self.kernel.let(tir.bitcast(x, "u32")), tir.const(16, "u32")
        up = (bits + tir.const(0x7FFF, "u32") + ((bits >> sixteen) & tir.const(1, "u32"))) >> sixteen
        quiet = (bits >> sixteen) | tir.const(0x40, "u32")  # a NaN, whichever of its bits are left
        return self.kernel.from_bf16_bits(tir.select(vector_math.is_nan(x), quiet, up))


def accumulator_dtype(dtype: str) -> str:
    """Return the dtype in which a dtype is accumulated."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def wrap_integer(number: float, dtype: str) -> int:
    """Return an integer wrapped to the range of the dtype, as conversions between integers do."""
    bits = 8 * DTYPES[dtype].nbytes
    low = -(1 << (bits - 1)) if DTYPES[dtype].family == "int" else 0
    return (int(number) - low) % (1 << bits) + low


def identity(name: str, dtype: str) -> Expr:
    """Return the identity element of sum, prod, max or min."""
    if name in ("sum", "prod"):
        return tir.const(0 if name == "sum" else 1, dtype)
    if is_float(dtype):
        return tir.const(-math.inf if name == "max" else math.inf, dtype)
    row = DTYPES[dtype]
    bits = 8 * row.nbytes
    if row.family == "bool":
        return tir.const(name == "min", dtype)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if row.family == "int" else (0, 2**bits - 1)
    return tir.const(low if name == "max" else high, dtype)


# --- functions with an instruction for floats, and for integers where the code handles them


def _neg(e: CpuAlgebra, x: Expr) -> Expr:
    return -x if is_float(tir.dtype_of(x)) else tir.const(0, tir.dtype_of(x)) - x


def _abs(e: CpuAlgebra, x: Expr) -> Expr:
    dtype, lanes = tir.dtype_of(x), tir.lanes_of(x)
    if is_float(dtype):
        return tir.llvm("llvm.fabs", dtype, lanes, x)
    return x if DTYPES[dtype].family != "int" else tir.select(x < 0, tir.const(0, dtype) - x, x)


def _sign(e: CpuAlgebra, x: Expr) -> Expr:
    dtype = tir.dtype_of(x)
    zero, one = tir.const(0, dtype), tir.const(1, dtype)
    above = tir.select(tir.compare("greater", x, zero), one, x)  # 0, -0 and NaN stay
    return above if DTYPES[dtype].family == "uint" else tir.select(tir.compare("less", x, zero), zero - one, above)


def _instruction(name: str) -> Callable[[CpuAlgebra, Expr], Expr]:
    return lambda e, x: tir.llvm(f"llvm.{name}", tir.dtype_of(x), tir.lanes_of(x), x)


def _rsqrt(e: CpuAlgebra, x: Expr) -> Expr:
    dtype = tir.dtype_of(x)
    return tir.splat(tir.const(1.0, dtype), tir.lanes_of(x)) / tir.llvm("llvm.sqrt", dtype, tir.lanes_of(x), x)


def _relu(e: CpuAlgebra, x: Expr) -> Expr:
    return _maximum(e, x, tir.const(0, tir.dtype_of(x)))


_EXACT: dict[str, Callable[[CpuAlgebra, Expr], Expr]] = {
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "floor": _instruction("floor"),
    "ceil": _instruction("ceil"),
    "round": _instruction("rint"),  # halves to even, as numpy
    "sqrt": _instruction("sqrt"),
    "rsqrt": _rsqrt,
    "isnan": lambda e, x: vector_math.is_nan(x),
    "isfinite": lambda e, x: vector_math.is_finite(x),
    "relu": _relu,
}


def _choose(name: str, e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    """Return the greater or lesser; NaN if either is NaN."""
    dtype = tir.dtype_of(x)
    if not is_float(dtype):
        return tir.maximum(x, y) if name == "maximum" else tir.minimum(x, y)
    x, y = e.kernel.let(x), e.kernel.let(y)
    if (number := tir.constant_value(y)) is not None and number == number:
        # `y > x ? y : x` is one instruction, and keeps a NaN of x
        return tir.select(tir.compare({"maximum": "greater", "minimum": "less"}[name], y, x), y, x)
    # Not by `y != y`: TVM folds a comparison of a broadcast value with itself, and fails on floats.
    return tir.llvm(f"llvm.{name}", dtype, tir.lanes_of(x), x, y)


def _maximum(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    return _choose("maximum", e, *((y, x) if tir.constant_value(x) is not None else (x, y)))


def _minimum(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    return _choose("minimum", e, *((y, x) if tir.constant_value(x) is not None else (x, y)))


def _div(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    """Return x / y; x / 0 is computed as the equal x * inf, since TVM refuses to divide by a constant 0."""
    dtype, number = tir.dtype_of(x), tir.constant_value(y)
    if number == 0 and is_float(dtype):
        return x * tir.splat(tir.const(math.copysign(math.inf, number), dtype), tir.lanes_of(x))
    return x / y


def _divisor(e: CpuAlgebra, x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """Return a divisor on which no processor traps, and the lanes where it replaces another one (0, or -1, which
    overflows for the least integer)."""
    dtype = tir.dtype_of(y)
    bad = tir.compare("equal", y, tir.const(0, dtype))
    if DTYPES[dtype].family == "int":
        bad = tir.logical("or", bad, tir.compare("equal", y, tir.const(-1, dtype)))
    bad = e.kernel.let(bad)
    return e.kernel.let(tir.select(bad, tir.const(1, dtype), y)), bad


def _remainder(e: CpuAlgebra, x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """Return the remainder of floats with the sign of x, and whether its sign differs from that of y. It is exact;
    LLVM's own for vectors is off by up to y where x is some thousand times y."""
    dtype = tir.dtype_of(x)
    zero = tir.const(0.0, dtype)
    rest = e.kernel.let(vector_math.by_lane("fmodf" if dtype == "f32" else "fmod", x, y))
    below = tir.logical("and", tir.compare("less", y, zero), tir.compare("greater", rest, zero))
    above = tir.logical("and", tir.compare("greater", y, zero), tir.compare("less", rest, zero))
    return rest, e.kernel.let(tir.logical("or", below, above))


def _floordiv(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    """Return the quotient, rounded down; of integers, x // 0 is 0, as in numpy."""
    dtype = tir.dtype_of(x)
    zero = tir.const(0, dtype)
    if is_float(dtype):
        if tir.constant_value(y) == 0:
            return _div(e, x, y)
        x, y = e.kernel.let(x), e.kernel.let(y)
        rest, wrong = _remainder(e, x, y)
        exact = (x - rest) / y - tir.select(wrong, tir.const(1.0, dtype), zero)
        rounded = tir.llvm("llvm.rint", dtype, tir.lanes_of(x), e.kernel.let(exact))
        return tir.select(tir.compare("equal", y, zero), x / y, rounded)
    if tir.constant_value(y) not in (None, 0, -1):
        return tir.floordiv(x, y)
    x, y = e.kernel.let(x), e.kernel.let(y)
    divisor, bad = _divisor(e, x, y)
    special = tir.select(tir.compare("equal", y, zero), zero, zero - x)
    return tir.select(bad, special, tir.floordiv(x, divisor))


def _floormod(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    """Return the remainder with the sign of y; of integers, x mod 0 is 0, as in numpy."""
    dtype = tir.dtype_of(x)
    zero = tir.const(0, dtype)
    if is_float(dtype):
        if tir.constant_value(y) == 0:
            return tir.splat(tir.const(math.nan, dtype), tir.lanes_of(x))
        x, y = e.kernel.let(x), e.kernel.let(y)
        rest, wrong = _remainder(e, x, y)
        signed_zero = tir.llvm("llvm.copysign", dtype, tir.lanes_of(x), tir.splat(zero, tir.lanes_of(x)), y)
        return tir.select(wrong, rest + y, tir.select(tir.compare("equal", rest, zero), signed_zero, rest))
    if tir.constant_value(y) not in (None, 0, -1):
        return tir.floormod(x, y)
    x, y = e.kernel.let(x), e.kernel.let(y)
    divisor, bad = _divisor(e, x, y)
    return tir.select(bad, zero, tir.floormod(x, divisor))


def _pow(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    """Return x**y; small constant integer exponents are expanded into multiplications, 0.5 is a square root."""
    k, dtype, exponent = e.kernel, tir.dtype_of(x), tir.constant_value(y)
    if exponent is not None and abs(exponent) <= _INTEGER_POWERS and exponent == int(exponent):
        x, n = k.let(x), abs(int(exponent))
        power = tir.splat(tir.const(1, dtype), tir.lanes_of(x))
        while n:
            power = k.let(power * x) if n % 2 else power
            n //= 2
            x = k.let(x * x) if n else x
        return power if exponent >= 0 else tir.const(1, dtype) / power
    if not is_float(dtype):
        return _integer_pow(e, x, y)
    if exponent == 0.5:
        return tir.llvm("llvm.sqrt", dtype, tir.lanes_of(x), x)
    return vector_math.pow32(k, k.let(x), k.let(y)) if dtype == "f32" else tir.libm("pow", x, y)


def _integer_pow(e: CpuAlgebra, x: Expr, y: Expr) -> Expr:
    """Return x**y of integers by repeated squaring."""
    k, dtype, lanes = e.kernel, tir.dtype_of(x), tir.lanes_of(x)
    one, zero = tir.const(1, dtype), tir.const(0, dtype)
    y = k.let(y)
    base, power = k.local("base", lanes, dtype), k.local("power", lanes, dtype)
    k.store(base, x, 0)
    k.store(power, tir.splat(one, lanes), 0)
    with k.loop(8 * DTYPES[dtype].nbytes - 1, name="bit") as bit:
        odd = tir.compare("not_equal", (y >> tir.splat(tir.cast(bit, dtype), lanes)) & one, zero)
        square, old = k.let(k.load(base, 0, lanes)), k.let(k.load(power, 0, lanes))
        k.store(power, tir.select(odd, old * square, old), 0)
        k.store(base, square * square, 0)
    return k.let(k.load(power, 0, lanes))


_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_BINARY: dict[str, Callable[[CpuAlgebra, Expr, Expr], Expr]] = {
    "add": lambda e, x, y: x + y,
    "sub": lambda e, x, y: x - y,
    "mul": lambda e, x, y: x * y,
    "div": _div,
    "pow": _pow,
    "maximum": _maximum,
    "minimum": _minimum,
    "floordiv": _floordiv,
    "floormod": _floormod,
    "mod": _floormod,
    "bitwise_xor": lambda e, x, y: x ^ y,
    "bitwise_and": lambda e, x, y: x & y,
    "bitwise_or": lambda e, x, y: x | y,
    "shift_left": lambda e, x, y: x << y,
    "shift_right": lambda e, x, y: x >> y,
}
