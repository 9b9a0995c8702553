"""A training step as one compiled call: TrainStep, its modes and variants, and what they add to the traced graph."""

from gluongraph.step.train_step import TrainStep
from gluongraph.tracing.step_graph import Options

__all__ = ["Options", "TrainStep"]
