"""Recurrent layers and cells: mx.gluon.rnn."""

from gluongraph.gluon.rnn import rnn_cell, rnn_layer
from gluongraph.gluon.rnn.gated import GRUCell, LSTMCell, RNNCell
from gluongraph.gluon.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, ZoneoutCell
from gluongraph.gluon.rnn.recurrent import HybridRecurrentCell, RecurrentCell
from gluongraph.gluon.rnn.rnn_layer import GRU, LSTM, RNN
from gluongraph.gluon.rnn.stack import BidirectionalCell, HybridSequentialRNNCell, SequentialRNNCell

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
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
    "rnn_cell",
    "rnn_layer",
]
