"""Times collectives on the ranks of this job, and fits the alpha-beta model to them.

gluongraph run -n 4 -m gluongraph.distributed.simulate_ranks        # what `gluongraph simulate --bandwidth` takes
gluongraph run --hosts a:1,b:1 -m gluongraph.distributed.simulate_ranks --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np

from gluongraph.distributed.simulate_calibration import Timing, fit
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.runtime.communicator.environment import world

SIZES = tuple(1 << shift for shift in range(10, 25, 2))  # bytes: 1 KiB to 16 MiB
_LONG = 0.05  # seconds of repetitions of one collective of one size, about
_REPEAT = (5, 200)  # at least, at most


def measure(communicator: Communicator, sizes: tuple[int, ...] = SIZES, quantile: float = 0.5) -> list[Timing]:
    """Time all_reduce, reduce_scatter and all_gather of float32 arrays of so many bytes: the median, or another
    quantile, of some repetitions. All ranks call this; all of them return the times of the slowest one."""
    ranks = communicator.size
    found = []
    for nbytes in sizes:
        part = np.zeros(max(1, nbytes // 4 // ranks), np.float32)
        whole = np.zeros(part.size * ranks, np.float32)
        calls = {
            "all_reduce": partial(communicator.allreduce, whole),
            "reduce_scatter": partial(communicator.reduce_scatter, whole, part),
            "all_gather": partial(communicator.allgather, part, whole),
        }
        for op, call in calls.items():
            found.append(Timing(op, ranks, whole.nbytes, _seconds(communicator, call, quantile)))
    return found


def _seconds(communicator: Communicator, call: Callable[[], None], quantile: float) -> float:
    """A quantile of the times of a call, on the slowest rank. All ranks repeat it equally often."""
    call()
    once = np.array([_time(communicator, call)])
    communicator.allreduce(once, "max")
    least, most = _REPEAT
    count = min(most, max(least, int(_LONG / max(float(once[0]), 1e-9))))
    found = np.array([np.quantile([_time(communicator, call) for _ in range(count)], quantile)])
    communicator.allreduce(found, "max")
    return float(found[0])


def _time(communicator: Communicator, call: Callable[[], None]) -> float:
    communicator.barrier()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the timings for machines, on rank 0")
    options = parser.parse_args()
    communicator = world()
    timings = measure(communicator)
    if communicator.rank:
        return
    if options.json:
        print(json.dumps([asdict(timing) for timing in timings]))
    else:
        print(fit(timings))


if __name__ == "__main__":
    main()
