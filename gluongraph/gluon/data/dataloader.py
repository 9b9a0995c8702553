"""Batches out of a dataset."""

from __future__ import annotations

import copy
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.errors import with_user_location
from gluongraph.gluon.data.batchify import default_batchify_fn
from gluongraph.gluon.data.dataset import ArrayDataset
from gluongraph.gluon.data.sampler import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    State,
    check_batch_size,
    restore,
    state_of,
)
from gluongraph.gluon.data.workers import Processes, Threads
from gluongraph.ranges import POSITIVE, check_count, check_range


def _read(dataset: Any, batchify: Callable[[list[Any]], Any], indices: Any) -> Any:
    """The batch of these samples."""
    if type(dataset) is ArrayDataset and batchify is default_batchify_fn:
        made = dataset.batch(indices)
        if made is not None:
            return made
    return batchify([dataset[i] for i in indices])


class DataLoader:
    """Iterates over a dataset in batches: each is what `batchify_fn` makes of a list of samples.

    With `num_workers` processes (threads with `thread_pool`) batches are read ahead, `prefetch` at most, 2 per worker
    if None; they come in the order of the sampler. 0 reads in the calling thread. Processes live as long as the loader
    and keep the dataset as it was when it was made; large arrays come back through shared memory. What happens at
    random in a process follows from `mx.random.seed` and the batch's number, whichever process reads it. `timeout`
    limits the seconds that one batch takes. With `auto_reload` the next pass is read ahead, too, when one has ended.
    `pin_memory` and `pin_device_id` are accepted and change nothing.

    `state_dict()` says where in a pass the loader is; `load_state_dict` lets the next one go on from there.

    >>> from gluongraph.gluon.data import DataLoader
    >>> loader = DataLoader(list(range(5)), batch_size=2)
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]

    Raises:
        ValueError: neither `batch_size` nor `batch_sampler`; or `batch_sampler` beside what it replaces; or `shuffle`
            beside `sampler`; or a number of samples or workers that is none.
        AssertionError: the timeout is not positive and finite.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        auto_reload: bool = False,
    ):
        check_range(self, "timeout", timeout, POSITIVE, AssertionError)
        check_count(self, "num_workers", num_workers, 0)
        if prefetch is not None:
            check_range(self, "prefetch", prefetch)
        if batch_sampler is not None:
            if batch_size is not None or shuffle or sampler is not None or last_batch is not None:
                given = "batch_size, shuffle, sampler and last_batch"
                raise ValueError(with_user_location(f"{given} must not be specified if batch_sampler is specified"))
        else:
            if batch_size is None:
                raise ValueError(with_user_location("batch_size must be specified unless batch_sampler is specified"))
            check_batch_size(self, batch_size)
            if sampler is None:
                sampler = RandomSampler(len(dataset)) if shuffle else SequentialSampler(len(dataset))
            elif shuffle:
                raise ValueError(with_user_location("shuffle must not be specified if sampler is specified"))
            batch_sampler = BatchSampler(sampler, batch_size, last_batch or "keep")
        self._batches, self._timeout, self.auto_reload = batch_sampler, timeout, auto_reload
        self._reader = functools.partial(_read, dataset, batchify_fn or default_batchify_fn)
        self._count, self._threads = num_workers, thread_pool
        self._ahead = max(1, 2 * num_workers if prefetch is None else int(prefetch))
        self._workers: Threads | Processes | None = None
        self._resumed: State | None = None
        self._ready: _Pass | None = None  # a pass that is being read ahead
        self._running: _Pass | None = None
        if num_workers:
            self._workers = self._hire()
        if auto_reload:
            self.refresh()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        current = self._ready or self._begin()
        self._running, self._ready = current, None
        try:
            yield from current
        finally:
            current.drop()
            if self._running is current:
                self._running = None
        if self.auto_reload and self._ready is None:
            self.refresh()

    def refresh(self) -> None:
        """Begin to read the next pass now."""
        self.clean()
        self._ready = self._begin()
        self._ready.fill()

    def clean(self) -> None:
        """Forget what was read ahead for the next pass."""
        if self._ready is not None:
            self._ready.drop()
            self._ready = None

    def state_dict(self) -> State:
        """Where the loader is, in numbers and lists: its pass, and how many of the pass's batches it has given out.

        Between passes, also after one that was left by `break`, it is at the beginning of the next one.

        >>> from gluongraph.gluon.data import DataLoader
        >>> loader = DataLoader(list(range(6)), batch_size=2)
        >>> batches = iter(loader)
        >>> next(batches).tolist(), loader.state_dict()["batches"]
        ([0, 1], 1)

        Raises:
            NotImplementedError: the sampler does not say its state.
        """
        current = self._running or self._ready
        if current is None:
            return self._resumed or {"batches": 0, "sampler": state_of(self._batches), "seed": None}
        if current.start is None:
            state_of(self._batches)  # says why
        return {"batches": current.given, "sampler": current.start, "seed": current.seed}

    def load_state_dict(self, state: State) -> None:
        """Let the next pass be the one of this state, from that batch on. The batches before are not read.

        >>> from gluongraph.gluon.data import DataLoader
        >>> loader = DataLoader(list(range(6)), batch_size=2)
        >>> batches = iter(loader)
        >>> first = next(batches)
        >>> other = DataLoader(list(range(6)), batch_size=2)
        >>> other.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in other]
        [[2, 3], [4, 5]]
        """
        self.clean()
        restore(self._batches, state["sampler"])
        self._resumed, self._running = dict(state), None

    def _hire(self) -> Threads | Processes:
        if self._threads:
            return Threads(self._count, self._reader)
        return Processes(self._count, self._reader, self._ahead)

    def _begin(self) -> _Pass:
        if self._workers is not None and not self._workers.close.alive:  # a process had ended, and with it all
            self._workers = self._hire()
        resumed, self._resumed = self._resumed, None
        return _Pass(self._batches, self._reader, self._workers, self._ahead, self._timeout, resumed)


def parts_of(loader: DataLoader) -> tuple[Any, Any]:
    """The dataset and the batch sampler.

    >>> from gluongraph.gluon.data import DataLoader
    >>> from gluongraph.gluon.data.dataloader import parts_of
    >>> parts_of(DataLoader([1, 2, 3], batch_size=2))[0]
    [1, 2, 3]
    """
    return loader._reader.args[0], loader._batches


def with_batch_sampler(loader: DataLoader, batch_sampler: Any) -> DataLoader:
    """A loader that reads the same dataset, by the same workers, in another order.

    >>> from gluongraph.gluon.data import DataLoader
    >>> from gluongraph.gluon.data.dataloader import with_batch_sampler
    >>> [b.tolist() for b in with_batch_sampler(DataLoader([1, 2, 3], batch_size=2), [[2, 1], [0]])]
    [[3, 2], [1]]
    """
    loader.clean()
    made = copy.copy(loader)
    made._batches, made._ready, made._running, made._resumed = batch_sampler, None, None, None
    return made


class _Pass:
    """One pass over the data: its batches in their order, some of them read ahead."""

    def __init__(
        self,
        batches: Any,
        read: Callable[[Any], Any],
        workers: Threads | Processes | None,
        ahead: int,
        timeout: float,
        resumed: State | None,
    ):
        try:
            self.start: State | None = state_of(batches)
        except NotImplementedError:
            self.start = None
        self.given, self.seed = 0, None if resumed is None else resumed["seed"]
        if self.seed is None and isinstance(workers, Processes):
            self.seed = list(random.take(1))
        self._read, self._workers, self._ahead, self._timeout = read, workers, ahead, timeout
        self._order = enumerate(batches)
        self._pending: deque[Any] = deque()
        for _ in itertools.islice(self._order, resumed["batches"] if resumed else 0):
            self.given += 1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._workers is None:
            batch = self._read(next(self._order)[1])
        else:
            self.fill()
            if not self._pending:
                raise StopIteration
            batch = self._workers.result(self._pending.popleft(), self._timeout)
        self.given += 1
        return batch

    def fill(self) -> None:
        """Give out jobs until enough batches are being read ahead."""
        while self._workers is not None and len(self._pending) < self._ahead:
            number, indices = next(self._order, (0, None))
            if indices is None:
                return
            self._pending.append(self._workers.submit(indices, self._seed_of(number)))

    def drop(self) -> None:
        """Forget what was read ahead."""
        if self._workers is not None and self._workers.close.alive:
            self._workers.drop(self._pending)
        self._pending.clear()

    def _seed_of(self, number: int) -> int:
        """That of a batch's random numbers."""
        if self.seed is None:
            return 0
        low, high = np.random.SeedSequence([*self.seed, number]).generate_state(2)
        return int(low) | int(high) << 32
