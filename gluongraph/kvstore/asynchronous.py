"""The store of workers that do not wait for one another: dist_async."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gluongraph import random
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.host.interrupts import import_whole
from gluongraph.kvstore.base import KVStoreBase, asked
from gluongraph.kvstore.local import Key, pairs_of
from gluongraph.kvstore.server import Server
from gluongraph.kvstore.server_messages import REPLY, REQUEST, Message, divided, joined, receive, roles, send
from gluongraph.ndarray import NDArray
from gluongraph.ops.collective import allreduce_arrays
from gluongraph.optimizer import Optimizer
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.storage import Array

NAMES = ("dist_async", "dist_device_async", "dist_async_device")


@dataclass
class Staleness:
    """How many updates of others a worker's gradients have missed, over its pushes."""

    largest: int = 0
    total: int = 0
    pushes: int = 0

    @property
    def mean(self) -> float:
        """The mean over all pushes."""
        return self.total / max(self.pushes, 1)

    def add(self, staleness: int) -> None:
        """Count one push."""
        self.largest, self.total, self.pushes = max(self.largest, staleness), self.total + staleness, self.pushes + 1


class AsynchronousStore(KVStoreBase):
    """Weights on server ranks, which update them at each push: a worker's gradients may be of weights that others have
    updated since (`staleness`).

    The last rank is the server; GG_SERVERS makes it several, among which keys are divided. Servers run the same script,
    up to `set_optimizer` (a Trainer calls it at its first step): there they serve, and end when workers have. Rates,
    decays and factors go with each push, so that a worker's changes of them act at once. DCASGD compensates for the
    delay: it compares with the weight that the worker has pulled.

    Raises:
        MXNetError: there is not at least one worker and one server.
    """

    def __init__(self, name: str = "dist_async"):
        self._name, self._roles = name, roles()
        self.communicator: Communicator = self._roles.workers
        self.staleness = Staleness()
        self._optimizer: Optimizer | None = None
        self._server_of: dict[Key, int] = {}
        self._sizes = [0] * self._roles.servers  # bytes that each server holds
        if not self._roles.is_server:
            _stop_at_exit()
            seed = np.array([random.all_states()["first"] % (1 << 64)], np.uint64)
            self.communicator.broadcast(seed)
            random.join_ranks(self.rank, int(seed[0]))

    @property
    def type(self) -> str:
        """The name that it was created by."""
        return self._name

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self.communicator.rank

    @property
    def num_workers(self) -> int:
        """The number of workers, without servers."""
        return self._roles.first_server

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Can the store run an optimizer? Yes. Raises ValueError for another question."""
        return asked(capability, True)

    # -- values

    def init(self, key: Any, value: Any) -> None:
        """Store first values: those of worker 0."""
        if self._roles.is_server:
            return
        pairs = pairs_of(key, value)
        for k, arrays in pairs.items():
            if k in self._server_of:
                help = "use push to change it"
                raise MXNetError(with_user_location(f"kvstore key {k!r} is initialized already", help=help))
            server = int(np.argmin(self._sizes))
            self._server_of[k] = server
            self._sizes[server] += arrays[0].type.nbytes
        if self.rank == 0:
            first = {k: arrays[0] for k, arrays in pairs.items()}
            self._ask_each("init", first, lambda keys: [first[k].storage.array for k in keys])
        self.communicator.barrier()

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Send the sum of the arrays of each key, gradients, to the servers, which update by them.

        Raises:
            MXNetError: what a server says: a key without a value, no optimizer, an error of the optimizer.
        """
        self._serve_instead()
        self._push("push", _summed(pairs_of(key, value)))

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy what the servers hold into every `out`.

        Raises:
            AssertionError: no `out`; MXNetError: a key that has not been initialized.
        """
        self._serve_instead()
        if out is None:
            raise AssertionError("pull needs out=, the arrays to copy into")
        targets = pairs_of(key, out)
        for keys, reply in self._ask_each("pull", targets, lambda keys: []):
            _write(targets, keys, reply)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out`, or into the values pushed, by one message to each server and one back."""
        self._serve_instead()
        values = pairs_of(key, value)
        targets = values if out is None else pairs_of(key, out)
        for keys, reply in self._push("pushpull", _summed(values)):
            _write(targets, keys, reply)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Raises MXNetError: values are dense, `pull` gives all their rows."""
        message = f"row_sparse_pull({key!r}) of {self._name!r}: servers hold dense values"
        raise MXNetError(with_user_location(message, help="pull(key, out) gives the whole array"))

    def barrier(self) -> None:
        """Wait until all workers have called it."""
        self._serve_instead()
        self.communicator.barrier()

    _barrier = barrier

    # -- updates

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update by this optimizer on the servers: all ranks call this. On a server it does not return."""
        self._optimizer = optimizer
        if self._roles.is_server:
            self._serve(optimizer)

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Raises MXNetError: gradients to servers are not compressed."""
        message = f"gradient compression of a kvstore {self._name!r}"
        raise MXNetError(with_user_location(message, help='kvstore="dist_sync" compresses gradients'))

    def _push(self, op: str, gradients: Mapping[Key, Any]) -> list[tuple[list[Key], Message]]:
        optimizer = self._optimizer
        if optimizer is not None:
            optimizer.count(tuple(gradients))  # so that schedules go on
        scale = 1.0 if optimizer is None else optimizer.rescale_grad

        def about(keys: Sequence[Key]) -> dict[str, Any]:
            rates = [(0.0, 0.0) if optimizer is None else (optimizer.rate(k), optimizer.decay(k)) for k in keys]
            return {"rates": rates, "rescale": scale}

        replies = self._ask_each(op, gradients, lambda keys: joined([gradients[k] for k in keys]), about)
        self.staleness.add(max((reply.about["staleness"] for _, reply in replies), default=0))
        return replies

    # -- states

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states of all servers; all workers call this, worker 0 writes.

        Raises:
            ArgumentError: the name of the file is empty; MXNetError: the servers have no optimizer.
        """
        check_name("save_optimizer_states", fname, "store.save_optimizer_states('store.states')")
        self.communicator.barrier()  # what others have pushed before is in it
        if self.rank == 0:
            replies = self._ask_all("states", {"dump_optimizer": dump_optimizer})
            arrays = {f"server{i}": reply.arrays[0] for i, reply in enumerate(replies)}
            Path(fname).write_bytes(import_whole("safetensors.numpy").save(arrays))
        self.communicator.barrier()

    def load_optimizer_states(self, fname: str) -> None:
        """Read what `save_optimizer_states` wrote, on any number of servers; all workers call this.

        Raises:
            ArgumentError: the name of the file is empty; MXNetError: what a server makes of it.
        """
        check_name("load_optimizer_states", fname, "store.load_optimizer_states('store.states')")
        if self.rank == 0:
            arrays = import_whole("safetensors.numpy").load(Path(fname).read_bytes())
            self._ask_all("load", {}, list(arrays.values()))
        self.communicator.barrier()

    # -- messages

    def _ask_each(
        self,
        op: str,
        keys: Iterable[Key],
        arrays: Callable[[list[Key]], list[Any]],
        about: Callable[[list[Key]], dict[str, Any]] = lambda keys: {},
    ) -> list[tuple[list[Key], Message]]:
        """Ask each server about its keys; return their keys and replies. All are asked before one is waited for."""
        by_server: dict[int, list[Key]] = {}
        for key in keys:
            if (server := self._server_of.get(key)) is None:
                help = "call init(key, value)"
                raise MXNetError(with_user_location(f"kvstore key {key!r} has not been initialized", help=help))
            by_server.setdefault(server, []).append(key)
        for server, own in by_server.items():
            request = Message({"op": op, "keys": own, **about(own)}, arrays(own))
            send(self._roles.raw, self._roles.first_server + server, REQUEST, request)
        return [(own, self._reply(server)) for server, own in by_server.items()]

    def _ask_all(self, op: str, about: Mapping[str, Any], arrays: Sequence[Any] = ()) -> list[Message]:
        servers = range(self._roles.servers)
        for server in servers:
            request = Message({"op": op, **about}, list(arrays))
            send(self._roles.raw, self._roles.first_server + server, REQUEST, request)
        return [self._reply(server) for server in servers]

    def _reply(self, server: int) -> Message:
        from mpi4py import MPI

        reply = receive(self._roles.raw, self._roles.first_server + server, REPLY, MPI.Status())
        if error := reply.about.get("error"):
            raise MXNetError(with_user_location(f"server {server} of kvstore {self._name!r}: {error}"))
        return reply

    def _serve_instead(self) -> None:
        """On a server: serve, without an optimizer, since none was given."""
        if self._roles.is_server:
            self._serve(None)

    def _serve(self, optimizer: Optimizer | None) -> NoReturn:
        Server(self._roles, optimizer).run()
        sys.exit(0)


def _summed(values: Mapping[Key, Sequence[NDArray]]) -> dict[Key, Array]:
    """Return the sum over the devices of this worker, of each key."""
    return {key: allreduce_arrays(*(a.storage.array for a in arrays)) for key, arrays in values.items()}


def _write(targets: Mapping[Key, Sequence[NDArray]], keys: Sequence[Key], reply: Message) -> None:
    """Write the weights of a reply into the targets."""
    types = [(numpy_dtype(t), targets[k][0].shape) for k, t in zip(keys, reply.about["types"], strict=True)]
    for key, value in zip(keys, divided(reply.arrays, types), strict=True):
        for target in targets[key]:
            target.storage.write(value)


_stopping: list[bool] = []


def _stop_at_exit() -> None:
    """Tell the servers, once, when this worker ends."""
    if not _stopping:
        _stopping.append(True)
        atexit.register(_stop)


def _stop() -> None:
    found = roles()
    for server in range(found.servers):
        send(found.raw, found.first_server + server, REQUEST, Message({"op": "stop"}))
