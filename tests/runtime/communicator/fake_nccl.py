"""A fake of nccl4py 0.6 and of the part of cuda.core 1.2 that it is used with. Ranks are threads of one process, device
memory is memory of the host, and streams are threads with a queue each.

The signatures are those of the real packages: test_nccl.py compares them where these are installed. Like NCCL, a
communicator goes on connecting and enqueuing in the background when a call has returned, and takes calls from one
thread at a time: calls that break these rules are in `Cluster.violations`.
"""

from __future__ import annotations

import ctypes
import functools
import math
import queue
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.host import nvidia
from gluongraph.runtime import loader
from gluongraph.runtime.communicator.base import Communicator as OurCommunicator
from gluongraph.runtime.communicator.base import Work
from gluongraph.runtime.table import CUDA

SUM, MAX, MIN = 0, 2, 3
_FUNCTIONS: dict[int, Callable[[Any, Any], Any]] = {SUM: np.add, MAX: np.maximum, MIN: np.minimum}
_LONG = 30.0  # seconds after which a test has failed
_here = threading.local()  # of each rank: `rank`, and the device that is current


class NcclInvalid(Exception):
    """An argument that nccl4py refuses."""


class NCCLError(Exception):
    """A result of NCCL that is an error. nccl.core does not export it."""


# --- the ranks


@dataclass
class Cluster:
    """The ranks of a test, their GPUs and what happens to them."""

    size: int
    gpus: int = 8  # on the one host
    version: str = "2.32.3"  # of NCCL
    polls: int = 2  # for so many calls of get_async_error a communicator is in progress, after each other call
    failing: dict[int, int] = field(default_factory=dict)  # rank -> result that get_async_error returns
    refusing: dict[tuple[int, str], str] = field(default_factory=dict)  # rank, call -> error
    device_error: str = ""
    seconds: float = 0.0  # that a call of a collective takes
    missing: str = ""  # a package that cannot be imported
    lost: set[int] = field(default_factory=set)  # ranks that have ended
    calls: list[tuple[int, str, int]] = field(default_factory=list)  # rank, collective, handle of the stream
    violations: list[str] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    # What streams read and write. They go on when a test has ended, and what was freed by then would be another's.
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock = threading.Condition()
        self.groups: dict[bytes, _Group] = {}
        self.streams: dict[Any, Stream] = {}
        self.meetings: dict[Any, Meeting] = {}

    def run(self, program: Callable[[ThreadCommunicator], Any]) -> list[Any]:
        """Run a program on every rank; return the results by rank, or raise the first error."""
        meeting = Meeting(self.size)
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            _here.rank, _here.device = rank, None
            try:
                results[rank] = program(ThreadCommunicator(self, meeting, rank, tuple(range(self.size))))
            except BaseException as error:
                errors.append(error)
                for each in (meeting, *self.meetings.values()):
                    each.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_LONG)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        for error in errors:
            raise error
        return results

    def stream(self, handle: int) -> Stream:
        """A stream that others than the communicator have made, of this rank."""
        key = (_here.rank, handle)
        with self.lock:
            if key not in self.streams:
                self.streams[key] = Stream(self, handle)
            return self.streams[key]


