"""RNN, GRU and LSTM: one product projects the inputs of all steps, one scan runs the steps of a direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph import ops
from gluongraph.builders.mxops import softrelu, softsign
from gluongraph.ir import Node
from gluongraph.onnx.site import Site, Value
from gluongraph.onnx.table import operator

Nodes = tuple[Node, ...]
Act = Callable[[Node], Node]
Texts = tuple[str, ...]
Floats = tuple[float, ...]


def _acts(at: Site, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Act]:
    """The activations by name; those with settings take them from the lists, in order."""
    alpha, beta = iter(alphas), iter(betas)

    def act(name: str) -> Act:
        key = name.lower()
        plain: dict[str, Act] = {
            "relu": ops.relu, "tanh": ops.tanh, "sigmoid": ops.sigmoid, "softsign": softsign, "softplus": softrelu,
        }  # fmt: skip
        if key in plain:
            return plain[key]
        if key == "affine":
            a, b = next(alpha, 1.0), next(beta, 0.0)
            return lambda x: ops.add(ops.mul(x, a), b)
        if key == "leakyrelu":
            a = next(alpha, 0.01)
            return lambda x: ops.where(ops.less(x, 0.0), ops.mul(x, a), x)
        if key == "thresholdedrelu":
            a = next(alpha, 1.0)
            return lambda x: ops.where(ops.greater(x, a), x, 0.0)
        if key == "scaledtanh":
            a, b = next(alpha, 1.0), next(beta, 1.0)
            return lambda x: ops.mul(ops.tanh(ops.mul(x, b)), a)
        if key == "hardsigmoid":
            a, b = next(alpha, 0.2), next(beta, 0.5)
            return lambda x: ops.minimum(ops.maximum(ops.add(ops.mul(x, a), b), 0.0), 1.0)
        if key == "elu":
            a = next(alpha, 1.0)
            return lambda x: ops.where(ops.greater(x, 0.0), x, ops.mul(ops.expm1(ops.minimum(x, 0.0)), a))
        raise at.unsupported(f"activations={list(names)}: there is no {name!r}")

    return [act(name) for name in names]


@dataclass(frozen=True)
class Cell:
    """One direction: `step(ready, states)` gives the states after a step, of the projected input and those before."""

    project: Callable[[Node], Node]
    step: Callable[[Node, Nodes], Nodes]


def _parts(x: Node, count: int) -> list[Node]:
    each = x.shape[-1] // count
    return [ops.part(x, -1, k * each, (k + 1) * each) for k in range(count)]


def _projected(w: Node, bias: Node | None) -> Callable[[Node], Node]:
    """x wᵀ + bias for all steps at once."""

    def project(x: Node) -> Node:
        steps, n, width = x.shape
        y = ops.matmul(ops.reshape(x, (steps * n, width)), w, tb=True)
        y = y if bias is None else ops.add(y, bias)
        return ops.reshape(y, (steps, n, w.shape[0]))

    return project


def _row(x: Node | None, direction: int) -> Node | None:
    return None if x is None else ops.squeeze(ops.part(x, 0, direction, direction + 1), 0)


def _clipped(clip: float | None) -> Callable[[Node], Node]:
    return (lambda x: x) if clip is None else lambda x: ops.minimum(ops.maximum(x, -clip), clip)


@dataclass(frozen=True)
class _Layer:
    """What the three operators share: directions, lengths, beginnings, the layout of the batch."""

    at: Site
    x: Node
    width: int
    directions: int
    direction: str
    lengths: Node | None
    layout: int

    def run(self, cells: Sequence[Cell], beginnings: Sequence[Node | None]) -> list[Value]:
        """Outputs of all steps, and the last states, each (directions, n, width)."""
        x = ops.transpose(self.x, (1, 0, 2)) if self.layout else self.x
        n = x.shape[1]
        outputs, last = [], []
        for number, cell in enumerate(cells):
            begin = tuple(
                ops.full((n, self.width), 0.0, x.dtype) if b is None else self._begin(b, number) for b in beginnings
            )
            back = self.direction == "reverse" or number == 1
            y, states = self._direction(cell, x, begin, back)
            outputs.append(y)
            last.append(states)
        y = ops.stack(*outputs, axis=1)
        ends = [ops.stack(*states) for states in zip(*last, strict=True)]
        if self.layout:
            return [ops.transpose(y, (2, 0, 1, 3)), *(ops.transpose(e, (1, 0, 2)) for e in ends)]
        return [y, *ends]

    def _begin(self, state: Node, number: int) -> Node:
        state = ops.transpose(state, (1, 0, 2)) if self.layout else state
        return ops.squeeze(ops.part(state, 0, number, number + 1), 0)

    def _direction(self, cell: Cell, x: Node, begin: Nodes, back: bool) -> tuple[Node, Nodes]:
        steps, n = x.shape[:2]
        ready = cell.project(x)
        if self.lengths is None:
            after, (y,) = ops.scan(lambda c, s: ((made := cell.step(s[0], c)), made[:1]), begin, [ready], reverse=back)
            return y, after
        inside = ops.less(ops.iota((steps, n), 0, "i64"), ops.reshape(ops.cast(self.lengths, "i64"), (1, n)))

        def step(carries: Nodes, slices: Nodes) -> tuple[Nodes, Nodes]:
            alive = ops.reshape(slices[1], (n, 1))
            made = tuple(
                ops.where(alive, new, old) for new, old in zip(cell.step(slices[0], carries), carries, strict=True)
            )
            return made, (ops.where(alive, made[0], 0.0),)

        after, (y,) = ops.scan(step, begin, [ready, inside], reverse=back)
        return y, after


def _layer(at: Site, x: Node, r: Node, direction: str, hidden: int | None, lengths: Node | None, layout: int) -> _Layer:
    at.choose("direction", direction, "forward", "reverse", "bidirectional")
    directions, width = r.shape[0], r.shape[2]
    if directions != 1 + (direction == "bidirectional") or (hidden or width) != width:
        raise at.wrong(f"direction={direction!r} and hidden_size={hidden} with recurrent weights {r.ty}")
    return _Layer(at, x, width, directions, direction, lengths, layout)


def _halves(b: Node | None, number: int) -> tuple[Node | None, Node | None]:
    """The biases of the input and of the state."""
    if (row := _row(b, number)) is None:
        return None, None
    half = row.shape[0] // 2
    return ops.part(row, 0, 0, half), ops.part(row, 0, half, 2 * half)


def _plus(x: Node, b: Node | None) -> Node:
    return x if b is None else ops.add(x, b)


def _each(values: Sequence[Any] | None, default: Sequence[Any], directions: int) -> list[Any]:
    return list(values) if values else list(default) * directions


@operator("RNN", since=7)
def rnn(
    at: Site,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    sequence_lens: Node | None = None,
    initial_h: Node | None = None,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: Texts = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> list[Value]:
    """h = f(x Wᵀ + h Rᵀ + b)"""
    layer = _layer(at, x, r, direction, hidden_size, sequence_lens, layout)
    acts = _acts(at, _each(activations, ["Tanh"], layer.directions), activation_alpha, activation_beta)
    held, cells = _clipped(clip), []
    for k in range(layer.directions):
        of_input, of_state = _halves(b, k)
        cells.append(Cell(_projected(_some(w, k), of_input), _rnn_step(_some(r, k), of_state, acts[k], held)))
    return layer.run(cells, [initial_h])


def _some(x: Node, number: int) -> Node:
    return ops.squeeze(ops.part(x, 0, number, number + 1), 0)


def _rnn_step(r: Node, bias: Node | None, act: Act, held: Act) -> Callable[[Node, Nodes], Nodes]:
    return lambda ready, states: (act(held(_plus(ops.add(ready, ops.matmul(states[0], r, tb=True)), bias))),)


@operator("GRU", since=7)
def gru(
    at: Site,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    sequence_lens: Node | None = None,
    initial_h: Node | None = None,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: Texts = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> list[Value]:
    """Gates z, r, h: H = (1 - z) h + z H, the reset gate before or behind the product"""
    layer = _layer(at, x, r, direction, hidden_size, sequence_lens, layout)
    acts = _acts(at, _each(activations, ["Sigmoid", "Tanh"], layer.directions), activation_alpha, activation_beta)
    held, cells = _clipped(clip), []
    for k in range(layer.directions):
        of_input, of_state = _halves(b, k)
        f, g = acts[2 * k : 2 * k + 2]
        step = _gru_step(_some(r, k), of_state, f, g, held, bool(linear_before_reset))
        cells.append(Cell(_projected(_some(w, k), of_input), step))
    return layer.run(cells, [initial_h])


def _gru_step(r: Node, bias: Node | None, f: Act, g: Act, held: Act, linear: bool) -> Callable[[Node, Nodes], Nodes]:
    width = r.shape[1]
    gates, last = ops.part(r, 0, 0, 2 * width), ops.part(r, 0, 2 * width, 3 * width)
    of_gates = None if bias is None else ops.part(bias, 0, 0, 2 * width)
    of_last = None if bias is None else ops.part(bias, 0, 2 * width, 3 * width)

    def step(ready: Node, states: Nodes) -> Nodes:
        (h,) = states
        xz, xr, xh = _parts(ready, 3)
        hz, hr = _parts(_plus(ops.matmul(h, gates, tb=True), of_gates), 2)
        z, reset = f(held(ops.add(xz, hz))), f(held(ops.add(xr, hr)))
        if linear:
            inner = ops.mul(reset, _plus(ops.matmul(h, last, tb=True), of_last))
        else:
            inner = _plus(ops.matmul(ops.mul(reset, h), last, tb=True), of_last)
        new = g(held(ops.add(xh, inner)))
        return (ops.add(ops.mul(ops.sub(1.0, z), new), ops.mul(z, h)),)

    return step


@operator("LSTM", since=7)
def lstm(
    at: Site,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    sequence_lens: Node | None = None,
    initial_h: Node | None = None,
    initial_c: Node | None = None,
    p: Node | None = None,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: Texts = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> list[Value]:
    """Gates i, o, f, c, with peepholes p: C = f C + i c; H = o h(C)"""
    layer = _layer(at, x, r, direction, hidden_size, sequence_lens, layout)
    names = _each(activations, ["Sigmoid", "Tanh", "Tanh"], layer.directions)
    acts = _acts(at, names, activation_alpha, activation_beta)
    held, cells = _clipped(clip), []
    for k in range(layer.directions):
        of_input, of_state = _halves(b, k)
        peep = _row(p, k)
        step = _lstm_step(_some(r, k), of_state, peep, acts[3 * k : 3 * k + 3], held, bool(input_forget))
        cells.append(Cell(_projected(_some(w, k), of_input), step))
    return layer.run(cells, [initial_h, initial_c])


def _lstm_step(
    r: Node, bias: Node | None, peep: Node | None, acts: Sequence[Act], held: Act, coupled: bool
) -> Callable[[Node, Nodes], Nodes]:
    f, g, act = acts
    to_i, to_o, to_f = (None, None, None) if peep is None else _parts(peep, 3)

    def seen(gate: Node, c: Node, weight: Node | None) -> Node:
        return gate if weight is None else ops.add(gate, ops.mul(weight, c))

    def step(ready: Node, states: Nodes) -> Nodes:
        h, c = states
        i, o, forget, new = _parts(_plus(ops.add(ready, ops.matmul(h, r, tb=True)), bias), 4)
        i = f(held(seen(i, c, to_i)))
        forget = ops.sub(1.0, i) if coupled else f(held(seen(forget, c, to_f)))
        c = ops.add(ops.mul(forget, c), ops.mul(i, g(held(new))))
        o = f(held(seen(o, c, to_o)))
        return ops.mul(o, act(c)), c

    return step
