"""Small data sets in the formats of the real ones."""

from __future__ import annotations

import gzip
import pathlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]


def write_idx(path: pathlib.Path, array: Array) -> None:
    """An IDX file of bytes, gzipped if its name says so."""
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def write_mnist() -> Callable[..., dict[str, Array]]:
    """write_mnist(folder, suffix=".gz"): MNIST's four files, with 12 images for training and 6 for testing."""

    def write(folder: pathlib.Path, suffix: str = ".gz") -> dict[str, Array]:
        folder.mkdir(parents=True, exist_ok=True)
        generator, made = np.random.RandomState(0), {}
        for name, prefix, size in (("train", "train", 12), ("test", "t10k", 6)):
            images, labels = generator.randint(0, 256, (size, 28, 28)), np.arange(size) % 10
            write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images)
            write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", labels)
            made |= {f"{name}_data": images, f"{name}_label": labels}
        return made

    return write


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """MXNet's server is a port at which nobody listens."""
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/")
    monkeypatch.setenv("no_proxy", "*")
