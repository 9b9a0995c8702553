"""Steps whose bits do not depend on the number of ranks: micro-batches, and sums along a fixed tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import random
from gluongraph.errors import MXNetError, ShapeError, pluralize, with_user_location
from gluongraph.gluon.trainer import Trainer
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import CommunicationError, Communicator
from gluongraph.step.batch import as_array
from gluongraph.storage import Array
from gluongraph.tracing.compressed_exchange import all_reduce_bytes
from gluongraph.tracing.optimizer_updates import GRAD

if TYPE_CHECKING:
    from gluongraph.step.specialization import Specialization
    from gluongraph.step.train_step import TrainStep

MICRO_BATCHES = 4  # of deterministic=True
_STREAM = 20  # bits of the high word of a draw's number; those above tell micro-batches apart


def micro_batches_of(deterministic: Any) -> int:
    """Return the number of micro-batches of all ranks together; 0 if it does not matter.

    Raises:
        ValueError: it is neither a boolean nor a power of two.
    """
    number = {True: MICRO_BATCHES, False: 0}[deterministic] if isinstance(deterministic, bool) else deterministic
    if not isinstance(number, int) or number < 0 or number & (number - 1):
        message = f"deterministic is True, False or a number of micro-batches, 1, 2, 4, 8, ...; not {deterministic!r}"
        raise ValueError(with_user_location(message))
    return number


class MicroBatches:
    """Computes gradients of a batch in micro-batches, of which each rank has an equal, contiguous part.

    Each micro-batch is one call of the same compiled program, whatever the number of ranks. Their gradients, and new
    running statistics, are summed along a balanced binary tree, of which each rank has a subtree.
    """

    def __init__(self, step: TrainStep, trainer: Trainer, total: int):
        self.step, self.trainer, self.total = step, trainer, total
        self.communicator: Communicator = trainer.communicator
        ranks = self.communicator.size
        if ranks & (ranks - 1) or total % ranks:
            message = f"deterministic={total} micro-batches on {pluralize(ranks, 'rank')}"
            raise MXNetError(with_user_location(message, help=f"1, 2, 4, ... up to {total} ranks"))
        self.own = total // ranks
        self.sent = 0  # bytes that this rank has sent for sums

    def gradients(self, batch: Sequence[Any]) -> tuple[Specialization, list[dict[str, Array]], dict[str, Array]]:
        """Return the program of a micro-batch, the results of each of this rank's, and the gradients of all ranks."""
        parts = self._parts(batch)
        specialization, _ = self.step._specializations.find("backward", parts[0])
        states = {name: specialization.state[name].storage for name in specialization.updated}
        before = {name: storage.array.copy() for name, storage in states.items()}
        agreement = Agreement(self.communicator, specialization.text)
        rollback = random.checkpoint(specialization.draws)
        words = random.take_all(specialization.draws, training=False)
        results: list[dict[str, Array]] = []

        def run(number: int) -> list[Array]:
            for name, old in before.items():
                states[name].write(old)
            found = specialization.run(parts[number], self._draws(words, number))
            results.append({name: value for name, value in found.items() if not name.startswith(GRAD)})
            grads = [value for name, value in found.items() if name.startswith(GRAD)]
            return [*grads, *(storage.array.copy() for storage in states.values())]

        try:
            sums = tree_sum(map(run, range(self.own)))
            agreement()
            self._sum_over_ranks(sums)
        except BaseException as error:
            for name, old in before.items():
                states[name].write(old)
            rollback()
            if not isinstance(error, CommunicationError):  # other ranks wait
                agreement(failed=True)
            raise
        names = [name for name in specialization.runner.output_names if name.startswith(GRAD)]
        for storage, total in zip(states.values(), sums[len(names) :], strict=True):
            if total.dtype.kind not in "biu":
                storage.write(total / self.total)
        return specialization, results, dict(zip(names, sums, strict=False))

    def _parts(self, batch: Sequence[Any]) -> list[list[Array]]:
        """Return the arrays of each micro-batch of this rank."""
        arrays = [as_array(i, b) for i, b in enumerate(batch)]
        for i, array in enumerate(arrays):
            if array.shape and len(array) % self.own:
                message = f"argument {i} has {pluralize(len(array), 'sample')}, which are not {self.own} equal "
                raise ShapeError(with_user_location(f"{message}micro-batches of this rank"))
        split = [np.split(a, self.own) if a.shape else [a] * self.own for a in arrays]
        return [list(part) for part in zip(*split, strict=True)]

    def _draws(self, words: dict[str, tuple[int, int, int, int]], number: int) -> dict[str, tuple[int, int, int, int]]:
        """Return the generators' states of a micro-batch: by its number among those of all ranks."""
        stream = (self.communicator.rank * self.own + number) << _STREAM
        return {name: (*first, high + stream) for name, (*first, high) in words.items()}  # type: ignore[misc]

    def _sum_over_ranks(self, arrays: Sequence[Array]) -> None:
        """Replace arrays by their sums over ranks, along a tree; all of a dtype at once."""
        if self.communicator.size == 1:
            return
        by_dtype: dict[Any, list[Array]] = {}
        for array in arrays:
            by_dtype.setdefault(array.dtype, []).append(array)
        for members in by_dtype.values():
            flat = np.concatenate([array.reshape(-1) for array in members])
            self.communicator.allreduce_tree(flat)
            self.sent += all_reduce_bytes(flat.nbytes, self.communicator.size)
            start = 0
            for array in members:
                array.reshape(-1)[:] = flat[start : start + array.size]
                start += array.size


def tree_sum(parts: Iterable[list[Array]]) -> list[Array]:
    """Return the sums of lists of arrays along a balanced binary tree, ((0+1)+(2+3))+..., of which no more than the
    logarithm of their number is kept at a time."""
    stack: list[tuple[int, list[Array]]] = []
    for part in parts:
        level = 0
        while stack and stack[-1][0] == level:
            _, left = stack.pop()
            for a, b in zip(left, part, strict=True):
                np.add(a, b, out=a)
            part, level = left, level + 1
        stack.append((level, part))
    ((_, total),) = stack
    return total


def joined(results: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Return the results of micro-batches joined along the first axis; scalars become one element of each."""
    return {name: np.concatenate([np.atleast_1d(each[name]) for each in results]) for name in results[0]}
