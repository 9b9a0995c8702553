"""`save_hyperparameters` for other classes, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.hparams import HyperparametersMixin

__all__ = ["HyperparametersMixin"]
