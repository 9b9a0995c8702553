"""Arguments of the right type whose values make no sense: refused at once, by name."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.errors import ArgumentError, ShapeError
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.arguments import RANGES

NAN = math.nan
IMAGE, FILTER = nd.ones((1, 1, 4, 4)), nd.ones((2, 1, 0, 0))

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: nd.random.normal(0, -1), ArgumentError, "random.normal: scale must be at least 0, not -1"),
    (lambda: nd.random.normal(nd.zeros(2), nd.array([1, -2])), ArgumentError, "scale must be at least 0, not -2"),
    (lambda: nd.random.uniform(1, -1), ArgumentError, "random.uniform: high must be at least 1, not -1"),
    (lambda: nd.random.uniform(nd.array([0, 3]), nd.array([1, 2])), ArgumentError, "at least its lower end, not 2"),
    (lambda: nd.random.uniform(0, NAN), ArgumentError, "random.uniform: high must be at least 0, not nan"),
    (lambda: nd.random.exponential(-1), ArgumentError, "random.exponential: scale must be above 0, not -1"),
    (lambda: nd.random.gamma(0, 1), ArgumentError, "random.gamma: alpha must be above 0, not 0"),
    (lambda: nd.random.gamma(1, -1), ArgumentError, "random.gamma: beta must be above 0, not -1"),
    (lambda: nd.random.poisson(-1), ArgumentError, "random.poisson: lam must be at least 0, not -1"),
    (lambda: nd.random.negative_binomial(0, 0.5), ArgumentError, "negative_binomial: k must be above 0, not 0"),
    (lambda: nd.random.negative_binomial(1, 1.5), ArgumentError, "p must be above 0 and at most 1, not 1.5"),
    (lambda: nd.random.generalized_negative_binomial(-1), ArgumentError, "mu must be at least 0, not -1"),
    (lambda: nd.random.generalized_negative_binomial(1, -1), ArgumentError, "alpha must be at least 0, not -1"),
    (lambda: mx.random.bernoulli(1.5), ArgumentError, "prob must be at least 0 and at most 1, not 1.5"),
    (lambda: nd.random.normal_like(nd.ones(2), 0, -1), ArgumentError, "scale must be at least 0"),
    (lambda: nd.where(nd.ones(3), nd.ones((2, 2)), nd.ones((2, 2))), ShapeError, r"where: the condition f32\[3\] does"),
    (lambda: nd.where(nd.ones((2, 2)), nd.ones(2), nd.ones(2)), ShapeError, r"condition f32\[2,2\] does not fit"),
    (lambda: nd.moveaxis(nd.ones((2, 3)), (0, 0), (0, 1)), ShapeError, "moveaxis: axes .* as many places as axes"),
    (lambda: nd.moveaxis(nd.ones((2, 3)), (0, 1), (1, 1)), ShapeError, "none of them twice"),
    (lambda: nd.moveaxis(nd.ones((2, 3)), (0, 1), 1), ShapeError, "as many places as axes"),
    (lambda: gluon.nn.Conv2D(3, 0), ArgumentError, "Conv2D: kernel_size is whole numbers from 1 on, not 0"),
    (lambda: gluon.nn.Conv1D(3, 2.5), ArgumentError, "Conv1D: kernel_size is whole numbers from 1 on, not 2.5"),
    (lambda: gluon.nn.Conv2D(3, 3, strides=(1, 0)), ArgumentError, "Conv2D: strides is whole numbers from 1 on"),
    (lambda: gluon.nn.Conv2D(3, 3, padding=-1), ArgumentError, "Conv2D: padding is whole numbers from 0 on, not -1"),
    (lambda: gluon.nn.MaxPool2D(0), ArgumentError, "MaxPool2D: pool_size is whole numbers from 1 on, not 0"),
    (
        lambda: nd.Convolution(IMAGE, FILTER, kernel=(0, 0), num_filter=2, no_bias=True),
        ShapeError,
        "kernel, stride, dil",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_is_refused(number: int) -> None:
    call, error, message = REFUSED[number]
    before = mx.random.get_state()
    with pytest.raises(error, match=f"(?s){message}") as caught:
        call()
    assert isinstance(caught.value, (mx.MXNetError, ValueError))
    assert f"{pathlib.Path(__file__).name}:{call.__code__.co_firstlineno}" in str(caught.value)
    assert mx.random.get_state() == before


def test_the_ends_of_a_range_belong_to_it() -> None:
    assert nd.random.normal(3, 0, shape=2).asnumpy().tolist() == [3, 3]
    assert nd.random.uniform(1, 1, shape=2).asnumpy().tolist() == [1, 1]
    assert nd.random.poisson(0, shape=2).asnumpy().tolist() == [0, 0]
    assert gluon.nn.Conv2D(3, np.int64(3))._kernel == (3, 3)
    chosen = nd.where(nd.array([1, 0]), nd.ones((2, 3)), nd.zeros((2, 3)))
    assert chosen.asnumpy().tolist() == [[1, 1, 1], [0, 0, 0]]


# -- settings of optimizers

SETTINGS = [
    (name, key)
    for name, cls in sorted(Optimizer.opt_registry.items())
    for key in sorted(cls.numbers)
    if cls.__module__.startswith("gluongraph.") and key not in ("lr", "begin_num_update")
]


PAIRS = {
    **{"beta1": ("betas", 0), "beta2": ("betas", 1), "etaminus": ("etas", 0), "etaplus": ("etas", 1)},
    **{"step_size_min": ("step_sizes", 0), "step_size_max": ("step_sizes", 1)},
}
DEFAULTS = {"betas": (0.9, 0.999), "etas": (0.5, 1.2), "step_sizes": (1e-6, 50.0)}


def argument(name: str, key: str, value: float) -> dict[str, Any]:
    """The argument that a setting comes from: PyTorch's are pairs."""
    if not name.startswith("torch.") or key not in PAIRS:
        return {key: value}
    pair, place = PAIRS[key]
    return {pair: tuple(value if i == place else v for i, v in enumerate(DEFAULTS[pair]))}


