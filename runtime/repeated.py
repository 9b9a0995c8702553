"""Runs an entry point on several batches, one after another, by one call into the artefact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.runtime.table import address_of
from gluongraph.storage import aligned, aligned_empty

if TYPE_CHECKING:
    from gluongraph.runtime.executor import Executor

Array = np.ndarray[Any, Any]
TABLES = 1 << 22  # bytes of tables, one for each batch, above which a call into the artefact takes fewer batches


class Repeated:
    """The program of an executor on batches stacked along a first axis, with scalars of its own for each of them.

    A call reads batch i of every input and row i of every scalar, and writes row i of every output; state is updated in
    place, so batch i + 1 is computed on what batch i has left. It ends after a batch that has an index out of range, or
    for which one of the boolean outputs `going` is false. These are not stacked: `flags` are those of the last batch.
    """

    def __init__(self, executor: Executor, call: Callable[..., Callable[[], None]], going: Sequence[str]):
        """`call` returns the call of the artefact's function `ir.entry_point.REPEATED` with the arguments it is
        given. `going` are four outputs at most."""
        program, outputs = executor.program, executor.program.positions("output")
        self._executor, self._call = executor, call
        self._scalar_args = {name: (i, program.args[i]) for name, i in program.positions("scalar").items()}
        stacked = (name for name in executor.output_names if name not in going)
        self._outputs = {name: (outputs[name], program.args[outputs[name]]) for name in stacked}
        self._stride = aligned(program.scalar_bytes)
        moved = [(i, program.args[i].nbytes) for i in program.positions("input").values()]
        moved += [(i, arg.nbytes) for i, arg in self._outputs.values()]
        moved += [(i, self._stride) for i, _ in self._scalar_args.values()]
        self._positions = [i for i, _ in moved]
        self._strides = np.array([nbytes for _, nbytes in moved], np.uint64)
        self._going = np.ones(4, np.bool_)
        self._places_of_flags = [(outputs[name], address_of(self._going) + i) for i, name in enumerate(going)]
        self.flags: dict[str, Array] = {name: self._going[i : i + 1].reshape(()) for i, name in enumerate(going)}
        self._refused = executor.refused if executor.refused is not None else np.zeros(1, np.int32)
        self._scalars: Array = np.empty((0, self._stride), np.uint8)
        self._counts = np.zeros(2, np.int64)  # of calls to make, and of those made
        self.made = 0  # batches on which the last call has run, with one that has ended it
        self._bound = -1  # when the tables were made: `executor.bound`

    def reserve(self, count: int) -> bool:
        """Have memory for the scalars of so many batches. Return whether it is new: what `scalar` gave is not it."""
        if len(self._scalars) >= count:
            return False
        self._scalars = aligned_empty((count, self._stride), np.uint8)
        self._scalars[:] = 0
        self._bound = -1
        return True

    def scalar(self, name: str) -> Array:
        """Return the memory of a host scalar, a row of its elements for each batch."""
        _, arg = self._scalar_args[name]
        dtype = numpy_dtype(arg.dtype)
        strides = (self._stride, dtype.itemsize)
        return np.ndarray((len(self._scalars), arg.size), dtype, self._scalars.data, arg.offset, strides)

    def results(self, count: int) -> dict[str, Array]:
        """Return memory for the stacked outputs of so many batches, by name."""
        shapes = {name: ((count, *arg.shape), numpy_dtype(arg.dtype)) for name, (_, arg) in self._outputs.items()}
        return {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def __call__(self, inputs: Sequence[Array], results: Mapping[str, Array], first: int, end: int) -> None:
        """Run on the batches from `first` to before `end`.

        `inputs` follow `input_names`: contiguous arrays of the program's dtypes, with a first axis; `results` is what
        `results` has returned. Scalars must have been written before.
        """
        if self._bound != self._executor.bound:
            self._make_tables()
        self._executor.touch_scratch()
        self._going[:] = True
        start = address_of(self._scalars) if self._scalar_args else 0
        addresses = [address_of(array) for array in (*inputs, *(results[name] for name in self._outputs))]
        addresses += [start + arg.offset for _, arg in self._scalar_args.values()]
        base, self.made = np.array(addresses, np.uint64), 0
        while first + self.made < end:
            count = min(end - first - self.made, len(self._numbers))
            batches = self._numbers[:count] + np.uint64(first + self.made)
            self._data[:count, self._positions] = base + batches[:, None] * self._strides
            self._counts[:] = count, 0
            try:
                self._run()
            finally:
                self.made += int(self._counts[1])
            if self._refused[0] or not self._going.all():
                return

    def _make_tables(self) -> None:
        """Make a table of arguments for each batch of a call into the artefact."""
        table = self._executor.table
        count = max(1, min(len(self._scalars), TABLES // table.nbytes))
        self._tables = table.copies(count)
        self._data, self._numbers = self._tables["data"], np.arange(count, dtype=np.uint64)
        for position, address in self._places_of_flags:
            self._data[:, position] = address
        memory = (array.ctypes.data for array in (self._counts, self._refused, self._going))
        self._run = self._call(self._tables.ctypes.data, self._tables.strides[0], *memory)
        self._bound = self._executor.bound

    def take_scalars(self, number: int) -> None:
        """Copy the scalars of a batch to where a call of the executor reads them."""
        self._executor.put_scalars(self._scalars[number])
