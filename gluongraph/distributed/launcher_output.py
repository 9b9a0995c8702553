"""What ranks write, line by line, marked with the rank."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

SHOWN_AFTER = 0.5  # seconds until a line that has no end yet is shown
LONGEST = 1 << 20  # bytes of a line that are kept together
_READER, _LOOK = 1.0, 0.1  # seconds that a reader has once a signal has come, and between looks at whether one has


class _Unread(Exception):
    """Nobody reads what is written, as at a terminal that is stopped, and a signal has come."""


class Sink:
    """Where bytes go as they are: the standard output, or the standard error."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.dropping = False
        self.interrupted = False  # a signal has come: no write may wait for long any more
        self.descriptor: int | None = None
        with suppress(AttributeError, OSError, ValueError):  # a stream without a file, as tests put in its place
            self.descriptor = stream.fileno()

    def write(self, data: bytes) -> None:
        """Write all of it, at once. Nothing is written any more when nobody has read for a second after a signal."""
        if self.dropping:
            return
        try:
            self._write(data)
        except _Unread:
            self.dropping = True

    def _write(self, data: bytes) -> None:
        if self.descriptor is None:
            buffer = getattr(self.stream, "buffer", None)
            self.stream.write(data.decode(errors="replace")) if buffer is None else buffer.write(data)
            self.stream.flush()
            return
        self.stream.flush()
        rest = memoryview(data)
        while rest:
            self._wait(self.descriptor)
            with suppress(BlockingIOError):  # somebody has set the file so
                # A pipe that can be written to has room for so many bytes: this does not wait.
                rest = rest[os.write(self.descriptor, rest[: select.PIPE_BUF]) :]

    def _wait(self, descriptor: int) -> None:
        """Wait until there is room."""
        until = None
        while not select.select([], [descriptor], [], _LOOK)[1]:
            if self.interrupted:
                until = until or time.monotonic() + _READER
                if time.monotonic() > until:
                    raise _Unread

    def interrupt(self) -> None:
        """For a handler of signals: let no write wait for its reader any more."""
        self.interrupted = True

    def is_same(self, other: Sink) -> bool:
        """Do both write to one file, as to a terminal?"""
        if self.descriptor is None or other.descriptor is None:
            return False
        return os.path.samestat(os.fstat(self.descriptor), os.fstat(other.descriptor))


@dataclass
class _Line:
    """The line that a rank is writing to one of its streams."""

    text: bytes = b""  # what has not been shown
    since: float = 0.0
    ended: bool = False  # what has been shown of it was ended for the sake of another line


class Output:
    """The lines of all ranks. A line is written as a whole when it ends; one that does not end for half a second is
    shown as far as it goes, and ended where another rank is to write.

    Streams are 1 for the standard output and 2 for the standard error, by their numbers.
    """

    def __init__(self, prefix: bool, clock: Callable[[], float] = time.monotonic):
        self.prefix, self.clock = prefix, clock
        self.sinks = {1: Sink(sys.stdout), 2: Sink(sys.stderr)}
        self._one = self.sinks[1].is_same(self.sinks[2])
        self._lines: dict[tuple[int | None, int], _Line] = {}
        self._open: dict[int, tuple[int | None, int]] = {}  # by file: whose line is shown there without its end

    def feed(self, rank: int | None, stream: int, data: bytes) -> None:
        """Some bytes that a rank has written; None for mpiexec, whose lines have no mark."""
        line = self._lines.setdefault((rank, stream), _Line())
        if not line.text:
            line.since = self.clock()
        whole, newline, rest = (line.text + data).rpartition(b"\n")
        if newline:
            self._show(rank, stream, whole + newline)
            line.since = self.clock()
        line.text = rest
        if len(rest) > LONGEST:
            self._show_rest(rank, stream)

    def say(self, text: str) -> None:
        """A line of the launcher's own, on the standard error."""
        self._show(None, 2, f"gluongraph run: {text}\n".encode(errors="replace"))

    def wait(self) -> float | None:
        """Seconds until `show_due` has something to do; None while there is nothing."""
        times = [line.since for line in self._lines.values() if line.text]
        return max(0.0, min(times) + SHOWN_AFTER - self.clock()) if times else None

    def show_due(self) -> None:
        """Show what has waited for the end of its line for half a second."""
        for key, line in self._lines.items():
            if line.text and self.clock() >= line.since + SHOWN_AFTER:
                self._show_rest(*key)

    def end(self, rank: int | None) -> None:
        """The rank writes no more: show what it has left."""
        for key, line in self._lines.items():
            if key[0] == rank and line.text:
                self._show_rest(*key)

    def close(self) -> None:
        """Show what is left of all ranks, and end the last line where lines have marks."""
        for rank in {key[0] for key in self._lines}:
            self.end(rank)
        if self.prefix:
            for stream in (1, 2):
                self._end_line(stream)

    def interrupt(self) -> None:
        """For a handler of signals, see `Sink`."""
        for sink in self.sinks.values():
            sink.interrupt()

    def _show_rest(self, rank: int | None, stream: int) -> None:
        line = self._lines[rank, stream]
        self._show(rank, stream, line.text)
        line.text = b""

    def _show(self, rank: int | None, stream: int, data: bytes) -> None:
        """Write lines, the last of which may lack its end."""
        file = 1 if self._one else stream
        line = self._lines.setdefault((rank, stream), _Line())
        if line.ended:
            line.ended = False
            if not (data := data.removeprefix(b"\n")):
                return
        mine = self._open.get(file) == (rank, stream)
        if file in self._open and not mine:
            self._end_line(stream)
        self.sinks[stream].write(self._marked(rank, data, mine))
        self._open.pop(file, None)
        if not data.endswith(b"\n"):
            self._open[file] = (rank, stream)

    def _end_line(self, stream: int) -> None:
        """End the line that is shown without its end, on the stream that it came from."""
        if found := self._open.pop(1 if self._one else stream, None):
            self.sinks[found[1]].write(b"\n")
            self._lines[found].ended = True

    def _marked(self, rank: int | None, data: bytes, goes_on: bool) -> bytes:
        if rank is None or not self.prefix:
            return data
        mark = b"[%d] " % rank
        # A carriage return within a line is a bar of progress that is drawn again, over its mark.
        lines = [line[:-1].replace(b"\r", b"\r" + mark) + line[-1:] for line in data.split(b"\n")]
        marked = (b"\n" + mark).join(lines[:-1] if data.endswith(b"\n") else lines)
        return (b"" if goes_on else mark) + marked + (b"\n" if data.endswith(b"\n") else b"")
