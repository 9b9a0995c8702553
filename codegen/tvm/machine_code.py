"""Machine code of finished kernels: lowering by TVM, compilation by LLVM, entry points, objects and libraries.

Whatever depends on TVM 0.27's passes and calling convention stays in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gluongraph.codegen.tvm.linking import Linker
from gluongraph.codegen.tvm.tir import SYMBOL, Kernel, PrimFunc, index, name_of, tirx, tvm
from gluongraph.errors import CompileError
from gluongraph.host.interrupts import aside, calling_python


def make_target(options: dict[str, Any]) -> Any:
    """A TVM target from its options; raises CompileError when TVM does not know it."""
    try:
        return tvm.target.Target(options)
    except Exception as error:
        raise CompileError(f"no such target: {options}: {error}") from error


def build_kernels(functions: Sequence[PrimFunc], options: dict[str, Any]) -> Any:
    """Functions as one module of machine code: `build_kernels([f], target)['name'](*tensors)`.

    A kernel takes its tensors as they come: whoever calls it sees to their sizes and dtypes.
    """
    return aside(partial(_built, functions, make_target(options), options["kind"]))


def _built(functions: Sequence[PrimFunc], target: Any, kind: str) -> Any:
    if kind != "llvm":
        with calling_python():
            return tirx.build(tvm.IRModule({name_of(f): f for f in functions}), target, pipeline="s_tir")
    lowered = {}
    for function in functions:
        with calling_python():  # for one function at a time: the end of the process waits for it
            lowered[name_of(function)] = _lowered(function, target)
    return tvm.get_global_func("target.build.llvm")(tvm.IRModule(lowered), target)


def _lowered(function: PrimFunc, target: Any) -> PrimFunc:
    """What LLVM makes code of: by those of TVM's passes that loops over flat buffers need. All of them take four times
    as long, and the code is the same."""
    name = name_of(function)
    own = tirx.transform
    passes = [
        own.BindTarget(target),
        own.BF16ComputeLegalize(),
        own.StorageRewrite(),
        own.StmtSimplify(),
        tvm.s_tir.transform.RewriteUnsafeSelect(),
        own.prim_func_pass(_packed, opt_level=0),
        own.BF16StorageLegalize(),
        own.LowerTVMBuiltin(),
        own.LowerIntrin(),
    ]
    return tvm.transform.Sequential(passes)(tvm.IRModule({name: function}))[name]


TAG, VALUE, DATA = 13, 15, 1  # what TVM calls parts of a TVMFFIAny, and the address of a DLTensor's elements
TENSOR_TAG = 70  # of a tensor in a TVMFFIAny, with a DLTensor behind
HEADER = 24  # bytes; other tags say that it is the address of one
PACKED = 1  # the calling convention of `_packed`


def _packed(function: PrimFunc, *_: Any) -> PrimFunc:
    """A function as TVM calls it: `int symbol(handle, TVMFFIAny *args, int count, TVMFFIAny *result)`.

    TVM's own pass for it checks each argument's type, shape and strides: more code than what most kernels compute.
    """
    itself, args, result = (tirx.Var(name, "handle") for name in ("itself", "args", "result"))
    body = tirx.AttrStmt(index(0), "compute_scope", tvm.ir.StringImm(f"{name_of(function)}_compute_"), function.body)
    statements = []
    for i, param in enumerate(function.params):
        value = tirx.tvm_struct_get(args, i, VALUE, "int64")
        if not tirx.buffer.is_buffer_var(param):
            statements.append(tirx.Bind(param, value))
            continue
        tag = tirx.tvm_struct_get(args, i, TAG, "int32")
        before = tirx.Select(tag == TENSOR_TAG, tirx.const(HEADER, "int64"), tirx.const(0, "int64"))
        elements = tirx.tvm_struct_get(tirx.reinterpret("handle", value + before), 0, DATA, "handle")
        kind = tirx.buffer.buffer_data(param).ty
        statements.append(tirx.DeclBuffer(param, data=tirx.reinterpret(kind, elements)))
    body = tirx.SeqStmt([*statements, body, tirx.stmt.Return(index(0))])
    for key, number in (("device_type", 1), ("device_id", 0)):  # the CPU; large memory is asked for with both
        body = tirx.AttrStmt("default", key, index(number), body)
    made = tirx.PrimFunc([itself, args, tirx.Var("count", "int32"), result], body, tvm.ir.PrimType("int32"))
    attrs = {"global_symbol": SYMBOL + name_of(function), "calling_conv": PACKED}
    return made.with_attrs({**dict(function.attrs.items()), **attrs})


DLTENSOR = 48  # bytes of one
DLTENSOR_TAG = 7  # of a pointer to one in a TVMFFIAny
NUMBER_TAG = 1  # of a number


@dataclass(frozen=True)
class Call:
    """One kernel call of an entry point, by positions among the entry's arguments.

    Where the kernel writes something other than 0 into the i32 argument `stop`, the entry point ends.
    """

    kernel: str
    args: tuple[int, ...]
    stop: int | None = None


@dataclass(frozen=True)
class Entry:
    """One callable of an artefact: the kernels it runs, in order."""

    calls: tuple[Call, ...]


def link(functions: Sequence[PrimFunc], entries: dict[str, Entry], options: dict[str, Any]) -> Any:
    """Kernels, and entry points that call them one after the other, as one module of machine code."""
    made = [*functions, *(f for name, entry in entries.items() for f in calling(name, entry))]
    return build_kernels(made, options)


PART = 256  # calls of one function: LLVM's time for a function grows faster than its length


def calling(name: str, entry: Entry) -> list[PrimFunc]:
    """A function of one number, the address of an array of DLTensors; of many calls, and the parts that it calls."""
    if len(entry.calls) <= PART:
        return [_calling(name, entry.calls)]
    starts = range(0, len(entry.calls), PART)
    parts = [_calling(f"{name}_{start}", entry.calls[start : start + PART]) for start in starts]
    k, table = Kernel(name), tirx.Var("table", "int64")
    args, result = k.values("args", 1), k.values("result", 1)
    k.store(args, tirx.const(NUMBER_TAG, "int64"), 0)
    k.store(args, table, 1)
    for start, part in zip(starts, parts, strict=True):
        k.store(result, tirx.const(0, "int64"), 0)
        k.succeed(name_of(part), args, 1, result)
        for call in entry.calls[start : start + PART]:
            _stop(k, table, call)
    return [*parts, k.finish([table])]


def _calling(name: str, calls: Sequence[Call]) -> PrimFunc:
    """Kernels may be in other modules. TVM's own packed calls declare a function of another module anew each time it is
    called, so the calls are written out: `int symbol(handle, TVMFFIAny *args, int count, TVMFFIAny *result)`."""
    k, table = Kernel(name), tirx.Var("table", "int64")
    most = max((len(call.args) for call in calls), default=0)
    args, result = k.values("args", most), k.values("result", 1)
    for i in range(most):
        k.store(args, tirx.const(DLTENSOR_TAG, "int64"), 2 * i)
    for call in calls:
        for i, position in enumerate(call.args):
            k.store(args, table + tirx.const(position * DLTENSOR, "int64"), 2 * i + 1)
        k.store(result, tirx.const(0, "int64"), 0)
        k.succeed(call.kernel, args, len(call.args), result)
        _stop(k, table, call)
    return k.finish([table])


def _stop(k: Kernel, table: Any, call: Call) -> None:
    """Return where the call has set its flag."""
    if call.stop is not None:
        tensor = tirx.reinterpret("handle", table + tirx.const(call.stop * DLTENSOR, "int64"))
        k.return_unless_zero(tirx.tvm_struct_get(tensor, 0, DATA, "handle"))


def write_object(module: Any, path: str) -> str:
    """Write a module's machine code as an object file: its path."""
    module.write_to_file(path)
    return path


def export(module: Any, path: str, linker: Linker) -> None:
    """Write a module and what it imports as a shared library; raises CompileError where it cannot be linked."""
    try:
        module.export_library(path, fcompile=linker)
    except (RuntimeError, OSError) as error:
        raise CompileError(f"cannot link {path}: {error}") from error
