"""NaN and infinity: who is named, in which mode, and that what an error has ended has changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import amp, autograd, debug, gluon, nd
from gluongraph.errors import NotFiniteError
from gluongraph.gluon import nn

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
BAD = {"nan": np.nan, "inf": np.inf}


class Odd(gluon.HybridBlock):
    """A layer of the user's own."""

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__(prefix="odd_")
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Training:
    """A net with statistics and random numbers, a layer that may go wrong, and momentum; trained in a mode."""

    def __init__(self, function: Callable[[Any], Any], mode: str, **options: Any):
        mx.random.seed(1)
        np.random.seed(1)
        self.net, self.mode, self.loss = nn.HybridSequential(), mode, gluon.loss.L1Loss()
        self.net.add(nn.Dense(3, in_units=2, use_bias=False), Odd(function))
        self.net.add(nn.BatchNorm(in_channels=3), nn.Dropout(0.5), nn.Dense(2, in_units=3))
        self.net.initialize(mx.init.Xavier())
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        if mode == "hybridized":
            self.net.hybridize()
        looks = {"compiled": {"detect_anomaly": True}, "norm": {"error_if_nonfinite": True}}.get(mode, {})
        self.step = mx.compile(self.net, self.loss, self.trainer, **looks, **options)

    def train(self, x: Array) -> None:
        y = np.zeros((4, 2), np.float32)
        if self.mode in ("compiled", "norm", "interpreted"):
            with autograd.detect_anomaly() if self.mode == "interpreted" else nullcontext():
                self.step(x, y)
            return
        with autograd.detect_anomaly():
            with autograd.record():
                loss = self.loss(self.net(nd.array(x)), nd.array(y))
            loss.backward()
            self.trainer.step(4)

    def state(self) -> dict[str, Any]:
        values = (p.data() for p in self.net.collect_params().values())
        arrays = dict(zip(self.net._collect_params_with_prefix(), values, strict=True))
        arrays |= self.trainer.state_arrays(self.trainer.names)
        drawn = mx.random.get_state(mx.cpu())
        return {
            **{k: a.asnumpy().tolist() for k, a in arrays.items()},
            "rng": drawn,
            **self.trainer.optimizer.progress(),
        }


def weight(value: float) -> Callable[[Training, Array], None]:
    def put(training: Training, x: Array) -> None:
        training.net[0].weight.data()[1, 1] = value

    return put


def data(value: float) -> Callable[[Training, Array], None]:
    def put(training: Training, x: Array) -> None:
        x[2, 0] = value

    return put


def large(training: Training, x: Array) -> None:
    x *= 1e6


def zero(training: Training, x: Array) -> None:
    x[:] = 0


# What goes wrong -> the layer's function, what is changed, the op and the value that are named, the layer.
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Training, Array], None], str, str]] = {
    "NaN in the data": (nd.relu, data(np.nan), r"matmul\(f32\[4,2\], f32\[3,2\]\) made a NaN[^~]*a NaN in ", "dense"),
    "infinity in the data": (nd.relu, data(np.inf), r"matmul\(.*made an infinity[^~]*an infinity in ", "dense"),
    "infinity in a weight": (nd.relu, weight(np.inf), r"matmul\(.*made an infinity[^~]*an infinity in ", "dense"),
    "log": (lambda x: nd.log(nd.abs(x)), zero, r"log\(f32\[4,3\]\) made an infinity", "odd"),
    "exp": (lambda x: nd.exp(x), large, r"exp\(f32\[4,3\]\) made an infinity", "odd"),
    "0 / 0": (lambda x: x / nd.abs(x), zero, r"div\(f32\[4,3\], f32\[4,3\]\) made a NaN", "odd"),
    "the gradient of sqrt": (lambda x: nd.sqrt(nd.abs(x)), zero, r"div\(.*made an infinity", "odd"),
}
MODES = ("eager", "hybridized", "compiled", "norm", "interpreted")


