"""amp's names: products in 16 bits, scaled losses, steps that overflow and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import amp, autograd, debug, gluon, nd
from gluongraph.gluon import nn

SCALE = 256.0  # where the gradients of these networks fit into float16, as a scale that adapts finds
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """amp.init(), undone afterwards."""
    for op in amp.list_lp16_ops():
        monkeypatch.setattr(nd, op, getattr(nd, op))
    monkeypatch.setattr(amp, "_target", None)
    amp.init()
    yield


def network(ctx: Any = None) -> nn.Dense:
    net = nn.Dense(1, in_units=4, use_bias=False)
    net.initialize(mx.init.One(), ctx=ctx)
    return net


def trained(net: Any, contexts: list[Any] | None = None) -> gluon.Trainer:
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    amp.init_trainer(trainer)
    assert trainer._amp_loss_scaler is not None and trainer._amp_loss_scaler.loss_scale == 2.0**16
    trainer.scaler.scale.storage.write(SCALE)
    return trainer


@pytest.mark.usefixtures("half")
def test_products_are_rounded_to_16_bits_and_the_rest_is_not() -> None:
    net = network()
    y = net(nd.array(X))
    low = X.astype(np.float16).astype(np.float32).sum(1, keepdims=True)
    assert y.dtype is np.float32 and net.weight.data().dtype is np.float32
    np.testing.assert_allclose(y.asnumpy(), low, rtol=2e-3, atol=2e-3)
    assert (y.asnumpy() == y.asnumpy().astype(np.float16)).all()
    sharp = nd.array(X).sum(axis=1, keepdims=True).asnumpy()
    assert (sharp != sharp.astype(np.float16)).any(), "sums stay float32"
    net.hybridize()
    np.testing.assert_allclose(net(nd.array(X)).asnumpy(), y.asnumpy(), rtol=1e-3, atol=1e-3)
    conv = nn.Conv2D(2, 3)
    conv.initialize()
    assert conv(nd.ones((1, 3, 8, 8))).dtype is np.float32


@pytest.mark.usefixtures("half")
def test_a_scaled_loss_makes_the_step_of_a_plain_one() -> None:
    nets = [network(), network()]
    plain = gluon.Trainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.5})
    scaled = trained(nets[1])
    for _ in range(3):
        with autograd.record():
            loss = (nets[0](nd.array(X)) ** 2).mean()
        loss.backward()
        plain.step(1)
        with autograd.record():
            loss = (nets[1](nd.array(X)) ** 2).mean()
            with amp.scale_loss(loss, scaled) as large:
                large.backward()
        assert large.asscalar() == loss.asscalar() * SCALE
        scaled.step(1)
    np.testing.assert_allclose(nets[0].weight.data().asnumpy(), nets[1].weight.data().asnumpy(), rtol=1e-2)


@pytest.mark.usefixtures("half")
def test_unscaled_gradients_can_be_clipped() -> None:
    net = network()
    trainer = trained(net)
    with autograd.record():
        loss = net(nd.array(X)).sum()
        with amp.scale_loss([loss], trainer) as scaled:
            autograd.backward(scaled)
    amp.unscale(trainer)
    np.testing.assert_allclose(net.weight.grad().asnumpy()[0], X.sum(0), rtol=2e-3, atol=2e-3)
    gluon.utils.clip_global_norm([net.weight.grad()], 0.1)
    trainer.step(1)
    moved = 1 - net.weight.data().asnumpy()
    assert np.linalg.norm(moved) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("contexts", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=["one", "two"])
def test_an_overflow_anywhere_changes_no_weight_and_halves_the_scale_at_once(contexts: list[Any]) -> None:
    net = network(contexts)
    trainer = trained(net)
    for overflows in (True, False):
        with autograd.record():
            losses = [net(x).sum() for x in gluon.utils.split_and_load(nd.array(X), contexts)]
            with amp.scale_loss(losses, trainer) as scaled:
                autograd.backward(scaled)
        if overflows:
            net.weight.grad(contexts[-1])[0, 0] = np.inf
        trainer.step(8)
        weights = [w.asnumpy() for w in net.weight.list_data()]
        assert all((w == weights[0]).all() for w in weights)
        assert (weights[0] == 1).all() == overflows
        assert trainer.scaler.loss_scale == SCALE / 2, "no lag: the very next loss has the smaller scale"
    assert trainer.optimizer.num_update == 1, "a step left out does not count"


def test_the_scale_grows_and_has_ends() -> None:
    scaler = gluon.Trainer(network().collect_params(), "sgd").scaler
    weight = nd.ones((1,))
    weight.attach_grad()
    for _ in range(2000):
        assert scaler.accepts([weight])
    assert scaler.loss_scale == 2.0**17
    weight.grad[:] = np.nan
    for _ in range(40):
        assert not scaler.accepts([weight])
    assert scaler.loss_scale == 2.0**-14


@pytest.mark.usefixtures("half")
def test_eager_and_compiled_steps_have_one_scale() -> None:
    """They take turns; each counts itself, once, and divides by what its own loss was multiplied by."""
    net, plain = network(), network()
    trainer, other = trained(net), gluon.Trainer(plain.collect_params(), "sgd", {"learning_rate": 0.5})
    step, exact = (
        mx.compile(lambda x, n=n: (n(x) ** 2).mean(), trainer=t, precision=p)
        for n, t, p in ((net, trainer, "16-mixed"), (plain, other, "32"))
    )
    with debug.override(backend="reference"):

        def eager(x: Any) -> None:
            with autograd.record(), amp.scale_loss((net(nd.array(x)) ** 2).mean(), trainer) as large:
                large.backward()
            trainer.step(1)

        for number in range(2):
            eager(X)
            step(X)
            assert trainer.scaler.progress() == [SCALE, 2 * number + 2]
            exact(X)
            exact(X)
        for way in (eager, step):
            way(np.full_like(X, np.inf))
    assert trainer.scaler.progress() == [SCALE / 4, 0] and trainer.optimizer.num_update == 4
    np.testing.assert_allclose(net.weight.data().asnumpy(), plain.weight.data().asnumpy(), rtol=1e-2)


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp, "_target", None)
    trainer = gluon.Trainer(network().collect_params(), "sgd")
    with pytest.raises(AssertionError, match=r"amp\.init\(\)"):
        amp.init_trainer(trainer)
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        amp.init("float64")
    monkeypatch.setattr(amp, "_target", "f16")
    with pytest.raises(ValueError, match="before"):
        amp.init("bfloat16")
    with pytest.raises(TypeError, match="not a SGD"):
        amp.init_trainer(trainer.optimizer)
    with pytest.raises(AttributeError, match="init_trainer first"), amp.scale_loss(nd.ones((1,)), trainer):
        pass
    with pytest.raises(AttributeError, match="init_trainer first"):
        amp.unscale(trainer)
