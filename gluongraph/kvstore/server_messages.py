"""Messages between workers and servers of an asynchronous store, over MPI: JSON, and the arrays that it describes.

Nothing in a message is executed, and nothing is a pickle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host.json_text import parse
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.settings import number
from gluongraph.storage import Array

REQUEST, REPLY, DATA = 11, 12, 13  # tags
SERVERS = "GG_SERVERS"  # number of server ranks, the last ones; 1 by default


@dataclass
class Message:
    """What is asked, or answered: `about` is JSON."""

    about: dict[str, Any]
    arrays: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Roles:
    """The ranks of a job with servers: `workers` is the communicator of the workers, on servers that of the servers."""

    raw: Any  # mpi4py's communicator for these messages alone
    servers: int
    workers: Communicator

    @property
    def is_server(self) -> bool:
        """Is this process a server?"""
        return bool(self.raw.rank >= self.raw.size - self.servers)

    @property
    def first_server(self) -> int:
        """The rank of the first server; all ranks before it are workers."""
        return int(self.raw.size) - self.servers


@cache
def roles() -> Roles:
    """Return the roles of this job. All ranks call this together.

    Raises:
        MXNetError: there is not at least one worker and one server.
    """
    communicator, servers = world(), number(SERVERS, 1)
    if communicator.size <= servers:
        message = f"an asynchronous store with {servers} server needs more ranks than {communicator.size}"
        raise MXNetError(with_user_location(message, help="gluongraph run -n 3 train.py: two workers and a server"))
    is_server = communicator.rank >= communicator.size - servers
    return Roles(communicator.raw.Dup(), servers, communicator.split(int(is_server)))  # type: ignore[attr-defined]


def send(raw: Any, rank: int, tag: int, message: Message) -> None:
    """Send a message to a rank."""
    types = [(dtype_name(array.dtype), array.shape) for array in message.arrays]
    head = np.frombuffer(json.dumps({"about": message.about, "arrays": types}).encode(), np.uint8)
    raw.Send(head, rank, tag)
    for array in message.arrays:
        raw.Send(_bytes(array), rank, DATA)


def receive(raw: Any, rank: int, tag: int, status: Any) -> Message:
    """Wait for the message of a rank; `status` is an MPI.Status of the caller's."""
    raw.Probe(rank, tag, status)
    head = np.empty(status.Get_elements(_byte()), np.uint8)
    raw.Recv(head, rank, tag)
    told = parse(head.tobytes().decode())
    arrays = [np.empty(shape, numpy_dtype(dtype)) for dtype, shape in told["arrays"]]
    for array in arrays:
        raw.Recv(_bytes(array), rank, DATA)
    return Message(told["about"], arrays)


def joined(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays as one flat array for each dtype, in order of first occurrence: fewer messages."""
    by_dtype: dict[Any, list[Array]] = {}
    for array in arrays:
        by_dtype.setdefault(array.dtype, []).append(array.reshape(-1))
    return [np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0]) for parts in by_dtype.values()]


def divided(flat: Sequence[Array], types: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Array]:
    """Return the arrays of these dtypes and shapes that `joined` has put together, as views.

    Raises:
        MXNetError: they were others.
    """
    source = {array.dtype: array for array in flat}
    wanted: dict[Any, int] = {}
    for dtype, shape in types:
        wanted[dtype] = wanted.get(dtype, 0) + math.prod(shape)
    if wanted != {dtype: array.size for dtype, array in source.items()}:
        given = ", ".join(f"{array.size} elements of {dtype}" for dtype, array in source.items())
        raise MXNetError(f"arrays of {', '.join(f'{dtype}{list(shape)}' for dtype, shape in types)} are not {given}")
    at = dict.fromkeys(source, 0)
    found = []
    for dtype, shape in types:
        size, start = math.prod(shape), at[dtype]
        found.append(source[dtype][start : start + size].reshape(shape))
        at[dtype] = start + size
    return found


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


@cache
def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