def goes_wrong(case: str, mode: str) -> None:
    """After a good step a bad one is refused and changes nothing; then training goes on as if it had not been."""
    function, break_it, message, layer = CASES[case]
    training, undisturbed = (Training(function, mode) for _ in range(2))
    start, broken = mx.random.get_state(mx.cpu()), X.copy()
    training.train(X)
    good = training.state()
    break_it(training, broken)
    before = training.state()
    with pytest.raises(NotFiniteError, match=rf"{message}[^~]*made by \S*{layer}.*test_anomaly\.py:\d+\n"):
        training.train(broken)
    assert {k for k, value in training.state().items() if value != before[k]} <= moved(case, mode)
    training.net[0].weight.set_data(nd.array(good["0.weight"]))
    mx.random.set_state(good["rng"], mx.cpu())
    training.train(X)
    mx.random.set_state(start, mx.cpu())
    for _ in range(2):
        undisturbed.train(X)
    assert training.state()["0.weight"] == undisturbed.state()["0.weight"]


def moved(case: str, mode: str) -> set[str]:
    """What a forward that has come to its end, or so far, has changed where each part of a step is a call by itself."""
    done = mode == "eager" or (mode == "hybridized" and "gradient" in case)
    return {"rng", "2.running_mean", "2.running_var"} if done else set()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_who_is_named(case: str, mode: str) -> None:
    with debug.override(backend="reference"):
        goes_wrong(case, mode)


@pytest.mark.parametrize("mode", ["compiled", "norm"])
@pytest.mark.parametrize("case", ["NaN in the data", "exp"])
def test_compiled(case: str, mode: str) -> None:
    goes_wrong(case, mode)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_norm_that_overflows_is_refused_though_all_gradients_are_finite(clip: float | None) -> None:
    """As by PyTorch's clip_grad_norm_(error_if_nonfinite=True): squares of 1e30 are infinities in float32."""
    w = gluon.Parameter("w", shape=(2,), init="ones")
    w.initialize()
    trainer = gluon.Trainer([w], "sgd", {"learning_rate": 1e-30})
    step = mx.compile(lambda x: (w.data() * x).sum(), trainer=trainer, error_if_nonfinite=True, clip_norm=clip)
    step(np.ones(2, np.float32))
    assert step.grad_norm == pytest.approx(2**0.5)
    before = w.data().asnumpy()
    with pytest.raises(NotFiniteError, match=r"mul\(f32\[2\], f32\[2\]\) made an infinity"):
        step(np.full(2, 1e30, np.float32))
    assert (w.data().asnumpy() == before).all() and trainer.optimizer.num_update == 1


def test_a_norm_of_accumulated_gradients_is_refused_at_the_update() -> None:
    training = Training(nd.relu, "norm", clip_norm=1.0)
    y, bad = np.zeros((4, 2), np.float32), X.copy()
    bad[0, 0] = np.nan
    training.step.accumulate(X, y)
    training.step.accumulate(bad, y)
    before = training.state()
    with pytest.raises(NotFiniteError, match="NaN"):
        training.step.apply()
    assert str(training.state()) == str(before)  # in which statistics of BatchNorm are NaN


def test_gradients_alone_are_looked_at_too() -> None:
    with debug.override(backend="reference"):
        training = Training(nd.exp, "compiled")
        before = training.state()
        with pytest.raises(NotFiniteError, match="exp"):
            training.step.grads(X * 1e6, np.zeros((4, 2), np.float32))
        assert training.state() == before


