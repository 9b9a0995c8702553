"""SIGTERM during a run: it ends after the batch, so that checkpoints are whole, loggers written and workers ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gluongraph.lightning.errors import SIGTERMException


class Termination:
    """Notes that the process is asked to end. `received` says whether it was."""

    def __init__(self) -> None:
        self.received = False
        self._process = 0  # workers of loaders inherit the handler
        self._before: Any = None

    @contextmanager
    def noticed(self, ranks: int) -> Iterator[None]:
        """Within: SIGTERM is noted, and the program's own handler, if there is one, called. The second one ends the
        process at once.

        Of several `ranks` each ends at once at the first: those that went on would wait for the others.
        """
        self.received = False
        alone = ranks == 1 and threading.current_thread() is threading.main_thread()
        if not alone or (before := signal.getsignal(signal.SIGTERM)) in (None, signal.SIG_IGN):
            yield
            return
        own = self._process, self._before  # of a run around this one
        self._process, self._before = os.getpid(), before
        signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            self._process, self._before = own

    def _note(self, number: int, frame: Any) -> None:
        if self.received or os.getpid() != self._process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.received = True
        if callable(self._before):
            self._before(number, frame)

    def check(self) -> None:
        """After a batch: end the run, if that was asked for.

        Raises:
            SIGTERMException: it was.
        """
        if self.received:
            raise SIGTERMException(128 + signal.SIGTERM)
