"""Batches of arrays in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.errors import pluralize
from gluongraph.io.base import DataBatch, DataDesc, DataIter
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array

LAST_BATCH = ("pad", "discard", "roll_over")


class NDArrayIter(DataIter):
    """Batches of arrays, of a list of arrays, or of a dict of them by name; what is no NDArray becomes float32.

    A last batch that is not full is filled with the first samples ("pad"), left out ("discard"), or comes first in the
    next pass ("roll_over"). With `shuffle` each `reset()` draws a new order from `numpy.random`, the same as MXNet's
    for the same seed.

    Raises:
        TypeError: something else than arrays, or no data.
        ValueError: arrays with fewer samples than the first, or an unknown `last_batch_handle`.

    >>> from gluongraph import io, nd
    >>> batches = io.NDArrayIter(nd.ones((5, 2)), nd.zeros((5,)), batch_size=2)
    >>> [(batch.data[0].shape, batch.pad) for batch in batches]
    [((2, 2), 0), ((2, 2), 0), ((2, 2), 1)]

    Source: `mxnet.io.NDArrayIter` (MXNet 1.9).
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
    ):
        super().__init__(batch_size)
        if last_batch_handle not in LAST_BATCH:
            raise ValueError(f"last_batch_handle is one of {', '.join(LAST_BATCH)}, not {last_batch_handle!r}")
        self.data, self.label = _named(data, data_name), _named(label, label_name)
        if not self.data:
            raise TypeError("NDArrayIter needs data: an array, a list or a dict of them")
        self.layout, self._axis = layout, layout.find("N")
        self.num_data = self.data[0][1].shape[self._axis]
        for name, array in (*self.data, *self.label):
            if array.shape[self._axis] < self.num_data:
                samples = pluralize(array.shape[self._axis], "sample")
                raise ValueError(f"{name} has {samples}, and {self.data[0][0]} has {self.num_data}")
        self.shuffle, self.last_batch_handle = shuffle, last_batch_handle
        self.idx = np.arange(self.num_data)
        self._order: Array = np.arange(self.num_data)
        self._left: Array = self._order[:0]  # samples that have rolled over
        self.cursor = -batch_size
        self.reset()

    @property
    def provide_data(self) -> list[DataDesc]:
        """Descriptions of the data of each batch."""
        return self._described(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Descriptions of the labels of each batch."""
        return self._described(self.label)

    def _described(self, arrays: list[tuple[str, NDArray]]) -> list[DataDesc]:
        axis, size = self._axis, self.batch_size
        return [
            DataDesc(name, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype, self.layout) for name, x in arrays
        ]

    def hard_reset(self) -> None:
        """Begin a pass at the first sample, without what has rolled over."""
        self.cursor, self._left = -self.batch_size, self._order[:0]
        if self.shuffle:
            self._shuffle()

    def reset(self) -> None:
        if self.shuffle:
            self._shuffle()
        self.cursor = -self.batch_size - len(self._left)

    def _shuffle(self) -> None:
        np.random.shuffle(self.idx)  # the order of before shuffled, and applied to the order of before: as MXNet does
        self._order = self._order[self.idx]

    def state_dict(self) -> dict[str, Any]:
        """Where in a pass it is, and in which order, in numbers and lists.

        >>> from gluongraph import io, nd
        >>> batches = io.NDArrayIter(nd.ones((5, 2)), batch_size=2)
        >>> first = batches.next()
        >>> batches.state_dict()
        {'samples': 5, 'cursor': 0, 'left': [], 'order': None, 'shuffles': None}
        """
        order, shuffles = (a.tolist() if self.shuffle else None for a in (self._order, self.idx))
        left = self._left.tolist()
        return {"samples": self.num_data, "cursor": self.cursor, "left": left, "order": order, "shuffles": shuffles}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called.

        >>> from gluongraph import io, nd
        >>> batches, others = (io.NDArrayIter(nd.ones((5, 2)), batch_size=2) for _ in range(2))
        >>> first = batches.next()
        >>> others.load_state_dict(batches.state_dict())
        >>> len(list(others))
        2

        Raises:
            ValueError: it is the state of another number of samples, or of an order where there is none.
        """
        if state["samples"] != self.num_data or (state["order"] is not None) != self.shuffle:
            kind = "shuffled" if state["order"] is not None else "in order"
            raise ValueError(f"the state is that of {state['samples']} samples, {kind}; here are {self.num_data}")
        if self.shuffle:
            self._order, self.idx = np.array(state["order"], int), np.array(state["shuffles"], int)
        self._left, self.cursor = np.array(state["left"], int), state["cursor"]

    def iter_next(self) -> bool:
        self.cursor += self.batch_size
        return self.cursor < self.num_data

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        chosen = self._chosen()
        if len(chosen) < self.batch_size:
            self._left = chosen if self.last_batch_handle == "roll_over" else chosen[:0]
            raise StopIteration
        batch = DataBatch(self._taken(self.data, chosen), self._taken(self.label, chosen), self.getpad())
        if self.cursor < 0:
            self._left = self._left[:0]
        return batch

    def _chosen(self) -> Array:
        """The samples of the current batch; fewer than a batch at the end of a pass that is not padded."""
        end = self.cursor + self.batch_size
        if self.cursor < 0:
            return np.concatenate([self._left, self._order[:end]])
        if end > self.num_data and self.last_batch_handle == "pad":
            return np.concatenate([self._order[self.cursor :], np.resize(self._order, end - self.num_data)])
        return self._order[self.cursor : end]

    def _taken(self, arrays: list[tuple[str, NDArray]], chosen: Array) -> list[NDArray]:
        return [NDArray(x.storage.array.take(chosen, self._axis), x.context) for _, x in arrays]

    def getdata(self) -> list[NDArray]:
        return self._taken(self.data, self._chosen())

    def getlabel(self) -> list[NDArray]:
        return self._taken(self.label, self._chosen())

    def getpad(self) -> int:
        if self.last_batch_handle == "pad":
            return max(0, self.cursor + self.batch_size - self.num_data)
        return max(0, -self.cursor)


def _named(given: Any, name: str) -> list[tuple[str, NDArray]]:
    """Arrays by name, in the order of the names."""
    if given is None:
        return []
    if isinstance(given, (np.ndarray, NDArray)):
        given = [given]
    if isinstance(given, (list, tuple)):
        names = [name] if len(given) == 1 else [f"_{i}_{name}" for i in range(len(given))]
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, dict):
        raise TypeError(f"NDArrayIter takes an array, a list or a dict of them, not a {type(given).__name__}")
    found = []
    for key, value in sorted(given.items()):
        try:
            found.append((key, value if isinstance(value, NDArray) else nd.array(value)))
        except (TypeError, ValueError) as error:
            raise TypeError(f"NDArrayIter: {key} is a {type(value).__name__}, which is no array") from error
    return found
