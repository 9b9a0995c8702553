"""RNN, GRU and LSTM: one product projects the inputs of all steps, one scan runs the steps of a direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.mxops.ops import softrelu, softsign
from gluongraph.onnx.operators.math import leaky, within
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import attributes, operator

Nodes = tuple[Node, ...]
Act = Callable[[Node], Node]
Step = Callable[[Node, Nodes], Nodes]
Texts = tuple[str, ...]
Floats = tuple[float, ...]


@attributes
@dataclass(frozen=True)
class Settings:
    """What the three operators may be asked for."""

    activation_alpha: Floats = ()
    activation_beta: Floats = ()
    activations: Texts = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    def clipped(self, x: Node) -> Node:
        """x within ±clip."""
        return x if self.clip is None else ops.minimum(ops.maximum(x, -self.clip), self.clip)


def _acts(at: NodeContext, settings: Settings, default: Texts) -> list[Act]:
    """The activations by name; those with numbers of their own take them from the lists, in order."""
    names = settings.activations or default
    alpha, beta = iter(settings.activation_alpha), iter(settings.activation_beta)

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
            return lambda x: leaky(x, a)
        if key == "thresholdedrelu":
            a = next(alpha, 1.0)
            return lambda x: ops.where(ops.greater(x, a), x, 0.0)
        if key == "scaledtanh":
            a, b = next(alpha, 1.0), next(beta, 1.0)
            return lambda x: ops.mul(ops.tanh(ops.mul(x, b)), a)
        if key == "hardsigmoid":
            a, b = next(alpha, 0.2), next(beta, 0.5)
            return lambda x: within(ops.add(ops.mul(x, a), b), 0.0, 1.0)
        if key == "elu":
            a = next(alpha, 1.0)
            return lambda x: ops.where(ops.greater(x, 0.0), x, ops.mul(ops.expm1(ops.minimum(x, 0.0)), a))
        raise at.unsupported(f"activations={list(names)}: there is no {name!r}")

    return [act(name) for name in names]


@dataclass(frozen=True)
class Cell:
    """One direction: `step(ready, states)` gives the states after a step, of the projected input and those before."""

    project: Callable[[Node], Node]
    step: Step


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


def _row(x: Node, direction: int) -> Node:
    return ops.squeeze(ops.part(x, 0, direction, direction + 1), 0)


MakeStep = Callable[[Node, Node | None, list[Act], int], Step]


@dataclass(frozen=True)
class _Layer:
    """What the three operators share: inputs and settings, directions, lengths, beginnings, the layout of the batch."""

    at: NodeContext
    x: Node
    w: Node
    r: Node
    b: Node | None
    lengths: Node | None
    settings: Settings

    def outputs(self, beginnings: Sequence[Node | None], acts: Texts, step: MakeStep) -> list[Value]:
        """Outputs of all steps, and the last states, each (directions, n, width).

        `acts` are the activations of a direction where none are given; `step` makes what a direction does at each step,
        of its recurrent weights, the bias of the state, its activations and its number.
        """
        self._check()
        x = ops.transpose(self.x, (1, 0, 2)) if self.settings.layout else self.x
        outputs, last = [], []
        for number, cell in enumerate(self._cells(acts, step)):
            begin = tuple(self._begin(x, state, number) for state in beginnings)
            back = self.settings.direction == "reverse" or number == 1
            y, states = self._direction(cell, x, begin, back)
            outputs.append(y)
            last.append(states)
        y = ops.stack(*outputs, axis=1)
        ends = [ops.stack(*states) for states in zip(*last, strict=True)]
        if self.settings.layout:
            return [ops.transpose(y, (2, 0, 1, 3)), *(ops.transpose(e, (1, 0, 2)) for e in ends)]
        return [y, *ends]

    def _check(self) -> None:
        how, directions, width = self.settings, self.r.shape[0], self.r.shape[2]
        self.at.choose("direction", how.direction, "forward", "reverse", "bidirectional")
        if directions != 1 + (how.direction == "bidirectional") or (how.hidden_size or width) != width:
            raise self.at.wrong(
                f"direction={how.direction!r} and hidden_size={how.hidden_size} with recurrent weights {self.r.ty}"
            )

    def _cells(self, acts: Texts, step: MakeStep) -> list[Cell]:
        directions, each = self.r.shape[0], len(acts)
        found, cells = _acts(self.at, self.settings, acts * directions), []
        for k in range(directions):
            of_input, of_state = _halves(self.b, k)
            made = step(_row(self.r, k), of_state, found[each * k : each * (k + 1)], k)
            cells.append(Cell(_projected(_row(self.w, k), of_input), made))
        return cells

    def _begin(self, x: Node, state: Node | None, number: int) -> Node:
        if state is None:
            return ops.full((x.shape[1], self.r.shape[2]), 0.0, x.dtype)
        return _row(ops.transpose(state, (1, 0, 2)) if self.settings.layout else state, number)

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


def _halves(b: Node | None, number: int) -> tuple[Node | None, Node | None]:
    """The biases of the input and of the state."""
    if b is None:
        return None, None
    row = _row(b, number)
    half = row.shape[0] // 2
    return ops.part(row, 0, 0, half), ops.part(row, 0, half, 2 * half)


def _plus(x: Node, b: Node | None) -> Node:
    return x if b is None else ops.add(x, b)


@operator("RNN", since=7)
def rnn(
    at: NodeContext,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    sequence_lens: Node | None = None,
    initial_h: Node | None = None,
    *,
    settings: Settings,
) -> list[Value]:
    """h = f(x Wᵀ + h Rᵀ + b)"""

    def of_direction(r: Node, bias: Node | None, acts: list[Act], number: int) -> Step:
        (f,) = acts

        def step(ready: Node, states: Nodes) -> Nodes:
            (h,) = states
            return (f(settings.clipped(_plus(ops.add(ready, ops.matmul(h, r, tb=True)), bias))),)

        return step

    return _Layer(at, x, w, r, b, sequence_lens, settings).outputs([initial_h], ("Tanh",), of_direction)


@operator("GRU", since=7)
def gru(
    at: NodeContext,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    sequence_lens: Node | None = None,
    initial_h: Node | None = None,
    *,
    settings: Settings,
    linear_before_reset: int = 0,
) -> list[Value]:
    """Gates z, r, h: H = (1 - z) h + z H, the reset gate before or behind the product"""
    held = settings.clipped

    def of_direction(r: Node, bias: Node | None, acts: list[Act], number: int) -> Step:
        (f, g), width = acts, r.shape[1]
        gates, last = ops.part(r, 0, 0, 2 * width), ops.part(r, 0, 2 * width, 3 * width)
        of_gates = None if bias is None else ops.part(bias, 0, 0, 2 * width)
        of_last = None if bias is None else ops.part(bias, 0, 2 * width, 3 * width)

        def step(ready: Node, states: Nodes) -> Nodes:
            (h,) = states
            xz, xr, xh = _parts(ready, 3)
            hz, hr = _parts(_plus(ops.matmul(h, gates, tb=True), of_gates), 2)
            z, reset = f(held(ops.add(xz, hz))), f(held(ops.add(xr, hr)))
            if linear_before_reset:
                inner = ops.mul(reset, _plus(ops.matmul(h, last, tb=True), of_last))
            else:
                inner = _plus(ops.matmul(ops.mul(reset, h), last, tb=True), of_last)
            new = g(held(ops.add(xh, inner)))
            return (ops.add(ops.mul(ops.sub(1.0, z), new), ops.mul(z, h)),)

        return step

    return _Layer(at, x, w, r, b, sequence_lens, settings).outputs([initial_h], ("Sigmoid", "Tanh"), of_direction)


@operator("LSTM", since=7)
def lstm(
    at: NodeContext,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    sequence_lens: Node | None = None,
    initial_h: Node | None = None,
    initial_c: Node | None = None,
    p: Node | None = None,
    *,
    settings: Settings,
    input_forget: int = 0,
) -> list[Value]:
    """Gates i, o, f, c, with peepholes p: C = f C + i c; H = o h(C)"""
    held = settings.clipped

    def seen(gate: Node, c: Node, weight: Node | None) -> Node:
        return gate if weight is None else ops.add(gate, ops.mul(weight, c))

    def of_direction(r: Node, bias: Node | None, acts: list[Act], number: int) -> Step:
        f, g, act = acts
        to_i, to_o, to_f = (None, None, None) if p is None else _parts(_row(p, number), 3)

        def step(ready: Node, states: Nodes) -> Nodes:
            h, c = states
            i, o, forget, new = _parts(_plus(ops.add(ready, ops.matmul(h, r, tb=True)), bias), 4)
            i = f(held(seen(i, c, to_i)))
            forget = ops.sub(1.0, i) if input_forget else f(held(seen(forget, c, to_f)))
            c = ops.add(ops.mul(forget, c), ops.mul(i, g(held(new))))
            o = f(held(seen(o, c, to_o)))
            return ops.mul(o, act(c)), c

        return step

    layer = _Layer(at, x, w, r, b, sequence_lens, settings)
    return layer.outputs([initial_h, initial_c], ("Sigmoid", "Tanh", "Tanh"), of_direction)
