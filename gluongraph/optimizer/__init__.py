"""Optimizers, each a formula on one parameter: mx.optimizer."""

from gluongraph.optimizer.adam import Adam, AdamW
from gluongraph.optimizer.base import Optimizer, create, register
from gluongraph.optimizer.sgd import SGD, ccSGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "ccSGD", "create", "register"]
