"""Data for scripts: MNIST and CIFAR-10 from local files, downloads, an iterator that repeats one batch."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import gluon, io
from gluongraph.gluon.data.vision.datasets import read_idx
from gluongraph.host.download import data_dir
from gluongraph.storage import Array

MNIST_FILES = {
    "train_data": "train-images-idx3-ubyte",
    "train_label": "train-labels-idx1-ubyte",
    "test_data": "t10k-images-idx3-ubyte",
    "test_label": "t10k-labels-idx1-ubyte",
}


def download(
    url: str, fname: str | None = None, dirname: str | None = None, overwrite: bool = False, retries: int = 5
) -> str:
    """Fetch a file into the folder `dirname`, unless it is there; gives its name."""
    name = os.path.join(dirname or "", fname or url.split("/")[-1])
    return gluon.utils.download(url, name, overwrite, retries=retries)


def _mnist_file(name: str) -> str:
    """Where a file of MNIST lies, packed or not: in data/, here, or where gluon.data.vision.MNIST looks."""
    folders = ["data", ".", os.path.join(data_dir(), "datasets", "mnist")]
    for folder in folders:
        for path in (os.path.join(folder, name), os.path.join(folder, name + ".gz")):
            if os.path.exists(path):
                return path
    raise FileNotFoundError(f"MNIST's {name} or {name}.gz is in none of the folders {', '.join(folders)}; put it there")


def get_mnist() -> dict[str, Array]:
    """MNIST from local files: images (N, 1, 28, 28) of 0 to 1 and labels, as train_data, train_label, test_data, ...

    Raises:
        FileNotFoundError: a file is in none of the folders that the message names.
    """
    arrays = {key: read_idx(_mnist_file(name)) for key, name in MNIST_FILES.items()}
    images = {key: x[:, None].astype(np.float32) / 255 for key, x in arrays.items() if key.endswith("data")}
    return images | {key: x.astype(np.int8) for key, x in arrays.items() if key.endswith("label")}


def get_mnist_ubyte() -> None:
    """Put the unpacked files of MNIST into the folder data/, from where `get_mnist` finds them."""
    for name in MNIST_FILES.values():
        target = os.path.join("data", name)
        if os.path.exists(target):
            continue
        found = _mnist_file(name)
        os.makedirs("data", exist_ok=True)
        with (gzip.open if found.endswith(".gz") else open)(found, "rb") as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file)


def get_mnist_iterator(
    batch_size: int, input_shape: Sequence[int], num_parts: int = 1, part_index: int = 0
) -> tuple[io.MNISTIter, io.MNISTIter]:
    """Iterators over MNIST for training, shuffled, and for validation; flat unless `input_shape` has three axes."""
    get_mnist_ubyte()
    files = {key: os.path.join("data", name) for key, name in MNIST_FILES.items()}
    how: Any = {"flat": len(input_shape) != 3, "num_parts": num_parts, "part_index": part_index}
    training = io.MNISTIter(files["train_data"], files["train_label"], batch_size, True, **how)
    return training, io.MNISTIter(files["test_data"], files["test_label"], batch_size, False, **how)


def get_cifar10() -> None:
    """Check that CIFAR-10 lies in data/cifar as RecordIO files.

    Raises:
        FileNotFoundError: it does not.
    """
    missing = [p for name in ("train", "test") if not os.path.exists(p := os.path.join("data", "cifar", f"{name}.rec"))]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)}: put CIFAR-10 there as RecordIO; gluon.data.vision.CIFAR10 reads .bin"
        )


class DummyIter(io.DataIter):
    """The first batch of another iterator, again and again."""

    def __init__(self, real_iter: io.DataIter):
        super().__init__(real_iter.batch_size)
        self.provide_data, self.provide_label = real_iter.provide_data, real_iter.provide_label
        self.the_batch = next(real_iter)

    def next(self) -> io.DataBatch:
        return self.the_batch