class Meeting:
    """Where threads exchange values."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def gather(self, rank: int, value: Any) -> list[Any]:
        """The values of all."""
        self._values[rank] = value
        self.barrier.wait(_LONG)
        values = list(self._values)
        self.barrier.wait(_LONG)
        return values


class ThreadCommunicator(OurCommunicator):
    """The communicator of host arrays and texts between the threads."""

    name = "threads"

    def __init__(self, cluster: Cluster, meeting: Meeting, rank: int, members: tuple[int, ...]) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, len(members), rank, len(members)
        self.cluster, self._meeting, self._members = cluster, meeting, members

    def allreduce(self, array: Any, op: str = "sum") -> None:
        function = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
        array[...] = functools.reduce(function, self._meeting.gather(self.rank, array.copy()))

    def allreduce_tree(self, array: Any) -> None:
        array[...] = tree_sum(self._meeting.gather(self.rank, array.copy()))

    def start_allreduce(self, array: Any, op: str = "sum") -> Work:
        raise NotImplementedError

    def reduce_scatter(self, source: Any, target: Any) -> None:
        target[...] = functools.reduce(np.add, self._meeting.gather(self.rank, source.copy())).reshape(self.size, -1)[
            self.rank
        ]

    def allgather(self, source: Any, target: Any) -> None:
        target[...] = np.concatenate(self._meeting.gather(self.rank, source.copy()))

    def alltoall(self, source: Any, target: Any) -> None:
        rows = self._meeting.gather(self.rank, source.copy())
        target[...] = np.concatenate([row.reshape(self.size, -1)[self.rank] for row in rows])

    def broadcast(self, array: Any, root: int = 0) -> None:
        array[...] = self._meeting.gather(self.rank, array.copy())[root]

    def exchange(self, text: str) -> Sequence[str]:
        return self._meeting.gather(self.rank, text)

    def barrier(self) -> None:
        self._meeting.gather(self.rank, None)

    def split(self, color: int, key: int = 0) -> ThreadCommunicator:
        rows = self._meeting.gather(self.rank, (color, key, self.rank))
        return self._of([rank for its, _, rank in sorted(rows, key=lambda row: row[1:]) if its == color], color)

    def shrink(self) -> ThreadCommunicator:
        return self._of([rank for rank in range(self.size) if self._members[rank] not in self.cluster.lost], "left")

    def _of(self, ranks: list[int], why: Any) -> ThreadCommunicator:
        members = tuple(self._members[rank] for rank in ranks)
        count = self.__dict__.setdefault("_made", defaultdict(int))
        count[why, members] += 1  # the same on all its ranks
        with self.cluster.lock:
            key = (id(self._meeting), why, members, count[why, members])
            meeting = self.cluster.meetings.setdefault(key, Meeting(len(members)))
        return ThreadCommunicator(self.cluster, meeting, ranks.index(self.rank), members)

    def abort(self, code: int = 1) -> None:
        raise SystemExit(code)


def tree_sum(rows: Sequence[Any]) -> Any:
    """((0+1)+(2+3))+..."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    return tree_sum(rows[:half]) + tree_sum(rows[half:])


# --- device arrays: tensors as the project has them, which say that they are on a GPU


def tensor(array: Any, device: int) -> Any:
    """A host array as if it were on a GPU."""
    _cluster().kept.append(array)
    return loader.from_address(array.ctypes.data, array.size, dtype_name(array.dtype), CUDA, device)


def _memory(buffer: Any, device: int) -> Any:
    """What nccl4py does with a buffer; as a flat array of the host."""
    kind, number = buffer.__dlpack_device__()
    if (kind, number) != (CUDA, device):
        raise NcclInvalid(f"buffer is on device {number}, but communicator is on device {device}")
    name = dtype_name(str(buffer.dtype))
    if name == "bool":
        raise NcclInvalid("Unsupported data type: numpy dtype bool has no NCCL equivalent")
    dtype = numpy_dtype(name)
    raw = (ctypes.c_char * (math.prod(buffer.shape) * dtype.itemsize)).from_address(buffer.data_ptr())
    return np.frombuffer(raw, np.uint8).view(dtype)


# --- cuda.core