@pytest.mark.parametrize(("name", "key"), SETTINGS, ids=lambda part: part)
def test_a_setting_of_an_optimizer_out_of_its_range_is_refused(name: str, key: str) -> None:
    """In the constructor and later; what was there before stays."""
    allowed = RANGES.get(key)
    wrong = [NAN] if allowed is None else [NAN, math.inf, -math.inf, allowed.low - 1, allowed.high + 1]
    wrong += [allowed.high] if allowed is not None and allowed.below else []
    optimizer = mx.optimizer.create(name)
    for value in (v for v in wrong if v != v or allowed is None or v not in allowed):
        with pytest.raises(ValueError, match=rf"\w+: {key} must be .*, not {value:g}"):
            mx.optimizer.create(name, **argument(name, key, value))
        if hasattr(optimizer, key) and key != "learning_rate":
            before = getattr(optimizer, key)
            with pytest.raises(ValueError, match=f"{key} must be"):
                setattr(optimizer, key, value)
            assert getattr(optimizer, key) == before


@pytest.mark.parametrize("rate", [NAN, math.inf, -0.1])
def test_a_rate_that_is_none_is_refused_and_the_weights_stay(rate: float) -> None:
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with pytest.raises(ValueError, match="SGD: learning_rate must be finite and at least 0"):
        trainer.set_learning_rate(rate)
    assert trainer.learning_rate == 0.1
    with pytest.raises(ValueError, match="lr_mult must be finite"):
        net.weight.lr_mult = NAN
    with pytest.raises(ValueError, match="wd_mult of 'x' must be finite"):
        trainer.optimizer.set_wd_mult({"x": math.inf})


@pytest.mark.parametrize("compiled", [False, True])
def test_a_schedule_that_gives_nan_ends_the_step_and_changes_nothing(compiled: bool) -> None:
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    options = {"learning_rate": 0.1, "lr_scheduler": lambda t: NAN if t > 1 else 0.1}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    loss, x, y = gluon.loss.L2Loss(), nd.ones((4, 3)), nd.ones((4, 2))
    step = mx.compile(net, loss, trainer) if compiled else None

    def run() -> None:
        if step is not None:
            step(x, y)
            return
        with mx.autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(4)

    run()
    before = net.weight.data().asnumpy().tobytes()
    with pytest.raises(ValueError, match="what lr_scheduler gives"):
        run()
    assert net.weight.data().asnumpy().tobytes() == before and trainer.optimizer.num_update == 1


# -- names


def test_a_pattern_that_freezes_nothing_is_refused(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("onnx")
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    path = str(tmp_path / "net.onnx")
    net.export_onnx(path, nd.ones((4, 3)))
    with pytest.raises(ArgumentError, match=r"(?s)freeze='body.\*' matches no parameter.*dense\d+_weight"):
        mx.onnx.load(path, freeze="body.*")
    frozen = mx.onnx.load(path, freeze=r".*_weight")
    assert [p.grad_req for p in frozen.collect_params().values()] == ["null", "write"]
