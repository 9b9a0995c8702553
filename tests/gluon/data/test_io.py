"""The iterators before Gluon; the expected orders are those of MXNet 1.9.1."""

from __future__ import annotations

import gzip
import pathlib
import random
import shutil
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import nd, recordio
from gluongraph.errors import FormatError
from gluongraph.gluon.data import ArrayDataset, DataLoader

D, L = np.arange(20).reshape(10, 2), np.arange(10)

Passes = list[list[list[int]]]


def passes(iterator: Any, count: int) -> Passes:
    """Labels of each batch of several passes; the data must be those of the labels."""
    found: Passes = []
    for _ in range(count):
        found.append([])
        for batch in iterator:
            labels = batch.label[0].asnumpy()
            assert (batch.data[0].asnumpy() == D[labels.astype(int)]).all()
            found[-1].append(labels.astype(int).tolist())
        iterator.reset()
    return found


ORDERS: dict[str, tuple[dict[str, Any], Passes]] = {
    "pad": ({}, [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]] * 2),
    "discard": ({"last_batch_handle": "discard"}, [[[0, 1, 2], [3, 4, 5], [6, 7, 8]]] * 2),
    "roll_over": (
        {"last_batch_handle": "roll_over"},
        [
            [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
            [[9, 0, 1], [2, 3, 4], [5, 6, 7]],
            [[8, 9, 0], [1, 2, 3], [4, 5, 6], [7, 8, 9]],
            [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
        ],
    ),
    "shuffle": (
        {"shuffle": True},
        [
            [[5, 4, 1], [2, 9, 6], [7, 0, 3], [8, 5, 4]],
            [[1, 2, 4], [9, 3, 8], [6, 0, 5], [7, 1, 2]],
            [[4, 7, 1], [3, 6, 5], [0, 2, 8], [9, 4, 7]],
        ],
    ),
    "shuffle-roll_over": (
        {"shuffle": True, "last_batch_handle": "roll_over"},
        [
            [[5, 4, 1], [2, 9, 6], [7, 0, 3]],
            [[8, 1, 2], [4, 9, 3], [8, 6, 0]],
            [[5, 7, 4], [7, 1, 3], [6, 5, 0], [2, 8, 9]],
        ],
    ),
}


@pytest.mark.parametrize("how,expected", ORDERS.values(), ids=ORDERS)
def test_orders(how: dict[str, Any], expected: Passes) -> None:
    np.random.seed(3)
    assert passes(mx.io.NDArrayIter(D, L, 3, **how), len(expected)) == expected


def test_more_samples_in_a_batch_than_there_are() -> None:
    (batch,) = mx.io.NDArrayIter(D, L, 25)
    assert batch.label[0].asnumpy().tolist() == [*range(10), *range(10), *range(5)] and batch.pad == 15


def test_pads_and_descriptions() -> None:
    iterator = mx.io.NDArrayIter(D, L, 3)
    assert [batch.pad for batch in iterator] == [0, 0, 0, 2]
    assert str(iterator.provide_data) == "[DataDesc[data,(3, 2),<class 'numpy.float32'>,NCHW]]"
    assert str(iterator.provide_label) == "[DataDesc[softmax_label,(3,),<class 'numpy.float32'>,NCHW]]"
    iterator = mx.io.NDArrayIter({"b": D, "a": nd.array(D, dtype="int32")}, [L, L], 4)
    assert [(d.name, d.shape, d.dtype) for d in iterator.provide_data] == [
        ("a", (4, 2), np.int32),
        ("b", (4, 2), np.float32),
    ]
    assert [d.name for d in iterator.provide_label] == ["_0_softmax_label", "_1_softmax_label"]
    assert str(next(iterator)) == "DataBatch: data shapes: [(4, 2), (4, 2)] label shapes: [(4,), (4,)]"
    assert next(mx.io.NDArrayIter(D, None, 4)).label == []
    assert iterator.iter_next() and iterator.getpad() == 0 and iterator.getdata()[0].tolist() == D[4:8].tolist()
    assert [x.tolist() for x in iterator.getlabel()] == [[4, 5, 6, 7]] * 2


def test_other_layouts_and_hard_reset() -> None:
    iterator = mx.io.NDArrayIter(D.T, None, 4, layout="TN", last_batch_handle="roll_over")
    assert [batch.data[0].shape for batch in iterator] == [(2, 4), (2, 4)]
    assert iterator.provide_data[0].shape == (2, 4)
    iterator.hard_reset()
    assert next(iterator).data[0].tolist() == D.T[:, :4].tolist()


def test_array_errors() -> None:
    for wrong in (3, None, [], [object()]):
        with pytest.raises(TypeError, match="NDArrayIter"):
            mx.io.NDArrayIter(wrong)
    with pytest.raises(ValueError, match="softmax_label has 9 samples, and data has 10"):
        mx.io.NDArrayIter(D, L[:9])
    with pytest.raises(ValueError, match="one of pad, discard, roll_over"):
        mx.io.NDArrayIter(D, last_batch_handle="keep")
    with pytest.raises(AssertionError, match="data is a list of arrays"):
        mx.io.DataBatch(nd.ones((1,)))
    with pytest.raises(NotImplementedError, match="neither next nor iter_next"):
        next(mx.io.DataIter())


def test_descriptions() -> None:
    assert mx.io.DataDesc.get_batch_axis("TNC") == 1 and mx.io.DataDesc.get_batch_axis(None) == 0
    made = mx.io.DataDesc.get_list([("a", (1,)), ("b", (2,))], [("a", np.int8), ("b", np.int16)])
    assert [d.dtype for d in made] == [np.int8, np.int16]
    assert mx.io.DataDesc.get_list([("a", (1,))], None)[0].dtype == np.float32
    name, shape = mx.io.DataDesc("x", (2, 3))
    assert (name, shape) == ("x", (2, 3))


def test_a_subclass_says_its_parts() -> None:
    class Three(mx.io.DataIter):
        left = 3

        def iter_next(self) -> bool:
            self.left -= 1
            return self.left >= 0

        def getdata(self) -> Any:
            return [nd.ones((1,)) * self.left]

        def getlabel(self) -> Any:
            return []

    assert [batch.data[0].asscalar() for batch in Three()] == [2, 1, 0]


# -- around others


def test_resized() -> None:
    iterator = mx.io.ResizeIter(mx.io.NDArrayIter(D, L, 3), 6)
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1], [0, 1, 2], [3, 4, 5]]
    assert passes(iterator, 2) == [expected, expected]
    going_on = mx.io.ResizeIter(mx.io.NDArrayIter(D, L, 3), 3, reset_internal=False)
    assert passes(going_on, 2) == [expected[:3], [[9, 0, 1], [0, 1, 2], [3, 4, 5]]]