class Event:
    """An event; those of the real package are made by streams alone."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.reached = cluster, threading.Event()

    @property
    def is_done(self) -> bool:
        if self._cluster.device_error:
            raise RuntimeError(self._cluster.device_error)
        return self.reached.is_set()


class Stream:
    """A queue, and a thread that runs what is in it."""

    _cluster: Cluster

    def __init__(self, cluster: Cluster, handle: int) -> None:
        self._cluster, self.handle = cluster, handle
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def record(self, event: Any = None, options: Any = None) -> Event:
        assert event is None and options is None
        made = Event(self._cluster)
        self.launch(made.reached.set)
        return made

    def wait(self, event_or_stream: Any) -> None:
        event = event_or_stream if isinstance(event_or_stream, Event) else event_or_stream.record()
        self.launch(event.reached.wait)

    def sync(self) -> None:
        assert self.record().reached.wait(_LONG), "a stream hangs"

    @staticmethod
    def from_handle(handle: Any) -> Stream:
        return _cluster().stream(handle)

    def launch(self, task: Callable[[], Any]) -> None:
        """Run a kernel."""
        self._tasks.put(task)

    def _run(self) -> None:
        while True:
            self._tasks.get()()


class _Legacy:
    """The default stream, of whatever rank asks."""

    handle = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(_cluster().stream(0), name)


LEGACY_DEFAULT_STREAM = _Legacy()


class Device:
    """A GPU."""

    def __init__(self, device_id: Any = None) -> None:
        self.device_id = device_id

    def set_current(self, ctx: Any = None) -> Any:
        _here.device = self.device_id

    @property
    def uuid(self) -> str:
        return str(uuid.UUID(int=self.device_id))

    def create_stream(self, obj: Any = None, options: Any = None) -> Stream:
        assert obj is None and _here.device == self.device_id
        return Stream(_cluster(), id(self))


# --- nccl.core


class UniqueId:
    """128 bytes."""

    def __init__(self, _internal: Any = None) -> None:
        self._bytes = bytes(128) if _internal is None else _internal

    @staticmethod
    def from_bytes(b: Any) -> UniqueId:
        assert len(b) == 128
        return UniqueId(bytes(b))

    @property
    def as_bytes(self) -> bytes:
        return bytes(self._bytes)


def get_unique_id(empty: bool = False) -> UniqueId:
    return UniqueId(None if empty else uuid.uuid4().bytes * 8)


def get_version() -> Any:
    return SimpleNamespace(libnccl=SimpleNamespace(version=_cluster().version) if _cluster().version else None)


def get_error_string(nccl_result: Any) -> str:
    return {1: "unhandled cuda error", 6: "remote process exited or there was a network error"}[int(nccl_result)]


@dataclass(kw_only=True)
class NCCLConfig:
    blocking: Any = None


class _Group:
    """The ranks of a communicator, and where their collectives meet."""

    def __init__(self) -> None:
        self.joined: set[int] = set()
        self.given: dict[tuple[int, int], tuple[str, Any]] = {}  # number of the collective, rank -> what it has


class Communicator:
    """A rank of a communicator."""

    def __init__(self, ptr: Any = None) -> None:
        self._cluster, self._lock = _cluster(), threading.Lock()
        self._group: _Group | None = None
        self._busy = self._number = self._running = 0  # the last: collectives that a stream has come to
        self._aborted = False

    @classmethod
    def init(cls, nranks: Any, rank: Any, unique_id: Any, config: Any = None) -> Communicator:
        made = cls()
        if reason := made._cluster.refusing.get((_here.rank, "init")):
            raise NCCLError(reason)
        assert config is not None and config.blocking is False
        made._size, made._rank, made._who, made._device = nranks, rank, _here.rank, _here.device
        with made._cluster.lock:
            made._group = made._cluster.groups.setdefault(unique_id.as_bytes, _Group())
            made._group.joined.add(rank)
        return made

    def get_async_error(self) -> int:
        with self._alone("get_async_error"):
            assert self._group is not None
            if len(self._group.joined) < self._size:
                return 7
            self._busy = max(0, self._busy - 1)
            return 7 if self._busy else self._cluster.failing.get(self._who, 0)

    def get_last_error(self) -> str:
        return f"what NCCL says on {self._who}"

    def abort(self) -> None:
        with self._alone("abort"), self._cluster.lock:
            self._aborted, self._group = True, None
            self._cluster.aborted.append(self._who)
            self._cluster.lock.notify_all()
            assert self._cluster.lock.wait_for(lambda: not self._running, _LONG), "a collective goes on"

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Any, *, stream: Any = None, config: Any = None) -> None:
        def result(rows: list[Any]) -> Any:
            return functools.reduce(_FUNCTIONS[op], rows)

        self._enqueue("allreduce", sendbuf, recvbuf, stream, result)

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: Any, *, stream: Any = None, config: Any = None) -> None:
        def result(rows: list[Any]) -> Any:
            return functools.reduce(_FUNCTIONS[op], rows).reshape(self._size, -1)[self._rank]

        self._enqueue("reduce_scatter", sendbuf, recvbuf, stream, result)

    def allgather(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: Any = None) -> None:
        self._enqueue("allgather", sendbuf, recvbuf, stream, np.concatenate)

    def alltoall(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: Any = None) -> None:
        def result(rows: list[Any]) -> Any:
            return np.concatenate([row.reshape(self._size, -1)[self._rank] for row in rows])

        self._enqueue("alltoall", sendbuf, recvbuf, stream, result)

    def broadcast(self, sendbuf: Any, recvbuf: Any, root: Any, *, stream: Any = None, config: Any = None) -> None:
        def result(rows: list[Any]) -> Any:
            return rows[root]

        self._enqueue(f"broadcast from {root}", sendbuf, recvbuf, stream, result)

    def _enqueue(self, name: str, sendbuf: Any, recvbuf: Any, stream: Any, result: Callable[[list[Any]], Any]) -> None:
        with self._alone(name):
            if self._group is None:
                raise NcclInvalid(f"Cannot {name}: Communicator not initialized")
            if self._busy:
                self._cluster.violations.append(f"{name} before the last call is complete")
            source, target = _memory(sendbuf, self._device), _memory(recvbuf, self._device)
            if source.dtype != target.dtype:
                raise NcclInvalid("Dtype mismatch")
            if reason := self._cluster.refusing.get((self._who, name)):
                raise NCCLError(reason)
            time.sleep(self._cluster.seconds)
            self._number += 1
            self._busy = self._cluster.polls
            where = self._cluster.stream(0) if stream in (0, None) else stream
            assert isinstance(where, Stream)
            self._cluster.calls.append((self._who, name, 0 if stream in (0, None) else stream.handle))
            group, number = self._group, self._number
            where.launch(lambda: self._meet(group, number, name, source, target, result))

    def _meet(
        self, group: _Group, number: int, name: str, source: Any, target: Any, result: Callable[[list[Any]], Any]
    ) -> None:
        """Wait for the others, within a stream. When `abort` returns, none writes any more."""
        keys = [(number, rank) for rank in range(self._size)]
        with self._cluster.lock:
            if self._aborted:
                return
            self._running += 1
            try:
                group.given[number, self._rank] = name, source.copy()
                self._cluster.lock.notify_all()
                self._cluster.lock.wait_for(lambda: self._aborted or all(key in group.given for key in keys))
                if self._aborted:
                    target[...] = 99
                    return
                given = [group.given[key] for key in keys]
                if {name for name, _ in given} != {name}:
                    self._cluster.violations.append(f"ranks call {[name for name, _ in given]}")
                target[...] = result([row for _, row in given])
            finally:
                self._running -= 1
                self._cluster.lock.notify_all()

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            self._cluster.violations.append(f"{name} while another thread is within NCCL")
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()


# --- installing it

_installed: list[Cluster] = []


def _cluster() -> Cluster:
    return _installed[-1]


def _module(name: str, *members: Any, **named: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update({each.__name__: each for each in members}, **named)
    return made


def core() -> ModuleType:
    """The fake of nccl.core."""
    members = (Communicator, NCCLConfig, NcclInvalid, UniqueId, get_error_string, get_unique_id, get_version)
    return _module("nccl.core", *members, SUM=SUM, MAX=MAX, MIN=MIN)


def cuda_core() -> ModuleType:
    """The fake of cuda.core."""
    return _module("cuda.core", Device, Stream, LEGACY_DEFAULT_STREAM=LEGACY_DEFAULT_STREAM)


@contextmanager
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """Within: these are the modules that are imported, and `cluster` is what they run on."""
    with pytest.MonkeyPatch.context() as patch:
        interop = (_module(f"nccl.core.interop.{name}") for name in ("torch", "cupy"))
        for module in (core(), cuda_core(), *interop):
            absent = cluster.missing and module.__name__.startswith(cluster.missing)
            patch.setitem(sys.modules, module.__name__, None if absent else module)
        patch.setattr(nvidia, "count", lambda: cluster.gpus)
        patch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "")
        patch.delenv("NCCL_MULTI_RANK_GPU_ENABLE")
        _installed.append(cluster)
        try:
            yield cluster
        finally:
            _installed.pop()
