"""Recurrent layers as builders over nodes: one product projects the inputs of all steps, one scan runs the steps.

Gates are in the order of cuDNN, which is MXNet's: i, f, g, o of an LSTM and r, z, n of a GRU, whose reset gate acts
behind the product. The weights of a direction are i2h_weight, h2h_weight, i2h_bias, h2h_bias, and h2r_weight of an
LSTM with projection (Sak et al. 2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph import ops
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.layers import Activation, FullyConnected

Nodes = tuple[Node, ...]
Clip = tuple[float, float, bool]  # least and largest cell state, and whether NaN counts as the least


@dataclass(frozen=True)
class Mode:
    """A recurrence: how many gates and states it has, and one step of it.

    `step(ready, states, h2h_weight, h2h_bias, h2r_weight, ...)` takes the projected input and gives the states after
    it, and what else its gradient reads, so that this need not be computed again.
    """

    gates: int
    states: int
    step: Callable[..., tuple[Nodes, Nodes]]


def _rnn(ready: Any, states: Nodes, weight: Node, bias: Node, act: Any) -> tuple[Nodes, Nodes]:
    """h = act(x W_i + b_i + h W_h + b_h), without act the sum"""
    total = ops.add(ready, _dense(states[0], weight, bias))
    return (total if act is None else Activation(total, act),), ()


def _lstm(
    ready: Any,
    states: Nodes,
    weight: Node,
    bias: Node,
    projection: Node | None = None,
    act: Any = "tanh",
    gate: Any = "sigmoid",
    clip: Clip | None = None,
) -> tuple[Nodes, Nodes]:
    """c = f c + i g, held within `clip`; h = o act(c), or its projection"""
    h, c = states
    i, f, g, o = _parts(ops.add(ready, _dense(h, weight, bias)), 4)
    i, f, g, o = Activation(i, gate), Activation(f, gate), Activation(g, act), Activation(o, gate)
    c = _held(ops.add(ops.mul(f, c), ops.mul(i, g)), clip)
    squashed = Activation(c, act)
    h = ops.mul(o, squashed)
    if projection is not None:
        h = ops.matmul(h, projection, tb=True)
    return (h, c), (i, f, g, o, squashed)


def _gru(ready: Any, states: Nodes, weight: Node, bias: Node) -> tuple[Nodes, Nodes]:
    """n = tanh(x_n + r h_n); h = (1 - z) n + z h"""
    (h,) = states
    (xr, xz, xn), (hr, hz, hn) = _parts(ready, 3), _parts(_dense(h, weight, bias), 3)
    r, z = ops.sigmoid(ops.add(xr, hr)), ops.sigmoid(ops.add(xz, hz))
    n = ops.tanh(ops.add(xn, ops.mul(r, hn)))
    return (ops.add(ops.mul(ops.sub(1.0, z), n), ops.mul(z, h)),), (r, z, n, hn)


MODES = {"rnn": Mode(1, 1, _rnn), "lstm": Mode(4, 2, _lstm), "gru": Mode(3, 1, _gru)}


def _dense(x: Node, weight: Node, bias: Node) -> Node:
    return ops.add(ops.matmul(x, weight, tb=True), bias)


def _parts(x: Node, count: int) -> list[Any]:
    """Equal parts along the last axis."""
    each = x.shape[-1] // count
    return [ops.part(x, -1, k * each, (k + 1) * each) for k in range(count)]


def _held(c: Node, clip: Clip | None) -> Node:
    if clip is None:
        return c
    least, largest, nan = clip
    if nan:
        c = ops.where(ops.isnan(c), least, c)
    return ops.minimum(ops.maximum(c, least), largest)


# -- one step


def cell(data: Node, *arrays: Node, mode: str, **how: Any) -> Nodes:
    """The states after one step on data of shape (n, inputs), given the states before and then the weights."""
    kind = MODES[mode]
    states, (i2h_weight, h2h_weight, i2h_bias, h2h_bias, *projection) = arrays[: kind.states], arrays[kind.states :]
    _check_input(data.ty.rank == 2, data, i2h_weight, i2h_bias)
    _check_states(states, [(data.shape[0], n) for n in _widths(h2h_weight, kind)])
    ready = FullyConnected(data, i2h_weight, i2h_bias, num_hidden=i2h_weight.shape[0])
    return kind.step(ready, states, h2h_weight, h2h_bias, *projection, **how)[0]


def _widths(h2h_weight: Node, kind: Mode) -> tuple[int, ...]:
    """The width of each state: the output, which a projection may have narrowed, and the cell state."""
    return (h2h_weight.shape[1], h2h_weight.shape[0] // kind.gates)[: kind.states]


def _check_input(fits: bool, data: Node, weight: Node, bias: Node) -> None:
    if data.dtype != weight.dtype:
        raise MXNetError(
            with_user_location(
                f"recurrent layer: data {data.ty} and weights {weight.ty} differ in dtype", help="cast one of them"
            )
        )
    if not fits or data.shape[-1] != weight.shape[1] or bias.shape != weight.shape[:1]:
        help = f"the weights take {weight.shape[1]} features on the last axis"
        raise ShapeError(
            with_user_location(f"recurrent layer: data {data.ty} does not fit weights {weight.ty}", help=help)
        )


def _check_states(states: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    for state, shape in zip(states, shapes, strict=True):
        if state.shape != shape:
            raise ShapeError(
                with_user_location(
                    f"Invalid recurrent state shape. Expecting {shape}, got {state.shape}.",
                    help="begin_state(batch_size) makes states that fit",
                )
            )


# -- all steps


def layer(
    data: Node,
    *weights: Node,
    mode: str,
    state: Node | None = None,
    state_cell: Node | None = None,
    sequence_length: Node | None = None,
    directions: int = 1,
    **how: Any,
) -> Nodes:
    """Outputs (steps, n, width · directions) of one layer on data (steps, n, inputs), and the last states (directions,
    n, width). States begin at 0 where none are given. Behind its sequence_length a sequence has outputs 0 and keeps
    its states; the other direction begins there."""
    kind, each = MODES[mode], len(weights) // directions
    _check_input(data.ty.rank == 3, data, weights[0], weights[2])
    shapes = [(directions, data.shape[1], n) for n in _widths(weights[1], kind)]
    given = (state, state_cell)[: kind.states]
    begin = [ops.full(s, 0.0, data.dtype) if b is None else b for b, s in zip(given, shapes, strict=True)]
    _check_states(begin, shapes)
    valid = None if sequence_length is None else _valid(sequence_length, data.shape[0], data.shape[1])
    runs = [
        _direction(data, weights[d * each : (d + 1) * each], [_one(b, d) for b in begin], valid, kind, d == 1, how)
        for d in range(directions)
    ]
    outputs, lasts = zip(*runs, strict=True)
    return (ops.concat(*outputs, axis=2), *(ops.stack(*last) for last in zip(*lasts, strict=True)))


def _one(x: Node, at: int) -> Node:
    """x[at]"""
    return ops.reshape(ops.part(x, 0, at, at + 1), x.shape[1:])


def _valid(sequence_length: Node, steps: int, n: int) -> Node:
    """Which steps lie within their sequence: (steps, n, 1)."""
    if sequence_length.shape != (n,):
        raise ShapeError(
            with_user_location(f"sequence_length has shape {sequence_length.shape}, and there are {n} sequences")
        )
    step = ops.cast(ops.iota((steps, n), 0), sequence_length.dtype)
    return ops.reshape(ops.less(step, sequence_length), (steps, n, 1))


def _direction(
    data: Node, weights: Sequence[Any], begin: Sequence[Any], valid: Any, kind: Mode, reverse: bool, how: dict[str, Any]
) -> tuple[Node, Nodes]:
    """The outputs of all steps, and the last states."""
    i2h_weight, h2h_weight, i2h_bias, h2h_bias, *projection = weights
    ready = _dense(data, i2h_weight, i2h_bias)

    def turn(states: Nodes, slices: Nodes) -> tuple[Nodes, Nodes]:
        after, seen = kind.step(slices[0], states, h2h_weight, h2h_bias, *projection, **how)
        output = after[0]
        if valid is not None:
            output = ops.where(slices[1], output, 0.0)
            after = tuple(ops.where(slices[1], new, old) for new, old in zip(after, states, strict=True))
        return after, tuple(dict.fromkeys((output, *after, *seen)))

    lasts, ys = ops.scan(turn, begin, (ready,) if valid is None else (ready, valid), reverse=reverse)
    return ys[0], lasts


# -- weights in one vector


def unpack(
    parameters: Node, mode: str, inputs: int, width: int, layers: int, directions: int, projection: int | None
) -> list[Node]:
    """The weights, layer by layer, out of the vector that MXNet's RNN operator has them in: all matrices, then all
    biases."""
    shapes = weight_shapes(mode, inputs, width, layers, directions, projection)
    wanted = sum(math.prod(s) for s in shapes)
    if parameters.shape != (wanted,):
        raise ShapeError(
            with_user_location(f"RNN: parameters have shape {parameters.shape}, and ({wanted},) is needed")
        )
    found: dict[int, Node] = {}
    at = 0
    for rank in (2, 1):
        for k, shape in enumerate(shapes):
            if len(shape) == rank:
                size = math.prod(shape)
                found[k] = ops.reshape(ops.part(parameters, 0, at, at + size), shape)
                at += size
    return [found[k] for k in range(len(shapes))]


def weight_shapes(
    mode: str, inputs: int, width: int, layers: int, directions: int, projection: int | None
) -> list[tuple[int, ...]]:
    """The shapes of the weights of all layers and directions, in order; 0 stands for unknown inputs."""
    rows, out = MODES[mode].gates * width, projection or width
    shapes: list[tuple[int, ...]] = []
    for k in range(layers):
        width_in = inputs if k == 0 else out * directions
        one: list[tuple[int, ...]] = [(rows, width_in), (rows, out), (rows,), (rows,)]
        shapes += (one + [(out, width)] * bool(projection)) * directions
    return shapes
