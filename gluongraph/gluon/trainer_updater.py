"""What MXNet's names for a Trainer's states show: `trainer._updaters`, `trainer._kvstore._updater`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ndarray import NDArray
from gluongraph.optimizer.base import MASTER, Optimizer
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.updater import State, Updater

if TYPE_CHECKING:
    from gluongraph.gluon.trained_parameters import TrainedParameters


class TrainerUpdater(Updater):
    """The optimizer of a trainer and its states on the context of number `place`, by the index of the parameter.

    Nothing is kept here: what the trainer updates is what `states` shows, and updates by this are seen there.
    """

    def __init__(self, trainer: TrainedParameters, place: int = 0):
        self._trainer: TrainedParameters = weakref.proxy(trainer)  # which has this by its store
        self._place = place

    def __repr__(self) -> str:
        return f"TrainerUpdater({self.optimizer!r}, {self._place})"

    @property
    def optimizer(self) -> Optimizer:  # type: ignore[override]  # the trainer's own, which it may exchange
        """The optimizer of the trainer."""
        return self._trainer.optimizer

    @property
    def states(self) -> dict[Index, State]:  # type: ignore[override]  # made of the trainer's when asked for
        """Index of a parameter -> None, an array or a tuple of them, of parameters that have been updated."""
        kept = ((i, self._trainer.states.get(self._replica(i))) for i in range(len(self._trainer.names)))
        formula = self.optimizer.has_formula
        return {i: self._as_created(i, state) if formula else state for i, state in kept if state is not None}

    def set_states(self, states: bytes) -> None:
        """Raises MXNetError: the trainer reads files of its own."""
        raise MXNetError(
            with_user_location(
                "the states of a Trainer are not set by its updater", help="trainer.load_states(fname) does that"
            )
        )

    def _replica(self, index: int) -> str:
        return self._trainer.exchange.replicas[self._trainer.names[index]][self._place]

    def _as_created(self, index: int, kept: dict[str, NDArray]) -> State:
        """The arrays as `create_state_multi_precision` would give them."""
        arrays = tuple(array for name, array in kept.items() if name != MASTER)
        state: Any = arrays[0] if len(arrays) == 1 else arrays or None
        if MASTER not in kept:
            return state
        return (state, kept[MASTER]) if self.optimizer.member(index).master_last else (kept[MASTER], state)

    def _state(self, index: Index, weight: NDArray) -> State:
        name = self._replica(int(index))
        if self.optimizer.has_formula:
            self._trainer.state_arrays([name])
        elif name not in self._trainer.states:
            self._trainer.states[name] = self.optimizer.create_state_multi_precision(index, weight)
        return self.states[index]
