"""Stacked recurrent layers on arrays, and MXNet's RNN operator, which has their weights in one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import random
from gluongraph.eager.tape import STATE
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.mxops import layers as mxlayers
from gluongraph.mxops import rnn as mxrnn
from gluongraph.mxops import shapes as mxshapes
from gluongraph.ndarray import NDArray, invoke

_MODES: dict[str, tuple[str, dict[str, Any]]] = {  # MXNet's name -> the recurrence, and how it goes
    "rnn_relu": ("rnn", {"act": "relu"}),
    "rnn_tanh": ("rnn", {"act": "tanh"}),
    "lstm": ("lstm", {}),
    "gru": ("gru", {}),
}


def stacked(
    data: NDArray,
    weights: Sequence[NDArray],
    states: Sequence[NDArray],
    sequence_length: NDArray | None = None,
    *,
    mode: str,
    layers: int,
    directions: int,
    dropout: float = 0.0,
    **how: Any,
) -> list[NDArray]:
    """The outputs of the last layer on data (steps, n, inputs), and the last states (layers · directions, n, width).

    `weights` are those of all layers in order, `states` where they begin, or none. In training, dropout acts on the
    outputs of all layers but the last.
    """
    each = len(weights) // layers
    lasts: list[list[NDArray]] = []
    for k in range(layers):
        begin = [state[k * directions : (k + 1) * directions] for state in states]
        data, *last = invoke(
            mxrnn.layer,
            data,
            *weights[k * each : (k + 1) * each],
            mode=mode,
            directions=directions,
            sequence_length=sequence_length,
            **dict(zip(("state", "state_cell"), begin, strict=False)),
            **how,
        )
        lasts.append(last)
        if dropout > 0 and STATE.training and k < layers - 1:
            generator, draw = random.source(data.context)
            data = invoke(mxlayers.dropout, data, generator, p=float(dropout), draw=draw)
    return [data, *(invoke(mxshapes.concat, *of_all, dim=0) for of_all in zip(*lasts, strict=True))]


def RNN(
    data: NDArray,
    parameters: NDArray,
    state: NDArray,
    state_cell: NDArray | None = None,
    sequence_length: NDArray | None = None,
    state_size: int = 0,
    num_layers: int = 0,
    bidirectional: bool = False,
    mode: str = "",
    p: float = 0.0,
    state_outputs: bool = False,
    projection_size: int | None = None,
    lstm_state_clip_min: float | None = None,
    lstm_state_clip_max: float | None = None,
    lstm_state_clip_nan: bool = False,
    use_sequence_length: bool = False,
) -> Any:
    """Recurrent layers (rnn_relu, rnn_tanh, lstm, gru) on data (steps, n, inputs), beginning with `state`.

    `parameters` holds all weights layer by layer (i2h, h2h, and h2r with a projection), then all biases. The result
    has shape (steps, n, width · directions); with `state_outputs` the last states come behind it in a list.

    Raises:
        MXNetError: an unknown mode, or arrays that do not fit.
    """
    if mode not in _MODES:
        raise MXNetError(with_user_location(f"RNN: no mode {mode!r}; there are {', '.join(_MODES)}"))
    if use_sequence_length and sequence_length is None and mode != "lstm":
        state_cell, sequence_length = None, state_cell  # by place: these modes have no state_cell in between
    kind, how = _MODES[mode]
    if kind == "lstm":
        how = {"clip": clipping(lstm_state_clip_min, lstm_state_clip_max, lstm_state_clip_nan)}
    directions = 2 if bidirectional else 1
    weights = invoke(
        mxrnn.unpack,
        parameters,
        mode=kind,
        inputs=data.shape[-1],
        width=state_size,
        layers=num_layers,
        directions=directions,
        projection=projection_size,
    )
    found = stacked(
        data,
        weights,
        [s for s in (state, state_cell) if s is not None],
        sequence_length if use_sequence_length else None,
        mode=kind,
        layers=num_layers,
        directions=directions,
        dropout=p,
        **how,
    )
    return found if state_outputs else found[0]


def clipping(least: float | None, largest: float | None, nan: bool) -> mxrnn.Clip | None:
    """Bounds of the cell state of an LSTM; None without.

    Raises:
        ValueError: only one bound is given.
    """
    if least is None and largest is None:
        return None
    if least is None or largest is None:
        raise ValueError(
            with_user_location(f"the cell state is clipped between two numbers, and these are {least} and {largest}")
        )
    return float(least), float(largest), bool(nan)
