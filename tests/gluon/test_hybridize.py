"""Hybridized blocks give what eager ones give: values, gradients, random masks, running statistics."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, init, nd, random
from gluongraph.gluon import HybridBlock, nn

pytest.importorskip("tvm")

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
IMAGES = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)


def stacked(*layers: HybridBlock) -> HybridBlock:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


class Two(HybridBlock):
    """Several results, one of them an argument, one given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3)

    def forward(self, x: Any, more: Any = None) -> Any:
        y = self.dense(x)
        return y, [x, y * 2 if more is None else y * more], y


NETS: dict[str, tuple[Callable[[], HybridBlock], np.ndarray[Any, Any]]] = {
    "mlp": (lambda: stacked(nn.Dense(5, activation="tanh"), nn.Dense(3)), X),
    "dropout": (lambda: stacked(nn.Dense(50, activation="relu"), nn.Dropout(0.5), nn.Dense(3)), X),
    "norms": (lambda: stacked(nn.Dense(7), nn.BatchNorm(), nn.LayerNorm(), nn.GELU()), X),
    "conv": (
        lambda: stacked(nn.Conv2D(4, 3, padding=1, activation="relu"), nn.MaxPool2D(), nn.BatchNorm(), nn.Dense(2)),
        IMAGES,
    ),
    "embedding": (lambda: stacked(nn.Embedding(5, 4), nn.Dense(2)), np.array([[0, 4, 1], [2, 2, 3]], np.float32)),
}


def loss_of(out: Any) -> Any:
    return (out * out).sum()


def run(make: Callable[[], HybridBlock], x: np.ndarray[Any, Any], hybrid: bool) -> list[Any]:
    """Two training steps, and a prediction: every number that comes out."""
    random.seed(3)
    net = make()
    net.initialize(init.Normal(0.5))
    if hybrid:
        net.hybridize()
    data = nd.array(x)
    data.attach_grad()
    numbers = []
    for _ in range(2):
        with autograd.record():
            loss = loss_of(net(data))
        loss.backward()
        numbers.append(loss.asnumpy())
        numbers.append(data.grad.asnumpy() if data.grad is not None else None)
        parameters = list(net.collect_params().values())
        numbers += [p.grad().asnumpy() for p in parameters if p.grad_req != "null"]
        numbers += [p.data().asnumpy() for p in parameters]
        for p in parameters:
            if p.grad_req != "null":
                p.data()[:] = p.data() - 0.01 * p.grad()
    return [*numbers, net(data).asnumpy()]


@pytest.mark.parametrize("name", NETS)
def test_same_numbers(name: str) -> None:
    make, x = NETS[name]
    for eager, compiled in zip(run(make, x, False), run(make, x, True), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(eager).max())))


