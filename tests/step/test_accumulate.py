"""Gradients added up over batches: `accumulate` and `apply` are one step on all of their samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug, gluon, nd
from gluongraph.errors import MXNetError, ShapeError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 5)).astype(np.float32), RNG.integers(0, 3, 24).astype(np.float32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
PARTS = (slice(0, 8), slice(8, 12), slice(12, 24))  # of different sizes
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_norm": 0.05},
    "norm": {"grad_norm": True},
    "averages": {"ema": 0.9},
    "bf16-mixed": {"precision": "bf16-mixed", "clip_norm": 1.0},
    "kept": {"keep_grads": True},
}


def made(contexts: Any = None, dropout: float = 0.0, optimizer: str = "adam", **options: Any) -> Any:
    """A net and its compiled step; equal ones at each call."""
    mx.random.seed(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(6, activation="tanh", in_units=5), gluon.nn.Dropout(dropout), gluon.nn.Dense(3, in_units=6))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    trainer_options = options.pop("trainer", {})
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.05}, **trainer_options)
    return net, mx.compile(net, LOSS, trainer, **options)


def weights(net: Any) -> list[Any]:
    return [p.list_data()[0].asnumpy() for p in net.collect_params().values()]


def same(a: Any, b: Any, atol: float = 1e-6) -> None:
    for one, other in zip(weights(a), weights(b), strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


@pytest.mark.parametrize("name", SETTINGS)
def test_one_step_on_all_samples(name: str) -> None:
    whole, step = made(**SETTINGS[name])
    parts, staged = made(**SETTINGS[name])
    for _ in range(3):
        loss = step(X, Y).asnumpy()
        losses = [staged.accumulate(X[part], Y[part]).asnumpy() for part in PARTS]
        assert (staged.accumulator.batches, staged.accumulator.samples) == (3, 24)
        staged.apply()
        np.testing.assert_allclose(np.concatenate(losses), loss, atol=1e-2 if "bf16" in name else 1e-6)
    same(whole, parts, 2e-3 if "bf16" in name else 1e-6)
    assert staged.accumulator.batches == 0
    assert step.trainer.optimizer.num_update == 3 == staged.trainer.optimizer.num_update
    if step.grad_norm is not None:
        assert staged.grad_norm == pytest.approx(step.grad_norm, rel=1e-2 if "bf16" in name else 1e-5)
    if step.averages is not None:
        for a, b in zip(step.averages.values(), staged.averages.values(), strict=True):
            np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), atol=1e-6)
    if name == "kept":
        for p, q in zip(whole.collect_params().values(), parts.collect_params().values(), strict=True):
            np.testing.assert_allclose(p.grad().asnumpy(), q.grad().asnumpy(), atol=1e-5)


@pytest.mark.parametrize("on_store", [True, False])
def test_several_contexts(on_store: bool) -> None:
    with debug.override(backend="reference"):
        whole, step = made()
        parts, staged = made([mx.cpu(0), mx.cpu(1)], trainer={"update_on_kvstore": on_store})
        for _ in range(2):
            step(X, Y)
            staged.accumulate(X[:16], Y[:16])
            staged.accumulate(X[16:], Y[16:])
            staged.apply()
        same(whole, parts)


def test_an_optimizer_in_python() -> None:
    """Where Python acts between gradients and updates, the sums are what `grad()` holds then."""

    class Plain(gluon.Trainer):
        def allreduce_grads(self) -> None:
            super().allreduce_grads()

    with debug.override(backend="reference"):
        whole, step = made(optimizer="sgd")
        net, _ = made()
        staged = mx.compile(net, LOSS, Plain(net.collect_params(), "sgd", {"learning_rate": 0.05}))
        for _ in range(2):
            step(X, Y)
            for part in PARTS:
                staged.accumulate(X[part], Y[part])
            staged.apply()
        assert staged.trainer.in_python
        same(whole, net)


def test_gradients_that_are_added_to_stay_the_users() -> None:
    with debug.override(backend="reference"):
        whole, step = made(optimizer="sgd")
        net, staged = made(optimizer="sgd")
        weight = net[0].weight
        weight.grad_req = "add"
        step(X, Y)
        for part in PARTS:
            staged.accumulate(X[part], Y[part])
        assert abs(weight.grad().asnumpy()).max() > 0
        staged.apply()
        same(whole, net)
        assert abs(weight.grad().asnumpy()).max() > 0  # apply leaves it, as a step does
        weight.zero_grad()
        step(X, Y)
        staged.accumulate(X, Y)
        staged.apply()
        same(whole, net)


def test_parameters_that_no_batch_reads_stay() -> None:
    mx.random.seed(0)
    one, other = gluon.nn.Dense(1, in_units=5), gluon.nn.Dense(1, in_units=5)
    both = gluon.nn.HybridSequential()
    both.add(one, other)
    both.initialize()
    trainer = gluon.Trainer(both.collect_params(), "adam")
    with debug.override(backend="reference"):
        step = mx.compile(lambda x, use: (one if use.shape[0] == 1 else other)(x).sum(axis=1), trainer=trainer)
        before = weights(both)
        step.accumulate(X, nd.zeros((1,)))
        step.apply()
        after = weights(both)
        assert (before[0] != after[0]).any() and (before[2] == after[2]).all()
        step.accumulate(X, nd.zeros((1,)))
        step.accumulate(X, nd.zeros((2,)))
        step.apply()
        assert (after[0] != weights(both)[0]).any() and (after[2] != weights(both)[2]).any()
    assert trainer.optimizer.counts() == {0: 2, 1: 2, 2: 1, 3: 1}


def test_batches_that_overflow_count_for_nothing() -> None:
    with debug.override(backend="reference"):
        whole, step = made(precision="16-mixed")
        net, staged = made(precision="16-mixed")
        for each in (step, staged):
            each.loss_scale.scale[:] = 128.0
        step(X[:8], Y[:8])
        staged.accumulate(X[:8], Y[:8])
        state = mx.random.get_state()
        staged.accumulate(X[8:] * 1e38, Y[8:])
        assert mx.random.get_state() == state
        assert staged.skipped == 1 and staged.loss_scale.scale.asscalar() == 64.0
        assert (staged.accumulator.batches, staged.accumulator.samples) == (2, 8)
        staged.apply()
        same(whole, net)
        before = weights(net)
        staged.accumulate(X * 1e38, Y)
        staged.apply()  # there is nothing to apply, and that is no error of the user's
        assert all((a == b).all() for a, b in zip(before, weights(net), strict=True))
        assert staged.trainer.optimizer.num_update == 1


def test_the_rate_is_that_of_the_update() -> None:
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)
    with debug.override(backend="reference"):
        net, _ = made()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
        step = mx.compile(net, LOSS, trainer)
        for _ in range(3):
            step.accumulate(X, Y)
        assert trainer.optimizer.num_update == 0
        step.apply()
        assert trainer.optimizer.num_update == 1 and trainer.learning_rate == 1.0


def test_errors() -> None:
    with debug.override(backend="reference"):
        net, step = made()
        with pytest.raises(MXNetError, match=r"nothing has been accumulated[^§]*step.accumulate"):
            step.apply()
        step.accumulate(X, Y)
        before, window = weights(net), (step.accumulator.batches, step.accumulator.samples)
        with pytest.raises(ShapeError):
            step.accumulate(X[:, :4], Y)
        with pytest.raises(ZeroDivisionError):
            step.accumulate(X, Y, batch_size=0)
        with pytest.raises(ValueError, match="batch_size=-1"):
            step.apply(batch_size=-1)
        assert (step.accumulator.batches, step.accumulator.samples) == window
        assert all((a == b).all() for a, b in zip(before, weights(net), strict=True))
        with pytest.raises(RuntimeError, match="keep_grads"):
            net[0].weight.grad().asnumpy()
        step.apply(batch_size=12)
        with pytest.raises(MXNetError, match="trainer"):
            mx.compile(net).accumulate(X)
