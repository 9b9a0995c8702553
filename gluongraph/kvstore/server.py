"""A server of asynchronous stores: it holds weights, and updates them by each worker's gradients as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluongraph import autograd, debug
from gluongraph.dtypes import dtype_name
from gluongraph.eager.row_sparse import Rows
from gluongraph.errors import FormatError, MXNetError
from gluongraph.kvstore.server_messages import Channel, Message, Roles
from gluongraph.kvstore.server_optimizer import optimizer_of, told_of, use_numbers
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.base import arrays_of
from gluongraph.optimizer.updater import Updater
from gluongraph.storage import Array

Key = int | str
Gradient = Array | Rows
DELAYED = "previous"  # the state of DCASGD that is to hold the weight from which a gradient was computed


@dataclass
class Value:
    """A weight, or the rows of one that this server has. Its version is the number of its updates."""

    weight: NDArray
    version: int = 0
    pulled: dict[int, int] = field(default_factory=dict)  # worker -> the version that it has
    copies: dict[int, Array] = field(default_factory=dict)  # worker -> the weight as it has it, for DCASGD

    def staleness(self, worker: int) -> int:
        """The number of updates since this worker has pulled."""
        return self.version - self.pulled.get(worker, 0)

    def check(self, key: Key, gradient: Gradient) -> None:
        """Raise MXNetError unless it is a gradient of this weight."""
        weight = self.weight
        array, shape = (gradient, gradient.shape) if isinstance(gradient, np.ndarray) else _as_whole(gradient, weight)
        if shape != weight.shape or array.dtype != weight.storage.array.dtype:
            what = f"{dtype_name(array.dtype)}{list(shape)}"
            raise MXNetError(f"key {key!r} holds {weight.type}, of which {what} is no gradient")


def _as_whole(rows: Rows, weight: NDArray) -> tuple[Array, tuple[int, ...]]:
    """The rows of a gradient, and the shape of a weight that has such rows."""
    return rows.values, (*weight.shape[:1], *rows.values.shape[1:])


class Stored:
    """What this server holds of one store: values by key, and the optimizer."""

    def __init__(self) -> None:
        self.values: dict[Key, Value] = {}
        self.updater: Updater | None = None

    def value(self, key: Key) -> Value:
        """The value of a key."""
        if (found := self.values.get(key)) is None:
            raise MXNetError(f"key {key!r} has not been initialized")
        return found

    def update(self, worker: int, gradients: Mapping[Key, Gradient], numbers: Mapping[str, Any]) -> int:
        """Update by a worker's gradients; return the largest staleness among them. Nothing is changed where one of them
        does not fit; where the optimizer raises, the keys before that one have been updated."""
        updater = self._updater("there is no optimizer to update with: all workers call set_optimizer first")
        for key, gradient in gradients.items():
            self.value(key).check(key, gradient)
        use_numbers(updater.optimizer, list(gradients), numbers)
        staleness = max(self.values[key].staleness(worker) for key in gradients)
        compensates = self._compensates
        for key, gradient in gradients.items():
            value = self.values[key]
            try:
                if compensates:
                    self._compensate(updater, worker, key)
                if isinstance(gradient, Rows):
                    update_rows(updater, key, gradient, value.weight)
                else:
                    updater(key, NDArray(gradient), value.weight)
            except Exception as error:
                raise MXNetError(f"update of key {key!r}: {type(error).__name__}: {error}") from error
            value.version += 1
        return staleness

    def pull(self, worker: int, keys: Sequence[Key]) -> list[Array]:
        """The values of these keys, of which is noted that the worker has them."""
        values = [self.value(key) for key in keys]
        for value in values:
            value.pulled[worker] = value.version
            if self._compensates:
                value.copies[worker] = value.weight.storage.array.copy()
        return [value.weight.storage.array for value in values]

    def rows(self, worker: int, key: Key, numbers: Array) -> Array:
        """Some rows of a value, of which is noted that the worker has them."""
        value = self.value(key)
        value.pulled[worker] = value.version
        rows: Array = value.weight.storage.array[numbers]
        if worker in value.copies:
            value.copies[worker][numbers] = rows
        return rows

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update by this optimizer from now on."""
        self.updater = Updater(optimizer)
        for value in self.values.values():  # who has the latest version need not pull again
            latest = (worker for worker, version in value.pulled.items() if version == value.version)
            copies = {worker: value.weight.storage.array.copy() for worker in latest} if self._compensates else {}
            value.copies = copies

    def states(self, dump_optimizer: bool) -> Array:
        """The optimizer's states as the bytes of a file."""
        updater = self._updater("there is no optimizer whose states could be saved")
        return np.frombuffer(updater.get_states(dump_optimizer), np.uint8)

    def load(self, states: bytes) -> None:
        """Take over what `states` has returned."""
        updater = self._updater("there is no optimizer whose states could be loaded")
        trial = Updater(optimizer_of(told_of(updater.optimizer)))
        trial.set_states(states)
        for key, state in trial.states.items():
            weight = self.value(key).weight
            if updater.optimizer.has_formula and not updater.optimizer.fits(state, weight.type):
                name = type(updater.optimizer).__name__
                raise FormatError(f"the state of key {key!r} is not that of {name} for {weight.type}")
        updater.set_states(states)

    def _updater(self, otherwise: str) -> Updater:
        if self.updater is None:
            raise MXNetError(otherwise)
        return self.updater

    @property
    def _compensates(self) -> bool:
        return self.updater is not None and DELAYED in self.updater.optimizer.copies

    def _compensate(self, updater: Updater, worker: int, key: Key) -> None:
        """Make the weight that this worker has the one that its gradient is compensated from."""
        value, optimizer = self.values[key], updater.optimizer
        weight = value.weight
        state = updater._state(key, weight)
        if optimizer.has_master(weight.type):
            state = state[0 if optimizer.master_last else 1]
        arrays = dict(zip(optimizer.states(weight.type), arrays_of(state), strict=True))
        arrays[DELAYED].storage.write(value.copies.get(worker, weight.storage.array))


