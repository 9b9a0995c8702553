"""Whether communication beside computation saves time here: measured once, when the first step is compiled.

On a CPU a collective is work for a core. Where all cores compute, starting it early gains nothing, and costs the
collective's fixed part once for each bucket; with spare cores it can be hidden. On a GPU nothing is measured: a
collective has a stream of its own there, beside which kernels run, and the host does not wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from gluongraph.errors import ArgumentError
from gluongraph.host.process import threads
from gluongraph.runtime.communicator.base import Communicator

BUCKET = 4 << 20  # bytes of gradients that are communicated together, at least, while others are computed
VARIABLE = "GG_OVERLAP"  # 1 or 0 in the environment decides without measuring
_GAIN = 0.9  # of the time of both one after the other, at most
_REPEATS = 3


@cache
def bucket_size(communicator: Communicator) -> int:
    """Return the size of buckets that are communicated while others are computed; 0 if that gains nothing. The same on
    all ranks, who all call this.

    Raises:
        ArgumentError: the variable is neither 0 nor 1.
    """
    if communicator.size == 1:
        return 0
    told = _told()
    decision = np.array([_gains(communicator) if told is None else told], np.int64)
    communicator.broadcast(decision)
    return BUCKET if decision[0] else 0


def gpu_bucket_size() -> int:
    """Return the size of buckets in steps for GPUs. Where ranks have been told different things, their programs differ,
    and they refuse to run them together.

    Raises:
        ArgumentError: the variable is neither 0 nor 1.
    """
    return 0 if _told() is False else BUCKET


def _told() -> bool | None:
    """Return what the environment says; None if it says nothing."""
    given = os.environ.get(VARIABLE, "")
    if given not in ("", "0", "1"):
        raise ArgumentError(f"{VARIABLE}={given}: 1, 0, or nothing to measure it")
    return given == "1" if given else None


def _gains(communicator: Communicator) -> bool:
    return communicator.name != "mpi" or (_has_spare_cores(communicator) and _measured(communicator))


def _has_spare_cores(communicator: Communicator) -> bool:
    """Are there more cores on every host than threads of all its ranks?"""
    spare = np.array([len(os.sched_getaffinity(0)) > communicator.local_size * threads()], np.int64)
    communicator.allreduce(spare, "min")
    return bool(spare[0])


def _measured(communicator: Communicator) -> bool:
    """Is a sum over ranks beside computation faster than one after the other?"""
    array, a = np.zeros(BUCKET // 4, np.float32), np.ones((256, 256), np.float32)
    alone = _time(communicator, partial(communicator.allreduce, array))
    count = max(1, round(alone / max(_time(communicator, lambda: a @ a), 1e-6)))

    def compute() -> None:
        for _ in range(count):
            a @ a

    def both() -> None:
        work = communicator.start_allreduce(array)
        compute()
        work.wait()

    after = alone + _time(communicator, compute)
    gain = np.array([_time(communicator, both) / after], np.float64)
    communicator.allreduce(gain, "max")
    return bool(gain[0] < _GAIN)


def _time(communicator: Communicator, run: Callable[[], object]) -> float:
    """Return the least seconds of a few runs."""
    run()
    found = []
    for _ in range(_REPEATS):
        communicator.barrier()
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)
