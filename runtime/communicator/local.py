"""The communicator of a process that is alone: a sum over one rank is the array itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.runtime import loader
from gluongraph.runtime.communicator.base import COMPLETE, Communicator, Work


class LocalCommunicator(Communicator):
    """One rank. Several contexts in one process share its memory: their sums are part of the kernels that read them
    (`passes/distribute.py`), and nothing is left to communicate."""

    name = "local"
    rank, size, local_rank, local_size = 0, 1, 0, 1

    def allreduce(self, array: Any, op: str = "sum") -> None:
        """Do nothing: it is the sum."""

    def allreduce_tree(self, array: Any) -> None:
        """Do nothing: it is the sum."""

    def start_allreduce(self, array: Any, op: str = "sum") -> Work:
        """Return complete work."""
        return COMPLETE

    def reduce_scatter(self, source: Any, target: Any) -> None:
        """Copy the array."""
        _copy(source, target)

    def allgather(self, source: Any, target: Any) -> None:
        """Copy the array."""
        _copy(source, target)

    def alltoall(self, source: Any, target: Any) -> None:
        """Copy the array."""
        _copy(source, target)

    def broadcast(self, array: Any, root: int = 0) -> None:
        """Do nothing: every rank has it."""

    def exchange(self, text: str) -> Sequence[str]:
        """Return the text."""
        return (text,)

    def barrier(self) -> None:
        """Return at once."""

    def split(self, color: int, key: int = 0) -> Communicator:
        """Return itself."""
        return self

    def shrink(self) -> Communicator:
        """Return itself: no rank is lost."""
        return self

    def abort(self, code: int = 1) -> None:
        """End the process at once."""
        os._exit(code)


def _copy(source: Any, target: Any) -> None:
    """An array of the host, or memory of a GPU: a step there has collectives of one rank too."""
    if isinstance(target, np.ndarray):
        np.copyto(target, source)
    else:
        loader.copy(source, target)
