"""Trainer: applies an optimizer to a set of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NoReturn

from gluongraph.eager.tape import Leaf
from gluongraph.errors import pluralize, with_user_location
from gluongraph.gluon import torch_trainer, trainer_states
from gluongraph.gluon.eager_update import EagerUpdate, PythonUpdate
from gluongraph.gluon.step_lock import serialized
from gluongraph.gluon.trace_guards import Edits
from gluongraph.gluon.trained_parameters import TrainedParameters
from gluongraph.gluon.trainer_updater import TrainerUpdater
from gluongraph.host.file_names import check_name
from gluongraph.kvstore import KVStore
from gluongraph.kvstore.asynchronous import AsynchronousStore
from gluongraph.kvstore.distributed import DistributedStore
from gluongraph.nd.row_sparse_array import share_rows
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer
from gluongraph.runtime.communicator.base import CommunicationError
from gluongraph.storage import Array
from gluongraph.tracing.loss_scaling import LossScale


class Trainer(TrainedParameters):
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
        torch = torch_trainer.taken_over(optimizer, params, optimizer_params)
        if torch is not None:
            params, optimizer, optimizer_params = torch.parameters, torch.rule, None
        super().__init__(
            params, optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore, strategy, torch
        )
        self._scale = self._optimizer.rescale_grad
        self.skips = False  # are updates left out whose gradients are not finite? amp.init_trainer asks for that
        self.scaled_by = 1.0  # what amp.scale_loss has multiplied the loss of the next update by
        # The weights that want a gradient, and their leaves, as they were at that time.
        self._weights: tuple[NDArray, ...] = ()
        self._agreed: tuple[tuple[NDArray, ...], str, str] = ((), "", "")  # what `_agree` has compared last
        self._leaves: tuple[Leaf | None, ...] = ()
        self._marked_at = (-1, -1)
        self.scaler = LossScale()  # of amp.scale_loss, and of compiled steps with precision="16-mixed"
        if torch is not None and any(states := torch.states_of_now()):
            torch.load_states(self, states)

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

    def _init_optimizer(self, optimizer: str | Optimizer, optimizer_params: Mapping[str, Any] | None) -> None:
        super()._init_optimizer(optimizer, optimizer_params)
        self._scale = self._optimizer.rescale_grad

    def _grow(self, torch: Any) -> None:
        super()._grow(torch)
        self._marked_at = (-1, -1)

    def _acts_in_python(self) -> bool:
        """Or in a method of a subclass?"""
        return super()._acts_in_python() or any(getattr(type(self), n) is not getattr(Trainer, n) for n in _HOOKS)

    # -- rates and scales

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
            self._follow_states()
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
        self._follow_states()
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

    def _follow_states(self) -> None:
        """Go on from states that have been changed in an optimizer of torch."""
        if self._torch is not None:
            self._torch.follow_states(self)

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
