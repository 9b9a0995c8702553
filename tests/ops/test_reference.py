"""The reference interpreter: names in and out, memory let go, every value watched."""

import gc
import weakref

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.errors import MXNetError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, TensorType

x, w = ops.input("x", TensorType((2,))), ops.input("w", TensorType((2,)))


def test_outputs_and_updates_by_name():
    graph = Graph({"x": x, "w": w}, {"loss": ops.sum(x * w)}, {"w": w - x})
    outputs, updates = interpreter.run(graph, {"x": np.array([1, 2], "f"), "w": np.array([3, 4], "f")})
    assert outputs == {"loss": 11}
    np.testing.assert_array_equal(updates["w"], [2, 2])
    assert isinstance(outputs["loss"], np.ndarray)


def test_no_outputs_and_shared_results():
    graph = Graph({"x": x}, {}, {"x": -x})
    assert interpreter.run(graph, {"x": np.ones(2, "f")})[0] == {}
    y = x * 2
    a, b = interpreter.evaluate([y, y], {x: np.ones(2, "f")})
    assert a is b


def test_missing_and_wrong_inputs():
    graph = Graph({"x": x, "w": w}, {"y": x + w})
    with pytest.raises(MXNetError, match="no value is given for w"):
        interpreter.run(graph, {"x": np.ones(2, "f")})
    with pytest.raises(MXNetError, match=r"w is f32\[2\], not float32 \(3,\)"):
        interpreter.run(graph, {"x": np.ones(2, "f"), "w": np.ones(3, "f")})
    with pytest.raises(MXNetError, match="no value is given"):
        interpreter.evaluate([x + w], {x: np.ones(2, "f")})


def test_values_are_freed_after_their_last_reader():
    alive = []
    largest = 0

    def watch(n, value):
        nonlocal largest
        alive.append(weakref.ref(value))
        gc.collect()
        largest = max(largest, sum(r() is not None for r in alive))

    y = x
    for _ in range(10):
        y = ops.tanh(y)
    interpreter.evaluate([y], {x: np.ones(2, "f")}, watch)
    assert len(alive) == 10 and largest <= 3


def test_watch_sees_values_in_order_and_may_stop():
    seen = []

    def watch(n, value):
        seen.append(n.op.name)
        if np.isnan(value).any():
            raise MXNetError("stop")

    graph = Graph({"x": x}, {"y": ops.sum(ops.exp(ops.log(x)))})
    with pytest.raises(MXNetError, match="stop"):
        interpreter.run(graph, {"x": np.array([-1, 1], "f")}, watch)
    assert seen == ["log"]
