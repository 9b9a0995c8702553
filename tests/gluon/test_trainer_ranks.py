"""The Trainer in eager mode on several ranks: N ranks with a batch of B train as one with N*B."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import pytest
from rank_checks import (
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
from gluongraph import amp, autograd, nd, optimizer
from gluongraph.gluon import nn
from gluongraph.gluon.contrib.nn import SyncBatchNorm
from gluongraph.gluon.utils import split_and_load
from gluongraph.kvstore.distributed import JOINED
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world

pytestmark = needs_mpi


def backward(net: Any, x: Array, y: Array, scaled_by: Any = None) -> Array:
    """The loss of a batch, whose gradients are left in the parameters."""
    contexts = next(iter(net.collect_params().values())).list_ctx()
    with autograd.record():
        pairs = zip(split_and_load(x, contexts), split_and_load(y, contexts), strict=True)
        losses = [LOSS(net(a), b) for a, b in pairs]
        if scaled_by is not None:
            losses = [loss * scaled_by for loss in losses]
    autograd.backward(losses)
    return np.concatenate([loss.asnumpy() for loss in losses])


def both(make: Any = dense, optimizer: Any = "sgd", settings: Any = None, **how: Any) -> Any:
    """Net and trainer of all ranks, and of this rank alone, with equal weights."""
    one, other = make(), make()
    return (one, trained(one, optimizer, settings, **how)), (other, trained(other, optimizer, settings, kvstore=None))


def train(one: Any, other: Any, batches: Any = X, labels: Any = Y) -> None:
    """The same batches for both: this rank's part of them, and the whole."""
    for x, y in zip(batches, labels, strict=False):
        losses = backward(one[0], own(x), own(y))
        one[1].step(SAMPLES)
        np.testing.assert_allclose(losses, own(backward(other[0], x, y)), rtol=1e-4, atol=1e-6)
        other[1].step(SAMPLES)


def wide() -> Any:
    """A net whose update is compiled."""
    net = nn.HybridSequential(prefix="w_")
    with net.name_scope():
        net.add(nn.Dense(9000, in_units=6, activation="tanh"), nn.Dense(3, in_units=9000))
    return filled(net)


def check_training() -> None:
    for make in (dense, wide):
        for on_store in (True, False):
            one, other = both(make, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, update_on_kvstore=on_store)
            train(one, other)
            near(weights(one[0]), weights(other[0]), 3e-6, f"{make.__name__} {on_store}")
            same_everywhere(weights(one[0]))
    assert one[1].optimizer.num_update == len(X)


def check_gradients() -> None:
    """allreduce_grads puts the sum over ranks into every gradient; update uses it as it is."""
    one, other = both(update_on_kvstore=False)
    backward(one[0], own(X[0]), own(Y[0])), backward(other[0], X[0], Y[0])
    one[1].allreduce_grads()
    found = {name: p.grad().asnumpy() for name, p in one[0].collect_params().items()}
    near(found, {name: p.grad().asnumpy() for name, p in other[0].collect_params().items()}, what="gradient of")
    same_everywhere(found)
    one[1].update(SAMPLES), other[1].step(SAMPLES)
    near(weights(one[0]), weights(other[0]))


def check_contexts() -> None:
    for on_store in (True, False):
        net, other = dense(ctx=[mx.cpu(0), mx.cpu(1)]), dense()
        one = net, trained(net, update_on_kvstore=on_store)
        train(one, (other, trained(other, kvstore=None)))
        near(weights(net), weights(other))
        same_everywhere({name: p.data(mx.cpu(1)).asnumpy() for name, p in net.collect_params().items()})


def embedded(ctx: Any = None) -> Any:
    net = nn.HybridSequential(prefix="e_")
    with net.name_scope():
        net.add(nn.Embedding(30, 4, sparse_grad=True), nn.Dense(3, in_units=8))
    return filled(net, ctx)


