"""Optimizer states in 16 bits: rounding right on average, training that goes as in 32, checkpoints, refusals."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from small_nets import Batch

import gluongraph as mx
from gluongraph import debug, gluon, nd, ops
from gluongraph.errors import FormatError, MXNetError
from gluongraph.gluon import nn
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, TensorType


def data() -> Batch:
    """Points around the corners of a cube, and which corner."""
    rng = np.random.default_rng(0)
    corner = rng.integers(0, 2, (256, 3))
    points = np.concatenate([corner, np.zeros((256, 13))], 1) + 0.15 * rng.standard_normal((256, 16))
    return points.astype(np.float32), corner @ np.array([1, 2, 4], np.int64).astype(np.int32)


def training(optimizer: str = "adam", **options: Any) -> tuple[gluon.Trainer, Any]:
    mx.random.seed(7)
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu", in_units=16), nn.Dense(8, in_units=64))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-2})
    return trainer, mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **options)


def test_what_counts_as_parameters_and_what_as_states() -> None:
    """It goes by what an array is for, not by a sign in its name."""
    net = nn.Dense(4, in_units=8, prefix="a/b:")
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer, ema=0.9)
    with debug.override(backend="reference"):
        found = step.memory(nd.ones((2, 8)), nd.ones((2, 4)))
    weights = 4 * (4 * 8 + 4)
    assert (found.parameters, found.states) == (weights, 3 * weights)


def test_rounding_by_chance_is_right_on_average() -> None:
    """Of many roundings of one number each is a neighbour, and their mean is the number."""
    state, x = ops.input("rng", TensorType((4,), "u32")), ops.input("x", TensorType((4096,)))
    y = ops.cast(ops.round_by_chance(x, ops.random_bits(state, (4096,))), "f32")
    for number in (1.001, -3.14159, 1e-30, 0.0, 255.0):
        given = {"rng": np.array([1, 2, 3, 4], np.uint32), "x": np.full(4096, number, np.float32)}
        found = interpreter.run(Graph({"rng": state, "x": x}, {"y": y}), given)[0]["y"].astype(np.float64)
        gap = abs(number) / 128
        assert np.abs(found - number).max() <= gap
        assert abs(found.mean() - number) <= gap / 16, number


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays(special: float) -> None:
    x, bits = ops.input("x", TensorType((2,))), ops.input("bits", TensorType((2,), "u32"))
    given = {"x": np.full(2, special, np.float32), "bits": np.full(2, 0xFFFFFFFF, np.uint32)}
    found = interpreter.run(Graph({"x": x, "bits": bits}, {"y": ops.round_by_chance(x, bits)}), given)[0]["y"]
    np.testing.assert_array_equal(found.astype(np.float32), given["x"])


def test_states_take_half_and_train_as_well(tmp_path: pathlib.Path) -> None:
    x, y = data()
    losses, sizes = {}, {}
    for form in (None, "bf16"):
        trainer, step = training(optimizer_state=form)
        for _ in range(80):
            loss = step(x, y)
        losses[form], sizes[form] = loss.asnumpy().mean(), step.memory(x, y).states
    assert sizes["bf16"] * 2 == sizes[None]
    assert losses["bf16"] < 0.25 and abs(losses["bf16"] - losses[None]) < 0.1 * losses[None] + 0.01
    assert {a.type.dtype for states in trainer.states.values() for a in states.values()} == {"bf16"}
    # A checkpoint holds them as they are: training goes on to the bit.
    step.save(tmp_path / "run")
    wanted = [step(x, y).asnumpy() for _ in range(3)]
    _, again = training(optimizer_state="bf16")
    again.load(tmp_path / "run")
    np.testing.assert_array_equal([again(x, y).asnumpy() for _ in range(3)], wanted)
    _, other = training()
    with pytest.raises(FormatError):
        other.load(tmp_path / "run")


def test_eager_updates_keep_the_form() -> None:
    x, y = data()
    trainer, step = training(optimizer_state="bf16")
    with debug.override(backend="reference"):
        step(x, y)
    weights = [p.data() for p in trainer.params]
    for w in weights:
        w.grad[:] = 1.0
        w._fresh_grad = True
    before = weights[0].asnumpy()
    trainer.step(1)
    assert {a.type.dtype for states in trainer.states.values() for a in states.values()} == {"bf16"}
    assert (weights[0].asnumpy() < before).all()


def test_states_that_are_there_are_converted() -> None:
    x, y = data()
    trainer, step = training()
    with debug.override(backend="reference"):
        step(x, y)
        had = {k: {s: a.asnumpy() for s, a in states.items()} for k, states in trainer.states.items()}
        mx.compile(step.net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, optimizer_state="bf16")
    for name, states in trainer.states.items():
        for state, array in states.items():
            np.testing.assert_allclose(array.astype("float32").asnumpy(), had[name][state], rtol=2**-8)


class InPython(mx.optimizer.Optimizer):
    """Written for MXNet: nobody knows its formula."""

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        weight[:] = weight - 0.1 * grad


def by_rows() -> gluon.Trainer:
    net = nn.Embedding(4, 2, sparse_grad=True)
    net.initialize()
    return gluon.Trainer(net.collect_params(), "adam")


def in_python() -> gluon.Trainer:
    net = nn.Dense(2, in_units=2)
    net.initialize()
    return gluon.Trainer(net.collect_params(), InPython())


WRONG = [
    ("4bit", lambda: None, ValueError, "optimizer_state is None or 'bf16', not '4bit'"),
    ("bf16", lambda: None, MXNetError, "optimizer_state without a trainer"),
    ("bf16", by_rows, MXNetError, "only rows are updated"),
    ("bf16", in_python, MXNetError, "InPython updates its states in Python"),
]


@pytest.mark.parametrize(("form", "trainer", "error", "message"), WRONG)
def test_refusals(form: str, trainer: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mx.compile(lambda x: nd.sum(x), trainer=trainer(), optimizer_state=form)
