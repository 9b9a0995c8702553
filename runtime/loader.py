"""The one module of the runtime that touches TVM: loads artefacts through tvm_ffi's and TVM's runtime libraries alone.

The compiler's library is never mapped here, and the Python package tvm_ffi is imported for GPUs and tensors only: a
process that finds its artefact in the cache has loaded it in 10 ms.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import itertools
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError, MXNetError, with_user_location
from gluongraph.host import cuda_compiler, nvidia
from gluongraph.host.interrupts import import_whole
from gluongraph.host.process import cores_to_bind, import_tvm, threads
from gluongraph.runtime.library import Library, start_workers

Tensor = Any  # a tvm_ffi tensor
Entry = Callable[..., None]
Bytes = bytes | memoryview
NO_BINARIES: Mapping[str, Bytes] = {}


@cache
def _libraries() -> ctypes.CDLL:
    """Load tvm_ffi's library and TVM's runtime, with its threads configured; return the former."""
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
    """Return the Python package tvm_ffi, after `_libraries`."""
    # The bridge to torch tensors would import torch; only numpy arrays are passed.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    tvm_ffi = import_tvm("tvm_ffi")
    _libraries()
    return tvm_ffi


def _library(name: str, package: str = "tvm") -> Path:
    """Return the path of a shared library of TVM or of tvm_ffi."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise CompileError("TVM's runtime is not installed: pip install apache-tvm")
    path = Path(spec.origin).parent / "lib" / name
    if not path.exists():
        raise CompileError(f"{path} is missing: reinstall apache-{package.replace('_', '-')}")
    return path


def load_code(library: Bytes, what: str, gpu: bool = False, binaries: Mapping[str, Bytes] = NO_BINARIES) -> Any:
    """The module in the bytes of a shared library that codegen wrote; `what` names it in errors. Loading runs its code:
    only load what you trust. For a GPU there are `binaries`, machine code by file name.

    The system loads files, so the bytes become one without a name: what is loaded is what the caller has checked,
    whatever happens to the file that they were read from.

    Raises:
        CompileError: they are no library, or not one of this machine's.
    """
    if gpu:
        _cuda()
        _BINARIES.update((name.partition(".")[0], bytes(code)) for name, code in binaries.items())
    path = ""
    try:
        with _file_of(library) as path:
            if gpu:
                return _ffi().get_global_func("ffi.Module.load_from_file.so")(path, "so")
            return Library(_libraries(), path)
    except (RuntimeError, OSError) as error:
        reason = str(error).rpartition(f"{path}: ")[2] if isinstance(error, RuntimeError) else error.strerror
        raise CompileError(with_user_location(f"cannot load {what}: {reason}")) from error


_loads = itertools.count(1)


@contextmanager
def _file_of(content: Bytes) -> Iterator[str]:
    """A file with this content in memory (memfd), or a temporary one if the system has no memfd; yields its path."""
    try:
        handle = os.memfd_create("gluongraph", os.MFD_CLOEXEC)
    except OSError:
        handle, path = tempfile.mkstemp(prefix="gluongraph-", suffix=".so")
    else:
        # TVM opens the paths of loaded libraries again for the traceback of an error. If another, shorter file has got
        # the number by then, that is a bus error. So the number is a high one, and the system gives the least that is
        # free: nothing has the path any more.
        handle = _moved_up(handle)
        # The system takes a path that it has loaded before for the same library, and handles are used again: each load
        # spells the same folder in another way, its number in slashes and dots.
        spelled = "".join("./" if bit == "1" else "/" for bit in f"{next(_loads):b}")
        path = f"/proc/self/fd/{spelled}{handle}"
    try:
        with open(handle, "wb", buffering=0, closefd=False) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
        yield path
    finally:
        os.close(handle)
        if not path.startswith("/proc/"):
            os.unlink(path)


def _moved_up(handle: int) -> int:
    """The same file under a number that is half as high as the system allows; as it is where there is none."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        higher = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, min(most, 1 << 20) // 2)
    except OSError:
        return handle
    os.close(handle)
    return higher


def function(module: Any, name: str) -> Entry:
    """Return a function of a loaded artefact: an entry point, or a kernel."""
    found: Entry = module.get_function(name)
    return found


def optional_function(module: Any, name: str) -> Entry | None:
    """Return a function of a loaded artefact; None if it has none of that name."""
    try:
        return function(module, name)
    except AttributeError:
        return None


def view(array: np.ndarray[Any, Any]) -> Tensor:
    """Return the array's memory as a flat tensor, without a copy; it must be contiguous and writable."""
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
    """TVM's CUDA runtime in the process; it needs NVIDIA's driver, and CUDA's runtime library."""
    _ffi()
    library = _library("libtvm_runtime_cuda.so")
    _load_cudart()
    try:
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CompileError(f"no CUDA on this machine: {error}{_cuda_help(str(error))}") from error
    import_whole("tvm.support.nvcc")  # first: it registers the same name, and may do so only once
    _ffi().register_global_func("tvm_callback_cuda_compile", _compiled, override=True)


