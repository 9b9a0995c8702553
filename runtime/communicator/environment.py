"""Which ranks there are: the communicator of this process, found from the environment that its launcher has set.

| started by | found by |
|---|---|
| mpiexec, mpirun, prterun | the variables of Open MPI, MPICH, Intel MPI and others (`_SIZES`) |
| Slurm: `srun --mpi=pmix` (or pmi2) | SLURM_PROCID, SLURM_STEP_NUM_TASKS, and PMI's or PMIx's variables |
| torchrun, Ray, by hand | RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; see `torchrun.py` |
| anything else | one process |

mpi4py is imported where there are several ranks only.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gluongraph.errors import warn, with_user_location
from gluongraph.host import nvidia
from gluongraph.host.interrupts import import_whole
from gluongraph.runtime.communicator import supervision
from gluongraph.runtime.communicator.base import CommunicationError, Communicator
from gluongraph.runtime.communicator.local import LocalCommunicator
from gluongraph.runtime.communicator.settings import seconds
from gluongraph.runtime.communicator.supervision import say, supervise

# Number of ranks, as launchers of MPI programs tell it.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "FLUX_JOB_SIZE")
_LAUNCHED = ("PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "MPI_LOCALNRANKS", "PMI_LOCAL_RANK")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_IDENTITY = ("PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_PORT", "PMI_FD", "RANK", "MASTER_PORT")
_OWNER = "GG_COMM_PROCESS"  # the process that is a rank: those that it starts have its environment, and are none
_SLOW_START = 30.0  # seconds after which is said that ranks are missing

_INSTALL = "pip install 'gluongraph[mpi]'; on a cluster, pip install mpi4py and its own MPI (module load openmpi)"


@dataclass(frozen=True)
class Launch:
    """How this process was started."""

    by: str  # "alone", "mpi" or "torchrun"
    size: int  # number of ranks; 0 if only MPI knows it


def launch(environ: Mapping[str, str]) -> Launch:
    """How the process with these variables was started.

    >>> launch({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"})
    Launch(by='mpi', size=4)
    >>> launch({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"})
    Launch(by='torchrun', size=2)
    >>> launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})  # a batch script, or srun --mpi=none
    Launch(by='alone', size=1)

    Raises:
        CommunicationError: RANK and WORLD_SIZE tell of several ranks, and not where they meet.
    """
    sizes = [int(environ[name]) for name in _SIZES if environ.get(name, "").isdigit()]
    launched = bool(sizes) or any(name in environ for name in _LAUNCHED)
    own = "TORCHELASTIC_RUN_ID" in environ or not launched  # torchrun itself may be started by srun
    if own and (size := _size_by_variables(environ)):
        return Launch("torchrun" if size > 1 else "alone", size)
    if not launched:
        return Launch("alone", 1)
    if not sizes and "SLURM_PROCID" in environ:
        sizes = [int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or 0)]
    size = sizes[0] if sizes else 0
    return Launch("alone" if size == 1 else "mpi", size)


def _size_by_variables(environ: Mapping[str, str]) -> int:
    """The number of ranks that the variables of torchrun tell; 0 where they are those of no job.

    Raises:
        CommunicationError: they tell of several ranks, but not where these meet: each would train alone.
    """
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank and size):
        return 0
    if not (rank.isdigit() and size.isdigit()):
        raise CommunicationError(with_user_location(f"RANK={rank} and WORLD_SIZE={size} are no numbers"))
    if missing := [name for name in _TORCHRUN if not environ.get(name)]:
        if int(size) <= 1:
            return 0
        message = f"RANK={rank} and WORLD_SIZE={size} tell of several ranks, and {' and '.join(missing)} are not set"
        help = "gluongraph run or torchrun sets all of them; unset RANK and WORLD_SIZE for one process"
        raise CommunicationError(with_user_location(message, help=help))
    return int(size)


_world: Communicator | None = None


def world() -> Communicator:
    """The communicator of all ranks that this process was started with; alone, that of one rank.

    All ranks call this first together. The same object is returned from then on, until `use_world` replaces it.

    Raises:
        CommunicationError: the environment tells of several ranks, and mpi4py or MPI is missing, is another MPI than
            that of the launcher, or cannot be used from several threads.

    >>> world()
    LocalCommunicator(rank 0 of 1)
    """
    global _world
    if _world is None:
        _world = _find()
        os.register_at_fork(after_in_child=_alone)
    return _world


def world_on_gpus() -> Communicator:
    """The communicator of the ranks of `world()` for arrays on GPUs, over NCCL; of a single rank `world()` itself.

    All ranks call this first together. The same object is returned from then on, until the world is another one.

    Raises:
        CommunicationError: on every rank, if one of them has no GPU or no NCCL.
        PeerLost: the other ranks do not connect within GG_COMM_TIMEOUT.

    >>> world_on_gpus()
    LocalCommunicator(rank 0 of 1)
    """
    return _over_nccl(world())


@cache
def _over_nccl(boot: Communicator) -> Communicator:
    if boot.size == 1:
        return boot
    import_whole("gluongraph.runtime.communicator.nccl")
    from gluongraph.runtime.communicator.nccl import NcclCommunicator

    return NcclCommunicator(boot, local_gpu())


_gpu: int | None = None


def local_gpu() -> int:
    """The number of this process's GPU; 0 where it is no rank, or has not called `world` yet. A rank keeps its GPU in a
    smaller world, where its own number may be another one: its arrays are there.

    >>> local_gpu()
    0
    """
    global _gpu
    if _gpu is None and _world is not None:
        _gpu = nvidia.number_of(_world.local_rank)
    return 0 if _gpu is None else _gpu


def use_world(communicator: Communicator) -> None:
    """Let `world` return another communicator, as that of the ranks that are left (`shrink`)."""
    global _world
    _world = communicator


def leave() -> None:
    """Wait until the other ranks do so or have ended, and end MPI in this process. No collective can follow.

    A process does this itself when its program ends. It is for processes that go on with something else afterwards, or
    that are killed when their work is done, as workers of Ray are.
    """
    supervision.leave()
    use_world(LocalCommunicator())


def _alone() -> None:
    """A fork of a rank is none."""
    use_world(LocalCommunicator())


def _find() -> Communicator:
    found = launch(os.environ)
    if found.by == "alone" or _child_of_rank(os.environ):
        if int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1 and found.by == "alone":
            warn(
                "srun has started several tasks without PMI: each is alone. srun --mpi=pmix makes them ranks of one job"
            )
        return LocalCommunicator()
    _require_mpi4py(found)
    if found.by == "torchrun":
        import_whole("gluongraph.runtime.communicator.torchrun")
        from gluongraph.runtime.communicator import torchrun

        torchrun.join(os.environ)
    return _connect(found)


def _identity(environ: Mapping[str, str]) -> str:
    """What distinguishes this rank of this job."""
    return " ".join(environ.get(name, "-") for name in _IDENTITY)


def _child_of_rank(environ: Mapping[str, str]) -> bool:
    """Has a rank started this process, and not as a rank of another job?"""
    process, _, identity = environ.get(_OWNER, "").partition(" ")
    return identity == _identity(environ) and process != str(os.getpid())


def _require_mpi4py(found: Launch) -> None:
    if importlib.util.find_spec("mpi4py") is None:
        ranks = f"{found.size} ranks" if found.size else "ranks of MPI"
        message = f"this process is one of {ranks}, and mpi4py, which connects them, is not installed"
        raise CommunicationError(with_user_location(message, help=_INSTALL))


def _connect(found: Launch) -> Communicator:
    """Initialize MPI, check what it gives, and watch the other ranks."""
    import_whole("gluongraph.runtime.communicator.mpi")
    from gluongraph.runtime.communicator.mpi import MpiCommunicator, load_mpi, revoke_all

    with _Missing():
        try:
            mpi = _loaded(load_mpi)
        except (ImportError, RuntimeError) as error:
            message = f"this process is one of several ranks, and MPI cannot be loaded: {error}"
            raise CommunicationError(with_user_location(message, help=_INSTALL)) from None
        _check(mpi, found)
        communicator = MpiCommunicator(mpi.COMM_WORLD.Dup())
        supervise(communicator, mpi, revoke_all)
    os.environ[_OWNER] = f"{os.getpid()} {_identity(os.environ)}"
    return communicator


def _check(mpi: Any, found: Launch) -> None:
    """Is it the launcher's MPI, for several threads?"""
    library = mpi.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    if found.size and mpi.COMM_WORLD.size != found.size:
        message = f"the launcher has started {found.size} ranks, {library} sees {mpi.COMM_WORLD.size}"
        advice = "mpiexec (srun's --mpi=) must be that of the MPI that mpi4py loads: python -m mpi4py --mpi-lib-version"
        raise CommunicationError(with_user_location(message, help=advice))
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        message = f"{library} has been initialized without MPI_THREAD_MULTIPLE, which several threads need"
        advice = "leave mpi4py.rc.threads and mpi4py.rc.thread_level as they are; ask for an MPI built with threads"
        raise CommunicationError(with_user_location(message, help=advice))


def _loaded(load_mpi: Callable[[], Any]) -> Any:
    """Initialize MPI. Meanwhile no other thread runs Python: that others do not come is left to C to notice."""
    faulthandler.dump_traceback_later(seconds("GG_COMM_TIMEOUT", 1800), exit=True, file=2)
    try:
        return load_mpi()
    finally:
        faulthandler.cancel_dump_traceback_later()


class _Missing:
    """Within: that other ranks do not come is said, and after GG_COMM_TIMEOUT ends the process."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self._timeout = seconds("GG_COMM_TIMEOUT", 1800)

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="gluongraph-start", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._come.set()

    def _watch(self) -> None:
        if self._come.wait(min(_SLOW_START, self._timeout)):
            return
        say(f"waiting for the other ranks, which have not all come to world() (process {os.getpid()})")
        if not self._come.wait(max(0.0, self._timeout - _SLOW_START)):
            say(f"not all ranks have come to world() within {self._timeout:g} s (GG_COMM_TIMEOUT); this one is ended")
            os._exit(1)
