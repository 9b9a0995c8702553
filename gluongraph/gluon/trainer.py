"""Trainer: applies an optimizer to a set of parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gluongraph import kvstore as kvstores
from gluongraph import optimizer as optimizers
from gluongraph.errors import FormatError, MXNetError, located
from gluongraph.gluon import files
from gluongraph.gluon.eager_update import EagerUpdate, PythonUpdate
from gluongraph.gluon.parameter import Parameter, ParameterDict
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer
from gluongraph.updates import state_name

FORMAT = 1


class Trainer:
    """Updates parameters by an optimizer: `step(batch_size)` after each `backward`.

    The position of a parameter (a dictionary is sorted by name, a list keeps its order) is the index that the optimizer
    counts by. The optimizer's states are arrays of the trainer, made at the first update.

    >>> from gluongraph import autograd, gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> with autograd.record():
    ...     loss = net(nd.ones((4, 2))).sum()
    >>> loss.backward()
    >>> trainer.step(batch_size=4)

    Raises:
        ValueError: `params` is no list or dictionary of parameters, or names one twice; no such optimizer.
        TypeError: no parameters at all; the optimizer takes no such argument.
        RuntimeError: a parameter has not been initialized.
        AssertionError: parameters on different contexts; `optimizer_params` beside an Optimizer object.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: Any = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ):
        self._params = _listed(params)
        self._names = tuple(p.name for p in self._params)
        self._position = {p.name: i for i, p in enumerate(self._params)}
        if len(self._position) != len(self._params):
            twice = next(n for n in self._names if self._names.count(n) > 1)
            raise ValueError(f"two parameters are called {twice!r}; give one of their blocks another prefix")
        self._contexts = self._one_context()
        self._optimizer = self._make_optimizer(optimizer, optimizer_params)
        self._scale = self._optimizer.rescale_grad
        _check_kvstore(kvstore)
        self._kvstore_name, self._compression = kvstore, compression_params
        self._update_on_kvstore = update_on_kvstore  # one process, one context: the update is local either way
        self._states: dict[str, dict[str, NDArray]] = {}
        self._python_states: dict[int, Any] = {}  # of an optimizer that has no formula
        self._update_cache: EagerUpdate | PythonUpdate | None = None
        self.arenas: dict[tuple[str, str], object] = {}  # (role, dtype) -> where compiled steps keep weights and states

    def _one_context(self) -> list[Any]:
        contexts: list[Any] | None = None
        for p in self._params:
            try:
                here = p.list_ctx()
            except RuntimeError:
                raise RuntimeError(
                    located(f"parameter {p.name!r} has not been initialized", help="call initialize() on the block")
                ) from None
            if contexts is not None and here != contexts:
                raise AssertionError(f"parameters on different contexts: {p.name!r} is on {here}, others on {contexts}")
            contexts = here
        if contexts is not None and len(contexts) > 1:
            raise MXNetError(f"a Trainer works on one context, and the parameters are on {contexts}; initialize on one")
        return contexts or []

    def _make_optimizer(self, optimizer: str | Optimizer, arguments: Mapping[str, Any] | None) -> Optimizer:
        parameters: dict[int | str, Any] = dict(enumerate(self._params))
        if isinstance(optimizer, Optimizer):
            if arguments:
                raise AssertionError("optimizer_params must be None beside an Optimizer object, which has them already")
            optimizer.param_dict = parameters
            return optimizer
        return optimizers.create(optimizer, param_dict=parameters, **(arguments or {}))

    # -- what it holds

    @property
    def params(self) -> Sequence[Parameter]:
        """The parameters, in index order."""
        return self._params

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in index order."""
        return self._names

    def index(self, parameter: Parameter) -> int:
        """The index that the optimizer counts this parameter by."""
        return self._position[parameter.name]

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer at work."""
        return self._optimizer

    @property
    def scale(self) -> float:
        """The optimizer's own `rescale_grad`, which each step divides by the batch size."""
        return self._scale

    def scale_for(self, batch_size: float) -> float:
        """The factor on the gradients of a step: `scale` / batch_size.

        Raises:
            ZeroDivisionError, ValueError: batch_size is no positive number.
        """
        try:
            if 0 < batch_size < math.inf:
                return self._scale / batch_size
            error: type[Exception] = ValueError if batch_size else ZeroDivisionError
        except TypeError:
            error = ValueError
        message = f"division of the gradient by batch_size={batch_size!r}"
        raise error(located(message, help="a positive number: how many samples the loss is of"))

    @property
    def learning_rate(self) -> float:
        """The rate of the last update, without multipliers of parameters."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate from the next update on.

        Raises:
            UserWarning: a scheduler decides the rate.
        """
        self._optimizer.set_learning_rate(lr)

    def state_arrays(self, names: Iterable[str]) -> dict[str, NDArray]:
        """The optimizer's states of these parameters, "<parameter>/<state>" -> array."""
        found: dict[str, NDArray] = {}
        for name in names:
            weight = self._params[self._position[name]].data()
            have = self._states.get(name, {})
            if {k: a.type for k, a in have.items()} != self._optimizer.state_types(weight.type):
                have = self._states[name] = self._optimizer.new_states(weight)
            found |= {state_name(name, k): array for k, array in have.items()}
        return found

    # -- updating

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """One update by gradient / batch_size: `allreduce_grads`, then `update`.

        Raises:
            ZeroDivisionError, ValueError: batch_size is no positive number; nothing is changed.
            UserWarning: a gradient has not been written by a backward since the last update; nothing is changed.
                `ignore_stale_grad=True` leaves such parameters as they are.
        """
        self.update(batch_size, ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Sum the gradients over contexts; of one there is nothing to sum."""

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """The update of `step`, for code that has summed the gradients itself."""
        scale = self.scale_for(batch_size)
        live = self._live(ignore_stale_grad)
        self._optimizer.rescale_grad = scale
        if not live:
            return
        cached = self._update_cache
        if cached is None or not cached.holds(self, live):
            cached = self._update_cache = self._updater(live)
        cached(self)
        for weight in cached.weights:
            weight._fresh_grad = False

    def _updater(self, live: list[Parameter]) -> EagerUpdate | PythonUpdate:
        if self._optimizer.has_formula:
            return EagerUpdate(self, live)
        return PythonUpdate(self, live, self._python_states)

    def _live(self, ignore_stale: bool) -> list[Parameter]:
        """The parameters to update: those that want a gradient and have a fresh one."""
        live: list[Parameter] = []
        stale: list[Parameter] = []
        for p in self._params:
            if p.grad_req != "null":
                (live if p.data()._fresh_grad else stale).append(p)
        if stale and not ignore_stale:
            raise UserWarning(
                located(
                    f"the gradient of {', '.join(p.name for p in stale)} has not been updated by a backward since the "
                    "last step",
                    help="call backward first; if these parameters take no part on purpose, "
                    "step(batch_size, ignore_stale_grad=True)",
                )
            )
        return live

    # -- files

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states and counters, by parameter name, to a safetensors file."""
        optimizer = self._optimizer
        if not optimizer.has_formula:
            raise MXNetError(
                f"the states of {type(optimizer).__name__}, which has no rule(), have no names to save them by"
            )
        about = {
            "format": FORMAT,
            "optimizer": type(optimizer).__name__,
            "lr": optimizer.lr,
            "num_update": optimizer.num_update,
            "counts": {self._names[int(i)]: t for i, t in optimizer.counts().items()},
        }
        arrays = {state_name(p, k): a.asnumpy() for p, table in self._states.items() for k, a in table.items()}
        files.save(fname, arrays, {"trainer": json.dumps(about)})

    def load_states(self, fname: str) -> None:
        """Read what `save_states` wrote for the same optimizer and parameters.

        Raises:
            FormatError: not such a file, or one for another optimizer or other parameters; nothing is changed.
        """
        arrays, metadata = files.load(fname), files.metadata(fname)
        if "trainer" not in metadata:
            raise FormatError(f"{fname} is not a file of trainer states")
        about = json.loads(metadata["trainer"])
        optimizer = self._optimizer
        if about["format"] != FORMAT:
            raise FormatError(f"{fname} has format {about['format']}, this version reads {FORMAT}")
        if about["optimizer"] != type(optimizer).__name__:
            raise FormatError(f"{fname} is of {about['optimizer']}, the trainer uses {type(optimizer).__name__}")
        owners = {key.rpartition("/")[0] for key in arrays} | set(about["counts"])
        if strange := owners - set(self._names):
            raise FormatError(f"{fname} is about {', '.join(sorted(strange))}, which the trainer does not hold")
        mine = self.state_arrays(sorted(owners))
        for key, array in arrays.items():
            if key not in mine or mine[key].shape != array.shape:
                raise FormatError(f"{fname}: {key} of shape {array.shape} fits no state of the trainer")
        for key, array in arrays.items():
            mine[key].storage.write(array)
        optimizer.lr = about["lr"]
        optimizer.restore_counts({self._position[n]: t for n, t in about["counts"].items()}, about["num_update"])


def _listed(params: Any) -> list[Parameter]:
    if isinstance(params, (dict, ParameterDict)):
        params = [params[name] for name in sorted(params.keys())]
    if not isinstance(params, (list, tuple)):
        raise ValueError(f"params is a list or dictionary of parameters, not {type(params).__name__}")
    for p in params:
        if not isinstance(p, Parameter):
            raise ValueError(f"params holds parameters, and among them is a {type(p).__name__}")
    if not params:
        raise TypeError("a Trainer needs at least one parameter")
    return list(dict.fromkeys(params))


def _check_kvstore(kvstore: Any) -> None:
    if kvstore is None or isinstance(kvstore, kvstores.KVStore):
        return
    if not isinstance(kvstore, str):
        raise TypeError(f"kvstore is a name, a KVStore or None, not {type(kvstore).__name__}")
    kvstores.create(kvstore)
