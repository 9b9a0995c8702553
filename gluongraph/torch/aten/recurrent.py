"""RNN, LSTM and GRU: whole layers, and one step of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.mxops import rnn
from gluongraph.torch.aten.context import OpContext
from gluongraph.torch.aten.nn import dropped
from gluongraph.torch.aten.table import aten

Nodes = Sequence[Node]


def _weights(params: Nodes, has_biases: bool, projected: bool) -> list[list[Node]]:
    """The parameters of each layer's directions as `mxops.rnn` takes them: two weights, two biases, the projection."""
    each = 2 + 2 * has_biases + projected
    found = []
    for k in range(0, len(params), each):
        i2h, h2h, *rest = params[k : k + each]
        biases = rest[:2] if has_biases else [ops.full((i2h.shape[0],), 0, i2h.dtype)] * 2
        found.append([i2h, h2h, *biases, *rest[2 * has_biases :]])
    return found


def _layers(
    at: OpContext,
    mode: str,
    input: Node,
    states: Nodes,
    weights: Sequence[Nodes],
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
    act: str | None = None,
) -> list[Node]:
    """All layers, one above the other: outputs, and the last states of all."""
    alone = input.ty.rank == 2
    x = ops.expand_dims(input, 1) if alone else ops.transpose(input, (1, 0, 2)) if batch_first else input
    given = [ops.expand_dims(s, 1) if alone else s for s in states]
    directions = 2 if bidirectional else 1
    lasts: list[Sequence[Node]] = []
    for k in range(0, len(weights), directions):
        begin = [ops.part(s, 0, k, k + directions) for s in given]
        cell = begin[1] if len(begin) > 1 else None
        how: dict[str, Any] = {} if act is None else {"act": act}
        own = [w for one in weights[k : k + directions] for w in one]
        x, *last = rnn.layer(x, *own, mode=mode, state=begin[0], state_cell=cell, directions=directions, **how)
        lasts.append(last)
        if k + directions < len(weights):
            x = dropped(at, x, dropout)
    outputs = ops.reshape(x, (x.shape[0], x.shape[2])) if alone else ops.transpose(x, (1, 0, 2)) if batch_first else x
    ends = [ops.concat(*each, axis=0) for each in zip(*lasts, strict=True)]
    return [outputs, *(ops.reshape(e, (e.shape[0], e.shape[2])) if alone else e for e in ends)]


@aten("lstm.input")
def lstm(
    at: OpContext,
    input: Node,
    hx: Nodes,
    params: Nodes,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Node]:
    """LSTM layers: outputs, last outputs, last cell states"""
    directions = 2 if bidirectional else 1
    projected = len(params) == num_layers * directions * (3 + 2 * has_biases)
    weights = _weights(params, has_biases, projected)
    return _layers(at, "lstm", input, hx, weights, dropout if train else 0.0, bidirectional, batch_first)


def _of_one_state(name: str, mode: str, act: str | None) -> None:
    @aten(f"{name}.input")
    def layers(
        at: OpContext,
        input: Node,
        hx: Node,
        params: Nodes,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Node]:
        weights = _weights(params, has_biases, False)
        return _layers(at, mode, input, [hx], weights, dropout if train else 0.0, bidirectional, batch_first, act)


_of_one_state("gru", "gru", None)
_of_one_state("rnn_tanh", "rnn", "tanh")
_of_one_state("rnn_relu", "rnn", "relu")


# -- one step


def _biases(w_ih: Node, b_ih: Node | None, b_hh: Node | None) -> list[Node]:
    zeros = ops.full((w_ih.shape[0],), 0, w_ih.dtype)
    return [zeros if b is None else b for b in (b_ih, b_hh)]


@aten("lstm_cell.default")
def lstm_cell(
    at: OpContext, input: Node, hx: Nodes, w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None
) -> list[Node]:
    """One step of an LSTM: the output and the cell state"""
    return list(rnn.cell(input, *hx, w_ih, w_hh, *_biases(w_ih, b_ih, b_hh), mode="lstm"))


@aten("gru_cell.default")
def gru_cell(
    at: OpContext, input: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None
) -> Node:
    """One step of a GRU"""
    return rnn.cell(input, hx, w_ih, w_hh, *_biases(w_ih, b_ih, b_hh), mode="gru")[0]


@aten("rnn_tanh_cell.default", "rnn_relu_cell.default")
def rnn_cell(
    at: OpContext, input: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None
) -> Node:
    """One step of an RNN"""
    act = "tanh" if "tanh" in at.name else "relu"
    return rnn.cell(input, hx, w_ih, w_hh, *_biases(w_ih, b_ih, b_hh), mode="rnn", act=act)[0]
