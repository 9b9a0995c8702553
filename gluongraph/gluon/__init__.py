"""The neural network API: mx.gluon."""

from typing import TYPE_CHECKING

from gluongraph.gluon import loss, nn, rnn, utils
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter import Constant, DeferredInitializationError, Parameter
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.trainer import Trainer
from gluongraph.host.lazy import imported_later

if TYPE_CHECKING:
    from gluongraph.gluon import contrib, data, model_zoo
    from gluongraph.gluon.symbol_block import SymbolBlock

_LATER = {"SymbolBlock": "gluongraph.gluon.symbol_block"}  # with symbols, which few programs use
__getattr__ = imported_later(__name__, ("contrib", "data", "model_zoo"), _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
