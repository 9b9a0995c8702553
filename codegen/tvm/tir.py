"""A builder of TIR kernels: loops over flat buffers, which `machine_code.py` compiles.

TVM is untyped, so its objects are an `Expr`, a `Buf` or opaque here; whatever depends on the form of TIR in TVM 0.27
(buffers are variables, `Bind` statements instead of nested lets) stays in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError
from gluongraph.host.process import import_tvm

Expr = Any  # a TVM expression: scalar, or vector of `lanes_of(x)` elements
PrimFunc = Any
Value = Expr | int | float | bool


class LazyModule:
    """A module imported at first use: a warm start, whose artefact is in the cache, never loads TVM's compiler."""

    def __init__(self, name: str):
        self._name = name
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_tvm(self._name)
        found = self.__dict__[attribute] = getattr(self._module, attribute)  # a large step asks a million times
        return found


tvm = LazyModule("tvm")
tirx = LazyModule("tvm.tirx")
tvm_ffi = LazyModule("tvm_ffi")

SYMBOL = "__tvm_ffi_"  # prefix of function names in libraries


def tvm_dtype(dtype: str, lanes: int = 1) -> str:
    """Return TVM's name of a dtype: 'f32', 16 -> 'float32x16'."""
    return DTYPES[dtype].long + (f"x{lanes}" if lanes > 1 else "")


_SHORT = {row.long: row.name for row in DTYPES.values()}


def _split(x: Expr) -> tuple[str, int]:
    return _split_name(x.ty.dtype)


@cache
def _split_name(name: str) -> tuple[str, int]:
    long, _, lanes = name.partition("x")
    return _SHORT[long], int(lanes or 1)


def dtype_of(x: Expr) -> str:
    """Return the short name of an expression's element dtype."""
    return _split(x)[0]


def lanes_of(x: Value) -> int:
    """Return the number of lanes: 1 for scalars and Python numbers."""
    return 1 if isinstance(x, int | float) else _split(x)[1]


def const(value: float | int | bool, dtype: str) -> Expr:
    """Return a scalar constant."""
    return tirx.const(value, tvm_dtype(dtype))


def index(value: Value) -> Expr:
    """Return an i32 index expression from a Python int or an expression."""
    return _int32(value) if isinstance(value, int) else value


@lru_cache(maxsize=1 << 14)  # expressions are never changed, and may share constants
def _int32(value: int) -> Expr:
    return tirx.const(value, "int32")


def splat(x: Value, lanes: int, dtype: str = "f32") -> Expr:
    """Return x broadcast to lanes; vectors are returned as they are."""
    if isinstance(x, int | float):
        x = const(x, dtype)
    return x if lanes == 1 or lanes_of(x) == lanes else tirx.Broadcast(x, lanes)


def floordiv(a: Value, b: Value) -> Expr:
    """Return a // b of index expressions, rounded down."""
    return tirx.floordiv(index(a), index(b))


def floormod(a: Value, b: Value) -> Expr:
    """Return a mod b of index expressions, with the sign of b."""
    return tirx.floormod(index(a), index(b))


def minimum(a: Value, b: Value) -> Expr:
    """Return the smaller of two index expressions."""
    return tirx.min(index(a), index(b))


def maximum(a: Value, b: Value) -> Expr:
    """Return the larger of two index expressions."""
    return tirx.max(index(a), index(b))


def cast(x: Expr, dtype: str) -> Expr:
    """Return x converted to another dtype, lane by lane."""
    have, lanes = _split(x)
    if have == dtype:
        return x
    if have == "bf16":  # by its bits: TVM 0.27 drops the conversion where the value is bound to a name
        suffix = f"x{lanes}" if lanes > 1 else ""
        bits = tirx.reinterpret(f"uint16{suffix}", x).astype(tvm_dtype("u32", lanes))
        f32_value = tirx.reinterpret(tvm_dtype("f32", lanes), bits << splat(const(16, "u32"), lanes))
        return cast(f32_value, dtype)
    return x.astype(tvm_dtype(dtype, lanes))


