"""A recurrent layer taken apart into cells, which share its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.rnn.gated import GRUCell, LSTMCell, RNNCell
from gluongraph.gluon.rnn.modifiers import DropoutCell
from gluongraph.gluon.rnn.stack import BidirectionalCell, HybridSequentialRNNCell

CELLS: dict[str, Callable[..., Any]] = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell}


def unfused(
    cell: Callable[..., Any],
    units: int,
    layers: int,
    directions: int,
    dropout: float,
    prefix: str,
    params: ParameterDict,
) -> HybridSequentialRNNCell:
    """Cells of a kind, one above the other, whose parameters are those of `params` by their names.

    >>> from gluongraph.gluon import rnn
    >>> layer = rnn.GRU(4, num_layers=2)
    >>> len(unfused(rnn.GRUCell, 4, 2, 1, 0.0, layer.prefix, layer.params))
    2
    """
    stack = HybridSequentialRNNCell(prefix=prefix, params=params)
    with stack.name_scope():
        for layer in range(layers):
            cells = [cell(units, prefix=f"{direction}{layer}_") for direction in "lr"[:directions]]
            stack.add(BidirectionalCell(*cells) if directions == 2 else cells[0])
            if dropout and layer < layers - 1:
                stack.add(DropoutCell(dropout))
    return stack


def no_projection(name: str) -> NotImplementedError:
    """The error where a layer has no cells of its kind.

    >>> "projects its states" in str(no_projection("lstm"))
    True
    """
    return NotImplementedError(
        with_user_location(f"{name} projects its states, which its cells do not", help="rnn.LSTMPCell does")
    )
