"""The servers of asynchronous stores, as a worker asks them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.kvstore.server_messages import Channel, Message, Roles, roles
from gluongraph.runtime.communicator.supervision import before_finish
from gluongraph.storage import Array


@dataclass
class Request:
    """What one server is asked: JSON, and arrays."""

    about: dict[str, Any]
    arrays: list[Array] = field(default_factory=list)


class Servers:
    """All servers. They are asked by one thread at a time, and are told when this worker ends."""

    def __init__(self, roles: Roles):
        self._channel = Channel(roles)
        self._first, self.number = roles.workers, roles.servers
        self._lock = threading.Lock()
        self._asked = 0  # number of requests
        before_finish(self._finish)

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Message]:
        """Ask servers by their numbers; return their replies, whose arrays are valid until that server is asked again.

        All are asked before one is waited for, and all have answered before an error is raised.

        Raises:
            MXNetError: what a server says.
        """
        replies: dict[int, Message] = {}
        with self._lock:
            self._asked = (self._asked + 1) % (1 << 32)
            for server, request in requests.items():
                message = Message(request.about, request.arrays, self._asked)
                self._channel.start(self._first + server, message)
            for server in requests:
                replies[server] = self._reply(self._first + server)
        for server, reply in replies.items():
            if (error := reply.about.get("error")) is not None:
                raise MXNetError(with_user_location(f"server {server} of dist_async: {error}"))
        return replies

    def _reply(self, rank: int) -> Message:
        """The reply to this request; one to a request that has been interrupted is dropped."""
        while True:
            _, reply = self._channel.receive(rank)
            if reply.number == self._asked:
                return reply

    def _finish(self) -> None:
        for rank in range(self._first, self._first + self.number):
            self._channel.start(rank, Message({"do": "finish"}))
            self._channel.finish(rank)


@cache
def servers() -> Servers:
    """Return the servers of this job."""
    return Servers(roles())