def ramp(base: Value, lanes: int, stride: int = 1) -> Expr:
    """Return the index vector base, base+stride, ... of `lanes` elements."""
    return index(base) if lanes == 1 else tirx.Ramp(index(base), _int32(stride), lanes)


def llvm(name: str, dtype: str, lanes: int, *args: Expr) -> Expr:
    """Return a call of a pure LLVM intrinsic: llvm('llvm.fma', 'f32', 16, a, b, c).

    Raises:
        ValueError: LLVM has no intrinsic of this name.
    """
    op, number = _intrinsic(name)
    return tvm.ir.Call(op, [number, *args], ret_ty=_type(tvm_dtype(dtype, lanes)))


@cache  # a large net has 30,000 calls, and looking up its operator and number is two thirds of what a call takes
def _intrinsic(name: str) -> tuple[Any, Expr]:
    call = tirx.call_llvm_pure_intrin("float32", name)
    return call.op, call.args[0]


@cache
def _type(name: str) -> Any:
    return tvm.ir.PrimType(name)


def dot(sums: Expr, a: Expr, b: Expr) -> Expr:
    """Return sums + a * b for vectors of 16 words: the two bf16 values of each word of a are multiplied with those of
    b, and both products are added. Needs `k.use(DOT)`."""
    return tirx.call_pure_extern("float32x16", "gluongraph_dot", sums, a, b)


# An LLVM function, since TVM would convert the intrinsic's bf16 arguments to float32.
DOT = """
define linkonce_odr <16 x float> @gluongraph_dot(<16 x float> %s, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %p = bitcast <16 x i32> %a to <32 x bfloat>
  %q = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s, <32 x bfloat> %p, <32 x bfloat> %q)
  ret <16 x float> %r
}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
"""


def pack_bf16(first: Expr, second: Expr) -> Expr:
    """Return two vectors of 16 f32 values, rounded to bf16 and concatenated, as 16 words. Needs
    `k.use(CONVERT_BF16)`."""
    return tirx.call_pure_extern("uint32x16", "gluongraph_halves", first, second)


def pack_bf16_pairs(first: Expr, second: Expr) -> Expr:
    """Return the same interleaved: a value of the first in the lower half of each word, one of the second in the
    upper."""
    return tirx.call_pure_extern("uint32x16", "gluongraph_pairs", first, second)


# The instruction rounds to nearest, ties to even; its second operand goes to the lower lanes.
CONVERT_BF16 = """
define linkonce_odr <16 x i32> @gluongraph_halves(<16 x float> %a, <16 x float> %b) alwaysinline {
  %r = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float> %b, <16 x float> %a)
  %w = bitcast <32 x bfloat> %r to <16 x i32>
  ret <16 x i32> %w
}
define linkonce_odr <16 x i32> @gluongraph_pairs(<16 x float> %a, <16 x float> %b) alwaysinline {
  %r = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float> %b, <16 x float> %a)
  %m = bitcast <32 x bfloat> %r to <32 x i16>
  %s = shufflevector <32 x i16> %m, <32 x i16> poison, <32 x i32> <INTERLEAVED>
  %w = bitcast <32 x i16> %s to <16 x i32>
  ret <16 x i32> %w
}
define linkonce_odr <16 x i16> @gluongraph_narrow(<16 x float> %a) alwaysinline {
  %r = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %a)
  %w = bitcast <16 x bfloat> %r to <16 x i16>
  ret <16 x i16> %w
}
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
""".replace("INTERLEAVED", ", ".join(f"i32 {i}, i32 {i + 16}" for i in range(16)))


def shuffle(vectors: Sequence[Expr], lanes: Sequence[int]) -> Expr:
    """Return the vector of these lanes, numbered through the concatenated vectors (of one dtype)."""
    return tirx.Shuffle(list(vectors), [_int32(i) for i in lanes])


def lanes(x: Expr) -> list[Expr]:
    """Return the lanes of a vector as scalars."""
    return [shuffle([x], [i]) for i in range(lanes_of(x))]


