"""Messages between workers and servers of an asynchronous store, over MPI: JSON, and arrays.

A message is one run of bytes: a prefix (bytes in all, number of the request, bytes of the JSON), the JSON, and the
arrays, each at a multiple of 64 bytes. Nothing in it is executed, and nothing is a pickle.
"""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import MXNetError, pluralize, with_user_location
from gluongraph.host.json_text import parse
from gluongraph.runtime.communicator.activity import ACTIVITY, ranges
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.mpi import MpiCommunicator, load_mpi
from gluongraph.runtime.communicator.settings import number
from gluongraph.storage import Array, aligned, aligned_empty

SERVERS, MXNET_SERVERS = "GG_SERVERS", "DMLC_NUM_SERVER"  # number of server ranks, the last ones; 1 by default
LIMIT = 1 << 30  # bytes that one call of MPI is given, whose counts have 32 bits
_PREFIX = struct.Struct("<QII")
_REQUEST, _REPLY = 11, 12  # tags
_AT_ONCE = 2e-4  # seconds of waiting for a certain rank without a pause: most replies come within them
_PAUSE, _LONGEST_PAUSE = 2e-5, 1e-3  # seconds between two looks for a message; the longer it takes the longer


@dataclass
class Message:
    """What is asked, or answered: `about` is JSON. Arrays that were received are views: the next message overwrites
    them."""

    about: dict[str, Any]
    arrays: Sequence[Array] = field(default_factory=list)
    number: int = 0  # of the request, and of its reply


@dataclass(frozen=True)
class Roles:
    """The ranks of a job with servers, which are the last ones.

    `everyone` is a communicator for messages alone, `group` that of the workers; on servers that of the servers.
    """

    everyone: MpiCommunicator
    group: Communicator
    servers: int

    @property
    def workers(self) -> int:
        """The number of workers, and the rank of the first server."""
        return self.everyone.size - self.servers

    @property
    def is_server(self) -> bool:
        """Is this process a server?"""
        return self.everyone.rank >= self.workers


@cache
def roles() -> Roles:
    """Return the roles of this job. All ranks call this together.

    Raises:
        MXNetError: there is not at least one worker and one server.
        Disagreement: another rank has a store of another kind, whose first call is such a comparison, too.
    """
    communicator = world()
    servers = number(SERVERS if os.environ.get(SERVERS, "").strip() else MXNET_SERVERS, 1)
    if communicator.size <= servers:
        there = f"there {'is 1 rank' if communicator.size == 1 else f'are {communicator.size} ranks'}"
        asked = f"{pluralize(servers, 'server')} ({SERVERS})" if servers > 1 else "one server"
        message = f"dist_async needs at least one worker and {asked}, and {there}"
        help = f"gluongraph run -n {servers + 1} train.py has one worker; every further rank is another one"
        raise MXNetError(with_user_location(message, help=help))
    Agreement(communicator, f"kvstore: dist_async, {pluralize(servers, 'server')}")()
    everyone = communicator.split(0)
    assert isinstance(everyone, MpiCommunicator)
    is_server = communicator.rank >= communicator.size - servers
    return Roles(everyone, communicator.split(int(is_server)), servers)


