"""A progress line on a terminal during long work: what, how much of it, for how long.

Nothing is written where no person is looking (stderr is no terminal), where debug output is asked for, with
GG_PROGRESS=0, or within `quiet`; nor is it for what takes less than half a second.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from gluongraph import debug
from gluongraph.host.interrupts import import_whole

DELAY, PERIOD = 0.5, 0.2  # seconds until the line appears, and between two of its states
_COUNTED = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_TIMED = "{desc}[{elapsed}{postfix}]"

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_running: list[Task] = []  # the outermost first; a task that begins within another is shown in the same line
_changing = threading.Lock()


class Task:
    """Something that is being done: `task()` says that one more of `total` parts is done, `task(n)` that n are."""

    def __init__(self, total: int, what: str):
        self.total, self.what, self.words, self.done = total, what, "", 0
        self.began = time.time()

    def __call__(self, parts: int = 1, words: str = "") -> None:
        with _changing:
            self.done += parts
        self.words = words or self.words

    def __str__(self) -> str:
        return f"{self.what} {self.done}/{self.total}" if self.total else self.what


@contextmanager
def task(total: int, what: str) -> Iterator[Task]:
    """Show a task until the block ends. `total` is 0 where nobody knows how many parts it has.

    >>> with task(2, "counting") as done:
    ...     done()
    ...     done(words="almost there")
    """
    begun = Task(total, what)
    with _changing:
        _running.append(begun)
        outermost = len(_running) == 1
    ended = threading.Event()
    line = threading.Thread(target=_show, args=(ended,), name="gluongraph-progress", daemon=True)
    shown = outermost and wanted()
    try:
        if shown:
            line.start()
        yield begun
    finally:
        with _changing:
            _running.remove(begun)
        ended.set()
        if shown:
            line.join()


@contextmanager
def quiet(yes: bool = True) -> Iterator[None]:
    """Within: no line is shown."""
    token = _quiet.set(yes or _quiet.get())
    try:
        yield
    finally:
        _quiet.reset(token)


def wanted() -> bool:
    """Is a person looking, who has not asked for quiet or for debug output?"""
    if _quiet.get() or os.environ.get("GG_PROGRESS", "").strip() == "0" or not sys.stderr.isatty():
        return False
    now = debug.settings()
    return not (now.debug or now.log) and importlib.util.find_spec("tqdm") is not None


def _show(ended: threading.Event) -> None:
    """Draw the line until the outermost task ends, then wipe it out."""
    if ended.wait(DELAY):
        return

    class Bar(import_whole("tqdm").tqdm):  # type: ignore[misc]  # what is imported late has no type
        monitor_interval = 0  # it would start a thread that speeds up what is drawn here anyway

    with Bar(total=1, leave=False, file=sys.stderr, ncols=_width(), nrows=20, delay=DELAY, bar_format=_TIMED) as bar:
        bar.delay = 0  # only the empty line of its beginning was to be left out
        while _draw(bar) and not ended.wait(PERIOD):
            pass
        bar.start_t = bar.last_print_t  # or tqdm takes a task that has just begun for one that was never shown


def _width() -> int:
    """Columns of the terminal; some that are made by programs say 0."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):  # stderr has been replaced by something without a descriptor
        return 80


def _draw(bar: Any) -> bool:
    """The innermost task that counts its parts is the bar; those around it are named before it. False at the end."""
    with _changing:
        tasks = tuple(_running)
    if not tasks:
        return False
    counted = next((each for each in reversed(tasks) if each.total), None)
    names = [each.what if each is counted else str(each) for each in tasks]
    if counted is not None:
        bar.total, bar.n, bar.start_t = counted.total, counted.done, counted.began
    else:
        bar.start_t = tasks[0].began
    bar.ncols = _width()
    bar.bar_format = _TIMED if counted is None else _COUNTED
    bar.set_description_str(", ".join(names) + (" " if counted is None else ""), refresh=False)
    bar.set_postfix_str(next((each.words for each in reversed(tasks) if each.words), ""), refresh=False)
    bar.refresh()
    return True
