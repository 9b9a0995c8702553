"""The one module of the runtime that touches TVM: loads artefacts through tvm_ffi and TVM's runtime library alone.

The compiler's library is never mapped here: a process that finds its artefact in the cache starts in 0.1 s.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError

Tensor = Any  # a tvm_ffi tensor
Entry = Callable[..., None]


@cache
def _ffi() -> Any:
    """tvm_ffi with TVM's runtime libraries in the process, threads configured once."""
    # Only arrays of our own travel: the bridge to torch tensors would import torch.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    os.environ.setdefault("TVM_NUM_THREADS", str(threads()))
    import tvm_ffi

    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise CompileError("TVM's runtime is not installed: pip install apache-tvm")
    folder = Path(spec.origin).parent / "lib"
    for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        if not (folder / name).exists():
            raise CompileError(f"{folder / name} is missing: reinstall apache-tvm")
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    return tvm_ffi


@cache
def threads() -> int:
    """Threads of a parallel region: GG_THREADS, TVM_NUM_THREADS or OMP_NUM_THREADS, else the cores this process owns."""
    for name in ("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if (text := os.environ.get(name, "")).isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def load_library(path: Path) -> Any:
    """The module in a shared library that codegen wrote. Loading runs its code: only load what you trust."""
    return _ffi().load_module(str(path))


def entry_points(module: Any, names: tuple[str, ...]) -> dict[str, Entry]:
    """The functions of an artefact by name, on a virtual machine of their own."""
    _ffi()
    machine = module["vm_load_executable"]()
    device_type_cpu, pooled = 1, 2
    machine["vm_initialization"](device_type_cpu, 0, pooled)
    return {name: machine[name] for name in names}


def view(array: np.ndarray[Any, Any]) -> Tensor:
    """The array's memory as a flat tensor, not copied; it must be contiguous and writable."""
    ffi = _ffi()
    flat = array.reshape(-1)
    if flat.dtype.kind == "V" or flat.dtype.name == "bfloat16":  # numpy exports no bfloat16
        tensor = ffi.from_dlpack(flat.view(np.uint16))
        return tensor._create_view((flat.size,), DTYPES["bf16"].long, 0)
    return ffi.from_dlpack(flat)
