"""A server of an asynchronous store: it holds weights, and updates them by each worker's gradients as they come."""

from __future__ import annotations

import time

import numpy as np

from gluongraph import debug
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError
from gluongraph.kvstore.server_messages import REPLY, REQUEST, Message, Roles, divided, joined, receive, send
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer, get_updater
from gluongraph.optimizer.base import arrays_of
from gluongraph.optimizer.updater import Updater
from gluongraph.storage import Array

Key = int | str
_IDLE = 2e-5  # seconds between two looks for a message: a server that waits must not take a core


class Server:
    """Serves workers until all of them have finished.

    The optimizer is that of the server's own run of the script; rates, decays and factors come with each push. A weight
    has a version, the number of its updates: the staleness of a push is the number of updates since its worker pulled.
    """

    def __init__(self, roles: Roles, optimizer: Optimizer | None):
        self.roles = roles
        self.weights: dict[Key, NDArray] = {}
        self.versions: dict[Key, int] = {}
        self.pulled: dict[tuple[int, Key], int] = {}  # (worker, key) -> the version that it has
        self.copies: dict[tuple[int, Key], Array] = {}  # what it has pulled, for DCASGD
        self.updater = None if optimizer is None else _own(optimizer)
        self._compensates = optimizer is not None and "previous" in optimizer.copies

    def run(self) -> None:
        """Answer requests until every worker has asked to stop."""
        from mpi4py import MPI

        raw, status, left = self.roles.raw, MPI.Status(), self.roles.first_server
        while left:
            while not raw.Iprobe(MPI.ANY_SOURCE, REQUEST, status):
                time.sleep(_IDLE)
            worker = status.Get_source()
            request = receive(raw, worker, REQUEST, status)
            if request.about["op"] == "stop":
                left -= 1
                continue
            send(raw, worker, REPLY, self._answer(worker, request))

    def _answer(self, worker: int, request: Message) -> Message:
        """Return the reply; an error is the worker's who has asked."""
        try:
            return getattr(self, f"_{request.about['op']}")(worker, request)  # type: ignore[no-any-return]
        except Exception as error:  # whatever it is: the server goes on for the others
            return Message({"error": f"{type(error).__name__}: {error}"})

    def _init(self, worker: int, request: Message) -> Message:
        for key, array in zip(request.about["keys"], request.arrays, strict=True):
            self.weights.setdefault(key, NDArray(array.copy()))
            self.versions.setdefault(key, 0)
        return Message({})

    def _pull(self, worker: int, request: Message) -> Message:
        keys: list[Key] = request.about["keys"]
        arrays = []
        for key in keys:
            array = self._weight(key).storage.array
            self.pulled[worker, key] = self.versions[key]
            if self._compensates:
                self.copies[worker, key] = array.copy()
            arrays.append(array)
        return Message({"types": [dtype_name(a.dtype) for a in arrays]}, joined(arrays))

    def _push(self, worker: int, request: Message) -> Message:
        staleness = self._update(worker, request)
        return Message({"staleness": staleness})

    def _pushpull(self, worker: int, request: Message) -> Message:
        staleness = self._update(worker, request)
        reply = self._pull(worker, request)
        reply.about["staleness"] = staleness
        return reply

    def _update(self, worker: int, request: Message) -> int:
        """Update weights by a worker's gradients; return the largest staleness among them."""
        about, updater = request.about, self.updater
        keys: list[Key] = about["keys"]
        if updater is None:
            raise MXNetError("dist_async updates on the server, which has no optimizer: all ranks call set_optimizer")
        weights = [self._weight(key) for key in keys]
        grads = divided(request.arrays, [(w.storage.array.dtype, w.shape) for w in weights])
        stale = [self.versions[key] - self.pulled.get((worker, key), 0) for key in keys]
        for key, weight, grad, (rate, decay) in zip(keys, weights, grads, about["rates"], strict=True):
            updater.optimizer.lr, updater.optimizer.wd = rate, decay
            updater.optimizer.rescale_grad = about["rescale"]
            if self._compensates:
                self._restore_copy(updater, worker, key, weight)
            updater(key, NDArray(grad), weight)
            self.versions[key] += 1
        debug.log("kvstore", f"push of worker {worker}: {len(keys)} keys, staleness {max(stale)}")
        return max(stale)

    def _restore_copy(self, updater: Updater, worker: int, key: Key, weight: NDArray) -> None:
        """Make the weight that this worker has pulled the one from which its delay is compensated."""
        state = updater._state(key, weight)
        arrays = dict(zip(updater.optimizer.states(weight.type), arrays_of(state), strict=True))
        if (copy := self.copies.get((worker, key))) is not None:
            arrays["previous"].storage.write(copy)

    def _states(self, worker: int, request: Message) -> Message:
        if self.updater is None:
            raise MXNetError("there is no optimizer whose states could be saved")
        return Message({}, [np.frombuffer(self.updater.get_states(request.about["dump_optimizer"]), np.uint8)])

    def _load(self, worker: int, request: Message) -> Message:
        """Take over the states of this server's keys from those of all servers."""
        if self.updater is None:
            raise MXNetError("there is no optimizer whose states could be loaded")
        for array in request.arrays:
            other = get_updater(self.updater.optimizer)
            other.set_states(array.tobytes())
            mine = {key: state for key, state in other.states.items() if key in self.weights}
            self.updater.states |= mine
            self.updater._elsewhere |= mine.keys()
        return Message({})

    def _weight(self, key: Key) -> NDArray:
        if (found := self.weights.get(key)) is None:
            raise MXNetError(f"kvstore key {key!r} has not been initialized")
        return found


def _own(optimizer: Optimizer) -> Updater:
    """Return an updater whose rates are those of the pushes alone."""
    optimizer.lr_scheduler = None
    optimizer.param_dict = {}
    optimizer.lr_mult, optimizer.wd_mult = {}, {}
    updater = get_updater(optimizer)
    assert isinstance(updater, Updater)
    return updater