def ramp_parts(x: Expr) -> tuple[Expr, int] | None:
    """Return base and stride of an index vector made by `ramp`; None for other expressions."""
    return (x.base, int(x.stride.value)) if isinstance(x, tirx.Ramp) else None


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Return `yes` where the condition holds, else `no`; both are computed. Scalars are broadcast."""
    lanes = max(lanes_of(condition), lanes_of(yes), lanes_of(no))
    return tirx.Select(splat(condition, lanes), splat(yes, lanes), splat(no, lanes))


def _as_float(x: Expr) -> Expr:
    lanes = lanes_of(x)
    return tirx.Select(x, splat(const(1.0, "f32"), lanes), splat(const(0.0, "f32"), lanes))


_COMPARE = {"equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT", "greater_equal": "GE"}


def compare(name: str, a: Expr, b: Expr) -> Expr:
    """Return a bool per lane; all comparisons but not_equal are false if an operand is NaN."""
    lanes = max(lanes_of(a), lanes_of(b))
    a, b = splat(a, lanes), splat(b, lanes)
    if dtype_of(a) == "bool":
        a, b = _as_float(a), _as_float(b)
    return getattr(tirx, _COMPARE[name])(a, b)


def logical(name: str, *args: Expr) -> Expr:
    """Return `and`, `or` or `not` of bools, lane by lane."""
    lanes = max(map(lanes_of, args))
    return {"and": tirx.And, "or": tirx.Or, "not": tirx.Not}[name](*(splat(a, lanes) for a in args))


def bitcast(x: Expr, dtype: str) -> Expr:
    """Return the same bits as another dtype of equal width."""
    return tirx.reinterpret(tvm_dtype(dtype, lanes_of(x)), x)


def words(x: Expr) -> Expr:
    """Return a vector of 16-bit values as 32-bit words of two adjacent values, the first in the lower half."""
    return tirx.reinterpret(tvm_dtype("u32", lanes_of(x) // 2), x)


def libm(name: str, *args: Expr) -> Expr:
    """Return a function of the C library (or an instruction, for sqrt): one scalar call per lane."""
    return getattr(tirx, name)(*args)


def external(name: str, dtype: str, *args: Expr) -> Expr:
    """Return the call of a pure C function, one scalar call per lane."""
    return tirx.call_pure_extern(tvm_dtype(dtype), name, *args)


def same(x: Expr, y: Expr) -> bool:
    """Are these the same value, ignoring broadcasts?"""
    x, y = (e.value if isinstance(e, tirx.Broadcast) else e for e in (x, y))
    return bool(x.same_as(y))


def powers_of_two(count: int, most: int = 1 << 30) -> Iterator[tuple[int, int]]:
    """Split the count into (first, power of two up to `most`): 7 -> (0, 4), (4, 2), (6, 1)."""
    first = 0
    while first < count:
        size = min(most, 1 << (count - first).bit_length() - 1)
        yield first, size
        first += size


def constant_value(x: Expr) -> float | int | None:
    """Return the value of a constant; None for other expressions."""
    x = x.value if isinstance(x, tirx.Broadcast) else x
    return x.value if isinstance(x, (tirx.IntImm, tirx.FloatImm)) else None


class Ranges:
    """The known ranges of index variables; simplifies index arithmetic and finds linear dependences on a variable."""

    def __init__(self) -> None:
        self._analyzer = tvm.sym.Analyzer()

    def bind(self, var: Expr, extent: int) -> None:
        """Assume 0 <= var < extent from now on."""
        if isinstance(var, tirx.Var):
            self._analyzer.bind(var, tvm.ir.Range(0, extent))

    def within(self, x: Value, extent: int) -> bool:
        """Is 0 <= x < extent known?"""
        bound = self._analyzer.const_int_bound(index(x))
        return int(bound.min_value) >= 0 and int(bound.max_value) < extent

    def simplify(self, x: Value) -> Expr:
        """Return an equal expression, simplified by the ranges."""
        return self._analyzer.simplify(index(x))

    def linear(self, x: Expr, var: Expr) -> tuple[int, Expr] | None:
        """Return (c, base) with x == c * var + base and a constant c, if x is of that form; else None."""
        if not isinstance(var, tirx.Var):
            return 0, x
        found = tvm.sym.detect_linear_equation(x, [var])
        if len(found) != 2 or not isinstance(found[0], tirx.IntImm):
            return None
        return int(found[0].value), found[1]


_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max"})


def variable(name: str) -> Expr:
    """Return an i32 variable that stands for an index."""
    return tirx.Var(name, "int32")


def one_lane(x: Expr, ramp: Expr, var: Expr) -> Expr | None:
    """Return one lane of the index vector x, computed from `ramp` by arithmetic: x with `var` in place of `ramp`. None
    if x depends on other vectors, such as loaded indices."""
    if isinstance(x, int) or lanes_of(x) == 1:
        return x
    if x.same_as(ramp):
        return var
    if isinstance(x, tirx.Broadcast):
        return one_lane(x.value, ramp, var)
    if type(x).__name__ in _ARITHMETIC:
        a, b = one_lane(x.a, ramp, var), one_lane(x.b, ramp, var)
        return None if a is None or b is None else type(x)(a, b)
    return None


@dataclass(frozen=True, eq=False)
class Buf:
    """A flat array of `size` elements: an argument of the kernel or a local buffer; `offset` is added to every
    index."""

    name: str
    size: int
    dtype: str
    var: Any
    offset: Value = 0

    def at(self, offset: Value) -> Buf:
        """Return the same memory from `offset` elements on."""
        return Buf(self.name, self.size, self.dtype, self.var, self.offset + offset)

    def index(self, at: Value) -> Expr:
        """Return an index from the start of the memory."""
        at_start = isinstance(self.offset, int) and self.offset == 0  # adding 0 is a call of TVM that gives `at`
        return index(at if at_start else at + self.offset)


class Kernel:
    """Builds one function of the artefact, statement by statement.

    >>> k = Kernel("twice")
    >>> x, y = k.param("x", 64, "f32"), k.param("y", 64, "f32")
    >>> with k.loop(4, "parallel") as i:
    ...     k.store(y, k.load(x, i * 16, 16) * 2.0, i * 16)
    >>> k.finish().attrs["global_symbol"]
    'twice'
    """

    # On CPUs TVM 0.27 allocates a buffer on the stack only if its scope is "global"; "local", the right scope for
    # threads of a GPU, would be a call to an allocator.
    local_scope = "global"

    def __init__(self, name: str):
        self.name = name
        self.params: list[Buf] = []
        self._blocks: list[list[Any]] = [[]]
        self._count = 0
        self._used: list[str] = []
        self._bf16_bits: dict[str, Expr] = {}  # by name of a value that `from_bf16_bits` returned: its bits
        self.ranges = Ranges()

    def param(self, name: str, size: int, dtype: str) -> Buf:
        """Add an argument: a tensor of one axis and `size` elements, aligned to its elements only."""
        buffer = self._buffer(name, size, dtype, "")
        self.params.append(buffer)
        return buffer

    def local(self, name: str, size: int, dtype: str) -> Buf:
        """Return a thread-local buffer; up to 1 KiB it is on the stack, and in registers if all indices are constants.
        A larger one costs an allocator call for each parallel chunk."""
        buffer = self._buffer(name, size, dtype, self.local_scope)
        self._emit(tirx.AllocBuffer(buffer.var))
        return buffer

    def view(self, buf: Buf, dtype: str, offset: int = 0) -> Buf:
        """Return an argument's memory, from byte `offset` on, as elements of another dtype: a workspace of bytes as
        f32. The same bytes must not be accessed with different element widths: alias analysis compares indices only."""
        have, want = DTYPES[buf.dtype].nbytes, DTYPES[dtype].nbytes
        start = buf.offset * have + offset
        shift = start // want if isinstance(start, int) else floordiv(start, want)
        buffer = self._buffer(f"{buf.name}_{dtype}", max(buf.size * have // want, 1), dtype, "")
        self._emit(tirx.DeclBuffer(buffer.var, data=tirx.buffer.buffer_data(buf.var)))
        return Buf(buffer.name, (buf.size * have - offset) // want, dtype, buffer.var, shift)

    def _buffer(self, name: str, size: int, dtype: str, scope: str) -> Buf:
        if size < 1:
            raise CompileError(f"{self.name}: buffer {name} has no elements")
        # Arguments are declared as aligned to their elements only: unaligned vector loads cost the same, and callers'
        # arrays need no copy (numpy aligns to 16 bytes).
        align = DTYPES[dtype].nbytes if scope == "" else -1
        var = tirx.decl_buffer(
            (size,), tvm_dtype(dtype), name=self._unique(name), scope=scope, layout=None, data_alignment=align
        )
        return Buf(name, size, dtype, var)

    @property
    def size(self) -> int:
        """The number of names in it: of values, loops and buffers."""
        return self._count

    def _unique(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"

    def _emit(self, statement: Any) -> None:
        self._blocks[-1].append(statement)

    @contextmanager
    def _block(self, wrap: Callable[[Any], Any]) -> Iterator[None]:
        """Wrap the statements emitted within this context into one; if there are none, emit nothing."""
        self._blocks.append([])
        yield
        inner = self._blocks.pop()
        if inner:
            self._emit(wrap(inner[0] if len(inner) == 1 else tirx.SeqStmt(inner)))

    @contextmanager
    def loop(self, extent: Value, kind: str = "serial", name: str = "i") -> Iterator[Expr]:
        """A loop `for i in range(extent)`; kind: serial or parallel."""
        if isinstance(extent, int) and extent == 1:
            yield _int32(0)
            return
        var = tirx.Var(self._unique(name), "int32")
        if isinstance(extent, int):
            self.ranges.bind(var, extent)
        with self._block(lambda body: tirx.For(var, index(0), index(extent), _kind(kind), body)):
            yield var

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """A conditional on a scalar."""
        with self._block(lambda body: tirx.IfThenElse(condition, body, None)):
            yield

    def let(self, value: Expr, name: str = "v") -> Expr:
        """Bind a value to a name, so that it is computed once."""
        if isinstance(value, (int, float, tirx.Var)) or constant_value(value) is not None:
            return value
        dtype, lanes = _split(value)
        if dtype == "bool":  # bound as floats, since TVM's analyzer fails on vectors of bools; LLVM removes it
            return tirx.NE(self.let(_as_float(value), name), splat(const(0.0, "f32"), lanes))
        if dtype == "bf16":  # bound as f32: TVM legalizes bf16 in memory, but not in bound names
            return cast(self.let(cast(value, "f32"), name), "bf16")
        if lanes > 1 or dtype != "i32":
            # TVM's analyzer substitutes bound values, in time exponential in their nesting depth. It does not look into
            # memory, and LLVM promotes this buffer to a register.
            memory = self.local(name, lanes, dtype)
            self.store(memory, value, 0)
            value = self.load(memory, 0, lanes)
        var = tirx.Var(self._unique(name), _type(tvm_dtype(dtype, lanes)))
        self._emit(tirx.Bind(var, value))
        return var

    def named(self, value: Expr, kind: str) -> Expr:
        """Bind a scalar to a name as the result of a C++ conversion to `kind`, its own type: TVM substitutes other pure
        values where they are read, which makes code of exponential size."""
        if isinstance(value, (int, float, tirx.Var)) or constant_value(value) is not None:
            return value
        dtype = tvm_dtype(dtype_of(value))
        var = tirx.Var(self._unique("v"), dtype)
        self._emit(tirx.Bind(var, tirx.call_extern(dtype, kind, value)))
        return var

    def bind(self, value: Expr, name: str = "v") -> Expr:
        """Bind a value to a name directly, for blocked kernels, where the local buffer of `let` would cost registers;
        only for values in which bound names do not nest deeply."""
        if isinstance(value, (int, float, tirx.Var)):
            return value
        var = tirx.Var(self._unique(name), value.ty)
        self._emit(tirx.Bind(var, value))
        return var

    def load(self, buf: Buf, at: Value, lanes: int = 1) -> Expr:
        """Return buf[at], or `lanes` consecutive elements from there; `at` may be a vector of indices (gather)."""
        where = buf.index(at)
        return tirx.BufferLoad(buf.var, [ramp(where, lanes) if lanes > 1 else where])

    def prefetch(self, value: Expr) -> None:
        """Prefetch what a load reads, also behind the end of its buffer. Does nothing for other expressions, and for
        bf16, of which TVM cannot take the address."""
        if isinstance(value, tvm.ir.TensorLoad) and dtype_of(value) != "bf16":
            place = value.source.access_ptr("r", offset=value.indices[0])
            hints = (_int32(i) for i in (0, 3, 1))  # for reading, into all caches, data
            self._emit(tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", place, *hints)))

    def store(self, buf: Buf, value: Value, at: Value) -> None:
        """buf[at : at+lanes] = value; `at` may be a vector of indices (scatter)."""
        value = const(value, buf.dtype) if isinstance(value, int | float) else self._as(value, buf.dtype)
        where = buf.index(at)
        lanes, spread = lanes_of(value), lanes_of(where)
        if spread > 1:
            value = splat(value, spread)
        elif lanes > 1:
            where = ramp(where, lanes)
        self._emit(tirx.BufferStore(buf.var, value, [where]))

    def from_bf16_bits(self, bits: Expr) -> Expr:
        """Return bf16 values as f32, from their bits in the lower halves of u32 words; `store` as bf16 uses the
        bits."""
        bits = self.let(bits, "bits")
        f32_value = self.let(bitcast(bits << splat(const(16, "u32"), lanes_of(bits)), "f32"))
        self._bf16_bits[f32_value.name] = bits
        return f32_value

    def rounded_to_bf16(self, x: Expr) -> Expr | None:
        """Return 16 f32 values rounded to bf16 by an instruction, as f32; None for other vectors, or without
        `use(CONVERT_BF16)`. The instruction flushes denormals to 0, as those that multiply do."""
        if _split(x) != ("f32", 16) or CONVERT_BF16 not in self._used:
            return None
        return self.from_bf16_bits(tirx.call_pure_extern("uint16x16", "gluongraph_narrow", x).astype("uint32x16"))

    def _as(self, value: Expr, dtype: str) -> Expr:
        """Return the value cast; to bf16 by its bits, if they are known or an instruction computes them."""
        if dtype != "bf16":
            return cast(value, dtype)
        f32_value = (
            value if isinstance(value, tirx.Var) and value.name in self._bf16_bits else self.rounded_to_bf16(value)
        )
        if f32_value is None:
            return cast(value, dtype)
        lanes = lanes_of(f32_value)
        return tirx.reinterpret(tvm_dtype("bf16", lanes), self._bf16_bits[f32_value.name].astype(f"uint16x{lanes}"))

    def copy(self, source: Buf, target: Buf) -> None:
        """Copy all elements of one buffer to another."""
        with self.loop(target.size) as i:
            self.store(target, self.load(source, i), i)

    def scope(self) -> object:
        """Return the current block; `visible(scope)` says later whether its values may still be used."""
        return self._blocks[-1]

    def visible(self, scope: object) -> bool:
        """Is that block still open, so that its values are in scope?"""
        return any(block is scope for block in self._blocks)

    @contextmanager
    def nest(self, extents: Sequence[int]) -> Iterator[tuple[Expr, ...]]:
        """Serial loops over all extents, the last one innermost."""
        with ExitStack() as stack:
            yield tuple(stack.enter_context(self.loop(extent)) for extent in extents)

    @contextmanager
    def grid(self, blocks: int, threads: int) -> Iterator[Expr]:
        """A grid of GPU threads, which run the statements of this context; yields the thread's number in the grid."""
        with self._bound("blockIdx.x", blocks) as block, self._bound("threadIdx.x", threads) as thread:
            yield block * threads + thread

    @contextmanager
    def _bound(self, thread: str, extent: int) -> Iterator[Expr]:
        var = tirx.Var(self._unique(thread.replace(".", "_")), "int32")
        axis = tirx.IterVar(tvm.ir.Range(0, extent), tirx.Var(thread, "int32"), 1, thread)
        with self._block(lambda body: tirx.For(var, index(0), index(extent), 4, body, axis)):
            yield var

    @contextmanager
    def capture(self) -> Iterator[list[Any]]:
        """Capture the statements of this context: when it ends, the list that it yields contains them as one."""
        buffer: list[Any] = []
        self._blocks.append([])
        yield buffer
        buffer.append(_sequence(self._blocks.pop()))

    def put(self, statement: Any) -> None:
        """Emit a TVM statement."""
        self._emit(statement)

    def evaluate(self, call: Expr) -> None:
        """Emit a call for its side effect."""
        self._emit(tirx.Evaluate(call))

    def intrinsic(self, name: str, *args: Expr) -> None:
        """Emit an LLVM intrinsic for its side effect. An int after an address is a length in bytes, others are register
        numbers."""
        arguments = [
            (tirx.const(x, "int64" if i and not isinstance(args[i - 1], int) else "uint8") if isinstance(x, int) else x)
            for i, x in enumerate(args)
        ]
        self._emit(tirx.Evaluate(tirx.call_llvm_intrin("int32", name, *arguments)))

    def use(self, text: str) -> None:
        """Add LLVM functions that the kernel calls."""
        if text not in self._used:
            self._used.append(text)

    def call(self, name: str, *args: Value) -> None:
        """Emit a call of a C function of 64-bit integers and addresses, for its side effect."""
        arguments = [tirx.const(x, "int64") if isinstance(x, int) else x for x in args]
        self._emit(tirx.Evaluate(tirx.call_extern("int64", name, *arguments)))

    def ffi_values(self, name: str, count: int) -> Buf:
        """Return a stack buffer of `count` TVMFFIAny, each a tag and a value."""
        buffer = self._buffer(name, 2 * max(count, 1), "i64", "")
        self._emit(tirx.DeclBuffer(buffer.var, data=tirx.tvm_stack_alloca("tvm_ffi_any", max(count, 1))))
        return buffer

    def call_packed(self, function: str, args: Buf, count: int, result: Buf) -> None:
        """Call a packed function; if it fails, this one fails with its error."""
        arguments = (
            tirx.reinterpret("handle", tirx.const(0, "int64")),
            self.address(args, 0),
            _int32(count),
        )
        code = tirx.call_extern("int32", SYMBOL + function, *arguments, self.address(result, 0))
        found = tirx.Var(self._unique("code"), "int32")
        self._emit(tirx.Bind(found, code))
        with self.when(compare("not_equal", found, index(0))):
            self._emit(tirx.Evaluate(tirx.tvm_throw_last_error()))

    def return_unless_zero(self, address: Expr) -> None:
        """Return 0 from the function if the i32 at the address is not 0."""
        self.return_unless(compare("equal", self.load(self.memory("flag", address, 1, "i32"), 0), const(0, "i32")))

    def return_unless(self, condition: Expr) -> None:
        """Return 0 from the function if the condition does not hold."""
        with self.when(logical("not", condition)):
            self._emit(tirx.stmt.Return(index(0)))

    def memory(self, name: str, address: Expr, size: int, dtype: str) -> Buf:
        """Return the memory at an address, a handle or an i64, as a flat array."""
        buffer = self._buffer(name, size, dtype, "")
        data = tirx.reinterpret(tirx.buffer.buffer_data(buffer.var).ty, address)
        self._emit(tirx.DeclBuffer(buffer.var, data=data))
        return buffer

    def address(self, buf: Buf, at: Value) -> Expr:
        """Return the address of buf[at]."""
        return buf.var.access_ptr("rw", offset=index(at + buf.offset))

    def finish(self, params: Sequence[Expr] | None = None) -> PrimFunc:
        """Return the TVM function, with `params` instead of the tensors if they are set; the kernel must not be used
        afterwards."""
        (block,) = self._blocks
        body = _sequence(block)
        for text in self._used:
            body = tirx.AttrStmt(index(0), "pragma_import_llvm", tvm.ir.StringImm(text), body)
        func = tirx.PrimFunc(params or [p.var for p in self.params], body)
        attrs = {"global_symbol": self.name, "tirx.noalias": True, "s_tir": True}
        return func.with_attrs(attrs)


class Inline(Kernel):
    """A Kernel for pure expressions, which binds no names."""

    def let(self, value: Expr, name: str = "v") -> Expr:
        """Return the value itself."""
        return value


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _kind(kind: str) -> Any:
    return {"serial": 0, "parallel": 1}[kind]


def name_of(function: PrimFunc) -> str:
    """Return the name of a finished kernel."""
    return str(function.attrs["global_symbol"])
