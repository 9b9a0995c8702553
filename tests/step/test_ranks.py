"""Compiled steps on several ranks: N ranks with a batch of B train as one with N*B."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import variants
from rank_checks import (
    CLASSES,
    LOSS,
    SAMPLES,
    Array,
    Check,
    X,
    Y,
    assert_clean,
    assert_passed,
    compiled,
    dense,
    filled,
    near,
    own,
    refused,
    run_checks,
    same_everywhere,
    trained,
    weights,
)
from ranks import needs_mpi, try_ranks

import gluongraph as mx
from gluongraph import debug, gluon, nd, optimizer
from gluongraph.errors import IndexRangeError, NotFiniteError
from gluongraph.gluon import nn
from gluongraph.gluon.contrib.nn import SyncBatchNorm
from gluongraph.runtime.communicator import shared_memory
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.overlap import bucket_size
from gluongraph.runtime.communicator.shared_memory import SharedArray

pytestmark = needs_mpi


def both(optimizer: Any = "sgd", settings: Any = None, make: Any = dense, loss: Any = LOSS, **options: Any) -> Any:
    """A step of all ranks, and one of this rank alone, of nets with equal weights: ((net, step), (net, step))."""
    how = {k: options.pop(k) for k in ("update_on_kvstore",) if k in options}
    one, other = make(), make()
    together = compiled(one, trained(one, optimizer, settings, **how), loss, **options)
    alone = compiled(other, trained(other, optimizer, settings, kvstore=None, **how), loss, **options)
    return (one, together), (other, alone)


# -- gradients and weights


def check_gradients() -> None:
    """Reduced gradients are those of the whole batch to 1e-6 of the largest element."""
    (_, step), (_, alone) = both()
    for x, y in zip(X, Y, strict=True):
        found = {name: g.asnumpy() for name, g in step.grads(own(x), own(y)).items()}
        near(found, {name: g.asnumpy() for name, g in alone.grads(x, y).items()}, what="gradient of")
        same_everywhere(found)


def check_sgd() -> None:
    for settings in ({"learning_rate": 0.1}, {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}):
        (net, step), (other, alone) = both("sgd", settings)
        for x, y in zip(X, Y, strict=True):
            losses = step(own(x), own(y)).asnumpy()
            np.testing.assert_allclose(losses, own(alone(x, y).asnumpy()), rtol=1e-5)
            near(weights(net), weights(other))
        same_everywhere(weights(net))


def convolutional() -> Any:
    net = nn.HybridSequential(prefix="c_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=2, activation="relu"), nn.MaxPool2D(), nn.Dense(3, in_units=16))
    return filled(net)


def check_convolutions() -> None:
    (net, step), (other, alone) = both(make=convolutional)
    x = np.random.RandomState(3).randn(SAMPLES, 2, 6, 6).astype(np.float32)
    for _ in range(2):
        step(own(x), own(Y[0])), alone(x, Y[0])
    near(weights(net), weights(other))


class Sums(gluon.HybridBlock):
    """Per sample, the sum of all parameters times its numbers: gradients of integers are exact in any order."""

    def __init__(self, types: Any):
        super().__init__(prefix="s_")
        rng = np.random.RandomState(2)
        for i, (shape, dtype) in enumerate(types):
            p = self.params.get(f"p{i}", shape=shape, dtype=dtype)
            setattr(self, f"p{i}", p)
            p.initialize()
            p.set_data(nd.array(rng.randn(*shape), dtype=dtype))
        self.count = len(types)

    def forward(self, *given: Any) -> Any:
        parts = [(getattr(self, f"p{i}").data() * g).reshape((len(g), -1)).sum(axis=1) for i, g in enumerate(given)]
        return sum(parts[1:], parts[0])


def check_optimizers() -> None:
    """Every optimizer: equal gradients lead to equal weights and states."""
    rng = np.random.RandomState(4)
    known = optimizer.Optimizer.opt_registry.items()
    left = {name for name, each in known if each.__module__.startswith("gluongraph.")}
    left -= {"sgld", "ccsgd"}  # the noise of the one is another check
    left -= {name for name, _ in variants.TORCH}
    for name, extra in (*variants.VARIANTS, *variants.TORCH_ON_RANKS):
        left.discard(name)
        settings = {**variants.settings(name, None), **extra}
        one, other = (Sums(variants.types(name)) for _ in range(2))
        data = [(rng.randint(-8, 9, (SAMPLES, *shape)) / 4).astype(np.float32) for shape, _ in variants.types(name)]
        steps = []
        for net, store in ((one, "dist_sync"), (other, None)):
            steps.append(mx.compile(net, None, trained(net, name, settings, kvstore=store)))
        for _ in range(3):
            steps[0](*map(own, data), batch_size=SAMPLES)
            steps[1](*data, batch_size=SAMPLES)
        what = f"{name} {extra}"
        near(weights(one), weights(other), what=what)
        states = [{k: a.asnumpy() for k, a in step.trainer.state_arrays(step.trainer.names).items()} for step in steps]
        near(*states, what=what)
        same_everywhere({**weights(one), **states[0]}, what)
    assert not left


# -- options


def check_precisions() -> None:
    """Each rank rounds its own sum to 16 bits, in the mixed ones; the sums over ranks are of float32."""
    for precision, tolerance in (("32", 1e-6), ("64", 1e-14), ("bf16-mixed", 1e-2), ("16-mixed", 2e-3)):

        def make(precision: str = precision) -> Any:
            net = dense()
            if precision == "64":
                net.cast("float64")
            return net

        def loss(out: Any, label: Any) -> Any:
            return LOSS(out, label)

        kind = np.float64 if precision == "64" else np.float32
        (net, step), (other, alone) = both(make=make, loss=loss, precision="32" if precision == "64" else precision)
        x = [nd.array(each, dtype=kind) for each in (own(X[0]), X[0])]
        y = [nd.array(each, dtype=kind) for each in (own(Y[0]), Y[0])]
        grads = [
            {name: g.asnumpy().astype(np.float64) for name, g in s.grads(a, b).items()}
            for s, a, b in zip((step, alone), x, y, strict=True)
        ]
        near(*grads, tolerance=tolerance, what=f"{precision} gradient of")
        for _ in range(3):
            step(x[0], y[0]), alone(x[1], y[1])
        near(weights(net), weights(other), tolerance=tolerance, what=precision)
        same_everywhere(weights(net), precision)


def large(out: Any, label: Any, factor: Any) -> Any:
    """A loss whose gradient can be made to overflow: `factor` is per sample."""
    return LOSS(out, label) * factor


def check_overflow() -> None:
    """An overflow on one rank leaves the batch out on all, and halves the scale on all."""
    net = dense()
    trainer = trained(net, "adam")
    step = mx.compile(lambda x, y, f: large(net(x), y, f), None, trainer, precision="16-mixed")
    ones = np.ones(len(own(Y[0])), np.float32)
    step(own(X[0]), own(Y[0]), ones)
    for rank in range(world().size):
        before, scale = state_of(net, trainer), step.loss_scale.loss_scale
        factor = ones * 1e30 if world().rank == rank else ones
        step(own(X[1]), own(Y[1]), factor)
        assert step.skipped == rank + 1 and step.loss_scale.loss_scale == scale / 2
        assert state_of(net, trainer) == before
    step(own(X[1]), own(Y[1]), ones)
    assert state_of(net, trainer) != before and trainer.optimizer.num_update == 2
    same_everywhere(weights(net))
    step.accumulate(own(X[0]), own(Y[0]), ones)
    step.accumulate(own(X[1]), own(Y[1]), ones * 1e30 if world().rank == 0 else ones)
    assert step.accumulator.samples == SAMPLES
    step.apply()
    same_everywhere(weights(net))


def state_of(net: Any, trainer: gluon.Trainer) -> str:
    """A digest of all that a step changes but the scale of the loss."""
    from rank_checks import hash_of

    arrays: dict[str, Array] = {}
    for name, state in trainer.states.items():
        for key, array in state.items() if isinstance(state, dict) else [("", state)]:
            arrays[f"{name}/{key}"] = array.asnumpy()
    progress = np.frombuffer(repr(trainer.optimizer.progress()).encode(), np.uint8)
    drawn = np.frombuffer(repr(mx.random.get_state()).encode(), np.uint8)
    return hash_of({**weights(net), **arrays, "progress": progress, "drawn": drawn})


def check_accumulation() -> None:
    """Two batches and one update are one step on both; batches of other sizes, and another number of them, too."""
    (net, step), (other, alone) = both("sgd", {"learning_rate": 0.1, "momentum": 0.9})
    for first in (0, 2):
        for i in (first, first + 1):
            step.accumulate(own(X[i]), own(Y[i]))
            alone.accumulate(X[i], Y[i])
        step.apply(), alone.apply()
        near(weights(net), weights(other))
    same_everywhere(weights(net))
    c = world()
    x, y = X[3], Y[3]
    cuts = [0, *(4 * rank - 1 for rank in range(1, c.size)), SAMPLES]
    mine = slice(cuts[c.rank], cuts[c.rank + 1])
    step.accumulate(x[mine], y[mine])
    alone.accumulate(x, y)
    if c.rank == c.size - 1:
        step.accumulate(X[4][:3], Y[4][:3])
    alone.accumulate(X[4][:3], Y[4][:3])
    step.apply(), alone.apply()
    near(weights(net), weights(other))
    same_everywhere(weights(net))


def check_accumulation_after_an_error() -> None:
    """A rank whose batch was refused goes on without it: the update counts the samples of the others."""
    (net, step), (other, alone) = both()
    c = world()
    share = SAMPLES // c.size
    step.accumulate(own(X[0]), own(Y[0])), alone.accumulate(X[0], Y[0])
    if c.rank == 0:
        with pytest.raises(IndexRangeError):
            step.accumulate(own(X[1]), np.full(share, CLASSES, np.float32))
    else:
        step.accumulate(own(X[1]), own(Y[1]))
    alone.accumulate(X[1][share:], Y[1][share:])
    step.apply(), alone.apply()
    near(weights(net), weights(other))


def check_clipping_and_averages() -> None:
    (net, step), (other, alone) = both("adam", {"learning_rate": 0.01}, clip_norm=0.01, ema=0.5)
    for x, y in zip(X, Y, strict=True):
        step(own(x), own(y)), alone(x, y)
        assert abs(step.grad_norm - alone.grad_norm) <= 1e-6 * alone.grad_norm
    near(weights(net), weights(other), 1e-5)
    with step.averaged(), alone.averaged():
        near(weights(net), weights(other), 1e-5)
        same_everywhere(weights(net))
    same_everywhere(weights(net))


def check_kept_gradients() -> None:
    """grad() holds this rank's own gradient where the store updates, else the sum; the norm is that of the sum."""
    for on_store in (True, False):
        (net, step), (other, alone) = both(keep_grads=True, grad_norm=True, update_on_kvstore=on_store)
        mine = mx.compile(other, LOSS, trained(other, kvstore=None)).grads(own(X[0]), own(Y[0]))
        step(own(X[0]), own(Y[0])), alone(X[0], Y[0])
        kept = {name: p.grad().asnumpy() for name, p in net.collect_params().items()}
        whole = {name: p.grad().asnumpy() for name, p in other.collect_params().items()}
        near(kept, {k: g.asnumpy() for k, g in mine.items()} if on_store else whole)
        assert abs(step.grad_norm - alone.grad_norm) <= 1e-6 * alone.grad_norm


