"""Runs an entry point on several batches, one after another, by one call into the artefact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.runtime.table import CPU, Table, address_of
from gluongraph.storage import aligned, aligned_empty

if TYPE_CHECKING:
    from gluongraph.runtime.executor import Executor

Array = np.ndarray[Any, Any]
FLAG_BYTES = (
    4  # between two rows of an output that is looked at: the artefact reads 32 bits, of which a kernel writes 8
)


class Repeated:
    """The program of an executor on batches stacked along a first axis, with scalars of its own for each of them.

    A call reads batch i of every input and row i of every scalar, and writes row i of every output; state is updated in
    place, so batch i + 1 is computed on what batch i has left. It ends after a batch that has an index out of range, or
    for which one of the boolean outputs `going` is false.
    """

    def __init__(self, executor: Executor, call: Callable[..., Callable[[], None]], going: Collection[str]):
        """`call` returns the call of the artefact's function `ir.entry_point.REPEATED` with the arguments it is
        given."""
        program = executor.program
        self._executor, self._going = executor, going
        self._inputs = [(i, program.args[i].nbytes) for i in program.positions("input").values()]
        self._scalar_args = {name: (i, program.args[i]) for name, i in program.positions("scalar").items()}
        outputs = program.positions("output")
        args = {name: program.args[outputs[name]] for name in executor.output_names}
        self._outputs = {
            name: (outputs[name], arg, FLAG_BYTES if name in going else arg.nbytes) for name, arg in args.items()
        }
        self._stride = aligned(program.scalar_bytes)
        self._scalars: Array = np.empty((0, self._stride), np.uint8)
        table = self._table = Table(program.args, CPU, 0)
        moves = [(table.slot(position), nbytes) for position, nbytes in self._inputs]
        moves += [(table.slot(position), nbytes) for position, _, nbytes in self._outputs.values()]
        moves += [(table.slot(position), self._stride) for position, _ in self._scalar_args.values()]
        stops = [(table.slot(outputs[name]), 1) for name in going]
        if executor.flag is not None:
            stops.append((table.slot(executor.flag), 0))
        self._pairs = [np.array(pairs, np.int64) for pairs in (moves, stops)]
        self._counts = np.zeros(2, np.int64)  # of calls to make, and of those made
        lists = [number for pairs in self._pairs for number in (pairs.ctypes.data, len(pairs))]
        self._run = call(table.address, self._counts.ctypes.data, *lists)

    def reserve(self, count: int) -> bool:
        """Have memory for the scalars of so many batches. Return whether it is new: what `scalar` gave is not it."""
        if len(self._scalars) >= count:
            return False
        self._scalars = aligned_empty((count, self._stride), np.uint8)
        self._scalars[:] = 0
        return True

    def scalar(self, name: str) -> memoryview[Any]:
        """Return the memory of a host scalar, a row of its elements for each batch: `rows.scalar('lr')[2, 0] = 0.1`."""
        _, arg = self._scalar_args[name]
        dtype = numpy_dtype(arg.dtype)
        strides = (self._stride, dtype.itemsize)
        return np.ndarray((len(self._scalars), arg.size), dtype, self._scalars.data, arg.offset, strides).data

    def results(self, count: int) -> dict[str, Array]:
        """Return memory for the outputs of so many batches, by name."""
        made: dict[str, Array] = {}
        for name, (_, arg, nbytes) in self._outputs.items():
            shape, dtype = (count, *arg.shape), numpy_dtype(arg.dtype)
            made[name] = np.zeros((count, nbytes), np.bool_)[:, 0] if name in self._going else np.empty(shape, dtype)
        return made

    @property
    def made(self) -> int:
        """On how many batches the last call has run, with the one that has ended it."""
        return int(self._counts[1])

    def __call__(self, inputs: Sequence[Array], results: Mapping[str, Array], first: int, end: int) -> None:
        """Run on the batches from `first` to before `end`.

        `inputs` follow `input_names`: contiguous arrays of the program's dtypes, with a first axis; `results` is what
        `results` has returned. Scalars must have been written before.
        """
        self._counts[:] = end - first, 0
        table = self._table
        table.point_like(self._executor.table_to_call())
        for (position, nbytes), array in zip(self._inputs, inputs, strict=True):
            table.point(position, address_of(array) + first * nbytes)
        for name, (position, _, nbytes) in self._outputs.items():
            table.point(position, address_of(results[name]) + first * nbytes)
        if self._scalar_args:
            start = address_of(self._scalars) + first * self._stride
            for position, arg in self._scalar_args.values():
                table.point(position, start + arg.offset)
        self._run()

    def take_scalars(self, number: int) -> None:
        """Copy the scalars of a batch to where a call of the executor reads them."""
        self._executor.put_scalars(self._scalars[number])