def test_prefetched() -> None:
    iterator = mx.io.PrefetchingIter(mx.io.NDArrayIter(D, L, 3))
    assert passes(iterator, 2) == [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]] * 2
    both = mx.io.PrefetchingIter(
        [mx.io.NDArrayIter(D, L, 5), mx.io.NDArrayIter(D + 1, L, 5)], rename_data=[{"data": "x"}, {"data": "y"}]
    )
    assert [d.name for d in both.provide_data] == ["x", "y"] and both.batch_size == 5
    batch = next(both)
    assert (batch.data[1] - batch.data[0]).sum().asscalar() == 10 and len(batch.label) == 2
    uneven = mx.io.PrefetchingIter([mx.io.NDArrayIter(D, L, 5), mx.io.NDArrayIter(D[:5], L[:5], 5)])
    next(uneven)
    with pytest.raises(AssertionError, match="different numbers of samples"):
        next(uneven)


def test_a_loader_as_iterator() -> None:
    iterator = mx.io.DataLoaderIter(DataLoader(ArrayDataset(D, L), 4), dtype="float16")
    assert iterator.batch_size == 4 and iterator.provide_data[0].shape == (4, 2)
    for _ in range(2):
        batches = list(iterator)
        assert [b.pad for b in batches] == [0, 0, 2] and batches[0].data[0].dtype == np.float16
        assert batches[2].label[0].tolist() == [8, 9, 0, 0]
        iterator.reset()


# -- files


