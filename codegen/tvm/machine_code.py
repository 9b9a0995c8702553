"""Machine code of finished kernels: lowering by TVM, compilation by LLVM, entry points, objects and libraries.

Whatever depends on TVM 0.27's passes and calling convention stays in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gluongraph.codegen.tvm import llvm_options
from gluongraph.codegen.tvm.linking import Linker
from gluongraph.codegen.tvm.tir import (
    SYMBOL,
    Expr,
    Kernel,
    PrimFunc,
    cast,
    compare,
    const,
    dtype_of,
    index,
    name_of,
    powers_of_two,
    shuffle,
    tirx,
    tvm,
)
from gluongraph.errors import CompileError
from gluongraph.host.interrupts import aside, calling_python


def make_target(options: dict[str, Any]) -> Any:
    """Return a TVM target from its options; raises CompileError if TVM does not know it."""
    try:
        return tvm.target.Target(options)
    except Exception as error:
        raise CompileError(f"no such target: {options}: {error}") from error


def build_kernels(functions: Sequence[PrimFunc], options: dict[str, Any]) -> Any:
    """Compile functions to one module of machine code: `build_kernels([f], target)['name'](*tensors)`.

    A kernel does not check its tensors: the caller ensures sizes and dtypes.
    """
    llvm_options.set_options()
    return aside(partial(_built, functions, make_target(options), options["kind"]))


def _built(functions: Sequence[PrimFunc], target: Any, kind: str) -> Any:
    if kind != "llvm":
        with calling_python():
            return tirx.build(tvm.IRModule({name_of(f): f for f in functions}), target, pipeline="s_tir")
    lowered = {}
    for function in functions:
        with calling_python():  # one function at a time: exiting the process waits for it
            lowered[name_of(function)] = _lowered(function, target)
    return tvm.get_global_func("target.build.llvm")(tvm.IRModule(lowered), target)


def _lowered(function: PrimFunc, target: Any) -> PrimFunc:
    """Lower a function for LLVM by those of TVM's passes that loops over flat buffers need. TVM's full pipeline takes
    four times as long, for the same code."""
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
    if "calling_conv" in function.attrs:  # a forwarding function, which has no loops
        passes = [own.BindTarget(target), own.LowerTVMBuiltin(), own.LowerIntrin()]
    lowered = tvm.transform.Sequential(passes)(tvm.IRModule({name: function}))[name]
    return lowered.with_attr("global_symbol", SYMBOL + name)


TAG, VALUE, DATA = 13, 15, 1  # TVM's numbers of fields: of a TVMFFIAny, and a DLTensor's data pointer
TENSOR_TAG = 70  # tag of a tensor object in a TVMFFIAny, whose DLTensor follows its header
HEADER = 24  # bytes of that header; with other tags the value is the address of a DLTensor
PACKED = 1  # TVM's number of its packed calling convention


def _packed(function: PrimFunc, *_: Any) -> PrimFunc:
    """Return a function with TVM's packed calling convention: `int symbol(handle, TVMFFIAny *args, int count,
    TVMFFIAny *result)`.

    TVM's own pass for this checks each argument's type, shape and strides, which is more code than most kernels have.
    Arguments are buffers and integers.
    """
    args = tirx.Var("args", "handle")
    body = tirx.AttrStmt(index(0), "compute_scope", tvm.ir.StringImm(f"{name_of(function)}_compute_"), function.body)
    statements = []
    for i, param in enumerate(function.params):
        value = tirx.tvm_struct_get(args, i, VALUE, "int64")
        if not tirx.buffer.is_buffer_var(param):
            statements.append(tirx.Bind(param, cast(value, dtype_of(param))))
            continue
        tag = tirx.tvm_struct_get(args, i, TAG, "int32")
        value += tirx.Select(tag == TENSOR_TAG, tirx.const(HEADER, "int64"), tirx.const(0, "int64"))
        elements = tirx.tvm_struct_get(tirx.reinterpret("handle", value), 0, DATA, "handle")
        kind = tirx.buffer.buffer_data(param).ty
        statements.append(tirx.DeclBuffer(param, data=tirx.reinterpret(kind, elements)))
    return _of_convention([*statements, body], args, tirx.Var("result", "handle"), function.attrs)


def _of_convention(body: Sequence[Any], args: Expr, result: Expr, attrs: Any) -> PrimFunc:
    """Return a function of the packed calling convention, with these arguments and the attributes of another."""
    whole = tirx.SeqStmt([*body, tirx.stmt.Return(index(0))])
    for key, number in (("device_type", 1), ("device_id", 0)):  # the CPU; arguments of TVM's allocator
        whole = tirx.AttrStmt("default", key, index(number), whole)
    params = [tirx.Var("itself", "handle"), args, tirx.Var("count", "int32"), result]
    made = tirx.PrimFunc(params, whole, tvm.ir.PrimType("int32"))
    return made.with_attrs({**dict(attrs.items()), "calling_conv": PACKED})


DLTENSOR = 48  # bytes of a DLTensor
DLTENSOR_TAG = 7  # tag of a pointer to a DLTensor in a TVMFFIAny
NUMBER_TAG = 1  # tag of an integer
WORDS = 8  # of a vector; where a processor's are shorter, LLVM splits it


@dataclass(frozen=True)
class Call:
    """One kernel call of an entry point; arguments are positions among the entry point's arguments.

    If the kernel writes another value than 0 to the i32 argument `stop`, the entry point returns.
    """

    kernel: str
    args: tuple[int, ...]
    stop: int | None = None


@dataclass(frozen=True)
class Entry:
    """One callable of an artefact: the kernels it runs, in order; and the name of the function that calls it several
    times, if there is one."""

    calls: tuple[Call, ...]
    repeated: str = ""


def link(functions: Sequence[PrimFunc], entries: dict[str, Entry], options: dict[str, Any]) -> Any:
    """Compile kernels, and entry points that call them one after another, to one module of machine code."""
    made = [*functions, *(f for name, entry in entries.items() for f in calling(name, entry))]
    made += [repeating(entry.repeated, name) for name, entry in entries.items() if entry.repeated]
    return build_kernels(made, options)


def forwarding(name: str, function: str, tensors: int, integers: Sequence[int]) -> PrimFunc:
    """Return a function of tensors that calls another with integers after them.

    It has the packed calling convention already, and copies its arguments as they are, in vectors: that compiles in a
    quarter of the time of a kernel with as many arguments. A step has hundreds of them.
    """
    k = Kernel(name)
    args, result = tirx.Var("args", "handle"), tirx.Var("result", "handle")
    words = [const(word, "i64") for integer in integers for word in (NUMBER_TAG, integer)]
    count = tensors + len(integers)
    given, passed = k.memory("given", args, 2 * tensors, "i64"), k.ffi_values("passed", count)
    for at, lanes in powers_of_two(2 * tensors, WORDS):
        k.store(passed, k.load(given, at, lanes), at)
    for at, lanes in powers_of_two(len(words), WORDS):
        k.store(passed, shuffle(words[at : at + lanes], range(lanes)), 2 * tensors + at)
    k.call_packed(function, passed, count, k.memory("returned", result, 2, "i64"))
    made = k.finish([])
    return _of_convention([made.body], args, result, made.attrs)


PART = 256  # calls in one function: LLVM's compile time grows faster than linearly with a function's length


def calling(name: str, entry: Entry) -> list[PrimFunc]:
    """Return the function of an entry point, whose argument is the address of an array of DLTensors; if it has many
    calls, preceded by the functions among which they are split."""
    if len(entry.calls) <= PART:
        return [_calling(name, entry.calls)]
    starts = range(0, len(entry.calls), PART)
    parts = [_calling(f"{name}_{start}", entry.calls[start : start + PART]) for start in starts]
    k, table = Kernel(name), tirx.Var("table", "int64")
    args, result = k.ffi_values("args", 1), k.ffi_values("result", 1)
    k.store(args, tirx.const(NUMBER_TAG, "int64"), 0)
    k.store(args, table, 1)
    for start, part in zip(starts, parts, strict=True):
        k.store(result, tirx.const(0, "int64"), 0)
        k.call_packed(name_of(part), args, 1, result)
        for call in entry.calls[start : start + PART]:
            _stop(k, table, call)
    return [*parts, k.finish([table])]


def _calling(name: str, calls: Sequence[Call]) -> PrimFunc:
    """Return a function that calls kernels, which may be in other modules. TVM's own packed calls would declare a
    function of another module at each call, so the calls are emitted explicitly: `int symbol(handle, TVMFFIAny *args,
    int count, TVMFFIAny *result)`."""
    k, table = Kernel(name), tirx.Var("table", "int64")
    most = max((len(call.args) for call in calls), default=0)
    args, result = k.ffi_values("args", most), k.ffi_values("result", 1)
    for i in range(most):
        k.store(args, tirx.const(DLTENSOR_TAG, "int64"), 2 * i)
    for call in calls:
        for i, position in enumerate(call.args):
            k.store(args, table + tirx.const(position * DLTENSOR, "int64"), 2 * i + 1)
        k.store(result, tirx.const(0, "int64"), 0)
        k.call_packed(call.kernel, args, len(call.args), result)
        _stop(k, table, call)
    return k.finish([table])


ALL_TRUE = 0x01010101  # four booleans that are true, as an i32


def repeating(name: str, entry: str) -> PrimFunc:
    """Return a function that calls an entry point several times, each time with another table.

    Its arguments are integers: the address of the first table, and the bytes from one to the next; the address of two
    i64, the number of calls and the number made so far, which it writes; the addresses of an i32 and of four booleans:
    it returns after a call if that is not 0, or one of those is false.
    """
    k = Kernel(name)
    tables, nbytes, counts, refused, going = (
        tirx.Var(each, "int64") for each in ("tables", "nbytes", "counts", "refused", "going")
    )
    args, result, told = k.ffi_values("args", 1), k.ffi_values("result", 1), k.memory("told", counts, 2, "i64")
    k.store(args, tirx.const(NUMBER_TAG, "int64"), 0)
    with k.loop(cast(k.load(told, 0), "i32")) as i:
        number = cast(i, "i64")
        k.store(args, tables + number * nbytes, 1)
        k.store(result, tirx.const(0, "int64"), 0)
        k.call_packed(entry, args, 1, result)
        k.store(told, number + tirx.const(1, "int64"), 1)
        k.return_unless_zero(refused)
        k.return_unless(compare("equal", k.load(k.memory("flags", going, 1, "i32"), 0), index(ALL_TRUE)))
    return k.finish([tables, nbytes, counts, refused, going])


def _stop(k: Kernel, table: Any, call: Call) -> None:
    """Return from the entry point if the call has set its flag."""
    if call.stop is not None:
        tensor = tirx.reinterpret("handle", table + tirx.const(call.stop * DLTENSOR, "int64"))
        k.return_unless_zero(tirx.tvm_struct_get(tensor, 0, DATA, "handle"))


def write_object(module: Any, path: str) -> str:
    """Write a module's machine code as an object file; return its path."""
    module.write_to_file(path)
    return path


def export(module: Any, path: str, linker: Linker) -> None:
    """Write a module and its imports as a shared library; raises CompileError if it cannot be linked."""
    try:
        module.export_library(path, fcompile=linker)
    except (RuntimeError, OSError) as error:
        raise CompileError(f"cannot link {path}: {error}") from error
