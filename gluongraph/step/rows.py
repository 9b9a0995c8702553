"""The scalars of several steps that one call runs: a row for each of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gluongraph.runtime.repeated import Repeated
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.runtime.executor import Executor


class Rows:
    """The memory that a compiled program reads in several steps, by step; `run` runs these steps.

    `columns[i][number]` is the optimizer's scalar i of the step `number`.
    """

    def __init__(self, run: Repeated, keys: Sequence[str], others: Collection[str], draws: Collection[str]):
        self.run, self._names = run, (keys, others, draws)
        self.columns: list[Array] = []  # of the optimizer's scalars
        self.others: dict[str, Array] = {}  # of scalars that are not the optimizer's
        self.rng: dict[str, Array] = {}  # of states of generators, four words each

    def reserve(self, count: int) -> None:
        """Have rows for so many steps."""
        if not self.run.reserve(count):
            return
        keys, others, draws = self._names
        self.columns = [self.run.scalar(key)[:, 0] for key in keys]
        self.others = {name: self.run.scalar(name)[:, 0] for name in others}
        self.rng = {name: self.run.scalar(name) for name in draws}


def rows_of(
    executor: Executor, keys: Sequence[str], others: Collection[str], draws: Collection[str], going: Sequence[str]
) -> Rows | None:
    """Return the rows of an executor, which runs steps as long as its outputs `going` are true; None if it cannot run
    several steps by one call."""
    run = executor.repeating(going)
    return None if run is None else Rows(run, keys, others, draws)
