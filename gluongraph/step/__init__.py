"""A training step as one compiled call: TrainStep, its modes and specializations, and what they add to the graph."""

from gluongraph.step.train_step import TrainStep
from gluongraph.tracing.step_graph import Options

__all__ = ["Options", "TrainStep"]
