"""RecordIO files, `mx.recordio`: records of bytes one after another, and images with labels packed into them.

The format is that of MXNet (dmlc-core): each part of a record is the magic number, a word with the part's length in
its lower 29 bits and its kind in the upper 3, the bytes, and zeros up to a multiple of 4. A record is one part, unless
the magic number occurs in it at a multiple of 4: there it is cut, and the number itself is left out.
"""

from __future__ import annotations

import numbers
import os
import struct
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from gluongraph.errors import FormatError
from gluongraph.host.file_names import check_name
from gluongraph.image import codec
from gluongraph.storage import Array

MAGIC = struct.pack("<I", 0xCED7230A)
WHOLE, FIRST, MIDDLE, LAST = range(4)  # kinds of parts
MAX_LENGTH = 1 << 29


def _parts(record: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of the parts that a record is written as."""
    start, found = 0, record.find(MAGIC)
    while found >= 0:
        if found % 4 == 0:
            yield (MIDDLE if start else FIRST), record[start:found]
            start = found + 4
        # Occurrences at other places do not count; the next candidate may overlap this one.
        found = record.find(MAGIC, start if found < start else found + 1)
    yield (LAST if start else WHOLE), record[start:]


class MXRecordIO:
    """A RecordIO file that is read ("r") or written ("w") from its beginning on.

    Raises:
        ArgumentError: the name of the file is empty.
        ValueError: another flag.
        FileNotFoundError: there is no such file to read.

    >>> import tempfile
    >>> from gluongraph import recordio
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = recordio.MXRecordIO(folder + "/data.rec", "w")
    ...     file.write(b"first")
    ...     file.close()
    ...     file = recordio.MXRecordIO(folder + "/data.rec", "r")
    ...     file.read(), file.read()
    ...     file.close()
    (b'first', None)

    Source: `mxnet.recordio.MXRecordIO` (MXNet 1.9).
    """

    def __init__(self, uri: str, flag: str):
        check_name(type(self).__name__, uri, "MXRecordIO('images.rec', 'r')")
        self.uri, self.flag, self.is_open = uri, flag, False
        self.open()

    def open(self) -> None:
        """Open the file; one to be written becomes empty."""
        if self.flag not in ("r", "w"):
            raise ValueError(f"the flag of a record file is 'r' or 'w', not {self.flag!r}")
        self.writable = self.flag == "w"
        self._file: BinaryIO = open(self.uri, "wb" if self.writable else "rb")  # noqa: SIM115 - it stays open
        self.pid, self.is_open = os.getpid(), True

    def close(self) -> None:
        """Close the file."""
        if self.is_open:
            self._file.close()
            self.is_open = False

    def reset(self) -> None:
        """Back to the beginning; a file that is being written becomes empty."""
        self.close()
        self.open()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_file", "pid")}
        if self.writable and self.is_open:
            raise RuntimeError(f"{self.uri} is being written; close it before it goes to another process")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_open:
            self.open()

    def _check(self, writing: bool, own_place: bool = True) -> None:
        """Raise unless the file is open for this; its place is shared with the process that opened it."""
        if writing != self.writable:
            raise AssertionError(f"{self.uri} was opened with flag {self.flag!r}")
        if not self.is_open:
            raise ValueError(f"{self.uri} is closed")
        if own_place and self.pid != os.getpid():
            raise RuntimeError(f"{self.uri} was opened in another process; reset() opens it here")

    def write(self, buf: bytes) -> None:
        """Append a record.

        Raises:
            ValueError: it has 2**29 bytes or more.
        """
        self._check(writing=True)
        if len(buf) >= MAX_LENGTH:
            raise ValueError(f"a record holds less than {MAX_LENGTH} bytes, and this one has {len(buf)}")
        for kind, part in _parts(bytes(buf)):
            self._file.write(MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4))

    def read(self) -> bytes | None:
        """The next record; None at the end.

        Raises:
            FormatError: this is no record.
        """
        self._check(writing=False)
        return self._record(self._file.read)

    def read_at(self, position: int) -> bytes | None:
        """The record that begins there. Threads and forked processes may call it at once: it moves nothing."""
        self._check(writing=False, own_place=False)
        handle, place = self._file.fileno(), position

        def read(count: int) -> bytes:
            nonlocal place
            found = os.pread(handle, count, place)
            place += count
            return found

        return self._record(read)

    def positions(self) -> list[int]:
        """Where the records begin, found by going through the file; then it is at its beginning again."""
        self.reset()
        found = [0]
        while self.read() is not None:
            found.append(self._file.tell())
        self.reset()
        return found[:-1]

    def _record(self, read: Callable[[int], bytes]) -> bytes | None:
        """One record from where `read(count)` reads on."""
        pieces: list[bytes] = []
        while True:
            head = read(8)
            if not head and not pieces:
                return None
            if len(head) < 8 or head[:4] != MAGIC:
                raise FormatError(f"{self.uri} is no RecordIO file, or is damaged: no record begins here")
            kind, length = divmod(struct.unpack("<I", head[4:])[0], MAX_LENGTH)
            part = read(length + -length % 4)
            if len(part) < length:
                raise FormatError(f"{self.uri} ends within a record")
            pieces.append(part[:length])
            if kind in (WHOLE, LAST):
                return MAGIC.join(pieces)


class MXIndexedRecordIO(MXRecordIO):
    """A RecordIO file with an index, a text of lines "key, tab, position": its records can be read in any order.

    Raises:
        ArgumentError: the name of the file is empty.

    >>> import tempfile
    >>> from gluongraph import recordio
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     names = folder + "/data.idx", folder + "/data.rec"
    ...     file = recordio.MXIndexedRecordIO(*names, "w")
    ...     for key in range(3):
    ...         file.write_idx(key, b"record %d" % key)
    ...     file.close()
    ...     file = recordio.MXIndexedRecordIO(*names, "r")
    ...     file.read_idx(2)
    ...     file.close()
    b'record 2'

    Source: `mxnet.recordio.MXIndexedRecordIO` (MXNet 1.9).
    """

    def __init__(self, idx_path: str, uri: str, flag: str, key_type: Callable[[Any], Any] = int):
        check_name(type(self).__name__, idx_path, "MXIndexedRecordIO('images.idx', 'images.rec', 'r')")
        self.idx_path, self.key_type = idx_path, key_type
        super().__init__(uri, flag)

    def open(self) -> None:
        """Open both files; ones to be written become empty."""
        super().open()
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        self.fidx = open(self.idx_path, self.flag, encoding="utf-8")  # noqa: SIM115 - it stays open
        if self.writable:
            return
        for line in self.fidx:
            key, position = line.rstrip("\n").split("\t")[:2]
            self.idx[self.key_type(key)] = int(position)
            self.keys.append(self.key_type(key))

    def close(self) -> None:
        """Close both files."""
        if self.is_open:
            self.fidx.close()
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["fidx"]
        return state

    def seek(self, idx: Any) -> None:
        """Let `read` go on at the record of this key. Raises KeyError if there is none."""
        self._check(writing=False)
        self._file.seek(self.idx[idx])

    def tell(self) -> int:
        """The position at which the next record is written."""
        self._check(writing=True)
        return self._file.tell()

    def read_idx(self, idx: Any) -> bytes | None:
        """The record of this key. Raises KeyError if there is none."""
        return self.read_at(self.idx[idx])

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Append a record, and its key to the index."""
        key, position = self.key_type(idx), self.tell()
        self.write(buf)
        self.fidx.write(f"{key}\t{position}\n")
        self.idx[key] = position
        self.keys.append(key)


IRHeader = namedtuple("IRHeader", ["flag", "label", "id", "id2"])
IRHeader.__doc__ = """What stands before an image: the number of labels if there are several, label, number, and 0.

>>> IRHeader(0, 3.0, 7, 0).label
3.0
"""
_HEADER = struct.Struct("<IfQQ")


def pack(header: Any, s: bytes) -> bytes:
    """A record of a header and bytes; a label that is no number but an array of them is written as float32.

    >>> unpack(pack(IRHeader(0, 3.0, 7, 0), b"image"))
    (IRHeader(flag=0, label=3.0, id=7, id2=0), b'image')
    """
    header = IRHeader(*header)
    if isinstance(header.label, numbers.Number):
        return _HEADER.pack(0, header.label, header.id, header.id2) + s
    labels = np.asarray(header.label, np.float32)
    return _HEADER.pack(labels.size, 0, header.id, header.id2) + labels.tobytes() + s


def unpack(s: bytes) -> tuple[Any, bytes]:
    """Header and bytes of a record that `pack` made.

    >>> from gluongraph import recordio
    >>> header, data = recordio.unpack(recordio.pack(recordio.IRHeader(0, [1, 2], 7, 0), b"image"))
    >>> header.label.tolist(), data
    ([1.0, 2.0], b'image')
    """
    header, rest = IRHeader(*_HEADER.unpack_from(s)), s[_HEADER.size :]
    if header.flag == 0:
        return header, rest
    return header._replace(label=np.frombuffer(rest, np.float32, header.flag)), rest[4 * header.flag :]


def pack_img(header: Any, img: Array, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """A record of a header and an image, (H, W, 3) in the order blue, green, red, or (H, W).

    `quality` is that of a JPEG, 1 to 100, or the compression level of a PNG, 1 to 9.

    >>> import numpy as np
    >>> from gluongraph import recordio
    >>> image = np.zeros((2, 3, 3), np.uint8)
    >>> record = recordio.pack_img(recordio.IRHeader(0, 1.0, 7, 0), image, quality=1, img_fmt=".png")
    >>> recordio.unpack_img(record)[1].shape
    (2, 3, 3)
    """
    return pack(header, codec.encode(img[..., ::-1] if img.ndim == 3 else img, img_fmt, quality))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[Any, Array]:
    """Header and image of a record: blue, green, red (iscolor=1), gray (0), or as it was packed (-1).

    >>> import numpy as np
    >>> from gluongraph import recordio
    >>> image = np.zeros((2, 3, 3), np.uint8)
    >>> record = recordio.pack_img(recordio.IRHeader(0, 1.0, 7, 0), image, quality=1, img_fmt=".png")
    >>> header, gray = recordio.unpack_img(record, iscolor=0)
    >>> header.label, gray.shape
    (1.0, (2, 3))
    """
    header, data = unpack(s)
    return header, codec.decode(data, iscolor, to_rgb=False)
