"""PyTorch's optimizers with its arguments, defaults and formulas: mx.optimizer.torch, names "torch.adam" and so on.

Nothing of PyTorch is needed for them.
"""

from gluongraph.optimizer.torch.adagrad import Adadelta, Adagrad, RMSprop
from gluongraph.optimizer.torch.adam import Adam, Adamax, AdamW, NAdam, RAdam
from gluongraph.optimizer.torch.muon import Muon
from gluongraph.optimizer.torch.sgd import ASGD, SGD, Lion, Rprop

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
]
