"""Loggers: where the metrics and hyperparameters of a run go. Names and arguments are those of Lightning 2.6."""

from __future__ import annotations

from gluongraph.lightning.absent import says_what_instead
from gluongraph.lightning.loggers.csv_logs import CSVLogger
from gluongraph.lightning.loggers.hparams import load_hparams_from_yaml, save_hparams_to_yaml
from gluongraph.lightning.loggers.html_report import HTMLLogger
from gluongraph.lightning.loggers.logger import Logger
from gluongraph.lightning.loggers.tensorboard import TensorBoardLogger

__all__ = [
    "CSVLogger",
    "HTMLLogger",
    "Logger",
    "TensorBoardLogger",
    "load_hparams_from_yaml",
    "save_hparams_to_yaml",
]

_OWN = "a Logger whose log_metrics hands them to the service's own client"
__getattr__ = says_what_instead(
    __name__, dict.fromkeys(("CometLogger", "LitLogger", "MLFlowLogger", "NeptuneLogger", "WandbLogger"), _OWN)
)
