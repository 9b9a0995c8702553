"""The neural network API: mx.gluon."""

from gluongraph.gluon import contrib, data, loss, model_zoo, nn, rnn, utils
from gluongraph.gluon.block import Block, HybridBlock
from gluongraph.gluon.parameter import Constant, DeferredInitializationError, Parameter, ParameterDict
from gluongraph.gluon.symbol_block import SymbolBlock
from gluongraph.gluon.trainer import Trainer

__all__ = [
    "Block",
    "Constant",
    "DeferredInitializationError",
    "HybridBlock",
    "Parameter",
    "ParameterDict",
    "SymbolBlock",
    "Trainer",
    "contrib",
    "data",
    "loss",
    "model_zoo",
    "nn",
    "rnn",
    "utils",
]
