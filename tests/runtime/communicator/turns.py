"""A job of ranks has the cores to itself: it waits until the other workers of pytest are between two tests.

Ranks that share two cores with another test take up to eight times as long, since what they wait for is not running.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Files that all workers lock; none where there is one process. The locks are those of a process (lockf): a lock of an
# open file (flock) would outlive a worker that crashes, in each process that it has forked, and all others would wait.
_files: dict[str, int] = {}
_is_in_test = False


def connect(folder: Path) -> None:
    """Say which folder the workers of this run have in common."""
    _files.update((name, os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT)) for name in ("gate", "room"))


def _lock(how: int) -> None:
    """Have the room together with other tests (LOCK_SH) or alone (LOCK_EX). Who waits to be alone holds the gate, or
    others would enter in turns for ever."""
    fcntl.lockf(_files["gate"], fcntl.LOCK_EX)
    fcntl.lockf(_files["room"], how)
    fcntl.lockf(_files["gate"], fcntl.LOCK_UN)


def _leave() -> None:
    fcntl.lockf(_files["room"], fcntl.LOCK_UN)


@contextmanager
def together() -> Iterator[None]:
    """Within: a test, beside those of other workers."""
    global _is_in_test
    if not _files:
        yield
        return
    _lock(fcntl.LOCK_SH)
    _is_in_test = True
    try:
        yield
    finally:
        _is_in_test = False
        _leave()


@contextmanager
def alone() -> Iterator[None]:
    """Within: no other worker is in a test. Before, the room is left, or two that want it would wait for each other."""
    if not _files or threading.current_thread() is not threading.main_thread():
        yield
        return
    _leave()
    _lock(fcntl.LOCK_EX)
    try:
        yield
    finally:
        _leave()
        if _is_in_test:
            _lock(fcntl.LOCK_SH)
