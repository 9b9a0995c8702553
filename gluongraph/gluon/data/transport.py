"""Objects from one process to another over a connection; large arrays through shared memory, without copying.

What is sent is pickled, arrays apart from the rest. All of it is written into an anonymous file in memory whose handle
goes over the connection; the receiver maps it, and the arrays it gets lie in that mapping. Such a file has no name, so
nothing is left behind however the processes end: it goes when the last array does.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from gluongraph.storage import ALIGNMENT

_INLINE = 1024  # bytes; what is smaller goes over the connection itself
_HEAD = struct.Struct("<qq")  # sizes of the file and of the pickled table of contents at its beginning


def send(connection: Connection[Any, Any], value: Any) -> None:
    """Send a value; nothing has been sent if it cannot be pickled. The other end must be a process of this machine.

    >>> import multiprocessing
    >>> from gluongraph.gluon.data.transport import receive, send
    >>> here, there = multiprocessing.Pipe()
    >>> send(here, {"samples": [1, 2]})
    >>> receive(there)
    {'samples': [1, 2]}
    """
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    pieces: list[bytes | memoryview] = [data, *(buffer.raw() for buffer in buffers)]
    if sum(len(piece) for piece in pieces) <= _INLINE:
        connection.send_bytes(_HEAD.pack(0, 0) + pickle.dumps(value, protocol=5))
        return
    sizes = [len(piece) for piece in pieces]
    contents = pickle.dumps(sizes)
    places, end = _places(len(contents), sizes)
    handle = os.memfd_create("gluongraph")
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(contents)
            for place, piece in zip(places, pieces, strict=True):
                file.seek(place)
                file.write(piece)
            file.truncate(end)
        connection.send_bytes(_HEAD.pack(end, len(contents)))
        reduction.send_handle(connection, handle, 0)  # the receiver's number, which only Windows needs
    finally:
        os.close(handle)


def receive(connection: Connection[Any, Any]) -> Any:
    """The next value that was sent.

    >>> import multiprocessing
    >>> import numpy as np
    >>> from gluongraph.gluon.data.transport import receive, send
    >>> here, there = multiprocessing.Pipe()
    >>> send(here, np.zeros((100, 100)))
    >>> receive(there).shape
    (100, 100)

    Raises:
        EOFError: the other end is closed.
    """
    message = connection.recv_bytes()
    end, size = _HEAD.unpack_from(message)
    if end == 0:
        return pickle.loads(message[_HEAD.size :])
    handle = reduction.recv_handle(connection)
    try:
        memory = memoryview(mmap.mmap(handle, end))
    finally:
        os.close(handle)
    sizes = pickle.loads(memory[:size])
    places, _ = _places(size, sizes)
    data, *buffers = (memory[place : place + n] for place, n in zip(places, sizes, strict=True))
    return pickle.loads(data, buffers=buffers)


def _places(start: int, sizes: list[int]) -> tuple[list[int], int]:
    """Where pieces of these sizes begin, aligned, and where the last one ends."""
    places, end = [], start
    for size in sizes:
        places.append(end + -end % ALIGNMENT)
        end = places[-1] + size
    return places, end
