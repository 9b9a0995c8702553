"""`mx.image.ImageIter`: batches of augmented images, from files in a list or from a RecordIO file."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gluongraph import image, nd, recordio
from gluongraph.errors import with_user_location
from gluongraph.io.base import DataBatch, DataDesc, DataIter
from gluongraph.io.samples import part
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array

LABELS = ("int32", "float32", "int64", "float64")
HANDLES = ("pad", "discard", "roll_over")


class ImageIter(DataIter):
    """Batches (N, C, H, W) of images and their labels, each image through the augmenters of `aug_list`.

    Images come from `path_imgrec`, a RecordIO file, or from files below `path_root` that a list names: `imglist`, of
    [label, path] with a number, a list of numbers, or several numbers as label; or `path_imglist`, a text of lines
    "key, tab, labels, tab, path". A list beside a RecordIO file gives its labels, by the keys of `path_imgidx`. Without
    `aug_list` the augmenters are those of `image.CreateAugmenter(data_shape, **kwargs)`.

    The order with `shuffle` is drawn from Python's `random`, anew for each pass. What is left in the end is filled up
    from the beginning ("pad", whose number is the batch's `pad`), left out ("discard"), or begins the next pass
    ("roll_over"). A subclass may override `next_sample`, `read_image`, `imdecode`, `check_valid_image`,
    `augmentation_transform` and `postprocess_data`.

    Raises:
        ValueError: no images are named, or `data_shape` is not (3, height, width); no such last_batch_handle, dtype
            or part.
        RuntimeError: while reading, an image that cannot be decoded.
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: Sequence[int],
        label_width: int = 1,
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Any] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ):
        super().__init__(batch_size)
        for name, value, known in (("dtype", dtype, LABELS), ("last_batch_handle", last_batch_handle, HANDLES)):
            if value not in known:
                raise ValueError(with_user_location(f"ImageIter: {name} is one of {', '.join(known)}, not {value!r}"))
        self.check_data_shape(data_shape)
        self.data_shape, self.label_width, self.shuffle = tuple(data_shape), label_width, shuffle
        self.path_root, self.last_batch_handle = path_root, last_batch_handle
        self.imgrec, self._places = _records(path_imgrec or None, path_imgidx or None)  # MXNet takes "" for none, too
        self.imglist = _listed(path_imglist or None, imglist, dtype)
        if self.imgrec is None and self.imglist is None:
            message = "ImageIter: no images are named"
            raise ValueError(
                with_user_location(message, help="give path_imgrec, path_imglist, or imglist with path_root")
            )
        keys = list(self._places if self.imgrec is not None else self.imglist or ())
        self.seq = keys[part(len(keys), num_parts, part_index)]
        self.num_image = len(self.seq)
        self.auglist = list(image.CreateAugmenter(self.data_shape, **kwargs) if aug_list is None else aug_list)
        labels = (batch_size,) if label_width == 1 else (batch_size, label_width)
        self.provide_data = [DataDesc(data_name, (batch_size, *self.data_shape))]
        self.provide_label = [DataDesc(label_name, labels, dtype)]
        self.cur, self._ended = 0, False
        self._rolled: list[tuple[Array, Array]] = []  # what "roll_over" keeps for the next pass
        self.reset()

    # -- passes

    def reset(self) -> None:
        """Begin the next pass, with what was rolled over."""
        if self.shuffle:
            random.shuffle(self.seq)
        self.cur, self._ended = 0, False

    def hard_reset(self) -> None:
        """Begin the next pass without what was rolled over."""
        self._rolled = []
        self.reset()

    def next(self) -> DataBatch:
        """The next batch. Raises StopIteration at the end of the pass."""
        if self._ended:
            raise StopIteration
        samples, self._rolled = self._rolled, []
        samples += self._samples(self.batch_size - len(samples))
        missing = self.batch_size - len(samples)
        if missing:
            self._ended = True
            if self.last_batch_handle == "roll_over":
                self._rolled = samples
            if not samples or self.last_batch_handle != "pad":
                raise StopIteration
        while len(samples) < self.batch_size:
            self.cur = 0
            samples += self._samples(self.batch_size - len(samples))
        return self._batch(samples, missing)

    def _samples(self, count: int) -> list[tuple[Array, Array]]:
        """At most so many images as arrays (C, H, W), with their labels."""
        found: list[tuple[Array, Array]] = []
        while len(found) < count:
            try:
                label, encoded = self.next_sample()
            except StopIteration:
                break
            data = self.imdecode(encoded)
            try:
                self.check_valid_image(data)
            except RuntimeError:
                continue  # as MXNet does with images that a subclass finds wanting
            data = self.postprocess_data(self.augmentation_transform(data))
            values = label.asnumpy() if isinstance(label, NDArray) else label
            found.append((data.asnumpy(), np.ravel(values)[: self.label_width]))
        return found

    def _batch(self, samples: list[tuple[Array, Array]], pad: int) -> DataBatch:
        described = self.provide_label[0]
        labels = np.stack([label for _, label in samples]).reshape(described.shape)
        data = nd.array(np.stack([values for values, _ in samples]), dtype="float32")
        return DataBatch([data], [nd.array(labels, dtype=described.dtype)], pad=pad)

    # -- what a subclass may do in its own way

    def next_sample(self) -> tuple[Any, bytes]:
        """The label and the encoded bytes of the next image. Raises StopIteration at the end of the pass."""
        if self.cur >= self.num_image:
            raise StopIteration
        key, self.cur = self.seq[self.cur], self.cur + 1
        if self.imgrec is None:
            assert self.imglist is not None
            label, path = self.imglist[key]
            return label, self.read_image(path)
        header, encoded = recordio.unpack(self.imgrec.read_at(self._places[key]) or b"")
        return (header.label if self.imglist is None else self.imglist[key][0]), encoded

    def read_image(self, fname: str) -> bytes:
        """The bytes of a file below `path_root`."""
        with open(os.path.join(self.path_root or "", fname), "rb") as file:
            return file.read()

    def imdecode(self, s: bytes) -> NDArray:
        """The image (H, W, C) of encoded bytes. Raises RuntimeError, with its name, if they are none."""
        try:
            return image.imdecode(s)
        except Exception as error:
            key = self.seq[self.cur - 1]
            name = repr(key) if self.imgrec is not None or self.imglist is None else self.imglist[key][1]
            raise RuntimeError(with_user_location(f"ImageIter: the image {name} cannot be decoded: {error}")) from error

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Raises ValueError: batches are not of such images."""
        if len(data_shape) != 3 or data_shape[0] != 3:
            raise ValueError(
                with_user_location(f"ImageIter: data_shape is (3, height, width), not {tuple(data_shape)}")
            )

    def check_valid_image(self, data: NDArray) -> None:
        """Raises RuntimeError for an image that is to be left out: one without pixels."""
        if data.ndim < 2:
            raise RuntimeError(f"an image has two axes and its channels; this has the shape {data.shape}")

    def augmentation_transform(self, data: NDArray) -> NDArray:
        """The image through all augmenters."""
        for augment in self.auglist:
            data = augment(data)
        return data

    def postprocess_data(self, datum: NDArray) -> NDArray:
        """The image as it stands in the batch: (C, H, W)."""
        return nd.transpose(datum, axes=(2, 0, 1))


def _records(path: str | None, path_index: str | None) -> tuple[recordio.MXRecordIO | None, dict[Any, int]]:
    """The RecordIO file, and where each of its records begins, by key."""
    if path is None:
        return None, {}
    if path_index is not None:
        indexed = recordio.MXIndexedRecordIO(path_index, path, "r")
        return indexed, {key: indexed.idx[key] for key in indexed.keys}
    records = recordio.MXRecordIO(path, "r")
    return records, dict(enumerate(records.positions()))


def _listed(path: str | None, given: list[Any] | None, dtype: str) -> dict[Any, tuple[Array, str]] | None:
    """Key -> label and path, of a file or of a list."""
    if path is None and given is None:
        return None
    lines: Iterator[tuple[Any, Any, str]]
    if path is not None:
        with open(path, encoding="utf-8") as file:
            parts = [line.rstrip("\r\n").split("\t") for line in file if line.strip()]
        lines = ((int(key), labels, name) for key, *labels, name in parts)
    else:
        lines = ((str(i), one[0] if len(one) == 2 else one[:-1], one[-1]) for i, one in enumerate(given or (), 1))
    return {key: (np.array(label, np.float64).reshape(-1).astype(dtype), name) for key, label, name in lines}
