"""State arenas: many long-lived arrays in one run of memory, so that a step, a save or an allreduce sees one range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gluongraph.storage import Array, Storage, aligned, aligned_empty


class Arena:
    """The storages of one role and dtype, moved next to each other, each on a 64-byte boundary.

    Handles taken on a storage before follow it here. `memory` is the whole run, `offsets` are in bytes.
    """

    def __init__(self, storages: Sequence[Storage]):
        self.offsets: list[int] = []
        end = 0
        for storage in storages:
            self.offsets.append(end)
            end += aligned(storage.array.nbytes)
        self.memory: Array = aligned_empty((end,), np.uint8)
        self.storages = tuple(storages)
        for storage, at in zip(storages, self.offsets, strict=True):
            array = storage.array
            part = self.memory[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            storage.rehome(part)

    def holds(self, storages: Sequence[Storage]) -> bool:
        """Do exactly these storages live here still, in this order?"""
        return len(storages) == len(self.storages) and all(
            a is b and a.array.base is not None and np.shares_memory(a.array, self.memory)
            for a, b in zip(storages, self.storages, strict=True)
        )
