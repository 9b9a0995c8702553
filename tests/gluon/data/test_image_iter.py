"""image.ImageIter: its orders, which are those of MXNet 1.9.1, its sources, and what is refused."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest

from gluongraph import image, nd, recordio

pytest.importorskip("PIL", reason="Pillow, which decodes images, is not installed")

SHAPE = (3, 4, 4)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Seven images of one color each, which is their label times 10: as files with a list, and as records."""
    records = recordio.MXIndexedRecordIO(str(tmp_path / "all.idx"), str(tmp_path / "all.rec"), "w")
    for i in range(7):
        record = recordio.pack_img((0, float(i), i, 0), np.full((5, 6, 3), 10 * i, np.uint8), 3, ".png")
        records.write_idx(10 + i, record)
        (tmp_path / f"{i}.png").write_bytes(recordio.unpack(record)[1])
    records.close()
    (tmp_path / "all.lst").write_text("".join(f"{10 + i}\t{i}\t{-i}\t{i}.png\n" for i in range(7)))
    return tmp_path


def made(folder: pathlib.Path, **how: Any) -> image.ImageIter:
    given = {"imglist": [[i, f"{i}.png"] for i in range(7)], "path_root": str(folder)}
    return image.ImageIter(3, SHAPE, **(how if "path_imgrec" in how or "path_imglist" in how else {**given, **how}))


def one_pass(iterator: image.ImageIter) -> list[list[int]]:
    """The numbers of the images in each batch, which its labels are too, and how many of them fill it up."""
    found = []
    for batch in iterator:
        assert batch.data[0].shape == (3, *SHAPE) and batch.data[0].dtype == np.float32
        numbers = (batch.data[0].asnumpy() / 10).mean((1, 2, 3)).round().astype(int)
        assert (batch.label[0].asnumpy().reshape(3, -1)[:, 0] == numbers).all()
        found.append([*numbers.tolist(), batch.pad])
    iterator.reset()
    return found


def test_what_is_left_in_the_end(folder: pathlib.Path) -> None:
    whole = [[0, 1, 2, 0], [3, 4, 5, 0]]
    padded = made(folder)
    assert [one_pass(padded) for _ in range(2)] == [[*whole, [6, 0, 1, 2]]] * 2
    discarding = made(folder, last_batch_handle="discard")
    assert [one_pass(discarding) for _ in range(2)] == [whole] * 2
    rolling = made(folder, last_batch_handle="roll_over")
    assert one_pass(rolling) == whole
    assert one_pass(rolling) == [[6, 0, 1, 0], [2, 3, 4, 0]]
    assert one_pass(rolling) == [[5, 6, 0, 0], [1, 2, 3, 0], [4, 5, 6, 0]]
    one_pass(rolling)
    rolling.hard_reset()
    assert one_pass(rolling) == whole
    few = made(folder, imglist=[[4, "4.png"]])
    assert one_pass(few) == [[4, 4, 4, 2]] and not one_pass(made(folder, imglist=[]))
    next(padded)
    padded.reset()
    assert next(padded).label[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", [1, 2])
def test_sources(folder: pathlib.Path, labels: int) -> None:
    root, records, index = str(folder), str(folder / "all.rec"), str(folder / "all.idx")
    expected = [[0, 1, 2, 0], [3, 4, 5, 0], [6, 0, 1, 2]]
    listed: dict[str, Any] = {"path_imglist": str(folder / "all.lst"), "path_root": root, "label_width": labels}
    for how in (listed, {**listed, "path_imgrec": records, "path_imgidx": index}):
        iterator = made(folder, **how)
        assert one_pass(iterator) == expected
        first = next(iterator).label[0]
        assert first.tolist() == ([0, 1, 2] if labels == 1 else [[0, 0], [1, -1], [2, -2]])
        assert iterator.provide_label[0].shape == first.shape and iterator.provide_data[0].shape == (3, *SHAPE)
    assert one_pass(made(folder, path_imgrec=records)) == expected
    assert one_pass(made(folder, path_imgrec=records, part_index=1, num_parts=2)) == [[3, 4, 5, 0], [6, 3, 4, 2]]
    assert made(folder, dtype="int64").next().label[0].dtype == np.int64
    several = made(folder, imglist=[[1, 8, "1.png"], [[2, 9], "2.png"]], label_width=2)
    assert several.next().label[0].tolist() == [[1, 8], [2, 9], [1, 8]]


def test_a_random_order(folder: pathlib.Path) -> None:
    random.seed(3)
    iterator = made(folder, shuffle=True, path_imgrec=str(folder / "all.rec"))
    orders = [[n for *numbers, pad in one_pass(iterator) for n in numbers[: 3 - pad]] for _ in range(3)]
    assert all(sorted(order) == list(range(7)) for order in orders) and len(set(map(tuple, orders))) > 1


def test_augmenters_and_methods(folder: pathlib.Path) -> None:
    class Skipping(image.ImageIter):
        def check_valid_image(self, data: Any) -> None:
            if data[0, 0, 0].asscalar() == 30:
                raise RuntimeError("not this one")

        def augmentation_transform(self, data: Any) -> Any:
            return super().augmentation_transform(data) + 1

    given = [[i, f"{i}.png"] for i in range(7)]
    iterator = Skipping(3, SHAPE, imglist=given, path_root=str(folder), mean=nd.array([0, 10, 20]), rand_mirror=True)
    batches = list(iterator)
    assert [b.label[0].tolist() for b in batches] == [[0, 1, 2], [4, 5, 6]]
    assert batches[1].data[0][0, :, 1, 1].tolist() == [41, 31, 21]
    plain = image.ImageIter(1, (3, 5, 6), imglist=given[2:], path_root=str(folder), aug_list=[])
    assert (next(plain).data[0].asnumpy() == 20).all()


@pytest.mark.parametrize(
    "how,message",
    [
        ({"imglist": None}, "no images are named"),
        ({"last_batch_handle": "keep"}, "pad, discard, roll_over, not 'keep'"),
        ({"dtype": "uint8"}, "not 'uint8'"),
        ({"part_index": 2, "num_parts": 2}, "part_index 2"),
    ],
)
def test_what_is_refused(folder: pathlib.Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(folder, **how)
    with pytest.raises(ValueError, match=r"\(3, height, width\), not \(1, 4, 4\)"):
        image.ImageIter(2, (1, 4, 4), imglist=[])


def test_a_broken_image_is_named(folder: pathlib.Path) -> None:
    (folder / "1.png").write_bytes(b"nothing")
    with pytest.raises(RuntimeError, match=r"image 1\.png cannot be decoded"):
        next(made(folder))
