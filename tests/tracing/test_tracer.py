"""trace: what becomes an input, an output, an update; what is refused; where nodes come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, nd, random
from gluongraph.errors import MXNetError, TraceError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import TensorType
from gluongraph.ir.verify import verify
from gluongraph.ndarray import NDArray
from gluongraph.ops.autodiff import differentiate
from gluongraph.tracing import tracer
from gluongraph.tracing.tracer import Traced

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def traced(fn: Callable[..., Any], *args: Any, training: bool = True) -> Traced:
    found = tracer.trace(fn, args, training=training)
    verify(found.graph)
    return found


def run(found: Traced, *data: Any) -> Any:
    """The graph by its meaning, on these arguments and the live arrays; updates are written back."""
    values: dict[str, Any] = {f"data{i}": np.asarray(d, np.float32) for i, d in enumerate(data)}
    values |= {name: a.storage.array for name, a in found.captured.items()}
    values |= {name: np.array(words, np.uint32) for name, words in random.take_all(found.draws).items()}
    outputs, updates = interpreter.run(found.graph, values)
    outputs = {name: np.array(o) for name, o in outputs.items()}
    for name, value in updates.items():
        found.captured[name][:] = nd.array(value)
    return found.restore(outputs)


def test_arguments_are_inputs_and_count_by_type_only() -> None:
    found = traced(lambda x, y: x + y, nd.array(X), TensorType((3,)))
    assert {k: str(n.ty) for k, n in found.graph.inputs.items()} == {"data0": "f32[2,3]", "data1": "f32[3]"}
    assert not found.captured and found.first == "out0"
    assert run(found, X, [1, 2, 3]).asnumpy().tolist() == np.add(X, [1, 2, 3]).tolist()


def test_nested_arguments_and_results_keep_their_structure() -> None:
    found = traced(lambda xs, k: {"a": (xs[0] * k, None), "b": [xs[1]["y"], 5]}, [nd.ones(2), {"y": nd.ones(3)}], 2)
    result = run(found, [1, 2], [3, 4, 5])
    assert result["a"][0].asnumpy().tolist() == [2, 4] and result["a"][1] is None
    assert result["b"][0].asnumpy().tolist() == [3, 4, 5] and result["b"][1] == 5


def test_arrays_from_outside_are_live_inputs_once_each() -> None:
    w, b = nd.array([1, 2, 3]), nd.array([1])
    w.name = "dense0_weight"
    unread = nd.ones(1)

    def fn(x: NDArray) -> NDArray:
        unread + 1
        return x * w + w.detach() + b

    found = traced(fn, nd.array(X))
    assert list(found.graph.inputs) == ["data0", "dense0_weight", "capture1"]  # capture0 is not read by the result
    assert found.captured["dense0_weight"] is w and len(found.captured) == 2
    w[:] = 10
    assert run(found, X).asnumpy().tolist() == (X * 10 + 11).tolist()


def test_names_that_clash_are_told_apart() -> None:
    a, b, c = nd.ones(1), nd.ones(1) * 2, nd.ones(1) * 3
    a.name = b.name = "w"
    c.name = "data0"
    found = traced(lambda x: x * a + b + c, nd.zeros(1))
    assert set(found.graph.inputs) == {"data0", "w", "w_1", "data0_1"}
    assert float(run(found, [0])) == 5


def test_numbers_of_new_arrays_are_part_of_the_program() -> None:
    found = traced(lambda x: x + nd.zeros((2, 1)) + nd.array([1, 2, 3]) + nd.arange(3) + nd.ones_like(x), nd.array(X))
    assert not found.captured
    assert run(found, X).asnumpy().tolist() == np.add(X, [2, 4, 6]).tolist()


def test_concrete_arrays_can_be_made_within() -> None:
    kept: list[NDArray] = []

    def fn(x: NDArray) -> NDArray:
        with nd.concrete():
            kept.append(nd.ones((3,)) * 2)
        return x * kept[0]

    found = traced(fn, nd.array(X))
    assert kept[0].asnumpy().tolist() == [2, 2, 2] and list(found.captured.values()) == kept


def _scale(x: NDArray, mean: NDArray) -> NDArray:
    mean[:] = mean * 0.5 + x.mean(axis=0)
    return x - mean


def test_writes_into_outside_arrays_are_updates_and_chain() -> None:
    eager, compiled = nd.ones((3,)), nd.ones((3,))
    expected = [_scale(_scale(nd.array(X), eager), eager) for _ in range(2)]
    found = traced(lambda x: _scale(_scale(x, compiled), compiled), nd.array(X))
    assert list(found.graph.updates) == ["capture0"] and compiled.asnumpy().tolist() == [1, 1, 1]
    for each in expected:
        np.testing.assert_allclose(run(found, X).asnumpy(), each.asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(compiled.asnumpy(), eager.asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("key", [slice(None), 1, slice(1, 3), (slice(None), 2), (0, slice(1, None))], ids=str)
def test_partial_writes(key: Any) -> None:
    def fn(x: NDArray, outside: NDArray) -> NDArray:
        local = x * 1
        local[key] = 9
        local += 1
        outside[key] = local[key] * 2
        return local

    eager, compiled = nd.array(X), nd.array(X)
    expected = fn(nd.array(X), eager)
    found = traced(lambda x: fn(x, compiled), nd.array(X))
    assert run(found, X).asnumpy().tolist() == expected.asnumpy().tolist()
    assert compiled.asnumpy().tolist() == eager.asnumpy().tolist()


def test_python_loops_unroll() -> None:
    def fn(x: NDArray) -> NDArray:
        total = nd.zeros((3,))
        for row in x:
            total = total + row * len(x)
        return total

    assert run(traced(fn, nd.array(X)), X).asnumpy().tolist() == (X.sum(0) * 2).tolist()


def _branch(x: NDArray) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    "fn",
    [
        _branch,
        lambda x: float(x.sum()),
        lambda x: int(x.sum()),
        lambda x: x.asnumpy(),
        lambda x: x.sum().asscalar(),
        lambda x: x.attach_grad(),
        lambda x: x.sum().backward(),
        lambda x: np.asarray(x),
        lambda x: [0, 1][x],
    ],
    ids=["branch", "float", "int", "asnumpy", "asscalar", "attach_grad", "backward", "numpy", "index"],
)
def test_wanting_numbers_of_a_traced_value(fn: Callable[..., Any]) -> None:
    with pytest.raises(TraceError, match=r"of a traced value(.|\n)*test_tracer.py:\d+(.|\n)*help: "):
        traced(fn, nd.array(X))
    assert not tracer.tracing()


def test_views_of_traced_and_outside_arrays() -> None:
    def fn(x: NDArray, outside: NDArray) -> tuple[NDArray, ...]:
        local = x * 1
        row, flat = local[0], local.reshape((-1,))
        row += 1
        flat[3:5] = 7
        local[1, 2] = 8
        before = flat * 1
        local *= 2
        part = outside[1]
        part[1:] = row[1:]
        outside += 1
        return row, flat, before, part * 1, local[:, 1]

    eager, compiled = nd.array(X), nd.array(X)
    expected = fn(nd.array(X), eager)
    found = traced(lambda x: fn(x, compiled), nd.array(X))
    for a, b in zip(run(found, X), expected, strict=True):
        assert a.asnumpy().tolist() == b.asnumpy().tolist()
    assert list(found.captured) == ["capture0"] and compiled.asnumpy().tolist() == eager.asnumpy().tolist()


def test_detach_within_and_before() -> None:
    w = nd.ones((3,))
    w.name = "w"
    w.attach_grad()
    alias = w.detach()
    found = traced(lambda x: alias * x + w.detach() * x + w * x, nd.array(X))
    assert list(found.captured) == ["w"] and found.captured["w"] is w
    graph = differentiate(found.graph, "out0", ["w"])
    values = {"data0": X, "w": np.ones(3, np.float32)}
    outputs, _ = interpreter.run(graph, values)
    assert outputs["grad:w"].tolist() == X.sum(0).tolist()


def test_writes_that_a_trace_refuses() -> None:
    for key, message in ((slice(None, None, 2), "step 1"), ([0, 1], "array of indices")):
        with pytest.raises(MXNetError, match=message):
            traced(lambda x, key=key: x.__setitem__(key, 0), nd.array(X))


def test_values_do_not_outlive_their_trace() -> None:
    kept: list[NDArray] = []
    traced(lambda x: kept.append(x * 2), nd.array(X))
    with pytest.raises(TraceError, match="finished trace"):
        kept[0] + 1
    with pytest.raises(TraceError, match=r"finished trace(.|\n)*self\.mean\[:\] ="):
        kept[0].asnumpy()
    with pytest.raises(TraceError, match="another trace"):
        traced(lambda x, y: kept[0] + y, nd.array(X[0]), nd.array(X))
    assert repr(kept[0]) == "<NDArray 2x3 f32, traced>"


def test_a_function_without_arrays() -> None:
    found = traced(lambda x: 5, nd.array(X))
    with pytest.raises(TraceError, match="gives back no array"):
        _ = found.first


def test_training_mode_and_recording() -> None:
    seen = []

    def fn(x: NDArray) -> NDArray:
        seen.append((autograd.is_training(), autograd.is_recording()))
        return x

    traced(fn, nd.array(X), training=True)
    with autograd.record():
        traced(fn, nd.array(X), training=False)
        assert autograd.is_recording() and autograd.is_training()
    assert seen == [(True, False), (False, False)]


def test_random_numbers_are_those_of_eager_mode() -> None:
    def fn(x: NDArray) -> tuple[NDArray, ...]:
        noise = random.normal(0, 2, shape=(2, 3))
        return nd.Dropout(x, p=0.5) + noise, random.uniform(shape=(4,)), random.randint(0, 10, shape=(5,))

    random.seed(7)
    with autograd.train_mode():
        expected = [fn(nd.array(X + 1)) for _ in range(2)]
    found = traced(fn, nd.array(X + 1))
    assert found.draws == {tracer.RNG: (cpu(), 4)} and str(found.graph.inputs[tracer.RNG].ty) == "u32[4]"
    random.seed(7)
    for each in expected:
        for a, b in zip(run(found, X + 1), each, strict=True):
            assert (a.asnumpy() == b.asnumpy()).all()


def test_gradients_within() -> None:
    def fn(x: NDArray) -> NDArray:
        y = x * x * x
        (dx,) = autograd.grad(y, x)
        return dx

    assert run(traced(fn, nd.array(X)), X).asnumpy().tolist() == (3 * X * X).tolist()


def test_origins_are_the_users_lines_and_layers() -> None:
    def fn(x: NDArray) -> NDArray:
        with tracer.scope("outer"), tracer.scope("inner"):
            y = x.tanh()
        return y.exp()

    found = traced(fn, nd.array(X))
    at = {n.op.name: origin for n, origin in found.graph.origins.items()}
    first = fn.__code__.co_firstlineno
    assert (at["tanh"].line, at["tanh"].scope) == (first + 2, "inner")
    assert (at["exp"].line, at["exp"].scope) == (first + 3, "")
    assert at["exp"].file == __file__


def test_guards() -> None:
    class Layer:
        rate = 0.5

    layer = Layer()
    found = traced(lambda x: x * tracer.guard(layer, "rate"), nd.array(X))
    assert found.holds
    layer.rate = 0.25
    assert not found.holds


def test_assign() -> None:
    w = nd.zeros((3,))
    found = traced(lambda x: tracer.assign(w, x[0]), nd.array(X))
    assert list(found.graph.updates) == ["capture0"]
    tracer.assign(w, 2)
    assert w.asnumpy().tolist() == [2, 2, 2]


def test_long_loops_are_told_of() -> None:
    def loop(turns: int) -> Callable[..., Any]:
        def turn_after_turn(x: NDArray) -> NDArray:
            for _ in range(turns):
                x = nd.tanh(x)
            return x

        return turn_after_turn

    traced(loop(tracer.UNROLLED), nd.array(X))  # warnings are errors in the tests
    with pytest.warns(
        UserWarning, match=rf"loop at .*test_tracer\.py:\d+ .*tanh {tracer.UNROLLED + 1} times.*\n.*foreach"
    ):
        traced(loop(tracer.UNROLLED + 1), nd.array(X))


def test_many_layers_of_one_name_are_no_loop() -> None:
    def layers(x: NDArray) -> NDArray:
        for layer in [object() for _ in range(3)] * tracer.UNROLLED:
            with tracer.scope("block", layer):
                x = nd.tanh(x)
        return x

    traced(layers, nd.array(X))
