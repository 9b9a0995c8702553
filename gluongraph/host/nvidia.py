"""NVIDIA's driver and GPUs, as far as this process can find them, and which machine code a GPU runs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from gluongraph.host.interrupts import import_whole

Version = tuple[int, int]  # compute capability: (9, 0) of an H100
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


def driver() -> ctypes.CDLL | None:
    """The driver's library, ready to be asked; None where there is none, or none that answers."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return found if found.cuInit(0) == 0 else None


def count() -> int:
    """How many GPUs there are; 0 without a driver."""
    found, number = driver(), ctypes.c_int(0)
    if found is None or found.cuDeviceGetCount(ctypes.byref(number)) != 0:
        return 0
    return number.value


def number_of(local_rank: int) -> int:
    """The number of the GPU of a rank, by the rank's number among those on its host: they have the GPUs in turn."""
    return local_rank % max(1, count())


def capability(number: int = 0) -> Version | None:
    """The compute capability of a GPU; None where there is no such GPU."""
    found, device = driver(), ctypes.c_int()
    if found is None or found.cuDeviceGet(ctypes.byref(device), number) != 0:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    for attribute, place in ((_MAJOR, major), (_MINOR, minor)):
        found.cuDeviceGetAttribute(ctypes.byref(place), attribute, device)
    return major.value, minor.value


def architecture(version: Version) -> str:
    """What compilers call GPUs of a compute capability.

    >>> architecture((9, 0)), architecture((12, 1))
    ('sm_90', 'sm_121')
    """
    return f"sm_{version[0]}{version[1]}"


def fits(arch: str, code: str, version: Version) -> bool:
    """Does machine code for `arch` run on GPUs of a compute capability? As CUDA has it, by what the code is:

    "cubin": on GPUs of the same major number and no smaller minor number.
    "fatbin": there, and, since PTX lies beside it, on all later GPUs.
    "source": wherever a compiler makes code of it.
    Code for "sm_90a" uses what GPUs of that capability alone have.

    >>> [fits("sm_80", "cubin", v) for v in ((8, 0), (8, 6), (7, 5), (9, 0))], fits("sm_80", "fatbin", (9, 0))
    ([True, True, False, False], True)
    >>> fits("sm_90a", "fatbin", (9, 0)), fits("sm_90a", "fatbin", (10, 0)), fits("sm_90", "cubin", (9, 0))
    (True, False, True)
    """
    if code == "source":
        return True
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
    if found is None:
        return False
    built = int(found[1]), int(found[2])
    if found[3]:
        return version == built
    return version >= built and (code == "fatbin" or version[0] == built[0])


_FATBIN = b"\x50\xed\x55\xba"  # how what nvcc writes begins


def kind_of(binary: bytes | None) -> str:
    """What machine code is, in the words of `fits`; None is source that is compiled where it is loaded."""
    if binary is None:
        return "source"
    return "fatbin" if binary.startswith(_FATBIN) else "cubin"


def packaged(library: str) -> list[Path]:
    """Where NVIDIA's Python packages have put a library: "libcudart.so.13" of nvidia-cuda-runtime."""
    try:
        nvidia = import_whole("nvidia")  # a namespace that several packages share
    except ImportError:
        return []
    return sorted(path for folder in nvidia.__path__ for path in Path(folder).glob(f"*/lib/{library}"))
