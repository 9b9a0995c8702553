"""Batches of images in RecordIO files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import image, recordio
from gluongraph.host.file_names import check_name
from gluongraph.io.samples import Samples, part
from gluongraph.storage import Array


class ImageRecordIter(Samples):
    """Batches (N, C, H, W) of the images in a RecordIO file, cropped to `data_shape`, and their labels.

    `resize` first brings the shorter side to that length. `rand_crop` and `rand_mirror` draw from Python's `random`,
    the order with `shuffle`, anew for each pass, from `seed`. Then (pixel - mean) / std * scale, channel by channel.
    `label_width` labels make an axis of their own. What only tells MXNet how to be quick (preprocess_threads,
    prefetch_buffer, ...) changes nothing.

    Raises:
        ArgumentError: the name of the file is empty.
        NotImplementedError: any other augmentation; gluon.data.vision.transforms has them.

    >>> import tempfile
    >>> import numpy as np
    >>> from gluongraph import io, recordio
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = recordio.MXRecordIO(folder + "/images.rec", "w")
    ...     file.write(recordio.pack_img((0, 1.0, 0, 0), np.zeros((8, 8, 3), np.uint8), 1, ".png"))
    ...     file.close()
    ...     batch = next(io.ImageRecordIter(folder + "/images.rec", (3, 4, 4), batch_size=1))
    >>> batch.data[0].shape, batch.label[0].asnumpy().tolist()
    ((1, 3, 4, 4), [1.0])
    """

    _UNUSED = ("preprocess_threads", "prefetch_buffer", "verbose", "ctx", "path_imgidx", "device_id", "seed_aug")

    def __init__(
        self,
        path_imgrec: str,
        data_shape: Sequence[int],
        batch_size: int,
        label_width: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        resize: int = -1,
        rand_crop: bool = False,
        rand_mirror: bool = False,
        mirror: bool = False,
        mean_r: float = 0,
        mean_g: float = 0,
        mean_b: float = 0,
        std_r: float = 1,
        std_g: float = 1,
        std_b: float = 1,
        scale: float = 1,
        round_batch: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **others: Any,
    ):
        if refused := [name for name in others if name not in self._UNUSED]:
            raise NotImplementedError(
                f"ImageRecordIter does not know {', '.join(refused)}; a gluon DataLoader over an ImageRecordDataset, "
                "with gluon.data.vision.transforms, can do more"
            )
        check_name("ImageRecordIter", path_imgrec, "mx.io.ImageRecordIter('images.rec', (3, 224, 224), 32)")
        self._records = recordio.MXRecordIO(path_imgrec, "r")
        places = self._records.positions()
        self._places = places[part(len(places), num_parts, part_index)]
        self._shape, self._resize, self._label_width = tuple(data_shape), resize, label_width
        self._crop = image.random_crop if rand_crop else image.center_crop
        self._mirror, self._rand_mirror = mirror, rand_mirror
        self._mean = np.array((mean_r, mean_g, mean_b)[: self._shape[0]], np.float32)
        self._factor = np.float32(scale) / np.array((std_r, std_g, std_b)[: self._shape[0]], np.float32)
        self._generator = np.random.RandomState(seed) if shuffle else None
        labels = () if label_width == 1 else (label_width,)
        names = data_name, label_name
        super().__init__(len(self._places), batch_size, round_batch, (self._shape, labels), dtype or "float32", names)
        self._shuffle()

    def reset(self) -> None:
        super().reset()
        self._shuffle()

    def _shuffle(self) -> None:
        if self._generator is not None:
            self._generator.shuffle(self._order)

    def _read(self, chosen: Array) -> tuple[Array, Array]:
        samples = [self._sample(self._places[i]) for i in chosen]
        return np.stack([pixels for pixels, _ in samples]), np.stack([label for _, label in samples])

    def _sample(self, place: int) -> tuple[Array, Any]:
        header, data = recordio.unpack(self._records.read_at(place) or b"")
        picture = image.imdecode(data, flag=int(self._shape[0] == 3))
        if self._resize > 0:
            picture = image.resize_short(picture, self._resize)
        pixels = self._crop(picture, (self._shape[2], self._shape[1]))[0].asnumpy()
        if self._mirror or (self._rand_mirror and random.random() < 0.5):
            pixels = pixels[:, ::-1]
        values = (pixels.astype(np.float32) - self._mean) * self._factor
        label = header.label if self._label_width == 1 else np.ravel(header.label)[: self._label_width]
        return values.transpose(2, 0, 1), label
