"""The guides' code runs, and shows what their texts say: values after steps, equal formulas, rates."""

from __future__ import annotations

import pathlib
import runpy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx

HERE = pathlib.Path(__file__).parent
Array = np.ndarray[Any, Any]


@pytest.fixture
def run() -> Callable[[str], dict[str, Any]]:
    def run(name: str) -> dict[str, Any]:
        mx.random.seed(0)
        return runpy.run_path(str(HERE / f"{name}.py"))

    return run


def test_the_trainer_guide(run: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    found = run("trainer_guide")
    before, after = found["curr_weight"].asnumpy(), found["stepped"].asnumpy()
    assert (before != after).all(), "the parameters have changed"
    printed = [text.strip() for text in capsys.readouterr().out.split("<NDArray 1x4 @cpu(0)>")]
    assert printed[1] == printed[2], "plain SGD: w - lr / b times the gradient is what step made"
    assert (found["after_adam"].asnumpy() != after).all()
    assert found["rate"] == 1 and found["new_rate"] == 0.1
    assert printed[4].split() == ["1", "0.1"]
    assert len(found["stores"]) == 6


def test_the_trainer_page(run: Callable[[str], dict[str, Any]]) -> None:
    found = run("trainer_page")
    assert found["moved"] > 0 and found["rate"] == 0.1
    first, second = found["own"]
    assert all(np.allclose(s, first + second) for s in found["summed"]), "gradients are summed over contexts"
    assert (found["replicas"][0] == found["replicas"][1]).all()
    weights = [w.asnumpy() for w in found["packed_net"].weight.list_data()]
    assert (weights[0] == weights[1]).all()
    with pytest.raises(AssertionError):
        found["stored"].update(4)
    with pytest.raises(AssertionError):
        found["stored"].allreduce_grads()
    assert (found["resumes"][0] == found["resumes"][1]).all(), "a resumed trainer takes the same step"
    assert found["saved"].learning_rate == 0.5
    with pytest.raises(UserWarning, match="schedul"):
        found["trainer"].set_learning_rate(0.5)


def test_the_optimizer_guide(run: Callable[[str], dict[str, Any]]) -> None:
    found = run("optimizer_guide")
    assert found["trainer"].learning_rate == 0.1 and found["by_name"].learning_rate == 1
    for name, (before, after) in found["losses"].items():
        assert after < before, f"{name} does not descend: {before} to {after}"
    assert type(found["by_name"].optimizer) is type(found["adam_optimizer"])


def test_the_ftml_page(run: Callable[[str], dict[str, Any]]) -> None:
    """The page's equations, with the parenthesis that it lost: epsilon stands beside the root."""
    found = run("ftml_page")
    w = found["W"].astype(np.float64)
    d = v = z = np.zeros(3)
    for t, (grad, made) in enumerate(zip(found["GRADS"], found["steps"], strict=True), 1):
        g = np.clip(grad * 0.5 + 0.01 * w, -0.5, 0.5)
        v = 0.999 * v + 0.001 * g**2
        after = (1 - 0.6**t) / 0.1 * (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        z = 0.6 * z + 0.4 * g - (after - 0.6 * d) * w
        w, d = -z / after, after
        np.testing.assert_allclose(made, w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["half"].asnumpy(), found["steps"][0], rtol=2e-3)
    assert found["half"].dtype is np.float16
    assert found["created"].beta1 == 0.5 and type(found["registered"]) is found["MyFTML"]
    assert found["ftml"].learning_rate == 0.25
    found["ftml"].update(0, found["weight"], mx.nd.zeros((3,)), found["state"])
    v, after = 0.999 * v, (1 - 0.6**4) / 0.125 * (np.sqrt(0.999 * v / (1 - 0.999**4)) + 1e-8)
    w = -(0.6 * z - (after - 0.6 * d) * w) / after  # half the rate, and no decay
    np.testing.assert_allclose(found["weight"].asnumpy(), w, rtol=1e-5, atol=1e-6)


# -- the equations of the optimizer guide, as it writes them, against what the optimizers do

W = np.array([0.5, -1.0, 2.0, 0.1])
GRADS = [np.array(g) for g in ([0.1, -0.2, 0.3, 0.4], [0.3, 0.1, -0.5, 0.2], [-0.2, 0.2, 0.1, -0.1])]


def sgd(lr: float, decay: float = 0.0) -> Iterator[Array]:
    w = W
    for g in GRADS:
        w = w + lr * (-g - decay * w)
        yield w


def momentum(lr: float, gamma: float) -> Iterator[Array]:
    w, v = W, np.zeros(4)
    for g in GRADS:
        v = gamma * v + lr * -g
        w = w + v
        yield w


def nesterov(lr: float, gamma: float) -> Iterator[Array]:
    """The guide keeps w and asks for the gradient at w + gamma v; MXNet keeps that point itself."""
    w, v = W, np.zeros(4)
    for g in GRADS:  # g is the gradient at the point kept
        v = gamma * v + lr * -g
        w = w + v
        yield w + gamma * v


def adagrad(lr: float, eps: float) -> Iterator[Array]:
    w, h = W, np.zeros(4)
    for g in GRADS:
        h = h + g**2
        w = w + lr / np.sqrt(h + eps) * -g
        yield w


def rmsprop(lr: float, beta: float, eps: float) -> Iterator[Array]:
    w, n = W, np.zeros(4)
    for g in GRADS:
        n = beta * n + (1 - beta) * g**2
        w = w + lr / np.sqrt(n + eps) * -g
        yield w


def centered_rmsprop(lr: float, beta: float, gamma: float, eps: float) -> Iterator[Array]:
    w, n, m, v = W, np.zeros(4), np.zeros(4), np.zeros(4)
    for g in GRADS:
        m = beta * m + (1 - beta) * g
        n = beta * n + (1 - beta) * g**2
        v = gamma * v + lr / np.sqrt(n - m**2 + eps) * -g
        w = w + v
        yield w


def adadelta(beta: float, eps: float) -> Iterator[Array]:
    w, n, d = W, np.zeros(4), np.zeros(4)
    for g in GRADS:
        n = beta * n + (1 - beta) * g**2
        step = np.sqrt(d + eps) / np.sqrt(n + eps) * -g
        d = beta * d + (1 - beta) * step**2
        w = w + step
        yield w


def adam(lr: float, beta1: float, beta2: float, eps: float) -> Iterator[Array]:
    w, v, n = W, np.zeros(4), np.zeros(4)
    for i, g in enumerate(GRADS, 1):
        v = beta1 * v + (1 - beta1) * g
        n = beta2 * n + (1 - beta2) * g**2
        w = w + lr / (np.sqrt(n / (1 - beta2**i)) + eps) * -v / (1 - beta1**i)
        yield w


def adamax(lr: float, beta1: float, beta2: float, eps: float) -> Iterator[Array]:
    w, v, top = W, np.zeros(4), np.zeros(4)
    for i, g in enumerate(GRADS, 1):
        v = beta1 * v + (1 - beta1) * g
        top = np.maximum(beta2 * top, np.abs(g))
        w = w + lr / (top + eps) * -v / (1 - beta1**i)
        yield w


def signum(lr: float, gamma: float) -> Iterator[Array]:
    w, v = W, np.zeros(4)
    for g in GRADS:
        v = gamma * v + (1 - gamma) * g
        w = w - lr * np.sign(v)
        yield w


def dcasgd(lr: float, lamda: float) -> Iterator[Array]:
    w, before = W, W
    for g in GRADS:
        w, before = w - lr * (g + lamda * g**2 * (w - before)), w
        yield w


def ftrl(lr: float, lamda: float, beta: float) -> Iterator[Array]:
    """With z as in the paper (McMahan et al., 2013): the guide's line for it lost the gradient and a sign."""
    w, z, n = W, np.zeros(4), np.zeros(4)
    for g in GRADS:
        z = z + g - (np.sqrt(n + g**2) - np.sqrt(n)) * w / lr
        n = n + g**2
        w = (np.abs(z) > lamda) * (-lr / (beta + np.sqrt(n)) * (z - lamda * np.sign(z)))
        yield w


def ftml(lr: float, beta1: float, beta2: float, eps: float) -> Iterator[Array]:
    w, v, d, z = W, np.zeros(4), np.zeros(4), np.zeros(4)
    for i, g in enumerate(GRADS, 1):
        v = beta2 * v + (1 - beta2) * g**2
        after = (1 - beta1**i) / lr * (np.sqrt(v / (1 - beta2**i)) + eps)
        z = beta1 * z + (1 - beta1) * g - (after - beta1 * d) * w
        w, d = -z / after, after
        yield w


EQUATIONS: list[tuple[str, dict[str, Any], Iterator[Array]]] = [
    ("SGD", {"learning_rate": 0.1}, sgd(0.1)),
    ("SGD", {"learning_rate": 0.1, "wd": 0.05}, sgd(0.1, 0.05)),
    ("SGD", {"learning_rate": 0.1, "momentum": 0.8}, momentum(0.1, 0.8)),
    ("NAG", {"learning_rate": 0.1, "momentum": 0.8}, nesterov(0.1, 0.8)),
    ("AdaGrad", {"learning_rate": 0.1, "eps": 1e-7}, adagrad(0.1, 1e-7)),
    ("RMSProp", {"learning_rate": 0.001, "rho": 0.9, "momentum": 0.9, "epsilon": 1e-7}, rmsprop(0.001, 0.9, 1e-7)),
    (
        "RMSProp",
        {"learning_rate": 0.001, "rho": 0.9, "momentum": 0.8, "epsilon": 1e-3, "centered": True},
        centered_rmsprop(0.001, 0.9, 0.8, 1e-3),
    ),
    ("AdaDelta", {"rho": 0.9, "epsilon": 1e-7}, adadelta(0.9, 1e-7)),
    ("Adam", {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, adam(0.001, 0.9, 0.999, 1e-8)),
    ("Adamax", {"learning_rate": 0.002, "beta1": 0.9, "beta2": 0.999}, adamax(0.002, 0.9, 0.999, 1e-8)),
    ("Signum", {"learning_rate": 0.01, "momentum": 0.0}, signum(0.01, 0.0)),
    ("Signum", {"learning_rate": 0.01, "momentum": 0.9}, signum(0.01, 0.9)),
    ("DCASGD", {"learning_rate": 0.1, "momentum": 0.0, "lamda": 0.04}, dcasgd(0.1, 0.04)),
    ("Ftrl", {"lamda1": 0.01, "learning_rate": 0.1, "beta": 1}, ftrl(0.1, 0.01, 1)),
    ("FTML", {"learning_rate": 0.1, "beta1": 0.6, "beta2": 0.999}, ftml(0.1, 0.6, 0.999, 1e-8)),
]


@pytest.mark.parametrize(("name", "arguments", "guide"), EQUATIONS, ids=[f"{n}-{len(a)}" for n, a, _ in EQUATIONS])
def test_the_equations_of_the_optimizer_guide(name: str, arguments: dict[str, Any], guide: Iterator[Array]) -> None:
    made = getattr(mx.optimizer, name)(**arguments)
    weight = mx.nd.array(W)
    state = made.create_state(0, weight)
    for g, expected in zip(GRADS, guide, strict=True):
        made.update(0, weight, mx.nd.array(g), state)
        np.testing.assert_allclose(weight.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_sgld_adds_noise_of_the_variance_that_the_guide_says() -> None:
    mx.random.seed(0)
    weight = mx.nd.zeros((200, 500))
    mx.optimizer.SGLD(learning_rate=0.01).update(0, weight, mx.nd.ones((200, 500)), None)
    noise = weight.asnumpy() + 0.01 / 2
    assert noise.mean() == pytest.approx(0, abs=2e-3) and noise.var() == pytest.approx(0.01, rel=0.02)
