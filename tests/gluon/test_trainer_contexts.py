"""Trainers of parameters on several contexts: what is summed, who updates, which store is used, who may interfere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, debug, gluon, init, kvstore, nd, optimizer, random
from gluongraph.gluon import Parameter, Trainer, nn
from gluongraph.gluon.utils import split_and_load

TWO = [cpu(0), cpu(1)]
SGD = {"learning_rate": 1.0}


def parameter(name: str = "w", value: float = 10.0, ctx: Any = TWO, **kwargs: Any) -> Parameter:
    p = Parameter(name, shape=(2,), **kwargs)
    p.initialize(init.Constant(value), ctx=ctx)
    return p


def backward(*params: Parameter, factors: tuple[float, ...] = (1.0, 2.0)) -> None:
    """Gradients 1 on the first context, 2 on the second; contexts without a factor have no part in it."""
    with autograd.record():
        losses = [
            sum((p.data(c) * f).sum() for p in params) for c, f in zip(params[0].list_ctx(), factors, strict=False)
        ]
    autograd.backward(losses)


def values(p: Parameter) -> list[float]:
    return [float(array.asnumpy()[0]) for array in p.list_data()]


def grads(p: Parameter) -> list[float]:
    return [float(array.asnumpy()[0]) for array in p.list_grad()]


# contexts, kvstore, update_on_kvstore, MXNET_UPDATE_ON_KVSTORE -> name of the store, who updates
CHOICES: list[tuple[Any, Any, bool | None, str, str | None, bool]] = [
    ([cpu(0)], "device", None, "1", None, False),
    ([cpu(0)], "any name", None, "1", None, False),
    ([cpu(0)], "device", True, "1", None, False),  # one place where it can happen
    ([cpu(0)], None, True, "1", None, False),
    (TWO, "device", None, "1", "device", True),
    (TWO, "local", None, "1", "local", True),
    (TWO, "any name", None, "1", "any name", True),
    (TWO, "device", False, "1", "device", False),
    (TWO, "device", None, "0", "device", False),
    (TWO, "device", True, "0", "device", True),
    (TWO, "teststore", None, "1", "teststore", False),
    (TWO, None, None, "1", None, False),
    ([cpu(0)], kvstore.KVStore("device"), None, "1", "device", True),
    ([cpu(0)], kvstore.KVStore("device"), False, "1", "device", False),
    ([cpu(0)], kvstore.TestStore(), None, "1", "teststore", False),
]


@pytest.mark.parametrize("ctx,name,wanted,environment,store,updates", CHOICES)
def test_which_store_and_who_updates(
    ctx: Any, name: Any, wanted: Any, environment: str, store: Any, updates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", environment)
    p = parameter(ctx=ctx)
    trainer = Trainer([p], "sgd", SGD, kvstore=name, update_on_kvstore=wanted)
    assert trainer._kvstore is None  # nothing is made before it is needed
    backward(p)
    trainer.step(1)
    assert (trainer._kvstore and trainer._kvstore.type) == store and trainer._update_on_kvstore is updates
    if len(ctx) == 1:
        assert values(p) == [9]
    else:
        assert values(p) == ([7, 7] if store else [9, 8])  # without a store nothing is summed
        assert grads(p) == ([1, 2] if updates or not store else [3, 3])


def test_a_large_parameter_in_a_local_store_is_updated_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gluongraph.gluon.store_choice.LARGE", 1)
    for name, updates in (("local", False), ("device", True)):
        p = parameter()
        trainer = Trainer([p], "sgd", kvstore=name)
        trainer.prepare()
        assert trainer._update_on_kvstore is updates


@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize("name,hybrid", [("sgd", False), ("adam", False), ("adam", True)])
def test_two_contexts_are_one(on_store: bool, name: str, hybrid: bool) -> None:
    """Both halves of a batch on two contexts, and the whole on one: the same weights up to rounding."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 12, 5)).astype(np.float32), rng.normal(size=(4, 12, 1)).astype(np.float32)
    loss = gluon.loss.L2Loss()

    def trained(ctx: list[Any]) -> Any:
        random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Dense(8, activation="tanh", in_units=5), nn.Dense(1, in_units=8))
        net.initialize(init.Xavier(), ctx=ctx)
        net.hybridize(hybrid)
        trainer = Trainer(net.collect_params(), name, {"learning_rate": 0.1}, update_on_kvstore=on_store)
        for xs, ys in zip(x, y, strict=True):
            with autograd.record():
                losses = [
                    loss(net(a), b) for a, b in zip(split_and_load(xs, ctx), split_and_load(ys, ctx), strict=True)
                ]
            autograd.backward(losses)
            trainer.step(12)
        return [[array.asnumpy() for array in p.list_data()] for p in net.collect_params().values()]

    with debug.override(backend="reference" if hybrid else ""):  # what is compared is not code
        for (one,), (first, second) in zip(trained([cpu(0)]), trained(TWO), strict=True):
            np.testing.assert_array_equal(first, second)
            np.testing.assert_allclose(first, one, atol=2e-6)


