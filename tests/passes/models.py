"""Training steps as graphs, built from ops alone: what the tests of fuse, schedule and memory look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gluongraph import ops
from gluongraph.compiler.run_passes import run
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import Candidate, Group, Plan
from gluongraph.ir.verify import verify_plan
from gluongraph.ops.autodiff import differentiate
from gluongraph.passes import assign_memory, schedule, select
from gluongraph.passes.pipeline import Context

Forward = Callable[["Builder"], Node]


class Builder:
    """Collects the inputs of a model while it is being written down."""

    def __init__(self) -> None:
        self.inputs: dict[str, Node] = {}
        self.params: list[str] = []

    def data(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Node:
        self.inputs[name] = ops.input(name, TensorType(shape, dtype))
        return self.inputs[name]

    def param(self, *shape: int) -> Node:
        name = f"p{len(self.params)}"
        self.params.append(name)
        return self.data(name, shape)

    def dense(self, x: Node, units: int, activation: str = "") -> Node:
        y = ops.add(ops.matmul(x, self.param(units, x.shape[-1]), tb=True), self.param(units))
        return getattr(ops, activation)(y) if activation else y

    def conv(self, x: Node, channels: int, size: int, activation: str = "", **attrs: tuple[int, int]) -> Node:
        y = ops.conv2d(x, self.param(channels, x.shape[1], size, size), **attrs)
        y = ops.add(y, ops.reshape(self.param(channels), (1, channels, 1, 1)))
        return getattr(ops, activation)(y) if activation else y

    def cross_entropy(self, x: Node) -> Node:
        return ops.softmax_cross_entropy(x, self.data("label", x.shape[:1], "i32"), axis=1, sparse=True)


def training_step(forward: Forward, optimizer: str = "sgd", keep_grads: bool = False) -> Graph:
    """Forward, gradients, and the update of every parameter by sgd, momentum or adam."""
    b = Builder()
    loss = forward(b)
    lr = b.data("scalar:lr", ())
    graph = differentiate(Graph(b.inputs, {"loss": loss}), "loss", b.params)
    inputs, updates = dict(b.inputs), {}
    for name in b.params:
        w, g = inputs[name], graph.outputs[f"grad:{name}"]
        new, state = UPDATES[optimizer](w, g, lr, lambda s, w=w, name=name: ops.input(f"{name}/{s}", w.ty))
        updates[name] = new
        for s, (old, value) in state.items():
            inputs[f"{name}/{s}"], updates[f"{name}/{s}"] = old, value
    outputs = {k: n for k, n in graph.outputs.items() if keep_grads or not k.startswith("grad:")}
    return Graph(inputs, outputs, updates)


def _sgd(w, g, lr, state):
    return w - lr * g, {}


def _momentum(w, g, lr, state):
    old = state("m")
    m = old * 0.9 - lr * g
    return w + m, {"m": (old, m)}


def _adam(w, g, lr, state):
    old_m, old_v = state("m"), state("v")
    m, v = old_m * 0.9 + g * 0.1, old_v * 0.999 + g * g * 0.001
    return w - lr * m / (ops.sqrt(v) + 1e-8), {"m": (old_m, m), "v": (old_v, v)}


UPDATES = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}


def mlp(batch: int = 8, sizes: tuple[int, ...] = (784, 512, 256, 10), activation: str = "relu") -> Forward:
    def forward(b: Builder) -> Node:
        x = b.data("data", (batch, sizes[0]))
        for units in sizes[1:-1]:
            x = b.dense(x, units, activation)
        return b.cross_entropy(b.dense(x, sizes[-1]))

    return forward


def lenet(batch: int = 4, activation: str = "relu") -> Forward:
    def forward(b: Builder) -> Node:
        x = b.conv(b.data("data", (batch, 1, 28, 28)), 20, 5, activation)
        x = ops.max_pool2d(x, kernel=(2, 2), stride=(2, 2))
        x = ops.max_pool2d(b.conv(x, 50, 5, activation), kernel=(2, 2), stride=(2, 2))
        x = ops.reshape(x, (batch, 800))
        return b.cross_entropy(b.dense(b.dense(x, 500, activation), 10))

    return forward


def transformer(batch: int = 2, time: int = 8, width: int = 16) -> Forward:
    """One block with layer norm, attention without a kernel of its own, and a feed-forward part."""

    def norm(b: Builder, x: Node) -> Node:
        return ops.layer_norm(x, b.param(width), b.param(width), axis=2, eps=1e-5)

    def forward(b: Builder) -> Node:
        x = b.data("data", (batch, time, width))
        y = norm(b, x)
        q, k, v = (ops.matmul(ops.reshape(y, (batch * time, width)), b.param(width, width), tb=True) for _ in range(3))
        q, k, v = (ops.reshape(n, (batch, 1, time, width)) for n in (q, k, v))
        x = ops.add(x, ops.reshape(ops.attention(q, k, v, causal=True), (batch, time, width)))
        h = b.dense(ops.reshape(norm(b, x), (batch * time, width)), 4 * width, "tanh")
        x = ops.add(x, ops.reshape(b.dense(h, width), (batch, time, width)))
        return ops.sum(ops.mul(x, x), axis=(1, 2))

    return forward


def optimized(graph: Graph) -> Graph:
    """The graph after all passes."""
    return run(graph, Context(), "shapes", "fuse")


def roles(graph: Graph) -> dict[str, str]:
    """Which space each input lives in."""

    def role(name: str) -> str:
        return "input" if name in ("data", "label") else "scalar" if name.startswith("scalar:") else "state"

    return {name: role(name) for name in graph.inputs}


def take_all(group: Group) -> Candidate:
    """A target whose rules take every group."""
    return Candidate(group.pattern)


def planned(graph: Graph, given: Mapping[str, str] | None = None) -> Plan:
    """The plan of a graph, for a target that takes every group; verified against the graph of its kernels."""
    selection = select(optimized(graph), take_all, planned)
    plan = assign_memory(schedule(selection, given or roles(graph)))
    verify_plan(plan, selection.graph)
    return plan
