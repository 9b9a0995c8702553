"""Runs an entry point with collectives: its segments, and between them calls of the communicator on flat memory."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gluongraph.context import SHARED
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.ir.entry_point import Collective, Program
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import Communicator, Work
from gluongraph.storage import aligned

Array = np.ndarray[Any, Any]
Address = Callable[[int], int]  # of the argument at a position


class Segments:
    """The segments of an entry point and its collectives, in the order of `Program.steps`.

    Before its first collective a call compares with the other ranks: do all run the program described by `text`, with
    the same `scalars`, and has none of them refused its batch? Otherwise nobody has changed anything.
    """

    def __init__(
        self,
        segments: Sequence[Callable[[], None]],
        program: Program,
        communicator: Communicator,
        text: str,
        scalars: Scalars,
    ):
        self.program, self.communicator = program, communicator
        self._agreement = Agreement(communicator, text, scalars)
        self._segments = segments
        self.collectives: list[Callable[[], None]] = []  # as functions that complete them
        self._steps: list[tuple[str, Any]] = []

    def bind(self, address: Address) -> None:
        """Look up the memory of the collectives, which has been bound to the arguments."""
        started = [self._call(collective, address) for collective in self.program.collectives]
        self.collectives = [partial(_complete, start) for start in started]
        waits = {number for what, number in self.program.steps if what == "wait"}
        assert waits == set(range(len(started)))
        self._steps = [
            (what, self._segments[number] if what == "run" else (number, started[number]))
            for what, number in self.program.steps
        ]

    def __call__(self, refused: Callable[[], bool]) -> bool:
        """Run once. Returns False, having changed nothing, if `refused` says after a segment that the batch cannot be
        used.

        Raises:
            Disagreement: other ranks run another program, or one of them has refused its batch.
        """
        works: dict[int, Work | None] = {}
        compared = False
        for what, step in self._steps:
            if what == "run":
                step()
            elif what == "start":
                if not compared:
                    compared = True
                    if not self._agreement(refused()):
                        return False
                number, start = step
                works[number] = start()
            elif (work := works[step[0]]) is not None:
                work.wait()
        return not refused()

    def _call(self, collective: Collective, address: Address) -> Callable[[], Work | None]:
        """Return the call of the communicator, on views of the memory."""
        args, communicator = self.program.args, self.communicator
        dtype = numpy_dtype(args[collective.flat[0]].dtype)
        nbytes = collective.shard * dtype.itemsize * communicator.size
        start, length = self._flat(collective, address, nbytes)
        flat = view(start, length, dtype)
        if collective.op == "all_reduce":
            if communicator.size > 1 and self._overlaps(collective):
                return lambda: communicator.start_allreduce(flat)
            return lambda: communicator.allreduce(flat)
        (other,) = collective.reads if collective.op == "all_gather" else collective.writes
        shard = view(address(other), collective.shard * dtype.itemsize, dtype)
        if collective.op == "all_gather":
            return lambda: communicator.allgather(shard, flat)
        gaps = self._gaps(collective, length)

        def reduce_scatter() -> None:
            flat.view(np.uint8)[gaps] = 0  # what lies between the arrays would be summed as well
            communicator.reduce_scatter(flat, shard)

        return reduce_scatter

    def _overlaps(self, collective: Collective) -> bool:
        """Does a segment run between start and wait?"""
        steps, number = self.program.steps, self.program.collectives.index(collective)
        return any(what == "run" for what, _ in steps[steps.index(("start", number)) : steps.index(("wait", number))])

    def _gaps(self, collective: Collective, length: int) -> Array:
        """Return the bytes of flat memory that belong to no argument."""
        found, at = [], 0
        for position in collective.flat:
            nbytes = self.program.args[position].nbytes
            found.append(np.arange(at + nbytes, at + aligned(nbytes)))
            at += aligned(nbytes)
        return np.concatenate([*found, np.arange(at, length)])

    def _flat(self, collective: Collective, address: Address, nbytes: int) -> tuple[int, int]:
        """Return address and bytes of the flat memory.

        Raises:
            CompileError: the arguments do not lie one after another.
        """
        start = end = address(collective.flat[0])
        for position in collective.flat:
            arg = self.program.args[position]
            if address(position) != end:
                raise CompileError(
                    f"{collective.op}: argument {arg.name!r} does not follow the one before it in memory"
                )
            end += aligned(arg.nbytes)
        return start, max(nbytes, end - start)


class Scalars:
    """The scalars of a program that are the same on all ranks: all but the states of generators of random numbers, of
    which ranks share one."""

    def __init__(self, program: Program, memory: Array):
        self._memory = memory
        positions = program.positions("scalar").values()
        args = (program.args[position] for position in positions)
        self._args = [arg for arg in args if arg.dtype != "u32" or arg.name.endswith(f"@{SHARED}")]
        inside = [np.arange(arg.offset, arg.offset + arg.nbytes) for arg in self._args]
        self._compared = np.concatenate(inside) if inside else np.zeros(0, np.int64)

    def digest(self) -> int:
        """Return a digest of their bits."""
        return zlib.crc32(self._memory[self._compared].data)

    def text(self) -> str:
        """Return them line by line, with their names."""
        values = ((arg.name, self._memory[arg.offset : arg.offset + arg.nbytes], arg.dtype) for arg in self._args)
        return "\n".join(
            f"{name}: {', '.join(map(str, view.view(numpy_dtype(dtype))))}" for name, view, dtype in values
        )


def _complete(start: Callable[[], Work | None]) -> None:
    if (work := start()) is not None:
        work.wait()


def view(address: int, nbytes: int, dtype: Any) -> Array:
    """Return memory as a flat array, without a copy; the caller keeps it alive."""
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    array: Array = np.frombuffer(memory, np.uint8).view(dtype)
    return array
