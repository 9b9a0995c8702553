"""The eager trainer's update of a parameter whose gradient is kept by rows: only those rows are read and written."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.eager.row_sparse import Rows, joined
from gluongraph.nd.row_sparse_array import RowSparseNDArray
from gluongraph.ndarray import NDArray, invoke
from gluongraph.optimizer.base import computed_in, updated_by
from gluongraph.storage import Array
from gluongraph.tracing.optimizer_updates import state_name

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer


def update_by_rows(trainer: Trainer, parameter: str, weights: Sequence[NDArray]) -> None:
    """Update a parameter that has been counted, by the gradients of these replicas."""
    exchange = trainer.exchange
    if not exchange.once:  # then allreduce_grads has summed what is to be summed
        for weight in weights:
            _update(trainer, weight, touched(weight))
        return
    first, *others = (trainer.replica(name) for name in exchange.replicas[parameter])
    rows = _update(trainer, first, trainer.gathered(joined([touched(weight) for weight in weights])))
    for other in others:
        other.storage.write(first.storage.array[rows], rows)


def touched(weight: NDArray) -> Rows:
    """The rows that the gradient of a weight touches."""
    assert isinstance(weight.grad, RowSparseNDArray)
    return weight.grad.by_rows()


def _update(trainer: Trainer, weight: NDArray, g: Rows) -> Array:
    """The formula on the touched rows of weight and states, which are written back; gives their numbers."""
    index = trainer.exchange.indices[weight.name]
    optimizer = trainer.optimizer.member(index)
    rows, sums = g.summed()
    if not len(rows):
        return rows
    # Of numbers of rows there are many: they are filled up to powers of 2, so that few functions do.
    more = (1 << (len(rows) - 1).bit_length()) - len(rows)
    padded = np.concatenate([rows, np.full(more, rows[0])])
    states = trainer.state_arrays([weight.name])
    keys = [name.removeprefix(state_name(weight.name, "")) for name in states]
    arrays = [weight, *states.values()]
    given = [NDArray(array.storage.array[padded]) for array in arrays]
    given.insert(1, NDArray(np.concatenate([sums, np.zeros((more, *sums.shape[1:]), sums.dtype)])))
    numbers = optimizer.scalars(index)
    wide = numpy_dtype(computed_in(weight.type.dtype))
    scalars = [NDArray(np.array(value, wide)) for value in numbers.values()]
    how = {"structure": optimizer.structure(), "states": tuple(keys), "keys": tuple(numbers)}
    made = invoke(updated_by, *given, *scalars, optimizer=weakref.ref(optimizer), **how)
    for array, new in zip(arrays, made, strict=True):
        array.storage.write(new.storage.array[: len(rows)], rows)
    return rows
