"""A program that gives gluongraph an op of its own, with a scalar function that no target has, and a composite with a
kernel of its own. Nothing else of gluongraph is edited; `test_from_outside.py` runs it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import autograd, gluon, nd, ops
from gluongraph.codegen.cpu import rules
from gluongraph.codegen.cpu.op_rule import op_rule
from gluongraph.codegen.rule import Bindings, Cpu
from gluongraph.codegen.tvm.tir import Buf, Kernel
from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ndarray import invoke
from gluongraph.ops.checks import alike
from gluongraph.ops.lowering import Algebra, Expr
from gluongraph.ops.samples import array

# -- a scalar function: one statement


def _atan(e: Algebra, x: Expr) -> Expr:
    """By reduction to [-tan(pi/8), tan(pi/8)] and a polynomial (Cephes, atanf)."""
    zero, quarter, half = (e.const(angle, "f32") for angle in (0.0, math.pi / 4, math.pi / 2))
    size = e.named(e.unary("abs", x))
    far = e.binary("greater", size, e.const(math.tan(3 * math.pi / 8), "f32"))
    near = e.binary("less_equal", size, e.const(math.tan(math.pi / 8), "f32"))
    middle = (size - 1.0) / (size + 1.0)
    t = e.named(e.where(far, e.const(-1.0, "f32") / size, e.where(near, size, middle)))
    start = e.where(far, half, e.where(near, zero, quarter))
    z = e.named(t * t)
    sum = e.const(8.05374449538e-2, "f32")
    for coefficient in (-1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1):
        sum = e.fma(sum, z, e.const(coefficient, "f32"))
    found = start + e.fma(sum * z, t, t)
    return e.where(e.binary("less", x, zero), -found, found)


atan = Op(
    "atan",
    kind="elementwise",
    cost=4,
    infer=alike("atan", frozenset({"f32"})),
    numpy=np.arctan,
    grad=lambda g, y, x: (g / (x * x + 1),),
    lower=lambda e, i, x: _atan(e, x(*i)),
    samples=lambda rng: [((array(rng, (3, 33), "f32", -9, 9),), {})],
    flops=25,
    numeric="full",
    doc="the angle whose tangent is x",
)

# -- a composite with a kernel: a statement, the kernel, and its place in the table of rules

energy = composite(
    "energy",
    lambda x: ops.sum(x * x, -1),
    infer=lambda x: TensorType(x.shape[:-1], x.dtype),
    grad=lambda g, y, x: (x * 2 * ops.expand(ops.expand_dims(g, -1), x.shape),),
    samples=lambda rng: [((array(rng, (5, 33), "f32"),), {})],
    doc="The sum of the squares of each row.",
)


def _write_energy(k: Kernel, n: Node, sources: list[Buf], bindings: Bindings, cpu: Cpu) -> None:
    rows, columns = n.src[0].shape
    with k.loop(rows, "parallel") as row:
        total = k.local("total", 1, "f32")
        k.store(total, 0.0, 0)
        with k.loop(columns) as column:
            x = k.bind(k.load(sources[0], row * columns + column))
            k.store(total, k.load(total, 0) + x * x, 0)
        k.store(bindings.outputs[0], k.load(total, 0), row)


rules.RULES = (op_rule("energy", _write_energy, dtypes=("f32",)), *rules.RULES)

# -- what programs see of it


class Net(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.dense = gluon.nn.Dense(8, in_units=6)

    def forward(self, x: Any) -> Any:
        return invoke(energy, invoke(atan, self.dense(x)))


def main() -> None:
    mx.random.seed(0)
    net, x = Net(), nd.random.normal(shape=(16, 6), scale=4)
    net.initialize(mx.init.Normal(1))
    results = []
    for compiled in (False, True):
        if compiled:
            net.hybridize()
        with autograd.record():
            y = net(x)
        y.backward()
        results.append((y.asnumpy(), net.dense.weight.grad().asnumpy()))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=2e-6)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)
    step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "sgd"))
    losses = [float(step(x, nd.ones((16,))).mean().asscalar()) for _ in range(20)]
    assert losses[-1] < losses[0], losses
    assert "energy" in {launch.candidate.rule for launch in step.plan.launches}
    assert "atan" in " ".join(launch.label for launch in step.plan.launches)
    print("added from outside")


if __name__ == "__main__":
    main()
