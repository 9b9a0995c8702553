"""Tensor expressions and GPU schedules: the part of TVM that codegen uses besides `tir`, imported here only.

A kernel is first defined as `te.compute` stages, then scheduled by one of dlight's rules, then emitted
(`emit_scheduled`): its arguments become the flat buffers of the launch, and where the last stage is stored, a callback
emits the epilogue, which may compute and store any number of results, also in place.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gluongraph.codegen.tvm.machine_code import make_target
from gluongraph.codegen.tvm.tir import (
    Buf,
    Expr,
    Kernel,
    LazyModule,
    PrimFunc,
    Value,
    index,
    maximum,
    minimum,
    name_of,
    tirx,
    tvm,
    tvm_dtype,
)

Tensor = Any  # a stage or a placeholder
Shape = tuple[int, ...]
RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "RMSNorm")  # of dlight, in the order they are tried
_VECTORIZED = 2  # of TVM's ForKind
FINISHED_CALL = "gluongraph_finished"  # the call that the last stage is


te = LazyModule("tvm.te")
s_tir = LazyModule("tvm.s_tir")
ffi = LazyModule("tvm_ffi")
gpu = LazyModule("tvm.s_tir.dlight.gpu")


def placeholder(name: str, shape: Shape, dtype: str) -> Tensor:
    """Return an array in memory."""
    return te.placeholder(shape, tvm_dtype(dtype), name)


def compute(name: str, shape: Shape, element: Callable[..., Expr]) -> Tensor:
    """Return a stage whose elements are element(*index)."""
    return te.compute(shape, element, name)


def fold(name: str, extents: Sequence[int], element: Callable[..., Expr]) -> Expr:
    """Return the sum, prod, max or min of element(*r) over all r below the extents; it must be all that a stage
    computes."""
    axes = [te.reduce_axis((0, n), f"r{i}") for i, n in enumerate(extents)]
    value = element(*(axis.var for axis in axes))
    if name == "prod":
        product = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype))
        return product(value, axis=axes)
    return {"sum": te.sum, "max": te.max, "min": te.min}[name](value, axis=axes)


def finished(values: Sequence[Expr]) -> Expr:
    """Return the last stage's element: a placeholder for what the epilogue computes from these values."""
    return tirx.call_pure_extern("float32", FINISHED_CALL, *values)


def schedules(
    stages: Sequence[Tensor], options: dict[str, Any], rules: Iterable[str]
) -> Iterator[tuple[str, PrimFunc]]:
    """Iterate over (rule, scheduled function) of the dlight rules that can schedule these stages with all loops bound
    to threads."""
    func = te.create_prim_func(list(stages))
    target = make_target(options)
    for name in rules:
        try:
            schedule = getattr(gpu, name)().apply(func, target, False)
        except (s_tir.ScheduleError, AssertionError, ValueError, TypeError, IndexError, RuntimeError):
            continue  # dlight raises where it should decline
        if schedule is None:
            continue
        scheduled = _within_grid_limits(schedule.mod["main"])
        if _is_bound(scheduled) and _stores(scheduled.body, {scheduled.params[-1]}) == 1:
            yield name, scheduled