TOKENS = np.random.RandomState(6).randint(0, 28, (3, SAMPLES, 2)).astype(np.float32)


def check_sparse_gradients() -> None:
    """Each rank touches other rows, and another number of them."""
    for on_store in (None, True):
        for name, settings in (("sgd", {"learning_rate": 0.1}), ("adam", {"learning_rate": 0.01, "wd": 0.1})):
            for contexts in (None, [mx.cpu(0), mx.cpu(1)]):
                net, alone = embedded(contexts), embedded()
                one = net, trained(net, name, settings, update_on_kvstore=on_store)
                other = alone, trained(alone, name, settings, kvstore=None)
                train(one, other, TOKENS)
                what = f"{name} {on_store} {contexts}"
                near(weights(net), weights(alone), 1e-6 if name == "sgd" else 1e-5, what)
                same_everywhere(weights(net), what)
    untouched = np.setdiff1d(np.arange(30), TOKENS)
    before, after = (n.collect_params()["e_embedding0_weight"].data().asnumpy() for n in (embedded(), net))
    assert len(untouched) and (before[untouched] == after[untouched]).all()
    net = embedded()
    trainer = trained(net)
    rows = np.full((4, 2), world().rank, np.float32)  # then a rank without any
    for tokens in (rows, rows):
        backward(net, tokens, np.zeros(4, np.float32))
        if world().rank == 0:
            net[0].weight.grad()[:] = 0
        trainer.step(4)
        same_everywhere(weights(net))
    assert (before[0] == net[0].weight.data().asnumpy()[0]).all()


def check_overflow() -> None:
    """amp: an overflow on one rank leaves the update out on all, and halves the scale on all."""
    amp.init()
    for on_store in (True, False):
        net = dense()
        trainer = trained(net, "adam", update_on_kvstore=on_store)
        amp.init_trainer(trainer)
        trainer.scaler.scale.storage.write(256.0)
        for number, factor in enumerate((1.0, np.inf, 1.0)):
            with autograd.record():
                loss = LOSS(net(nd.array(own(X[number]))), nd.array(own(Y[number])))
                with amp.scale_loss(loss, trainer) as scaled:
                    odd = scaled * factor if world().rank == 1 else scaled
            before, scale = weights(net), trainer.scaler.loss_scale
            odd.backward()
            trainer.step(SAMPLES)
            changed = any((before[name] != after).any() for name, after in weights(net).items())
            assert changed == (factor == 1.0) and trainer.scaler.loss_scale == scale * (1.0 if changed else 0.5)
        same_everywhere(weights(net))
        assert trainer.optimizer.num_update == 2


@optimizer.register
class Thirds(optimizer.Optimizer):
    """An optimizer written for MXNet, without a formula."""

    def create_state(self, index: Any, weight: Any) -> Any:
        return nd.zeros(weight.shape)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._update_count(index)
        state[:] = state / 3 + grad * self.rescale_grad
        weight[:] = weight - self._get_lr(index) * state


def check_optimizers_in_python() -> None:
    for on_store in (True, False):
        one, other = both(dense, "thirds", update_on_kvstore=on_store)
        train(one, other)
        near(weights(one[0]), weights(other[0]))
        same_everywhere(weights(one[0]))


def check_random_numbers() -> None:
    """Noise of updates is the same on all ranks, what layers drop is not."""
    net = dense()
    trainer = trained(net, "sgld", {"learning_rate": 0.1})
    for x, y in zip(X[:2], Y[:2], strict=True):
        backward(net, own(x), own(y))
        trainer.step(SAMPLES)
    same_everywhere(weights(net))
    with autograd.record():
        kept = nn.Dropout(0.5)(nd.ones((64,))).asnumpy()
    assert len(set(world().exchange(kept.tobytes().hex()))) == world().size


