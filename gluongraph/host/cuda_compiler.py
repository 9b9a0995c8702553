"""Machine code of CUDA source, by NVIDIA's compilers: nvcc of a toolkit, or NVRTC of the Python packages.

Both compile for full precision: TVM's own way to them says --use_fast_math, which makes `expf` coarse.
"""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from typing import Any

from gluongraph.errors import CompileError
from gluongraph.host import disk
from gluongraph.host.interrupts import guarded, import_whole

HELP = "install a CUDA toolkit, whose nvcc is then found in PATH, or: pip install 'gluongraph[cuda]'"


def compiler() -> str:
    """The compiler that is there: "nvcc", "NVRTC" or ""."""
    if shutil.which("nvcc"):
        return "nvcc"
    return "NVRTC" if find_spec("cuda") is not None and find_spec("cuda.bindings") is not None else ""


def binary(source: str, arch: str) -> bytes | None:
    """CUDA source as machine code for `arch` ("sm_90"): by nvcc with PTX for later GPUs beside it, else by NVRTC. None
    where neither is: then the source can be compiled where it is loaded.

    Raises:
        CompileError: the compiler does not take the source.
    """
    found = compiler()
    return _nvcc(source, arch) if found == "nvcc" else _nvrtc(source, arch) if found else None


def _nvcc(source: str, arch: str) -> bytes:
    virtual = arch.replace("sm_", "compute_")
    with disk.temporary_folder() as folder:
        (folder / "kernels.cu").write_text(source, encoding="utf-8")
        code = f"arch={virtual},code=[{arch},{virtual}]"
        command = ["nvcc", "-w", "-fatbin", "-gencode", code, "kernels.cu", "-o", "kernels.fatbin"]
        done = subprocess.run(guarded(command), cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"nvcc does not take the kernels for {arch}: {done.stderr[:2000]}")
        return (folder / "kernels.fatbin").read_bytes()


# What the headers of the language leave out: NVRTC knows none of a host's.
_PREAMBLE = """#include <cuda/std/limits>
#ifndef INFINITY
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
#endif
"""


def _nvrtc(source: str, arch: str) -> bytes:
    try:
        nvrtc = import_whole("cuda.bindings.nvrtc")
        made = _done(nvrtc, nvrtc.nvrtcCreateProgram((_PREAMBLE + source).encode(), b"kernels.cu", 0, None, None))
    except (ImportError, RuntimeError) as error:  # RuntimeError: its library is not there
        raise CompileError(f"NVRTC cannot be used: {error}\n  help: {HELP}") from error
    options = [f"--gpu-architecture={arch}", "-default-device", "-w", *(f"-I{folder}" for folder in _headers())]
    (status,) = nvrtc.nvrtcCompileProgram(made, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_done(nvrtc, nvrtc.nvrtcGetProgramLogSize(made)))
        nvrtc.nvrtcGetProgramLog(made, log)
        told = log.decode(errors="replace").rstrip("\0 \n") or status.name
        raise CompileError(f"NVRTC does not take the kernels for {arch}: {told[:2000]}")
    code = bytearray(_done(nvrtc, nvrtc.nvrtcGetCUBINSize(made)))
    _done(nvrtc, nvrtc.nvrtcGetCUBIN(made, code))
    nvrtc.nvrtcDestroyProgram(made)
    return bytes(code)


def _done(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """What a function of NVRTC gives."""
    status, *rest = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC has failed: {status.name}")
    return rest[0] if rest else None


def _headers() -> list[str]:
    """The folders of CUDA's headers: those of its runtime and of its C++ library."""
    find = import_whole("cuda.pathfinder").find_nvidia_header_directory
    found = {name: find(name) for name in ("cudart", "cccl")}
    if missing := [package for name, package in _PACKAGES.items() if not found[name]]:
        raise CompileError(f"CUDA's headers are not all here\n  help: pip install {' '.join(missing)}")
    return [str(folder) for folder in found.values()]


_PACKAGES = {"cudart": "nvidia-cuda-runtime", "cccl": "nvidia-cuda-cccl"}
