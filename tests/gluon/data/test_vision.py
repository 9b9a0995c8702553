"""Data sets of images in local files."""

from __future__ import annotations

import io
import pathlib
import tarfile
import warnings
from typing import Any

import numpy as np
import pytest

from gluongraph import recordio
from gluongraph.errors import FormatError
from gluongraph.gluon.data import DataLoader
from gluongraph.gluon.data.vision import (
    CIFAR10,
    CIFAR100,
    MNIST,
    FashionMNIST,
    ImageFolderDataset,
    ImageListDataset,
    ImageRecordDataset,
    transforms,
)


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mnist(tmp_path: pathlib.Path, write_mnist: Any, kind: Any, suffix: str) -> None:
    arrays = write_mnist(tmp_path, suffix)
    for name, train in (("train", True), ("test", False)):
        data = kind(str(tmp_path), train=train)
        images, labels = arrays[f"{name}_data"], arrays[f"{name}_label"]
        assert len(data) == len(labels)
        image, label = data[3]
        assert image.shape == (28, 28, 1) and image.dtype == np.uint8 and (image.asnumpy()[..., 0] == images[3]).all()
        assert label == labels[3] and label.dtype == np.int32


def test_mnist_through_a_loader(tmp_path: pathlib.Path, write_mnist: Any) -> None:
    arrays = write_mnist(tmp_path)
    data = MNIST(tmp_path, transform=lambda image, label: (image.astype("float32") / 255, label))
    x, y = next(iter(DataLoader(data, 4)))
    assert x.shape == (4, 28, 28, 1) and x.dtype == np.float32 and y.dtype == np.int32
    x, y = next(iter(DataLoader(MNIST(tmp_path).transform_first(transforms.ToTensor()), 4)))
    assert x.shape == (4, 1, 28, 28)
    assert (x.asnumpy()[:, 0] == arrays["train_data"][:4].astype(np.float32) / np.float32(255)).all()


def test_the_default_folder(tmp_path: pathlib.Path, write_mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    write_mnist(tmp_path / "datasets" / "mnist")
    assert len(MNIST()) == 12


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "kind,wanted",
    [
        (MNIST, "train-images-idx3-ubyte.gz or train-images-idx3-ubyte"),
        (FashionMNIST, "train-images-idx3-ubyte.gz or train-images-idx3-ubyte"),
        (CIFAR10, "data_batch_1.bin or cifar-10-batches-bin/data_batch_1.bin or cifar-10-binary.tar.gz"),
        (CIFAR100, "train.bin or cifar-100-binary/train.bin or cifar-100-binary.tar.gz"),
    ],
)
def test_missing_files_are_named(tmp_path: pathlib.Path, kind: Any, wanted: str) -> None:
    folder = tmp_path / "none"
    with pytest.raises(FileNotFoundError) as caught:
        kind(str(folder))
    assert f"{kind.__name__} needs {wanted} in {folder}" in str(caught.value)
    assert "could not be downloaded" in str(caught.value) and not folder.exists()


def test_damaged_files(tmp_path: pathlib.Path, write_mnist: Any) -> None:
    write_mnist(tmp_path, "")
    labels = tmp_path / "train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    for content in (whole[:-1], whole + b"x", b"\0\0\x0d\x01" + whole[4:], b""):
        labels.write_bytes(content)
        with pytest.raises(FormatError, match="train-labels-idx1-ubyte is no whole IDX file"):
            MNIST(tmp_path)
    labels.write_bytes(whole)
    (tmp_path / "train-images-idx3-ubyte").write_bytes((tmp_path / "t10k-images-idx3-ubyte").read_bytes())
    with pytest.raises(FormatError, match="do not fit labels"):
        MNIST(tmp_path)


def cifar_files(kind: Any, labels: int) -> dict[str, bytes]:
    """Each file with two samples of its own."""
    files = {}
    for number, name in enumerate((*kind._files[True], *kind._files[False])):
        rows = np.random.RandomState(number).randint(0, 100, (2, labels + 3072)).astype(np.uint8)
        files[name] = rows.tobytes()
    return files


