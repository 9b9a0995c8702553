"""The store within one process: sums over the arrays that are pushed under a key, updates if it has an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gluongraph import autograd
from gluongraph import optimizer as optimizers
from gluongraph.eager.row_sparse import Rows
from gluongraph.errors import DTypeError, MXNetError, ShapeError, with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.ir.graph import Node
from gluongraph.kvstore.base import KVStoreBase, asked, listed
from gluongraph.kvstore.compression import Compression, compression_of, quantized
from gluongraph.kvstore.rows import copy_rows, need_rows, row_numbers, same_numbers
from gluongraph.ndarray import NDArray, invoke
from gluongraph.ops.collective import allreduce_arrays
from gluongraph.storage import Array

Key = int | str
Updater = Callable[[Key, NDArray, NDArray], None]


class KVStore(KVStoreBase):
    """Values by key. `push` sums the arrays of several devices, `pull` copies what is stored to them.

    Without an optimizer the sum replaces what is stored; with one (`set_optimizer`) it is the gradient of what is
    stored. Keys are all integers or all texts; a list of keys takes a list of values. `priority` changes nothing:
    every call is done when it returns. A call that raises has changed nothing.

    >>> from gluongraph import kvstore, nd
    >>> store = kvstore.create("device")
    >>> store.init("w", nd.zeros((2,)))
    >>> store.push("w", [nd.ones((2,)), nd.ones((2,)) * 2])
    >>> out = nd.zeros((2,))
    >>> store.pull("w", out)
    >>> out.asnumpy().tolist()
    [3.0, 3.0]
    """

    in_graph: ClassVar[bool] = True  # can a compiled step do all that the store does?

    def __init_subclass__(cls) -> None:
        """A class that does not say so does something of its own."""
        super().__init_subclass__()
        if "in_graph" not in cls.__dict__:
            cls.in_graph = False

    def __init__(self, name: str = "local"):
        self._name = name
        self._values: dict[Key, NDArray] = {}
        self._updater: Any = None
        self._compression: Compression | None = None
        self._residuals: dict[tuple[Key, int], NDArray] = {}  # (key, number of the device) -> what it keeps back

    @property
    def type(self) -> str:
        """The name that it was created by."""
        return self._name

    @property
    def rank(self) -> int:
        """0: there is one process."""
        return 0

    @property
    def num_workers(self) -> int:
        """1: there is one process."""
        return 1

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Can the store run an optimizer? Yes. Raises ValueError for another question."""
        return asked(capability, True)

    # -- values

    def init(self, key: Any, value: Any) -> None:
        """Store first values, once per key.

        Raises:
            MXNetError: a key has a value already, or is not of the kind of the others.
        """
        pairs = pairs_of(key, value)
        known = {type(k) for k in self._values}
        for k in pairs:
            if k in self._values:
                help = "use push to change it"
                raise MXNetError(with_user_location(f"kvstore key {k!r} is initialized already", help=help))
            if known - {type(k)}:
                raise MXNetError(
                    with_user_location(f"kvstore key {k!r}: the keys of one store are all integers or all texts")
                )
        for k, arrays in pairs.items():
            self._values[k] = NDArray(arrays[0].asnumpy(), arrays[0].context)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum the arrays of each key; replace what is stored by the sum, or update it with the sum as gradient.

        Raises:
            MXNetError: a key that has not been initialized; ShapeError: arrays that do not fit what is stored.
        """
        pairs = self._gradients(key, value)
        with autograd.pause():
            for k, arrays in pairs.items():
                stored = self._values[k]
                total = self.reduced(k, arrays)
                if self._updater is None:
                    stored.storage.write(total)
                else:
                    self._updater(k, NDArray(total, stored.context), stored)

    def _gradients(self, key: Any, value: Any) -> dict[Key, list[NDArray]]:
        """What is pushed, by key; of the right types."""
        pairs = pairs_of(key, value)
        for k, arrays in pairs.items():
            self._check(k, arrays)
            if self._compression is not None:
                self.residuals(k, arrays)
        return pairs

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy what is stored into every `out`.

        Raises:
            AssertionError: no `out`.
            MXNetError: a key that has not been initialized; ShapeError: arrays that do not fit what is stored.
        """
        if out is None:
            raise AssertionError("pull needs out=, the arrays to copy into")
        pairs = pairs_of(key, out)
        for k, arrays in pairs.items():
            self._check(k, arrays)
        for k, arrays in pairs.items():
            for array in arrays:
                array.storage.write(self._values[k].storage.array)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out`, or into the values pushed."""
        target = value if out is None else out
        for k, arrays in pairs_of(key, target).items():
            self._check(k, arrays)
        self.push(key, value, priority)
        self.pull(key, target, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows named by `row_ids` of what is stored into every `out`.

        Afterwards a RowSparseNDArray holds these rows alone; a dense array keeps its other rows. `row_ids` are for all
        of `out`, or a list with an array for each.

        >>> from gluongraph import kvstore, nd
        >>> store = kvstore.create("local")
        >>> store.init("w", nd.array([[1, 1], [2, 2], [3, 3]]))
        >>> out = nd.zeros((3, 2))
        >>> store.row_sparse_pull("w", out=out, row_ids=nd.array([2, 0, 2]))
        >>> out.asnumpy().tolist()
        [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]

        Raises:
            AssertionError: no `out`, no `row_ids`, or another number of them.
            MXNetError: a key that has not been initialized; ShapeError: arrays that do not fit what is stored.
            IndexRangeError: a row that does not exist.
        """
        need_rows(out, row_ids)
        targets, numbers = pairs_of(key, out), pairs_of(key, same_numbers(key, row_ids))
        copies = []
        for k, arrays in targets.items():
            self._check(k, arrays)
            stored = self._values[k].storage.array
            rows = row_numbers(f"kvstore key {k!r}", arrays, numbers[k], len(stored))
            copies += [(stored, *each) for each in zip(rows, arrays, strict=True)]
        for copy in copies:
            copy_rows(*copy)

    def barrier(self) -> None:
        """Wait for all workers: there is one, and its calls are done when they return."""

    _barrier = barrier

    def share(self, replicas: Sequence[NDArray]) -> None:
        """Make arrays on several devices equal to the first."""
        for other in replicas[1:]:
            other.storage.write(replicas[0].storage.array)

    def agree(self, text: str, numbers: Mapping[str, float] | None = None) -> None:
        """Compare a text, and numbers by their names, with all workers: there is one."""

    def refuse(self) -> None:
        """Let the workers that call `agree` know that this one has failed: there is one."""

    def all_true(self, flag: bool) -> bool:
        """Is a flag true on all workers?"""
        return flag

    def gathered(self, rows: Rows) -> Rows:
        """The rows of all workers, in the order of workers."""
        return rows

    # -- what happens to a sum

    def set_optimizer(self, optimizer: optimizers.Optimizer) -> None:
        """From now on a push is a gradient, by which this optimizer (itself, no copy) updates what is stored."""
        self._updater = optimizers.get_updater(optimizer)

    def set_updater(self, updater: Updater) -> None:
        """updater(key, sum, stored) writes into `stored` at each push."""
        self._updater = updater

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Quantize what each device pushes: {"type": "2bit", "threshold": 0.5}, or another type of docs/distributed.md.
        What is not sent waits for the next. Within one process nothing travels: the numbers are those that distant
        devices would see.

        Raises:
            MXNetError: a store whose name lacks "device", no such type, a threshold of 0 or less for "2bit".
        """
        if "device" not in self._name:
            raise MXNetError(
                with_user_location(f"a kvstore {self._name!r} has no gradient compression", help='use kvstore="device"')
            )
        self._compression = compression_of(compression_params)

    @property
    def compression(self) -> Compression | None:
        """The gradient compression, None without."""
        return self._compression

    def residuals(self, key: Key, arrays: Sequence[NDArray]) -> list[NDArray]:
        """What each device keeps back of this key's gradient, zero in the beginning; empty if nothing is kept back.

        Raises:
            MXNetError: the compression cannot send gradients of that dtype.
        """
        if (compression := self._compression) is None:
            return []
        for array in arrays:
            compression.check(key, array.type)
        if not compression.keeps_residual:
            return []
        senders = arrays[:1] if compression.of_workers else arrays
        return [self._residual(key, device, array) for device, array in enumerate(senders)]

    def _residual(self, key: Key, device: int, array: NDArray) -> NDArray:
        kept = self._residuals.get((key, device))
        if kept is None or kept.shape != array.shape:
            kept = self._residuals[key, device] = NDArray(np.zeros(array.shape, np.float32), array.context)
        return kept

    def reduced(self, key: Key, arrays: Sequence[NDArray], devices: Sequence[int] | None = None) -> Array:
        """The sum of arrays of these devices (all by default), of what compression sends of them where it is on."""
        compression = self._compression
        if compression is None or compression.of_workers:
            return allreduce_arrays(*(array.storage.array for array in arrays))
        numbers = range(len(arrays)) if devices is None else devices
        sent = [self._sent(key, i, array, compression) for i, array in zip(numbers, arrays, strict=True)]
        total = NDArray(allreduce_arrays(*sent))
        return invoke(_received, total, type=compression.type, threshold=compression.threshold).storage.array

    def _sent(self, key: Key, device: int, array: NDArray, compression: Compression) -> Array:
        """What a device sends of its array. What it does not is kept back."""
        compression.check(key, array.type)
        how = {"type": compression.type, "threshold": compression.threshold}
        given = NDArray(array.storage.array)  # wherever it is said to live
        if not compression.keeps_residual:
            return invoke(_rounded, given, **how).storage.array
        residual = self._residual(key, device, array)
        sent, kept = invoke(_quantized, given, NDArray(residual.storage.array), **how)
        residual.storage.write(kept.storage.array)
        return sent.storage.array

    # -- files

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states of the store's optimizer, by key; with `dump_optimizer` its counters too.

        Raises:
            ArgumentError: the name of the file is empty.
            AssertionError: the store has no optimizer.
        """
        check_name("save_optimizer_states", fname, "store.save_optimizer_states('store.states')")
        if self._updater is None:
            raise AssertionError("this kvstore has no optimizer whose states could be saved; see set_optimizer")
        with open(fname, "wb") as file:
            file.write(self._updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Read what `save_optimizer_states` wrote.

        Raises:
            ArgumentError: the name of the file is empty.
            AssertionError: the store has no optimizer.
        """
        check_name("load_optimizer_states", fname, "store.load_optimizer_states('store.states')")
        if self._updater is None:
            raise AssertionError("this kvstore has no optimizer whose states could be loaded; see set_optimizer")
        with open(fname, "rb") as file:
            self._updater.set_states(file.read())

    def _check(self, key: Key, arrays: Sequence[NDArray]) -> None:
        """Raise unless there is a value, and the arrays are like it."""
        stored = self._values.get(key)
        if stored is None:
            raise MXNetError(
                with_user_location(f"kvstore key {key!r} has not been initialized", help="call init(key, value)")
            )
        for array in arrays:
            if array.shape != stored.shape:
                raise ShapeError(
                    with_user_location(f"kvstore key {key!r} holds {stored.type}, which {array.type} does not fit")
                )
            if array.type.dtype != stored.type.dtype:
                raise DTypeError(
                    with_user_location(f"kvstore key {key!r} holds {stored.type}, which {array.type} does not fit")
                )


# Builders for `invoke`, which takes numbers and texts beside arrays.


def _quantized(g: Node, residual: Node, *, type: str, threshold: float) -> tuple[Node, Node]:
    sent, kept = quantized(g, residual, Compression(type, threshold))
    assert kept is not None
    return sent, kept


def _rounded(g: Node, *, type: str, threshold: float) -> Node:
    return Compression(type, threshold).sent(g)


def _received(total: Node, *, type: str, threshold: float) -> Node:
    return Compression(type, threshold).received(total)


def pairs_of(key: Any, value: Any) -> dict[Key, list[NDArray]]:
    """key -> arrays, for one key or a list of them; a key that is named twice has the arrays of both."""
    if not isinstance(key, (list, tuple)):
        key, value = [key], [value]
    if not isinstance(value, (list, tuple)) or len(key) != len(value):
        raise AssertionError(with_user_location(f"{len(key)} keys of a kvstore need a list of as many values"))
    pairs: dict[Key, list[NDArray]] = {}
    for k, v in zip(key, value, strict=True):
        if not isinstance(k, (int, str)):
            raise AssertionError(with_user_location(f"a kvstore's key is an integer or a text, not {k!r}"))
        pairs.setdefault(k, []).extend(listed(v))
    for k, arrays in pairs.items():
        if not arrays or not all(isinstance(a, NDArray) for a in arrays):
            raise AssertionError(with_user_location(f"kvstore key {k!r}: values are NDArrays, one per device"))
    if len({type(k) for k in pairs}) > 1:
        raise MXNetError(with_user_location("the keys of one kvstore are all integers or all texts"))
    return pairs
