"""Optimizers, each a formula on one parameter: mx.optimizer."""

from gluongraph.optimizer.adam import Adam, AdamW
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.registry import create, register
from gluongraph.optimizer.sgd import SGD, ccSGD
from gluongraph.optimizer.updater import Updater, get_updater

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Updater", "ccSGD", "create", "get_updater", "register"]
