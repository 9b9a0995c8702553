"""TensorBoard's event files, for scalars: records of events with checksums, as TFRecord frames them.

Written without TensorFlow, PyTorch or protobuf, whose encoding of the few fields of a scalar is done here.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from itertools import count
from pathlib import Path
from typing import Any

from gluongraph.errors import MissingError, with_user_location

_NUMBERS = count()  # several files of one process in one second


def _table() -> tuple[int, ...]:
    """The remainders of CRC-32C by a byte, with the reversed polynomial of Castagnoli."""
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_CRC = _table()


def masked_crc(data: bytes) -> int:
    """The CRC-32C of data, as TFRecord rotates it.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """A record with data: its length, the data, and a checksum of each.

    >>> len(record(b"event"))
    21
    """
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _varint(value: int) -> bytes:
    """A number in groups of seven bits; a negative one as that of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _field(number: int, data: bytes) -> bytes:
    """A field of protobuf with bytes, a text or a message."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def event(wall_time: float, step: int | None, rest: bytes) -> bytes:
    """An event at a time, of a step, with another field."""
    stepped = b"" if step is None else _varint(2 << 3) + _varint(step)
    return _varint(1 << 3 | 1) + struct.pack("<d", wall_time) + stepped + rest


def scalar(name: str, value: float) -> bytes:
    """The field of an event that holds a number by its name."""
    number = _varint(2 << 3 | 5) + struct.pack("<f", _in_float32(value))
    return _field(5, _field(1, _field(1, name.encode()) + number))


def _in_float32(value: float) -> float:
    """The number, or an infinity where float32 does not hold it."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


class ScalarWriter:
    """Writes scalars into an event file, in the manner of tensorboardX's SummaryWriter.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> writer = ScalarWriter(folder)
    >>> writer.add_scalar("loss", 0.5, 3)
    >>> writer.close()
    >>> [name.startswith("events.out.tfevents.") for name in os.listdir(folder)]
    [True]

    Raises:
        MissingError: something else than scalars.
        OSError: it cannot be written.
    """

    def __init__(self, log_dir: str, flush_secs: float = 120, filename_suffix: str = "", **_unused: Any):
        os.makedirs(log_dir, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self.log_dir, self._flush_secs, self._flushed = log_dir, flush_secs, now
        self._path = Path(log_dir, name + filename_suffix)
        self._file: Any = open(self._path, "xb")  # noqa: SIM115 - closed by close()
        self._put(event(now, None, _field(3, b"brain.Event:2")))
        self.flush()

    def _put(self, data: bytes) -> None:
        if self._file is None:  # it was closed: goes on in the same file
            self._file = open(self._path, "ab")  # noqa: SIM115 - closed by close()
        self._file.write(record(data))

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Write a number of a step."""
        now = time.time() if walltime is None else walltime
        self._put(event(now, global_step, scalar(tag, float(scalar_value))))
        if now - self._flushed > self._flush_secs:
            self.flush()

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None) -> None:
        """Write several numbers of a step."""
        for name, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{name}", value, global_step)

    def flush(self) -> None:
        """Hand what has been written to the system."""
        self._flushed = time.time()
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        if vars(self).get("_file") is not None:
            self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("add_"):
            message = f"logger.experiment.{name}: only scalars are written without tensorboardX"
            raise MissingError(with_user_location(message, help="pip install tensorboardX"))
        raise AttributeError(name)
