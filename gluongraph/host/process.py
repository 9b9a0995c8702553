"""Settings of the process: threads that do not compete, memory that is kept, imports that complete."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType

from gluongraph.host.cores import cores, quota
from gluongraph.host.interrupts import import_whole

THREADS = ("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS")  # who may say how many, the first before the others
# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = 32 << 20  # bytes; glibc accepts no more
_KEPT = 256 << 20  # bytes


@cache
def threads() -> int:
    """Threads of a parallel kernel, and of the compiler: GG_THREADS, TVM_NUM_THREADS, OMP_NUM_THREADS, else one for
    each physical core of this process, within the time that it is given."""
    for name in THREADS:
        if (text := os.environ.get(name, "")).isdigit() and int(text) > 0:
            return int(text)
    time = quota()
    return len(cores()) if time is None else max(1, min(int(time), len(cores())))


def cores_to_bind() -> list[int]:
    """The cores that threads are bound to, one each; none where they had better go where there is room.

    That is where this process has a thread for each of its cores: of fewer it could not be told which ones others
    leave free. And where numpy's BLAS sleeps: see `share_cores`.
    """
    asleep = "OPENBLAS_THREAD_TIMEOUT" in os.environ
    return cores() if asleep and threads() == len(cores()) > 1 else []


def share_cores() -> None:
    """Keep numpy's BLAS and compiled kernels, which have threads each, from spinning on the same cores.

    OpenBLAS's threads spin for tens of milliseconds after each product. Where one of them sits on the core that a
    worker of ours is bound to, an update of half a millisecond takes six. So they are to sleep early (after 2^10
    cycles; this also makes the products of an eager step no slower), or, where numpy has been loaded before and no
    longer asks, our workers are not bound to cores, which costs steps under a millisecond 15 %.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")


def keep_freed_memory() -> None:
    """Let malloc keep up to 256 MiB of freed memory, and serve arrays of up to 32 MiB from it.

    By default glibc returns arrays of a few hundred kilobytes to the system as soon as they are freed, and each new
    one is paid for page by page: half of the time of an eager step whose arrays are of that size. Does nothing where
    the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)
    mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back_freed_memory() -> None:
    """Let malloc return to the system what it has kept: for moments after which other memory is needed."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def collecting_later() -> Iterator[None]:
    """Within: Python does not look for cycles among its objects. Graphs are many objects and no cycle; to look at them
    again and again takes a fifth of the time that tracing and differentiating do."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def import_tvm(name: str) -> ModuleType:
    """TVM's package of this name, imported as `import_whole` does; `import torch` and `import cuda` fail meanwhile.

    tvm_ffi imports both wherever they are installed; that takes seconds, or 50 ms, and serves tensors and streams that
    nobody gives it here.
    """
    return import_whole(name, hidden=("torch", "cuda"))


share_cores()
keep_freed_memory()