def check_schedules() -> None:
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.2)
    one, other = both(dense, "sgd", {"lr_scheduler": schedule})
    train(one, other)
    one, other = both()
    for _, trainer in (one, other):
        trainer.set_learning_rate(0.3)
    train(one, other)
    near(weights(one[0]), weights(other[0]))


def check_deferred_shapes_and_hybrid_nets() -> None:
    """The first weights are those of rank 0, whatever the others have drawn."""
    mx.random.seed(world().rank)
    net = nn.HybridSequential(prefix="h_")
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu"), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = trained(net)
    for x, y in zip(X, Y, strict=True):
        backward(net, own(x), own(y))
        trainer.step(SAMPLES)
        same_everywhere(weights(net))


def synchronized(make: Any) -> Any:
    net = nn.HybridSequential(prefix="y_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6), make(in_channels=8), nn.Activation("tanh"), nn.Dense(3, in_units=8))
    return filled(net)


def check_synchronized_statistics() -> None:
    """SyncBatchNorm: N ranks of B are one of N*B, also with batches of different size, and hybridized."""
    for hybrid in (False, True):
        net, alone = synchronized(SyncBatchNorm), synchronized(nn.BatchNorm)
        one, other = (net, trained(net)), (alone, trained(alone, kvstore=None))
        if hybrid:
            net.hybridize()
        train(one, other)
        if not hybrid:
            c = world()
            cuts = [0, *(4 * rank - 1 for rank in range(1, c.size)), SAMPLES]
            mine = slice(cuts[c.rank], cuts[c.rank + 1])
            backward(net, X[0][mine], Y[0][mine]), backward(alone, X[0], Y[0])
            one[1].step(SAMPLES), other[1].step(SAMPLES)
        found = {name.replace("syncbatchnorm", "batchnorm"): array for name, array in weights(net).items()}
        near(found, weights(alone), 1e-5)
        same_everywhere(found)
        np.testing.assert_allclose(net(nd.array(X[0])).asnumpy(), alone(nd.array(X[0])).asnumpy(), atol=1e-5)


def check_synchronization_begins_with_the_store() -> None:
    """Before there is a trainer of all ranks a batch is the rank's own: a net that was traced then is traced anew."""
    JOINED.by_store = False
    net = synchronized(SyncBatchNorm)
    net.hybridize()
    x = nd.array(own(X[0]))
    with autograd.train_mode():
        before = net(x).asnumpy()
    trained(net)
    with autograd.train_mode():
        after = net(x).asnumpy()
    assert np.abs(before - after).max() > 1e-2


def check_eager_and_compiled() -> None:
    """Steps of both kinds, of one trainer, in turn."""
    one, other = both(dense, "adam", {"learning_rate": 0.01})
    step, alone = compiled(*one), compiled(*other)
    train(one, other, X[:2])
    step(own(X[2]), own(Y[2])), alone(X[2], Y[2])
    train(one, other, X[3:], Y[3:])
    near(weights(one[0]), weights(other[0]), 1e-5)
    same_everywhere(weights(one[0]))


def check_states() -> None:
    """Every rank may save, also into one file; all of them load."""
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    one, other = both(dense, "sgd", settings)
    train(one, other, X[:2])
    (folder,) = set(world().exchange(tempfile.mkdtemp() if world().rank == 0 else "")) - {""}
    one[1].save_states(f"{folder}/all.states")
    if world().rank == 0:
        one[1].save_states(f"{folder}/one.states")
    world().barrier()
    for name in ("all", "one"):
        net = dense()
        for p, q in zip(net.collect_params().values(), one[0].collect_params().values(), strict=True):
            p.set_data(q.data())
        trainer = trained(net, "sgd", settings)
        trainer.load_states(f"{folder}/{name}.states")
        backward(net, own(X[2]), own(Y[2]))
        trainer.step(SAMPLES)
        assert trainer.optimizer.num_update == 3
        same_everywhere(weights(net))
    train(one, other, X[2:3], Y[2:3])
    near(weights(net), weights(one[0]), 0.0)
    assert sorted(os.listdir(folder)) == ["all.states", "one.states"]


# -- disagreement


def check_stale_gradients() -> None:
    """A rank without a backward raises, the others a Disagreement; all can go on."""
    one, other = both()
    before = weights(one[0])
    for odd in range(world().size):
        backward(one[0], own(X[0]), own(Y[0]))
        if world().rank == odd:
            one[0][0].weight.data()._fresh_grad = False
        with refused(odd, UserWarning, "has not been updated by a backward"):
            one[1].step(SAMPLES)
        near(weights(one[0]), before, 0.0)
    train(one, other)
    near(weights(one[0]), weights(other[0]))
    first = one[0][0].weight.data()
    backward(one[0], own(X[0]), own(Y[0]))
    if world().rank == 1:
        first._fresh_grad = False
    with pytest.raises(Disagreement, match=r"fresh gradient of n_dense0_weight on rank 0, .* n_dense1_bias on rank 1"):
        one[1].step(SAMPLES, ignore_stale_grad=True)
    first._fresh_grad = True
    one[1].step(SAMPLES)
    same_everywhere(weights(one[0]))


def check_other_numbers_and_calls() -> None:
    odd = world().rank == world().size - 1
    one, other = both(update_on_kvstore=False)
    before = weights(one[0])
    backward(one[0], own(X[0]), own(Y[0]))
    with pytest.raises(Disagreement, match=r"rescale_grad: 0\.0625 on rank 0, 0\.03125 on rank"):
        one[1].step(2 * SAMPLES if odd else SAMPLES)
    one[1].set_learning_rate(0.5 if odd else 0.1)
    with pytest.raises(Disagreement, match=r"learning_rate: 0\.1 on rank 0, 0\.5 on rank"):
        one[1].step(SAMPLES)
    one[1].set_learning_rate(0.1)
    with pytest.raises(Disagreement, match=r"trainer\.step on rank 0, trainer\.allreduce_grads on rank"):
        one[1].allreduce_grads() if odd else one[1].step(SAMPLES)
    step = compiled(*one)
    with pytest.raises(Disagreement, match="on rank 0"):
        step(own(X[0]), own(Y[0])) if odd else one[1].step(SAMPLES)
    with refused(world().size - 1, ZeroDivisionError, "batch_size=0"):
        one[1].step(0 if odd else SAMPLES)
    near(weights(one[0]), before, 0.0)
    train(one, other)
    near(weights(one[0]), weights(other[0]))


CHECKS: list[Check] = [
    check_training,
    check_gradients,
    check_contexts,
    check_sparse_gradients,
    check_optimizers_in_python,
    check_random_numbers,
    check_schedules,
    check_deferred_shapes_and_hybrid_nets,
    check_synchronized_statistics,
    check_synchronization_begins_with_the_store,
    check_eager_and_compiled,
    check_states,
    check_stale_gradients,
    check_other_numbers_and_calls,
    check_overflow,  # last: products are of 16 bits from then on
]


def on_each_rank() -> None:
    run_checks(CHECKS)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_ranks(check: Check, number: int) -> None:
    assert_passed(number, on_each_rank, check)


@pytest.mark.parametrize("number", [2, 4])
def test_jobs_end(number: int) -> None:
    assert_clean(number, on_each_rank)


def uneven() -> None:
    """One rank has a batch more than the others."""
    net = dense()
    trainer = trained(net)
    for x, y in zip(X[: 2 + world().rank], Y, strict=False):
        backward(net, own(x), own(y))
        trainer.step(SAMPLES)


def test_an_uneven_number_of_batches_ends_with_an_error() -> None:
    found = try_ranks(2, uneven, timeout=40)
    assert found.code != 0 and not found.timed_out and not found.orphans, str(found)
    message = found.errors[0] + found.errors[1]
    assert "rank 0" in message and "rank 1 waits in allreduce" in message, str(found)
