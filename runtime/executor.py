"""Runs an entry point of an artefact: memory is bound once, a call changes inputs, outputs and scalars only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import IndexRangeError
from gluongraph.ir.entry_point import Program
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.runtime.collectives import Scalars, Segments
from gluongraph.runtime.library import Function
from gluongraph.runtime.repeated import Repeated
from gluongraph.runtime.table import CPU, Table, address_of
from gluongraph.storage import aligned_empty, populate

Array = np.ndarray[Any, Any]
Refuse = Callable[[Mapping[str, Array]], NoReturn]


def out_of_range(values: Mapping[str, Array]) -> NoReturn:
    """Raise the error of a program whose graph is not available."""
    raise IndexRangeError("an index is out of range: a label or a token id of the batch")


Segment = Callable[[int], None]


def _on(function: Callable[..., None], *arguments: int) -> Callable[[], None]:
    """Return the call of a function of the artefact with these arguments, addresses and numbers."""
    return function.on(*arguments) if isinstance(function, Function) else partial(function, *arguments)


class Executor:
    """An entry point with its scratch arena and scalars; state arrays are the caller's and may be re-bound.

    A call is exactly one packed call into the artefact. If the program has counted indices out of range, it has changed
    no state, and `refuse` is called with the arrays of inputs, state and scalars by name, to raise the error.
    """

    def __init__(
        self,
        function: Segment | Sequence[Segment],
        program: Program,
        state: Mapping[str, Array],
        refuse: Refuse = out_of_range,
        text: str = "",
        repeated: Callable[..., None] | None = None,
    ):
        """`function` is the entry point; if the program has collectives, its segments. `text` describes the program:
        all ranks must have the same. `repeated` calls the entry point several times (`ir.entry_point.REPEATED`)."""
        self.program, self._refuse = program, refuse
        self.bound = 0  # how often state has been bound
        self._keep: dict[str, Array] = {}  # the arrays to which the table points
        self.table = Table(program.args, CPU, 0)
        runs = [_on(each, self.table.address) for each in (function if isinstance(function, Sequence) else [function])]
        self._scratch, self._given = aligned_empty((program.scratch_bytes,), np.uint8), False
        self._scalars = aligned_empty((program.scalar_bytes,), np.uint8)
        self._scalars[:] = 0
        self._segments: Segments | None = None
        if program.steps:
            from gluongraph.runtime.communicator.environment import world  # a process of its own has no collectives

            scalars = Scalars(program, self._scalars)
            self._segments = Segments(runs, program, world(), text, scalars, move=self.table.point)
        self._run, self._repeated = runs[0], repeated
        self._inputs = program.positions("input")
        outputs = dict(program.positions("output"))
        flag = outputs.pop(INDEX_FLAG, None)
        self.output_names = tuple(outputs)  # what a call returns, in order
        self._outputs = [(i, program.args[i].shape, numpy_dtype(program.args[i].dtype)) for i in outputs.values()]
        self._flag: memoryview[Any] | None = None
        if flag is not None:
            array = self._keep[INDEX_FLAG] = np.zeros(1, np.int32)
            self._flag = array.data
            self.table.point(flag, address_of(array))
        arenas = {"scratch": address_of(self._scratch), "scalar": address_of(self._scalars)}
        for position, arg in enumerate(program.args):
            if arg.space in arenas:
                self.table.point(position, arenas[arg.space] + arg.offset)
            elif arg.space == "const":
                array = self._keep[arg.name] = aligned_empty(arg.shape, numpy_dtype(arg.dtype))
                array.reshape(-1)[:] = np.frombuffer(program.constants[arg.name], array.dtype)
                self.table.put(position, array)
        self.bind(state)

    def bind(self, state: Mapping[str, Array]) -> None:
        """Bind the state arguments to these arrays (contiguous, of the right size and dtype)."""
        self.bound += 1
        for name, position in self.program.positions("state").items():
            self.table.put(position, state[name])
            self._keep[name] = state[name]
        if self._segments is not None:
            self._segments.bind(self.table.address_at)

    def scalar(self, name: str) -> memoryview[Any]:
        """Return the memory of a host scalar, to be written before a call: `executor.scalar('lr')[0] = 0.1`."""
        arg = self.program.args[self.program.positions("scalar")[name]]
        return self._scalars[arg.offset : arg.offset + arg.nbytes].view(numpy_dtype(arg.dtype)).data

    @property
    def collectives(self) -> list[Callable[[], None]]:
        """The collectives of the program, in the order of its launches, as functions that complete them."""
        return [] if self._segments is None else self._segments.collectives

    @property
    def checks_indices(self) -> bool:
        """Does a call raise if an index is out of range?"""
        return self._flag is not None

    @property
    def communicates(self) -> bool:
        """Has the program collectives between ranks?"""
        return self._segments is not None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs that a call takes, in order, without unused ones."""
        return tuple(self._inputs)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once. `inputs` follow `input_names`: contiguous arrays of the program's dtypes and sizes."""
        results = self._fill(inputs)
        if self._segments is None:
            self._run()
        else:
            self._segments(self._is_refused)
        self.check(inputs)
        return results

    def check(self, inputs: Sequence[Array]) -> None:
        """Call `refuse` if the last call, on these inputs, has found indices out of range."""
        if self._flag is not None and self._flag[0]:
            self._refuse(self._values(inputs))

    def repeating(self, going: Sequence[str] = ()) -> Repeated | None:
        """Return what runs the program on several batches by one call, as long as the outputs `going` are true. None
        if ranks act together in between, or the artefact is of a version that had no such calls."""
        if self._segments is not None or self._repeated is None:
            return None
        return Repeated(self, partial(_on, self._repeated), going)

    @property
    def refused(self) -> Array | None:
        """The int32 that is not 0 after a call with an index out of range; None if none are checked."""
        return self._keep.get(INDEX_FLAG)

    def put_scalars(self, values: Array) -> None:
        """Write all scalars at once: bytes as they lie in the program's arena."""
        self._scalars[:] = values[: self._scalars.size]

    def touch_scratch(self) -> None:
        """Have the scratch memory before a call: page faults in kernels would make their threads wait for each
        other."""
        if not self._given:
            populate(self._scratch)
            self._given = True

    def _is_refused(self) -> bool:
        return self._flag is not None and bool(self._flag[0])

    def _values(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Return the arrays that the last call has read, by name."""
        scalars = {name: np.asarray(self.scalar(name)) for name in self.program.positions("scalar")}
        return {**self._keep, **scalars, **dict(zip(self._inputs, inputs, strict=True))}

    def _fill(self, inputs: Sequence[Array]) -> list[Array]:
        """Put a call's inputs and fresh outputs into the table."""
        self.touch_scratch()
        for position, array in zip(self._inputs.values(), inputs, strict=True):
            self.table.put(position, array)
        results = []
        for position, shape, dtype in self._outputs:
            array = np.empty(shape, dtype)
            self.table.point(position, address_of(array))
            results.append(array)
        return results

    def wait(self) -> None:
        """Wait until all kernels are done: on a CPU they are when a call returns."""

    @contextmanager
    def lent(self, inputs: Sequence[Array]) -> Iterator[list[Any]]:
        """Yield all arguments in order, for callers that run kernels themselves; the state is restored afterwards."""
        results = self._fill(inputs)
        state = {name: self._keep[name].copy() for name in self.program.positions("state")}
        try:
            yield [self.table.tensor(i) for i in range(len(self.program.args))]
        finally:
            for name, before in state.items():
                self._keep[name][...] = before
            del results