def test_running_statistics_are_each_contexts_own() -> None:
    net = nn.BatchNorm(in_channels=1)
    net.initialize(ctx=TWO)
    trainer = Trainer(net.collect_params(), "sgd")
    for _ in range(2):
        with autograd.record():
            losses = [net(nd.ones((2, 1), ctx=c) * (i + 1)).sum() for i, c in enumerate(TWO)]
        autograd.backward(losses)
        trainer.step(4)
    means = [float(m.asscalar()) for m in net.running_mean.list_data()]
    assert means == pytest.approx([0.19, 0.38])
    assert net.running_mean.averaged() == pytest.approx(0.285)  # what is saved


def test_sum_clip_update() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", SGD, update_on_kvstore=False)
    backward(p)
    trainer.allreduce_grads()
    assert grads(p) == [3, 3] and values(p) == [10, 10]
    for c in TWO:
        gluon.utils.clip_global_norm([p.grad(c)], 2**0.5)
    trainer.update(1)
    assert values(p) == pytest.approx([9, 9])


def test_an_update_without_a_sum_lets_contexts_part() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", {**SGD, "momentum": 0.5}, update_on_kvstore=False)
    for expected in ([9, 8], [7.5, 5]):
        backward(p)
        trainer.update(1)
        assert values(p) == expected
    assert trainer.optimizer.counts() == {0: 2}


@pytest.mark.parametrize("call", [lambda t: t.allreduce_grads(), lambda t: t.update(1)])
def test_a_store_that_updates_does_it_in_step_alone(call: Any) -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", SGD)
    backward(p)
    with pytest.raises(AssertionError, match=r"sums and updates in one go[\s\S]*update_on_kvstore=False"):
        call(trainer)
    assert values(p) == [10, 10] and grads(p) == [1, 2]


@pytest.mark.parametrize("on_store", [True, False])
def test_stale_gradients_of_one_context(on_store: bool) -> None:
    a, b = parameter("a"), parameter("b")
    trainer = Trainer([a, b], "sgd", {**SGD, "momentum": 0.5}, update_on_kvstore=on_store)
    backward(a, b, factors=(1.0,))
    with pytest.raises(UserWarning, match=r"gradient of a@cpu\(1\), b@cpu\(1\) has not"):
        trainer.step(1)
    assert values(a) == values(b) == [10, 10] and grads(a) == [1, 0] and trainer.optimizer.num_update == 0
    trainer.step(1, ignore_stale_grad=True)
    assert values(a) == ([9, 9] if on_store else [9, 10])  # the fresh gradient is for all, or for its own context
    with pytest.raises(UserWarning):
        trainer.step(1)  # the flag has been taken down


