"""A builder of TIR kernels: loops over flat buffers, which `machine_code.py` compiles.

TVM is untyped, so everything it hands out is an `Expr`, a `Buf` or opaque here, and whatever depends on how TVM 0.27
writes loops (buffers are variables, `Bind` statements instead of nested lets) stays in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError
from gluongraph.host.process import import_tvm

Expr = Any  # a TVM expression: scalar, or vector of `lanes_of(x)` elements
PrimFunc = Any
Value = Expr | int | float | bool


class Lazy:
    """A module imported at first use: a warm start, with its artefact in the cache, never loads TVM's compiler."""

    def __init__(self, name: str):
        self._name = name
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_tvm(self._name)
        return getattr(self._module, attribute)


tvm = Lazy("tvm")
tirx = Lazy("tvm.tirx")

SYMBOL = "__tvm_ffi_"  # before the name of a function, in libraries


def tvm_dtype(dtype: str, lanes: int = 1) -> str:
    """'f32', 16 -> 'float32x16'."""
    return DTYPES[dtype].long + (f"x{lanes}" if lanes > 1 else "")


_SHORT = {row.long: row.name for row in DTYPES.values()}


def _split(x: Expr) -> tuple[str, int]:
    text = str(x.ty).strip('"')
    name, _, lanes = text.partition("x")
    return _SHORT[name], int(lanes or 1)


def dtype_of(x: Expr) -> str:
    """Short element dtype of an expression."""
    return _split(x)[0]


def lanes_of(x: Value) -> int:
    """Number of lanes: 1 for scalars and Python numbers."""
    return 1 if isinstance(x, int | float) else _split(x)[1]


def const(value: float | int | bool, dtype: str) -> Expr:
    """A scalar constant."""
    return tirx.const(value, tvm_dtype(dtype))


def index(value: Value) -> Expr:
    """An i32 index expression from a Python int or an expression."""
    return tirx.const(value, "int32") if isinstance(value, int) else value


def splat(x: Value, lanes: int, dtype: str = "f32") -> Expr:
    """x in every lane; vectors pass through."""
    if isinstance(x, int | float):
        x = const(x, dtype)
    return x if lanes == 1 or lanes_of(x) == lanes else tirx.Broadcast(x, lanes)


def floordiv(a: Value, b: Value) -> Expr:
    """a // b of index expressions, rounded down."""
    return tirx.floordiv(index(a), index(b))


def floormod(a: Value, b: Value) -> Expr:
    """a mod b of index expressions, with the sign of b."""
    return tirx.floormod(index(a), index(b))


def minimum(a: Value, b: Value) -> Expr:
    """The smaller of two index expressions."""
    return tirx.min(index(a), index(b))


def maximum(a: Value, b: Value) -> Expr:
    """The larger of two index expressions."""
    return tirx.max(index(a), index(b))


def cast(x: Expr, dtype: str) -> Expr:
    """x, lane by lane, as another dtype."""
    have, lanes = _split(x)
    if have == dtype:
        return x
    if have == "bf16":  # by its bits: TVM 0.27 forgets the conversion where the value is bound to a name
        suffix = f"x{lanes}" if lanes > 1 else ""
        bits = tirx.reinterpret(f"uint16{suffix}", x).astype(tvm_dtype("u32", lanes))
        wide = tirx.reinterpret(tvm_dtype("f32", lanes), bits << splat(const(16, "u32"), lanes))
        return cast(wide, dtype)
    return x.astype(tvm_dtype(dtype, lanes))


def ramp(base: Value, lanes: int, stride: int = 1) -> Expr:
    """base, base+stride, ... : the index vector of `lanes` elements."""
    return index(base) if lanes == 1 else tirx.Ramp(index(base), tirx.const(stride, "int32"), lanes)


def llvm(name: str, dtype: str, lanes: int, *args: Expr) -> Expr:
    """A pure LLVM intrinsic: llvm('llvm.fma', 'f32', 16, a, b, c)."""
    return tirx.call_llvm_pure_intrin(tvm_dtype(dtype, lanes), name, *args)