def check_anomalies() -> None:
    """A NaN on one rank: every rank raises, and nothing changes anywhere."""
    net = dense()
    trainer = trained(net, "adam")
    step = mx.compile(lambda x, y, f: large(net(x), y, f), None, trainer, detect_anomaly=True)
    ones = np.ones(len(own(Y[0])), np.float32)
    step(own(X[0]), own(Y[0]), ones)
    before = state_of(net, trainer)
    for call in (step, step.accumulate, step.grads):
        with pytest.raises(NotFiniteError) as raised:
            call(own(X[1]), own(Y[1]), ones * np.nan if world().rank == 1 else ones)
        assert ("on this rank, there is none" in str(raised.value)) == (world().rank != 1)
        assert state_of(net, trainer) == before and not step.accumulator.batches
    step(own(X[1]), own(Y[1]), ones)
    same_everywhere(weights(net))
    assert trainer.optimizer.num_update == 2


def check_norms_that_are_not_finite() -> None:
    """The norm is that of the sums over ranks, so that all refuse the step."""
    net = dense()
    trainer = trained(net, "adam")
    step = mx.compile(lambda x, y, f: large(net(x), y, f), None, trainer, error_if_nonfinite=True, clip_norm=1.0)
    ones = np.ones(len(own(Y[0])), np.float32)
    step(own(X[0]), own(Y[0]), ones)
    before = state_of(net, trainer)
    with pytest.raises(NotFiniteError):
        step(own(X[1]), own(Y[1]), ones * np.nan if world().rank == 1 else ones)
    assert state_of(net, trainer) == before
    step(own(X[1]), own(Y[1]), ones)
    same_everywhere(weights(net))


