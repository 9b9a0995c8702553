"""The algebra of `lower` rules on a GPU: scalars, and the CUDA math library's functions at full precision.

TVM's own intrinsics for exp, log, sin, cos and pow become CUDA's fast forms (`__expf`), which are wrong in the
last digits, and far off for some arguments. So the functions are called by their C names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from gluongraph.codegen.expr.algebra import CpuAlgebra, accumulator_dtype
from gluongraph.codegen.tvm import te, tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Inline, Kernel
from gluongraph.dtypes import is_float

_LIBRARY = {  # name of the algebra -> name in C
    "abs": "fabs",
    "normal_cdf": "normcdf",
    "round": "rint",  # halves to even
    **{name: name for name in ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tanh", "erf", "floor", "ceil")},
}


C_TYPES = {  # as TVM's header for CUDA names them, in one word
    "f64": "double", "f32": "float", "f16": "half", "bf16": "nv_bfloat16", "bool": "bool",
    "i64": "int64_t", "i32": "int", "i8": "int8_t", "u64": "uint64_t", "u32": "uint32_t", "u8": "uint8_t",
}  # fmt: skip


class CudaAlgebra(CpuAlgebra):
    """Expressions of one GPU thread. Casts, comparisons, integer arithmetic and loops are those of the CPU."""

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Return x as another dtype; True is 1, and any value but 0 is True. An index may be a Python number."""
        if isinstance(x, int | float):
            return tir.const(x, dtype)
        if tir.constant_value(x) == 0 and dtype != "bool":
            return tir.const(0, dtype)
        return super().cast(x, dtype)

    def fma(self, x: Expr, y: Expr | float, z: Expr | float) -> Expr:
        """x * y + z"""
        return _call("fma", x, *(_number(v, x) if isinstance(v, int | float) else v for v in (y, z)))

    def unary(self, name: str, x: Expr) -> Expr:
        """See Algebra."""
        dtype = tir.dtype_of(x)
        if not is_float(dtype) or name == "logical_not":
            return super().unary(name, x)
        if dtype in ("f16", "bf16"):
            result = self.unary(name, self.kernel.let(self.cast(x, "f32")))
            return result if tir.dtype_of(result) == "bool" else self.cast(result, dtype)
        x = self.kernel.let(x)
        return _call(_LIBRARY[name], x) if name in _LIBRARY else _COMPOSED[name](x)

    def binary(self, name: str, x: Expr, y: Expr) -> Expr:
        """See Algebra."""
        x, y = self._broadcast(x, y)
        dtype = tir.dtype_of(x)
        if dtype == "bool":
            return super().binary(name, x, y)
        if name.startswith("shift") and tir.constant_value(x) == 0:
            return x
        if not is_float(dtype):  # min and max by name: dlight's rules look into index arithmetic
            if name in ("maximum", "minimum"):
                return tir.libm(name[:3], x, y)
            return super().binary(name, x, y)
        if dtype in ("f16", "bf16"):
            result = self.binary(name, self.cast(x, "f32"), self.cast(y, "f32"))
            return result if tir.dtype_of(result) == "bool" else self.cast(result, dtype)
        if name in ("maximum", "minimum"):
            x, y = self.kernel.let(x), self.kernel.let(y)
            best = tir.select(tir.compare("greater" if name == "maximum" else "less", x, y), x, y)
            return tir.select(tir.libm("isnan", x), x, best) if tir.constant_value(x) is None else best
        if name == "pow" and tir.constant_value(y) not in (2, 3):
            return _call("pow", x, y)
        if name in ("floordiv", "floormod", "mod"):
            return _divide(self.kernel, name, x, y)
        return super().binary(name, x, y)


class TeAlgebra(CudaAlgebra):
    """Expressions of a stage: no names are bound, and a fold must be all that the stage computes."""

    def __init__(self) -> None:
        super().__init__(Inline("stage"))
        self.last_fold: Expr = None  # the fold of the rule that ran last
        self.ranges = tir.Ranges()  # of the axes of stages

    def reduce(
        self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str, lanes: int | None = None
    ) -> Expr:
        """Return a TVM reduction, in f32 if the elements are 16-bit floats."""

        def one(*at: Expr) -> Expr:
            for axis, extent in zip(at, extents, strict=True):
                self.ranges.bind(axis, extent)
            return self.cast(element(*at), accumulator_dtype(dtype))

        self.last_fold = te.fold(name, extents, one)
        return self.last_fold


