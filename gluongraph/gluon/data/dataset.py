"""Datasets: anything with `len` and `[i]`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gluongraph import nd, recordio
from gluongraph.errors import pluralize, with_user_location
from gluongraph.gluon.data.sampler import FilterSampler, Sampler, SequentialSampler
from gluongraph.host.file_names import check_name
from gluongraph.ndarray import NDArray


class Dataset:
    """Base class; a subclass says `__getitem__` and `__len__`.

    >>> from gluongraph.gluon.data import Dataset
    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, idx):
    ...         return idx * idx
    >>> list(Squares())
    [0, 1, 4, 9]
    """

    def __getitem__(self, idx: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say __len__")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """Each sample put through fn(*sample); at each access if `lazy`, else now.

        >>> from gluongraph.gluon.data import SimpleDataset
        >>> list(SimpleDataset([1, 2]).transform(lambda x: x * 10))
        [10, 20]
        """
        transformed = _Transformed(self, fn)
        return transformed if lazy else SimpleDataset(list(transformed))

    def transform_first(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """Only the first element of each sample put through fn.

        >>> from gluongraph.gluon.data import SimpleDataset
        >>> list(SimpleDataset([(1, "a"), (2, "b")]).transform_first(lambda x: x * 10))
        [(10, 'a'), (20, 'b')]
        """
        return self.transform(_First(fn), lazy)

    def filter(self, fn: Callable[..., bool]) -> Dataset:
        """The samples of which fn(sample) is true now; they are read again when they are asked for.

        >>> from gluongraph.gluon.data import SimpleDataset
        >>> list(SimpleDataset([1, 2, 3, 4]).filter(lambda x: x % 2 == 0))
        [2, 4]
        """
        return _Picked(self, FilterSampler(fn, self))

    def take(self, count: int | None) -> Dataset:
        """The first `count` samples, all with None.

        >>> from gluongraph.gluon.data import SimpleDataset
        >>> list(SimpleDataset([1, 2, 3, 4]).take(3))
        [1, 2, 3]
        """
        return _Picked(self, SequentialSampler(len(self) if count is None else min(count, len(self))))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """The `index`-th of `num_shards` consecutive parts; the first parts are one longer where it does not divide.

        >>> from gluongraph.gluon.data import SimpleDataset
        >>> data = SimpleDataset([1, 2, 3, 4, 5])
        >>> list(data.shard(2, 0)), list(data.shard(2, 1))
        ([1, 2, 3], [4, 5])

        Raises:
            AssertionError: there is no such part.
        """
        if not 0 <= index < num_shards:
            raise AssertionError(f"shard {index} of {num_shards} does not exist")
        size, rest = divmod(len(self), num_shards)
        return _Picked(self, SequentialSampler(size + (index < rest), size * index + min(index, rest)))

    def sample(self, sampler: Sampler) -> Dataset:
        """The samples that one pass of a sampler picks, in its order.

        >>> from gluongraph.gluon.data import IntervalSampler, SimpleDataset
        >>> list(SimpleDataset(["a", "b", "c", "d"]).sample(IntervalSampler(4, 2)))
        ['a', 'c', 'b', 'd']

        Raises:
            TypeError: it is no Sampler.
        """
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sample takes a gluon.data.Sampler, not a {type(sampler).__name__}")
        return _Picked(self, sampler)


class SimpleDataset(Dataset):
    """A list, or anything else with `len` and `[i]`, as a dataset.

    >>> from gluongraph.gluon.data import SimpleDataset
    >>> data = SimpleDataset(["a", "b"])
    >>> len(data), data[1]
    (2, 'b')
    """

    def __init__(self, data: Any):
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[idx]


class ArrayDataset(Dataset):
    """Several arrays (or datasets) of equal length side by side: sample i is (a[i], b[i], ...), a[i] of a single one.

    >>> import numpy as np
    >>> from gluongraph.gluon.data import ArrayDataset
    >>> data = ArrayDataset(np.arange(3), np.arange(3) * 2)
    >>> [int(x) for x in data[2]]
    [2, 4]

    Raises:
        AssertionError: no arrays, or arrays of different lengths.
    """

    def __init__(self, *args: Any):
        if not args:
            raise AssertionError(with_user_location("ArrayDataset needs at least one array"))
        for number, array in enumerate(args):
            if len(array) != len(args[0]):
                samples = pluralize(len(array), "sample")
                raise AssertionError(
                    with_user_location(f"ArrayDataset: array {number} has {samples}, the first has {len(args[0])}")
                )
        # Labels become numpy at once, as in Gluon: a sample then is a number, not an array of no axes.
        self._data = [a.asnumpy() if isinstance(a, NDArray) and a.ndim == 1 else a for a in args]

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, idx: Any) -> Any:
        if len(self._data) == 1:
            return self._data[0][idx]
        return tuple(a[idx] for a in self._data)

    def batch(self, indices: list[int]) -> Any:
        """What `default_batchify_fn` makes of these samples, by one selection per array; None where that is not so.

        >>> import numpy as np
        >>> from gluongraph import nd
        >>> from gluongraph.gluon.data import ArrayDataset
        >>> data, label = ArrayDataset(nd.array([[1, 2], [3, 4]]), np.array([5, 6])).batch([1, 0])
        >>> data.tolist(), label.tolist()
        ([[3.0, 4.0], [1.0, 2.0]], [6, 5])
        """
        if not all(isinstance(a, (np.ndarray, NDArray)) for a in self._data):
            return None
        chosen = [(a.storage.array if isinstance(a, NDArray) else a)[indices] for a in self._data]
        made = [nd.array(a, dtype=a.dtype) for a in chosen]
        return made if len(made) > 1 else made[0]


class _Transformed(Dataset):
    def __init__(self, data: Dataset, fn: Callable[..., Any]):
        self._data, self._fn = data, fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        item = self._data[idx]
        return self._fn(*item) if isinstance(item, tuple) else self._fn(item)


class _First:
    """fn on the first of several arguments; a class and not a closure, so that it can be pickled."""

    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn

    def __call__(self, x: Any, *rest: Any) -> Any:
        return (self._fn(x), *rest) if rest else self._fn(x)


class _Picked(Dataset):
    def __init__(self, data: Dataset, sampler: Sampler):
        self._data, self._indices = data, list(sampler)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, idx: int) -> Any:
        return self._data[self._indices[idx]]


class RecordFileDataset(Dataset):
    """The records of a RecordIO file, as bytes; its index lies beside it: images.rec, images.idx.

    >>> import tempfile
    >>> from gluongraph import recordio
    >>> from gluongraph.gluon.data import RecordFileDataset
    >>> with tempfile.TemporaryDirectory() as root:
    ...     writer = recordio.MXIndexedRecordIO(f"{root}/texts.idx", f"{root}/texts.rec", "w")
    ...     writer.write_idx(0, b"first")
    ...     writer.write_idx(1, b"second")
    ...     writer.close()
    ...     print(list(RecordFileDataset(f"{root}/texts.rec")))
    [b'first', b'second']

    Raises:
        ArgumentError: the name of the file is empty.
    """

    def __init__(self, filename: str):
        check_name(type(self).__name__, filename, f"{type(self).__name__}('images.rec')")
        self.filename, self.idx_file = filename, os.path.splitext(filename)[0] + ".idx"
        self._record = recordio.MXIndexedRecordIO(self.idx_file, filename, "r")

    def __len__(self) -> int:
        return len(self._record.keys)

    def __getitem__(self, idx: int) -> Any:
        return self._record.read_idx(self._record.keys[idx])
