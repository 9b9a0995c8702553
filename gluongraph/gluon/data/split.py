"""Samplers that give each of several workers its part of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.gluon.data.sampler import Sampler, State, numpy_state
from gluongraph.ranges import check_count
from gluongraph.runtime.communicator.environment import world
from gluongraph.storage import Array

LAST = ("pad", "drop")


class DistributedSampler(Sampler):
    """This rank's part of 0 .. length - 1: every rank has equally many, so all have equally many batches.

    With `shuffle` each pass has another order, which follows from `seed` and the number of the pass alone: it is the
    same on all ranks, of which rank r takes every n-th sample from the r-th on. So batches number k of all ranks
    together are a part of that order, the same for any number of ranks with the same global batch. Passes are counted;
    `set_epoch` sets the number of the next one.

    Where the samples do not divide evenly, the first ones are read again at the end ("pad"), or the last ones are left
    out ("drop"). `num_parts` and `part_index` are by default the number of ranks and the rank of this process; workers
    of a store dist_async give `store.num_workers` and `store.rank`.

    >>> from gluongraph.gluon.data import DataLoader, DistributedSampler
    >>> list(DistributedSampler(5, num_parts=2, part_index=1))
    [1, 3, 0]
    >>> data = list(range(8))
    >>> sampler = DistributedSampler(len(data), shuffle=True, seed=3)
    >>> loader = DataLoader(data, batch_size=4, sampler=sampler)
    >>> [len(batch) for batch in loader]  # of one process alone
    [4, 4]

    Raises:
        ValueError: no such part; a `last` that is neither; or `load_state_dict` was given the state of a sampler of
            another length or seed.
    """

    def __init__(
        self,
        length: int,
        num_parts: int | None = None,
        part_index: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        last: str = "pad",
    ):
        check_count(self, "length", length, 0)
        check_count(self, "seed", seed, 0)
        if last not in LAST:
            raise ValueError(with_user_location(f"DistributedSampler: last is 'pad' or 'drop', not {last!r}"))
        self._length, self._shuffle, self._seed, self._last = length, shuffle, seed, last
        self._num_parts, self._part_index = num_parts, part_index
        self.epoch = 0  # the number of the next pass
        check_part(self, *self._part)

    @property
    def _part(self) -> tuple[int, int]:
        """The number of parts, and which one this is: asked for each pass, as ranks may be lost."""
        parts = world().size if self._num_parts is None else self._num_parts
        return parts, world().rank if self._part_index is None else self._part_index

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be the one with this number, counted from 0.

        >>> from gluongraph.gluon.data import DistributedSampler
        >>> sampler = DistributedSampler(100, num_parts=2, part_index=0, shuffle=True)
        >>> first = list(sampler)
        >>> sampler.set_epoch(0)
        >>> list(sampler) == first
        True
        """
        check_count(self, "epoch", epoch, 0)
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order: Array = np.arange(self._length)
        if self._shuffle:
            np.random.RandomState([self._seed % (1 << 32), self._seed >> 32, self.epoch]).shuffle(order)
        self.epoch += 1
        parts, index = self._part
        return iter(np.resize(order, len(self) * parts)[index::parts].tolist())

    def __len__(self) -> int:
        parts = self._part[0]
        return -(-self._length // parts) if self._last == "pad" else self._length // parts

    def state_dict(self) -> State:
        return {"length": self._length, "seed": self._seed, "epoch": self.epoch}

    def load_state_dict(self, state: State) -> None:
        for name, value in (("length", self._length), ("seed", self._seed)):
            if state[name] != value:
                message = f"the state is that of a DistributedSampler with {name}={state[name]}; here it is {value}"
                raise ValueError(with_user_location(message))
        self.epoch = state["epoch"]


class SplitSampler(Sampler):
    """Part number `part_index` of 0 .. length - 1, cut into `num_parts` consecutive parts; shuffled by `numpy.random`.

    The parts are those of GluonNLP's SplitSampler: they differ by one sample where they cannot be equal. With
    `even_size` shorter ones are filled up with random samples of the whole, as workers that step together need it.
    `repeat` reads the part so many times in one pass.

    >>> from gluongraph.gluon.data import SplitSampler
    >>> [list(SplitSampler(5, num_parts=2, part_index=i, shuffle=False)) for i in range(2)]
    [[0, 1, 2], [3, 4]]
    >>> len(SplitSampler(5, num_parts=2, part_index=1, even_size=True))
    3

    Raises:
        ValueError: no such part, or more parts than samples.
    """

    def __init__(
        self,
        length: int,
        num_parts: int = 1,
        part_index: int = 0,
        even_size: bool = False,
        repeat: int = 1,
        shuffle: bool = True,
    ):
        check_count(self, "length", length, 0)
        check_count(self, "repeat", repeat)
        check_part(self, num_parts, part_index)
        if length < num_parts:
            message = f"SplitSampler: length={length} samples cannot be cut into num_parts={num_parts} parts"
            raise ValueError(with_user_location(message))
        self._length, self._repeat, self._shuffle = length, repeat, shuffle
        each, more = divmod(length, num_parts)
        if even_size:
            each += more > 0
            self._part = range(min(each * part_index, length), min(each * (part_index + 1), length))
            self._size = each
        else:
            start = each * part_index + min(part_index, more)
            self._part = range(start, start + each + (part_index < more))
            self._size = len(self._part)
        self._restored: State | None = None

    def __iter__(self) -> Iterator[int]:
        restored, self._restored = self._restored, None
        generator: Any = np.random
        if restored is not None and restored != numpy_state():
            generator = np.random.RandomState()
            generator.set_state(restored)
        order: list[int] = []
        for _ in range(self._repeat):
            indices = np.arange(self._part.start, self._part.stop)
            if (missing := self._size - len(indices)) > 0:
                indices = np.concatenate([indices, generator.randint(0, self._length, missing)])
            if self._shuffle:
                generator.shuffle(indices)
            order += indices.tolist()
        return iter(order)

    def __len__(self) -> int:
        return self._size * self._repeat

    def state_dict(self) -> State:
        return {"part": [self._part.start, self._part.stop], "numpy": self._restored or numpy_state()}

    def load_state_dict(self, state: State) -> None:
        if state["part"] != [self._part.start, self._part.stop]:
            start, stop = state["part"]
            message = f"the state is that of the samples from {start} to {stop - 1}"
            raise ValueError(f"{message}; here they are from {self._part.start} to {self._part.stop - 1}")
        self._restored = state["numpy"]


def check_part(owner: object, num_parts: int, part_index: int) -> None:
    """Raise unless there is such a part. `owner`: whose arguments they are.

    >>> from gluongraph.gluon.data.split import check_part
    >>> check_part(None, 2, 1)

    Raises:
        ValueError: there is none.
    """
    check_count(owner, "num_parts", num_parts)
    if not isinstance(part_index, int) or not 0 <= part_index < num_parts:
        message = f"{type(owner).__name__}: part_index must be from 0 to {num_parts - 1}, but got {part_index!r}"
        raise ValueError(with_user_location(message, help="as store.rank, counted from 0"))
