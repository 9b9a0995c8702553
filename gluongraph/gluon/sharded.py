"""Sharded parameters and optimizer states of a Trainer: arenas that are divided among ranks, and this rank's shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.parameter import Parameter
from gluongraph.kvstore.distributed import DistributedStore
from gluongraph.ndarray import NDArray
from gluongraph.ops.collective import SHARD, flat_offsets
from gluongraph.optimizer import Optimizer
from gluongraph.runtime.arena import Arena
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.storage import Array, Storage, aligned_empty, release, restore
from gluongraph.tracing.sharding import STRATEGIES, Bucket, Sharding, is_elementwise

BUCKET = 4 << 20  # bytes of a bucket of zero2 and fsdp, at least
States = Mapping[str, Mapping[str, NDArray]]  # parameter -> state -> array


def check_strategy(strategy: str | None, kvstore: Any) -> None:
    """Refuse a strategy that does not exist, or without workers to share the work.

    Raises:
        ValueError: no such strategy; a store that is not dist_sync.
    """
    if strategy is None or strategy == "allreduce":
        return
    if strategy not in STRATEGIES:
        known = ", ".join(("allreduce", *STRATEGIES))
        raise ValueError(with_user_location(f"there is no strategy {strategy!r}", help=f"one of {known}"))
    of_workers = isinstance(kvstore, DistributedStore) or (isinstance(kvstore, str) and "dist" in kvstore)
    if not of_workers or (isinstance(kvstore, str) and "async" in kvstore):
        message = f"strategy={strategy!r} shares the state among workers, and kvstore={kvstore!r} has none"
        raise ValueError(with_user_location(message, help='kvstore="dist_sync"'))


def buckets_of(params: Sequence[Parameter], optimizer: Optimizer, size: int) -> tuple[Bucket, ...]:
    """Return the buckets of all parameters with gradients, in reversed order, as gradients become ready. Each has
    parameters of one dtype with equal scalars; and with a `size`, no more than are needed for so many bytes."""
    open_buckets: dict[tuple[Any, ...], list[int]] = {}
    closed: list[list[int]] = []
    for i in reversed(range(len(params))):
        if params[i].grad_req == "null":
            continue
        key = (params[i].list_data()[0].type.dtype, optimizer.alike(i))
        members = open_buckets.setdefault(key, [])
        members.append(i)
        if size and sum(params[m].list_data()[0].type.nbytes for m in members) >= size:
            closed.append(open_buckets.pop(key))
    groups = [*closed, *open_buckets.values()]
    return tuple(
        Bucket(
            f"{SHARD}{number}",
            tuple(params[i].key for i in members),
            tuple(params[i].list_data()[0].type for i in members),
            tuple(members),
        )
        for number, members in enumerate(groups)
    )


class ShardedParameters:
    """Arenas of the buckets of a Trainer's parameters; `shards` are this rank's parts of them, by graph input.

    Raises:
        MXNetError: an optimizer whose formula takes whole parameters, such as norms of layers.
    """

    def __init__(self, params: Sequence[Parameter], optimizer: Optimizer, communicator: Communicator, strategy: str):
        self._params, self._optimizer, self._communicator, self.strategy = params, optimizer, communicator, strategy
        size = 0 if strategy == "zero1" else BUCKET
        buckets = buckets_of(params, optimizer, size)
        _check_elementwise(optimizer, buckets, strategy)
        self.sharding = Sharding(buckets, communicator.size, gathers=strategy == "fsdp", bytes=size)
        self._is_open = False  # are whole parameters there for a while?
        self.shards: dict[str, NDArray] = {}
        self._arenas: list[Arena] = []
        arrays = {p.key: p.list_data()[0] for p in params}
        for bucket in buckets:
            arena = Arena([arrays[name].storage for name in bucket.parameters], parts=communicator.size)
            part = arena.part(communicator.rank, arrays[bucket.parameters[0]].storage.array.dtype)
            if self.sharding.gathers:
                part = part.copy()
            else:
                self._arenas.append(arena)
            self.shards[bucket.name] = NDArray(part, arrays[bucket.parameters[0]].context)
        if self.sharding.gathers:
            self._release()

    def _storages(self, bucket: Bucket) -> Iterator[list[Storage]]:
        """Iterate over the storages of each parameter of a bucket, one for each context."""
        by_key = {p.key: p for p in self._params}
        for name in bucket.parameters:
            yield [array.storage for array in by_key[name].list_data()]

    def _release(self) -> None:
        """Give back the memory of whole parameters."""
        for bucket in self.sharding.buckets:
            for storages in self._storages(bucket):
                for storage in storages:
                    release(storage)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within: parameters are whole, gathered from all ranks; what is written into them stays. All ranks call it."""
        if not self.sharding.gathers or not self._is_released():
            yield
            return
        gathered, self._is_open = self._gather(), True
        for name, whole in gathered.items():  # for steps that do not update, which read shards
            self.shards[name].storage.rehome(self._own(whole), copy=False)
        try:
            yield
        finally:
            for name, whole in gathered.items():
                self.shards[name].storage.rehome(self._own(whole).copy(), copy=False)
            self._release()
            self._is_open = False

    def _own(self, whole: Array) -> Array:
        """Return this rank's part of flat memory."""
        size = whole.size // self._communicator.size
        return whole[size * self._communicator.rank :][:size]

    def _gather(self) -> dict[str, Array]:
        """Let parameters live in flat memory gathered from all ranks, by bucket, which is returned; all but those that
        have got other arrays meanwhile."""
        self._agree("whole parameters are gathered")
        gathered: dict[str, Array] = {}
        for bucket in self.sharding.buckets:
            shard = self.shards[bucket.name].storage.array
            whole = gathered[bucket.name] = aligned_empty((shard.size * self._communicator.size,), shard.dtype)
            self._communicator.allgather(shard, whole)
            for storages, part in zip(self._storages(bucket), _parts(bucket, whole).values(), strict=True):
                for storage in storages:
                    if storage.absent:
                        restore(storage, part)
        return gathered

    def check(self, eager: bool) -> None:
        """Refuse updates that cannot be made of shards, or would be lost, since whole parameters are written over them.

        Raises:
            MXNetError: an eager update, or one within `whole`, where parameters are sharded; one that draws random
                numbers.
        """
        if self._optimizer.draws:
            raise _refusal(self.strategy, self._optimizer)
        if self.sharding.gathers and (eager or self._is_open):
            what = "an eager update" if eager else "a step within whole_parameters()"
            help = "train by a step of mx.compile, outside of whole_parameters()"
            raise MXNetError(with_user_location(f'{what}, with strategy="fsdp"', help=help))

    def dissolve(self) -> None:
        """Make all parameters whole again, for good."""
        if self.sharding.gathers and self._is_released():
            self._gather()

    def _is_released(self) -> bool:
        return any(s.absent for bucket in self.sharding.buckets for each in self._storages(bucket) for s in each)

    def is_stale(self) -> bool:
        """Would shards be others now, since scalars of parameters have come apart or together, or since parameters are
        frozen, or have got other arrays?"""
        return self._buckets_now() != self.sharding.buckets or self._is_elsewhere()

    def _is_elsewhere(self) -> bool:
        """Is a parameter no longer where its shards are made of?"""
        if self.sharding.gathers:
            storages = (s for bucket in self.sharding.buckets for each in self._storages(bucket) for s in each)
            return not self._is_open and not all(s.absent for s in storages)
        firsts = ([each[0] for each in self._storages(bucket)] for bucket in self.sharding.buckets)
        return not all(arena.holds(each) for arena, each in zip(self._arenas, firsts, strict=True))

    def agree_on_buckets(self) -> None:
        """Compare the buckets as they would be now with all ranks, who call this where buckets are stale.

        Raises:
            Disagreement: other ranks have other ones, or do something else.
        """
        rows = (f"parameters that are updated alike: {', '.join(b.parameters)}" for b in self._buckets_now())
        self._agree("\n".join(["parameters are divided among ranks anew", *rows]))

    def _buckets_now(self) -> tuple[Bucket, ...]:
        return buckets_of(self._params, self._optimizer, self.sharding.bytes)

    def _agree(self, what: str) -> None:
        """Wait for all ranks to do the same, before collectives that would mix with those of something else."""
        Agreement(self._communicator, what)()

    def gathered(self, states: Mapping[str, Any]) -> dict[str, dict[str, NDArray]]:
        """Return the states of whole parameters from the shards' states of all ranks. All ranks call this."""
        self._agree("states of whole parameters are gathered")
        found: dict[str, dict[str, NDArray]] = {}
        for bucket in self.sharding.buckets:
            for key, shard in states.get(bucket.name, {}).items():
                whole = np.empty(shard.size * self._communicator.size, shard.storage.array.dtype)
                self._communicator.allgather(shard.storage.array, whole)
                for name, part in _parts(bucket, whole).items():
                    found.setdefault(name, {})[key] = NDArray(part.copy())
        return found

    def scatter(self, states: States, own: Mapping[str, Mapping[str, NDArray]]) -> None:
        """Write this rank's shards of the states of whole parameters into its `own` states; those of parameters that
        have none become new."""
        for bucket in self.sharding.buckets:
            has_all = states.keys() >= set(bucket.parameters)
            new = {} if has_all else self._optimizer.member(bucket.indices[0]).new_states(self.shards[bucket.name])
            for key, shard in own[bucket.name].items():
                whole = np.zeros(shard.size * self._communicator.size, shard.storage.array.dtype)
                if key in new:
                    self._own(whole)[:] = new[key].storage.array
                for name, part in _parts(bucket, whole).items():
                    if name in states:
                        part[...] = states[name][key].storage.array
                shard.storage.write(self._own(whole))


