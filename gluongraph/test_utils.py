"""What training scripts take from `mx.test_utils`: MNIST from local files, downloads, comparisons, random arrays."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import gluon, io, nd
from gluongraph.context import Context, current_context, num_gpus
from gluongraph.gluon.data.vision.datasets import read_idx
from gluongraph.gluon.download import data_dir
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array

MNIST_FILES = {
    "train_data": "train-images-idx3-ubyte",
    "train_label": "train-labels-idx1-ubyte",
    "test_data": "t10k-images-idx3-ubyte",
    "test_label": "t10k-labels-idx1-ubyte",
}

_CHECKS = "compare with numpy, or gradients with finite differences; graphs have no symbols to bind"
# Names that MXNet has and that are not here, with what to do instead.
REFUSED = {
    "check_consistency": "call the block on each device and compare with assert_almost_equal",
    "check_numeric_gradient": _CHECKS,
    "check_speed": "time the step; `step.profile` tells each kernel's share",
    "check_symbolic_backward": _CHECKS,
    "check_symbolic_forward": _CHECKS,
    "download_model": "build the model from gluon.model_zoo and load its parameters from a local file",
    "get_bz2_data": "download the file with gluon.utils.download and open it with bz2",
    "get_mnist_pkl": "get_mnist() reads the idx files",
    "get_zip_data": "download the file with gluon.utils.download and open it with zipfile",
    "rand_sparse_ndarray": "there are no sparse arrays; rand_ndarray makes dense ones",
    "set_default_context": "`with mx.cpu(1):` makes a context the current one",
    "simple_forward": _CHECKS,
}


def __getattr__(name: str) -> Any:
    if name in REFUSED:
        raise NotImplementedError(f"mx.test_utils.{name} does not exist in gluongraph; {REFUSED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- data


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


# -- devices and arrays


def list_gpus() -> range:
    """The numbers of the CUDA devices."""
    return range(num_gpus())


def default_context() -> Context:
    """The current context."""
    return current_context()


def rand_shape_nd(num_dim: int, dim: int = 10) -> tuple[int, ...]:
    """A random shape with extents of 1 to dim."""
    return tuple(random.randint(1, dim) for _ in range(num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10) -> tuple[int, int]:
    """A random shape with extents of at most these."""
    return random.randint(1, dim0), random.randint(1, dim1)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10) -> tuple[int, int, int]:
    """A random shape with extents of at most these."""
    return random.randint(1, dim0), random.randint(1, dim1), random.randint(1, dim2)


def random_arrays(*shapes: tuple[int, ...]) -> Any:
    """Normally distributed numpy arrays of float32 of these shapes; the array itself of a single shape."""
    arrays = [np.asarray(np.random.randn(*shape), np.float32) for shape in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def rand_ndarray(shape: tuple[int, ...], stype: str = "default", dtype: Any = None) -> NDArray:
    """An array of uniform random numbers in [-1, 1). Raises NotImplementedError for another storage than "default"."""
    if stype != "default":
        raise NotImplementedError(f'rand_ndarray: arrays of storage {stype!r} do not exist; "default" ones do')
    return nd.array(np.random.uniform(-1, 1, shape), dtype=dtype)


# -- comparisons

_TOLERANCES = {"float16": (1e-2, 1e-1), "bfloat16": (1e-2, 1e-1), "float32": (1e-4, 1e-3), "float64": (1e-5, 1e-20)}


def _numpy(x: Any) -> Array:
    return x.asnumpy() if isinstance(x, NDArray) else np.asarray(x)


def _tolerances(a: Array, b: Array, rtol: float | None, atol: float | None) -> tuple[float, float]:
    """Relative and absolute tolerance: what is given, else that of the coarser dtype."""
    found = [_TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (a, b)]
    relative, absolute = (max(each) for each in zip(*found, strict=True))
    return (relative if rtol is None else rtol), (absolute if atol is None else atol)


def same(a: Any, b: Any) -> bool:
    """Are the arrays equal, element by element?"""
    return np.array_equal(_numpy(a), _numpy(b))


def almost_equal(a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False) -> bool:
    """|a - b| <= atol + rtol * |b| everywhere? By default the tolerances are MXNet's for the coarser dtype."""
    x, y = _numpy(a), _numpy(b)
    relative, absolute = _tolerances(x, y, rtol, atol)
    return np.allclose(x.astype(np.float64), y.astype(np.float64), relative, absolute, equal_nan)


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: float | None = None,
    atol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
) -> None:
    """Raise AssertionError, which names the worst place, unless `almost_equal`."""
    x, y = _numpy(a), _numpy(b)
    relative, absolute = _tolerances(x, y, rtol, atol)
    what = f"{names[0]} and {names[1]} differ"
    np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), relative, absolute, equal_nan, what)