def dot(sums: Expr, a: Expr, b: Expr) -> Expr:
    """sums + a * b for vectors of 16 words, each word a pair of bf16 that is multiplied with the other's and added.
    The kernel must have said `k.use(DOT)`."""
    return tirx.call_pure_extern("float32x16", "gluongraph_dot", sums, a, b)


# A function of LLVM's, since TVM makes float32 of the arguments that its instruction takes as bf16.
DOT = """
define linkonce_odr <16 x float> @gluongraph_dot(<16 x float> %s, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %p = bitcast <16 x i32> %a to <32 x bfloat>
  %q = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s, <32 x bfloat> %p, <32 x bfloat> %q)
  ret <16 x float> %r
}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
"""


def halves(first: Expr, second: Expr) -> Expr:
    """16 words of two vectors of 16 f32 numbers, rounded to bf16 and laid end to end.
    The kernel must have said `k.use(NARROW)`."""
    return tirx.call_pure_extern("uint32x16", "gluongraph_halves", first, second)


def pairs(first: Expr, second: Expr) -> Expr:
    """The same with a number of the first in the lower half of each word and one of the second in the upper half."""
    return tirx.call_pure_extern("uint32x16", "gluongraph_pairs", first, second)


# The instruction rounds to the nearest, halves to even; it lays its second operand into the lower lanes.
NARROW = """
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
    """The lanes of that number, counted through all the vectors (of one dtype) laid end to end."""
    return tirx.Shuffle(list(vectors), [tirx.const(i, "int32") for i in lanes])


def lanes(x: Expr) -> list[Expr]:
    """The lanes of a vector as scalars."""
    return [shuffle([x], [i]) for i in range(lanes_of(x))]


def parts(x: Expr) -> tuple[Expr, int] | None:
    """Base and stride of a vector of evenly spaced indices; None of anything else."""
    return (x.base, int(x.stride.value)) if isinstance(x, tirx.Ramp) else None


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """yes where condition, else no; both are computed. Scalars spread to the lanes of the others."""
    lanes = max(lanes_of(condition), lanes_of(yes), lanes_of(no))
    return tirx.Select(splat(condition, lanes), splat(yes, lanes), splat(no, lanes))


def _as_number(x: Expr) -> Expr:
    lanes = lanes_of(x)
    return tirx.Select(x, splat(const(1.0, "f32"), lanes), splat(const(0.0, "f32"), lanes))


_COMPARE = {"equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT", "greater_equal": "GE"}


def compare(name: str, a: Expr, b: Expr) -> Expr:
    """A bool per lane; anything but not_equal is false where a NaN takes part."""
    lanes = max(lanes_of(a), lanes_of(b))
    a, b = splat(a, lanes), splat(b, lanes)
    if dtype_of(a) == "bool":
        a, b = _as_number(a), _as_number(b)
    return getattr(tirx, _COMPARE[name])(a, b)


def logical(name: str, *args: Expr) -> Expr:
    """and, or, not of bools, lane by lane."""
    lanes = max(map(lanes_of, args))
    return {"and": tirx.And, "or": tirx.Or, "not": tirx.Not}[name](*(splat(a, lanes) for a in args))


def bitcast(x: Expr, dtype: str) -> Expr:
    """The same bits as another dtype of equal width."""
    return tirx.reinterpret(tvm_dtype(dtype, lanes_of(x)), x)


def words(x: Expr) -> Expr:
    """A vector of 16-bit numbers as 32-bit words of two neighbours each, the first in the lower half."""
    return tirx.reinterpret(tvm_dtype("u32", lanes_of(x) // 2), x)


def libm(name: str, *args: Expr) -> Expr:
    """A function of the C library (or an instruction, for sqrt): one scalar call per lane."""
    return getattr(tirx, name)(*args)


def external(name: str, dtype: str, *args: Expr) -> Expr:
    """A pure C function by its name, one scalar call per lane."""
    return tirx.call_pure_extern(tvm_dtype(dtype), name, *args)


def same(x: Expr, y: Expr) -> bool:
    """Are these one value, spread to lanes or not?"""
    x, y = (e.value if isinstance(e, tirx.Broadcast) else e for e in (x, y))
    return bool(x.same_as(y))


def number_of(x: Expr) -> float | int | None:
    """The value of a constant, None of anything else."""
    x = x.value if isinstance(x, tirx.Broadcast) else x
    return x.value if isinstance(x, (tirx.IntImm, tirx.FloatImm)) else None


class Ranges:
    """What is known of index variables; simplifies index arithmetic and finds how it depends on one variable."""

    def __init__(self) -> None:
        self._analyzer = tvm.sym.Analyzer()

    def bind(self, var: Expr, extent: int) -> None:
        """0 <= var < extent from now on."""
        if isinstance(var, tirx.Var):
            self._analyzer.bind(var, tvm.ir.Range(0, extent))

    def within(self, x: Value, extent: int) -> bool:
        """Is 0 <= x < extent known?"""
        bound = self._analyzer.const_int_bound(index(x))
        return int(bound.min_value) >= 0 and int(bound.max_value) < extent

    def simplify(self, x: Value) -> Expr:
        """An equal expression, simpler where the ranges allow."""
        return self._analyzer.simplify(index(x))

    def linear(self, x: Expr, var: Expr) -> tuple[int, Expr] | None:
        """(c, base) with x == c * var + base and c a number, if x is of that form."""
        if not isinstance(var, tirx.Var):
            return 0, x
        found = tvm.sym.detect_linear_equation(x, [var])
        if len(found) != 2 or not isinstance(found[0], tirx.IntImm):
            return None
        return int(found[0].value), found[1]


_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max"})


def variable(name: str) -> Expr:
    """An i32 variable, to stand for an index while it is being worked out."""
    return tirx.Var(name, "int32")


def one_lane(x: Expr, ramp: Expr, var: Expr) -> Expr | None:
    """The index vector x, made from `ramp` by arithmetic, as a function of one scalar: `var` in place of `ramp`.
    None if x was made from something else too, such as loaded indices."""
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
    """A flat run of `size` elements: an argument of the kernel, or memory of its own; `offset` shifts every index."""

    name: str
    size: int
    dtype: str
    var: Any
    offset: Value = 0

    def at(self, offset: Value) -> Buf:
        """The same memory from `offset` elements on."""
        return Buf(self.name, self.size, self.dtype, self.var, self.offset + offset)


class Kernel:
    """Builds one function of the artefact, statement by statement.

    >>> k = Kernel("twice")
    >>> x, y = k.param("x", 64, "f32"), k.param("y", 64, "f32")
    >>> with k.loop(4, "parallel") as i:
    ...     k.store(y, k.load(x, i * 16, 16) * 2.0, i * 16)
    >>> k.finish().attrs["global_symbol"]
    'twice'
    """

    # TVM 0.27 puts memory on the stack of a CPU's thread only if it is called global; "local", which is what a GPU's
    # threads need, would be a call to allocate.
    local_scope = "global"

    def __init__(self, name: str):
        self.name = name
        self.params: list[Buf] = []
        self._blocks: list[list[Any]] = [[]]
        self._count = 0
        self._used: list[str] = []
        self._halves: dict[str, Expr] = {}  # names of what `widened` made, and the bits
        self.ranges = Ranges()

    def param(self, name: str, size: int, dtype: str) -> Buf:
        """The next argument: a tensor of one axis and `size` elements, at any address that suits its dtype."""
        made = self._buffer(name, size, dtype, "")
        self.params.append(made)
        return made

    def local(self, name: str, size: int, dtype: str) -> Buf:
        """Memory of the thread that runs here; below 1 KiB on its stack, and registers where the indices are constants.
        Larger memory costs a call for each parallel chunk, and stays memory."""
        made = self._buffer(name, size, dtype, self.local_scope)
        self._emit(tirx.AllocBuffer(made.var))
        return made

    def view(self, buf: Buf, dtype: str, offset: int = 0) -> Buf:
        """The memory of an argument, from byte `offset` on, as elements of another dtype: a workspace of bytes as f32.
        The same bytes are not to be used as elements of other widths too: compilers tell accesses apart by index."""
        have, want = DTYPES[buf.dtype].nbytes, DTYPES[dtype].nbytes
        start = buf.offset * have + offset
        shift = start // want if isinstance(start, int) else floordiv(start, want)
        made = self._buffer(f"{buf.name}_{dtype}", max(buf.size * have // want, 1), dtype, "")
        self._emit(tirx.DeclBuffer(made.var, data=tirx.buffer.buffer_data(buf.var)))
        return Buf(made.name, (buf.size * have - offset) // want, dtype, made.var, shift)

    def _buffer(self, name: str, size: int, dtype: str, scope: str) -> Buf:
        if size < 1:
            raise CompileError(f"{self.name}: buffer {name} has no elements")
        # Arguments are declared aligned to their elements only: vector loads cost the same, and callers' arrays
        # need no copy (numpy aligns to 16 bytes).
        align = DTYPES[dtype].nbytes if scope == "" else -1
        var = tirx.decl_buffer(
            (size,), tvm_dtype(dtype), name=self._unique(name), scope=scope, layout=None, data_alignment=align
        )
        return Buf(name, size, dtype, var)

    def _unique(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"

    def _emit(self, statement: Any) -> None:
        self._blocks[-1].append(statement)

    @contextmanager
    def _block(self, wrap: Callable[[Any], Any]) -> Iterator[None]:
        """Statements made inside become one, wrapped; none at all vanish."""
        self._blocks.append([])
        yield
        inner = self._blocks.pop()
        if inner:
            self._emit(wrap(inner[0] if len(inner) == 1 else tirx.SeqStmt(inner)))

    @contextmanager
    def loop(self, extent: Value, kind: str = "serial", name: str = "i") -> Iterator[Expr]:
        """for i in range(extent); kind: serial or parallel."""
        if isinstance(extent, int) and extent == 1:
            yield tirx.const(0, "int32")
            return
        var = tirx.Var(self._unique(name), "int32")
        if isinstance(extent, int):
            self.ranges.bind(var, extent)
        with self._block(lambda body: tirx.For(var, index(0), index(extent), _kind(kind), body)):
            yield var

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """if condition: (a scalar one)."""
        with self._block(lambda body: tirx.IfThenElse(condition, body, None)):
            yield

    def let(self, value: Expr, name: str = "v") -> Expr:
        """Name a value, so that it is computed once."""
        if isinstance(value, (int, float, tirx.Var)) or number_of(value) is not None:
            return value
        dtype, lanes = _split(value)
        if dtype == "bool":  # under a name a number, since TVM's analyzer fails on vectors of bools; LLVM folds it away
            return tirx.NE(self.let(_as_number(value), name), splat(const(0.0, "f32"), lanes))
        if dtype == "bf16":  # under a name f32, since TVM makes f32 of it in memory but not of the name
            return cast(self.let(cast(value, "f32"), name), "bf16")
        if lanes > 1 or dtype != "i32":
            # TVM's analyzer puts every named value in place of its name, in time exponential in how deep they nest.
            # It does not look into memory, and LLVM makes this a register again.
            memory = self.local(name, lanes, dtype)
            self.store(memory, value, 0)
            value = self.load(memory, 0, lanes)
        var = tirx.Var(self._unique(name), tvm_dtype(dtype, lanes))
        self._emit(tirx.Bind(var, value))
        return var

    def named(self, value: Expr, kind: str) -> Expr:
        """Name a scalar as the result of a C++ conversion to `kind`, its own type: TVM puts other pure values into
        every place that reads them, which makes code of exponential size."""
        if isinstance(value, (int, float, tirx.Var)) or number_of(value) is not None:
            return value
        dtype = tvm_dtype(dtype_of(value))
        var = tirx.Var(self._unique("v"), dtype)
        self._emit(tirx.Bind(var, tirx.call_extern(dtype, kind, value)))
        return var

    def bind(self, value: Expr, name: str = "v") -> Expr:
        """Name a value that holds few other names: what `let` is to elementwise code, for blocked kernels, whose
        registers a detour through memory would cost."""
        if isinstance(value, (int, float, tirx.Var)):
            return value
        var = tirx.Var(self._unique(name), tvm_dtype(*_split(value)))
        self._emit(tirx.Bind(var, value))
        return var

    def load(self, buf: Buf, at: Value, lanes: int = 1) -> Expr:
        """buf[at], or `lanes` consecutive elements from there; `at` may itself be a vector of indices (gather)."""
        where = index(at + buf.offset)
        return tirx.BufferLoad(buf.var, [ramp(where, lanes) if lanes > 1 else where])

    def fetch(self, value: Expr) -> None:
        """Ask memory for what a load will read a while later, even behind the end of its buffer; of anything else that
        is no load, and of bfloat16, of which TVM has no address, for nothing."""
        if isinstance(value, tvm.ir.TensorLoad) and dtype_of(value) != "bf16":
            place = value.source.access_ptr("r", offset=value.indices[0])
            how = (tirx.const(i, "int32") for i in (0, 3, 1))  # to be read, into every cache, data
            self._emit(tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", place, *how)))

    def store(self, buf: Buf, value: Value, at: Value) -> None:
        """buf[at : at+lanes] = value; `at` may be a vector of indices (scatter)."""
        value = const(value, buf.dtype) if isinstance(value, int | float) else self._as(value, buf.dtype)
        where = index(at + buf.offset)
        lanes, spread = lanes_of(value), lanes_of(where)
        if spread > 1:
            value = splat(value, spread)
        elif lanes > 1:
            where = ramp(where, lanes)
        self._emit(tirx.BufferStore(buf.var, value, [where]))

    def widened(self, bits: Expr) -> Expr:
        """bf16 numbers as f32, from bits in the lower halves of u32 words: to store them as bf16 is to store these."""
        bits = self.let(bits, "bits")
        wide = self.let(bitcast(bits << splat(const(16, "u32"), lanes_of(bits)), "f32"))
        self._halves[wide.name] = bits
        return wide

    def narrowed(self, x: Expr) -> Expr | None:
        """f32 numbers rounded to bf16, and `widened`: 16 of them, by an instruction, if the kernel has said
        `use(NARROW)`. It makes 0 of subnormal numbers, as the instructions that multiply do."""
        if _split(x) != ("f32", 16) or NARROW not in self._used:
            return None
        return self.widened(tirx.call_pure_extern("uint16x16", "gluongraph_narrow", x).astype("uint32x16"))

    def _as(self, value: Expr, dtype: str) -> Expr:
        """The value cast; to bf16 by its bits, if they are known or an instruction finds them."""
        if dtype != "bf16":
            return cast(value, dtype)
        wide = value if isinstance(value, tirx.Var) and value.name in self._halves else self.narrowed(value)
        if wide is None:
            return cast(value, dtype)
        lanes = lanes_of(wide)
        return tirx.reinterpret(tvm_dtype("bf16", lanes), self._halves[wide.name].astype(f"uint16x{lanes}"))

    def copy(self, source: Buf, target: Buf) -> None:
        """All elements of one buffer into another."""
        with self.loop(target.size) as i:
            self.store(target, self.load(source, i), i)

    def scope(self) -> object:
        """The block that statements go to now; `visible(scope)` later says whether its values may still be used."""
        return self._blocks[-1]

    def visible(self, scope: object) -> bool:
        """Is that block still open? Only then do its values reach here."""
        return any(block is scope for block in self._blocks)

    @contextmanager
    def nest(self, extents: Sequence[int]) -> Iterator[tuple[Expr, ...]]:
        """Serial loops over all the extents, the last one innermost."""
        with ExitStack() as stack:
            yield tuple(stack.enter_context(self.loop(extent)) for extent in extents)

    @contextmanager
    def grid(self, blocks: int, threads: int) -> Iterator[Expr]:
        """Every thread of a GPU's grid runs what is made inside; yields its number, counted over all blocks."""
        with self._bound("blockIdx.x", blocks) as block, self._bound("threadIdx.x", threads) as thread:
            yield block * threads + thread

    @contextmanager
    def _bound(self, thread: str, extent: int) -> Iterator[Expr]:
        var = tirx.Var(self._unique(thread.replace(".", "_")), "int32")
        axis = tirx.IterVar(tvm.ir.Range(0, extent), tirx.Var(thread, "int32"), 1, thread)
        with self._block(lambda body: tirx.For(var, index(0), index(extent), 4, body, axis)):
            yield var

    @contextmanager
    def aside(self) -> Iterator[list[Any]]:
        """Statements made inside go nowhere but into the list that is yielded: once the block ends, it holds one."""
        made: list[Any] = []
        self._blocks.append([])
        yield made
        made.append(_sequence(self._blocks.pop()))

    def put(self, statement: Any) -> None:
        """A statement that was made elsewhere."""
        self._emit(statement)

    def evaluate(self, call: Expr) -> None:
        """A call for its effect."""
        self._emit(tirx.Evaluate(call))

    def intrinsic(self, name: str, *args: Expr) -> None:
        """An LLVM intrinsic for its effect. A number behind an address is a length in bytes, others name registers."""
        given = [
            (tirx.const(x, "int64" if i and not isinstance(args[i - 1], int) else "uint8") if isinstance(x, int) else x)
            for i, x in enumerate(args)
        ]
        self._emit(tirx.Evaluate(tirx.call_llvm_intrin("int32", name, *given)))

    def use(self, text: str) -> None:
        """Functions in LLVM's language that the kernel calls."""
        if text not in self._used:
            self._used.append(text)

    def call(self, name: str, *args: Value) -> None:
        """A C function of 64-bit numbers and addresses, for its effect."""
        given = [tirx.const(x, "int64") if isinstance(x, int) else x for x in args]
        self._emit(tirx.Evaluate(tirx.call_extern("int64", name, *given)))

    def values(self, name: str, count: int) -> Buf:
        """Room for so many TVMFFIAny, each a tag and a value, on the stack whatever their number."""
        made = self._buffer(name, 2 * max(count, 1), "i64", "")
        self._emit(tirx.DeclBuffer(made.var, data=tirx.tvm_stack_alloca("tvm_ffi_any", max(count, 1))))
        return made

    def succeed(self, function: str, args: Buf, count: int, result: Buf) -> None:
        """Call a packed function; where it fails, this one does, with the error that it has left."""
        given = (tirx.reinterpret("handle", tirx.const(0, "int64")), self.address(args, 0), tirx.const(count, "int32"))
        code = tirx.call_extern("int32", SYMBOL + function, *given, self.address(result, 0))
        found = tirx.Var(self._unique("code"), "int32")
        self._emit(tirx.Bind(found, code))
        with self.when(compare("not_equal", found, index(0))):
            self._emit(tirx.Evaluate(tirx.tvm_throw_last_error()))

    def return_unless_zero(self, address: Expr) -> None:
        """Return 0 from the function where there is another i32 than 0 at the address."""
        flag = self._buffer("flag", 1, "i32", "")
        self._emit(tirx.DeclBuffer(flag.var, data=tirx.reinterpret(tirx.buffer.buffer_data(flag.var).ty, address)))
        with self.when(compare("not_equal", self.load(flag, 0), const(0, "i32"))):
            self._emit(tirx.stmt.Return(index(0)))

    def address(self, buf: Buf, at: Value) -> Expr:
        """Where buf[at] lies."""
        return buf.var.access_ptr("rw", offset=index(at + buf.offset))

    def finish(self, params: Sequence[Expr] | None = None) -> PrimFunc:
        """The TVM function, of other parameters than tensors where some are given; the kernel is not to be used
        afterwards."""
        (block,) = self._blocks
        body = _sequence(block)
        for text in self._used:
            body = tirx.AttrStmt(index(0), "pragma_import_llvm", tvm.ir.StringImm(text), body)
        func = tirx.PrimFunc(params or [p.var for p in self.params], body)
        attrs = {"global_symbol": self.name, "tirx.noalias": True, "s_tir": True}
        return func.with_attrs(attrs)


class Inline(Kernel):
    """Stands where a kernel is wanted to name values, and names none."""

    def let(self, value: Expr, name: str = "v") -> Expr:
        """The value itself."""
        return value


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _kind(kind: str) -> Any:
    return {"serial": 0, "parallel": 1}[kind]


def name_of(function: PrimFunc) -> str:
    """What a finished kernel is called."""
    return str(function.attrs["global_symbol"])
