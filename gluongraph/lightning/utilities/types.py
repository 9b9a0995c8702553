"""The types that annotations of modules and data modules name. They say what a hook gives, and nothing checks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gluongraph.lightning.optimizers import LRSchedulerConfig

STEP_OUTPUT: TypeAlias = Any  # the loss, a dict with "loss" among other arrays, or None
TRAIN_DATALOADERS: TypeAlias = Any  # an iterable of batches, or a collection of iterables
EVAL_DATALOADERS: TypeAlias = Any
OptimizerConfig: TypeAlias = Mapping[str, Any]  # {"optimizer": optimizer}
OptimizerLRSchedulerConfig: TypeAlias = Mapping[str, Any]  # the same with "lr_scheduler" and "monitor"
OptimizerLRScheduler: TypeAlias = Any  # what `configure_optimizers` gives
LRSchedulerConfigType: TypeAlias = Mapping[str, Any]  # {"scheduler": scheduler, "interval": "step", ...}
LRSchedulerTypeUnion: TypeAlias = Any  # a scheduler of torch.optim.lr_scheduler
LRSchedulerPLType: TypeAlias = Any

__all__ = [
    "EVAL_DATALOADERS",
    "STEP_OUTPUT",
    "TRAIN_DATALOADERS",
    "LRSchedulerConfig",
    "LRSchedulerConfigType",
    "LRSchedulerPLType",
    "LRSchedulerTypeUnion",
    "OptimizerConfig",
    "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig",
]
