"""Gradients by rows: what they hold, and that only touched rows of weights and states are updated in any mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, cpu, debug, gluon, kvstore, nd
from gluongraph.gluon import Parameter, Trainer, nn
from gluongraph.gluon.utils import split_and_load
from gluongraph.nd.row_sparse_array import RowSparseNDArray

ROWS = 12
TWO = [cpu(0), cpu(1)]
BATCHES = np.array([[3, 7, 3, 0], [7, 7, 11, 1], [3, 3, 3, 3]], np.float32)


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Within: graphs by their meaning; no code is compiled."""
    with debug.override(backend="reference"):
        yield


def marked(shape: tuple[int, ...] = (5, 2), grad_req: str = "write") -> nd.NDArray:
    w = nd.ones(shape)
    w.attach_grad(grad_req, stype="row_sparse")
    return w


def look_up(w: nd.NDArray, *indices: int, factor: float = 1.0) -> nd.NDArray:
    return nd.Embedding(nd.array(indices), w, input_dim=w.shape[0], output_dim=w.shape[1]) * factor


def grad_of(w: nd.NDArray) -> RowSparseNDArray:
    assert isinstance(w.grad, RowSparseNDArray)
    return w.grad


def test_the_gradient() -> None:
    w = marked()
    with autograd.record():
        loss = look_up(w, 3, 1, 3).sum()
    loss.backward()
    g = grad_of(w)
    assert g.stype == "row_sparse" and g.indices.asnumpy().tolist() == [1, 3]
    assert g.data.asnumpy().tolist() == [[1, 1], [2, 2]] and g.asnumpy()[:, 0].tolist() == [0, 1, 0, 2, 0]
    assert g.tostype("row_sparse") is g and type(g.tostype("default")) is nd.NDArray
    with autograd.record():
        loss = (look_up(w, 0) + look_up(w, 4)).sum()
    loss.backward()
    assert g.indices.asnumpy().tolist() == [0, 4] and g.asnumpy()[:, 0].tolist() == [1, 0, 0, 0, 1]
    w.zero_grad()
    assert not g.indices.size and not g.asnumpy().any()


def test_gradients_that_are_added_up() -> None:
    w = marked(grad_req="add")
    for _ in range(2):
        with autograd.record():
            loss = look_up(w, 1, 1).sum()
        loss.backward()
    assert grad_of(w).indices.asnumpy().tolist() == [1] and grad_of(w).data.asnumpy().tolist() == [[4, 4]]


def test_writes_of_another_kind_are_seen() -> None:
    w = marked()
    g = grad_of(w)
    g[2] = 5.0
    assert g.indices.asnumpy().tolist() == [2]
    g *= 0.0
    assert not g.indices.size


def test_a_weight_that_is_used_in_another_way_too() -> None:
    w = marked()
    with autograd.record():
        loss = look_up(w, 1).sum() + (w[:2] * 2.0).sum()
    loss.backward()
    assert grad_of(w).asnumpy()[:, 0].tolist() == [2, 3, 0, 0, 0] and grad_of(w).rows.tolist() == [0, 1]


def test_arrays_with_a_dense_gradient_get_the_same() -> None:
    one, other = marked(), nd.ones((5, 2))
    other.attach_grad()
    for w in (one, other):
        with autograd.record():
            loss = (look_up(w * 2.0, 3, 1, 3) + look_up(w, 1, 1, 0)).sum()
        loss.backward()
    np.testing.assert_array_equal(grad_of(one).asnumpy(), other.grad.asnumpy())
    with autograd.record():
        (found,) = autograd.grad(look_up(one, 4), [one])
    assert type(found) is nd.NDArray and found.asnumpy()[:, 0].tolist() == [0, 0, 0, 0, 1]


