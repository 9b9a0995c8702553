"""Where the main thread is in the user's program, for messages on other ranks; looked up as seldom as these need it.

Reading the frames of a thread that runs is not safe in CPython 3.11: sys._current_frames() was seen to crash, and
f_back to be an object of another type, once in some 100,000 calls while libraries were imported and compiled. A thread
that waits in a collective, or that others have waited for, is still; so only such a one is looked at.
"""

from __future__ import annotations

import pathlib
import sys
import threading
from types import FrameType

from gluongraph.errors import is_own_file

_AGAIN = 1.0  # seconds after which a thread that others wait for is looked at again

Doing = tuple[str, str, int] | None
"""The collective that the main thread is within, its ranks and its number; None outside of any."""


class Place:
    """The line that the main thread is at."""

    def __init__(self) -> None:
        self._doing: Doing = None
        self._looked = -_AGAIN
        self._text = ""

    def read(self, doing: Doing, asked: bool, now: float) -> str:
        """The place, "" where it is not known: of a thread that is where it was at the last call, in a collective, or
        outside of all while somebody asks."""
        stays, self._doing = doing == self._doing, doing
        if not stays or (doing is None and not asked):
            self._text, self._looked = "", now - _AGAIN
        elif not self._text or (doing is None and now - self._looked >= _AGAIN):
            self._text, self._looked = _place(doing is not None), now
        return self._text


def _place(waits: bool) -> str:
    """The line of the user's program that the main thread is at, and the line of ours that it has called."""
    innermost: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    frame = innermost
    while frame is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if innermost is None:
        return ""
    if frame is None or frame is innermost:
        return _line(innermost)
    return _line(frame) if waits else f"{_line(frame)}, within {_line(innermost)}"


def _line(frame: FrameType) -> str:
    name = pathlib.Path(frame.f_code.co_filename).name
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}".replace("\n", " ")[:200]
