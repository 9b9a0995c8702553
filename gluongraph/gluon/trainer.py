"""Trainer: applies an optimizer to a set of parameters."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import Any, NoReturn

from gluongraph import optimizer as optimizers
from gluongraph.context import Context
from gluongraph.eager.row_sparse import Rows
from gluongraph.eager.tape import Leaf
from gluongraph.errors import MXNetError, pluralize, with_user_location
from gluongraph.gluon import torch_trainer, trainer_states
from gluongraph.gluon.eager_update import EagerUpdate, PythonUpdate
from gluongraph.gluon.parameter import Parameter, ParameterDict
from gluongraph.gluon.sharded import ShardedParameters, check_strategy
from gluongraph.gluon.step_lock import serialized
from gluongraph.gluon.store_choice import check_kvstore, chosen_store, updates_on
from gluongraph.gluon.trace_guards import Edits
from gluongraph.gluon.trainer_updater import TrainerUpdater
from gluongraph.host.file_names import check_name
from gluongraph.kvstore import KVStore, KVStoreBase
from gluongraph.kvstore.asynchronous import AsynchronousStore
from gluongraph.kvstore.distributed import NAMES, DistributedStore
from gluongraph.nd.row_sparse_array import share_rows
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer
from gluongraph.runtime.communicator.base import CommunicationError, Communicator
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.local import LocalCommunicator
from gluongraph.storage import Array
from gluongraph.tracing.compressed_exchange import RESIDUAL
from gluongraph.tracing.gradient_exchange import Exchange
from gluongraph.tracing.loss_scaling import LossScale
from gluongraph.tracing.optimizer_updates import state_name


class Trainer:
    """Updates parameters by an optimizer: `step(batch_size)` after each `backward`.

    The position of a parameter (a dictionary is sorted by name, a list keeps its order) is the index that the optimizer
    counts by. The optimizer's states are arrays of the trainer, made at the first update.

    Parameters on several contexts have a gradient on each; their sum updates all of them. With `update_on_kvstore`
    (what None means where the store can) that is one update whose result goes to every context, and `grad(ctx)` keeps
    the context's own gradient; without, `allreduce_grads` puts the sum into every `grad(ctx)`, and each context is
    updated by itself. `kvstore` is a name, a store, or None, with which nothing is summed. `compression_params`, such
    as {"type": "2bit", "threshold": 0.5}, are for the store, and mean nothing where there is none: on one context no
    store is made from a name.

    `strategy` says what each of several workers keeps (kvstore="dist_sync"): "allreduce", the default, everything;
    "zero1" its share of the optimizer's states; "zero2" of the gradients as well; "fsdp" of the parameters as well. See
    docs/distributed.md.

    `optimizer` may also be one of torch.optim, or a list of them, with parameters of a net that `from_torch` has made:
    see `Trainer.from_torch`. The trainer then has those of `params` (a net, or parameters) that it updates.

    Threads may share a trainer: its calls take turns, with those of its compiled steps.

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
        TypeError: no parameters at all; the optimizer takes no such argument; `kvstore` is no store.
        RuntimeError: a parameter has not been initialized.
        AssertionError: parameters on different contexts; `optimizer_params` beside an Optimizer object.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,  # str, Optimizer, or what torch_trainer.is_of_torch finds
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: Any = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
        strategy: str | None = None,
    ):
        self._torch = torch_trainer.taken_over(optimizer, params, optimizer_params)
        if self._torch is not None:
            params, optimizer, optimizer_params = self._torch.parameters, self._torch.rule, None
        self._hold(_listed(params))
        self._contexts, self._edits = self._one_context(), Edits.count
        check_kvstore(kvstore, update_on_kvstore)
        check_strategy(strategy, kvstore)
        self._strategy = strategy
        self._sharded: ShardedParameters | None = None
        self._sharded_at: tuple[int, int] | None = None  # `edits` of the optimizer; None: parameters were changed since
        self._optimizer = self._make_optimizer(optimizer, optimizer_params)
        self._scale = self._optimizer.rescale_grad
        self._kvstore_params = {"kvstore": kvstore, "update_on_kvstore": update_on_kvstore}
        self._compression_params = compression_params
        self.skips = False  # are updates left out whose gradients are not finite? amp.init_trainer asks for that
        self.scaled_by = 1.0  # what amp.scale_loss has multiplied the loss of the next update by
        self._kvstore: KVStoreBase | None = None
        self._update_on_kvstore, self._kv_initialized = False, False
        self._own_store = True  # is all that the store does known, so that it can be done in a graph?
        self.in_python = False  # does Python act between gradients and updates: a store, a method, the optimizer?
        self._exchange = Exchange({})
        self._layout: tuple[Any, ...] = ()  # of the exchange and of gradients, for `structure`
        self.states: dict[str, Any] = {}  # replica -> {state: array}; what create_state gave where there is no formula
        self.replaced = 0  # how often others have taken the place of states of a formula: who keeps some asks for it
        self._update_cache: EagerUpdate | PythonUpdate | None = None
        # The weights that want a gradient, and their leaves, as they were at that time.
        self._weights: tuple[NDArray, ...] = ()
        self._agreed: tuple[tuple[NDArray, ...], str, str] = ((), "", "")  # what `_agree` has compared last
        self._leaves: tuple[Leaf | None, ...] = ()
        self._marked_at = (-1, -1)
        self.scaler = LossScale()  # of amp.scale_loss, and of compiled steps with precision="16-mixed"
        self.step_lock = threading.RLock()  # of its steps, eager and compiled: one call at a time
        self.arenas: dict[tuple[str, str], object] = {}  # (role, dtype) -> where compiled steps keep weights and states
        if self._torch is not None and any(states := self._torch.states_of_now()):
            self._torch.load_states(self, states)

    @classmethod
    def from_torch(cls, optimizer: Any, **how: Any) -> Trainer:
        """A trainer with the parameters, parameter groups, options and states of an optimizer of torch.optim, or of a
        list of them; `how` are the other arguments of a Trainer, and multi_precision.

            net = mx.from_torch(model, (example,))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=1000)
            trainer = gluon.Trainer.from_torch(optimizer)
            ...
            schedule.step()  # after each update, as in torch

        The options of the groups (lr, betas, weight_decay, ...) are read before each update, so that schedulers of
        torch go on working; groups that `add_param_group` adds are taken over, and compiled steps follow the
        `requires_grad` of tensors. foreach, fused, capturable and differentiable mean nothing here. Updates are the
        trainer's, and `optimizer.step()` is not called; `torch_state_dict` has the states for it.

        >>> from gluongraph import gluon
        >>> gluon.Trainer.from_torch("sgd")
        Traceback (most recent call last):
            ...
        TypeError: Trainer.from_torch takes an optimizer of torch.optim, not str...

        Raises:
            MXNetError: a class of optimizer that is not known; parameters of a module that `from_torch` has not taken.
            TypeError: it is no optimizer of torch.optim.
        """
        if not torch_trainer.is_of_torch(optimizer):
            message = f"Trainer.from_torch takes an optimizer of torch.optim, not {type(optimizer).__name__}"
            raise TypeError(
                with_user_location(message, help="gluon.Trainer(params, optimizer) takes those of mx.optimizer")
            )
        multi_precision = {"multi_precision": how.pop("multi_precision")} if "multi_precision" in how else None
        return cls(None, optimizer, multi_precision, **how)

    def torch_state_dict(self) -> Any:
        """What `state_dict()` of an optimizer of torch would give, had it made the updates: for its `load_state_dict`.
        Of a trainer of a list of optimizers a list. All workers call this.

            optimizer.load_state_dict(trainer.torch_state_dict())

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> gluon.Trainer([weight], "sgd").torch_state_dict()
        Traceback (most recent call last):
            ...
        gluongraph.errors.MXNetError: SGD is not an optimizer of PyTorch's, and its states mean something else...

        Raises:
            MXNetError: the optimizer is none of mx.optimizer.torch; torch is not installed.
        """
        return torch_trainer.state_dict_of(self, self._torch)

    @serialized
    def load_torch_state_dict(self, state_dict: Any) -> None:
        """Go on from what `state_dict()` of the optimizer of torch gave that this trainer was made of, or of each in a
        list; its parameter groups take the options over.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> gluon.Trainer([weight], "torch.adam").load_torch_state_dict({})
        Traceback (most recent call last):
            ...
        gluongraph.errors.MXNetError: the Trainer was not made of an optimizer of torch, ...

        Raises:
            MXNetError: the trainer was not made of an optimizer of torch.
            FormatError: the states are not those of these parameters and options; the trainer is as before.
        """
        torch_trainer.load_state_dict(self, self._torch, state_dict)

    def __repr__(self) -> str:
        return f"Trainer({pluralize(len(self._params), 'parameter')}, {self._optimizer!r})"

    def __getstate__(self) -> NoReturn:
        help = "save_states and load_states keep what it has learned; a copied net needs another Trainer"
        raise TypeError(with_user_location("a Trainer cannot be copied or pickled", help=help))

    def _one_context(self) -> list[Context]:
        contexts: list[Context] | None = None
        for p in self._params:
            try:
                here = p.list_ctx()
            except RuntimeError:
                raise RuntimeError(
                    with_user_location(
                        f"parameter {p.name!r} has not been initialized", help="call initialize() on the block"
                    )
                ) from None
            if contexts is not None and here != contexts:
                raise AssertionError(f"parameters on different contexts: {p.name!r} is on {here}, others on {contexts}")
            contexts = here
        return contexts or []

    def _make_optimizer(self, optimizer: str | Optimizer, arguments: Mapping[str, Any] | None) -> Optimizer:
        parameters: dict[int | str, Any] = dict(enumerate(self._params))
        if isinstance(optimizer, Optimizer):
            if arguments:
                raise AssertionError("optimizer_params must be None beside an Optimizer object, which has them already")
            optimizer.param_dict = parameters
            return optimizer
        return optimizers.create(optimizer, param_dict=parameters, **(arguments or {}))

    def _init_optimizer(self, optimizer: str | Optimizer, optimizer_params: Mapping[str, Any] | None) -> None:
        """Go on with another optimizer, under MXNet's name: its states and counts begin anew."""
        self._optimizer, self._torch = self._make_optimizer(optimizer, optimizer_params), None
        self._scale = self._optimizer.rescale_grad
        self.states, self.replaced = {}, self.replaced + 1
        self._update_cache, self._kv_initialized, self._layout = None, False, ()

    def _grow(self, torch: Any) -> None:
        """Update the parameters of the groups that have been added, too: their indices follow those of the others."""
        if self._sharded is not None:
            message = (
                f"parameters were added to the optimizer, and strategy={self._strategy!r} has divided those before"
            )
            raise MXNetError(with_user_location(message, help="make the Trainer when all param_groups are there"))
        self._hold([*self._params, *torch.grow()])
        self._optimizer.param_dict = dict(enumerate(self._params))
        self._contexts, self._kv_initialized, self._update_cache = self._one_context(), False, None
        self._layout, self._marked_at = (), (-1, -1)

    def _hold(self, params: list[Parameter]) -> None:
        """Have these parameters, in this order."""
        _tell_apart(params)
        self._params, self._names = params, tuple(p.key for p in params)
        self._position = {p.key: i for i, p in enumerate(params)}

    # -- what it holds

    @property
    def params(self) -> Sequence[Parameter]:
        """The parameters, in index order.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> [p.name for p in trainer.params]
        ['w']
        """
        return self._params

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' keys, in index order: their names, numbered where several have the same.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.names
        ('w',)
        """
        return self._names

    def input_names(self) -> dict[int, str]:
        """What compiled steps call the memory of the parameters, by the id of its storage.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> list(trainer.input_names().values())
        ['w']
        """
        return {id(a.storage): a.name for p in self._params for a in p._arrays or ()}

    def index(self, parameter: Parameter) -> int:
        """The index that the optimizer counts this parameter by.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.index(weight)
        0
        """
        return self._position[parameter.key]

    @property
    def contexts(self) -> Sequence[Context]:
        """Where the parameters are.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.contexts
        [cpu(0)]
        """
        return self._contexts

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer at work.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> type(trainer.optimizer).__name__
        'SGD'
        """
        return self._optimizer

    def optimizer_of(self, name: str) -> Optimizer:
        """The optimizer whose formula updates the input of that name: where parameters are in groups, a group's.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.optimizer_of("w") is trainer.optimizer
        True
        """
        if self._sharded is not None and name in self._sharded.shards:
            bucket = next(bucket for bucket in self._sharded.sharding.buckets if bucket.name == name)
            return self._optimizer.member(bucket.indices[0])
        return self._optimizer.member(self.exchange.indices[name])

    @property
    def scale(self) -> float:
        """The optimizer's own `rescale_grad`, which each step divides by the batch size.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.scale
        1.0
        """
        return self._scale

    def scale_for(self, batch_size: float) -> float:
        """The factor on the gradients of a step: `scale` / batch_size, and by what the loss was scaled.

        Raises:
            ZeroDivisionError, ValueError: batch_size is no positive number.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.scale_for(4)
        0.25
        """
        try:
            if 0 < batch_size < math.inf:
                return self._scale / self.scaled_by / batch_size
            error: type[Exception] = ValueError if batch_size else ZeroDivisionError
        except TypeError:
            error = ValueError
        message = f"division of the gradient by batch_size={batch_size!r}"
        raise error(with_user_location(message, help="a positive number: how many samples the loss is of"))

    @property
    def communicator(self) -> Communicator:
        """The workers: the ranks of a store of several, else this process alone.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.communicator
        LocalCommunicator(rank 0 of 1)
        """
        store: Any = self._kvstore_params["kvstore"]
        if not any(p.deferred for p in self._params):
            self.prepare()
            store = self._kvstore
        elif store in NAMES:  # the store itself is made when shapes are known
            return world()
        return store.communicator if isinstance(store, (AsynchronousStore, DistributedStore)) else LocalCommunicator()

    @property
    def learning_rate(self) -> float:
        """The rate of the last update, without multipliers of parameters.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.learning_rate
        0.1
        """
        return self._optimizer.learning_rate

    @property
    def _amp_loss_scaler(self) -> LossScale | None:
        """The name in MXNet of `scaler`, where amp.init_trainer has been called."""
        return self.scaler if self.skips else None

    @property
    def _updaters(self) -> list[TrainerUpdater]:
        """MXNet's name of what shows the states on each context."""
        self.prepare()
        return [TrainerUpdater(self, place) for place in range(1 if self._exchange.once else len(self._contexts))]

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate from the next update on.

        Raises:
            UserWarning: a scheduler decides the rate.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.set_learning_rate(0.01)
        >>> trainer.learning_rate
        0.01
        """
        self._optimizer.set_learning_rate(lr)

    # -- the store

    @property
    def exchange(self) -> Exchange:
        """What happens to the gradients of replicas. Raises what `prepare` raises.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> dict(trainer.exchange.replicas)
        {'w': ('w',)}
        """
        self.prepare()
        return self._exchange

    def prepare(self, compiled: bool = False) -> None:
        """Choose the store, and give all contexts the first one's weights; nothing where this has been done. For a
        `compiled` step, which computes the gradients after that, parameters are trained whose tensors in torch are.

        Raises:
            DeferredInitializationError: a parameter waits for the first forward.
            ValueError: `update_on_kvstore` asks for what the store cannot do.
            MXNetError: what the store makes of compression_params.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.prepare()
        """
        if self._torch is not None:
            if compiled:
                self._torch.follow_requires_grad()
            if self._torch.has_grown:
                self._grow(self._torch)
        if self._edits != Edits.count:
            contexts = self._one_context()
            self._kv_initialized = self._kv_initialized and contexts == self._contexts
            self._contexts, self._edits, self._layout, self._sharded_at = contexts, Edits.count, (), None
        if not self._kv_initialized:
            self._init_kvstore()
        elif self._sharded is not None and self._sharded_at != self._optimizer.edits:
            self._shard_again(self._sharded)
        if not self._layout:
            how = self._exchange
            self._layout = (
                how.once,
                how.summed,
                how.compression,
                how.ranks,
                how.bucket,
                how.sharding,
                *(p.grad_req for p in self._params),
            )

    @serialized
    def distribute(self, strategy: str | None = None) -> None:
        """Exchange gradients with the other workers, as with kvstore="dist_sync": for loops that start the workers, as
        that of `gluongraph.lightning`. A trainer whose store is one of several workers stays as it is.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd")
        >>> trainer.distribute("zero1")
        >>> trainer.strategy
        'zero1'

        Raises:
            MXNetError: it has made updates, of which the other workers know nothing; or its store is an object.
            ValueError: no such strategy.
        """
        store: Any = self._kvstore_params["kvstore"]
        if "dist" in (store if isinstance(store, str) else getattr(store, "type", "")):
            return
        if isinstance(store, KVStoreBase) or self._optimizer.num_update != self._optimizer.begin_num_update:
            message = f"the trainer's kvstore, {getattr(store, 'type', store)!r}, exchanges nothing between workers"
            raise MXNetError(with_user_location(message, help='gluon.Trainer(..., kvstore="dist_sync")'))
        check_strategy(strategy, "dist_sync")
        self._kvstore_params["kvstore"], self._strategy = "dist_sync", strategy
        self._kv_initialized, self._layout = False, ()

    def _init_kvstore(self) -> None:
        if self._sharded is not None:
            self._sharded.dissolve()
        arrays = {p: p.list_data() for p in self._params if p.grad_req != "null" or not p.deferred}
        store = chosen_store(self._kvstore_params["kvstore"], self._contexts)
        on_store = updates_on(store, self._kvstore_params["update_on_kvstore"], tuple(arrays), self._contexts)
        own = store is None or (isinstance(store, KVStore) and store.in_graph)
        if store is not None:
            if self._compression_params:
                _check_compression(arrays)
                store.set_gradient_compression(self._compression_params)
            if on_store and not own:
                store.set_optimizer(self._optimizer)
            elif isinstance(store, KVStore) and on_store and store is not self._kvstore_params["kvstore"]:
                store.set_updater(TrainerUpdater(self))  # of a store that only the trainer has
            if isinstance(store, KVStore):
                store.agree(self._described(arrays, store))
            for p, replicas in arrays.items():
                if p.grad_req == "null":
                    replicas = replicas[:1]  # running statistics of contexts may differ, and go on to
                if isinstance(store, KVStore) and own:
                    store.share(replicas)
                else:
                    store.broadcast(self.index(p), replicas[0], out=replicas, priority=-self.index(p))
        self._kvstore, self._update_on_kvstore, self._own_store, self._layout = store, on_store, own, ()
        self._sharded = self._shard(store, on_store)
        self._exchange = Exchange(
            replicas=self._replica_names(),
            once=on_store,
            summed=store is not None,
            compression=store.compression if isinstance(store, KVStore) else None,
            ranks=store.num_workers if own and store is not None else 1,
            bucket=store.bucket if isinstance(store, DistributedStore) else 0,
            sharding=self._sharded.sharding if self._sharded is not None else None,
            by_rows=frozenset(p.key for p in self._params if p.grad_stype == "row_sparse"),
        )
        changed = any(getattr(type(self), name) is not getattr(Trainer, name) for name in _HOOKS)
        self.in_python = changed or not own or not self._optimizer.has_formula
        self._kv_initialized = True

    @property
    def strategy(self) -> str | None:
        """What each of several workers keeps, as given.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> gluon.Trainer([weight], "sgd", {"learning_rate": 0.1}).strategy is None
        True
        """
        return self._strategy

    def shrink(self) -> Communicator:
        """Go on with the workers that are left after one was lost; returns their communicator.

        Raises:
            CommunicationError: the job was not started to go on without workers: gluongraph run --elastic.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.shrink()  # no worker is lost
        LocalCommunicator(rank 0 of 1)
        """
        self.prepare()
        if not isinstance(self._kvstore, DistributedStore):
            return LocalCommunicator()
        communicator = self._kvstore.shrink()
        ranks, bucket = communicator.size, self._kvstore.bucket
        self._exchange, self._layout = replace(self._exchange, ranks=ranks, bucket=bucket), ()
        self._update_cache = None
        return communicator

    def _shard(self, store: KVStoreBase | None, on_store: bool) -> ShardedParameters | None:
        """The shards of the parameters, where the strategy and several workers ask for them."""
        strategy, self._sharded_at = self._strategy, self._optimizer.edits
        if strategy in (None, "allreduce") or not isinstance(store, DistributedStore) or store.num_workers == 1:
            return None
        wrong = ""
        if not on_store:
            wrong = "update_on_kvstore=False"
        elif store.compression is not None:
            wrong = "compression_params"
        elif any(p.grad_stype == "row_sparse" for p in self._params):
            wrong = "gradients that are kept by rows"
        if wrong:
            raise ValueError(with_user_location(f"strategy={strategy!r} with {wrong}", help="leave one of both out"))
        return ShardedParameters(self._params, self._optimizer, store.communicator, str(strategy))

    def _shard_again(self, sharded: ShardedParameters) -> None:
        """Divide parameters and states anew, where scalars of parameters have come apart or together."""
        if sharded.is_stale():
            sharded.agree_on_buckets()
            states = self.whole_states()
            sharded.dissolve()
            self.states, self.replaced = {}, self.replaced + 1
            self._sharded = self._shard(self._kvstore, self._update_on_kvstore)
            assert self._sharded is not None
            self._exchange = replace(self._exchange, sharding=self._sharded.sharding)
            self._layout, self._update_cache = (), None
            self._scatter_states(states)
        self._sharded_at = self._optimizer.edits

    def whole_states(self) -> dict[str, Any]:
        """The optimizer's states by replica; where they are sharded, gathered from all workers, who all call this. Of
        parameters that are frozen every worker keeps whole states.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.whole_states()  # there has been no update yet
        {}
        """
        if self._sharded is None:
            return self.states
        frozen = {name: state for name, state in self.states.items() if name in self._position}
        return frozen | self._sharded.gathered(self.states)

    @contextmanager
    def whole_parameters(self) -> Iterator[None]:
        """Within: every worker has whole parameters, with strategy="fsdp" gathered from all of them; what is written
        into them stays. All workers call this.

            with trainer.whole_parameters():
                net.save_parameters("net.params")

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> with trainer.whole_parameters():
        ...     weight.data().asnumpy().tolist()
        [1.0, 1.0]
        """
        if self._sharded is None:
            yield
            return
        with self._sharded.whole():
            yield

    def make_whole(self) -> None:
        """Make parameters whole again, for good, that strategy="fsdp" divides among ranks. All ranks call this.

        >>> from gluongraph import gluon
        >>> net = gluon.nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> gluon.Trainer(net.collect_params(), "sgd").make_whole()  # parameters are whole, on one rank
        """
        if self._sharded is not None:
            self._sharded.dissolve()

    def check_shards(self, eager: bool) -> None:
        """Refuse an update of shards of parameters that would be lost; `eager` is one outside compiled steps.

        >>> from gluongraph import gluon
        >>> p = gluon.Parameter("w", shape=(2,), init="ones")
        >>> p.initialize()
        >>> gluon.Trainer([p], "sgd").check_shards(eager=True)  # nothing is divided

        Raises:
            MXNetError: the update would be lost, since whole parameters are written over it later.
        """
        if self._sharded is not None:
            self._sharded.check(eager)

    def _scatter_states(self, states: Mapping[str, Any]) -> None:
        """Write this worker's shards of states of whole parameters; those of parameters without a shard are kept."""
        assert self._sharded is not None
        divided = self._sharded.sharding.parameters
        self.states = {name: state for name, state in self.states.items() if name not in self._position}
        self.states |= {name: state for name, state in states.items() if name not in divided}
        own: dict[str, dict[str, NDArray]] = {}
        for name in self._sharded.shards:
            self.state_arrays([name])
            own[name] = self.states[name]
        self._sharded.scatter(states, own)

    def _described(self, params: Iterable[Parameter], store: KVStore) -> str:
        """What all workers have in common, line by line."""
        lines = [f"parameter {p.key}: {p.list_data()[0].type}, {p.grad_req}" for p in params]
        if (how := store.compression) is not None:
            lines.insert(0, f"compression {how.type}, threshold {how.threshold}")
        return "\n".join([f"optimizer {type(self._optimizer).__name__}", *lines])

    def _replica_names(self) -> dict[str, tuple[str, ...]]:
        names = {name: (name, *(f"{name}@{ctx}" for ctx in self._contexts[1:])) for name in self._names}
        if taken := [each for replicas in names.values() for each in replicas[1:] if each in names]:
            message = f"a parameter is called {taken[0]!r}, as another one is on that context"
            raise ValueError(with_user_location(message, help="give the parameter, or its block, another name"))
        return names

    @property
    def structure(self) -> tuple[Any, ...]:
        """What the graph of an update depends on besides its parameters. Only once `prepare` has been called.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.prepare()
        >>> before = trainer.structure
        >>> trainer.set_learning_rate(0.01)  # a number that the graph reads
        >>> trainer.structure == before
        True
        """
        return (self._optimizer.structure(), self._layout)

    # -- arrays for graphs, by the names of inputs

    def replica(self, name: str) -> NDArray:
        """The array of an input: "dense0_weight", or on another context than the first "dense0_weight@cpu(1)".

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.replica("w") is weight.data()
        True
        """
        names = self.exchange.replicas
        if self._sharded is not None and (shard := self._sharded.shards.get(name)) is not None:
            return shard
        parameter = self._params[self.exchange.indices[name]]
        return parameter.list_data()[names[parameter.key].index(name)]

    def state_arrays(self, names: Iterable[str]) -> dict[str, NDArray]:
        """The optimizer's states of these replicas, "<replica>/<state>" -> array.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.state_arrays(["w"])  # SGD without momentum has none
        {}
        """
        found: dict[str, NDArray] = {}
        for name in names:
            weight, optimizer = self.replica(name), self.optimizer_of(name)
            have: dict[str, NDArray] | None = self.states.get(name)
            if have is None or {k: a.type for k, a in have.items()} != optimizer.state_types(weight.type):
                self.replaced += have is not None
                have = self.states[name] = optimizer.new_states(weight)
            found |= {state_name(name, k): array for k, array in have.items()}
        return found

    @property
    def wire_bytes(self) -> int:
        """The bytes that this worker sends in one update: the payload of its collectives, see
        `tracing.compressed_exchange.wire_bytes`. Gradients that are kept by rows count as whole arrays.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1}, kvstore="dist_sync")
        >>> trainer.wire_bytes  # one worker: nothing is sent; of two each would send 8 bytes
        0
        """
        exchange = self.exchange
        trained = [p for p in self._params if p.grad_req != "null"]
        arrays = {name: a for p in trained for name, a in zip(exchange.replicas[p.key], p.list_data(), strict=True)}
        return exchange.wire_bytes({name: a.type for name, a in arrays.items()}, self._optimizer, self._contexts[0])

    def residual_arrays(self, names: Iterable[str]) -> dict[str, NDArray]:
        """What gradient compression keeps back of these replicas' gradients, "residual:<replica>" -> array.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.residual_arrays(["w"])  # nothing is compressed
        {}
        """
        found: dict[str, NDArray] = {}
        if isinstance(self._kvstore, KVStore) and self.exchange.compression is not None:
            for parameter in dict.fromkeys(self._params[self.exchange.indices[name]] for name in names):
                if parameter.grad_req != "null":
                    kept = self._kvstore.residuals(parameter.key, parameter.list_data())
                    named = zip(self.exchange.replicas[parameter.key], kept, strict=False)  # a worker keeps one
                    found |= {RESIDUAL + name: array for name, array in named}
        return found

    def set_states(self, states: Mapping[str, Any], residuals: Mapping[str, NDArray]) -> None:
        """Make these the states of the parameters named, on every context; of others they are new again.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.set_states({}, {})
        """
        formula, once = self._optimizer.has_formula, self.exchange.once
        if self._sharded is not None:
            self._scatter_states(states)
            return
        for name, names in self.exchange.replicas.items():
            for replica in names[:1] if once else names:
                if not formula:
                    self.states.pop(replica, None)
                    if name in states:
                        self.states[replica] = _placed(states[name], self.replica(replica).context)
                elif name in states or replica in self.states:
                    new = states.get(name) or self.optimizer_of(replica).new_states(self.replica(replica))
                    for key, array in self.state_arrays([replica]).items():
                        array.storage.write(new[key.removeprefix(replica + "/")].storage.array)
        for key, array in self.residual_arrays(self._names).items():
            kept = residuals.get(key)
            array.storage.write(0 if kept is None or kept.type != array.type else kept.storage.array)

    # -- updating

    @serialized
    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """One update by gradient / batch_size: `allreduce_grads`, then `update`, wherever they happen.

        Raises:
            ZeroDivisionError, ValueError: batch_size is no positive number; nothing is changed.
            UserWarning: a gradient has not been written by a backward since the last update; nothing is changed.
                `ignore_stale_grad=True` leaves such parameters as they are; where only some contexts have a fresh
                gradient, those are summed.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> from gluongraph import autograd
        >>> with autograd.record():
        ...     loss = (2 * weight.data()).sum()
        >>> loss.backward()
        >>> trainer.step(batch_size=2)
        >>> weight.data().asnumpy().tolist()  # 1 - 0.1 * 2 / 2
        [0.8999999761581421, 0.8999999761581421]
        """
        try:
            scale = self.scale_for(batch_size)
            self.prepare()
            self.check_shards(eager=True)
            live = self._live(ignore_stale_grad)
        except Exception as error:
            self.report(error)
            raise
        self._agree("step", live, scale)
        self._optimizer.rescale_grad = scale
        self._allreduce_grads()
        self._apply(live)

    @serialized
    def allreduce_grads(self) -> None:
        """Put the sum over contexts into the gradient on each of them; of one context there is nothing to sum.

        Raises:
            AssertionError: the store updates as well, by `step`.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
        >>> trainer.allreduce_grads()  # one context: nothing to sum
        """
        self.prepare()
        self._check_apart("allreduce_grads()")
        self._agree("allreduce_grads", self._live(True))
        self._allreduce_grads()

    @serialized
    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """The update of `step`, of each context by its own gradient: for code that has summed them itself.

        Raises:
            AssertionError: the store updates, by `step`; or what `step` raises.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
        >>> trainer.update(batch_size=2, ignore_stale_grad=True)  # no backward since: nothing to update
        """
        scale = self.scale_for(batch_size)
        self.prepare()
        self._check_apart("update()")
        live = self._live(ignore_stale_grad)
        self._optimizer.rescale_grad = scale
        self._apply(live)

    def report(self, error: Exception) -> None:
        """Let the other workers know of an error before a step, which they begin: they raise Disagreement, and nothing
        is changed. Errors of the communication itself are known to all.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.report(ValueError("there are no other workers"))
        """
        if isinstance(self._kvstore, DistributedStore) and not isinstance(error, CommunicationError):
            self._kvstore.refuse()

    def _agree(self, call: str, live: tuple[NDArray, ...], scale: float = 1.0) -> None:
        """Compare with the other workers: do all make this call, with fresh gradients of the same parameters, and equal
        numbers?

        Raises:
            Disagreement: they do not.
        """
        store = self._kvstore
        if not isinstance(store, DistributedStore) or store.num_workers == 1:
            return
        if self._agreed[0] is not live or self._agreed[1] != call:
            lines = [f"trainer.{call}", *(f"a fresh gradient of {weight.name}" for weight in live)]
            self._agreed = (live, call, "\n".join(lines))
        rate, updates = self._optimizer.learning_rate, self._optimizer.num_update
        numbers = {"rescale_grad": scale, "learning_rate": rate, "num_update": updates}
        store.agree(self._agreed[2], numbers)

    def _check_apart(self, call: str) -> None:
        if self._update_on_kvstore:
            help = "call step(batch_size), or make the Trainer with update_on_kvstore=False"
            raise AssertionError(
                with_user_location(f"{call} of a trainer whose kvstore sums and updates in one go", help=help)
            )

    def _allreduce_grads(self) -> None:
        """What a subclass that has a way of its own to sum gradients overrides."""
        store = self._kvstore
        if store is None or (self._update_on_kvstore and self._own_store) or isinstance(store, AsynchronousStore):
            return
        for i, p in enumerate(self._params):
            if p.grad_req == "null":
                continue
            grads = [replica.grad for replica in p.list_data() if replica.grad is not None]
            if isinstance(store, KVStore) and self._own_store:
                if p.grad_stype == "row_sparse":
                    share_rows(grads, store.gathered)
                    continue
                total = self.reduced(p.key, p.list_data())
                for grad in grads:
                    grad.storage.write(total)
            elif self._update_on_kvstore:
                store.pushpull(i, grads, out=p.list_data(), priority=-i)
            else:
                store.pushpull(i, grads, priority=-i)

    def reduced(self, name: str, replicas: Sequence[NDArray]) -> Array:
        """The sum of these replicas' gradients, of what compression sends of them.

        >>> import gluongraph as mx
        >>> weight = mx.gluon.Parameter("w", shape=(2,))
        >>> weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        >>> for gradient in weight.list_grad():
        ...     gradient[:] = 1
        >>> trainer = mx.gluon.Trainer([weight], "sgd")
        >>> trainer.prepare()
        >>> trainer.reduced("w", weight.list_data()).tolist()
        [2.0, 2.0]
        """
        grads = [replica.grad for replica in replicas if replica.grad is not None]
        numbers = [self.exchange.replicas[name].index(replica.name) for replica in replicas]
        assert isinstance(self._kvstore, KVStore)
        return self._kvstore.reduced(name, grads, numbers)

    def mean_of_workers(self, number: float) -> float:
        """The mean of a number of each worker, who all call this.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.mean_of_workers(3.0)  # one worker
        3.0
        """
        return self._kvstore.mean(number) if isinstance(self._kvstore, DistributedStore) else number

    def gathered(self, rows: Rows) -> Rows:
        """The rows of gradients of all workers.

        >>> import numpy as np
        >>> from gluongraph import gluon
        >>> from gluongraph.eager.row_sparse import Rows
        >>> weight = gluon.Parameter("w", shape=(3, 2), grad_stype="row_sparse")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> trainer.gathered(Rows(np.array([1]), np.ones((1, 2)), (3, 2))).indices.tolist()  # one worker
        [1]
        """
        return self._kvstore.gathered(rows) if isinstance(self._kvstore, KVStore) else rows

    def _apply(self, live: tuple[NDArray, ...]) -> None:
        """Update these weights; those on other contexts follow where there is one update for all."""
        store = self._kvstore
        on_all = store.all_true if isinstance(store, KVStore) else bool
        usable = not self.skips or self.scaler.accepts(live, on_all)
        if live and usable and isinstance(store, AsynchronousStore):
            self._step_on_servers(store, live)
        elif live and usable and not (self._update_on_kvstore and not self._own_store):  # there the store has done it
            cached = self._update_cache
            if cached is None or not cached.holds(self, live):
                made = EagerUpdate if self._optimizer.has_formula else PythonUpdate
                cached = self._update_cache = made(self, live)
            cached(self)
        for leaf in self._leaves:
            if leaf is not None:
                leaf.fresh = False
        self.scaled_by = 1.0

    def _step_on_servers(self, store: AsynchronousStore, live: tuple[NDArray, ...]) -> None:
        """Push the gradients of these weights, and pull all weights, by one message to each server and one back."""
        gradients: dict[int | str, list[NDArray]] = {}
        for weight in live:
            assert weight.grad is not None
            gradients.setdefault(self._exchange.indices[weight.name], []).append(weight.grad)
        store.step(gradients, {i: p.list_data() for i, p in enumerate(self._params) if p.grad_req != "null"})

    def _live(self, ignore_stale: bool) -> tuple[NDArray, ...]:
        """The weights to update: those that want a gradient and have a fresh one, on every context. As long as that is
        all of them, and none has been replaced, it is one and the same tuple."""
        if self._marked_at != (now := (Edits.count, Leaf.marks)):
            self._weights = tuple(a for p in self._params if p.grad_req != "null" for a in p._ready_arrays())
            self._leaves, self._marked_at = tuple(a._leaf for a in self._weights), now
        fresh = [leaf is not None and leaf.fresh for leaf in self._leaves]
        if all(fresh):
            return self._weights
        if not ignore_stale:
            stale = [a.name for a, ready in zip(self._weights, fresh, strict=True) if not ready]
            raise UserWarning(
                with_user_location(
                    f"the gradient of {', '.join(stale)} has not been updated by a backward since the last step",
                    help="call backward first; if these parameters take no part on purpose, "
                    "step(batch_size, ignore_stale_grad=True)",
                )
            )
        return tuple(compress(self._weights, fresh))

    # -- files

    @serialized
    def save_states(self, fname: str) -> None:
        """Write the optimizer's states, counters and rate, by parameter name, to a safetensors file.

        Of replicas with states of their own the first context's are written. What gradient compression keeps back is
        written too. Not in the file: lr_mult and wd_mult, schedules, and other settings of optimizer and trainer.

        Raises:
            ArgumentError: the name of the file is empty.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer.save_states(folder + "/trainer.states")
        ...     os.listdir(folder)
        ['trainer.states']
        """
        check_name("save_states", fname, "trainer.save_states('trainer.states')")
        self.prepare()
        if self._update_on_kvstore and not self._own_store:
            assert self._kvstore is not None
            self._kvstore.save_optimizer_states(fname, dump_optimizer=True)
        else:
            trainer_states.save(self, fname)

    @serialized
    def load_states(self, fname: str) -> None:
        """Read what `save_states` wrote for the same optimizer and parameters, on whatever contexts they were.

        Raises:
            ArgumentError: the name of the file is empty.
            FormatError: not such a file, or one for another optimizer or other parameters; nothing is changed.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1})
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer.save_states(folder + "/trainer.states")
        ...     trainer.load_states(folder + "/trainer.states")
        """
        check_name("load_states", fname, "trainer.load_states('trainer.states')")
        self.prepare()
        if self._update_on_kvstore and not self._own_store:
            assert self._kvstore is not None
            self._kvstore.load_optimizer_states(fname)
        else:
            trainer_states.load(self, fname)