def test_mnist(tmp_path: pathlib.Path, write_mnist: Any) -> None:
    arrays = write_mnist(tmp_path)
    files = [str(tmp_path / f"train-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1")]
    iterator = mx.io.MNISTIter(*files, 5, shuffle=False)
    for _ in range(2):
        batches = list(iterator)
        assert [b.data[0].shape for b in batches] == [(5, 1, 28, 28)] * 2
        assert (batches[1].data[0].asnumpy()[:, 0] == arrays["train_data"][5:10] / 256).all()
        assert batches[1].label[0].tolist() == [5, 6, 7, 8, 9] and batches[1].label[0].dtype == np.float32
        iterator.reset()
    part = mx.io.MNISTIter(*files, 2, shuffle=False, flat=True, num_parts=3, part_index=1, silent=True)
    assert [b.label[0].tolist() for b in part] == [[4, 5], [6, 7]] and part.provide_data[0].shape == (2, 784)
    orders = [[b.label[0].tolist() for b in mx.io.MNISTIter(*files, 6, shuffle=True, seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0][0] + orders[0][1]) == sorted(arrays["train_label"].tolist())
    with pytest.raises(ValueError, match="part_index 3 of num_parts=3"):
        mx.io.MNISTIter(*files, 2, num_parts=3, part_index=3)
    with pytest.raises(FormatError, match="do not belong together"):
        mx.io.MNISTIter(files[1], files[1])


@pytest.fixture
def table(tmp_path: pathlib.Path) -> tuple[str, str]:
    """CSV files of four rows, and of their labels."""
    (tmp_path / "data.csv").write_text("0,1\n2,3\n4,5\n6,7\n")
    (tmp_path / "label.csv").write_text("0\n1\n2\n3\n")
    return str(tmp_path / "data.csv"), str(tmp_path / "label.csv")


def test_csv(table: tuple[str, str]) -> None:
    data, label = table
    iterator = mx.io.CSVIter(data, (2,), label, batch_size=3)
    assert passes(iterator, 3) == [[[0, 1, 2], [3, 0, 1]], [[2, 3, 0]], [[1, 2, 3]]]
    whole = mx.io.CSVIter(data, (2,), label, batch_size=3, round_batch=False)
    for _ in range(2):
        assert [(b.label[0].tolist()[: 3 - b.pad], b.pad) for b in whole] == [([0, 1, 2], 0), ([3], 2)]
        whole.reset()
    assert whole.iter_next() and whole.getdata().shape == (3, 2) and whole.getlabel().shape == (3,)
    assert whole.getindex().tolist() == [0, 1, 2] and whole.getpad() == 0
    assert whole.iter_next() and whole.getpad() == 2 and not whole.iter_next()
    batch = next(mx.io.CSVIter(data, (2, 1), batch_size=2, dtype="int32"))
    assert batch.data[0].shape == (2, 2, 1) and batch.data[0].dtype == np.int32 and batch.label[0].tolist() == [0, 0]
    batch = next(mx.io.CSVIter(label, (1,), data, (2,), batch_size=2))
    assert batch.label[0].shape == (2, 2)


def test_csv_folders_and_errors(table: tuple[str, str], tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        shutil.copy(table[0], folder / name)
    assert next(mx.io.CSVIter(str(folder), (2,), batch_size=8)).data[0].tolist()[4:6] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="rows of 2 numbers, and they are to have the shape"):
        mx.io.CSVIter(table[0], (3,))
    with pytest.raises(ValueError, match="has 4 rows"):
        mx.io.CSVIter(str(folder), (2,), table[1])


@pytest.fixture
def records(tmp_path: pathlib.Path) -> str:
    """Seven images of one color each, which is their label times 10, with more than one label."""
    pytest.importorskip("PIL", reason="Pillow, which decodes images, is not installed")
    record = recordio.MXRecordIO(str(tmp_path / "all.rec"), "w")
    for i in range(7):
        picture = np.full((8, 10, 3), (0, 10 * i, 1), np.uint8)  # blue, green, red
        picture[:, 5:] += 100
        record.write(recordio.pack_img((0, [i, -i], i, 0), picture, 3, ".png"))
    record.close()
    return str(tmp_path / "all.rec")


def test_image_records(records: str) -> None:
    how: dict[str, Any] = {"path_imgrec": records, "data_shape": (3, 4, 6), "batch_size": 3, "label_width": 2}
    iterator = mx.io.ImageRecordIter(**how, preprocess_threads=4)
    batches = list(iterator)
    assert [b.data[0].shape for b in batches] == [(3, 3, 4, 6)] * 3 and [b.pad for b in batches] == [0, 0, 2]
    assert batches[1].label[0].tolist() == [[3, -3], [4, -4], [5, -5]]
    assert batches[1].data[0][0, :, 0, 0].tolist() == [1, 30, 0] and batches[1].data[0][0, 1, 0, 5].asscalar() == 130
    iterator.reset()
    assert next(iterator).label[0].tolist()[0] == [2, -2]  # after what filled the last batch
    changed = mx.io.ImageRecordIter(**how, mean_g=30, std_g=2, scale=3, mirror=True, part_index=1, num_parts=2)
    batch = next(changed)
    assert batch.label[0].tolist()[0] == [3, -3] and batch.data[0][0, 1, 0, 5].asscalar() == 0
    assert batch.data[0][0, 1, 0, 0].asscalar() == 150


def test_image_records_at_random(records: str) -> None:
    how: dict[str, Any] = {"path_imgrec": records, "data_shape": (1, 4, 4), "batch_size": 7, "resize": 6}
    found = []
    for _ in range(2):
        random.seed(1)
        iterator = mx.io.ImageRecordIter(**how, shuffle=True, seed=3, rand_crop=True, rand_mirror=True, label_width=2)
        first = next(iterator).data[0].asnumpy()
        iterator.reset()
        found.append([first, next(iterator).data[0].asnumpy()])
    assert found[0][0].shape == (7, 1, 4, 4) and np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0][0], found[0][1])
    with pytest.raises(NotImplementedError, match="does not know max_rotate_angle; a gluon DataLoader"):
        mx.io.ImageRecordIter(**how, max_rotate_angle=10)


