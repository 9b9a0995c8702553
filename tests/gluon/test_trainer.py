"""The Trainer: what a step does, in which order, and what it refuses."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, gluon, init, kvstore, lr_scheduler, nd, optimizer
from gluongraph.gluon import Parameter, Trainer, nn


def parameter(name: str = "w", value: float = 1.0, **kwargs: Any) -> Parameter:
    p = Parameter(name, shape=(2,), **kwargs)
    p.initialize(init.Constant(value))
    return p


def backward(*params: Parameter, factor: float = 1.0) -> None:
    with autograd.record():
        loss = sum((p.data() * factor).sum() for p in params)
    loss.backward()


def values(*params: Parameter) -> list[float]:
    return [float(p.data().asnumpy()[0]) for p in params]


def test_step() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0, "rescale_grad": 0.5})
    backward(p, factor=2.0)
    trainer.step(4)
    assert values(p) == [0.75]
    assert trainer.optimizer.rescale_grad == 0.125


def test_rates() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", {"learning_rate": 0.5})
    trainer.set_learning_rate(0.25)
    backward(p)
    trainer.step(1)
    assert trainer.learning_rate == 0.25 and values(p) == [0.75]
    scheduled = Trainer([p], "sgd", {"lr_scheduler": lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.5)})
    for _ in range(3):
        backward(p)
        scheduled.step(1)
    assert values(p) == [0.75 - 0.5 - 0.25 - 0.125] and scheduled.learning_rate == 0.125
    with pytest.raises(UserWarning, match="decided by lr_scheduler"):
        scheduled.set_learning_rate(1.0)


def test_dictionaries_are_sorted_and_lists_are_not() -> None:
    a, b = parameter("b"), parameter("a")
    assert Trainer([a, b, a], "sgd").names == ("b", "a")
    assert Trainer({"b": a, "a": b}, "sgd").names == ("a", "b")


def test_stale_gradients_are_found_before_anything_changes() -> None:
    a, b = parameter("a"), parameter("b")
    trainer = Trainer([a, b], "adam", {"learning_rate": 0.5})
    backward(a)
    with pytest.raises(UserWarning, match=r"gradient of b has not been updated[\s\S]*test_trainer.py:\d+"):
        trainer.step(1)
    assert values(a, b) == [1, 1] and trainer.optimizer.num_update == 0
    trainer.step(1, ignore_stale_grad=True)
    assert values(a)[0] != 1 and values(b) == [1]
    assert (trainer.optimizer.counts()) == {0: 1}
    with pytest.raises(UserWarning):
        trainer.step(1)


def test_frozen_parameters_are_skipped() -> None:
    a, b = parameter("a"), parameter("b", grad_req="null")
    trainer = Trainer([a, b], "sgd", {"learning_rate": 0.5})
    backward(a, b)
    trainer.step(1)
    assert values(a, b) == [0.5, 1]


def test_settings_of_parameters_act_at_once() -> None:
    a, b = parameter("a"), parameter("b")
    trainer = Trainer([a, b], "sgd", {"learning_rate": 0.5})
    for _ in range(2):
        backward(a, b)
        trainer.step(1)
        b.lr_mult = 0.0
    assert values(a, b) == [0.0, 0.5]
    trainer.optimizer.momentum = 0.9
    backward(a, b)
    trainer.step(1)
    assert list(trainer.state_arrays(["a"])) == ["a/mom"]
    assert values(a) == [-0.5]


def test_replaced_arrays_are_seen() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", {"learning_rate": 0.5, "momentum": 0.9})
    backward(p)
    trainer.step(1)
    p.cast("float64")
    backward(p)
    trainer.step(1)
    assert p.data().dtype == np.float64 and values(p) == [0.0]


def test_replaced_gradients_are_seen() -> None:
    a, b = parameter("a"), parameter("b")
    trainer = Trainer([a, b], "sgd", {"learning_rate": 0.5})
    backward(a, b)
    trainer.step(1)
    a.data().attach_grad()
    with pytest.raises(UserWarning, match="gradient of a, b has"):
        trainer.step(1)
    backward(a, b)
    trainer.step(1)
    assert values(a, b) == [0.0, 0.0]
    b.grad_req = "null"
    backward(a)
    trainer.step(1)
    assert values(a, b) == [-0.5, 0.0]


def test_many_elements_go_through_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    rng = np.random.default_rng(0)
    start, grads = rng.normal(size=(300, 400)).astype(np.float32), rng.normal(size=(3, 300, 400)).astype(np.float32)
    results = []
    for limit in (1, 1 << 30):
        monkeypatch.setattr("gluongraph.gluon.eager_update.WORTH_COMPILING", limit)
        p = Parameter("w", shape=start.shape)
        p.initialize()
        p.set_data(start)
        trainer = Trainer([p], "adam", {"learning_rate": 0.1, "wd": 0.01, "clip_gradient": 0.5})
        for g in grads:
            p.grad()[:] = g
            p.data()._fresh_grad = True
            trainer.step(2)
        results.append(p.data().asnumpy())
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: Trainer("w", "sgd"), ValueError, "list or dictionary"),
    (lambda: Trainer([1], "sgd"), ValueError, "among them is a int"),
    (lambda: Trainer([], "sgd"), TypeError, "at least one"),
    (lambda: Trainer([Parameter("w", shape=(1,))], "sgd"), RuntimeError, "not been initialized"),
    (lambda: Trainer([parameter()], "rmsprob"), ValueError, "did you mean 'rmsprop'"),
    (lambda: Trainer([parameter()], "sgd", {"momentun": 0.9}), TypeError, "momentun"),
    (lambda: Trainer([parameter()], optimizer.SGD(), {"wd": 0.1}), AssertionError, "optimizer_params"),
    (lambda: Trainer([parameter()], "sgd", kvstore=3), TypeError, "kvstore"),
    (lambda: Trainer([parameter()], "sgd").step(0), ZeroDivisionError, "division"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_contexts_must_agree() -> None:
    elsewhere = Parameter("v", shape=(2,))
    elsewhere.initialize(ctx=cpu(1))
    with pytest.raises(AssertionError, match="different contexts"):
        Trainer([parameter(), elsewhere], "sgd")


def test_step_before_shapes_are_known() -> None:
    net = nn.Dense(2)
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd")
    with pytest.raises(gluon.DeferredInitializationError):
        trainer.step(1)


def test_states_travel_by_name(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "states")

    def train(trainer: Trainer, params: list[Parameter], steps: int) -> None:
        for _ in range(steps):
            backward(*params, factor=0.3)
            trainer.step(1)

    settings = {"learning_rate": 0.1}
    straight = [parameter("a"), parameter("b")]
    train(Trainer(straight, "adam", settings), straight, 5)
    first = [parameter("a"), parameter("b")]
    saved = Trainer(first, "adam", settings)
    train(saved, first, 3)
    saved.save_states(file)
    again = [parameter("b", values(first[1])[0]), parameter("a", values(first[0])[0])]  # in another order
    loaded = Trainer(again, "adam", settings)
    loaded.load_states(file)
    assert loaded.optimizer.num_update == 3
    train(loaded, again, 2)
    assert values(again[1], again[0]) == values(*straight)
    with pytest.raises(ValueError, match="is of Adam"):
        Trainer(again, "sgd").load_states(file)
    with pytest.raises(ValueError, match="does not hold"):
        Trainer([parameter("z")], "adam").load_states(file)


def test_kvstore() -> None:
    store = kvstore.create("local")
    store.init("w", nd.ones((2,)))
    store.push("w", [nd.ones((2,)), nd.ones((2,)) * 2])
    out = nd.zeros((2,))
    store.pull("w", out)
    assert out.asnumpy().tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="initialized already"):
        store.init("w", out)
    with pytest.raises(RuntimeError, match="has not been initialized"):
        store.pull("v", out)


@pytest.mark.parametrize("name,settings", [("sgd", {"learning_rate": 0.5}), ("adam", {"learning_rate": 0.02})])
def test_training_lowers_the_loss(name: str, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x = nd.array(rng.normal(size=(64, 4)).astype(np.float32))
    y = nd.array((x.asnumpy().sum(axis=1) > 0).astype(np.float32))
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="tanh"), nn.Dense(2))
    net.initialize(init.Xavier())
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = Trainer(net.collect_params(), name, settings)
    losses = []
    for _ in range(30):
        with autograd.record():
            each = loss(net(x), y)
        each.backward()
        trainer.step(64)
        losses.append(float(each.mean().asscalar()))
    assert losses[-1] < 0.3 * losses[0]
