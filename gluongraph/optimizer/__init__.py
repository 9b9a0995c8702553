"""Optimizers, each a formula on one parameter: mx.optimizer."""

from gluongraph.optimizer import contrib, torch
from gluongraph.optimizer.adagrad import AdaDelta, AdaGrad, GroupAdaGrad, RMSProp
from gluongraph.optimizer.adam import AdaBelief, Adam, Adamax, AdamW, Nadam
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.ftrl import FTML, Ftrl
from gluongraph.optimizer.groups import ParameterGroups
from gluongraph.optimizer.layerwise import LAMB, LANS, LARS, LBSGD
from gluongraph.optimizer.registry import create, register
from gluongraph.optimizer.sgd import DCASGD, NAG, SGD, SGLD, Signum, Test, ccSGD
from gluongraph.optimizer.updater import Updater, get_updater

__all__ = [
    "DCASGD",
    "FTML",
    "LAMB",
    "LANS",
    "LARS",
    "LBSGD",
    "NAG",
    "SGD",
    "SGLD",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "GroupAdaGrad",
    "Nadam",
    "Optimizer",
    "ParameterGroups",
    "RMSProp",
    "Signum",
    "Test",
    "Updater",
    "ccSGD",
    "contrib",
    "create",
    "get_updater",
    "register",
    "torch",
]
