"""Tensor expressions and GPU schedules: the part of TVM that codegen uses besides `tir`, imported here only.

A kernel is first said as `te.compute` stages, then scheduled by one of dlight's rules, then `finish`ed: arguments
become the flat buffers of the launch, and the place where the last stage is stored is handed to us, so that any number
of results can be computed from it and written, in place too.
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
    Lazy,
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
RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "RMSNorm")  # for one fold, in the order they are asked
_VECTORIZED = 2  # of TVM's ForKind
MARK = "gluongraph_finished"  # the call that the last stage consists of


te = Lazy("tvm.te")
s_tir = Lazy("tvm.s_tir")
ffi = Lazy("tvm_ffi")
gpu = Lazy("tvm.s_tir.dlight.gpu")


def placeholder(name: str, shape: Shape, dtype: str) -> Tensor:
    """An array in memory."""
    return te.placeholder(shape, tvm_dtype(dtype), name)


def compute(name: str, shape: Shape, element: Callable[..., Expr]) -> Tensor:
    """A stage: element(*index) everywhere."""
    return te.compute(shape, element, name)


def fold(name: str, extents: Sequence[int], element: Callable[..., Expr]) -> Expr:
    """sum, prod, max or min of element(*r) over all r below the extents: the whole of a stage, not a part of it."""
    axes = [te.reduce_axis((0, n), f"r{i}") for i, n in enumerate(extents)]
    value = element(*(axis.var for axis in axes))
    if name == "prod":
        product = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype))
        return product(value, axis=axes)
    return {"sum": te.sum, "max": te.max, "min": te.min}[name](value, axis=axes)


def finished(values: Sequence[Expr]) -> Expr:
    """The last stage's element: stands for whatever `finish` computes from these values."""
    return tirx.call_pure_extern("float32", MARK, *values)


def schedules(
    stages: Sequence[Tensor], options: dict[str, Any], rules: Iterable[str]
) -> Iterator[tuple[str, PrimFunc]]:
    """(rule, scheduled function) of every dlight rule that takes these stages and binds all loops to threads."""
    func = te.create_prim_func(list(stages))
    target = make_target(options)
    for name in rules:
        try:
            schedule = getattr(gpu, name)().apply(func, target, False)
        except (s_tir.ScheduleError, AssertionError, ValueError, TypeError, IndexError, RuntimeError):
            continue  # a rule that looked fit and was not: dlight raises where it should decline
        if schedule is None:
            continue
        made = _in_reach(schedule.mod["main"])
        if _is_bound(made) and _stores(made.body, {made.params[-1]}) == 1:
            yield name, made


