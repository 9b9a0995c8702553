"""What a Trainer is doing: `trainer.state`. Its values are texts, as Lightning's are."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class TrainerStatus(enum.StrEnum):
    """How the last call of a Trainer stands.

    >>> TrainerStatus.FINISHED == "finished", TrainerStatus.FINISHED.stopped
    (True, True)
    """

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"

    @property
    def stopped(self) -> bool:
        """Is nothing running?"""
        return self in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)


class TrainerFn(enum.StrEnum):
    """Which function of a Trainer is called.

    >>> TrainerFn.FITTING == "fit"
    True
    """

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(enum.StrEnum):
    """What of it is being run.

    >>> RunningStage("sanity_check").evaluating, RunningStage.VALIDATING.dataloader_prefix
    (True, 'val')
    """

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """Is it a validation or a test?"""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.SANITY_CHECKING)

    @property
    def dataloader_prefix(self) -> str:
        """What names of loaders begin with."""
        is_validation = self in (RunningStage.VALIDATING, RunningStage.SANITY_CHECKING)
        return "val" if is_validation else self.value


@dataclass
class TrainerState:
    """What a Trainer is doing: `fn` is the function that was called, or None; `stage` what of it is being run.

    >>> TrainerState().status.value
    'initializing'
    """

    status: TrainerStatus = TrainerStatus.INITIALIZING
    fn: TrainerFn | None = None
    stage: RunningStage | None = None

    @property
    def finished(self) -> bool:
        """Has the last call come to its end?"""
        return self.status == TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        """Is nothing running?"""
        return self.status.stopped
