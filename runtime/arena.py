"""State arenas: many long-lived arrays in one contiguous allocation, one range for a step, a save or an allreduce."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from gluongraph.storage import Array, Storage, aligned, expect_huge_pages, untouched_zeros


class Arena:
    """The storages of one role and dtype, moved next to each other, each on a 64-byte boundary.

    Existing arrays of a storage refer to its new memory. `memory` is the entire allocation, `offsets` are in bytes.
    Storages in `zero` are not copied: the system maps their pages when a step first writes to them. The memory can be
    divided into so many equal, aligned `parts`.
    """

    def __init__(self, storages: Sequence[Storage], zero: Container[Storage] = (), parts: int = 1):
        self.offsets: list[int] = []
        end = 0
        for storage in storages:
            self.offsets.append(end)
            end += aligned(storage.array.nbytes)
        self._part = aligned(-(-end // parts))
        self.memory: Array = untouched_zeros((self._part * parts,), np.uint8)
        expect_huge_pages(self.memory)
        self.storages = tuple(storages)
        for storage, at in zip(storages, self.offsets, strict=True):
            array = storage.array
            part = self.memory[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            storage.rehome(part, copy=storage not in zero)

    def part(self, number: int, dtype: np.dtype[Any]) -> Array:
        """Return one of the equal parts, as a flat array."""
        return self.memory[number * self._part : (number + 1) * self._part].view(dtype)

    def holds(self, storages: Sequence[Storage]) -> bool:
        """Does the arena still contain exactly these storages, in this order?"""
        return len(storages) == len(self.storages) and all(
            a is b and a.array.base is not None and np.shares_memory(a.array, self.memory)
            for a, b in zip(storages, self.storages, strict=True)
        )