def update_rows(updater: Updater, key: Key, gradient: Rows, weight: NDArray) -> None:
    """Update a weight by a gradient of rows, of which each is named once: only these where the optimizer works so."""
    optimizer, rows = updater.optimizer, gradient.indices
    if not optimizer.lazy:
        updater(key, NDArray(gradient.dense()), weight)
        return
    state = updater._state(key, weight)
    if not len(rows):
        optimizer.count((key,))
        return
    # Of numbers of rows there are many: they are filled up to powers of 2, so that few functions do.
    more = (1 << (len(rows) - 1).bit_length()) - len(rows)
    padded = np.concatenate([rows, np.full(more, rows[0])])
    values = np.concatenate([gradient.values, np.zeros((more, *weight.shape[1:]), gradient.values.dtype)])
    part, part_state = _part(weight, padded), _part(state, padded)
    with autograd.pause():
        optimizer.update_multi_precision(key, part, NDArray(values), part_state)
    for whole, new in zip([weight, *arrays_of(state)], [part, *arrays_of(part_state)], strict=True):
        whole.storage.write(new.storage.array[: len(rows)], rows)


def _part(state: Any, rows: Array) -> Any:
    """These rows of a state: None, an array, or a tuple of states."""
    if isinstance(state, (tuple, list)):
        return tuple(_part(each, rows) for each in state)
    return None if state is None else NDArray(state.storage.array[rows])


class Server:
    """Answers the requests of workers until all of them have finished."""

    def __init__(self, roles: Roles, channel: Channel):
        self._channel = channel
        self._workers = set(range(roles.workers))
        self._name = f"server {roles.everyone.rank - roles.workers}"
        self._stores: dict[int, Stored] = {}  # by the number that workers have given it
        self._operations = {
            "init": self._init,
            "set_optimizer": self._set_optimizer,
            "update": self._update,
            "rows": self._rows,
            "states": self._states,
            "load": self._load,
        }

    def run(self) -> None:
        """Return when every worker has finished."""
        while self._workers:
            worker, request = self._channel.receive()
            if request.about["do"] == "finish":
                self._workers.discard(worker)
                continue
            reply = self._answer(worker, request)
            reply.number = request.number
            self._channel.start(worker, reply)

    def _answer(self, worker: int, request: Message) -> Message:
        """The reply. An error is the worker's who has asked; others are served on."""
        store = self._stores.setdefault(request.about["store"], Stored())
        try:
            return self._operations[request.about["do"]](store, worker, request)
        except Exception as error:
            kind = "" if type(error) is MXNetError else f"{type(error).__name__}: "
            return Message({"error": f"{kind}{error}"})

    def _init(self, store: Stored, worker: int, request: Message) -> Message:
        for key, array in zip(request.about["keys"], request.arrays, strict=True):
            store.values[key] = Value(NDArray(array.copy()))
        return Message({})

    def _set_optimizer(self, store: Stored, worker: int, request: Message) -> Message:
        store.set_optimizer(optimizer_of(request.about["optimizer"]))
        return Message({})

    def _update(self, store: Stored, worker: int, request: Message) -> Message:
        about, told = request.about, {}
        if about["push"]:
            gradients = dict(_gradients(store, about, request.arrays))
            told["staleness"] = store.update(worker, gradients, about["numbers"])
            if debug.wants("kvstore"):
                what = f"worker {worker} has pushed {len(gradients)} keys, staleness {told['staleness']}"
                debug.log("kvstore", f"{self._name}: {what}")
        return Message(told, store.pull(worker, about["pull"]))

    def _rows(self, store: Stored, worker: int, request: Message) -> Message:
        pairs = zip(request.about["keys"], request.arrays, strict=True)
        return Message({}, [store.rows(worker, key, numbers) for key, numbers in pairs])

    def _states(self, store: Stored, worker: int, request: Message) -> Message:
        return Message({}, [store.states(request.about["dump_optimizer"])])

    def _load(self, store: Stored, worker: int, request: Message) -> Message:
        store.load(request.arrays[0].tobytes())
        return Message({})


def _gradients(store: Stored, about: Mapping[str, Any], arrays: Sequence[Array]) -> Iterator[tuple[Key, Gradient]]:
    """The gradients of a request, by key: those by rows are two arrays, numbers of rows and the rows."""
    given, by_rows = iter(arrays), set(about["by_rows"])
    for key in about["push"]:
        if key in by_rows:
            rows = next(given)
            yield key, Rows(rows, next(given), store.value(key).weight.shape)
        else:
            yield key, next(given)


def serve(roles: Roles) -> None:
    """Be a server until all workers have finished."""
    Server(roles, Channel(roles)).run()