CUDART = "libcudart.so.13"  # what TVM's library is linked with: CUDA 12 has another


def _load_cudart() -> None:
    """CUDA's runtime library: that which is in the process already, as PyTorch's is, or that of the Python package
    nvidia-cuda-runtime, which lies where the system does not look. Where neither is, the system looks."""
    with suppress(OSError):
        ctypes.CDLL(CUDART, ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
        return
    for path in nvidia.packaged(CUDART):
        with suppress(OSError):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            return


def _cuda_help(reason: str) -> str:
    """Return advice about a missing library."""
    if "libcudart" in reason:
        return "\n  help: pip install 'gluongraph[cuda]', or install CUDA 13"
    return "\n  help: install NVIDIA's driver, 580 or newer" if "libcuda" in reason else ""


_BINARIES: dict[str, bytes] = {}  # digest of CUDA source -> its machine code


def _compiled(source: str, *_: Any) -> bytes:
    """Machine code of CUDA source: what codegen left beside the library, or made now for the GPU that is here."""
    if (code := _BINARIES.get(hashlib.sha256(source.encode()).hexdigest())) is not None:
        return code
    version = nvidia.capability()
    made = cuda_compiler.binary(source, nvidia.architecture(version)) if version else None
    if made is None:
        raise CompileError(f"here is no compiler for the step's CUDA source\n  help: {cuda_compiler.HELP}")
    return made


def allocate(nbytes: int, kind: int, number: int) -> Tensor:
    """Bytes on a device, of DLPack type `kind`.

    Raises:
        MXNetError: the device has no room for them.
    """
    ffi = _ffi()
    if kind != 1:
        _cuda()
    device = ffi.device({1: "cpu", 2: "cuda"}[kind], number)
    with device_errors(f"{nbytes:,} bytes of its memory"):
        return _runtime("TVMTensorAllocWithScope")(ffi.Shape((nbytes,)), ffi.dtype("uint8"), device, None)


@contextmanager
def device_errors(wanted: str) -> Iterator[None]:
    """Convert errors of a device within this context to MXNetError, with what was requested and CUDA's own reason.

    Some of them come late: what a kernel has done wrong is told by a copy after it.
    """
    try:
        yield
    except MXNetError:
        raise
    except Exception as error:  # of many types, which tvm_ffi makes of names
        reason = str(error).partition("// func_name")[0].strip()  # TVM's error goes on with the source of all kernels
        raise MXNetError(with_user_location(f"the device does not give {wanted}: {reason}")) from error


@contextmanager
def on_stream_of_copies(kind: int, number: int) -> Iterator[None]:
    """Run kernels within this context on the stream that `copy_in` and `copy_out` use, after earlier copies and before
    later ones. Other code may have set another stream for TVM's kernels, as its bridge to PyTorch does."""
    if kind == 1:
        yield
        return
    set_stream, before = _libraries().TVMFFIEnvSetStream, ctypes.c_void_p()
    set_stream(kind, number, None, ctypes.byref(before))
    try:
        yield
    finally:
        set_stream(kind, number, before, None)


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory."""
    return int(tensor.data_ptr())


def copy_in(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
    """Copy a host array to a tensor."""
    with device_errors("a copy to it"):
        _runtime("TVMTensorCopyFromBytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)


def copy_out(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
    """Copy a tensor to a host array."""
    with device_errors("a copy from it"):
        _runtime("TVMTensorCopyToBytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)


def copy(source: Tensor, target: Tensor) -> None:
    """Copy a tensor to another one of the same device and size, after the kernels launched before; the host does not
    wait."""
    with device_errors("a copy within it"):
        _runtime("TVMTensorCopyFromTo")(source, target)


def synchronize(kind: int, number: int) -> None:
    """Wait until everything that was started on a device is done."""
    ffi = _ffi()
    with device_errors("what it was asked for"):
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
    """Exports memory through DLPack: TVM's own views have a byte offset, which kernels ignore."""

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
    """Return memory of a device as a flat tensor. The caller keeps the memory alive."""
    return _ffi().from_dlpack(_Exporter(pointer, size, dtype, kind, number))