def place(
    func: PrimFunc,
    kernel: Kernel,
    inputs: Sequence[tuple[Buf, Shape]],
    write: Callable[[tuple[Expr, ...], tuple[Expr, ...]], None],
    outside: Container[int] = (),
) -> None:
    """Put the loops of a scheduled function into a kernel: input i is read from a flat buffer, and where the last stage
    is stored, `write(index, values)` makes statements of its own.

    Inputs `outside` are read at places beyond their ends too, by values that are thrown away, as those at a
    convolution's padding are: schedules copy them to shared memory before anybody asks whether they count. Such a read
    is one of the first or last element instead.
    """
    func = s_tir.renew_defs(func)  # a loop's turn may do the same twice: each has variables of its own
    *params, result = func.params
    flats = {p: (buf, shape) for p, (buf, shape) in zip(params, inputs, strict=True)}
    loose = {p for i, p in enumerate(params) if i in outside}

    def load(node: Any) -> Any:
        if node.source not in flats:
            return node
        buf, shape = flats[node.source]
        at = _flat(shape, node.indices)
        return kernel.load(buf, maximum(minimum(at, buf.size - 1), 0) if node.source in loose else at)

    def store(node: Any) -> Any:
        if not node.buffer.same_as(result):
            return node
        with kernel.aside() as statements:
            marked = isinstance(node.value, tvm.ir.Call) and node.value.args[0] == MARK
            write(tuple(node.indices), tuple(node.value.args[1:]) if marked else (node.value,))
        return statements[0]

    def block(node: Any) -> Any:
        """Regions of arguments are those of the flat buffers, whole: nothing is allocated by them."""
        reads, writes = [[r for r in rs if r.source not in flats and not r.source.same_as(result)] for rs in
                         (node.reads, node.writes)]  # fmt: skip
        if len(writes) < len(node.writes):  # the last stage: its statements may touch any argument
            reads += [_whole(p) for p in kernel.params]
            writes += [_whole(p) for p in kernel.params]
        else:
            reads += [_whole(flats[r.source][0]) for r in node.reads if r.source in flats]
        return s_tir.SBlock(
            node.iter_vars, reads, writes, node.name_hint, node.body, node.init,
            node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    def loop(node: Any) -> Any:
        """Vector loops stay where they copy or multiply: names get lost in them on the way to code, and TVM's code for
        vectors of conditions is no C++. Unrolling is left to the CUDA compiler, with a tenth of the source."""
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


def _whole(buf: Buf) -> Any:
    return tirx.BufferRegion(buf.var, [tvm.ir.Range(0, buf.size)])


def _flat(shape: Shape, at: Sequence[Expr]) -> Expr:
    place: Any = 0
    for n, i in zip(shape, at, strict=True):
        place = place * n + i
    return index(place)


REACH = 65535  # thread blocks along y and z of a grid, in CUDA; along x there are 2^31 - 1


def _in_reach(func: PrimFunc) -> PrimFunc:
    """The function with grids that CUDA starts: one that is too large along y or z has all of its blocks along x."""
    if all(max(blocks[1:]) <= REACH for blocks, _ in launches(func)):
        return func
    return func.with_body(_along_x(func.body))


def _along_x(node: Any) -> Any:
    """A statement whose loops over thread blocks are one, with x running fastest as in the grid it was."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return tirx.SeqStmt([_along_x(s) for s in node.seq])
    if kind == "SBlockRealize":
        return _with_body(node, _along_x(node.block.body))
    if kind != "For":
        return node
    if node.thread_binding is None:
        return _with_body(node, _along_x(node.body))
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
    """A loop or a block of other statements."""
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
    """Does every store of a scheduled function lie in loops over thread blocks or threads?"""
    return all(any(t.startswith(("blockIdx", "threadIdx")) for t in nest) for nest in _nests(func.body, {}))


Dims = tuple[int, ...]  # along x, y, z


def launches(func: PrimFunc) -> list[tuple[Dims, Dims]]:
    """(thread blocks, threads of a block) of each kernel that a function starts, in order."""
    return [(_extents(nests, "blockIdx"), _extents(nests, "threadIdx")) for nests in _kernels(func.body)]


def grids(func: PrimFunc) -> list[tuple[int, int]]:
    """How many thread blocks, and threads of a block, each kernel has."""
    return [(math.prod(blocks), math.prod(threads)) for blocks, threads in launches(func)]


def _extents(nests: Sequence[Mapping[str, int]], name: str) -> Dims:
    """The extents of a kernel's loops over blockIdx or threadIdx; 1 where nothing is bound."""
    found = {tag: n for nest in nests for tag, n in nest.items()}
    return tuple(found.get(f"{name}.{axis}", 1) for axis in "xyz")


def _kernels(statement: Any) -> list[list[Mapping[str, int]]]:
    """For each kernel: the thread loops (name -> extent) around each of its stores."""
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
    """Does a body store values only, without names, conditions or calls?"""
    kinds: set[str] = set()
    ffi.structural_walk(body, [(tirx.BufferStore, lambda node: kinds.update(_kinds(node.value))),
                               (tirx.Bind, lambda node: kinds.add("Bind"))])  # fmt: skip
    return kinds.isdisjoint(_CONDITIONS)


_CONDITIONS = frozenset({"Bind", "Select", "Call", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not"})


def is_conditional(at: Value) -> bool:
    """Does an index take one of several values: the larger, the smaller, one by a condition?"""
    return not isinstance(at, int | float) and not _kinds(at).isdisjoint({*_CONDITIONS, "Min", "Max"})


def _kinds(value: Any) -> set[str]:
    """The kinds of expression in a value."""
    kinds: set[str] = set()
    ffi.structural_walk(value, lambda node: kinds.add(type(node).__name__))
    return kinds


def _stores(body: Any, buffers: Container[Any]) -> int:
    """How many statements of the body store to one of the buffers."""
    count = 0

    def see(node: Any) -> None:
        nonlocal count
        count += node.buffer in buffers

    ffi.structural_walk(body, (tirx.BufferStore, see))
    return count


def source(functions: Sequence[PrimFunc], options: dict[str, Any]) -> str:
    """The CUDA source of functions, not compiled any further."""
    module = tvm.IRModule({name_of(f): f for f in functions})
    with as_source():
        return cuda_source(tirx.build(module, make_target(options), pipeline="s_tir"))


def cuda_source(module: Any) -> str:
    """The CUDA source inside of a module; empty if there is none."""
    return "\n".join(str(part.inspect_source()) for part in module.imports)


_FALLBACK = "TVM_COMPILE_FORCE_FALLBACK"


@contextmanager
def as_source() -> Iterator[None]:
    """Within: modules that TVM builds hold CUDA source. Once its CUDA runtime is in the process, which needs a driver,
    they would hold what its own choice of compiler makes of that, or fail without one."""
    before = os.environ.get(_FALLBACK)
    os.environ[_FALLBACK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FALLBACK]
        else:
            os.environ[_FALLBACK] = before
