"""What all iterators share: a batch, the description of an array in it, and the protocol."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gluongraph.ndarray import NDArray


class DataDesc(namedtuple("DataDesc", ["name", "shape"])):
    """Name and shape of an array in each batch, with its dtype and layout.

    >>> DataDesc("data", (2, 3))
    DataDesc[data,(2, 3),<class 'numpy.float32'>,NCHW]
    """

    dtype: Any
    layout: str

    def __new__(cls, name: str, shape: Sequence[int], dtype: Any = np.float32, layout: str = "NCHW") -> DataDesc:
        made = super().__new__(cls, name, shape)
        made.dtype, made.layout = dtype, layout
        return made

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """The axis along which samples lie: where the layout says N; -1 if it does not, 0 without a layout."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(shapes: Sequence[Any], types: Sequence[Any] | None) -> list[DataDesc]:
        """Descriptions from pairs (name, shape) and, if there are any, (name, dtype)."""
        named = dict(types or ())
        return [DataDesc(name, shape, named.get(name, np.float32)) for name, shape in shapes]


class DataBatch:
    """Lists of data and label arrays. The last `pad` samples are there only to fill the batch up.

    Raises:
        AssertionError: data or label is no list.

    >>> from gluongraph import io, nd
    >>> print(io.DataBatch([nd.ones((2, 3))], [nd.ones((2,))]))
    DataBatch: data shapes: [(2, 3)] label shapes: [(2,)]
    """

    def __init__(
        self,
        data: Sequence[NDArray] | None,
        label: Sequence[NDArray] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Sequence[DataDesc] | None = None,
        provide_label: Sequence[DataDesc] | None = None,
    ):
        for name, given in (("data", data), ("label", label)):
            if given is not None and not isinstance(given, (list, tuple)):
                raise AssertionError(f"DataBatch: {name} is a list of arrays, not a {type(given).__name__}")
        self.data, self.label, self.pad, self.index, self.bucket_key = data, label, pad, index, bucket_key
        self.provide_data, self.provide_label = provide_data, provide_label

    def __str__(self) -> str:
        data, label = ([x.shape for x in given or ()] or None for given in (self.data, self.label))
        return f"{type(self).__name__}: data shapes: {data} label shapes: {label}"


class DataIter:
    """Base class. A subclass says `next`, or `iter_next`, `getdata`, `getlabel` and `getpad`; and `reset`.

    >>> from gluongraph import io, nd
    >>> class Ones(io.DataIter):
    ...     def __init__(self):
    ...         super().__init__(batch_size=2)
    ...         self.left = 3
    ...
    ...     def next(self):
    ...         if not self.left:
    ...             raise StopIteration
    ...         self.left -= 1
    ...         return io.DataBatch([nd.ones((2, 3))])
    >>> len(list(Ones()))
    3
    """

    provide_data: Any
    provide_label: Any

    def __init__(self, batch_size: int = 0):
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def reset(self) -> None:
        """Begin the next pass."""

    def next(self) -> DataBatch:
        """The next batch. Raises StopIteration at the end of the pass."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def iter_next(self) -> bool:
        """Go to the next batch; False at the end of the pass."""
        raise NotImplementedError(f"{type(self).__name__} says neither next nor iter_next")

    def getdata(self) -> Any:
        """The data of the current batch."""
        raise NotImplementedError(f"{type(self).__name__} does not say getdata")

    def getlabel(self) -> Any:
        """The labels of the current batch."""
        raise NotImplementedError(f"{type(self).__name__} does not say getlabel")

    def getindex(self) -> Any:
        """The numbers of the samples in the current batch, where they are known."""
        return None

    def getpad(self) -> int | None:
        """How many samples only fill the current batch up."""
        return None