def _check_elementwise(optimizer: Optimizer, buckets: Sequence[Bucket], strategy: str) -> None:
    """Raise MXNetError for an optimizer whose formula does not compute each element by itself."""
    dtypes = dict.fromkeys(bucket.types[0].dtype for bucket in buckets)
    if not optimizer.has_formula or not all(is_elementwise(optimizer, dtype) for dtype in dtypes):
        raise _refusal(strategy, optimizer)


def _refusal(strategy: str, optimizer: Optimizer) -> MXNetError:
    """The error for such an optimizer."""
    name = type(optimizer).__name__
    if not optimizer.has_formula:
        why = f"{name} has no formula, and updates parameters in Python"
    elif optimizer.draws:
        drawn = "rounds its states by" if optimizer.state_form is not None else "draws"
        why = f"{name} {drawn} random numbers of whole parameters"
    else:
        why = f"{name} computes an update from whole parameters"
    message = f"strategy={strategy!r} divides parameters among ranks at any element, and {why}"
    return MXNetError(with_user_location(message, help="leave strategy out, or use another optimizer"))


def _parts(bucket: Bucket, whole: Array) -> dict[str, Array]:
    """Return views of the parameters' elements in flat memory. A state may have another dtype than its parameter, so
    offsets are counted in elements of the parameter."""
    size = bucket.types[0].nbytes // bucket.types[0].size
    starts = [at // size for at in flat_offsets(bucket.types)[0]]
    rows = zip(bucket.parameters, bucket.types, starts, strict=True)
    return {name: whole[start : start + ty.size].reshape(ty.shape) for name, ty, start in rows}