def check_update_on_kvstore() -> None:
    for on_store in (True, False, None):
        (net, step), (other, alone) = both("adam", {"learning_rate": 0.01}, update_on_kvstore=on_store)
        for x, y in zip(X[:2], Y[:2], strict=True):
            step(own(x), own(y)), alone(x, y)
        near(weights(net), weights(other), 1e-5)
        same_everywhere(weights(net))


# -- layers


def check_contexts() -> None:
    """Two contexts on each rank are twice as many ranks."""
    for on_store in (True, False):
        net, other = dense(ctx=[mx.cpu(0), mx.cpu(1)]), dense()
        step = compiled(net, trained(net, settings={"learning_rate": 0.1, "momentum": 0.9}, update_on_kvstore=on_store))
        alone = compiled(other, trained(other, settings={"learning_rate": 0.1, "momentum": 0.9}, kvstore=None))
        for x, y in zip(X[:3], Y[:3], strict=True):
            step(own(x), own(y)), alone(x, y)
        near(weights(net), weights(other))
        second = {name: p.data(mx.cpu(1)).asnumpy() for name, p in net.collect_params().items()}
        same_everywhere({**weights(net), **second})
        near(second, weights(other))


def sparse(ctx: Any = None) -> Any:
    net = nn.HybridSequential(prefix="e_")
    with net.name_scope():
        net.add(nn.Embedding(30, 4, sparse_grad=True), nn.Dense(CLASSES, in_units=8))
    return filled(net, ctx)


