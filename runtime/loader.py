"""The one module of the runtime that touches TVM: loads artefacts through tvm_ffi's and TVM's runtime libraries alone.

The compiler's library is never mapped here, and the Python package tvm_ffi is imported for GPUs and tensors only: a
process that finds its artefact in the cache has loaded it in 10 ms.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError, located
from gluongraph.process import cores_to_bind, importing_tvm, threads
from gluongraph.runtime.library import Library, start_workers

Tensor = Any  # a tvm_ffi tensor
Entry = Callable[..., None]


@cache
def _libraries() -> ctypes.CDLL:
    """tvm_ffi's library, and in the process that of TVM's runtime, threads configured once."""
    os.environ.setdefault("TVM_NUM_THREADS", str(threads()))
    told = "TVM_BIND_THREADS" in os.environ
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    ffi = ctypes.CDLL(str(_library("libtvm_ffi.so", "tvm_ffi")), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(_library("libtvm_runtime.so")), ctypes.RTLD_GLOBAL)
    if not told and (cores := cores_to_bind()):
        _bind(ffi, cores)
    return ffi


def _bind(ffi: ctypes.CDLL, cores: list[int]) -> None:
    """Start this thread's workers, each on one of these cores; its own is the first that is left.

    TVM would bind them to the machine's first cores, whatever the affinity of the process, and the calling thread with
    them: two processes of one thread each would share core 0.
    """
    before = set(os.listdir("/proc/self/task"))
    start_workers(ffi)
    workers = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
    for worker, core in zip(workers, cores[1:], strict=False):
        with suppress(OSError):  # a core that has been taken from us, or a thread that was not TVM's and is gone
            os.sched_setaffinity(int(worker), {core})


@cache
def _ffi() -> Any:
    """The Python package tvm_ffi, and what `_libraries` brings."""
    # Only arrays of our own travel: the bridge to torch tensors would import torch.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    with importing_tvm():
        import tvm_ffi
    _libraries()
    return tvm_ffi


def _library(name: str, package: str = "tvm") -> Path:
    """A shared library of TVM or of tvm_ffi."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise CompileError("TVM's runtime is not installed: pip install apache-tvm")
    path = Path(spec.origin).parent / "lib" / name
    if not path.exists():
        raise CompileError(f"{path} is missing: reinstall apache-{package.replace('_', '-')}")
    return path


def load_library(path: Path, gpu: bool = False) -> Any:
    """The module in a shared library that codegen wrote. Loading runs its code: only load what you trust.

    Raises:
        CompileError: there is no library, or it is not one of this machine's.
    """
    if gpu:
        _cuda()
        _BINARIES.update((file.stem, file) for file in path.parent.glob("*.fatbin"))
    try:
        return _ffi().load_module(str(path)) if gpu else Library(_libraries(), str(path))
    except RuntimeError as error:
        reason = str(error).rpartition(f"{path}: ")[2]
        raise CompileError(
            located(f"cannot load {path}: {reason}", help=f"delete {path.parent}: the step is then compiled again")
        ) from error


def function(module: Any, name: str) -> Entry:
    """A function of a loaded artefact: an entry point, or a kernel."""
    found: Entry = module.get_function(name)
    return found


def view(array: np.ndarray[Any, Any]) -> Tensor:
    """The array's memory as a flat tensor, not copied; it must be contiguous and writable."""
    ffi = _ffi()
    flat = array.reshape(-1)
    if flat.dtype.type is bfloat16:  # numpy does not export it
        tensor = ffi.from_dlpack(flat.view(np.uint16))
        return tensor._create_view((flat.size,), DTYPES["bf16"].long, 0)
    return ffi.from_dlpack(flat)


# --- memory of devices


@cache
def _runtime(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = _ffi().get_global_func(f"runtime.{name}")
    return function


@cache
def _cuda() -> None:
    """TVM's CUDA runtime in the process; it needs NVIDIA's driver."""
    _ffi()
    library = _library("libtvm_runtime_cuda.so")
    try:
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CompileError(f"no CUDA on this machine: {error}") from error
    importlib.import_module("tvm.support.nvcc")  # first: it registers the same name, and may do so only once
    _ffi().register_global_func("tvm_callback_cuda_compile", _compiled, override=True)


_BINARIES: dict[str, Path] = {}  # digest of CUDA source -> its machine code


def _compiled(source: str, *_: Any) -> bytes:
    """Machine code of CUDA source: what codegen left beside the library, or made now where TVM's compiler is."""
    if (file := _BINARIES.get(hashlib.sha256(source.encode()).hexdigest())) is not None:
        return file.read_bytes()
    nvcc = sys.modules["tvm.support.nvcc"]
    mode = "nvcc" if shutil.which("nvcc") else "nvrtc"
    return bytes(nvcc.compile_cuda(source, "fatbin" if mode == "nvcc" else "cubin", compiler=mode))


def allocate(nbytes: int, kind: int, number: int) -> Tensor:
    """Bytes on a device, of DLPack type `kind`."""
    ffi = _ffi()
    if kind != 1:
        _cuda()
    device = ffi.device({1: "cpu", 2: "cuda"}[kind], number)
    return _runtime("TVMTensorAllocWithScope")(ffi.Shape((nbytes,)), ffi.dtype("uint8"), device, None)


def address(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    return int(tensor.data_ptr())


def copy_in(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
    """The bytes of an array of the host into a tensor."""
    _runtime("TVMTensorCopyFromBytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)


def copy_out(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
    """The bytes of a tensor into an array of the host."""
    _runtime("TVMTensorCopyToBytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)


def synchronize(kind: int, number: int) -> None:
    """Wait until everything that was started on a device is done."""
    ffi = _ffi()
    _runtime("Device_StreamSync")(ffi.device({1: "cpu", 2: "cuda"}[kind], number), 0)


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}  # DLPack's type codes; bfloat16 is 4
_LENT: dict[int, tuple[Any, ...]] = {}  # descriptions that some tensor still uses, by their address


def _forget(pointer: int) -> None:
    _LENT.pop(pointer, None)


_FORGET = _Deleter(_forget)


class _Exporter:
    """Hands a piece of memory over through DLPack: TVM's own views carry an offset, which kernels do not take."""

    def __init__(self, pointer: int, size: int, dtype: str, kind: int, number: int):
        row = DTYPES[dtype]
        code = 4 if dtype == "bf16" else _CODES[row.family]
        shape = (ctypes.c_int64 * 1)(size)
        strides = (ctypes.c_int64 * 1)(1)
        type_ = _Type(code, row.nbytes * 8, 1)
        pointers = (ctypes.cast(x, ctypes.POINTER(ctypes.c_int64)) for x in (shape, strides))
        self._managed = _Managed(_Tensor(pointer, kind, number, 1, type_, *pointers, 0), None, _FORGET)
        self._parts = (self._managed, shape, strides)
        self._device = (kind, number)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **request: Any) -> Any:
        at = ctypes.addressof(self._managed)
        _LENT[at] = self._parts
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(at, b"dltensor", None)


def from_address(pointer: int, size: int, dtype: str, kind: int, number: int) -> Tensor:
    """Memory of a device as a flat tensor. Whoever asks keeps the memory alive."""
    return _ffi().from_dlpack(_Exporter(pointer, size, dtype, kind, number))