class GpuKernel(Kernel):
    """Host code that launches grids of GPU threads. The values of a thread are scalars."""

    local_scope = "local"

    @contextmanager
    def each(self, *sizes: int) -> Iterator[list[tuple[Expr, Expr]]]:
        """One grid with a thread for every index below each size; yields (index, is it below the size?) for each size.
        No thread block serves two sizes. Small grids have small blocks, to use several multiprocessors."""
        total = sum(sizes)
        threads = next((n for n, least in ((256, 1 << 16), (128, 1 << 14), (64, 1 << 12)) if total >= least), 32)
        starts = [0, *accumulate(-(-size // threads) * threads for size in sizes)]
        with self.grid(starts[-1] // threads, threads) as at:
            yield [(at - start, _within(at, start, size)) for start, size in zip(starts, sizes, strict=False)]

    def copy(self, source: Buf, target: Buf) -> None:
        """Copy all elements of one buffer to another."""
        with self.each(target.size) as [(i, inside)], self.when(inside):
            self.store(target, self.load(source, i), i)

    def let(self, value: Expr, name: str = "v") -> Expr:
        """Bind a value to a name, so that it is computed once."""
        return value if isinstance(value, int | float) else self.named(value, C_TYPES[tir.dtype_of(value)])


def _within(at: Expr, start: int, size: int) -> Expr:
    below = tir.compare("less", at, tir.index(start + size))
    return below if start == 0 else tir.logical("and", tir.compare("greater_equal", at, tir.index(start)), below)


def _call(name: str, *args: Expr) -> Expr:
    dtype = tir.dtype_of(args[0])
    return tir.external(name + "f" if dtype == "f32" else name, dtype, *args)


def _number(value: float, like: Expr) -> Expr:
    return tir.const(value, tir.dtype_of(like))


def _sign(x: Expr) -> Expr:
    above = tir.select(tir.compare("greater", x, _number(0, x)), _number(1, x), x)  # 0, -0 and NaN stay
    return tir.select(tir.compare("less", x, _number(0, x)), _number(-1, x), above)


_COMPOSED: dict[str, Callable[[Expr], Expr]] = {
    "neg": lambda x: _number(0, x) - x if tir.constant_value(x) is not None else -x,
    "sign": _sign,
    "rsqrt": lambda x: _number(1, x) / _call("sqrt", x),
    "sigmoid": lambda x: _number(1, x) / (_number(1, x) + _call("exp", -x)),
    "normal_pdf": lambda x: _call("exp", x * x * _number(-0.5, x)) * _number(1 / math.sqrt(2 * math.pi), x),
    "relu": lambda x: tir.select(tir.compare("less", x, _number(0, x)), _number(0, x), x),
    "isnan": lambda x: tir.libm("isnan", x),  # x != x would be simplified away
    "isfinite": lambda x: tir.compare("less", _call("fabs", x), _number(math.inf, x)),
}


def _divide(k: Kernel, name: str, x: Expr, y: Expr) -> Expr:
    """Return the remainder with the sign of y, or the quotient rounded down, as in Python."""
    x, y = k.let(x), k.let(y)
    rest = k.let(_call("fmod", x, y))
    zero = _number(0, x)
    apart = tir.compare("not_equal", tir.compare("less", rest, zero), tir.compare("less", y, zero))
    wrong = tir.logical("and", tir.compare("not_equal", rest, zero), apart)
    exact = tir.compare("equal", rest, zero)
    remainder = k.let(tir.select(exact, _call("copysign", zero, y), tir.select(wrong, rest + y, rest)))
    if name != "floordiv":
        return remainder
    return tir.select(tir.compare("equal", y, zero), x / y, _call("rint", (x - remainder) / y))
