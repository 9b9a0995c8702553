"""Batches out of local files: MNIST and CSV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import FormatError
from gluongraph.gluon.data.vision.datasets import read_idx
from gluongraph.host.file_names import check_name
from gluongraph.io.samples import Samples, part
from gluongraph.storage import Array


class MNISTIter(Samples):
    """Batches of MNIST: float32 images of 0 to 255/256, (N, 1, 28, 28) or with `flat` (N, 784), and labels (N,).

    Samples that do not fill a batch are left out. The order is drawn once, from `seed`. What else MNISTIter of MXNet
    takes (silent, prefetch_buffer, ...) changes nothing.

    Raises:
        ArgumentError: the name of the file is empty.

    >>> import pathlib, struct, tempfile
    >>> from gluongraph import io
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images, labels = pathlib.Path(folder, "images"), pathlib.Path(folder, "labels")
    ...     _ = images.write_bytes(struct.pack(">4I", 2051, 2, 28, 28) + bytes(2 * 28 * 28))
    ...     _ = labels.write_bytes(struct.pack(">2I", 2049, 2) + bytes([3, 7]))
    ...     batch = next(io.MNISTIter(str(images), str(labels), batch_size=2, shuffle=False))
    >>> batch.data[0].shape, batch.label[0].asnumpy().tolist()
    ((2, 1, 28, 28), [3.0, 7.0])
    """

    def __init__(
        self,
        image: str = "./train-images-idx3-ubyte",
        label: str = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        num_parts: int = 1,
        part_index: int = 0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **unused: Any,
    ):
        check_name("MNISTIter", image, "mx.io.MNISTIter('train-images-idx3-ubyte', 'train-labels-idx1-ubyte')")
        check_name("MNISTIter", label, "mx.io.MNISTIter('train-images-idx3-ubyte', 'train-labels-idx1-ubyte')")
        images, labels = read_idx(image), read_idx(label)
        if images.ndim != 3 or len(images) != len(labels):
            raise FormatError(f"{image} of shape {images.shape} and {label} of {labels.shape} do not belong together")
        own = part(len(images), num_parts, part_index)
        images, self._labels = images[own], labels[own]
        self._images = images.reshape(len(images), -1) if flat else images[:, None]
        whole = len(images) // batch_size * batch_size
        shapes = self._images.shape[1:], ()
        super().__init__(whole, batch_size, False, shapes, "float32", (data_name, label_name))
        if shuffle:
            self._order = np.random.RandomState(seed).permutation(len(images))

    def _read(self, chosen: Array) -> tuple[Array, Array]:
        return self._images[chosen] * np.float32(1 / 256), self._labels[chosen]


class CSVIter(Samples):
    """Batches of the rows of a text of numbers with commas, in the shape `data_shape`; labels are 0 without a file.

    A folder stands for all files in it. `dtype` is float32, int32 or int64.

    Raises:
        ArgumentError: the name of the file is empty.
        ValueError: rows and shapes, or data and labels, do not fit.

    >>> import pathlib, tempfile
    >>> from gluongraph import io
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "data.csv")
    ...     _ = file.write_text("1,2\\n3,4\\n")
    ...     batch = next(io.CSVIter(str(file), (2,), batch_size=2))
    >>> batch.data[0].asnumpy().tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """

    def __init__(
        self,
        data_csv: str,
        data_shape: Sequence[int],
        label_csv: str | None = None,
        label_shape: Sequence[int] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **unused: Any,
    ):
        check_name("CSVIter", data_csv, "mx.io.CSVIter('data.csv', (3,), 'labels.csv')")
        check_name("CSVIter", label_csv, "mx.io.CSVIter('data.csv', (3,), 'labels.csv')")
        dtype = dtype or "float32"
        self._data = _table(data_csv, data_shape, dtype)
        given = label_csv not in (None, "NULL")
        labels = _table(str(label_csv), label_shape, dtype) if given else np.zeros((len(self._data), 1))
        if len(labels) < len(self._data):
            raise ValueError(f"{label_csv} has {len(labels)} rows, and {data_csv} has {len(self._data)}")
        self._labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
        shapes = self._data.shape[1:], self._labels.shape[1:]
        super().__init__(len(self._data), batch_size, round_batch, shapes, dtype, (data_name, label_name))

    def _read(self, chosen: Array) -> tuple[Array, Array]:
        return self._data[chosen], self._labels[chosen]


def _table(path: str, shape: Sequence[int], dtype: Any) -> Array:
    files = [os.path.join(path, name) for name in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
    rows = np.concatenate([np.loadtxt(file, numpy_dtype(dtype_name(dtype)), delimiter=",", ndmin=2) for file in files])
    if rows.shape[1] != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} has rows of {rows.shape[1]} numbers, and they are to have the shape {tuple(shape)}")
    return rows.reshape(-1, *shape)
