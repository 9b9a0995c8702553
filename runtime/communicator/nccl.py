"""The communicator of GPUs: NCCL, through NVIDIA's Python binding nccl4py, beside a communicator of the processes."""

from __future__ import annotations

import atexit
import ctypes
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.host import nvidia
from gluongraph.host.interrupts import import_whole
from gluongraph.runtime import loader
from gluongraph.runtime.communicator.activity import ACTIVITY
from gluongraph.runtime.communicator.base import REDUCTIONS, CommunicationError, Communicator, PeerLost, Work
from gluongraph.runtime.communicator.settings import seconds
from gluongraph.runtime.communicator.supervision import fault_tolerant
from gluongraph.runtime.table import CUDA

SHARES_GPUS = (2, 30)  # the first version of NCCL that takes two ranks on one GPU
_HELP = "pip install 'gluongraph[nccl]'; it needs NVIDIA's driver, 580 or newer"
_SUCCESS, _REMOTE_ERROR, _IN_PROGRESS, _TIMED_OUT = 0, 6, 7, 8  # of ncclResult_t
_PERIOD = 0.05  # seconds between two looks of the watching thread


class NcclCommunicator(Communicator):
    """One rank for each process, on one GPU. `boot` connects the same processes: it takes texts and host arrays.

    Collectives of device arrays (DLPack tensors) are enqueued on the stream on which TVM launches kernels at that
    moment: they come after the kernels launched before, and before those launched later. The host does not wait for
    them; `synchronize` does. Arrays of the host go through `boot`.

    `device` is the number of the GPU: by default the local rank, modulo the number of GPUs. Two ranks may share a GPU
    if NCCL is 2.30 or later. 16-bit floats are rounded by NCCL at each of its additions, not once as `Communicator`
    says: on two ranks that is the same.

    A collective that takes longer than `timeout` seconds (GG_COMM_TIMEOUT, 1800), or runs while `boot` has lost a rank
    in a fault tolerant job, is aborted; the next call raises. Whoever reads results calls `synchronize` before.

    Raises:
        CommunicationError: on every rank, if one of them has no GPU or no NCCL, or if two share a GPU and their NCCL
            is too old for that.
        PeerLost: the other ranks do not connect within `timeout`.
    """

    name = "nccl"

    def __init__(
        self,
        boot: Communicator,
        device: int | None = None,
        timeout: float | None = None,
    ):
        self.rank, self.size, self.local_rank, self.local_size = boot.rank, boot.size, boot.local_rank, boot.local_size
        self.device = nvidia.number_of(boot.local_rank) if device is None else device
        self._boot, self._timeout = boot, seconds("GG_COMM_TIMEOUT", 1800) if timeout is None else timeout
        # For the supervision, to which `boot` reports too: collectives are counted downwards, MPI's upwards.
        self.members, self.calls = getattr(boot, "members", ""), 0
        found = json.dumps(_inspect(self.device))
        if _agree([json.loads(text) for text in boot.exchange(found)]):
            os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        self._core, self._cuda = import_whole("nccl.core"), import_whole("cuda.core")
        gpu = self._cuda.Device(self.device)
        gpu.set_current()
        unique_id = np.frombuffer(self._core.get_unique_id(empty=self.rank != 0).as_bytes, np.uint8).copy()
        boot.broadcast(unique_id)
        config = self._core.NCCLConfig(blocking=False)  # only such a communicator can be aborted at any time
        shared_id = self._core.UniqueId.from_bytes(unique_id.tobytes())
        who = f"rank {self.rank} of {self.size}"
        try:
            communicator = self._core.Communicator.init(self.size, self.rank, shared_id, config)
        except Exception as error:  # NCCLError, which nccl.core does not export
            raise CommunicationError(with_user_location(f"no NCCL communicator on {who}: {error}")) from error
        self._watched = _Watched(communicator, self._core, gpu, boot, self._timeout, who)
        self._side = gpu.create_stream()  # of `start_allreduce`
        self._pairs: dict[int, NcclCommunicator] = {}  # of `allreduce_tree`, by the distance of their two ranks

    def allreduce(self, array: Any, op: str = "sum") -> None:
        """Replace the array by the sum (maximum, minimum) of those of all ranks: the same bits on every rank."""
        if _on_host(array):
            self._boot.allreduce(array, op)
        else:
            self._start("allreduce", array, array, self._reduction(op))

    def allreduce_tree(self, array: Any) -> None:
        """Replace the array by the sum along a balanced binary tree: one sum of two ranks for each level of it.

        Sums of two are the same bits in either order. Each level has communicators of two ranks, which are made at the
        first call.

        Raises:
            CommunicationError: the number of ranks is no power of two.
        """
        if self.size & (self.size - 1):
            raise CommunicationError(with_user_location(f"a balanced tree needs 2, 4, 8, ... ranks, not {self.size}"))
        if _on_host(array):
            self._boot.allreduce_tree(array)
            return
        self._stream().wait(self._side)  # collectives of several communicators must not run at the same time
        for distance in (1 << level for level in range(self.size.bit_length() - 1)):
            if distance not in self._pairs:
                self._pairs[distance] = self.split(min(self.rank, self.rank ^ distance), self.rank)
            self._pairs[distance].allreduce(array)

    def start_allreduce(self, array: Any, op: str = "sum") -> Work:
        """Start `allreduce` on a stream of its own, after the kernels launched so far; kernels may run beside it.

        `wait` lets kernels that are launched later wait for it, not the host.
        """
        if _on_host(array):
            return self._boot.start_allreduce(array, op)
        reduction = self._reduction(op)
        self._side.wait(self._stream())
        return _OnStream(self, self._start("allreduce", array, array, reduction, stream=self._side))

    def reduce_scatter(self, source: Any, target: Any) -> None:
        """Write part number `rank` of the sum over ranks to `target`. `source` has `size` times as many elements."""
        self._check_sizes("reduce_scatter", source, target)
        if _on_host(source):
            self._boot.reduce_scatter(source, target)
        else:
            self._start("reduce_scatter", source, target, self._core.SUM)

    def allgather(self, source: Any, target: Any) -> None:
        """Write the sources of all ranks to `target`, one after the other. `source` may be the rank's own part of
        `target`."""
        self._check_sizes("allgather", source, target)
        if _on_host(source):
            self._boot.allgather(source, target)
        else:
            self._start("allgather", source, target)

    def alltoall(self, source: Any, target: Any) -> None:
        """Write part number `rank` of every rank's source to `target`, in the order of ranks. Needs NCCL 2.28."""
        self._check_sizes("alltoall", source, target)
        if _on_host(source):
            self._boot.alltoall(source, target)
        else:
            self._start("alltoall", source, target)

    def broadcast(self, array: Any, root: int = 0) -> None:
        """Replace the array by that of the rank `root`."""
        if _on_host(array):
            self._boot.broadcast(array, root)
        else:
            self._start("broadcast", array, array, root)

    def exchange(self, text: str) -> Sequence[str]:
        """Return the texts of all ranks, by rank. They are data: nothing in them is executed."""
        return self._boot.exchange(text)

    def synchronize(self) -> None:
        """Wait on the host until all collectives of this rank are complete.

        Raises:
            PeerLost: one of them cannot be: another rank has ended, or does not answer.
        """
        ACTIVITY.inside = _Waiting("synchronize", self)
        try:
            for each in (self, *self._pairs.values()):
                each._watched.wait()
        finally:
            ACTIVITY.inside = None

    def barrier(self) -> None:
        """Wait until all ranks have called it and their collectives are complete."""
        self.synchronize()
        self._boot.barrier()

    def split(self, color: int, key: int = 0, timeout: float | None = None) -> NcclCommunicator:
        """Return a communicator of the ranks with the same color, ordered by key, then rank."""
        return NcclCommunicator(self._boot.split(color, key), self.device, timeout or self._timeout)

    def shrink(self) -> NcclCommunicator:
        """Return a communicator of the ranks that are left after `PeerLost`; this one is aborted.

        Raises:
            CommunicationError: `boot` cannot go on without the lost ranks.
        """
        for each in (self, *self._pairs.values()):
            each._watched.abort("its communicator was replaced by a smaller one: shrink()")
        return NcclCommunicator(self._boot.shrink(), self.device, self._timeout)

    def abort(self, code: int = 1) -> None:
        """End all ranks at once."""
        self._boot.abort(code)

    def _start(self, name: str, *args: Any, stream: Any = None) -> Any:
        """Enqueue a collective; return an event that is done when it is complete."""
        self.calls -= 1
        stream = self._stream() if stream is None else stream
        handle = 0 if stream is self._cuda.LEGACY_DEFAULT_STREAM else stream  # what everybody calls the default one
        return self._watched.start(name, args, stream, handle)

    def _stream(self) -> Any:
        """The stream on which TVM launches kernels now."""
        function = loader._libraries().TVMFFIEnvGetStream
        function.restype = ctypes.c_void_p
        handle = function(CUDA, self.device)
        return self._cuda.Stream.from_handle(handle) if handle else self._cuda.LEGACY_DEFAULT_STREAM

    def _reduction(self, op: str) -> Any:
        if op not in REDUCTIONS:
            raise CommunicationError(with_user_location(f"no reduction {op!r}; there are {', '.join(REDUCTIONS)}"))
        return getattr(self._core, op.upper())

    def _check_sizes(self, name: str, source: Any, target: Any) -> None:
        """NCCL would leave out what is beyond the smaller one."""
        given, taken = math.prod(source.shape), math.prod(target.shape)
        fits = {
            "reduce_scatter": given == taken * self.size,
            "allgather": given * self.size == taken,
            "alltoall": given == taken and given % self.size == 0,
        }
        if not fits[name]:
            message = f"{name}: {given} elements of the source do not fit {taken} of the target, on {self.size} ranks"
            raise CommunicationError(with_user_location(message))