def put(folder: pathlib.Path, files: dict[str, bytes], kind: Any, how: str) -> None:
    if how == "archive":
        with tarfile.open(folder / kind._archive[0], "w:gz") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(f"{kind._folder}/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return
    place = folder if how == "files" else folder / kind._folder
    place.mkdir(exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)


@pytest.mark.parametrize("how", ["files", "folder", "archive"])
@pytest.mark.parametrize("kind,arguments,labels,chosen", [
    (CIFAR10, {}, 1, 0), (CIFAR100, {}, 2, 0), (CIFAR100, {"fine_label": True}, 2, 1),
])  # fmt: skip
def test_cifar(
    tmp_path: pathlib.Path, how: str, kind: Any, arguments: dict[str, Any], labels: int, chosen: int
) -> None:
    files = cifar_files(kind, labels)
    put(tmp_path, files, kind, how)
    for train in (True, False):
        data = kind(tmp_path, train=train, **arguments)
        rows = np.concatenate([np.frombuffer(files[name], np.uint8).reshape(2, -1) for name in kind._files[train]])
        assert len(data) == len(rows)
        image, label = data[-1]
        assert image.shape == (32, 32, 3) and image.dtype == np.uint8 and label.dtype == np.int32
        assert label == rows[-1][chosen]
        planes = rows[-1][labels:].reshape(3, 32, 32)
        assert (image.asnumpy() == planes.transpose(1, 2, 0)).all()


def test_damaged_cifar(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(100))
    with pytest.raises(FormatError, match=r"test_batch\.bin has 100 bytes, which is no multiple of 3073"):
        CIFAR10(tmp_path, train=False)
    put(tmp_path, {"other.bin": b"x"}, CIFAR100, "archive")
    with pytest.raises(FormatError, match=r"has no test\.bin"):
        CIFAR100(tmp_path, train=False)


# -- one's own images


@pytest.fixture
def pictures(tmp_path: pathlib.Path) -> dict[str, Any]:
    """PNG files in folders of classes, by name relative to the root."""
    module = pytest.importorskip("PIL.Image", reason="Pillow, which decodes images, is not installed")
    made = {}
    for number, name in enumerate(("cat/2.png", "cat/1.PNG", "dog/1.png")):
        made[name] = np.random.RandomState(number).randint(0, 256, (4, 5 + number, 3)).astype(np.uint8)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        module.fromarray(made[name]).save(tmp_path / name)
    return made


def test_folders_of_classes(tmp_path: pathlib.Path, pictures: dict[str, Any]) -> None:
    data = ImageFolderDataset(str(tmp_path))
    assert data.synsets == ["cat", "dog"]
    assert data.items == [(str(tmp_path / name), label) for name, label in
                          (("cat/1.PNG", 0), ("cat/2.png", 0), ("dog/1.png", 1))]  # fmt: skip
    image, label = data[2]
    assert (image.asnumpy() == pictures["dog/1.png"]).all() and label == 1
    assert ImageFolderDataset(tmp_path, flag=0)[0][0].shape == (4, 6, 1)
    assert ImageFolderDataset(tmp_path, transform=lambda image, label: label + 1)[2] == 2


def test_other_files_are_left_out_with_a_warning(tmp_path: pathlib.Path, pictures: dict[str, Any]) -> None:
    (tmp_path / "readme.txt").write_text("")
    (tmp_path / "dog" / "notes.txt").write_text("")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(ImageFolderDataset(tmp_path)) == 3
    assert [str(w.message).split(" is left out")[0] for w in caught] == [
        str(tmp_path / "dog" / "notes.txt"),
        str(tmp_path / "readme.txt"),
    ]
    assert {w.filename for w in caught} == {__file__}


def test_lists(tmp_path: pathlib.Path, pictures: dict[str, Any]) -> None:
    (tmp_path / "all.lst").write_text("0\t3\tcat/1.PNG\n1\t1\t2.5\tdog/1.png\n")
    for imglist in (
        "all.lst",
        [[3, "cat/1.PNG"], [1, 2.5, "dog/1.png"]],
        [[[3], "cat/1.PNG"], [[1, 2.5], "dog/1.png"]],
    ):
        data = ImageListDataset(tmp_path, imglist)
        assert len(data) == 2 and [label.tolist() for _, label in data] == [[3], [1, 2.5]]
        assert (data[1][0].asnumpy() == pictures["dog/1.png"]).all()
    with pytest.raises(ValueError, match="a list or the name of a file, not NoneType"):
        ImageListDataset(tmp_path)


def test_records(tmp_path: pathlib.Path, pictures: dict[str, Any]) -> None:
    record = recordio.MXIndexedRecordIO(str(tmp_path / "all.idx"), str(tmp_path / "all.rec"), "w")
    for number, image in enumerate(pictures.values()):
        label = float(number) if number else [4.0, 5.0]
        record.write_idx(number, recordio.pack_img((0, label, number, 0), image[..., ::-1], 3, ".png"))
    record.close()
    data = ImageRecordDataset(str(tmp_path / "all.rec"))
    assert [np.ravel(label).tolist() for _, label in data] == [[4, 5], [1], [2]]
    assert all((image.asnumpy() == own).all() for (image, _), own in zip(data, pictures.values(), strict=True))
    assert ImageRecordDataset(str(tmp_path / "all.rec"), flag=0, transform=lambda x, y: x.shape)[0] == (4, 5, 1)
