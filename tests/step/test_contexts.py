"""mx.compile with parameters on several contexts: one artefact, the same numbers as eager mode, shares and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.gluon import nn
from gluongraph.gluon.utils import split_and_load

TWO = [mx.cpu(0), mx.cpu(1)]
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
RNG = np.random.RandomState(0)
X, Y = RNG.rand(3, 12, 6).astype(np.float32), RNG.randint(0, 3, (3, 12)).astype(np.int32)


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Within: graphs by their meaning; what is compared is not code, and takes no compilation."""
    with debug.override(backend="reference"):
        yield


def made(ctx: Any = TWO, optimizer: Any = "sgd", settings: Any = None, **how: Any) -> tuple[Any, gluon.Trainer]:
    """A net with running statistics and dropout, and its trainer; the same at every call."""
    mx.random.seed(5)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dropout(0.3), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    given = ({"learning_rate": 0.1} if settings is None else settings,) if isinstance(optimizer, str) else ()
    return net, gluon.Trainer(net.collect_params(), optimizer, *given, **how)


def shared(number: int) -> tuple[list[nd.NDArray], list[nd.NDArray]]:
    """A batch as Gluon's scripts hand it out."""
    return split_and_load(X[number], TWO), split_and_load(nd.array(Y[number], dtype="int32"), TWO)


def eager_step(net: Any, trainer: gluon.Trainer, number: int) -> np.ndarray:
    mx.random.seed(number)
    with autograd.record():
        losses = [LOSS(net(a), b) for a, b in zip(*shared(number), strict=True)]
    autograd.backward(losses)
    trainer.step(len(X[number]))
    return np.concatenate([loss.asnumpy() for loss in losses])


def compiled_step(step: Any, number: int) -> np.ndarray:
    """The same batch, with the same random numbers."""
    mx.random.seed(number)
    return step(X[number], Y[number]).asnumpy()


def arrays(net: Any) -> list[list[np.ndarray]]:
    """Of each parameter, what is on each context."""
    return [[array.asnumpy() for array in p.list_data()] for p in net.collect_params().values()]


def agree(one: Any, other: Any, atol: float = 1e-5) -> None:
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


@pytest.mark.parametrize("on_store", [True, False])
def test_compiled_training_is_eager_training(on_store: bool) -> None:
    """Losses, weights and each context's running statistics; dropout's masks are those of the context."""
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    net, trainer = made(settings=settings, update_on_kvstore=on_store)
    other, second = made(settings=settings, update_on_kvstore=on_store)
    step = mx.compile(other, LOSS, second)
    for i in range(3):
        np.testing.assert_allclose(compiled_step(step, i), eager_step(net, trainer, i), rtol=1e-4, atol=1e-5)
    agree(net, other)
    for p in other.collect_params().values():
        first, last = (array.asnumpy() for array in p.list_data())
        assert (first == last).all() == ("running" not in p.name)
    assert len(step._specializations.all) == 1 and step.artefact.path is not None
    names = {n.op.name for n in step.graph.nodes()}
    assert "allreduce" in names and set(step.graph.updates) >= {"net_dense0_weight", "net_dense0_weight@cpu(1)"}
    assert set(second.arenas) >= {("weight", "f32"), ("weight@cpu(1)", "f32"), ("mom", "f32")}
    assert (("mom@cpu(1)", "f32") in second.arenas) == (not on_store)


def test_gradients_of_all_contexts_meet_within_few_kernels() -> None:
    """The sum, the update and the copy for the other context are part of the kernel of the last gradient."""
    mx.random.seed(5)
    net = nn.Dense(8, in_units=6, use_bias=False)
    net.initialize(ctx=TWO)
    step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "adam"))
    step(X[0], np.zeros((12, 8), np.float32))
    writers = [launch for launch in step.plan.launches if any(w.space == "state" for w in launch.writes)]
    assert len(writers) == 1 and {w.name.partition("_")[2] for w in writers[0].writes} == {
        *("weight", "weight@cpu(1)", "weight/mean", "weight/var"),
    }