def check_sparse_gradients() -> None:
    """Each rank touches other rows; those of all are updated, on all, and no others."""
    tokens = np.random.RandomState(6).randint(0, 28, (3, SAMPLES, 2)).astype(np.float32)
    tokens[:, 0] = 29
    plain, adam = ("sgd", {"learning_rate": 0.1}), ("adam", {"learning_rate": 0.01, "wd": 0.1})
    two = [mx.cpu(0), mx.cpu(1)]
    for (name, settings), on_store, contexts, options in (
        (plain, None, None, {}),
        (plain, True, None, {"clip_norm": 0.1}),
        (adam, None, two, {}),
        (adam, True, two, {}),
        (adam, True, None, {"precision": "16-mixed"}),
    ):
        net, other = sparse(contexts), sparse()
        step = compiled(net, trained(net, name, settings, update_on_kvstore=on_store), **options)
        alone = compiled(other, trained(other, name, settings, kvstore=None), **options)
        for x, y in zip(tokens, Y, strict=False):
            step(own(x), own(y)), alone(x, y)
        what = f"{name} {on_store} {contexts} {options}"
        tolerance = 1e-3 if "precision" in options else 1e-6 if name == "sgd" else 1e-5
        near(weights(net), weights(other), tolerance, what)
        same_everywhere(weights(net), what)
        untouched = np.setdiff1d(np.arange(30), tokens)
        before, after = (n[0].weight.data(mx.cpu(0)).asnumpy() for n in (sparse(), net))
        assert len(untouched) and (before[untouched] == after[untouched]).all(), what


def check_local_calls() -> None:
    """evaluate and predict are one rank's own: another one need not call them."""
    (net, step), (other, alone) = both()
    step(own(X[0]), own(Y[0])), alone(X[0], Y[0])
    if world().rank == 0:
        np.testing.assert_allclose(step.evaluate(X[1], Y[1]).asnumpy(), alone.evaluate(X[1], Y[1]).asnumpy(), rtol=1e-5)
        np.testing.assert_allclose(step.predict(X[1]).asnumpy(), alone.predict(X[1]).asnumpy(), rtol=1e-4, atol=1e-6)
    step(own(X[1]), own(Y[1])), alone(X[1], Y[1])
    near(weights(net), weights(other))


