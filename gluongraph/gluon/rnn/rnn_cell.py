"""All cells, where MXNet has them: mx.gluon.rnn.rnn_cell."""

from gluongraph.gluon.rnn.gated import GRUCell, LSTMCell, RNNCell
from gluongraph.gluon.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, ZoneoutCell
from gluongraph.gluon.rnn.recurrent import HybridRecurrentCell, RecurrentCell
from gluongraph.gluon.rnn.stack import BidirectionalCell, HybridSequentialRNNCell, SequentialRNNCell

__all__ = [
    "BidirectionalCell",
    "DropoutCell",
    "GRUCell",
    "HybridRecurrentCell",
    "HybridSequentialRNNCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RecurrentCell",
    "ResidualCell",
    "SequentialRNNCell",
    "ZoneoutCell",
]