def test_hybridized_blocks_give_rows() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(ROWS, 3, sparse_grad=True), nn.Dense(2, in_units=6))
    net.initialize()
    plain: list[Any] = []
    for hybrid in (False, True):
        net.hybridize(hybrid)
        with autograd.record():
            loss = net(nd.array([[3, 7], [3, 0]])).sum()
        loss.backward()
        g = net[0].weight.grad()
        assert isinstance(g, RowSparseNDArray) and g.rows.tolist() == [0, 3, 7]
        plain.append(g.asnumpy())
    np.testing.assert_allclose(*plain, rtol=1e-5)


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"wd": 0.1, "momentum": 0.9}),
    ("adam", {"wd": 0.1, "clip_gradient": 0.5}),
    ("adagrad", {}),
    ("groupadagrad", {}),
]


def made(sparse: bool, name: str, settings: dict[str, Any], ctx: Any = None, **how: Any) -> tuple[Any, Trainer]:
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Embedding(ROWS, 3, sparse_grad=sparse), nn.Dense(2, in_units=12, use_bias=False))
    net.initialize(mx.init.Normal(0.5), ctx=ctx)
    return net, Trainer(net.collect_params(), name, {"learning_rate": 0.1, **settings}, **how)


def eager_step(net: Any, trainer: Trainer, batch: np.ndarray, ctx: Any = None) -> None:
    with autograd.record():
        losses = [(net(x) ** 2).sum() for x in split_and_load(batch, ctx or [cpu(0)])]
    autograd.backward(losses)
    trainer.step(2)


def everything(net: Any, trainer: Trainer) -> dict[str, np.ndarray]:
    """Weights and states by name."""
    found = {p.name: p.data(p.list_ctx()[0]).asnumpy() for p in net.collect_params().values()}
    return found | {name: a.asnumpy() for name, a in trainer.state_arrays(found).items()}


@pytest.mark.parametrize("name,settings", OPTIMIZERS)
@pytest.mark.parametrize("compiled", [False, True])
def test_only_touched_rows_are_updated(name: str, settings: dict[str, Any], compiled: bool, interpreted: None) -> None:
    """In the first step touched rows move as in a full update; the others, and their states, stay in all steps."""
    net, trainer = made(True, name, settings)
    other, full = made(False, name, settings)
    step = mx.compile(lambda x: (net(x) ** 2).sum(), trainer=trainer)
    never = sorted(set(range(ROWS)) - set(BATCHES.astype(int).ravel()))
    start = everything(net, trainer)
    for number, batch in enumerate(BATCHES):
        before = everything(net, trainer)
        step(batch.reshape(1, 4), batch_size=2) if compiled else eager_step(net, trainer, batch.reshape(1, 4))
        after = everything(net, trainer)
        untouched = sorted(set(range(ROWS)) - set(batch.astype(int)))
        for key in after:
            if key.startswith("net_embedding"):
                np.testing.assert_array_equal(after[key][untouched], before[key][untouched])
                assert (after[key] != before[key]).any()
        if number == 0:
            eager_step(other, full, batch.reshape(1, 4))
            rows = np.unique(batch.astype(int))
            for key, value in everything(other, full).items():
                where = rows if key.startswith("net_embedding") else slice(None)
                np.testing.assert_allclose(after[key][where], value[where], rtol=1e-4, atol=1e-6)
    for key, value in everything(net, trainer).items():
        if key.startswith("net_embedding"):
            np.testing.assert_array_equal(value[never], start[key][never])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", [{}, {"update_on_kvstore": True}])
def test_several_contexts(compiled: bool, how: dict[str, Any], interpreted: None) -> None:
    """The rows that any context touches, by the sum of their gradients, in all replicas."""
    settings = {"momentum": 0.9}
    net, trainer = made(True, "sgd", settings, TWO, **how)
    one, alone = made(True, "sgd", settings)
    step = mx.compile(lambda x: (net(x) ** 2).sum(), trainer=trainer)
    for batch in (BATCHES[:2], BATCHES[1:]):
        step(batch, batch_size=2) if compiled else eager_step(net, trainer, batch, TWO)
        eager_step(one, alone, batch)
    assert trainer._update_on_kvstore is bool(how)  # by itself a store leaves such updates to the contexts, as MXNet's
    for p, q in zip(net.collect_params().values(), one.collect_params().values(), strict=True):
        first, last = (array.asnumpy() for array in p.list_data())
        np.testing.assert_array_equal(first, last)
        np.testing.assert_allclose(first, q.data().asnumpy(), rtol=1e-5, atol=1e-6)


