"""The one module of codegen that touches TVM: kernels written as loops over flat buffers, and their compilation.

TVM is untyped, so everything it hands out is an `Expr`, a `Buf` or opaque here, and whatever depends on TVM's
version (0.27: buffers are variables, `Bind` statements instead of nested lets) stays in this file.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError

Expr = Any  # a TVM expression: scalar, or vector of `lanes_of(x)` elements
PrimFunc = Any
Value = Expr | int | float | bool


class _Lazy:
    """A module imported at first use: a warm start, with its artefact in the cache, never loads TVM's compiler."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


tvm = _Lazy("tvm")
tirx = _Lazy("tvm.tirx")
relax = _Lazy("tvm.relax")


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


def ramp(base: Value, lanes: int, stride: int = 1) -> Expr:
    """base, base+stride, ... : the index vector of `lanes` elements."""
    return index(base) if lanes == 1 else tirx.Ramp(index(base), tirx.const(stride, "int32"), lanes)


def llvm(name: str, dtype: str, lanes: int, *args: Expr) -> Expr:
    """A pure LLVM intrinsic: llvm('llvm.fma', 'f32', 16, a, b, c)."""
    return tirx.call_llvm_pure_intrin(tvm_dtype(dtype, lanes), name, *args)


def fma(a: Value, b: Value, c: Expr) -> Expr:
    """a * b + c, rounded once."""
    dtype, lanes = _split(c)
    return llvm("llvm.fma", dtype, lanes, splat(a, lanes, dtype), splat(b, lanes, dtype), c)


def lane_sum(x: Expr) -> Expr:
    """The sum over the lanes of a float vector, as a fixed tree."""
    dtype, lanes = _split(x)
    if lanes == 1:
        return x
    total = tirx.call_llvm_pure_intrin(tvm_dtype(dtype), "llvm.vector.reduce.fadd", const(-0.0, dtype), x)
    return total


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

    def __init__(self, name: str):
        self.name = name
        self.params: list[Buf] = []
        self._blocks: list[list[Any]] = [[]]
        self._count = 0

    def param(self, name: str, size: int, dtype: str) -> Buf:
        """The next argument: a tensor of one axis and `size` elements, at any address that suits its dtype."""
        made = self._buffer(name, size, dtype, "")
        self.params.append(made)
        return made

    def local(self, name: str, size: int, dtype: str) -> Buf:
        """Memory on the stack of the thread that runs here; small constant indices become registers."""
        made = self._buffer(name, size, dtype, "local")
        self._emit(tirx.AllocBuffer(made.var))
        return made

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
        """for i in range(extent); kind: serial, parallel, unrolled."""
        if isinstance(extent, int) and extent == 1:
            yield tirx.const(0, "int32")
            return
        var = tirx.Var(self._unique(name), "int32")
        with self._block(lambda body: tirx.For(var, index(0), index(extent), _kind(kind), body)):
            yield var

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """if condition: (a scalar one)."""
        with self._block(lambda body: tirx.IfThenElse(condition, body, None)):
            yield

    def let(self, value: Expr, name: str = "v") -> Expr:
        """Name a value, so that it is computed once."""
        if isinstance(value, (int, float, tirx.Var)):
            return value
        var = tirx.Var(self._unique(name), str(value.ty).strip('"'))
        self._emit(tirx.Bind(var, value))
        return var

    def load(self, buf: Buf, at: Value, lanes: int = 1) -> Expr:
        """buf[at], or `lanes` consecutive elements from there; `at` may itself be a vector of indices (gather)."""
        where = index(at + buf.offset)
        return tirx.BufferLoad(buf.var, [ramp(where, lanes) if lanes > 1 else where])

    def store(self, buf: Buf, value: Value, at: Value) -> None:
        """buf[at : at+lanes] = value; `at` may be a vector of indices (scatter)."""
        if isinstance(value, int | float):
            value = const(value, buf.dtype)
        where = index(at + buf.offset)
        lanes, spread = lanes_of(value), lanes_of(where)
        if spread > 1:
            value = splat(value, spread)
        elif lanes > 1:
            where = ramp(where, lanes)
        self._emit(tirx.BufferStore(buf.var, value, [where]))

    def evaluate(self, call: Expr) -> None:
        """A call for its effect."""
        self._emit(tirx.Evaluate(call))

    def finish(self) -> PrimFunc:
        """The TVM function; the kernel is not to be used afterwards."""
        (block,) = self._blocks
        body = block[0] if len(block) == 1 else tirx.SeqStmt(block)
        func = tirx.PrimFunc([p.var for p in self.params], body)
        attrs = {"global_symbol": self.name, "tirx.noalias": True, "s_tir": True}
        return func.with_attrs(attrs)


def _kind(kind: str) -> Any:
    return {"serial": 0, "parallel": 1, "unrolled": 3}[kind]


def make_target(options: dict[str, Any]) -> Any:
    """A TVM target from its options; raises CompileError when TVM does not know it."""
    try:
        return tvm.target.Target(options)
    except Exception as error:
        raise CompileError(f"no such target: {options}: {error}") from error


def build_kernels(functions: Sequence[PrimFunc], options: dict[str, Any]) -> Any:
    """Compile kernels alone (for tests and probes): `build_kernels([f], target)['name'](*tensors)`."""
    module = tvm.IRModule({f.attrs["global_symbol"]: f for f in functions})
    return tirx.build(module, make_target(options), pipeline="s_tir")


@dataclass(frozen=True)
class Call:
    """One kernel call of an entry point, by positions among the entry's arguments."""

    kernel: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One callable of an artefact: its arguments as (shape, dtype), and the kernels it runs in order."""

    args: tuple[tuple[tuple[int, ...], str], ...]
    calls: tuple[Call, ...]


def link(functions: Sequence[PrimFunc], entries: dict[str, Entry], options: dict[str, Any]) -> Any:
    """Kernels and entry points -> one executable of TVM's virtual machine, without its per-call shape checks."""
    builder = relax.BlockBuilder()
    symbols = {f.attrs["global_symbol"]: builder.add_func(f, f.attrs["global_symbol"]) for f in functions}
    for name, entry in entries.items():
        args = [
            relax.Var(f"a{i}", relax.TensorType(shape, tvm_dtype(dtype))) for i, (shape, dtype) in enumerate(entry.args)
        ]
        with builder.function(name, args, pure=False):
            for call in entry.calls:
                builder.emit(relax.Call(symbols[call.kernel], [args[i] for i in call.args], None, None))
            builder.emit_func_output(relax.Tuple([]))
    passes = [
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    return relax.build(builder.get(), make_target(options), relax_pipeline=tvm.transform.Sequential(passes), tir_pipeline="s_tir")


def export(executable: Any, path: str) -> None:
    """Write the executable as a shared library; raises CompileError where there is no C compiler to link with."""
    try:
        executable.export_library(path)
    except (RuntimeError, OSError) as error:
        raise CompileError(f"cannot link {path}: {error}") from error


def in_memory(executable: Any) -> Any:
    """The executable as a module that is ready to load, where nothing can be linked."""
    return executable.mod
