"""One epoch of a loader, batch by batch, and where in it training is: resuming there repeats and skips nothing.

What a pass gives follows from the random generators at its beginning and from the states of loader, dataset and
samplers then. These are kept, and to resume within the pass they are put back, the pass is begun again, the batches
that are done are passed over, and the generators are put where they were when the state was taken. Batches are passed
over unread where the loader says where it is (`state_dict`) or nothing but the order is drawn at random; else they are
read once more, which leaves generators of worker processes and of the dataset where they were, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gluongraph.errors import pluralize, warn
from gluongraph.lightning.data import generators, pieces, skipping
from gluongraph.lightning.data.combined import CombinedLoader, batches, close
from gluongraph.lightning.data.loaders import begin, is_gluon_loader, length, num_samples
from gluongraph.lightning.data.persistent import has_workers, keeps_workers
from gluongraph.lightning.data.sampling import order_of
from gluongraph.lightning.errors import MisconfigurationException, misconfigured

Json = dict[str, Any]
_ENDED = object()


class EpochIterator(Iterator[Any]):
    """The batches of one epoch: those of one pass over `loader`, at most `limit` of them.

    `state_dict()` may be called at any time, also while workers read ahead; it is JSON. An iterator that is made with
    that `state`, in another process too, gives the batches that are left, and from then on all draws from Python's,
    numpy's, gluongraph's and PyTorch's generators are those of the run that was not interrupted. The pass begins with
    the first batch, or with `restore`. `name` is what messages call the loader. `is_shared`: others begin passes over
    it meanwhile, so that it does not say itself where this one is.

    Generators of the dataset's own, which neither a `state_dict` of it nor its seed brings back, are not known; nor are
    threads that draw at the same time, nor in later epochs the generators within PyTorch's `persistent_workers`.

    >>> import numpy as np
    >>> from gluongraph.lightning.data import ArrayLoader, EpochIterator
    >>> loader = ArrayLoader(np.arange(6), batch_size=2, shuffle=True, seed=1)
    >>> epoch = EpochIterator(loader)
    >>> first = next(epoch)
    >>> state = epoch.state_dict()
    >>> rest = [batch.tolist() for batch in epoch]
    >>> other = ArrayLoader(np.arange(6), batch_size=2, shuffle=True, seed=1)
    >>> [batch.tolist() for batch in EpochIterator(other, state=state)] == rest
    True

    Raises:
        MisconfigurationException: within an epoch, the state is that of a loader with another number of samples,
            batches or loaders.
    """

    def __init__(
        self,
        loader: Any,
        limit: int | float | None = None,
        state: Json | None = None,
        name: str = "train_dataloader",
        is_shared: bool = False,
    ):
        self.loader, self._name, self._is_shared = loader, name, is_shared
        self._limit = math.inf if limit is None else limit
        self._length: int | None = None
        self.total: int | None = None  # batches of the epoch; None: not known
        self._measure()
        self.taken = 0
        self._loaders = loader.flattened if isinstance(loader, CombinedLoader) else [loader]
        self._iterator: Iterator[Any] | None = None
        self._ahead: Any = _ENDED  # a batch that was read to find out whether it is there
        self._before: tuple[Any, Any] | None = None  # generators and the loader's state before that
        self._start: Any = None  # generators when the pass began
        self._pieces: list[Json] = []  # states of the loaders then
        self._restarts: list[tuple[int, Any]] = []  # generators when a loader of a combined one began again
        self._workers_stay = False  # and were there before this epoch
        self._over = False
        self._state = state
        if state is not None:
            self._check(state)

    # -- reading

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self.restore()
        if self._over:
            raise StopIteration
        if self._ahead is not _ENDED:
            batch, self._ahead, self._before = self._ahead, _ENDED, None
        else:
            batch = next(self._source, _ENDED)
            if batch is _ENDED:
                self._ended_early()
                raise StopIteration
        self.taken += 1
        if self.taken == self.total:
            self._end()
        return batch

    def stack(self, count: int) -> Any:
        """The next `count` batches as one array of shape (count, batch_size, ...) each, of an ArrayLoader.

        None, and nothing is taken, where that many full batches are not left in the epoch, or of another loader.
        """
        if self._iterator is None:
            self.restore()
        stack = getattr(self._iterator, "stack", None)
        if self._over or stack is None or (self.total is not None and self.taken + count > self.total):
            return None
        if (made := stack(count)) is not None:
            self.taken += count
            if self.taken == self.total:
                self._end()
        return made

    @property
    def is_last(self) -> bool:
        """Was the batch before the last one? Of loaders that do not know their length one batch is read ahead."""
        if self._over or self._length is not None:
            return self._over
        return not self._read_ahead()

    @property
    def finished(self) -> bool:
        """Have all batches of the epoch been taken?"""
        return self._over

    def close(self) -> None:
        """Leave the epoch: worker processes of this pass end, generators run their `finally`."""
        self._over = True
        if self._iterator is not None:
            close(self._iterator)
        if isinstance(self.loader, CombinedLoader):
            self.loader.reset()

    # -- where it is

    def state_dict(self, completed: int | None = None) -> Json:
        """Where the epoch is, as JSON. `completed`: so many batches are done, where not all that were taken are.

        Then, unless batches are passed over unread, draws of later batches follow those of the batches before.
        """
        now = generators.to_json(generators.take())
        done = self.taken if completed is None else completed
        state: Json = {"format": 1, "batches": done, "finished": False, "samples": self._samples(), "now": now}
        state["orders"] = [order_of(each) for each in self._loaders]
        state["length"], state["fixed"] = self._length, not any("loader" in each for each in self._pieces)
        if self._iterator is None and self._state is not None:  # nothing has happened since the state was taken
            return self._state
        if self._iterator is None or (self._over and done == self.taken):
            return {**state, "finished": self._over, "between": [pieces.take(each) for each in self._loaders]}
        if done == self.taken and (own := self._own_state()) is not None:
            return {**state, "loader": own, "before": self._told_before()}
        state["start"] = {"random": generators.to_json(self._start), "pieces": self._pieces}
        state["restarts"] = [[taken, generators.to_json(at)] for taken, at in self._restarts if taken < done]
        state["workers_stay"] = self._workers_stay
        if done < self.taken:
            return {**state, "before": None, "now": None}
        return {**state, "before": self._told_before()}

    def restore(self) -> None:
        """Begin the pass, or go on where the state was taken. The first batch does so where nobody has before."""
        if self._iterator is not None or self._over:
            return
        state, self._state = self._state, None
        if state is None:
            self._begin()
            return
        self.taken = state["batches"]
        if "between" in state:
            self._restore_between(state)
            return
        if "loader" in state:
            self._remember()
            pieces.put(self._loaders[0], {"loader": state["loader"]})
            self._measure()
            self._iterator = begin(self._loaders[0], resumed=True)
        else:
            self._replay(state)
        self.taken = state["batches"]  # which a replay counts
        if state["before"] is not None:
            generators.put(generators.from_json(state["before"]))
            self._read_ahead()
        if state["now"] is not None:
            generators.put(generators.from_json(state["now"]))
        if self.taken == self.total:
            self._end()

    # -- how

    def _measure(self) -> None:
        """Find out how many batches there are. It may depend on the state of the loader: what has rolled over."""
        self._length = length(self.loader)
        end = self._limit if self._length is None else min(self._length, self._limit)
        self.total = None if end == math.inf else int(end)

    @property
    def _source(self) -> Iterator[Any]:
        assert self._iterator is not None
        return self._iterator

    def _begin(self) -> None:
        self._remember()
        self._iterator = batches(self.loader)

    def _remember(self) -> None:
        """Keep what decides the pass that is about to begin."""
        self._start, self._pieces = generators.take(), [pieces.take(each) for each in self._loaders]
        self._workers_stay = any(map(has_workers, self._loaders))
        if isinstance(self.loader, CombinedLoader):
            self.loader.on_restart = self._note_restart

    def _note_restart(self) -> None:
        self._restarts.append((self.taken, generators.take()))

    def _read_ahead(self) -> bool:
        """Is there another batch? Kept beside it is where everything was before it was read."""
        if self._ahead is _ENDED:
            self._before = generators.take(), self._own_state()
            self._ahead = next(self._source, _ENDED)
            if self._ahead is _ENDED:
                self._before, self._over = None, True
        return self._ahead is not _ENDED

    def _end(self) -> None:
        """The last batch has been taken."""
        self._over = True
        if self._iterator is None:
            return
        if is_gluon_loader(self.loader) and self.total == self._length:
            next(self._iterator, None)  # at their end, samplers keep what rolls over, and the next pass is read ahead
        close(self._iterator)
        if isinstance(self.loader, CombinedLoader):
            self.loader.reset()

    def _ended_early(self) -> None:
        self._over = True
        if self._length is not None and self.taken < (self.total or 0):
            said = pluralize(self._length, "batch")
            warn(f"{self._name} says that it has {said}, and has ended after {self.taken}")

    def _own_state(self) -> Any:
        """The loader's own state within a pass; None of several loaders, or where it says none."""
        if self._before is not None:
            return self._before[1]
        return None if self._is_shared or isinstance(self.loader, CombinedLoader) else pieces.own_state(self.loader)

    def _told_before(self) -> Json | None:
        return None if self._before is None else generators.to_json(self._before[0])

    def _samples(self) -> list[int | None]:
        return [num_samples(each) for each in self._loaders]

    # -- resuming

    def _check(self, state: Json) -> None:
        """Raise unless the state, if it is one within an epoch, is that of a loader like this one."""
        if "between" in state:
            return
        if len(state["samples"]) != len(self._loaders):
            loaders = pluralize(len(state["samples"]), "loader")
            raise self._misfit(f"{loaders}; here are {len(self._loaders)}")
        for before, now in zip(state["samples"], self._samples(), strict=True):
            if before != now:
                raise self._misfit(f"a dataset of {before} samples; here it has {now}")
        for order, each in zip(state.get("orders", ()), self._loaders, strict=False):
            if order != (here := order_of(each)):
                raise self._misfit(f"{_told(order)}; here it is {_told(here)}")
        if state["length"] != self._length and state["fixed"]:
            raise self._misfit(f"{state['length']} batches in an epoch; here are {self._length}")

    def _misfit(self, what: str) -> MisconfigurationException:
        message = f"{self._name}: the state was taken within an epoch, of {what}"
        help = "resume with the data, batch size and number of ranks of then, or from a checkpoint of an epoch's end"
        return misconfigured(message, help=help)

    def _restore_between(self, state: Json) -> None:
        """At the end of an epoch, or before its first batch: what the next pass depends on."""
        if len(state["between"]) == len(self._loaders):
            orders = state.get("orders", [order_of(each) for each in self._loaders])
            for loader, told, before, order in zip(
                self._loaders, state["between"], state["samples"], orders, strict=True
            ):
                if before == num_samples(loader) and order == order_of(loader):  # else passes begin anew
                    pieces.put(loader, told, between=True)
        self._measure()
        generators.put(generators.from_json(state["now"]))
        if state["finished"]:
            self._over = True
        else:
            self._begin()

    def _replay(self, state: Json) -> None:
        """Begin the pass again, and pass over the batches that are done."""
        self._warn_of_workers(state)
        for loader, told in zip(self._loaders, state["start"]["pieces"], strict=True):
            pieces.put(loader, told, between=True)
        self._measure()
        generators.put(generators.from_json(state["start"]["random"]))
        restarts = {taken: generators.from_json(at) for taken, at in state["restarts"]}
        done = state["batches"]
        self._remember()
        if not restarts and skipping.can_skip(self.loader):
            self._iterator = skipping.begin_after(self.loader, done)
            return
        if isinstance(self.loader, CombinedLoader):
            self.loader.on_restart = lambda: self._repeat_restart(restarts)
        self._iterator = batches(self.loader)
        for self.taken in range(done):
            if next(self._iterator, _ENDED) is _ENDED:
                raise self._misfit(f"more than {pluralize(self.taken, 'batch')}, with which it ends here")
        if isinstance(self.loader, CombinedLoader):
            self.loader.on_restart = self._note_restart

    def _repeat_restart(self, restarts: dict[int, Any]) -> None:
        """A loader of several begins again with the generators as they were then, and not as reading has left them."""
        if self.taken in restarts:
            generators.put(restarts[self.taken])
        self._note_restart()

    def _warn_of_workers(self, state: Json) -> None:
        for loader in self._loaders:
            if state["workers_stay"] and keeps_workers(loader) and not skipping.only_orders(loader):
                warn(
                    f"{self._name}: its workers were those of epochs before (persistent_workers=True). What they draw "
                    "at random follows from those, and is not what it would have been; all else is"
                )


def _told(order: str) -> str:
    return f"the order of a {order}" if order else "a fixed order"