# -- what scripts take from test_utils


def test_mnist_as_arrays(tmp_path: pathlib.Path, write_mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\.gz is in none of the folders data, \., "):
        mx.test_utils.get_mnist()
    arrays = write_mnist(tmp_path / "home" / "datasets" / "mnist")
    found = mx.test_utils.get_mnist()
    assert found["train_data"].shape == (12, 1, 28, 28) and found["train_data"].dtype == np.float32
    assert (found["test_data"][:, 0] == (arrays["test_data"] / np.float32(255)).astype(np.float32)).all()
    assert found["test_label"].tolist() == [0, 1, 2, 3, 4, 5] and found["test_label"].dtype == np.int8
    train, test = mx.test_utils.get_mnist_iterator(2, (1, 28, 28))
    assert len(list(train)) == 6 and next(test).data[0].shape == (2, 1, 28, 28)
    whole = gzip.decompress((tmp_path / "home/datasets/mnist/t10k-labels-idx1-ubyte.gz").read_bytes())
    assert (tmp_path / "data" / "t10k-labels-idx1-ubyte").read_bytes() == whole
    dummy = mx.test_utils.DummyIter(test)
    assert next(dummy) is next(dummy)
    with pytest.raises(FileNotFoundError, match="put CIFAR-10 there as RecordIO"):
        mx.test_utils.get_cifar10()


def test_comparisons() -> None:
    a, b = nd.array([1.0, 2.0]), np.array([1.0, 2.0005], np.float32)
    assert mx.test_utils.almost_equal(a, b) and not mx.test_utils.same(a, b) and mx.test_utils.same(a, a.copy())
    assert not mx.test_utils.almost_equal(a, b, rtol=0, atol=1e-4)
    mx.test_utils.assert_almost_equal(a, b)
    with pytest.raises(AssertionError, match="left and right differ"):
        mx.test_utils.assert_almost_equal(a, b, 0, 0, ("left", "right"))
    assert not mx.test_utils.almost_equal(np.array([1]), np.array([2]))  # integers must be equal


def test_random_shapes_and_devices() -> None:
    for _ in range(20):
        assert all(1 <= n <= 4 for n in mx.test_utils.rand_shape_nd(5, 4))
        assert mx.test_utils.rand_shape_2d(1, 1) == (1, 1) and mx.test_utils.rand_shape_3d(1, 1, 1) == (1, 1, 1)
    assert mx.test_utils.rand_ndarray((2, 3)).shape == (2, 3)
    assert [x.shape for x in mx.test_utils.random_arrays((2,), (3, 1))] == [(2,), (3, 1)]
    assert len(mx.test_utils.list_gpus()) == mx.num_gpus() and mx.test_utils.default_context() == mx.cpu()
    with pytest.raises(NotImplementedError, match="storage 'csr'"):
        mx.test_utils.rand_ndarray((2, 3), "csr")


@pytest.mark.parametrize("name", sorted(mx.test_utils.REFUSED))
def test_what_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"mx\.test_utils\.{name} does not exist in gluongraph"):
        getattr(mx.test_utils, name)()


def test_what_does_not_exist() -> None:
    assert not hasattr(mx.test_utils, "no_such_name")
