"""RecordIO: the same bytes as MXNet 1.9.1 writes, which wrote the ones below."""

from __future__ import annotations

import pathlib
import pickle

import numpy as np
import pytest

from gluongraph.errors import FormatError
from gluongraph.gluon.data import DataLoader, RecordFileDataset
from gluongraph.recordio import MAGIC, IRHeader, MXIndexedRecordIO, MXRecordIO, pack, pack_img, unpack, unpack_img

RECORDS = [b"", b"abcde", b"1234" + MAGIC + b"56", MAGIC + MAGIC + b"x", b"12" + MAGIC]
WRITTEN = bytes.fromhex(
    "0a23d7ce000000000a23d7ce0500000061626364650000000a23d7ce04000020313233340a23d7ce02000060353600000a23d7ce00000020"
    "0a23d7ce000000400a23d7ce01000060780000000a23d7ce0600000031320a23d7ce0000"
)


@pytest.fixture
def written(tmp_path: pathlib.Path) -> tuple[str, str]:
    """Index and records, written by ours."""
    files = str(tmp_path / "some.idx"), str(tmp_path / "some.rec")
    record = MXIndexedRecordIO(*files, "w")
    for number, each in enumerate(RECORDS):
        record.write_idx(10 * number, each)
    assert record.tell() == len(WRITTEN)
    record.close()
    return files


def test_bytes_are_those_of_mxnet(written: tuple[str, str]) -> None:
    assert pathlib.Path(written[1]).read_bytes() == WRITTEN
    assert pathlib.Path(written[0]).read_text() == "0\t0\n10\t8\n20\t24\n30\t48\n40\t76\n"


def test_reading_in_order(written: tuple[str, str]) -> None:
    record = MXRecordIO(written[1], "r")
    for _ in range(2):
        assert [record.read() for _ in RECORDS] == RECORDS and record.read() is None
        record.reset()
    assert record.positions() == [0, 8, 24, 48, 76] and record.read() == RECORDS[0]


def test_reading_by_key(written: tuple[str, str]) -> None:
    record = MXIndexedRecordIO(*written, "r")
    assert record.keys == [0, 10, 20, 30, 40]
    assert [record.read_idx(key) for key in reversed(record.keys)] == RECORDS[::-1]
    record.seek(20)
    assert record.read() == RECORDS[2] and record.read_idx(0) == RECORDS[0] and record.read() == RECORDS[3]
    with pytest.raises(KeyError):
        record.read_idx(1)


def test_copies_read_on_from_the_beginning(written: tuple[str, str]) -> None:
    record = MXIndexedRecordIO(*written, "r")
    record.read()
    other = pickle.loads(pickle.dumps(record))
    assert other.read() == RECORDS[0] and other.read_idx(30) == RECORDS[3]


@pytest.mark.parametrize("workers", [0, 2])
def test_as_dataset(written: tuple[str, str], workers: int) -> None:
    data = RecordFileDataset(written[1])
    assert len(data) == len(RECORDS)
    batches = DataLoader(data, batch_size=1, batchify_fn=lambda samples: samples[0], num_workers=workers)
    assert list(batches) == RECORDS


def test_errors(written: tuple[str, str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="'r' or 'w', not 'a'"):
        MXRecordIO(written[1], "a")
    with pytest.raises(FileNotFoundError):
        MXRecordIO(str(tmp_path / "none.rec"), "r")
    record = MXRecordIO(written[1], "r")
    with pytest.raises(AssertionError, match="opened with flag 'r'"):
        record.write(b"")
    record.close()
    with pytest.raises(ValueError, match="is closed"):
        record.read()
    writing = MXRecordIO(str(tmp_path / "new.rec"), "w")
    with pytest.raises(AssertionError, match="opened with flag 'w'"):
        writing.read()
    with pytest.raises(RuntimeError, match="close it before"):
        pickle.dumps(writing)
    writing.close()


@pytest.mark.parametrize("content,message", [(b"no record at all", "no record begins"), (WRITTEN[:18], "ends within")])
def test_damaged_files(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    file = tmp_path / "damaged.rec"
    file.write_bytes(content)
    record = MXRecordIO(str(file), "r")
    with pytest.raises(FormatError, match=message):
        while record.read() is not None:
            pass


PACKED = [
    (IRHeader(3, 1.5, 7, 9), "000000000000c03f07000000000000000900000000000000"),
    (IRHeader(0, [1, 2.5], 7, 0), "0200000000000000070000000000000000000000000000000000803f00002040"),
]


@pytest.mark.parametrize("header,expected", PACKED)
def test_labels_are_packed_as_mxnet_does(header: IRHeader, expected: str) -> None:
    packed = pack(header, b"xy")
    assert packed.hex() == expected + "7879"
    found, data = unpack(packed)
    assert data == b"xy" and found.id == 7 and np.array_equal(found.label, np.array(header.label))


@pytest.mark.parametrize("suffix,quality,error", [(".png", 3, 0), (".jpg", 95, 12)])
def test_images(suffix: str, quality: int, error: int) -> None:
    pytest.importorskip("PIL", reason="Pillow, which decodes images, is not installed")
    y, x = np.mgrid[:24, :32]
    image = np.stack([x * 7, y * 9, 255 - x * 3 - y * 4], 2).astype(np.uint8)
    packed = pack_img(IRHeader(0, 4, 1, 0), image, quality, suffix)
    header, found = unpack_img(packed)
    assert header.label == 4 and np.abs(found.astype(int) - image).max() <= error
    gray = unpack_img(packed, iscolor=0)[1]
    assert gray.shape == (24, 32)
    with pytest.raises(ValueError, match="images are written as"):
        pack_img(header, image, img_fmt=".gif")