def test_structure_of_results() -> None:
    net = Two()
    net.initialize()
    net.hybridize()
    x = nd.array(X)
    x.attach_grad()
    with autograd.record():
        y, (same, double), again = net(x)
        loss = (y + double + again).sum() + same.sum()
    loss.backward()
    w = net.dense.weight.data().asnumpy()
    np.testing.assert_allclose(x.grad.asnumpy(), np.tile(4 * w.sum(axis=0) + 1, (4, 1)), rtol=1e-5)
    assert (same.asnumpy() == X).all() and (double.asnumpy() == 2 * y.asnumpy()).all()
    assert net(x, nd.ones((4, 3)) * 3)[1][1].asnumpy() == pytest.approx(3 * y.asnumpy(), rel=1e-6)
    with pytest.raises(RuntimeError, match=r"called with a object[\s\S]*test_hybridize"):
        net(x, object())


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts how often something is traced."""
    from gluongraph.gluon import cached_op

    counted: list[int] = []
    real = cached_op.trace

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(cached_op, "trace", counting)
    yield counted


def test_traced_once_per_shape_and_mode(traces: list[int]) -> None:
    net = stacked(nn.Dense(3), nn.Dropout(0.5))
    net.initialize()
    net.hybridize()
    for _ in range(3):
        net(nd.array(X))
    assert len(traces) == 1
    with autograd.train_mode():
        net(nd.array(X))
    assert len(traces) == 2
    assert net(nd.array(X[:2])).shape == (2, 3) and len(traces) == 3
    net.hybridize(False)
    net(nd.array(X))
    assert len(traces) == 3


def test_settings_that_a_trace_read_are_guarded(traces: list[int]) -> None:
    class Scaled(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.factor

    inner = Scaled()
    net = stacked(inner)
    net.hybridize()
    assert (net(nd.array(X)).asnumpy() == 2 * X).all()
    inner.factor = 3.0
    assert (net(nd.array(X)).asnumpy() == 3 * X).all()
    assert (net(nd.array(X)).asnumpy() == 3 * X).all() and len(traces) == 2
    net.add(Scaled())
    assert (net(nd.array(X)).asnumpy() == 6 * X).all() and len(traces) == 3


def test_lists_dicts_and_arrays_of_a_block_are_guarded(traces: list[int]) -> None:
    class Scaled(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.factors = [2.0]
            self.how = {"shift": {"by": 1.0}}
            self.array = nd.ones((1,))
            self.constant = np.zeros(1, np.float32)

        def forward(self, x: Any) -> Any:
            for factor in self.factors:
                x = x * factor
            return x * self.array + self.how["shift"]["by"] + nd.array(self.constant)

    net = Scaled()
    net.hybridize()
    for change, wanted in (
        (lambda: None, 2 * X + 1),
        (lambda: net.factors.append(3.0), 6 * X + 1),
        (lambda: net.how["shift"].update(by=5.0), 6 * X + 5),
        (lambda: setattr(net, "array", 2 * nd.ones((1,))), 12 * X + 5),
        (lambda: setattr(net, "factors", []), 2 * X + 5),
        (lambda: net.constant.fill(4), 2 * X + 9),
    ):
        change()
        before = len(traces)
        np.testing.assert_allclose(net(nd.array(X)).asnumpy(), wanted, rtol=1e-6)
        net(nd.array(X))
        assert len(traces) == before + 1


def test_parameters_that_were_replaced_are_seen() -> None:
    net = nn.Dense(2, in_units=6, use_bias=False)
    net.initialize(init.One())
    net.hybridize()
    net(nd.array(X))
    net.initialize(init.Constant(2), force_reinit=True)
    np.testing.assert_allclose(net(nd.array(X)).asnumpy()[:, 0], 2 * X.sum(axis=1), rtol=1e-5, atol=1e-5)
    net.weight.set_data(nd.ones((2, 6)) * 3)
    np.testing.assert_allclose(net(nd.array(X)).asnumpy()[:, 0], 3 * X.sum(axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
@pytest.mark.parametrize("hybridized", [False, True])
def test_copies_of_a_net_are_nets_of_their_own(copied: Any, hybridized: bool) -> None:
    net = stacked(nn.Dense(3, activation="tanh"), nn.Dense(2))
    net.initialize()
    net.hybridize(hybridized)
    x = nd.ones((4, 5))
    outputs = net(x).asnumpy()
    other = copied(net)
    net[0].weight.set_data(nd.zeros((3, 5)))
    np.testing.assert_allclose(other(x).asnumpy(), outputs, rtol=1e-6)
    assert list(other.collect_params()) == list(net.collect_params())
    trainer = gluon.Trainer(other.collect_params(), "sgd")
    with autograd.record():
        loss = other(x).sum()
    loss.backward()
    trainer.step(4)
    mx.compile(other, gluon.loss.L2Loss(), trainer)(x, nd.ones((4, 2)))
    assert (other[0].weight.data().asnumpy() != 0).all() and not net[0].weight.data().asnumpy().any()
    with pytest.raises(TypeError, match="Trainer cannot be copied or pickled"):
        copied(trainer)


def test_a_branch_on_a_value_is_an_error() -> None:
    class Branching(HybridBlock):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    net = Branching()
    assert net(nd.array(X)).shape == X.shape
    net.hybridize()
    with pytest.raises(RuntimeError, match=r"a branch .* of a traced value[\s\S]*test_hybridize.py:\d+"):
        net(nd.array(X))


def test_gradient_of_the_gradient() -> None:
    net = nn.Dense(1, in_units=6, activation="tanh")
    net.initialize(init.Normal(0.5))
    results = []
    for hybrid in (False, True):
        net.hybridize(hybrid)
        x = nd.array(X)
        x.attach_grad()
        with autograd.record():
            (dx,) = autograd.grad(net(x).sum(), [x], create_graph=True)
            penalty = (dx * dx).sum()
        penalty.backward()
        results.append(net.weight.grad().asnumpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_no_gradient_where_none_is_wanted() -> None:
    net = nn.Dense(2, in_units=6)
    net.initialize()
    net.collect_params().setattr("grad_req", "null")
    net.hybridize()
    with autograd.record():
        y = net(nd.array(X))
    with pytest.raises(RuntimeError, match="not in a computational graph"):
        y.backward()


def test_training_hybridized_lowers_the_loss() -> None:
    x = nd.array(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))
    y = nd.array((x.asnumpy().sum(axis=1) > 0).astype(np.float32))
    net, loss = stacked(nn.Dense(16, activation="relu"), nn.Dense(2)), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(init.Xavier())
    net.hybridize()
    loss.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    losses = []
    for _ in range(30):
        with autograd.record():
            each = loss(net(x), y)
        each.backward()
        trainer.step(64)
        losses.append(float(each.mean().asscalar()))
    assert losses[-1] < 0.3 * losses[0]


def test_arguments_of_hybridize() -> None:
    net = nn.Dense(1)
    net.hybridize(static_alloc=True, static_shape=True)
    with pytest.raises(TypeError, match="no argument static_aloc"):
        net.hybridize(static_aloc=True)
