"""Asynchronous saving: the state is copied at once, and a thread writes the copy while the training continues."""

from __future__ import annotations

import copy
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gluongraph.runtime.checkpoint import CHUNK, Content, Keep, place_for, write
from gluongraph.storage import Array, aligned, aligned_empty, populate

_COPYING = 4  # threads that copy; more are not faster


class Saver:
    """Writes one checkpoint at a time, in the calling thread or in one of its own.

    The memory of the copy is reused for the next one, since page faults of fresh memory take far longer than copying.
    An error in the thread is raised by the next call; if there is none, it is printed when the program ends.
    """

    def __init__(self) -> None:
        self.failed: list[Exception] = []
        self._thread: threading.Thread | None = None
        self._memory: Array = np.empty(0, np.uint8)
        self._reserving: threading.Thread | None = None
        self._stop = threading.Event()
        weakref.finalize(self, _print_errors, self.failed)

    def save(self, folder: Path, content: Content, keep: Keep, asynchronous: bool) -> Path:
        """Write a checkpoint, or start to, after the previous one is complete. Return its folder.

        Raises:
            OSError: this one or the previous one could not be written.
        """
        self.wait()
        place = place_for(folder, content.step)
        if not asynchronous:
            return write(place, content, keep)
        self._thread = threading.Thread(target=self._write, args=(place, self._snapshot(content), keep), name="saving")
        self._thread.start()
        return place

    def reserve(self, nbytes: int) -> None:
        """Allocate and touch memory for a copy of `nbytes` bytes in a thread, so that the first save does not wait."""
        self.wait()
        if self._memory.nbytes < nbytes:
            self._end_reserving()
            self._memory = aligned_empty((nbytes,), np.uint8)
            self._reserving = threading.Thread(target=self._touch, name="reserving")
            self._reserving.start()

    def _touch(self) -> None:
        """Write to every page, so that the system maps it."""
        for at in range(0, self._memory.nbytes, CHUNK):
            if self._stop.is_set():
                return
            populate(self._memory[at : at + CHUNK])
            self._memory[at : at + CHUNK : mmap.PAGESIZE] = 0

    def _end_reserving(self) -> None:
        if self._reserving is not None:
            self._stop.set()
            self._reserving.join()
            self._stop.clear()
            self._reserving = None

    @property
    def reserving(self) -> bool:
        """Is memory still being reserved?"""
        return self._reserving is not None and self._reserving.is_alive()

    @property
    def busy(self) -> bool:
        """Is a checkpoint still being written?"""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the checkpoint is complete. Raises OSError: it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of the last save, if there was one that has not been raised."""
        if self.failed:
            raise self.failed.pop()

    def _write(self, place: Path, content: Content, keep: Keep) -> None:
        try:
            write(place, content, keep)
        except Exception as error:
            self.failed.append(error)

    def _snapshot(self, content: Content) -> Content:
        """Return the content with copies of its arrays."""
        self._end_reserving()
        needed = room(content)
        if self._memory.nbytes < needed:
            self._memory = aligned_empty((needed,), np.uint8)
        groups: dict[str, dict[str, Array]] = {}
        pairs: list[tuple[Array, Array]] = []
        end = 0
        for group, arrays in content.groups.items():
            groups[group] = {}
            for name, array in arrays.items():
                part = self._memory[end : end + array.nbytes].view(array.dtype).reshape(array.shape)
                groups[group][name] = part
                pairs.append((part, array))
                end += aligned(array.nbytes)
        _copy(pairs)
        return Content(content.step, groups, copy.deepcopy(content.about), dict(content.metrics), content.writer)


def _copy(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy the second arrays to the first, in several threads: one core cannot saturate the memory bandwidth, and page
    faults of fresh memory take far longer than copying."""
    chunks = []
    for to, array in pairs:
        if array.flags.c_contiguous and array.nbytes > CHUNK:
            flat, source, step = to.reshape(-1), array.reshape(-1), CHUNK // array.itemsize
            chunks += [(flat[at : at + step], source[at : at + step]) for at in range(0, array.size, step)]
        else:
            chunks.append((to, array))
    with ThreadPoolExecutor(min(_COPYING, len(os.sched_getaffinity(0)))) as threads:
        for _ in threads.map(_copy_one, chunks):
            pass  # raises the errors of the threads


def _copy_one(pair: tuple[Array, Array]) -> None:
    to, array = pair
    populate(to)
    np.copyto(to, array)


def room(content: Content) -> int:
    """Return the bytes of a copy of the arrays."""
    return sum(aligned(array.nbytes) for arrays in content.groups.values() for array in arrays.values())


def _print_errors(failed: list[Exception]) -> None:
    for error in failed:
        print(f"an asynchronous save has failed: {error}", file=sys.stderr)
