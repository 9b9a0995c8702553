"""A training step as one compiled call: TrainStep, its variants, and what is added to the traced graph."""

from gluongraph.step.train_step import TrainStep
from gluongraph.step.variant import Options

__all__ = ["Options", "TrainStep"]