def test_a_context_without_samples_takes_no_part_in_the_sum() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", SGD)
    for factors, expected in (((1.0, 2.0), 7), ((1.0,), 6), ((1.0, 2.0), 3)):
        backward(p, factors=factors)
        trainer.step(1, ignore_stale_grad=True)
        assert values(p) == [expected, expected]


def test_gradients_that_are_added_up() -> None:
    p = parameter(grad_req="add")
    trainer = Trainer([p], "sgd", SGD)
    backward(p)
    backward(p)
    trainer.step(2)
    assert values(p) == [7, 7] and grads(p) == [2, 4]
    p.zero_grad()
    backward(p)
    trainer.step(2)
    assert values(p) == [5.5, 5.5]


def test_set_data_reaches_all_contexts_and_keeps_momentum() -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", {**SGD, "momentum": 0.5})
    backward(p)
    trainer.step(1)
    p.set_data(nd.zeros((2,)))
    assert values(p) == [0, 0]
    backward(p)
    trainer.step(1)
    assert values(p) == [-4.5, -4.5]


def test_contexts_may_change_before_and_between_steps() -> None:
    p = parameter(ctx=[cpu(0)])
    trainer = Trainer([p], "sgd", {**SGD, "momentum": 0.5})
    p.reset_ctx(TWO)
    backward(p)
    trainer.step(1)
    assert values(p) == [7, 7] and trainer.contexts == TWO
    p.reset_ctx(cpu(1))
    backward(p, factors=(3.0,))
    trainer.step(1)
    assert values(p) == [2.5] and p.list_ctx() == [cpu(1)]


@pytest.mark.parametrize("on_store", [True, False])
def test_compression_to_the_bit(on_store: bool) -> None:
    """Each context's gradient is quantized before the sum; what is not sent waits, also for a partial step."""
    rng = np.random.default_rng(0)
    limit = np.float32(0.5)
    p = Parameter("w", shape=(9,))
    p.initialize(init.Zero(), ctx=TWO)
    params = {"type": "2bit", "threshold": 0.5}
    trainer = Trainer([p], "sgd", SGD, compression_params=params, update_on_kvstore=on_store)
    residuals, weight = np.zeros((2, 9), np.float32), np.zeros(9, np.float32)
    for _ in range(6):
        given = rng.normal(size=(2, 9), scale=0.4).astype(np.float32)
        with autograd.record():
            losses = [(p.data(c) * nd.array(g, ctx=c)).sum() for c, g in zip(TWO, given, strict=True)]
        autograd.backward(losses)
        trainer.step(1)
        residuals += given
        sent = np.where(residuals >= limit, limit, np.where(residuals <= -limit, -limit, np.float32(0)))
        residuals -= sent
        weight -= sent[0] + sent[1]
        np.testing.assert_array_equal([w.asnumpy() for w in p.list_data()], [weight, weight])
    kept = trainer.residual_arrays(["w"])
    np.testing.assert_array_equal([kept["residual:w"].asnumpy(), kept["residual:w@cpu(1)"].asnumpy()], residuals)


def test_compression_means_nothing_without_a_store() -> None:
    p = parameter(ctx=[cpu(0)])
    trainer = Trainer([p], "sgd", SGD, compression_params={"type": "bogus"})
    backward(p)
    trainer.step(1)
    assert values(p) == [9]


class Halving(optimizer.Optimizer):
    """Written for MXNet: no formula. w = w - g / 2, and the state counts the updates."""

    def create_state(self, index: Any, weight: nd.NDArray) -> Any:
        return nd.zeros(weight.shape, ctx=weight.context)

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        self._update_count(index)
        weight[:] = weight - grad * self.rescale_grad / 2
        state[:] = state + 1


@pytest.mark.parametrize("on_store", [True, False])
def test_optimizers_without_a_formula(on_store: bool) -> None:
    p = parameter()
    trainer = Trainer([p], Halving(), update_on_kvstore=on_store)
    for expected in (8.5, 7.0):
        backward(p)
        trainer.step(1)
        assert values(p) == [expected, expected]
    assert trainer.optimizer.counts() == {0: 2}
    assert [s.asnumpy()[0] for s in trainer.states.values()] == [2] * (1 if on_store else 2)


