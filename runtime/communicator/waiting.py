"""How ranks wait for one another: busy, as MPI does, or asleep where there are fewer cores than ranks.

Libraries of MPI poll, which is fastest while each rank has a core of its own. Ranks that share a core take it from the
one they wait for: 200 allreduces of four ranks on two cores, beside another program, take 10 times as long by polling.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np

from gluongraph.host.cores import quota
from gluongraph.runtime.communicator.base import CommunicationError

SETTING = "GG_COMM_WAIT"
_PAUSES = (*[0.0] * 10, *[1e-4] * 100)  # seconds between questions whether all have come; then:
_LONG = 1e-3


def sleeps(raw: Any, on_host: Any, mpi: Any) -> bool:
    """Are the ranks of this communicator to wait asleep? All of them do, or none. `on_host` is a communicator of those
    on this host. GG_COMM_WAIT=sleep or poll decides, where it is set.

    Raises:
        CommunicationError: GG_COMM_WAIT is something else.
    """
    given = os.environ.get(SETTING, "").strip()
    cores = set().union(*on_host.allgather(os.sched_getaffinity(0)))  # a rank may be bound to some of them
    short = on_host.size > min(len(cores), quota() or len(cores))
    wanted = np.array([{"sleep": 1, "poll": 0, "": int(short)}.get(given, 2)], np.int64)
    raw.Allreduce(mpi.IN_PLACE, wanted, mpi.MAX)
    if given not in ("sleep", "poll", ""):
        raise CommunicationError(f"{SETTING}={given}: ranks either poll or sleep while they wait")
    return bool(wanted[0])


def wait_asleep(raw: Any) -> None:
    """Return once all ranks have called this."""
    request = raw.Ibarrier()
    for pause in itertools.chain(_PAUSES, itertools.repeat(_LONG)):
        if request.Test():
            return
        time.sleep(pause)