def emit_scheduled(
    func: PrimFunc,
    kernel: Kernel,
    inputs: Sequence[tuple[Buf, Shape]],
    write: Callable[[tuple[Expr, ...], tuple[Expr, ...]], None],
    out_of_bounds: Container[int] = (),
) -> None:
    """Emit the loops of a scheduled function into a kernel: input i is read from a flat buffer, and where the last
    stage is stored, `write(index, values)` emits the epilogue.

    Inputs `out_of_bounds` may be read beyond their ends, by values that are discarded, such as those at a convolution's
    padding: schedules copy them to shared memory unconditionally. Their indices are clamped.
    """
    func = s_tir.renew_defs(func)  # definitions must be unique
    *params, result = func.params
    flats = {p: (buf, shape) for p, (buf, shape) in zip(params, inputs, strict=True)}
    clamped = {p for i, p in enumerate(params) if i in out_of_bounds}

    def load(node: Any) -> Any:
        if node.source not in flats:
            return node
        buf, shape = flats[node.source]
        at = _flat(shape, node.indices)
        return kernel.load(buf, maximum(minimum(at, buf.size - 1), 0) if node.source in clamped else at)

    def store(node: Any) -> Any:
        if not node.buffer.same_as(result):
            return node
        with kernel.capture() as statements:
            marked = isinstance(node.value, tvm.ir.Call) and node.value.args[0] == FINISHED_CALL
            write(tuple(node.indices), tuple(node.value.args[1:]) if marked else (node.value,))
        return statements[0]

    def block(node: Any) -> Any:
        """Replace the regions of arguments by those of the entire flat buffers: they allocate nothing."""
        reads, writes = [[r for r in rs if r.source not in flats and not r.source.same_as(result)] for rs in
                         (node.reads, node.writes)]  # fmt: skip
        if len(writes) < len(node.writes):  # the last stage: its statements may touch any argument
            reads += [_full_region(p) for p in kernel.params]
            writes += [_full_region(p) for p in kernel.params]
        else:
            reads += [_full_region(flats[r.source][0]) for r in node.reads if r.source in flats]
        return s_tir.SBlock(
            node.iter_vars, reads, writes, node.name_hint, node.body, node.init,
            node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    def loop(node: Any) -> Any:
        """Keep vector loops only if they copy or multiply: TVM loses bound names in them, and prints invalid C++ for
        vectors of conditions. Unrolling is left to the CUDA compiler, which needs a tenth of the source."""
        hints = {k: v for k, v in node.annotations.items() if k != "pragma_unroll_explicit"}
        plain = node.kind != _VECTORIZED or _is_arithmetic(node.body)
        if plain and len(hints) == len(node.annotations):
            return node
        if len(hints) < len(node.annotations):
            hints["pragma_unroll_explicit"] = tvm.tirx.const(0, "int32")
        kind = node.kind if plain else 0
        return tirx.For(node.loop_var, node.min, node.extent, kind, node.body, node.thread_binding, hints)

    callbacks = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (s_tir.SBlock, block), (tirx.For, loop)]
    kernel.put(ffi.structural_map(func.body, callbacks))


def _full_region(buf: Buf) -> Any:
    return tirx.BufferRegion(buf.var, [tvm.ir.Range(0, buf.size)])


def _flat(shape: Shape, at: Sequence[Expr]) -> Expr:
    emit_scheduled: Any = 0
    for n, i in zip(shape, at, strict=True):
        emit_scheduled = emit_scheduled * n + i
    return index(emit_scheduled)


MAX_GRID_YZ = 65535  # thread blocks along y and z of a grid, in CUDA; along x there are 2^31 - 1


def _within_grid_limits(func: PrimFunc) -> PrimFunc:
    """Return the function with grids within CUDA's limits: if one is too large along y or z, all of its blocks are
    along x."""
    if all(max(blocks[1:]) <= MAX_GRID_YZ for blocks, _ in launches(func)):
        return func
    return func.with_body(_flatten_grid(func.body))


def _flatten_grid(node: Any) -> Any:
    """Return a statement with its loops over thread blocks flattened into one, in which x is the fastest index."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return tirx.SeqStmt([_flatten_grid(s) for s in node.seq])
    if kind == "SBlockRealize":
        return _with_body(node, _flatten_grid(node.block.body))
    if kind != "For":
        return node
    if node.thread_binding is None:
        return _with_body(node, _flatten_grid(node.body))
    sizes = dict(zip(_BLOCKS, _extents(list(_nests(node, {})), "blockIdx"), strict=True))
    at = tirx.Var("block", "int32")
    numbers, before = {}, 1
    for tag, size in sizes.items():
        numbers[tag] = tirx.floormod(tirx.floordiv(at, index(before)), index(size))
        before *= size

    def loop(inner: Any) -> Any:
        number = numbers.get(inner.thread_binding.thread_tag) if inner.thread_binding is not None else None
        return inner if number is None else tirx.SeqStmt([tirx.Bind(inner.loop_var, number), inner.body])

    body = ffi.structural_map(node, [(tirx.For, loop)])
    axis = tirx.IterVar(tvm.ir.Range(0, before), tirx.Var("blockIdx.x", "int32"), 1, "blockIdx.x")
    return tirx.For(at, index(0), index(before), _BOUND, body, axis)


def _with_body(node: Any, body: Any) -> Any:
    """Return a loop or a block with another body."""
    if type(node).__name__ == "For":
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, node.annotations)
    block = node.block
    inner = s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip
    return s_tir.SBlockRealize(node.iter_values, node.predicate, inner)


_BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_BOUND = 4  # of TVM's ForKind: to a thread or a thread block


def _is_bound(func: PrimFunc) -> bool:
    """Is every store of a scheduled function within loops over thread blocks or threads?"""
    return all(any(t.startswith(("blockIdx", "threadIdx")) for t in nest) for nest in _nests(func.body, {}))


Dims = tuple[int, ...]  # along x, y, z


def launches(func: PrimFunc) -> list[tuple[Dims, Dims]]:
    """Return (thread blocks, threads of a block) of each kernel that a function launches, in order."""
    return [(_extents(nests, "blockIdx"), _extents(nests, "threadIdx")) for nests in _kernels(func.body)]


def grids(func: PrimFunc) -> list[tuple[int, int]]:
    """Return the number of thread blocks, and of threads in a block, of each kernel."""
    return [(math.prod(blocks), math.prod(threads)) for blocks, threads in launches(func)]


def _extents(nests: Sequence[Mapping[str, int]], name: str) -> Dims:
    """Return the extents of a kernel's loops over blockIdx or threadIdx along x, y, z; 1 where nothing is bound."""
    found = {tag: n for nest in nests for tag, n in nest.items()}
    return tuple(found.get(f"{name}.{axis}", 1) for axis in "xyz")