def test_compiled_code_does_the_same() -> None:
    net, trainer = made(True, "adam", {})
    other, second = made(True, "adam", {})
    step = mx.compile(lambda x: (net(x) ** 2).sum(), trainer=trainer)
    for batch in BATCHES[:2]:
        step(batch.reshape(1, 4), batch_size=2)
        eager_step(other, second, batch.reshape(1, 4))
    for key, value in everything(other, second).items():
        np.testing.assert_allclose(everything(net, trainer)[key], value, rtol=1e-4, atol=1e-6)
    assert "put_rows" in {n.op.name for n in step.graph.nodes()}


def test_full_updates_where_laziness_is_not_wanted(interpreted: None) -> None:
    """lazy_update=False, and optimizers that do not look at rows: momentum goes on in all rows."""
    for name, settings in (("sgd", {"momentum": 0.9, "lazy_update": False}), ("nag", {"momentum": 0.9})):
        nets = [made(sparse, name, settings) for sparse in (True, False)]
        for batch in BATCHES:
            for net, trainer in nets:
                eager_step(net, trainer, batch.reshape(1, 4))
        states = [everything(*each) for each in nets]
        for key in states[0]:
            np.testing.assert_allclose(states[0][key], states[1][key], rtol=1e-6)


def test_gradients_added_up_in_compiled_steps(interpreted: None) -> None:
    net, trainer = made(True, "sgd", {"momentum": 0.9})
    other, second = made(True, "sgd", {"momentum": 0.9})
    step = mx.compile(lambda x: (net(x) ** 2).sum(), trainer=trainer)
    for each in (net, other):
        each.collect_params().setattr("grad_req", "add")
    for batch in BATCHES:
        step(batch.reshape(1, 4), batch_size=2)
        eager_step(other, second, batch.reshape(1, 4))
        assert net[0].weight.grad().rows.tolist() == other[0].weight.grad().rows.tolist()
    for key, value in everything(other, second).items():
        np.testing.assert_allclose(everything(net, trainer)[key], value, rtol=1e-4, atol=1e-6)


def test_master_weights() -> None:
    p = Parameter("w", shape=(4, 2), dtype="float16", grad_stype="row_sparse")
    p.initialize(mx.init.One())
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0, "multi_precision": True, "momentum": 0.5})
    for _ in range(2):
        with autograd.record():
            loss = look_up(p.data(), 1, 1, factor=0.25).sum()
        loss.backward()
        trainer.step(1)
    assert p.data().asnumpy()[:, 0].tolist() == [1, -0.25, 1, 1]


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: Parameter("w", shape=(2, 2), grad_stype="csr"), RuntimeError, "grad_stype='csr' does not exist here"),
    (lambda: Parameter("w", shape=(2, 2), stype="csr"), RuntimeError, "stype='csr' does not exist here"),
    (lambda: nd.ones((2, 2)).attach_grad(stype="csr"), RuntimeError, "gradient of storage 'csr'"),
    (lambda: marked().grad.tostype("csr"), RuntimeError, "there are 'default' and 'row_sparse'"),
    (lambda: prepared(kvstore="teststore"), ValueError, "the gradient of w is kept by rows"),
    (lambda: prepared(kvstore=kvstore.TestStore()), ValueError, "the gradient of w is kept by rows"),
    (lambda: prepared(compression_params={"type": "2bit"}), RuntimeError, "gradient compression of w"),
]


def prepared(**how: Any) -> None:
    p = Parameter("w", shape=(2, 2), grad_stype="row_sparse")
    p.initialize(ctx=TWO)
    gluon.Trainer([p], "sgd", **how).prepare()


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
