"""The store of workers that do not wait for one another: dist_async."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.dtypes import numpy_dtype
from gluongraph.eager import row_sparse
from gluongraph.eager.row_sparse import Rows
from gluongraph.errors import DTypeError, MXNetError, ShapeError, with_user_location
from gluongraph.host import json_text
from gluongraph.host.file_names import check_name
from gluongraph.ir.graph import TensorType
from gluongraph.kvstore.base import KVStoreBase, asked
from gluongraph.kvstore.local import Key, pairs_of
from gluongraph.kvstore.rows import need_rows, row_numbers, same_numbers
from gluongraph.kvstore.server import Gradient, serve
from gluongraph.kvstore.server_messages import Message, roles
from gluongraph.kvstore.server_optimizer import numbers_of, told_of
from gluongraph.kvstore.server_parts import Part, Placement
from gluongraph.kvstore.server_requests import Request, servers
from gluongraph.kvstore.server_states import divided_states, joined_states
from gluongraph.ndarray import NDArray
from gluongraph.ops.collective import allreduce_arrays
from gluongraph.optimizer import Optimizer
from gluongraph.runtime.communicator.agreement import Agreement
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

    The last rank is the server; with GG_SERVERS several are, among which keys and the rows of large values are divided.
    Servers run the same script up to here, or up to a Trainer with such a store: there they serve, and the process ends
    when all workers have finished. `rank`, `num_workers` and `barrier` are about workers alone.

    The optimizer counts a worker's own pushes for its schedule. Its rate and all other settings, and the multipliers of
    parameters, go with each push, so that a change of them acts at once. DCASGD compensates for the delay: it compares
    with the weight that the worker has pulled.

    All workers call `init`, `broadcast`, `set_optimizer`, `barrier` and `load_optimizer_states` together; they push and
    pull when they like. A call returns when the servers have answered.

    Raises:
        MXNetError: there is not at least one worker and one server.
    """

    def __init__(self, name: str = "dist_async"):
        if roles().is_server:
            serve(roles())
            sys.exit(0)
        self._name, self._servers = name, servers()
        self.communicator: Communicator = roles().group
        self.staleness = Staleness()
        self._optimizer: Optimizer | None = None
        self._number: int | None = None  # of this store, at the servers
        self._placement = Placement(self._servers.number)
        self._types: dict[Key, TensorType] = {}
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
        return self.communicator.size

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Can the store run an optimizer? Yes. Raises ValueError for another question."""
        return asked(capability, True)

    # -- values

    def init(self, key: Any, value: Any) -> None:
        """Store first values, once per key: those of worker 0. All workers call this.

        Raises:
            MXNetError: a key has a value already.
            Disagreement: other workers store values of other types.
        """
        pairs = pairs_of(key, value)
        for k in pairs:
            if k in self._types:
                help = "use push to change it"
                raise MXNetError(with_user_location(f"kvstore key {k!r} is initialized already", help=help))
        types = {k: arrays[0].type for k, arrays in pairs.items()}
        self._agree("\n".join(f"store.init of {k!r}: {type}" for k, type in types.items()))
        for k, type in types.items():
            self._placement.place(k, type, self._optimizer)

        def send() -> None:
            requests = self._requests("keys")
            for k, arrays in pairs.items():
                for part in self._placement.parts[k]:
                    requests[part.server].about["keys"].append(k)
                    requests[part.server].arrays.append(part.of(arrays[0].storage.array))
            self._ask("init", {s: request for s, request in requests.items() if request.arrays})

        self._by_worker_0(send)
        self._types |= types

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Send the sum over this worker's devices of the arrays of each key, gradients, to the servers, which update by
        them; of gradients by rows only these rows.

        Raises:
            MXNetError: there is no optimizer; a key that has not been initialized; what a server says, as an error of
                the optimizer.
            ShapeError, DTypeError: arrays that do not fit the value.
        """
        self._update(pairs_of(key, value), {})

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy what the servers hold into every `out`.

        Raises:
            AssertionError: no `out`.
            MXNetError: a key that has not been initialized; ShapeError, DTypeError: arrays that do not fit its value.
        """
        if out is None:
            raise AssertionError("pull needs out=, the arrays to copy into")
        self._update({}, pairs_of(key, out))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out`, or into the values pushed, by one message to each server and one back."""
        values = pairs_of(key, value)
        self._update(values, values if out is None else pairs_of(key, out))

    def step(self, gradients: Mapping[Key, Sequence[NDArray]], out: Mapping[Key, Sequence[NDArray]]) -> None:
        """`push` of gradients by key, and `pull` into `out`, which may have other keys, by one message to each server
        and one back."""
        self._update(gradients, out)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows named by `row_ids` of what the servers hold into every `out`, as `KVStore.row_sparse_pull`.

        Raises:
            AssertionError: no `out`, no `row_ids`, or another number of them.
            MXNetError: a key that has not been initialized; ShapeError, DTypeError: arrays that do not fit its value.
            IndexRangeError: a row that does not exist.
        """
        need_rows(out, row_ids)
        targets, given = pairs_of(key, out), pairs_of(key, same_numbers(key, row_ids))
        for k, arrays in targets.items():
            self._check(k, arrays)
        for k, arrays in targets.items():
            chosen = row_numbers(f"kvstore key {k!r}", arrays, given[k], self._types[k].shape[0])
            rows = np.unique(np.concatenate(chosen))
            values = self._rows(k, rows)
            for own, target in zip(chosen, arrays, strict=True):
                _write_rows(target, own, values[np.searchsorted(rows, own)])

    def barrier(self) -> None:
        """Wait until all workers have called it."""
        self.communicator.barrier()

    _barrier = barrier

    # -- updates

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Have the servers update by this optimizer from now on. All workers call this; worker 0's is sent: the name of
        its class, which is registered on servers, too, and its attributes.

        Raises:
            MXNetError: it cannot be sent, or servers do not know its class; a large value has been divided, and the
                formula is not one of elements.
            Disagreement: another worker has an optimizer of another class.
        """
        self._agree(f"store.set_optimizer of {type(optimizer).__name__}")
        self._placement.check(optimizer)

        def send() -> None:
            self._ask_all("set_optimizer", {"optimizer": told_of(optimizer)})

        self._by_worker_0(send)
        self._optimizer = optimizer

    def set_updater(self, updater: Callable[[Key, NDArray, NDArray], None]) -> None:
        """Raises MXNetError: a function cannot be sent to servers."""
        message = f"set_updater of a kvstore {self._name!r}: a function cannot be sent to servers"
        raise MXNetError(with_user_location(message, help="set_optimizer, with a class under @mx.optimizer.register"))

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Raises MXNetError: gradients to servers are not compressed."""
        message = f"gradient compression of a kvstore {self._name!r}"
        raise MXNetError(with_user_location(message, help='kvstore="dist_sync" compresses gradients'))

    # -- files

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states of all servers' optimizers, by key, as stores of one process do; with `dump_optimizer` the
        counts too. Worker 0 writes, others need not call this.

        Raises:
            ArgumentError: the name of the file is empty; AssertionError: the store has no optimizer.
        """
        check_name("save_optimizer_states", fname, "store.save_optimizer_states('store.states')")
        optimizer = self._needed_optimizer("saved")
        if self.rank == 0:
            replies = self._ask_all("states", {"dump_optimizer": dump_optimizer})
            states = [reply.arrays[0].tobytes() for reply in replies]
            Path(fname).write_bytes(joined_states(optimizer, states, self._placement, dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Read what `save_optimizer_states` wrote, whatever the number of servers was. All workers call this; worker 0
        reads.

        Raises:
            ArgumentError: the name of the file is empty; AssertionError: the store has no optimizer.
            MXNetError: worker 0 cannot read it, or it is of another optimizer.
        """
        check_name("load_optimizer_states", fname, "store.load_optimizer_states('store.states')")
        optimizer = self._needed_optimizer("loaded")

        def send() -> Any:
            progress, states = divided_states(optimizer, Path(fname).read_bytes(), self._placement)
            arrays = [np.frombuffer(part, np.uint8) for part in states]
            self._ask("load", {server: Request({}, [array]) for server, array in enumerate(arrays)})
            return progress

        progress = self._by_worker_0(send)
        if progress is not None:
            optimizer.resume(progress)

    def _needed_optimizer(self, what: str) -> Optimizer:
        if self._optimizer is None:
            raise AssertionError(f"this kvstore has no optimizer whose states could be {what}; see set_optimizer")
        return self._optimizer

    # -- among workers

    def _agree(self, text: str) -> None:
        """Compare with the other workers, in a call that all of them make."""
        if self._number is None:
            self._number = next(_NUMBERS)
        Agreement(self.communicator, f"kvstore {self._number}\n{text}")()

    def _by_worker_0(self, call: Callable[[], Any]) -> Any:
        """Have worker 0 do something, and wait for it; return what it returns, which JSON can hold.

        Raises:
            MXNetError: worker 0 has failed; there the error itself is raised.
        """
        told: dict[str, Any] = {}
        raised: Exception | None = None
        if self.rank == 0:
            try:
                told["done"] = call()
            except Exception as error:
                told, raised = {"error": f"{type(error).__name__}: {error}"}, error
        first = json_text.parse(self.communicator.exchange(json.dumps(told))[0])
        if raised is not None:
            raise raised
        if "error" in first:
            raise MXNetError(with_user_location(f"worker 0 of kvstore {self._name!r}: {first['error']}"))
        return first["done"]

    # -- asking servers

    def _update(self, gradients: Mapping[Key, Sequence[NDArray]], targets: Mapping[Key, Sequence[NDArray]]) -> None:
        """Push and pull."""
        for given in (gradients, targets):
            for k, arrays in given.items():
                self._check(k, arrays)
        if gradients and self._optimizer is None:
            message = f"push to a kvstore {self._name!r}, whose servers have no optimizer to update with"
            raise MXNetError(with_user_location(message, help="store.set_optimizer(optimizer), by all workers"))
        requests = self._requests("push", "by_rows", "pull")
        for k, arrays in gradients.items():
            total = _total(arrays)
            for part in self._placement.parts[k]:
                _add(requests[part.server], k, part, total)
        for k in targets:
            for part in self._placement.parts[k]:
                requests[part.server].about["pull"].append(k)
        asked = {s: r for s, r in requests.items() if r.about["push"] or r.about["pull"]}
        with self._counted(tuple(gradients)):
            replies = self._ask("update", asked)
        if gradients:
            self.staleness.add(max(reply.about.get("staleness", 0) for reply in replies.values()))
        given_back = {server: iter(reply.arrays) for server, reply in replies.items()}
        for k, arrays in targets.items():
            for part in self._placement.parts[k]:
                value = next(given_back[part.server])
                for array in arrays:
                    array.storage.write(value, part.rows)

    @contextmanager
    def _counted(self, keys: tuple[Key, ...]) -> Iterator[None]:
        """Within: an update of these keys has been counted, for schedules; not after an error."""
        if self._optimizer is None or not keys:
            yield
            return
        with self._optimizer.undone_on_error():
            self._optimizer.count(keys)
            yield

    def _rows(self, key: Key, rows: Array) -> Array:
        """These rows of a value, from the servers."""
        requests, places = self._requests("keys"), {}
        for part in self._placement.parts[key]:
            own = part.within(rows)
            if len(rows[own]):
                places[part.server] = own
                requests[part.server].about["keys"].append(key)
                requests[part.server].arrays.append(rows[own] - part.start)
        type = self._types[key]
        values = np.empty((len(rows), *type.shape[1:]), numpy_dtype(type.dtype))
        for server, reply in self._ask("rows", {server: requests[server] for server in places}).items():
            values[places[server]] = reply.arrays[0]
        return values

    def _requests(self, *lists: str) -> dict[int, Request]:
        """A request to each server, with these lists in it."""
        return {server: Request({name: [] for name in lists}) for server in range(self._servers.number)}

    def _ask_all(self, do: str, about: Mapping[str, Any]) -> list[Message]:
        replies = self._ask(do, {server: Request(dict(about)) for server in range(self._servers.number)})
        return list(replies.values())

    def _ask(self, do: str, requests: Mapping[int, Request]) -> dict[int, Message]:
        """Ask servers; return their replies. Raises what they say."""
        for request in requests.values():
            request.about |= {"do": do, "store": self._number}
            if self._optimizer is not None and request.about.get("push"):
                request.about["numbers"] = numbers_of(self._optimizer, request.about["push"])
        return self._servers.ask(requests)

    def _check(self, key: Key, arrays: Sequence[NDArray]) -> None:
        """Raise unless there is a value, and the arrays are like it."""
        type = self._types.get(key)
        if type is None:
            help = "call init(key, value)"
            raise MXNetError(with_user_location(f"kvstore key {key!r} has not been initialized", help=help))
        for array in arrays:
            if array.type != type:
                error = ShapeError if array.shape != type.shape else DTypeError
                raise error(with_user_location(f"kvstore key {key!r} holds {type}, which {array.type} does not fit"))


def _total(arrays: Sequence[Any]) -> Gradient:
    """The sum over the devices of this worker; by rows, if all are."""
    if all(array.stype == "row_sparse" for array in arrays):
        rows, sums = row_sparse.joined([array.by_rows() for array in arrays]).summed()
        return Rows(rows, sums, arrays[0].shape)
    return allreduce_arrays(*(array.storage.array for array in arrays))


def _add(request: Request, key: Key, part: Part, gradient: Gradient) -> None:
    """Add the part of a gradient that is of this server's rows."""
    request.about["push"].append(key)
    if isinstance(gradient, Rows):
        own = part.within(gradient.indices)
        request.about["by_rows"].append(key)
        request.arrays += [gradient.indices[own] - part.start, gradient.values[own]]
    else:
        request.arrays.append(part.of(gradient))


def _write_rows(target: Any, rows: Array, values: Array) -> None:
    """Write rows to an array: one by rows holds these alone afterwards."""
    if target.stype == "row_sparse":
        target.receive(Rows(rows, values, target.shape))
    else:
        target.storage.write(values, rows)


_NUMBERS = itertools.count()  # of stores
