"""The launcher's end of the connections to its ranks, see launcher_rank.py."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from gluongraph.distributed.launcher_rank import DIGEST, HEADER, HELLO, NONCE, TOKEN, answer

_SIOCGIFADDR = 0x8915  # of Linux: ask for the address of a network interface
_LARGEST = 1 << 24  # bytes of a message


@dataclass(frozen=True)
class Ended:
    """How a rank's program has ended: its exit code, or the negative number of a signal; when, by the clock of its
    host; and whether it was asked to."""

    code: int
    time: float
    asked: bool

    @classmethod
    def read(cls, data: bytes) -> Ended:
        """From a message."""
        found = json.loads(data)
        return cls(int(found["code"]), float(found["time"]), bool(found["asked"]))


class Peer:
    """A connection, from a rank once it has proved to know the token."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.rank: int | None = None
        self.host = ""
        self.ended: Ended | None = None
        self.open = True
        self._nonce = secrets.token_bytes(NONCE)
        self._received = bytearray()
        self._trusted = False
        connection.sendall(self._nonce)  # a few bytes, for which there is room

    def messages(self, data: bytes, token: str) -> Iterator[tuple[bytes, bytes]]:
        """The messages that are complete with this data: their kind, and what they hold.

        Raises:
            ValueError: it is no rank of ours.
        """
        self._received += data
        if not self._trusted:
            if len(self._received) < DIGEST:
                return
            if not hmac.compare_digest(bytes(self._received[:DIGEST]), answer(token, self._nonce)):
                raise ValueError("another program")
            self._trusted = True
            del self._received[:DIGEST]
        while len(self._received) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._received)
            if size > _LARGEST:
                raise ValueError("a message that no rank sends")
            if len(self._received) < HEADER.size + size:
                return
            whole = bytes(self._received[HEADER.size : HEADER.size + size])
            del self._received[: HEADER.size + size]
            yield kind, whole

    def send_job(self, job: Mapping[str, Any]) -> None:
        """Tell the rank what to run."""
        text = json.dumps(job).encode()
        self.connection.settimeout(10.0)  # the environment is larger than what is surely taken at once
        self.connection.sendall(struct.pack(">I", len(text)) + text)
        self.connection.setblocking(False)

    def signal(self, number: int) -> None:
        """Have the rank send a signal to its program."""
        with suppress(OSError):  # it has ended meanwhile
            self.connection.send(bytes([number]))


class Server:
    """Accepts the connections of ranks, and calls `on_message(peer, kind, data)` and `on_end(peer)`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hosts: bool,
        on_message: Callable[[Peer, bytes, bytes], None],
        on_end: Callable[[Peer], None],
    ):
        self.token = secrets.token_hex(16)
        self.peers: list[Peer] = []
        self._selector, self._on_message, self._on_end = selector, on_message, on_end
        self._listener = _listener(hosts)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        port = self._listener.getsockname()[1]
        self.addresses = [f"{name}:{port}" for name in (own_addresses() if hosts else ["127.0.0.1"])]

    def environ(self) -> dict[str, str]:
        """What a rank has to know, beside the addresses: not on the command line, which every user can read."""
        return {TOKEN: self.token}

    def close(self) -> None:
        """Accept no more ranks. Those that are here end their programs."""
        self._selector.unregister(self._listener)
        self._listener.close()
        for peer in self.peers:
            self.close_peer(peer)

    def close_peer(self, peer: Peer) -> None:
        """Let the rank end."""
        if peer.open:
            peer.open = False
            self._selector.unregister(peer.connection)
            peer.connection.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone already
            return
        connection.setblocking(False)
        with suppress(OSError):
            peer = Peer(connection)
            self.peers.append(peer)
            self._selector.register(connection, selectors.EVENT_READ, partial(self._receive, peer))

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for kind, whole in peer.messages(data, self.token):
                if kind == HELLO:
                    told = json.loads(whole)
                    peer.rank, peer.host = int(told["rank"]), str(told["host"])
                self._on_message(peer, kind, whole)
        except (ValueError, KeyError, TypeError):  # somebody else connects to every port that there is
            data = b""
        if not data:
            self.close_peer(peer)
            self._on_end(peer)


def _listener(hosts: bool) -> socket.socket:
    """A socket that ranks of this host can reach, or those of all hosts."""
    if not hosts:
        return socket.create_server(("127.0.0.1", 0), backlog=1024)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=1024)


def own_addresses() -> list[str]:
    """By which names others may reach this host, the likely ones first; the loopback is last."""
    found = []
    if sys.platform.startswith("linux"):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for _, name in socket.if_nameindex():
                with suppress(OSError):  # an interface without an address
                    asked = struct.pack("256s", name.encode()[:15])
                    found.append(socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, asked)[20:24]))
    loopback = [each for each in found if each.startswith("127.")] or ["127.0.0.1"]
    return [*(each for each in found if each not in loopback), socket.gethostname(), *loopback]


def told_to_ranks(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that go to ranks on other hosts, too, where the rest of the environment is that host's own.

    >>> told_to_ranks({"GG_VERIFY": "1", "PATH": "/bin", "OMP_NUM_THREADS": "2"})
    {'GG_VERIFY': '1', 'OMP_NUM_THREADS': '2'}
    """
    heads = ("GG_", "MXNET_", "NCCL_", "OMP_", "PYTHON", "TVM_")
    return {name: value for name, value in environ.items() if name.startswith(heads) and name != TOKEN}