_HOOKS = ("step", "update", "allreduce_grads", "_allreduce_grads")  # what a subclass may do in its own way


def _listed(params: Any) -> list[Parameter]:
    if isinstance(params, (dict, ParameterDict)):
        params = [params[name] for name in sorted(params.keys())]
    if not isinstance(params, (list, tuple)):
        message = f"params is a list or dictionary of parameters, not {type(params).__name__}"
        raise ValueError(with_user_location(message, help="net.collect_params() gives those of a net"))
    for p in params:
        if not isinstance(p, Parameter):
            raise ValueError(f"params holds parameters, and among them is a {type(p).__name__}")
    if not params:
        raise TypeError("a Trainer needs at least one parameter")
    return list(dict.fromkeys(params))


def _tell_apart(params: Sequence[Parameter]) -> None:
    """Give a key of its own to every parameter that has the name of one before it."""
    taken: dict[str, Parameter] = {}
    for p in params:
        if taken.setdefault(p.key, p) is not p:
            number = 1
            while any(f"{p.name}_{number}" == other.key for other in params):
                number += 1
            p.key = f"{p.name}_{number}"
            taken[p.key] = p


def _check_compression(params: Iterable[Parameter]) -> None:
    if by_rows := [p.name for p in params if p.grad_stype == "row_sparse"]:
        message = f"gradient compression of {', '.join(by_rows)}, of which only rows are kept"
        raise MXNetError(with_user_location(message, help="leave compression_params out, or use sparse_grad=False"))


def _placed(state: Any, ctx: Context) -> Any:
    """A copy of a state as create_state gives it, on a context."""
    if isinstance(state, NDArray):
        return state.copyto(ctx)
    return tuple(_placed(part, ctx) for part in state) if isinstance(state, (list, tuple)) else state
