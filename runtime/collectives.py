"""Runs an entry point with collectives: its segments, and between them calls of the communicator on flat memory."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from gluongraph.context import SHARED
from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.ir.entry_point import Arg, Collective, Program
from gluongraph.runtime.communicator import shared_memory
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import Communicator, Work
from gluongraph.runtime.communicator.shared_memory import SharedArray, SyncCount
from gluongraph.runtime.table import address_of
from gluongraph.storage import aligned

Array = np.ndarray[Any, Any]
Address = Callable[[int], int]  # of the argument at a position
Gaps = Sequence[tuple[int, int]]  # (first byte, bytes)
Start = Callable[[Communicator], Work | None]
Move = Callable[[int, int], None]  # the argument at a position to an address


class Views(Protocol):
    """Memory as a communicator takes it."""

    def flat(self, address: int, nbytes: int, dtype: str) -> Any:
        """Return memory as a flat array, without a copy; the caller keeps it alive."""

    def clearing(self, address: int, gaps: Gaps) -> Callable[[], None]:
        """Return a function that sets these parts of the memory at an address to zero."""


class HostViews:
    """Memory of this process, as numpy arrays."""

    def flat(self, address: int, nbytes: int, dtype: str) -> Array:
        """Return memory as a flat array, without a copy; the caller keeps it alive."""
        memory: Any = (ctypes.c_char * nbytes).from_address(address)
        array: Array = np.frombuffer(memory, np.uint8).view(numpy_dtype(dtype))
        return array

    def clearing(self, address: int, gaps: Gaps) -> Callable[[], None]:
        """Return a function that sets these parts of the memory at an address to zero."""
        whole = self.flat(address, max(start + nbytes for start, nbytes in gaps), "u8")
        inside = np.concatenate([np.arange(start, start + nbytes) for start, nbytes in gaps])

        def clear() -> None:
            whole[inside] = 0

        return clear


def flat_bytes(collective: Collective, args: Sequence[Arg], ranks: int) -> int:
    """Return the bytes of the flat memory of a collective: those of its arguments, and of the parts of all ranks."""
    members = [args[position] for position in collective.flat]
    parts = collective.shard * ranks * DTYPES[members[0].dtype].nbytes
    return max(parts, sum(aligned(arg.nbytes) for arg in members))


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
        views: Views | None = None,
        connect: Callable[[], Communicator] | None = None,
        move: Move | None = None,
    ):
        """`views` of the arguments' memory are what the communicator takes that `connect` returns; by default it is
        `communicator`, with numpy arrays. `connect` is called when all ranks have agreed for the first time: one that
        has failed to compile the program would not take part. With `move`, scratch memory of collectives is moved to
        where the ranks of a host share it."""
        self.program, self.communicator = program, communicator
        self.connected: Communicator | None = None  # what `connect` has returned
        self._views = HostViews() if views is None else views
        self._connect: Callable[[], Communicator] = connect or (lambda: communicator)
        self._agreement = Agreement(communicator, text, scalars)
        self._segments = segments
        self._move = move  # None: nothing is to be moved, or it has been
        self._shared: dict[int, SharedArray] = {}  # by number of the collective
        self._syncs: SyncCount | None = None  # of the ranks that share memory
        self._written = 0  # the count of synchronizations after the last segment
        self.collectives: list[Callable[[], None]] = []  # as functions that complete them
        self._steps: list[tuple[str, Any]] = []

    def bind(self, address: Address) -> None:
        """Look up the memory of the collectives, which has been bound to the arguments."""
        self._address = address
        numbers = range(len(self.program.collectives))
        started = [self._call(number, address) for number in numbers]
        cleared = {number: clear for number in numbers if (clear := self._clearing(number, address)) is not None}
        self.collectives = [partial(self._complete, start, cleared.get(n)) for n, start in enumerate(started)]
        waits = {number for what, number in self.program.steps if what == "wait"}
        assert waits == set(range(len(started)))
        self._steps = []
        for what, number in self.program.steps:
            if what == "start" and number in cleared:
                self._steps.append(("run", cleared[number]))
            self._steps.append((what, self._segments[number] if what == "run" else (number, started[number])))

    @property
    def shared(self) -> list[SharedArray]:
        """Arguments of this program that lie in memory which the ranks of this host share."""
        collectives = self.program.collectives
        return [array for number, array in self._shared.items() if collectives[number].op != "all_gather"]

    def __call__(self, refused: Callable[[], bool]) -> bool:
        """Run once. Returns False, having changed nothing, if `refused` says after a segment that the batch cannot be
        used.

        Raises:
            Disagreement: other ranks run another program, or one of them has refused its batch.
        """
        works: dict[int, Work | None] = {}
        compared = False
        for index in range(len(self._steps)):
            what, step = self._steps[index]
            if what == "run":
                step()
                self._note_writes()
            elif what == "start":
                if not compared:
                    compared = True
                    if not self._agreement(refused()):
                        return False
                    if self._move is not None:
                        self._share(self._move)
                        what, step = self._steps[index]
                number, start = step
                works[number] = start(self._others())
            elif (work := works[step[0]]) is not None:
                work.wait()
        return not refused()

    def _note_writes(self) -> None:
        """A segment, or what moves memory, may have written to what ranks share."""
        if self._syncs is not None:
            self._written = self._syncs.count

    def _others(self) -> Communicator:
        if self.connected is None:
            self.connected = self._connect()
        return self.connected

    def _complete(self, start: Start, clear: Callable[[], None] | None) -> None:
        if clear is not None:
            clear()
        self._note_writes()  # by segments that were called one by one
        if (work := start(self._others())) is not None:
            work.wait()

    def _share(self, move: Move) -> None:
        """Have the ranks of a host share the memory of collectives, with what is in it. All ranks call this."""
        self._move = None
        moved, gathers = self._shareable()
        self._share_sums(moved, move)
        self._share_gathers(gathers)
        self._note_writes()
        self.bind(self._address)

    def _share_gathers(self, gathers: Sequence[int]) -> None:
        """Gather through memory that nothing but this writes to. All ranks call this."""
        most = max(map(self._shard_bytes, gathers), default=0)
        memory = self._others().shared_memory(most, "gathers") if most else None
        if memory is not None:
            self._syncs = memory.syncs
            for number in gathers:  # one after another in the same place
                self._shared[number] = memory.array(0, self._shard_bytes(number), np.dtype(np.uint8))

    def _share_sums(self, moved: dict[int, int], move: Move) -> None:
        """Move arguments of sums, of so many bytes, to memory that ranks share. All ranks call this."""
        memory = self._others().shared_memory(sum(map(aligned, moved.values()))) if moved else None
        if memory is None:
            return
        self._syncs = memory.syncs
        start = 0
        for number, nbytes in moved.items():
            flat = self.program.collectives[number].flat
            args = [self.program.args[position] for position in flat]
            before = self._views.flat(self._first(self.program.collectives[number], self._address), nbytes, "u8")
            shared = self._shared[number] = memory.array(start, nbytes, numpy_dtype(args[0].dtype))
            shared.own.view(np.uint8)[:] = before
            at = address_of(shared.own)
            for position, arg in zip(flat, args, strict=True):
                move(position, at)
                at += aligned(arg.nbytes)
            start += aligned(nbytes)

    def _shareable(self) -> tuple[dict[int, int], list[int]]:
        """Return the collectives whose flat memory is to be shared, with its bytes, and those that gather.

        Sums are shared that are waited for at once, of arrays in scratch memory. Of several that scatter none is: they
        follow one another in little scratch memory, and would not in what is shared."""
        args, ranks = self.program.args, self.communicator.size
        every = list(enumerate(self.program.collectives))
        scatters = sum(collective.op == "reduce_scatter" for _, collective in every)
        moved = {}
        for number, collective in every:
            members = [args[position] for position in collective.flat]
            added = numpy_dtype(members[0].dtype) in shared_memory.DTYPES and not self._overlaps(collective)
            wanted = collective.op == "all_reduce" or (collective.op == "reduce_scatter" and scatters == 1)
            if wanted and added and all(arg.space == "scratch" for arg in members):
                moved[number] = flat_bytes(collective, args, ranks)
        return moved, [number for number, collective in every if collective.op == "all_gather"]

    def _shard_bytes(self, number: int) -> int:
        """Return the bytes of one rank's part of what a collective scatters or gathers."""
        collective = self.program.collectives[number]
        return collective.shard * DTYPES[self.program.args[collective.flat[0]].dtype].nbytes

    def _call(self, number: int, address: Address) -> Start:
        """Return the call of a communicator, on views of the memory."""
        collective = self.program.collectives[number]
        args, ranks = self.program.args, self.communicator.size
        dtype = args[collective.flat[0]].dtype
        start = self._first(collective, address)
        length = flat_bytes(collective, args, ranks)
        flat = self._views.flat(start, length, dtype)
        shared = self._shared.get(number)
        if collective.op == "all_reduce":
            if shared is not None:
                return lambda communicator: shared.allreduce(self._written)
            if ranks > 1 and self._overlaps(collective):
                return lambda communicator: communicator.start_allreduce(flat)
            return lambda communicator: communicator.allreduce(flat)
        (other,) = collective.reads if collective.op == "all_gather" else collective.writes
        shard = self._views.flat(address(other), collective.shard * DTYPES[dtype].nbytes, dtype)
        if collective.op == "all_gather":
            if shared is not None:
                source, target = shard.view(np.uint8), flat.view(np.uint8)
                return lambda communicator: shared.allgather(source, target, keep=True)  # nobody else writes there
            return lambda communicator: communicator.allgather(shard, flat)
        if shared is not None:
            keep = self._is_gathered_after(number)
            return lambda communicator: shared.reduce_scatter(shard, self._written, keep)
        return lambda communicator: communicator.reduce_scatter(flat, shard)

    def _clearing(self, number: int, address: Address) -> Callable[[], None] | None:
        """Return what sets the gaps between scattered arrays to zero, which would be summed as well; None: no gaps."""
        collective = self.program.collectives[number]
        if collective.op != "reduce_scatter":
            return None
        gaps = self._gaps(collective, flat_bytes(collective, self.program.args, self.communicator.size))
        return self._views.clearing(self._first(collective, address), gaps) if gaps else None

    def _is_gathered_after(self, number: int) -> bool:
        """Do ranks synchronize in a gather later in the same call, that is before they write the gradients anew?"""
        steps = self.program.steps
        later = [each for what, each in steps[steps.index(("wait", number)) :] if what == "start"]
        return any(self.program.collectives[each].op == "all_gather" and each in self._shared for each in later)

    def _overlaps(self, collective: Collective) -> bool:
        """Does a segment run between start and wait?"""
        steps, number = self.program.steps, self.program.collectives.index(collective)
        return any(what == "run" for what, _ in steps[steps.index(("start", number)) : steps.index(("wait", number))])

    def _gaps(self, collective: Collective, length: int) -> Gaps:
        """Return the parts of flat memory of so many bytes that belong to no argument."""
        found, at = [], 0
        for position in collective.flat:
            nbytes = self.program.args[position].nbytes
            found.append((at + nbytes, aligned(nbytes) - nbytes))
            at += aligned(nbytes)
        return [(start, nbytes) for start, nbytes in (*found, (at, length - at)) if nbytes]

    def _first(self, collective: Collective, address: Address) -> int:
        """Return the address of the flat memory.

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
        return start


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
