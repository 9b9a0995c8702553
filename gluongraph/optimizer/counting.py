"""How often each parameter has been updated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Index = int | str


class Counts(Mapping[Index, int]):
    """index -> t, the number of its last update; counted from `begin`. `largest` is the largest there has been.

    A training loop counts the same parameters together at every step: that takes constant time.

    >>> from gluongraph.optimizer.counting import Counts
    >>> counts = Counts(0)
    >>> counts.count((0, 1))
    >>> counts.count((0,))
    >>> dict(counts), counts.largest
    ({0: 2, 1: 1}, 2)
    """

    def __init__(self, begin: int):
        self.begin = self.largest = begin
        self.edits = 0  # grows whenever two parameters may have come apart or together
        self._own: dict[Index, int] = {}
        self._kept = False  # does a snapshot hold `_own`?
        # The parameters last counted together, how often since `_own` was true of them, and the most advanced then.
        self._together: tuple[Index, ...] = ()
        self._members: frozenset[Index] = frozenset()
        self._rounds = self._ahead = 0

    def __getitem__(self, index: Index) -> int:
        return self._own[index] + (self._rounds if index in self._members else 0)

    def __iter__(self) -> Iterator[Index]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def count(self, indices: tuple[Index, ...]) -> None:
        """One more update of each of these."""
        if indices != self._together:
            self._regroup(indices)
        self._rounds += 1
        self.largest = max(self.largest, self._ahead + self._rounds)

    def _regroup(self, indices: tuple[Index, ...]) -> None:
        if self._kept:
            self._own, self._kept = dict(self._own), False
        for i in self._together:
            self._own[i] += self._rounds
        for i in indices:
            self._own.setdefault(i, self.begin)
        self._together, self._members, self._rounds = indices, frozenset(indices), 0
        self._ahead = max((self._own[i] for i in indices), default=0)
        self.edits += 1

    def restore(self, counts: Mapping[Index, int], largest: int) -> None:
        """Go on from these numbers."""
        self._own, self._kept, self.largest = dict(counts), False, largest
        self._together, self._members, self._rounds = (), frozenset(), 0
        self.edits += 1

    def snapshot(self) -> dict[str, Any]:
        """What `rollback` takes; constant time."""
        self._kept = True
        return dict(vars(self))

    def rollback(self, snapshot: Mapping[str, Any]) -> None:
        """Be as at that time.

        >>> from gluongraph.optimizer.counting import Counts
        >>> counts = Counts(0)
        >>> before = counts.snapshot()
        >>> counts.count((0,))
        >>> counts.rollback(before)
        >>> dict(counts)
        {}
        """
        vars(self).update(snapshot)