def normalized() -> Any:
    net = nn.HybridSequential(prefix="b_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dense(CLASSES, in_units=8))
    return filled(net)


def check_local_statistics() -> None:
    """BatchNorm normalizes a rank's own batch: the sum of gradients is that of the ranks' gradients."""
    net, other = normalized(), normalized()
    step = compiled(net, trained(net))
    alone = compiled(other, trained(other, kvstore=None))
    found = {name: g.asnumpy() for name, g in step.grads(own(X[0]), own(Y[0])).items()}
    parts = {name: g.asnumpy() for name, g in alone.grads(own(X[0]), own(Y[0])).items()}
    for g in parts.values():
        world().allreduce(g)
    near(found, parts)
    step(own(X[0]), own(Y[0]))
    same_everywhere({k: v for k, v in weights(net).items() if "running" not in k})


def synchronized() -> Any:
    """Over samples, and over samples and pixels; one without scale."""
    net = nn.HybridSequential(prefix="y_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6), SyncBatchNorm(in_channels=8), nn.Activation("tanh"))
        net.add(nn.HybridLambda(lambda F, x: x.reshape((-1, 2, 2, 2))), SyncBatchNorm(in_channels=2, scale=False))
        net.add(nn.Flatten(), nn.Dense(CLASSES, in_units=8))
    return filled(net)


def check_synchronized_statistics() -> None:
    """With SyncBatchNorm N ranks of B are one of N*B: losses, gradients, weights, running statistics."""
    together, alone = synchronized(), normal_twin()
    step = compiled(together, trained(together, settings={"learning_rate": 0.1, "momentum": 0.9}))
    one = compiled(alone, trained(alone, settings={"learning_rate": 0.1, "momentum": 0.9}, kvstore=None))
    found = {name: g.asnumpy() for name, g in step.grads(own(X[0]), own(Y[0])).items()}
    whole = {name: g.asnumpy() for name, g in one.grads(X[0], Y[0]).items()}
    largest = max(float(np.abs(g).max()) for g in whole.values())
    for name, g in whole.items():  # those of biases before a BatchNorm are 0 but for rounding
        assert np.abs(found[name] - g).max() <= 1e-5 * largest, name
    for x, y in zip(X, Y, strict=True):
        np.testing.assert_allclose(step(own(x), own(y)).asnumpy(), own(one(x, y).asnumpy()), rtol=1e-4, atol=1e-5)
    near(weights(together), weights(alone), 1e-5)
    same_everywhere(weights(together))
    if world().rank == 0:  # one rank alone may evaluate
        a, b = step.evaluate(X[0], Y[0]).asnumpy(), one.evaluate(X[0], Y[0]).asnumpy()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    with refused(1, IndexRangeError, f"label {CLASSES}"):
        step(own(X[0]), np.full(len(own(Y[0])), CLASSES if world().rank == 1 else 0, np.float32))
    step(own(X[0]), own(Y[0])), one(X[0], Y[0])
    near(weights(together), weights(alone), 1e-5)


def normal_twin() -> Any:
    """The same net with BatchNorm."""
    net = synchronized()
    for layer in net:
        if isinstance(layer, SyncBatchNorm):
            layer._num_devices = 1
    return net


def check_synchronized_statistics_in_16_bits() -> None:
    for precision, tolerance in (("bf16-mixed", 2e-2), ("16-mixed", 5e-3)):
        together, alone = synchronized(), normal_twin()
        step = compiled(together, trained(together), precision=precision)
        one = compiled(alone, trained(alone, kvstore=None), precision=precision)
        for x, y in zip(X[:3], Y[:3], strict=True):
            step(own(x), own(y)), one(x, y)
        near(weights(together), weights(alone), tolerance, precision)
        same_everywhere(weights(together), precision)


def dropped() -> Any:
    net = nn.HybridSequential(prefix="d_")
    with net.name_scope():
        net.add(nn.Dense(64, in_units=6), nn.Dropout(0.5), nn.Dense(CLASSES, in_units=64))
    return filled(net)


def check_random_numbers() -> None:
    """Ranks drop different elements; the noise of an update is the same on all."""
    net = dropped()
    step = mx.compile(lambda x: net(x), None, trained(net))
    mx.random.seed(1)
    same = np.ones((4, 6), np.float32)
    drawn = step(same, batch_size=1).asnumpy()
    assert len(set(world().exchange(drawn.tobytes().hex()))) == world().size
    mx.random.seed(1)
    assert (step.evaluate(same).asnumpy() == step.evaluate(same).asnumpy()).all()
    other = dense()
    noisy = compiled(other, trained(other, "sgld", {"learning_rate": 0.1}))
    for x, y in zip(X[:2], Y[:2], strict=True):
        noisy(own(x), own(y))
    same_everywhere(weights(other), "noise")
    before = mx.random.get_state()
    noisy(own(X[2]), own(Y[2]))
    assert mx.random.get_state() == before  # the noise is not drawn by the device's own generator


def check_bits_of_repetitions() -> None:
    """The same number of ranks gives the same bits."""
    found = []
    for _ in range(2):
        net = dropped()
        step = compiled(net, trained(net, "adam"))
        mx.random.seed(7)
        losses = [step(own(x), own(y)).asnumpy() for x, y in zip(X, Y, strict=True)]
        found.append({**weights(net), "losses": np.stack(losses)})
    for a, b in zip(*(each.values() for each in found), strict=True):
        assert (a == b).all()


# -- what changes between steps


def check_learning_rates() -> None:
    """set_learning_rate, schedulers, multipliers."""
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.2)
    (net, step), (other, alone) = both("sgd", {"lr_scheduler": schedule})
    for x, y in zip(X, Y, strict=True):
        step(own(x), own(y)), alone(x, y)
    near(weights(net), weights(other))
    (second, step2), (third, alone2) = both("sgd", {"learning_rate": 0.1})
    for s in (step2, alone2):
        s.trainer.params[0].lr_mult = 0.5
        s.trainer.set_learning_rate(0.3)
    step2(own(X[0]), own(Y[0])), alone2(X[0], Y[0])
    near(weights(second), weights(third))


@optimizer.register
class Halving(optimizer.Optimizer):
    """An optimizer written for MXNet, without a formula."""

    def create_state(self, index: Any, weight: Any) -> Any:
        return nd.zeros(weight.shape)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._update_count(index)
        state[:] = state * 0.5 + grad * self.rescale_grad
        weight[:] = weight - self._get_lr(index) * state


def check_optimizers_in_python() -> None:
    for on_store in (True, False):
        (net, step), (other, alone) = both("halving", update_on_kvstore=on_store)
        for x, y in zip(X[:3], Y[:3], strict=True):
            step(own(x), own(y)), alone(x, y)
        near(weights(net), weights(other))
        step.accumulate(own(X[3]), own(Y[3])), alone.accumulate(X[3], Y[3])
        step.apply(), alone.apply()
        near(weights(net), weights(other))
        same_everywhere(weights(net))
        refuse_and_go_on(step, alone, net, other)


def check_hybridized() -> None:
    (net, step), (other, alone) = both()
    net.hybridize(), other.hybridize()
    step(own(X[0]), own(Y[0])), alone(X[0], Y[0])
    near(weights(net), weights(other))


# -- disagreement


def refuse_and_go_on(step: Any, alone: Any, net: Any, other: Any) -> None:
    """A bad label on one rank: IndexRangeError there, Disagreement elsewhere, no change, and the next batch works."""
    before = state_of(net, step.trainer)
    last = world().size - 1
    bad = np.full(len(own(Y[0])), CLASSES if world().rank == last else 0, np.float32)
    with refused(last, IndexRangeError, f"label {CLASSES}"):
        step(own(X[0]), bad)
    assert state_of(net, step.trainer) == before
    step(own(X[4]), own(Y[4])), alone(X[4], Y[4])
    near(weights(net), weights(other))


def check_a_bad_label() -> None:
    for options in ({}, {"precision": "16-mixed"}, {"detect_anomaly": True}, {"clip_norm": 1.0}):
        (net, step), (other, alone) = both(**options)
        step(own(X[0]), own(Y[0])), alone(X[0], Y[0])
        if "precision" in options:
            continue_after_a_bad_label(step, net)
        else:
            refuse_and_go_on(step, alone, net, other)


def continue_after_a_bad_label(step: Any, net: Any) -> None:
    with refused(0, IndexRangeError, f"label {CLASSES}"):
        step(own(X[0]), np.full(len(own(Y[0])), CLASSES if world().rank == 0 else 0, np.float32))
    step(own(X[4]), own(Y[4]))
    same_everywhere(weights(net))


def check_several_steps_by_one_call() -> None:
    """Stacked batches are trained on one by one; so is what comes before one that a rank refuses."""
    net, other = dense(), dense()
    step, several = compiled(net, trained(net)), compiled(other, trained(other), steps_per_call=3)
    xs, ys = (np.stack([own(each) for each in batch[:3]]) for batch in (X, Y))
    mx.random.seed(1)
    expected = np.stack([step(x, y).asnumpy() for x, y in zip(xs, ys, strict=True)])
    after = state_of(net, step.trainer)
    mx.random.seed(1)
    assert (several(xs, ys).asnumpy() == expected).all()
    assert state_of(other, several.trainer) == after
    step(xs[0], ys[0])
    after = state_of(net, step.trainer)
    if world().rank == 0:
        ys[1] = CLASSES
    with refused(0, IndexRangeError, f"batch .1. of 3 in this call: .*label {CLASSES}"):
        several(xs, ys)
    assert state_of(other, several.trainer) == after


def check_a_bad_label_in_grads() -> None:
    (_, step), (_, alone) = both()
    with refused(1, IndexRangeError, f"label {CLASSES}"):
        step.grads(own(X[0]), np.full(len(own(Y[0])), CLASSES if world().rank == 1 else 0, np.float32))
    found = {name: g.asnumpy() for name, g in step.grads(own(X[1]), own(Y[1])).items()}
    near(found, {name: g.asnumpy() for name, g in alone.grads(X[1], Y[1]).items()})


def check_other_programs() -> None:
    """Other shapes, nets, optimizers, calls, scalars: all ranks say where they differ, and can go on."""
    rank, last = world().rank, world().size - 1
    odd = rank == last
    (net, step), (other, alone) = both("sgd", {"learning_rate": 0.1})
    step(own(X[0]), own(Y[0])), alone(X[0], Y[0])
    before = state_of(net, step.trainer)
    share = len(own(X[0])) - odd
    with pytest.raises(Disagreement, match=f"rank {last} runs another program than rank 0: data0: f32"):
        step(own(X[1])[:share], own(Y[1])[:share])
    with pytest.raises(Disagreement, match=f"rank {last} runs another program"):
        (step.grads if odd else step)(own(X[1]), own(Y[1]))
    second = mx.compile(lambda x, y: LOSS(net(x) * 2, y), None, step.trainer)
    with pytest.raises(Disagreement, match=f"rank {last} runs another program"):
        (second if odd else step)(own(X[1]), own(Y[1]))
    bounded = mx.compile(net, LOSS, step.trainer, clip_norm=1.0)
    with pytest.raises(Disagreement, match=f"clip_norm: None on rank 0, a number on rank {last}"):
        (bounded if odd else step)(own(X[1]), own(Y[1]))
    with pytest.raises(Disagreement, match=r"rescale: 0\.0625 on rank 0, 0\.0588.* on rank"):
        step(own(X[1]), own(Y[1]), batch_size=SAMPLES + odd)
    assert state_of(net, step.trainer) == before
    step.trainer.set_learning_rate(0.2 if odd else 0.1)
    with pytest.raises(Disagreement, match=f"lr: 0.1 on rank 0, 0.2 on rank {last}"):
        step(own(X[1]), own(Y[1]))
    step.trainer.set_learning_rate(0.1)
    assert state_of(net, step.trainer) == before
    with refused(last, mx.base.MXNetError, "no elements"):
        step(own(X[1])[: 0 if odd else None], own(Y[1]))
    assert state_of(net, step.trainer) == before
    step(own(X[1]), own(Y[1])), alone(X[1], Y[1])
    near(weights(net), weights(other))


def check_random_draws_after_a_disagreement() -> None:
    """Nothing has been drawn by a step that did not take place."""
    net = dropped()
    step = mx.compile(lambda x: net(x), None, trained(net))
    step(own(X[0]), batch_size=1)
    before = state_of(net, step.trainer)
    with pytest.raises(Disagreement):
        step(own(X[0])[world().rank :], batch_size=1)
    assert state_of(net, step.trainer) == before


def check_other_parameters() -> None:
    """Trainers of other parameters: shapes, names, how many, optimizers, strategies."""
    last = world().size - 1
    odd = world().rank == last

    def made(units: int = 4, prefix: str = "m_", more: bool = False, name: str = "sgd", **how: Any) -> None:
        net = nn.HybridSequential(prefix=prefix)
        with net.name_scope():
            net.add(nn.Dense(units, in_units=6), *([nn.Dense(2, in_units=units)] if more else []))
        net.initialize()
        trained(net, name, {}, **how).prepare()

    for how, match in (
        ({"units": 5}, r"m_dense0_bias: f32\[4\].*on rank 0.*f32\[5\].*on rank"),
        ({"prefix": "other_"}, "m_dense0_bias.* on rank 0, .*other_dense0_bias.* on rank"),
        ({"more": True}, "nothing on rank 0, .*m_dense1_bias"),
        ({"name": "adam"}, "optimizer SGD on rank 0, optimizer Adam on rank"),
        ({"strategy": "zero1"}, "strategy allreduce on rank 0, strategy zero1 on rank"),
    ):
        with pytest.raises(Disagreement, match=match):
            made(**(how if odd else {}))
    made()


def check_interpreted() -> None:
    """Graphs that are run node by node communicate and compare as compiled ones do."""
    with debug.override(backend="reference"):
        check_gradients()
        check_a_bad_label_in_grads()
        (net, step), (other, alone) = both("adam", {"learning_rate": 0.01}, clip_norm=0.1)
        step(own(X[0]), own(Y[0])), alone(X[0], Y[0])
        refuse_and_go_on(step, alone, net, other)


def check_first_weights() -> None:
    """They are those of rank 0, whatever the others have drawn."""
    mx.random.seed(world().rank)
    net = nn.Dense(3, in_units=4, prefix="f_")
    net.initialize()
    trained(net).prepare()
    same_everywhere(weights(net))


@contextmanager
def messages_only() -> Iterator[None]:
    """Within: no new program gets memory that ranks share."""
    os.environ[shared_memory.SWITCH] = "0"
    try:
        yield
    finally:
        del os.environ[shared_memory.SWITCH]


def check_shared_memory() -> None:
    """Gradients are added in memory that ranks share, if nobody has switched that off; two ranks have the same bits."""
    calls: list[int] = []
    allreduce = SharedArray.allreduce

    def counted(self: SharedArray, written: int | None = None) -> None:
        calls.append(self.own.size)
        allreduce(self, written)

    SharedArray.allreduce = counted  # type: ignore[method-assign]
    try:
        found = []
        for where in (nullcontext(), messages_only()):
            net = dense()
            step = compiled(net, trained(net, "adam", {"learning_rate": 0.01}), LOSS)
            with where:
                for x, y in zip(X, Y, strict=True):
                    step(own(x), own(y))
            found.append(weights(net))
            assert bucket_size(world()) or len(calls) == len(X), calls  # buckets that overlap are sent as messages
    finally:
        SharedArray.allreduce = allreduce  # type: ignore[method-assign]
    near(*found)
    if world().size == 2:
        for name, value in found[0].items():
            np.testing.assert_array_equal(value, found[1][name], name)
    same_everywhere(found[0])


CHECKS: list[Check] = [
    check_shared_memory,
    check_gradients,
    check_sgd,
    check_convolutions,
    check_optimizers,
    check_precisions,
    check_overflow,
    check_accumulation,
    check_accumulation_after_an_error,
    check_clipping_and_averages,
    check_kept_gradients,
    check_anomalies,
    check_norms_that_are_not_finite,
    check_update_on_kvstore,
    check_contexts,
    check_sparse_gradients,
    check_local_calls,
    check_local_statistics,
    check_synchronized_statistics,
    check_synchronized_statistics_in_16_bits,
    check_random_numbers,
    check_bits_of_repetitions,
    check_learning_rates,
    check_optimizers_in_python,
    check_hybridized,
    check_a_bad_label,
    check_several_steps_by_one_call,
    check_a_bad_label_in_grads,
    check_other_programs,
    check_random_draws_after_a_disagreement,
    check_other_parameters,
    check_interpreted,
    check_first_weights,
]


# On more ranks what depends on their number; the rest is the same code with another number in it.
CHECKS_OF_4: list[Check] = [
    check_shared_memory,
    check_gradients,
    check_sgd,
    check_optimizers,
    check_overflow,
    check_accumulation,
    check_accumulation_after_an_error,
    check_anomalies,
    check_contexts,
    check_sparse_gradients,
    check_synchronized_statistics,
    check_random_numbers,
    check_bits_of_repetitions,
    check_a_bad_label,
    check_other_programs,
    check_other_parameters,
    check_first_weights,
]


def on_each_rank() -> None:
    run_checks(CHECKS if world().size == 2 else CHECKS_OF_4)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_2_ranks(check: Check) -> None:
    assert_passed(2, on_each_rank, check)


@pytest.mark.parametrize("check", CHECKS_OF_4, ids=lambda check: check.__name__)
def test_on_4_ranks(check: Check) -> None:
    assert_passed(4, on_each_rank, check)


@pytest.mark.parametrize("number", [2, 4])
def test_jobs_end(number: int) -> None:
    assert_clean(number, on_each_rank)


def uneven() -> None:
    """Rank 1 has a batch more than rank 0."""
    net = dense()
    step = compiled(net, trained(net))
    for x, y in zip(X[: 2 + world().rank], Y, strict=False):
        step(own(x), own(y))


def test_an_uneven_number_of_batches_ends_with_an_error() -> None:
    found = try_ranks(2, uneven, timeout=60)
    assert found.code != 0 and not found.timed_out and not found.orphans, str(found)
    message = found.errors[0] + found.errors[1]
    assert "rank 0" in message and "rank 1 waits in allreduce" in message, str(found)