class Channel:
    """Sends and receives messages: on a worker requests to servers and their replies, on a server the reverse."""

    name = "push or pull of dist_async"  # what a rank waits in, on both sides: see `diagnosis.py`

    def __init__(self, roles: Roles):
        self._roles, self._mpi = roles, load_mpi()
        self._raw = roles.everyone.raw
        self._status = self._mpi.Status()
        self._sent, self._received = (_REPLY, _REQUEST) if roles.is_server else (_REQUEST, _REPLY)
        self._buffers: dict[tuple[str, int], Array] = {}  # direction, rank
        self._under_way: dict[int, list[Any]] = {}  # rank -> requests of MPI
        self.calls, self.members = 0, ""  # for the supervision of ranks, see activity.py

    @property
    def owner(self) -> Channel:
        """Itself: to the supervision it is a group of ranks as well as what they wait in."""
        return self

    def start(self, rank: int, message: Message) -> None:
        """Begin to send, when the message before it to this rank has been sent. A server goes on with others meanwhile,
        however slowly this one receives."""
        self.finish(rank)
        data = self._packed(rank, message)
        pieces = [data[at : at + LIMIT] for at in range(0, len(data), LIMIT)]
        try:
            self._under_way[rank] = [self._raw.Isend((each, self._mpi.BYTE), rank, self._sent) for each in pieces]
        except self._mpi.Exception as error:
            self._roles.everyone.raise_ours(error, self.name)

    def finish(self, rank: int) -> None:
        """Wait until the message to this rank has been sent."""
        if requests := self._under_way.pop(rank, []):
            self._wait(lambda: bool(self._mpi.Request.Testall(requests)), [rank])

    def receive(self, rank: int | None = None) -> tuple[int, Message]:
        """Wait for a message, of this rank or of any; return its sender and the message."""
        source = self._mpi.ANY_SOURCE if rank is None else rank
        self._wait(lambda: bool(self._raw.Iprobe(source, self._received, self._status)), [] if rank is None else [rank])
        sender = self._status.Get_source()
        first = self._status.Get_count(self._mpi.BYTE)
        buffer = self._buffer("received", sender, first)
        try:
            self._raw.Recv((buffer[:first], self._mpi.BYTE), sender, self._received)
            total = _PREFIX.unpack_from(buffer.data)[0]
            if total > first:
                whole = self._buffer("received", sender, total)
                whole[:first] = buffer[:first]
                buffer = whole
                for at in range(first, total, LIMIT):
                    piece = buffer[at : min(at + LIMIT, total)]
                    self._raw.Recv((piece, self._mpi.BYTE), sender, self._received)
        except self._mpi.Exception as error:
            self._roles.everyone.raise_ours(error, self.name)
        return sender, _unpacked(buffer)

    def _wait(self, ready: Callable[[], bool], ranks: Sequence[int]) -> None:
        """Wait until it is so. The core is left to others; and where particular ranks are waited for, the supervision
        knows, and ends the job if one of them is lost."""
        try:
            if ready():
                return
            self.calls += 1
            self.members = ranges([self._roles.everyone.started_as[r] for r in (self._roles.everyone.rank, *ranks)])
            ACTIVITY.inside = self if ranks else None
            start = time.monotonic()
            while not ready():
                waited = time.monotonic() - start
                if waited > _AT_ONCE or not ranks:
                    time.sleep(min(max(_PAUSE, waited / 100), _LONGEST_PAUSE))
        except self._mpi.Exception as error:
            self._roles.everyone.raise_ours(error, self.name)
        finally:
            ACTIVITY.inside = None

    def _buffer(self, direction: str, rank: int, size: int) -> Array:
        """Memory that is used again: new pages would take as long as the copy into them."""
        key = (direction, -1 if direction == "received" and self._roles.is_server else rank)  # one for all workers
        found = self._buffers.get(key)
        if found is None or found.size < size:
            found = self._buffers[key] = aligned_empty((size,), np.uint8)
        return found

    def _packed(self, rank: int, message: Message) -> Array:
        """The bytes of a message, in memory that the next one to this rank will use."""
        types = [(dtype_name(array.dtype), array.shape) for array in message.arrays]
        text = json.dumps({"about": message.about, "arrays": types}).encode()
        start = aligned(_PREFIX.size + len(text))
        total = start + sum(aligned(array.nbytes) for array in message.arrays)
        data = self._buffer("sent", rank, total)[:total]
        _PREFIX.pack_into(data.data, 0, total, message.number, len(text))
        data[_PREFIX.size : _PREFIX.size + len(text)] = np.frombuffer(text, np.uint8)
        for array in message.arrays:
            data[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
            start += aligned(array.nbytes)
        return data


def _unpacked(data: Array) -> Message:
    """The message in these bytes; its arrays are views of them."""
    _, number, length = _PREFIX.unpack_from(data.data)
    told = parse(data[_PREFIX.size : _PREFIX.size + length].tobytes().decode())
    start, arrays = aligned(_PREFIX.size + length), []
    for name, shape in told["arrays"]:
        dtype = numpy_dtype(name)
        nbytes = math.prod(shape) * dtype.itemsize
        arrays.append(data[start : start + nbytes].view(dtype).reshape(shape))
        start += aligned(nbytes)
    return Message(told["about"], arrays, number)
