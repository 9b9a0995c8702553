"""Batches of arrays in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluongraph.errors import pluralize, with_user_location
from gluongraph.gluon.data.sampler import check_batch_size
from gluongraph.gluon.data.split import check_part
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.ndarray import NDArray
from gluongraph.ranges import check_count
from gluongraph.storage import Array

State = dict[str, Any]


class ArrayLoader:
    """Batches of arrays whose first axis counts samples: of one array its rows, of several a tuple of theirs.

    Batches of consecutive samples are views of the arrays, shuffled ones are gathered by one `take` each. The order of
    a pass follows from `seed` and the number of the pass alone, so `state_dict()` is a few numbers; without a seed one
    is drawn from `numpy.random` when the first pass begins. `drop_last` leaves a last batch out that is not full.

    >>> import numpy as np
    >>> from gluongraph.lightning.data import ArrayLoader
    >>> x, y = np.arange(10.0).reshape(5, 2), np.arange(5)
    >>> loader = ArrayLoader(x, y, batch_size=2)
    >>> [labels.tolist() for _, labels in loader]
    [[0, 1], [2, 3], [4]]
    >>> features, labels = iter(loader).stack(2)  # two batches in one array
    >>> features.shape, labels.tolist()
    ((2, 2, 2), [[0, 1], [2, 3]])

    Raises:
        ValueError: no arrays, arrays without a first axis or of different lengths, a batch size or seed that is none.
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
    ):
        check_batch_size(self, batch_size)
        if seed is not None:
            check_count(self, "seed", seed, 0)
        self.arrays = tuple(_as_numpy(array) for array in arrays)
        _check_lengths(self.arrays)
        self.batch_size, self.shuffle, self.seed, self.drop_last = int(batch_size), shuffle, seed, drop_last
        self.epoch = 0  # the number of the next pass
        self._parts, self._part = 1, 0
        self._pad = True
        self._running: ArrayPass | None = None
        self._resumed = 0  # batches of the next pass that are done

    @property
    def num_samples(self) -> int:
        """How many samples the arrays have, those of other ranks included."""
        return len(self.arrays[0])

    def __len__(self) -> int:
        samples = self._samples()
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> ArrayPass:
        skipped, self._resumed = self._resumed, 0
        if self.shuffle and self.seed is None:
            self.seed = int(np.random.randint(0, 1 << 32, dtype=np.uint64))
        self._running = ArrayPass(self, self._order(), len(self), skipped)
        self.epoch += 1
        return self._running

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be the one with this number, counted from 0."""
        check_count(self, "epoch", epoch, 0)
        if not self._resumed:
            self.epoch = epoch

    def part(self, parts: int, index: int, pad: bool = True) -> ArrayLoader:
        """A loader of every `parts`-th sample of each pass, from number `index` on: this rank's.

        With `pad` the first samples are read again where the parts are not equal, so that all have equally many.

        >>> import numpy as np
        >>> from gluongraph.lightning.data import ArrayLoader
        >>> [batch.tolist() for batch in ArrayLoader(np.arange(5), batch_size=2).part(2, 1)]
        [[1, 3], [0]]
        """
        check_part(self, parts, index)
        made = copy.copy(self)
        made._parts, made._part, made._pad, made._running = parts, index, pad, None
        return made

    def state_dict(self) -> State:
        """Which pass it is in, and how many of its batches it has given out.

        >>> import numpy as np
        >>> from gluongraph.lightning.data import ArrayLoader
        >>> ArrayLoader(np.arange(5), batch_size=2).state_dict()
        {'batches': 0, 'epoch': 0, 'seed': None, 'samples': 5}
        """
        running = self._running is not None and self._running.left > 0
        given = self._running.given if running and self._running is not None else self._resumed
        return {"batches": given, "epoch": self.epoch - running, "seed": self.seed, "samples": self.num_samples}

    def load_state_dict(self, state: State) -> None:
        """Let the next pass be the one of this state, from that batch on.

        Raises:
            ValueError: it is the state of a loader of another number of samples.
        """
        if state["samples"] != self.num_samples:
            samples = pluralize(state["samples"], "sample")
            raise ValueError(with_user_location(f"the state is that of {samples}; here are {self.num_samples}"))
        self.epoch, self.seed, self._resumed = state["epoch"], state["seed"], state["batches"]
        self._running = None

    def _samples(self) -> int:
        """Of one pass, on this rank."""
        if self._pad:
            return -(-self.num_samples // self._parts)
        return len(range(self._part, self.num_samples, self._parts))

    def _order(self) -> Array | None:
        """The samples of the next pass; None: all of them as they lie in memory."""
        if not self.shuffle and self._parts == 1:
            return None
        order = np.arange(self.num_samples)
        if self.shuffle:
            np.random.default_rng([self.seed or 0, self.epoch]).shuffle(order)
        if self._pad:
            order = np.resize(order, self._samples() * self._parts)
        return order[self._part :: self._parts]


class ArrayPass(Iterator[Any]):
    """One pass: batch by batch, or several consecutive ones in one array."""

    def __init__(self, loader: ArrayLoader, order: Array | None, total: int, skipped: int):
        self._arrays, self._size, self._order = loader.arrays, loader.batch_size, order
        self._samples, self._total, self.given = loader._samples(), total, skipped

    @property
    def left(self) -> int:
        """How many batches are left."""
        return self._total - self.given

    def __next__(self) -> Any:
        if self.given >= self._total:
            raise StopIteration
        start = self.given * self._size
        self.given += 1
        batch = self._rows(start, min(start + self._size, self._samples))
        return batch if len(batch) > 1 else batch[0]

    def close(self) -> None:
        """Leave out the batches that are left: the pass is over."""
        self._total = self.given

    def stack(self, count: int) -> Any:
        """The next `count` batches as one array of shape (count, batch_size, ...) each: a view of consecutive samples.

        None, and nothing is taken, where fewer are left or one of them is not full.
        """
        start = self.given * self._size
        end = start + count * self._size
        if count > self.left or end > self._samples:
            return None
        self.given += count
        made = tuple(rows.reshape(count, self._size, *rows.shape[1:]) for rows in self._rows(start, end))
        return made if len(made) > 1 else made[0]

    def _rows(self, start: int, end: int) -> tuple[Array, ...]:
        if self._order is None:
            return tuple([array[start:end] for array in self._arrays])
        chosen = self._order[start:end]
        return tuple([array.take(chosen, 0) for array in self._arrays])


def _as_numpy(array: Any) -> Array:
    """In the same memory where it is one already, and contiguous: batches of it are then as well."""
    if isinstance(array, NDArray):
        return array.asnumpy()
    if is_torch_loaded():
        from gluongraph.torch.tensors import is_tensor, to_numpy

        if is_tensor(array):
            return np.ascontiguousarray(to_numpy(array.detach().cpu()))
    return np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)


def _check_lengths(arrays: tuple[Array, ...]) -> None:
    if not arrays or any(array.ndim == 0 or array.dtype == object for array in arrays):
        help = "ArrayLoader(x, y, batch_size=32)"
        raise ValueError(with_user_location("ArrayLoader: give arrays whose first axis counts samples", help=help))
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        message = f"ArrayLoader: the arrays have different numbers of samples: {', '.join(map(str, lengths))}"
        raise ValueError(with_user_location(message, help="the first axis of all must be equally long"))
