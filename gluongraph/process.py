"""What is asked of the process: threads that do not fight, memory that is kept, imports that are whole."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = 32 << 20  # bytes; glibc accepts no more
_KEPT = 256 << 20  # bytes


@cache
def threads() -> int:
    """Threads of a parallel kernel, and of the compiler: GG_THREADS, TVM_NUM_THREADS, OMP_NUM_THREADS, else the cores
    that this process owns."""
    for name in ("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if (text := os.environ.get(name, "")).isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def share_cores() -> None:
    """Keep numpy's BLAS and compiled kernels, which have threads each, from spinning on the same cores.

    OpenBLAS's threads spin for tens of milliseconds after each product. Where one of them sits on the core that a
    worker of ours is bound to, an update of half a millisecond takes six. So they are to sleep early (after 2^10
    cycles; this also makes the products of an eager step no slower), or, where numpy has been loaded before and no
    longer asks, our workers are not bound to cores, which costs steps under a millisecond 15 %.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    elif "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
        os.environ.setdefault("TVM_BIND_THREADS", "0")


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


@contextmanager
def importing_tvm() -> Iterator[None]:
    """Within: `import torch` and `import cuda` fail unless they are there already, and an interrupt waits.

    tvm_ffi imports both wherever they are installed; that takes seconds, or 50 ms, and serves tensors and streams that
    nobody gives it here. An import that was interrupted halfway can be neither used nor done again.
    """
    held: list[tuple[Any, ...]] = []
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in ("torch", "cuda") if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None: what Python documents as "cannot be imported"
    try:
        with _interrupts(lambda before, *interrupt: held.append((before, *interrupt))):
            yield
    finally:
        for name in hidden:
            del modules[name]
    for before, *interrupt in held:
        before(*interrupt)


@contextmanager
def calling_tvm() -> Iterator[None]:
    """Within: an interrupt ends as what its handler raises. TVM makes an error without a message of it."""
    raised: list[BaseException] = []

    def pass_on(before: Callable[..., Any], *interrupt: Any) -> None:
        try:
            before(*interrupt)
        except BaseException as error:
            raised.append(error)
            raise

    with _interrupts(pass_on):
        try:
            yield
        except BaseException:
            if raised:
                raise raised[0] from None
            raise


@contextmanager
def _interrupts(handle: Callable[..., Any]) -> Iterator[None]:
    """Within: an interrupt calls `handle(the handler before, *what that takes)`. Only the main thread gets any."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, partial(handle, before))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


share_cores()
keep_freed_memory()