def test_a_sum_of_ones_own() -> None:
    """What distributed training libraries do: no store, and `_allreduce_grads` overridden."""

    class Averaging(Trainer):
        def _allreduce_grads(self) -> None:
            for p in self._params:
                mean = sum(g.as_in_context(cpu(0)) for g in p.list_grad()) / 2
                for g in p.list_grad():
                    g[:] = mean

    p = parameter()
    trainer = Averaging([p], "sgd", SGD, kvstore=None)
    trainer._scale *= 2
    backward(p)
    trainer.step(1)
    assert values(p) == [7, 7] and trainer.optimizer.rescale_grad == 2


class Updating(kvstore.TestStore):
    """A store of one's own that updates too, as KVStoreBase asks for it."""

    def __init__(self) -> None:
        self.values: dict[Any, nd.NDArray] = {}
        self.updater: Any = None

    @staticmethod
    def is_capable(capability: str) -> bool:
        return True

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        self.values[key] = value.copy()
        super().broadcast(key, value, out)

    def set_optimizer(self, given: Any) -> None:
        self.updater = optimizer.get_updater(given)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        total = sum(v.as_in_context(cpu(0)) for v in value)
        self.updater(key, total, self.values[key])
        super().broadcast(key, self.values[key], out)


def test_a_store_of_ones_own_that_updates() -> None:
    p = parameter()
    store = Updating()
    trainer = Trainer([p], "sgd", {**SGD, "momentum": 0.5}, kvstore=store)
    for expected in (7, 2.5):
        backward(p)
        trainer.step(1)
        assert values(p) == [expected, expected]
    assert grads(p) == [1, 2] and list(store.updater.states) == [0]
    with pytest.raises(UserWarning):
        trainer.step(1)


def test_two_trainers_of_one_net() -> None:
    a, b, c = parameter("a"), parameter("b"), parameter("c")
    first, second = Trainer([a, b], "sgd", SGD), Trainer([b, c], "sgd", {"learning_rate": 2.0})
    backward(a, b, c)
    first.step(1)
    backward(b, c)
    second.step(1)
    assert [values(p)[0] for p in (a, b, c)] == [7, 1, 4]


@pytest.mark.parametrize("call", ["step(1)", "allreduce_grads()", "update(1)", "save_states('f')", "load_states('f')"])
def test_before_shapes_are_known(call: str) -> None:
    net = nn.Dense(2)
    net.initialize(ctx=TWO)
    trainer = Trainer(net.collect_params(), "sgd")
    with pytest.raises(gluon.DeferredInitializationError, match=r"dense\d+_\w+' has no data yet"):
        eval(f"trainer.{call}")
    assert trainer._kvstore is None


ERRORS: list[tuple[Any, type[Exception], str]] = [
    ({"kvstore": "local", "compression_params": {"type": "2bit"}}, Exception, "'local' has no gradient compression"),
    ({"compression_params": {"type": "3bit"}}, RuntimeError, "the types are '2bit'"),
    ({"kvstore": "teststore", "update_on_kvstore": True}, ValueError, "'teststore' runs no optimizer"),
    ({"kvstore": None, "update_on_kvstore": True}, ValueError, "there is no kvstore"),
    ({"kvstore": "teststore", "compression_params": {"type": "2bit"}}, NotImplementedError, "no gradient compression"),
]


@pytest.mark.parametrize("arguments,error,message", ERRORS)
def test_errors(arguments: Any, error: type[Exception], message: str) -> None:
    p = parameter()
    trainer = Trainer([p], "sgd", SGD, **arguments)
    backward(p)
    for _ in range(2):  # and again
        with pytest.raises(error, match=message):
            trainer.step(1)
    assert values(p) == [10, 10] and grads(p) == [1, 2]