def _kernels(statement: Any) -> list[list[Mapping[str, int]]]:
    """Return for each kernel the thread loops (name -> extent) around each of its stores."""
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return [found for s in statement.seq for found in _kernels(s)]
    if kind == "For" and statement.thread_binding is None:
        return _kernels(statement.body)
    nests = list(_nests(statement, {}))
    return [nests] if nests else []


def _nests(node: Any, around: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    kind = type(node).__name__
    if kind == "BufferStore":
        yield around
    elif kind == "For":
        if node.thread_binding is not None:
            around = {**around, node.thread_binding.thread_tag: int(node.extent.value)}
        yield from _nests(node.body, around)
    elif kind == "SeqStmt":
        for s in node.seq:
            yield from _nests(s, around)
    elif kind == "SBlockRealize":
        yield from _nests(node.block.body, around)
    elif kind == "IfThenElse":
        for s in (node.then_case, node.else_case):
            if s is not None:
                yield from _nests(s, around)


def _is_arithmetic(body: Any) -> bool:
    """Does a body only store values, without bindings, conditions or calls?"""
    kinds: set[str] = set()
    ffi.structural_walk(body, [(tirx.BufferStore, lambda node: kinds.update(_kinds(node.value))),
                               (tirx.Bind, lambda node: kinds.add("Bind"))])  # fmt: skip
    return kinds.isdisjoint(_CONDITIONS)


_CONDITIONS = frozenset({"Bind", "Select", "Call", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not"})


def is_conditional(at: Value) -> bool:
    """Does an index contain a minimum, a maximum or a condition?"""
    return not isinstance(at, int | float) and not _kinds(at).isdisjoint({*_CONDITIONS, "Min", "Max"})


def _kinds(value: Any) -> set[str]:
    """Return the kinds of expression in a value."""
    kinds: set[str] = set()
    ffi.structural_walk(value, lambda node: kinds.add(type(node).__name__))
    return kinds


def _stores(body: Any, buffers: Container[Any]) -> int:
    """Return how many statements of the body store to one of the buffers."""
    count = 0

    def see(node: Any) -> None:
        nonlocal count
        count += node.buffer in buffers

    ffi.structural_walk(body, (tirx.BufferStore, see))
    return count


def source(functions: Sequence[PrimFunc], options: dict[str, Any]) -> str:
    """Return the CUDA source of functions, without compiling it."""
    module = tvm.IRModule({name_of(f): f for f in functions})
    with as_source():
        return cuda_source(tirx.build(module, make_target(options), pipeline="s_tir"))


def cuda_source(module: Any) -> str:
    """Return the CUDA source in a module; empty if there is none."""
    return "\n".join(str(part.inspect_source()) for part in module.imports)


_FALLBACK = "TVM_COMPILE_FORCE_FALLBACK"


@contextmanager
def as_source() -> Iterator[None]:
    """Within this context, modules that TVM builds contain CUDA source. Otherwise, if TVM's CUDA runtime is loaded,
    which needs a driver, TVM would compile the source by its own choice of compiler, or fail without one."""
    before = os.environ.get(_FALLBACK)
    os.environ[_FALLBACK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FALLBACK]
        else:
            os.environ[_FALLBACK] = before
