"""Who reads the samples of a batch: threads, or processes of their own. Both take jobs and give results by ticket."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random as python_random
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.gluon.data import transport
from gluongraph.host.interrupts import watch_parent

Read = Callable[[Any], Any]  # indices -> batch
MOST_AHEAD = 32  # jobs given to a process at a time: their messages fit into the connection, so that nobody blocks


class Threads:
    """Threads of this process. They share its random generators: which sample draws what is left to chance.

    >>> from gluongraph.gluon.data.workers import Threads
    >>> threads = Threads(1, read=sum)
    >>> threads.result(threads.submit([1, 2], seed=0), timeout=60)
    3
    >>> threads.close()
    """

    def __init__(self, count: int, read: Read):
        self._read = read
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="dataloader")
        self.close = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, indices: Any, seed: int) -> Future[Any]:
        """Start reading a batch; the ticket for its result."""
        return self._pool.submit(self._read, indices)

    def result(self, ticket: Future[Any], timeout: float) -> Any:
        """The batch. Raises multiprocessing.TimeoutError, or what went wrong in the thread."""
        try:
            return ticket.result(timeout)
        except FutureTimeout:
            if ticket.done():
                raise  # it is the dataset's own error
            raise _late(timeout) from None

    def drop(self, tickets: Iterable[Future[Any]]) -> None:
        """Results that nobody will ask for."""
        for ticket in tickets:
            ticket.cancel()


class WorkerTraceback(Exception):
    """Where an error happened in a worker process: the cause of the error that the caller gets.

    >>> from gluongraph.gluon.data.workers import WorkerTraceback
    >>> str(WorkerTraceback("where it was")).strip()
    'where it was'
    """

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Worker:
    """A process, the connection to it, and the tickets of the jobs that it was given."""

    def __init__(self, context: Any, read: Read):
        self.connection, other = multiprocessing.Pipe()
        self.jobs: dict[int, Any] = {}
        self.process = context.Process(
            target=_work, args=(other, self.connection, read, os.getpid()), name="dataloader", daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking a process with threads. Those of BLAS and TVM do not run in the child, which
            # reads samples and stacks them.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            self.process.start()
        other.close()


class Processes:
    """Processes that hold the dataset. A batch's random numbers follow from its seed, whichever process reads it.

    They are forked, unless the program has chosen another way by `multiprocessing.set_start_method`: so datasets need
    not be picklable, and scripts need no `if __name__ == "__main__"`.

    >>> from gluongraph.gluon.data.workers import Processes
    >>> processes = Processes(1, read=sum, ahead=2)
    >>> processes.result(processes.submit([1, 2], seed=0), timeout=60)
    3
    >>> processes.close()
    """

    def __init__(self, count: int, read: Read, ahead: int):
        context = multiprocessing.get_context(multiprocessing.get_start_method(allow_none=True) or "fork")
        self._workers = [_Worker(context, read) for _ in range(count)]
        self._depth = min(-(-ahead // count), MOST_AHEAD)
        self._tickets = itertools.count()
        self._waiting: deque[tuple[int, Any, int]] = deque()
        self._results: dict[int, tuple[bool, Any]] = {}
        self._dropped: set[int] = set()
        self.close = weakref.finalize(self, _stop, os.getpid(), self._workers)

    def submit(self, indices: Any, seed: int) -> int:
        """Start reading a batch; the ticket for its result."""
        ticket = next(self._tickets)
        self._waiting.append((ticket, indices, seed))
        self._hand_out()
        return ticket

    def result(self, ticket: int, timeout: float) -> Any:
        """The batch.

        Raises:
            multiprocessing.TimeoutError: it took too long.
            RuntimeError: a process has ended.
            Exception: what went wrong in the process, with its traceback as the cause.
        """
        deadline = time.monotonic() + timeout
        while ticket not in self._results:
            if not self._collect(max(0.0, deadline - time.monotonic())):
                raise _late(timeout)
        fine, value = self._results.pop(ticket)
        if fine:
            return value
        error, text = value
        raise error from WorkerTraceback(text)

    def drop(self, tickets: Iterable[int]) -> None:
        """Results that nobody will ask for."""
        dropped = set(tickets)
        self._waiting = deque(job for job in self._waiting if job[0] not in dropped)
        for ticket in dropped:
            if self._results.pop(ticket, None) is None:
                self._dropped.add(ticket)
        self._dropped &= {ticket for worker in self._workers for ticket in worker.jobs}

    def _hand_out(self) -> None:
        """Give waiting jobs to the processes that have least to do."""
        while self._waiting:
            worker = min(self._workers, key=lambda each: len(each.jobs))
            if len(worker.jobs) >= self._depth:
                return
            job = self._waiting.popleft()
            worker.jobs[job[0]] = job[1]
            try:
                transport.send(worker.connection, job)
            except (BrokenPipeError, ConnectionResetError):
                self._ended(worker)

    def _collect(self, timeout: float) -> bool:
        """Take in what processes have sent; False if that was nothing."""
        ready = wait([worker.connection for worker in self._workers], timeout)
        for worker in self._workers:
            if worker.connection not in ready:
                continue
            try:
                ticket, fine, value = transport.receive(worker.connection)
            except (EOFError, ConnectionResetError):
                self._ended(worker)
            worker.jobs.pop(ticket)
            if ticket in self._dropped:
                self._dropped.remove(ticket)
            else:
                self._results[ticket] = fine, value
        self._hand_out()
        return bool(ready)

    def _ended(self, worker: _Worker) -> None:
        """Stop them all, and raise."""
        worker.process.join(1)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        reading = next(iter(worker.jobs.values()), "nothing")
        self.close()
        raise RuntimeError(
            f"a worker process of the DataLoader {how} while it was to read the samples {reading}; signal 9 mostly "
            "means that the memory was exhausted: fewer workers or a smaller prefetch need less"
        )


def _late(timeout: float) -> multiprocessing.TimeoutError:
    return multiprocessing.TimeoutError(
        f"a batch was not read within {timeout} seconds; a larger `timeout` of the DataLoader lets workers take longer"
    )


def _stop(owner: int, workers: list[_Worker]) -> None:
    """End the processes. In a process that was forked from their owner they are not ours to end."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.connection.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join()


def _work(connection: Connection[Any, Any], other: Connection[Any, Any], read: Read, parent: int) -> None:
    """What a process does: read batches until nobody holds the other end of its connection, or the parent is gone."""
    other.close()
    watch_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler that was inherited is not meant for it
    # A compiled block looks for helpers of the thread that calls it. Those of the forked thread are not here; a new
    # thread gets its own.
    worker = threading.Thread(target=_read_batches, args=(connection, read))
    worker.start()
    worker.join()


def _read_batches(connection: Connection[Any, Any], read: Read) -> None:
    while True:
        try:
            ticket, indices, seed = transport.receive(connection)
        except (EOFError, OSError):
            return
        python_random.seed(seed)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)
        try:
            outcome = ticket, True, read(indices)
        except Exception as error:
            outcome = ticket, False, _portable(error)
        try:
            transport.send(connection, outcome)
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:  # the batch cannot be pickled
            transport.send(connection, (ticket, False, _portable(error)))


def _portable(error: Exception) -> tuple[Exception, str]:
    """The error, as one that can be sent, and its traceback."""
    text = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, text
