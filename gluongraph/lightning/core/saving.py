"""Files of hyperparameters, under the name that Lightning's scripts import their functions by."""

from gluongraph.lightning.loggers.hparams import load_hparams_from_yaml, save_hparams_to_yaml

__all__ = ["load_hparams_from_yaml", "save_hparams_to_yaml"]
