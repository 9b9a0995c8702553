"""TrainedParameters: the parameters of a Trainer, the store between their replicas, and the optimizer's states."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gluongraph import optimizer as optimizers
from gluongraph.context import Context
from gluongraph.eager.row_sparse import Rows
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.eager_update import EagerUpdate, PythonUpdate
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.sharded import ShardedParameters, check_strategy
from gluongraph.gluon.step_lock import serialized
from gluongraph.gluon.store_choice import check_kvstore, chosen_store, updates_on
from gluongraph.gluon.trace_guards import Edits
from gluongraph.gluon.trainer_updater import TrainerUpdater
from gluongraph.kvstore import KVStore, KVStoreBase
from gluongraph.kvstore.asynchronous import AsynchronousStore
from gluongraph.kvstore.distributed import NAMES, DistributedStore
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.local import LocalCommunicator
from gluongraph.tracing.compressed_exchange import RESIDUAL
from gluongraph.tracing.gradient_exchange import Exchange
from gluongraph.tracing.optimizer_updates import state_name


class TrainedParameters:
    """The parameters of a `gluon.Trainer` on every context and worker, and what the optimizer keeps of them.

    Compiled steps, checkpoints and artefacts get from here the arrays behind the inputs of their graphs, and how
    gradients are exchanged. How eager code updates is in `Trainer`.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None,
        kvstore: Any,
        compression_params: Mapping[str, Any] | None,
        update_on_kvstore: bool | None,
        strategy: str | None,
        torch: Any = None,
    ):
        """The arguments are those of a Trainer; `torch` is what it has taken over from torch.optim, or None."""
        self._torch = torch
        self._hold(_listed(params))
        self._contexts, self._edits = self._one_context(), Edits.count
        check_kvstore(kvstore, update_on_kvstore)
        check_strategy(strategy, kvstore)
        self._strategy = strategy
        self._sharded: ShardedParameters | None = None
        self._sharded_at: tuple[int, int] | None = None  # `edits` of the optimizer; None: parameters were changed since
        self._optimizer = self._make_optimizer(optimizer, optimizer_params)
        self._kvstore_params = {"kvstore": kvstore, "update_on_kvstore": update_on_kvstore}
        self._compression_params = compression_params
        self._kvstore: KVStoreBase | None = None
        self._update_on_kvstore, self._kv_initialized = False, False
        self._own_store = True  # is all that the store does known, so that it can be done in a graph?
        self.in_python = False  # does Python act between gradients and updates: a store, a method, the optimizer?
        self._exchange = Exchange({})
        self._layout: tuple[Any, ...] = ()  # of the exchange and of gradients, for `structure`
        self.states: dict[str, Any] = {}  # replica -> {state: array}; what create_state gave where there is no formula
        self.replaced = 0  # how often others have taken the place of states of a formula: who keeps some asks for it
        self._update_cache: EagerUpdate | PythonUpdate | None = None  # of eager steps, for parameters as they are
        self.step_lock = threading.RLock()  # of its steps, eager and compiled: one call at a time
        self.arenas: dict[tuple[str, str], object] = {}  # (role, dtype) -> where compiled steps keep weights and states

    # -- what it holds

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
        self.states, self.replaced = {}, self.replaced + 1
        self._update_cache, self._kv_initialized, self._layout = None, False, ()

    def _hold(self, params: list[Parameter]) -> None:
        """Have these parameters, in this order."""
        _tell_apart(params)
        self._params, self._names = params, tuple(p.key for p in params)
        self._position = {p.key: i for i, p in enumerate(params)}

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
        self._layout = ()

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
        if self._torch is not None and (compiled or self._torch.tells_states):
            self._torch.follow_states(self)

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
        self.in_python = self._acts_in_python()
        self._kv_initialized = True

    def _acts_in_python(self) -> bool:
        """Does Python act between gradients and updates, in the store or the optimizer?"""
        return not self._own_store or not self._optimizer.has_formula

    def _replica_names(self) -> dict[str, tuple[str, ...]]:
        names = {name: (name, *(f"{name}@{ctx}" for ctx in self._contexts[1:])) for name in self._names}
        if taken := [each for replicas in names.values() for each in replicas[1:] if each in names]:
            message = f"a parameter is called {taken[0]!r}, as another one is on that context"
            raise ValueError(with_user_location(message, help="give the parameter, or its block, another name"))
        return names

    def _described(self, params: Iterable[Parameter], store: KVStore) -> str:
        """What all workers have in common, line by line."""
        lines = [f"parameter {p.key}: {p.list_data()[0].type}, {p.grad_req}" for p in params]
        if (how := store.compression) is not None:
            lines.insert(0, f"compression {how.type}, threshold {how.threshold}")
        optimizer, strategy = type(self._optimizer).__name__, self._strategy or "allreduce"
        return "\n".join([f"optimizer {optimizer}", f"strategy {strategy}", *lines])

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

    # -- shards

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
