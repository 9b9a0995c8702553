"""What is asked of the process, once, before numpy is loaded: threads that do not fight, memory that is kept."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = 32 << 20  # bytes; glibc accepts no more
_KEPT = 256 << 20  # bytes


def share_cores() -> None:
    """Keep numpy's BLAS and compiled kernels, which have threads each, from spinning on the same cores.

    OpenBLAS's threads spin for tens of milliseconds after each product. Where one of them sits on the core that a
    worker of ours is bound to, an update of half a millisecond takes six. So they are to sleep early (after 2^10
    cycles; this also makes the products of an eager step no slower), or, where numpy has been loaded before and no
    longer asks, our workers are not bound to cores, which costs steps under a millisecond 15 %.
    """
    if "numpy" in sys.modules:
        os.environ.setdefault("TVM_BIND_THREADS", "0")
    else:
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


share_cores()
keep_freed_memory()