def test_two_contexts_are_one(interpreted: None) -> None:
    """Half a batch on each of two, and the whole on one: equal up to rounding, where layers look at single samples."""

    def trained(ctx: Any) -> Any:
        mx.random.seed(5)
        net = nn.Dense(3, in_units=6)
        net.initialize(ctx=ctx)
        step = mx.compile(net, LOSS, gluon.Trainer(net.collect_params(), "adam"))
        losses = [step(x, y).asnumpy() for x, y in zip(X, Y, strict=True)]
        return losses, net.weight.data(mx.cpu(0)).asnumpy()

    for one, two in zip(trained(TWO[:1]), trained(TWO), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_lists_and_whole_arrays(interpreted: None) -> None:
    net, trainer = made()
    other, second = made()
    step, lists = mx.compile(net, LOSS, trainer), mx.compile(other, LOSS, second)
    whole = compiled_step(step, 0)
    mx.random.seed(0)
    parts = lists(*shared(0))
    assert [p.context for p in parts] == TWO and [p.shape for p in parts] == [(6,), (6,)]
    np.testing.assert_array_equal(np.concatenate([p.asnumpy() for p in parts]), whole)
    agree(net, other, atol=0)
    mx.random.seed(1)
    mixed = step(shared(1)[0], Y[1])  # what is whole is split
    np.testing.assert_array_equal(np.concatenate([p.asnumpy() for p in mixed]), compiled_step(lists, 1))


def test_shares_of_different_size(interpreted: None) -> None:
    net, trainer = made()
    x, y = X[0][:11], Y[0][:11]
    with pytest.raises(ValueError, match="11 samples do not divide into 2 equal parts"):
        mx.compile(net, LOSS, trainer)(x, y)
    assert trainer.optimizer.num_update == 0
    parts = mx.compile(net, LOSS, trainer)(
        split_and_load(x, TWO, even_split=False), split_and_load(nd.array(y, dtype="int32"), TWO, even_split=False)
    )
    assert [p.shape for p in parts] == [(6,), (5,)] and trainer.optimizer.rescale_grad == 1 / 11


def test_one_context_takes_lists_of_one(interpreted: None) -> None:
    for ctx in (mx.cpu(0), mx.cpu(1)):
        net, trainer = made(ctx=[ctx])
        step = mx.compile(net, LOSS, trainer)
        (loss,) = step(split_and_load(X[0], [ctx]), split_and_load(nd.array(Y[0], dtype="int32"), [ctx]))
        assert loss.shape == (12,) and loss.context == ctx and step(X[0], Y[0]).shape == (12,)


def test_scalars_and_metrics(interpreted: None) -> None:
    """Arrays are joined along the first axis, of scalars there is one per context, other things are given back."""
    net, trainer = made()

    def program(x: nd.NDArray, y: nd.NDArray) -> Any:
        out = net(x)
        return LOSS(out, y).mean().reshape(()), {"out": out, "largest": [out.max().reshape(())], "name": "net"}

    step = mx.compile(program, trainer=trainer)
    loss, metrics = step(X[0], Y[0])
    assert loss.shape == (2,) and metrics["out"].shape == (12, 3) and metrics["name"] == "net"
    assert metrics["largest"][0].shape == (2,) and trainer.optimizer.rescale_grad == 0.5
    results = step(*shared(0))
    assert [(r[0].shape, r[1]["out"].shape, r[1]["largest"][0].shape) for r in results] == [((), (6, 3), ())] * 2


def test_predicting(interpreted: None) -> None:
    """Whole arrays go to the first context, lists where they are."""
    net, trainer = made()
    net[1].running_mean.data(mx.cpu(1))[:] = 0.5
    step = mx.compile(net, LOSS, trainer)
    whole = step.predict(X[0][:5])
    np.testing.assert_allclose(whole.asnumpy(), net(nd.array(X[0][:5])).asnumpy(), atol=1e-6)
    parts = step.predict(shared(0)[0])
    for part, x in zip(parts, shared(0)[0], strict=True):
        np.testing.assert_allclose(part.asnumpy(), net(x).asnumpy(), atol=1e-6)
    (last,) = step.predict([nd.array(X[0], ctx=mx.cpu(1))])
    assert last.context == mx.cpu(1) and step.evaluate(X[0][:5], Y[0][:5]).shape == (5,)
    alone = mx.compile(net).predict([nd.array(X[0], ctx=mx.cpu(1))])
    np.testing.assert_array_equal(alone[0].asnumpy(), last.asnumpy())


def test_gradients(interpreted: None) -> None:
    """`grads` gives the sums; with keep_grads every context has what eager mode leaves there."""
    for on_store in (True, False):
        net, trainer = made(update_on_kvstore=on_store)
        other, second = made(update_on_kvstore=on_store)
        mx.random.seed(0)
        found = mx.compile(net, LOSS, trainer).grads(X[0], Y[0])
        assert set(found) == {p.name for p in net.collect_params().values() if p.grad_req != "null"}
        net, trainer = made(update_on_kvstore=on_store)
        compiled_step(mx.compile(net, LOSS, trainer, keep_grads=True), 0)
        eager_step(other, second, 0)
        for p, q in zip(net.collect_params().values(), other.collect_params().values(), strict=True):
            if p.grad_req == "null":
                continue
            own = [g.asnumpy() for g in p.list_grad()]
            np.testing.assert_allclose(own, [g.asnumpy() for g in q.list_grad()], atol=1e-5)
            np.testing.assert_allclose(sum(own) if on_store else own[0], found[p.name].asnumpy(), atol=1e-5)


@pytest.mark.parametrize("on_store", [True, False])
def test_gradients_that_are_added_up(on_store: bool, interpreted: None) -> None:
    """grad_req "add": the update is by all gradients since zero_grad, eager and compiled."""
    net, trainer = made(update_on_kvstore=on_store)
    other, second = made(update_on_kvstore=on_store)
    for each in (net, other):
        each.collect_params().setattr("grad_req", "add")
    step = mx.compile(other, LOSS, second)
    for number in (0, 1, 2):
        if number == 2:
            net.collect_params().zero_grad()
            other.collect_params().zero_grad()
        eager_step(net, trainer, number)
        compiled_step(step, number)
    agree(net, other)
    for p, q in zip(net.collect_params().values(), other.collect_params().values(), strict=True):
        if p.grad_req != "null":
            np.testing.assert_allclose(
                [g.asnumpy() for g in p.list_grad()], [g.asnumpy() for g in q.list_grad()], atol=1e-5
            )


@pytest.mark.parametrize("on_store", [True, False])
def test_compression_is_exact_to_the_bit(on_store: bool) -> None:
    """Of gradients without rounding: what eager mode sends and keeps back, the compiled step sends and keeps back."""
    rng = np.random.default_rng(0)
    batches = rng.integers(-9, 10, (5, 2, 7)).astype(np.float32) / 16

    def trained(compiled: bool) -> Any:
        p = gluon.Parameter("w", shape=(7,))
        p.initialize(mx.init.Zero(), ctx=TWO)
        params = {"type": "2bit", "threshold": 0.5}
        how = {"compression_params": params, "update_on_kvstore": on_store}
        trainer = gluon.Trainer([p], "sgd", {"learning_rate": 0.25}, **how)
        step = mx.compile(lambda x: (p.data(x.context) * x).sum(axis=1), trainer=trainer)
        for batch in batches:
            if compiled:
                step(batch, batch_size=1)
                continue
            with autograd.record():
                losses = [(p.data(c) * b).sum() for c, b in zip(TWO, split_and_load(batch, TWO), strict=True)]
            autograd.backward(losses)
            trainer.step(1)
        kept = trainer.residual_arrays(["w"]).values()
        return [a.asnumpy() for a in (*p.list_data(), *kept)]

    eager = trained(compiled=False)
    assert np.abs(eager[0]).max() > 0 and np.abs(eager[2]).max() > 0
    np.testing.assert_array_equal(trained(compiled=True), eager)


class Halving(mx.optimizer.Optimizer):
    """Written for MXNet: no formula."""

    def create_state(self, index: Any, weight: nd.NDArray) -> Any:
        return None

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        self._update_count(index)
        weight[:] = weight - 0.05 * self.rescale_grad * grad


class Averaging(gluon.Trainer):
    """With a sum of its own."""

    def _allreduce_grads(self) -> None:
        for p in self._params:
            if p.grad_req != "null":
                mean = sum(g.as_in_context(mx.cpu(0)) for g in p.list_grad()) / 2
                for g in p.list_grad():
                    g[:] = mean


PYTHON: list[Callable[..., gluon.Trainer]] = [
    lambda params: gluon.Trainer(params, Halving()),
    lambda params: gluon.Trainer(params, Halving(), update_on_kvstore=False),
    lambda params: gluon.Trainer(params, "sgd", {"momentum": 0.9}, kvstore="teststore"),
    lambda params: Averaging(params, "sgd", {"momentum": 0.9}, kvstore=None),
]


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_what_python_does_comes_after_a_compiled_backward(number: int, interpreted: None) -> None:
    nets = [made()[0], made()[0]]
    trainers = [PYTHON[number](net.collect_params()) for net in nets]
    step = mx.compile(nets[1], LOSS, trainers[1])
    for i in range(3):
        np.testing.assert_allclose(compiled_step(step, i), eager_step(nets[0], trainers[0], i), atol=1e-5)
    agree(*nets)
    assert trainers[1].optimizer.counts() == trainers[0].optimizer.counts()
    assert len(step._specializations.all) == 1


def test_mixing_eager_and_compiled_steps(interpreted: None) -> None:
    for on_store in (True, False):
        settings = {"learning_rate": 0.1, "momentum": 0.9}
        net, trainer = made(settings=settings, update_on_kvstore=on_store)
        other, second = made(settings=settings, update_on_kvstore=on_store)
        step = mx.compile(other, LOSS, second)
        for i in range(3):
            eager_step(net, trainer, i)
            eager_step(other, second, i) if i == 1 else compiled_step(step, i)
        agree(net, other)


def test_other_contexts_are_another_variant(interpreted: None) -> None:
    net, trainer = made(ctx=TWO[:1])
    step = mx.compile(net, LOSS, trainer)
    step(X[0], Y[0])
    net.collect_params().reset_ctx(TWO)
    assert step(X[0], Y[0]).shape == (12,) and "allreduce" in {n.op.name for n in step.graph.nodes()}
    assert len(net[0].weight.list_data()) == 2 and trainer.optimizer.num_update == 2


def wrong_batches() -> list[tuple[Any, str]]:
    x, y = shared(0)
    return [
        ((x[::-1], y), r"an argument lies on \[cpu\(1\), cpu\(0\)\], and the step needs \[cpu\(0\), cpu\(1\)\]"),
        ((x[:1], y[:1]), r"lies on \[cpu\(0\)\], and the step needs"),
        ((split_and_load(X[0], [mx.cpu(0)] * 2), y), r"lies on \[cpu\(0\), cpu\(0\)\]"),
    ]


@pytest.mark.parametrize("number", range(3))
def test_batches_that_do_not_fit(number: int, interpreted: None) -> None:
    net, trainer = made()
    before = arrays(net)
    batch, message = wrong_batches()[number]
    with pytest.raises(ValueError, match=message):
        mx.compile(net, LOSS, trainer)(*batch)
    assert all(
        (a == b).all() for one, two in zip(before, arrays(net), strict=True) for a, b in zip(one, two, strict=True)
    )
    assert trainer.optimizer.num_update == 0
