"""Callbacks: what is done at certain moments of a training. Names and arguments are those of Lightning 2.6."""

from __future__ import annotations

from gluongraph.lightning.absent import says_what_instead
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.checkpoint import Checkpoint
from gluongraph.lightning.callbacks.device_stats_monitor import DeviceStatsMonitor
from gluongraph.lightning.callbacks.early_stopping import EarlyStopping
from gluongraph.lightning.callbacks.finetuning import BackboneFinetuning, BaseFinetuning
from gluongraph.lightning.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from gluongraph.lightning.callbacks.lambda_function import LambdaCallback
from gluongraph.lightning.callbacks.lr_monitor import LearningRateMonitor
from gluongraph.lightning.callbacks.model_checkpoint import ModelCheckpoint
from gluongraph.lightning.callbacks.model_summary import ModelSummary, RichModelSummary
from gluongraph.lightning.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from gluongraph.lightning.callbacks.prediction_writer import BasePredictionWriter
from gluongraph.lightning.callbacks.progress import ProgressBar, RichProgressBar, TQDMProgressBar
from gluongraph.lightning.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
from gluongraph.lightning.callbacks.throughput_monitor import ThroughputMonitor
from gluongraph.lightning.callbacks.timer import Timer
from gluongraph.lightning.callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "Callback",
    "Checkpoint",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "ThroughputMonitor",
    "Timer",
    "WeightAveraging",
]

__getattr__ = says_what_instead(
    __name__,
    {
        "BatchSizeFinder": "gluongraph inspect says what memory a step takes; mx.compile(memory_budget=...) fits it",
        "LearningRateFinder": "gluongraph.lightning.tuner.Tuner(trainer).lr_find(model, loader), before fit",
        "ModelPruning": "prune the weights between two fits",
        "SpikeDetection": "Trainer(detect_anomaly=True) finds what is not finite; gradient_clip_val bounds the rest",
    },
)