class _Waiting(NamedTuple):
    """What the main thread waits in, for the supervision."""

    name: str
    owner: NcclCommunicator


class _OnStream:
    """A collective on a stream of its own."""

    def __init__(self, communicator: NcclCommunicator, event: Any):
        self._communicator, self._event = communicator, event

    def wait(self) -> None:
        """Let what is launched later on TVM's stream wait for it."""
        self._communicator._watched.require()
        self._communicator._stream().wait(self._event)

    def done(self) -> bool:
        """Is it complete?"""
        self._communicator._watched.require()
        return bool(self._event.is_done)


class _Pending(NamedTuple):
    event: Any
    name: str
    until: float
    args: tuple[Any, ...]  # arrays, which must not be freed before


class _Watched:
    """NCCL's communicator, and a thread that watches what runs on the device.

    The kernels of a collective wait for the other ranks without end, and so does whoever waits for their stream. Where
    a rank is lost, the thread aborts them; the next call raises.
    """

    def __init__(self, communicator: Any, core: Any, gpu: Any, boot: Communicator, timeout: float, who: str) -> None:
        self._communicator, self._core, self._gpu = communicator, core, gpu
        self._boot, self._timeout, self._who = boot, timeout, who
        self._lock = threading.Lock()  # NCCL takes calls from one thread at a time
        self._pending: deque[_Pending] = deque()
        self._failure: CommunicationError | None = None
        self._work, self._end = threading.Event(), threading.Event()
        with self._lock:
            self._settle("the others to connect")
        self._thread = threading.Thread(target=self._watch, name="gluongraph-nccl", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def start(self, name: str, args: tuple[Any, ...], stream: Any, handle: Any) -> Any:
        """Call a collective by its name in nccl4py; return an event of the stream that is done when it is complete."""
        with self._lock:
            self.require()
            try:
                getattr(self._communicator, name)(*args, stream=handle)
            except self._core.NcclInvalid as error:  # an argument: nothing has been started
                raise CommunicationError(with_user_location(f"NCCL does not take this {name}: {error}")) from error
            except Exception as error:  # NCCLError, which nccl.core does not export
                self._abort(CommunicationError(f"{name} on {self._who} has failed: {error}"))
                self.require()
            self._settle(name)
            event = stream.record()
            self._pending.append(_Pending(event, name, time.monotonic() + self._timeout, args))
        self._work.set()
        return event

    def wait(self) -> None:
        """Wait until all that was started is complete."""
        pause = 1e-5
        while self._look():
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        self.require()

    def require(self) -> None:
        """Raise what has gone wrong."""
        if isinstance(self._failure, PeerLost):
            help = "shrink() returns a communicator of the ranks that are left; the arrays are undefined"
            raise PeerLost(with_user_location(str(self._failure), help=help), self._failure.ranks)
        if self._failure is not None:
            raise CommunicationError(with_user_location(str(self._failure)))

    def abort(self, reason: str) -> None:
        """End what runs on the device."""
        with self._lock:
            self._abort(CommunicationError(f"the communicator on {self._who} has been aborted: {reason}"))

    def _settle(self, what: str) -> None:
        """Wait until NCCL has connected the ranks and enqueued the kernel, which it does in a thread of its own."""
        until, pause, error = time.monotonic() + self._timeout, 1e-5, None
        while error is None and (state := int(self._communicator.get_async_error())) != _SUCCESS:
            error = self._trouble(state, what, until)
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        if error is not None:
            self._abort(error)
            self.require()

    def _look(self) -> bool:
        """Forget what is complete, and abort what can no longer be. Is there more?"""
        with self._lock:
            if self._failure is not None:
                return False
            try:
                while self._pending and self._pending[0].event.is_done:
                    self._pending.popleft()
                if not self._pending:
                    return False
                _, name, until, _ = self._pending[0]
                error = self._trouble(int(self._communicator.get_async_error()), name, until)
            except Exception as other:  # of the device: of any kernel that runs there
                error = CommunicationError(f"the device of {self._who} has failed: {other}")
            if error is not None:
                self._abort(error)
            return error is None

    def _trouble(self, state: int, what: str, until: float) -> CommunicationError | None:
        """Why NCCL cannot go on, if it cannot."""
        if state not in (_SUCCESS, _IN_PROGRESS):
            detail = self._communicator.get_last_error() or "NCCL_DEBUG=WARN says more"
            text = f"{what} on {self._who} has failed: {self._core.get_error_string(state)} ({detail})"
            return PeerLost(text) if state in (_REMOTE_ERROR, _TIMED_OUT) else CommunicationError(text)
        if time.monotonic() > until:
            waited = f"{self._who} has waited {self._timeout:g} s for {what}"
            return PeerLost(f"{waited}: another rank has ended, or does not answer")
        if fault_tolerant() and (raw := getattr(self._boot, "raw", None)) is not None and raw.Is_revoked():
            return PeerLost(f"a rank has ended while {self._who} waited for {what}")
        return None

    def _abort(self, error: CommunicationError) -> None:
        if self._failure is None:
            self._failure = error
            self._communicator.abort()
            self._pending.clear()

    def _watch(self) -> None:
        self._gpu.set_current()
        while not self._end.is_set() and self._failure is None:
            if self._look():
                self._end.wait(_PERIOD)
            else:
                self._work.wait()
                self._work.clear()

    def _stop(self) -> None:
        """End the thread before Python ends: it must not be within NCCL then."""
        self._end.set()
        self._work.set()
        self._thread.join(1.0)


def _on_host(array: Any) -> bool:
    return bool(array.__dlpack_device__()[0] != CUDA)


def _inspect(device: int) -> dict[str, str]:
    """This rank's GPU and NCCL, or the problem: to be told to all ranks, so that none waits for one that has raised."""
    try:
        # Else nccl4py imports PyTorch at the first collective, wherever it is installed: DLPack does as well.
        for name in ("torch", "cupy"):
            import_whole(f"nccl.core.interop.{name}", hidden=("torch", "cupy"))
        version = import_whole("nccl.core").get_version().libnccl
        if version is None:
            return {"problem": "NCCL's library is not found"}
        if device >= nvidia.count():
            return {"problem": f"there is no GPU of number {device}, or no driver that answers"}
        return {"nccl": str(version.version), "gpu": str(import_whole("cuda.core").Device(device).uuid)}
    except Exception as error:  # of packages that are not there, or of a driver that is too old for them
        return {"problem": f"{type(error).__name__}: {error}"}


def _agree(ranks: Sequence[Mapping[str, str]]) -> bool:
    """Do ranks share a GPU? From what all have found; so all raise, or none.

    Raises:
        CommunicationError: NCCL cannot be used.
    """
    if problems := [f"rank {rank}: {each['problem']}" for rank, each in enumerate(ranks) if "problem" in each]:
        raise CommunicationError(with_user_location("no NCCL: " + "; ".join(problems), help=_HELP))
    first: dict[str, int] = {}  # rank by GPU
    shared = [(first[g], rank) for rank, each in enumerate(ranks) if first.setdefault(g := each["gpu"], rank) != rank]
    oldest = min((each["nccl"] for each in ranks), key=_version)
    if shared and _version(oldest) < SHARES_GPUS:
        message = f"ranks {shared[0][0]} and {shared[0][1]} share a GPU: that takes NCCL 2.30, this is {oldest}"
        help = "pip install -U nvidia-nccl-cu13, or start no more ranks on a host than it has GPUs"
        raise CommunicationError(with_user_location(message, help=help))
    return bool(shared)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))
