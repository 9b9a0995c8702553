"""A training step as one compiled call: TrainStep, its modes and variants, and what they add to the traced graph."""

from gluongraph.step.graphs import Options
from gluongraph.step.train_step import TrainStep

__all__ = ["Options", "TrainStep"]
