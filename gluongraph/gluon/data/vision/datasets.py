"""Data sets of images: MNIST, Fashion-MNIST and CIFAR from local files, and one's own images.

The files of the known sets are looked for in `root` under the names that they are distributed with, packed or
unpacked; only what is missing is downloaded.
"""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from gluongraph import image, nd, recordio
from gluongraph.errors import FormatError, warn, with_user_location
from gluongraph.gluon.data.dataset import Dataset, RecordFileDataset
from gluongraph.host.download import data_dir, download, repository_url
from gluongraph.host.file_names import check_name
from gluongraph.storage import Array

Transform = Callable[..., Any] | None
Source = tuple[str, str]  # a file's name, and the SHA-1 of the one that MXNet's server has

SUFFIXES = (".jpg", ".jpeg", ".png")


class _DownloadedDataset(Dataset):
    """Pictures and labels that are read whole from files in a folder, by `_get_data`."""

    _namespace = ""

    def __init__(self, root: str | None, transform: Transform):
        self._root = os.path.expanduser(root or os.path.join(data_dir(), "datasets", self._namespace))
        self._transform = transform
        self._data: Any = None
        self._label: Any = None
        self._get_data()

    def _get_data(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not say _get_data")

    def __len__(self) -> int:
        return len(self._label)

    def __getitem__(self, idx: Any) -> Any:
        if self._transform is not None:
            return self._transform(self._data[idx], self._label[idx])
        return self._data[idx], self._label[idx]

    def _path(self, names: Sequence[str], source: Source) -> str:
        """The first of these files that is in the root; else the source, downloaded.

        Raises:
            FileNotFoundError: none is there, and the download failed.
        """
        for name in names:
            if os.path.exists(path := os.path.join(self._root, name)):
                return path
        try:
            url = repository_url(f"gluon/dataset/{self._namespace}", source[0])
            return download(url, os.path.join(self._root, source[0]), sha1_hash=source[1], retries=1)
        except OSError as error:
            raise FileNotFoundError(
                f"{type(self).__name__} needs {' or '.join(names)} in {self._root}: put the file there, or name the "
                f"folder that has it, {type(self).__name__}(root=...). {error}"
            ) from error


def read_idx(path: str) -> Array:
    """The array of bytes in an IDX file (MNIST's format), gzipped or not.

    >>> import pathlib
    >>> import tempfile
    >>> from gluongraph.gluon.data.vision.datasets import read_idx
    >>> with tempfile.TemporaryDirectory() as root:
    ...     file = pathlib.Path(root, "labels")
    ...     size = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))  # bytes, one axis, of extent 3
    ...     print(read_idx(str(file)).tolist())
    [5, 6, 7]

    Raises:
        FormatError: the file is something else, or not whole.
    """
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        content = file.read()
    rank = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", content[4:start]) if rank and len(content) >= start else None
    if shape is None or len(content) - start != np.prod(shape, dtype=np.int64):
        raise FormatError(f"{path} is no whole IDX file of bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


class MNIST(_DownloadedDataset):
    """Handwritten digits (LeCun et al., 1998): uint8 images (28, 28, 1), labels int32; 60,000, or 10,000 for testing.

    Files in `root` (default: datasets/mnist in $MXNET_HOME or ~/.mxnet): train-images-idx3-ubyte.gz and
    train-labels-idx1-ubyte.gz, for testing t10k-... instead; unpacked ones will do.

    >>> import pathlib
    >>> import tempfile
    >>> from gluongraph.gluon.data.vision import MNIST
    >>> with tempfile.TemporaryDirectory() as root:  # one black image, of class 7
    ...     heads = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]), bytes([0, 0, 8, 1, 0, 0, 0, 1])
    ...     size = pathlib.Path(root, "train-images-idx3-ubyte").write_bytes(heads[0] + bytes(28 * 28))
    ...     size = pathlib.Path(root, "train-labels-idx1-ubyte").write_bytes(heads[1] + bytes([7]))
    ...     data = MNIST(root)
    >>> len(data), data[0][0].shape, int(data[0][1])
    (1, (28, 28, 1), 7)

    Raises:
        FileNotFoundError: they are not there, and cannot be downloaded.
        FormatError: a file is damaged, or there are other numbers of images than of labels.
    """

    _namespace = "mnist"
    _sources: ClassVar[dict[bool, tuple[Source, Source]]] = {  # for training or not: images, labels
        True: (
            ("train-images-idx3-ubyte.gz", "6c95f4b05d2bf285e1bfb0e7960c31bd3b3f8a7d"),
            ("train-labels-idx1-ubyte.gz", "2a80914081dc54586dbdf242f9805a6b8d2a15fc"),
        ),
        False: (
            ("t10k-images-idx3-ubyte.gz", "c3a25af1f52dad7f726cce8cacb138654b760d48"),
            ("t10k-labels-idx1-ubyte.gz", "763e7fa3757d93b0cdec073cef058b2004252c17"),
        ),
    }

    def __init__(self, root: str | None = None, train: bool = True, transform: Transform = None):
        self._train = train
        super().__init__(root, transform)

    def _get_data(self) -> None:
        images, labels = (
            read_idx(self._path((source[0], source[0].removesuffix(".gz")), source))
            for source in self._sources[self._train]
        )
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise FormatError(f"{self._root}: images of shape {images.shape} do not fit labels of {labels.shape}")
        self._data = nd.array(images[..., None], dtype=np.uint8)
        self._label = labels.astype(np.int32)


class FashionMNIST(MNIST):
    """Articles of clothing (Xiao et al., 2017) in the format, under the names and in the numbers of MNIST.

    >>> import pathlib
    >>> import tempfile
    >>> from gluongraph.gluon.data.vision import FashionMNIST
    >>> with tempfile.TemporaryDirectory() as root:  # one black image, of class 9, for testing
    ...     heads = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]), bytes([0, 0, 8, 1, 0, 0, 0, 1])
    ...     size = pathlib.Path(root, "t10k-images-idx3-ubyte").write_bytes(heads[0] + bytes(28 * 28))
    ...     size = pathlib.Path(root, "t10k-labels-idx1-ubyte").write_bytes(heads[1] + bytes([9]))
    ...     data = FashionMNIST(root, train=False)
    >>> len(data), data[0][0].shape, int(data[0][1])
    (1, (28, 28, 1), 9)
    """

    _namespace = "fashion-mnist"
    _sources: ClassVar = {
        True: (
            ("train-images-idx3-ubyte.gz", "0cf37b0d40ed5169c6b3aba31069a9770ac9043d"),
            ("train-labels-idx1-ubyte.gz", "236021d52f1e40852b06a4c3008d8de8aef1e40b"),
        ),
        False: (
            ("t10k-images-idx3-ubyte.gz", "626ed6a7c06dd17c0eec72fa3be1740f146a2863"),
            ("t10k-labels-idx1-ubyte.gz", "17f9ab60e7257a1620f4ad76bbbaf857c3920701"),
        ),
    }


class CIFAR10(_DownloadedDataset):
    """Photographs of 10 kinds of things (Krizhevsky, 2009): uint8 images (32, 32, 3), labels int32.

    Files in `root` (default: datasets/cifar10 in $MXNET_HOME or ~/.mxnet): data_batch_1.bin to data_batch_5.bin, for
    testing test_batch.bin; or the archive cifar-10-binary.tar.gz that holds them, or the folder that it unpacks to.

    >>> import pathlib
    >>> import tempfile
    >>> from gluongraph.gluon.data.vision import CIFAR10
    >>> with tempfile.TemporaryDirectory() as root:  # one black image, of class 7
    ...     size = pathlib.Path(root, "test_batch.bin").write_bytes(bytes([7]) + bytes(3 * 32 * 32))
    ...     data = CIFAR10(root, train=False)
    >>> len(data), data[0][0].shape, int(data[0][1])
    (1, (32, 32, 3), 7)

    Raises:
        FileNotFoundError: they are not there, and cannot be downloaded.
        FormatError: a file is damaged.
    """

    _namespace = "cifar10"
    _archive: Source = ("cifar-10-binary.tar.gz", "fab780a1e191a7eda0f345501ccd62d20f7ed891")
    _folder = "cifar-10-batches-bin"
    _files: ClassVar[dict[bool, tuple[str, ...]]] = {
        True: tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        False: ("test_batch.bin",),
    }
    _labels, _chosen = 1, 0  # how many bytes of labels stand before an image, and which of them counts

    def __init__(self, root: str | None = None, train: bool = True, transform: Transform = None):
        self._train = train
        super().__init__(root, transform)

    def _get_data(self) -> None:
        rows = np.concatenate([self._rows(name, content) for name, content in self._contents().items()])
        pixels = rows[:, self._labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self._data, self._label = nd.array(pixels, dtype=np.uint8), rows[:, self._chosen].astype(np.int32)

    def _contents(self) -> dict[str, bytes]:
        """The content of each file, or of the same file in the archive."""
        found = {}
        for name in self._files[self._train]:
            path = self._path((name, os.path.join(self._folder, name), self._archive[0]), self._archive)
            if not path.endswith(name):
                return _members(path, self._files[self._train])
            with open(path, "rb") as file:
                found[name] = file.read()
        return found

    def _rows(self, name: str, content: bytes) -> Array:
        """The samples of a file: labels, then 1024 bytes each of red, green and blue."""
        size = self._labels + 3 * 32 * 32
        if not content or len(content) % size:
            raise FormatError(f"{self._root}: {name} has {len(content)} bytes, which is no multiple of {size}")
        return np.frombuffer(content, np.uint8).reshape(-1, size)


def _members(archive: str, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of files in an archive, whatever folder they are in there."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            if name in names and (file := tar.extractfile(member)) is not None:
                found[name] = file.read()
    if missing := [name for name in names if name not in found]:
        raise FormatError(f"{archive} has no {', '.join(missing)}")
    return {name: found[name] for name in names}


class CIFAR100(CIFAR10):
    """The same of 100 kinds in 20 groups; labels are groups, or with `fine_label` kinds.

    Files in `root` (default: datasets/cifar100 in $MXNET_HOME or ~/.mxnet): train.bin, for testing test.bin; or the
    archive cifar-100-binary.tar.gz that holds them, or the folder that it unpacks to.

    >>> import pathlib
    >>> import tempfile
    >>> from gluongraph.gluon.data.vision import CIFAR100
    >>> with tempfile.TemporaryDirectory() as root:  # one black image, of group 4 and kind 55
    ...     size = pathlib.Path(root, "test.bin").write_bytes(bytes([4, 55]) + bytes(3 * 32 * 32))
    ...     coarse, fine = CIFAR100(root, train=False), CIFAR100(root, fine_label=True, train=False)
    >>> coarse[0][0].shape, int(coarse[0][1]), int(fine[0][1])
    ((32, 32, 3), 4, 55)
    """

    _namespace = "cifar100"
    _archive = ("cifar-100-binary.tar.gz", "a0bb982c76b83111308126cc779a992fa506b90b")
    _folder = "cifar-100-binary"
    _files: ClassVar = {True: ("train.bin",), False: ("test.bin",)}
    _labels = 2

    def __init__(
        self, root: str | None = None, fine_label: bool = False, train: bool = True, transform: Transform = None
    ):
        self._chosen = int(fine_label)
        super().__init__(root, train, transform)


class ImageRecordDataset(RecordFileDataset):
    """Image and label of each record of a RecordIO file; gray with flag=0, else RGB.

    >>> import numpy as np
    >>> import tempfile
    >>> from gluongraph import recordio
    >>> from gluongraph.gluon.data.vision import ImageRecordDataset
    >>> with tempfile.TemporaryDirectory() as root:
    ...     writer = recordio.MXIndexedRecordIO(f"{root}/images.idx", f"{root}/images.rec", "w")
    ...     header = recordio.IRHeader(0, 3.0, 0, 0)
    ...     writer.write_idx(0, recordio.pack_img(header, np.zeros((4, 6, 3), np.uint8), 9, ".png"))
    ...     writer.close()
    ...     picture, label = ImageRecordDataset(f"{root}/images.rec")[0]
    >>> picture.shape, label
    ((4, 6, 3), 3.0)
    """

    def __init__(self, filename: str, flag: int = 1, transform: Transform = None):
        super().__init__(filename)
        self._flag, self._transform = flag, transform

    def __getitem__(self, idx: Any) -> Any:
        header, data = recordio.unpack(super().__getitem__(idx))
        picture = image.imdecode(data, self._flag)
        return (picture, header.label) if self._transform is None else self._transform(picture, header.label)


class ImageFolderDataset(Dataset):
    """Images in folders, one for each class: root/cat/1.jpg, root/dog/2.png; labels number the sorted folders.

    `synsets` are the classes' names, `items` all (file, label). Gray with flag=0, else RGB. What is neither such a
    folder nor such a file is left out, with a warning.

    >>> import pathlib
    >>> import tempfile
    >>> from gluongraph.gluon.data.vision import ImageFolderDataset
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("cat", "dog"):
    ...         pathlib.Path(root, name).mkdir()
    ...         pathlib.Path(root, name, "1.png").touch()
    ...     data = ImageFolderDataset(root)
    >>> data.synsets, [label for file, label in data.items]
    (['cat', 'dog'], [0, 1])

    Raises:
        ArgumentError: the name of the folder is empty.
    """

    def __init__(self, root: str, flag: int = 1, transform: Transform = None):
        check_name("ImageFolderDataset", root, "ImageFolderDataset('photos')", "folder")
        self._root, self._flag, self._transform = os.path.expanduser(root), flag, transform
        self.synsets: list[str] = []
        self.items: list[tuple[str, int]] = []
        for name in sorted(os.listdir(self._root)):
            folder = os.path.join(self._root, name)
            if not os.path.isdir(folder):
                warn(f"{folder} is left out: it is no folder of a class")
                continue
            self.items += [(file, len(self.synsets)) for file in _images(folder)]
            self.synsets.append(name)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, idx: Any) -> Any:
        file, label = self.items[idx]
        picture = image.imread(file, self._flag)
        return (picture, label) if self._transform is None else self._transform(picture, label)


def _images(folder: str) -> list[str]:
    found = []
    for name in sorted(os.listdir(folder)):
        if os.path.splitext(name)[1].lower() in SUFFIXES:
            found.append(os.path.join(folder, name))
        else:
            warn(f"{os.path.join(folder, name)} is left out: it is none of {SUFFIXES}")
    return found


class ImageListDataset(Dataset):
    """Images named in a list, with their labels as an array.

    `imglist` is a list of [label, file] or [label, label, ..., file], or the name of a text in `root` with lines
    "number, labels..., file" separated by tabs (as im2rec makes). Files are relative to `root`.

    >>> from gluongraph.gluon.data.vision import ImageListDataset
    >>> data = ImageListDataset("photos", [[0, "cat.png"], [1, "dog.png"]])
    >>> len(data), [labels.tolist() for file, labels in data.items]
    (2, [[0.0], [1.0]])

    Raises:
        ArgumentError: the name of the file is empty.
        ValueError: it is neither.
    """

    def __init__(self, root: str = ".", imglist: str | Sequence[Any] | None = None, flag: int = 1):
        check_name("ImageListDataset", imglist, "ImageListDataset('photos', 'photos.lst')")
        self._root, self._flag = os.path.expanduser(root), flag
        if isinstance(imglist, str):
            with open(os.path.join(self._root, imglist), encoding="utf-8") as file:
                rows = [line.rstrip("\n").split("\t")[1:] for line in file if line.strip()]
        elif isinstance(imglist, (list, tuple)):
            rows = [[*np.ravel(row[:-1]), row[-1]] for row in imglist]
        else:
            raise ValueError(
                with_user_location(f"imglist is a list or the name of a file, not {type(imglist).__name__}")
            )
        self.items = [(os.path.join(self._root, row[-1]), np.array(row[:-1], np.float32)) for row in rows]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, idx: Any) -> Any:
        file, labels = self.items[idx]
        return image.imread(file, self._flag), nd.array(labels)
