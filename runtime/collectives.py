"""Runs an entry point with collectives: its segments, and between them calls of the communicator on flat memory."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import CompileError, with_user_location
from gluongraph.ir.entry_point import Collective, Program
from gluongraph.runtime.communicator.base import Communicator, Disagreement, Work
from gluongraph.storage import aligned

Array = np.ndarray[Any, Any]
Address = Callable[[int], int]  # of the argument at a position


class Segments:
    """The segments of an entry point and its collectives, in the order of `Program.steps`.

    Before its first collective a call compares with the other ranks: do all run the program described by `text`, and
    has none of them refused its batch? Otherwise nobody has changed anything.
    """

    def __init__(self, segments: Sequence[Callable[[], None]], program: Program, communicator: Communicator, text: str):
        self.program, self.communicator, self._text = program, communicator, text
        self._agreement = Agreement(communicator, text)
        self._segments = segments
        self._started: list[Callable[[], Work | None]] = []
        self._steps: list[tuple[str, Any]] = []

    def bind(self, address: Address) -> None:
        """Look up the memory of the collectives, which has been bound to the arguments."""
        started = [self._call(collective, address) for collective in self.program.collectives]
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
        gaps = self._gaps(collective, start, length)

        def reduce_scatter() -> None:
            flat.view(np.uint8)[gaps] = 0  # what lies between the arrays would be summed as well
            communicator.reduce_scatter(flat, shard)

        return reduce_scatter

    def _overlaps(self, collective: Collective) -> bool:
        """Does a segment run between start and wait?"""
        steps, number = self.program.steps, self.program.collectives.index(collective)
        return any(what == "run" for what, _ in steps[steps.index(("start", number)) : steps.index(("wait", number))])

    def _gaps(self, collective: Collective, start: int, length: int) -> Array:
        """Return the bytes of flat memory that belong to no argument."""
        inside, at = np.zeros(length, bool), 0
        for position in collective.flat:
            nbytes = self.program.args[position].nbytes
            inside[at : at + nbytes] = True
            at += aligned(nbytes)
        return np.flatnonzero(~inside)

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


class Agreement:
    """Compares a digest of a text on all ranks, and whether one of them has failed, by one small collective."""

    def __init__(self, communicator: Communicator, text: str):
        self.communicator, self.text = communicator, text
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
        self._digest = digest
        self._values = np.empty(3, np.int64)

    def __call__(self, failed: bool = False) -> bool:
        """Return whether all ranks can go on; False if this one has failed.

        Raises:
            Disagreement: the texts differ, or another rank has failed.
        """
        values, digest = self._values, self._digest
        values[0], values[1], values[2] = digest, -digest, failed
        self.communicator.allreduce(values, "max")
        largest, smallest, any_failed = values.tolist()
        if largest == -smallest and not any_failed:
            return True
        state = "failed" if failed else "ok"
        found = [each.split("\n", 1) for each in self.communicator.exchange(f"{state}\n{self.text}")]
        if failed:
            return False
        if lost := [str(rank) for rank, (state, _) in enumerate(found) if state == "failed"]:
            who = f"rank {lost[0]} has" if len(lost) == 1 else f"ranks {', '.join(lost)} have"
            message = f"{who} refused the batch of this step, see the error there; no rank has changed anything"
            raise Disagreement(with_user_location(message, help="check the data of that rank"))
        raise Disagreement(with_user_location(difference([text for _, text in found]), help=_SAME))


_SAME = "all ranks run the same program on batches of the same shapes, in the same order"


def difference(texts: Sequence[str]) -> str:
    """Return a sentence that says which ranks differ from rank 0, and the first line that differs."""
    others = [rank for rank, text in enumerate(texts) if text != texts[0]]
    who = f"rank {others[0]} differs" if len(others) == 1 else f"ranks {', '.join(map(str, others))} differ"
    ours, theirs = texts[0].splitlines(), texts[others[0]].splitlines()
    for a, b in zip([*ours, *[""] * len(theirs)], [*theirs, *[""] * len(ours)], strict=False):
        if a != b:
            return f"{who} from rank 0: {a or 'nothing'} on rank 0, {b or 'nothing'} on rank {others[0]}"
    return f"{who} from rank 0"


def view(address: int, nbytes: int, dtype: Any) -> Array:
    """Return memory as a flat array, without a copy; the caller keeps it alive."""
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    array: Array = np.frombuffer(memory, np.uint8).view(dtype)
    return array