def masked(x: Any) -> Any:
    """Attention to the first two of three: the third score is -inf, and so is its logarithm."""
    mask = nd.array([[1, 1, 0]])
    return nd.softmax(nd.where(nd.broadcast_like(mask, x), x, nd.full(x.shape, -np.inf)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "function",
    [
        masked,
        lambda x: nd.softmax(nd.broadcast_add(x, nd.array([[0, 0, -np.inf]]))),
        lambda x: nd.minimum(x, nd.full(x.shape, np.inf)),
    ],
    ids=["choice", "sum", "limit"],
)
def test_infinities_that_are_meant(function: Callable[[Any], Any], mode: str) -> None:
    with debug.override(backend="reference"):
        training = Training(function, mode)
        before = training.state()["0.weight"]
        training.train(X)
        assert training.state()["0.weight"] != before


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_scaled_loss_may_overflow_on_its_way_back(mode: str) -> None:
    """Such a step is left out, as ever; a loss that is not finite is refused: no scale would help."""
    with debug.override(backend="reference"):
        training = Training(nd.relu, mode, precision="16-mixed")
        training.trainer.scaler.scale[:] = 2.0**24
        before = training.state()
        training.train(X * 100)
        assert training.step.skipped == 1 and training.state() == before
        scale = training.trainer.scaler.progress()
        with pytest.raises(NotFiniteError, match=r"matmul\(f16\[4,2\], f16\[3,2\]\) made a NaN"):
            training.train(np.full_like(X, np.nan))
        assert (training.step.skipped, training.trainer.scaler.progress()) == (1, scale)


def test_eager_losses_that_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp, "_target", "f16")
    net = nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.init_trainer(trainer)
    trainer.scaler.scale[:] = 1e38
    with autograd.detect_anomaly():
        with autograd.record():
            loss = net(nd.array(X) * 100).sum()
            with amp.scale_loss(loss, trainer) as scaled:
                scaled.backward()
        trainer.step(1)
    assert (net.weight.data().asnumpy() == 1).all() and trainer.scaler.scale.asscalar() < 1e38


def test_gradients_that_are_added_up_stay_as_they_were() -> None:
    with debug.override(backend="reference"):
        training = Training(nd.exp, "compiled")
        training.net.collect_params().setattr("grad_req", "add")
        training.train(X)
        before = training.net[0].weight.grad().asnumpy()
        with pytest.raises(NotFiniteError):
            training.train(X * 1e6)
        np.testing.assert_array_equal(training.net[0].weight.grad().asnumpy(), before)


def test_updates_are_looked_at() -> None:
    """Gradients whose squares are too large for Adam's state."""
    w = gluon.Parameter("w", shape=(2,))
    w.initialize(mx.init.One())
    trainer = gluon.Trainer([w], "adam")
    step = mx.compile(lambda x: (w.data() * x).sum(), trainer=trainer, detect_anomaly=True)
    message = r"made an infinity\n  seen in new w/var"
    with debug.override(backend="reference"):
        with pytest.raises(NotFiniteError, match=message):
            step(np.full(2, 1e30, np.float32))
        with autograd.detect_anomaly():
            with autograd.record():
                loss = (w.data() * nd.full((2,), 1e30)).sum()
            loss.backward()
            with pytest.raises(NotFiniteError, match=message):
                trainer.step(1)
    assert (w.data().asnumpy() == 1).all() and trainer.optimizer.num_update == 0


def test_without_it_training_goes_on() -> None:
    with debug.override(backend="reference"):
        training = Training(nd.exp, "plain")
        loss = training.step(X * 1e6, np.zeros((4, 2), np.float32))
        assert not np.isfinite(loss.asnumpy()).all() and training.trainer.optimizer.num_update == 1


def test_what_is_watched_is_computed_once() -> None:
    """However the graph is changed behind it, as by copies of weights in 16 bit, which go on with the weights."""
    with debug.override(backend="reference"):
        training = Training(nd.relu, "compiled", precision="bf16-mixed")
        training.train(X)
        assert sum(n.op.kind == "contraction" for n in training.step.graph.nodes()) == 5  # two layers, three gradients
        before = training.step.predict(X).asnumpy()
        with pytest.raises(NotFiniteError, match=r"matmul\(bf16"):
            training.train(X * np.nan)
        np.testing.assert_array_equal(training.step.predict(X).asnumpy(), before)
