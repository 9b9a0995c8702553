"""Tensor expressions and GPU schedules: the part of TVM that codegen needs beside `tir`, touched in this file alone.

A kernel is first said as `te.compute` stages, then scheduled by one of dlight's rules, then `finish`ed: arguments
become the flat buffers of the launch, and the place where the last stage is stored is handed to us, so that any number
of results can be computed from it and written, in place too.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gluongraph.codegen.tir import Buf, Expr, Kernel, PrimFunc, index, make_target, tvm_dtype

Tensor = Any  # a stage or a placeholder
Shape = tuple[int, ...]
RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "RMSNorm", "Transpose")  # in the order they are asked
MARK = "gluongraph_finished"  # the call that the last stage consists of


class _Lazy:
    """A module imported at first use; see tir."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


tvm = _Lazy("tvm")
te = _Lazy("tvm.te")
tirx = _Lazy("tvm.tirx")
s_tir = _Lazy("tvm.s_tir")
ffi = _Lazy("tvm_ffi")
gpu = _Lazy("tvm.s_tir.dlight.gpu")


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
        made = schedule.mod["main"]
        if unbound(made) == 0 and _stores(made, made.params[-1]) == 1:
            yield name, made


def finish(
    func: PrimFunc,
    kernel: Kernel,
    inputs: Sequence[tuple[Buf, Shape]],
    write: Callable[[Kernel, tuple[Expr, ...], tuple[Expr, ...]], None],
) -> PrimFunc:
    """A scheduled function on the arguments of `kernel`: input i is read from a flat buffer, and where the last stage
    is stored, `write(kernel, index, values)` puts statements of its own."""
    *params, result = func.params
    flats = {p: (buf, shape) for p, (buf, shape) in zip(params, inputs, strict=True)}

    def load(node: Any) -> Any:
        if node.source not in flats:
            return node
        buf, shape = flats[node.source]
        return kernel.load(buf, _flat(shape, node.indices))

    def store(node: Any) -> Any:
        if not node.buffer.same_as(result):
            return node
        with kernel.aside() as statements:
            write(kernel, tuple(node.indices), tuple(node.value.args[1:]))
        return statements[0]

    def block(node: Any) -> Any:
        """Regions of arguments are those of the flat buffers, whole: nothing is allocated by them."""
        reads, writes = [[r for r in rs if r.source not in flats and not r.source.same_as(result)] for rs in
                         (node.reads, node.writes)]  # fmt: skip
        inside = node.body
        if len(writes) < len(node.writes):  # the last stage: its statements may touch any argument
            reads += [_whole(p) for p in kernel.params]
            writes += [_whole(p) for p in kernel.params]
        elif node.name_hint == "root":
            inside = kernel.ahead_of(inside)
        else:
            reads += [_whole(flats[r.source][0]) for r in node.reads if r.source in flats]
        return s_tir.SBlock(
            node.iter_vars, reads, writes, node.name_hint, inside, node.init,
            node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    body = ffi.structural_map(
        func.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (s_tir.SBlock, block)]
    )
    return kernel.finish(body)


def _whole(buf: Buf) -> Any:
    return tirx.BufferRegion(buf.var, [tvm.ir.Range(0, buf.size)])


def _flat(shape: Shape, at: Sequence[Expr]) -> Expr:
    place: Any = 0
    for n, i in zip(shape, at, strict=True):
        place = place * n + i
    return index(place)


def unbound(func: PrimFunc) -> int:
    """How many stores of a scheduled function lie outside of a loop over thread blocks or over threads."""
    return sum(1 for threads in _nests(func) if not any(t.startswith(("blockIdx", "threadIdx")) for t in threads))


def blocks_of(func: PrimFunc) -> int:
    """Thread blocks of a kernel."""
    return _extent(func, "blockIdx")


def threads_of(func: PrimFunc) -> int:
    """Threads of one block of a kernel."""
    return _extent(func, "threadIdx")


def _extent(func: PrimFunc, axis: str) -> int:
    """The number of threads, or blocks, along x, y and z together; 1 where nothing is bound."""
    extents = {tag: n for nest in _nests(func) for tag, n in nest.items() if tag.startswith(axis)}
    return math.prod(extents.values())


def _nests(func: PrimFunc) -> list[dict[str, int]]:
    """For each store: the thread loops around it, thread name -> extent."""
    found: list[dict[str, int]] = []

    def walk(node: Any, around: dict[str, int]) -> None:
        kind = type(node).__name__
        if kind == "For":
            if node.thread_binding is not None:
                around = {**around, node.thread_binding.thread_tag: int(node.extent.value)}
            walk(node.body, around)
        elif kind == "SeqStmt":
            for s in node.seq:
                walk(s, around)
        elif kind == "SBlockRealize":
            walk(node.block.body, around)
        elif kind == "IfThenElse":
            walk(node.then_case, around)
            if node.else_case is not None:
                walk(node.else_case, around)
        elif kind == "AttrStmt":
            walk(node.body, around)
        elif kind == "BufferStore":
            found.append(around)

    walk(func.body, {})
    return found


def _stores(func: PrimFunc, buffer: Any) -> int:
    count = 0

    def see(node: Any) -> None:
        nonlocal count
        count += node.buffer.same_as(buffer)

    ffi.structural_walk(func.body, (tirx.BufferStore, see))
    return count


def serial(func: PrimFunc) -> PrimFunc:
    """The same loops with no threads, to run a scheduled kernel on a CPU: what it computes, without its races."""

    def loop(node: Any) -> Any:
        if node.thread_binding is None:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, 0, node.body)

    return func.with_body(ffi.structural_map(func.body, (tirx.For, loop)))
