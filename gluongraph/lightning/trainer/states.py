"""What a Trainer is doing, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.states import RunningStage, TrainerFn, TrainerState, TrainerStatus

__all__ = ["RunningStage", "TrainerFn", "TrainerState", "TrainerStatus"]
