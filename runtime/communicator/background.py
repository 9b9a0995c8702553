"""Collectives that run in a thread, in the order in which they were started, while the program computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue


class BackgroundWork:
    """A collective that a thread runs; `Work` of the interface."""

    def __init__(self, run: Callable[[], None], waiting: AbstractContextManager[object]) -> None:
        self._run = run
        self._waiting = waiting
        self._error: BaseException | None = None
        self._running = threading.Lock()  # held until it is complete; an Event would take three times as long
        self._running.acquire()

    def run(self) -> None:
        """Run it, in the thread."""
        try:
            self._run()
        except BaseException as error:
            self._error = error
        finally:
            self._running.release()

    def wait(self) -> None:
        """Return when the collective is complete on this rank.

        Raises:
            CommunicationError: what the collective raised.
        """
        if self._running.locked():
            with self._waiting, self._running:
                pass
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Is it complete? Then `wait` returns at once."""
        return not self._running.locked()


class Background:
    """A thread that runs collectives one after the other: all ranks have them in the same order."""

    def __init__(self, waiting: AbstractContextManager[object]) -> None:
        self._waiting = waiting  # entered by who waits for a collective to end
        self._queue: SimpleQueue[BackgroundWork] = SimpleQueue()
        threading.Thread(target=self._serve, name="gluongraph-communicator", daemon=True).start()

    def start(self, run: Callable[[], None]) -> BackgroundWork:
        """Run the collective after those that have been started before."""
        work = BackgroundWork(run, self._waiting)
        self._queue.put(work)
        return work

    def _serve(self) -> None:
        while True:
            self._queue.get().run()
