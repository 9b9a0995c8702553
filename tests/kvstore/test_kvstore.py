"""Stores of one process: what push, pull and an optimizer do to values, compression to the bit, stores of one's own."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, gluon, init, kvstore, nd, optimizer
from gluongraph.kvstore import KVStore, KVStoreBase


def ones(*factors: float, size: int = 2) -> list[nd.NDArray]:
    """One array per device."""
    return [nd.ones((size,), ctx=cpu(i)) * f for i, f in enumerate(factors)]


def pulled(store: KVStore, key: Any, size: int = 2) -> list[float]:
    out = nd.zeros((size,), ctx=cpu(1))
    store.pull(key, out=out)
    assert out.context == cpu(1)
    return list(out.asnumpy().tolist())


def filled(name: str = "local", key: int | str = "w", value: float = 1.0) -> KVStore:
    store = KVStore(name)
    store.init(key, nd.ones((2,)) * value)
    return store


def test_a_push_replaces_by_the_sum() -> None:
    store = filled()
    store.push("w", ones(1, 2))
    assert pulled(store, "w") == [3, 3]
    store.push("w", ones(5)[0])
    assert pulled(store, "w") == [5, 5]


def test_what_is_stored_is_a_copy() -> None:
    value = nd.ones((2,))
    store = KVStore("local")
    store.init("w", value)
    store.push("w", value)
    value[:] = 9
    assert pulled(store, "w") == [1, 1]


def test_lists_of_keys_and_keys_named_twice() -> None:
    store = KVStore("local")
    store.init([3, 5], [nd.ones((2,)), nd.ones((3,))])
    store.push([3, 5, 3], [ones(1)[0], ones(1, 1, size=3), ones(4)[0]])
    assert pulled(store, 3) == [5, 5] and pulled(store, 5, 3) == [2, 2, 2]


def test_rows_of_what_is_stored() -> None:
    """A gradient by rows holds the named rows alone, a dense array keeps its others."""
    store = KVStore("local")
    store.init(["v", "w"], [nd.array([[1, 1], [2, 2], [3, 3]]), nd.array([4, 5])])
    weight = nd.zeros((3, 2))
    weight.attach_grad(stype="row_sparse")
    rows, dense = weight.grad, nd.ones((3, 2)) * 9
    assert isinstance(rows, nd.sparse.RowSparseNDArray)
    store.row_sparse_pull("v", out=[rows, dense], row_ids=nd.array([2, 0, 2]))
    assert rows.indices.asnumpy().tolist() == [0, 2] and rows.data.asnumpy()[:, 0].tolist() == [1, 3]
    assert dense.asnumpy()[:, 0].tolist() == [1, 9, 3]
    store.row_sparse_pull("v", out=[rows, dense], row_ids=[nd.array([1]), nd.array([1], dtype="int64")])
    assert rows.asnumpy()[:, 0].tolist() == [0, 2, 0] and dense.asnumpy()[:, 0].tolist() == [1, 2, 3]
    other = nd.zeros((2,))
    store.row_sparse_pull(["v", "w"], out=[rows, other], row_ids=nd.array([1]))
    assert rows.indices.asnumpy().tolist() == [1] and other.asnumpy().tolist() == [0, 5]
    store.row_sparse_pull(["w", "v"], out=[other, rows], row_ids=[nd.array([0]), nd.array([])])
    assert other.asnumpy().tolist() == [4, 5] and not rows.asnumpy().any()


def test_pushpull_and_broadcast() -> None:
    store = KVStore("local")
    outs = ones(0, 0)
    store.broadcast("w", nd.ones((2,)) * 7, out=outs)
    assert [o.asnumpy().tolist() for o in outs] == [[7, 7], [7, 7]]
    grads = ones(1, 2)
    store.pushpull("w", grads)
    assert [g.asnumpy().tolist() for g in grads] == [[3, 3], [3, 3]]
    store.pushpull("w", ones(1, 1), out=outs)
    assert [o.asnumpy().tolist() for o in outs] == [[2, 2], [2, 2]] and outs[1].context == cpu(1)


def test_an_optimizer_updates_what_is_stored(tmp_path: pathlib.Path) -> None:
    """Momentum 0.9, rate 0.1: the second step is 0.19 long; states come back from a file."""
    file = str(tmp_path / "states")
    store = filled(key=0)
    store.set_optimizer(optimizer.SGD(learning_rate=0.1, momentum=0.9))
    store.push(0, ones(0.5, 0.5))
    assert pulled(store, 0) == pytest.approx([0.9, 0.9])
    store.save_optimizer_states(file)
    store.push(0, ones(1))
    assert pulled(store, 0) == pytest.approx([0.71, 0.71])
    other = filled(key=0, value=0.9)
    other.set_optimizer(optimizer.SGD(learning_rate=0.1, momentum=0.9))
    other.load_optimizer_states(file)
    other.push(0, ones(1))
    assert pulled(other, 0) == pytest.approx([0.71, 0.71])


def test_the_optimizer_itself_is_at_work_and_no_copy() -> None:
    store = filled(key=0)
    sgd = optimizer.SGD(learning_rate=0.5)
    store.set_optimizer(sgd)
    sgd.lr = 0.25
    store.push(0, ones(1))
    assert pulled(store, 0) == [0.75, 0.75] and sgd.num_update == 1


def test_an_updater_of_ones_own() -> None:
    store = filled()
    seen = []

    def updater(key: int | str, total: nd.NDArray, stored: nd.NDArray) -> None:
        seen.append(key)
        stored[:] = stored + total * 2

    store.set_updater(updater)
    store.push("w", ones(1, 2))
    assert pulled(store, "w") == [7, 7] and seen == ["w"]


@pytest.mark.parametrize("threshold", [0.5, 0.3, 1.7])
def test_compression_is_exact_to_the_bit(threshold: float) -> None:
    """r += g; q = T, -T or 0; r -= q; each device by itself, in float32; the store holds the sum of the q."""
    rng = np.random.default_rng(0)
    store = filled("device", key=0, value=0.0)
    store = KVStore("device")
    store.init(0, nd.zeros((5, 7)))
    store.set_gradient_compression({"type": "2bit", "threshold": threshold})
    limit = np.float32(threshold)
    residuals = np.zeros((2, 5, 7), np.float32)
    out = nd.zeros((5, 7))
    for _ in range(20):
        grads = rng.normal(size=(2, 5, 7), scale=0.6).astype(np.float32)
        store.pushpull(0, [nd.array(g, ctx=cpu(i)) for i, g in enumerate(grads)], out=out)
        residuals += grads
        sent = np.where(residuals >= limit, limit, np.where(residuals <= -limit, -limit, np.float32(0)))
        residuals -= sent
        np.testing.assert_array_equal(out.asnumpy(), sent[0] + sent[1])
        kept = store.residuals(0, [out, out])
        np.testing.assert_array_equal([k.asnumpy() for k in kept], residuals)
    assert np.abs(residuals).max() > 0


def test_a_single_device_is_compressed_too() -> None:
    store = filled("device", value=0.0)
    store.set_gradient_compression({"type": "2bit"})  # after init, and with the threshold's default, 0.5
    sums = []
    for _ in range(3):
        store.push("w", ones(0.7))
        sums.append(pulled(store, "w")[0])
    assert sums == [0.5, 0.5, 0.5]


def test_names() -> None:
    store = kvstore.create("device")
    assert (store.type, store.rank, store.num_workers) == ("device", 0, 1)
    assert store.is_capable("optimizer") and isinstance(store, KVStore)
    store.barrier()
    assert kvstore.create("no_such_name").type == "no_such_name"
    test = kvstore.create("TestStore")
    assert test.type == "teststore" and not test.is_capable("optimizer")


def test_a_store_of_ones_own_by_its_name() -> None:
    class Doubling(kvstore.TestStore):
        def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
            super().pushpull(key, [v * 2 for v in value], out=value if out is None else out)

    KVStoreBase.register(Doubling)
    try:
        assert isinstance(kvstore.create("doubling"), Doubling)
        with pytest.warns(UserWarning, match="'doubling' is registered anew"):
            KVStoreBase.register(type("Doubling", (Doubling,), {}))
        w = gluon.Parameter("w", shape=(2,))
        w.initialize(init.One(), ctx=[cpu(0), cpu(1)])
        trainer = gluon.Trainer([w], "sgd", {"learning_rate": 1.0}, kvstore="doubling")
        with autograd.record():
            losses = [w.data(c).sum() for c in w.list_ctx()]
        autograd.backward(losses)
        trainer.step(1)
        assert [d.asnumpy().tolist() for d in w.list_data()] == [[-3, -3]] * 2  # 1 - 2 (1 + 1)
    finally:
        del KVStoreBase.kv_registry["doubling"]
    with pytest.raises(TypeError, match="abstract"):
        KVStoreBase()


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda s: s.init("w", nd.ones((2,))), RuntimeError, "'w' is initialized already"),
    (lambda s: s.init(3, nd.ones((2,))), RuntimeError, "all integers or all texts"),
    (lambda s: s.init(["a", 1], [nd.ones((2,))] * 2), RuntimeError, "all integers or all texts"),
    (lambda s: s.init(1.5, nd.ones((2,))), AssertionError, "not 1.5"),
    (lambda s: s.init(["a", "b"], [nd.ones((2,))]), AssertionError, "2 keys of a kvstore need a list of as many"),
    (lambda s: s.push("v", nd.ones((2,))), RuntimeError, "'v' has not been initialized"),
    (lambda s: s.push("w", [nd.ones((2,)), nd.ones((3,))]), ValueError, r"holds f32\[2\], which f32\[3\]"),
    (lambda s: s.push("w", nd.ones((2,), dtype="float64")), TypeError, r"holds f32\[2\], which f64\[2\]"),
    (lambda s: s.push("w", 3), AssertionError, "values are NDArrays"),
    (lambda s: s.pull("w"), AssertionError, "needs out="),
    (lambda s: s.pull("v", nd.ones((2,))), RuntimeError, "'v' has not been initialized"),
    (lambda s: s.pushpull("w", nd.ones((2,)), out=nd.ones((3,))), ValueError, r"which f32\[3\] does not fit"),
    (lambda s: s.row_sparse_pull("w", row_ids=nd.ones((1,))), AssertionError, "row_sparse_pull needs out="),
    (lambda s: s.row_sparse_pull("w", nd.ones((2,))), AssertionError, "row_sparse_pull needs row_ids="),
    (lambda s: s.row_sparse_pull("v", nd.ones((2,)), row_ids=nd.ones((1,))), RuntimeError, "has not been initialized"),
    (lambda s: s.row_sparse_pull("w", nd.ones((3,)), row_ids=nd.ones((1,))), ValueError, r"which f32\[3\] does not"),
    (lambda s: s.row_sparse_pull("w", nd.ones((2,)), row_ids=nd.array([0, 2])), IndexError, "rows 0 to 1.* names 2"),
    (lambda s: s.row_sparse_pull("w", nd.ones((2,)), row_ids=nd.array([-1])), IndexError, "names -1"),
    (lambda s: s.row_sparse_pull("w", nd.ones((2,)), row_ids=[nd.ones((1,))] * 2), AssertionError, "1 arrays in out="),
    (lambda s: s.is_capable("flight"), ValueError, "unknown capability 'flight'"),
    (lambda s: s.save_optimizer_states("f"), AssertionError, "no optimizer"),
    (lambda s: s.load_optimizer_states("f"), AssertionError, "no optimizer"),
    (lambda s: filled("local").set_gradient_compression({"type": "2bit"}), Exception, "'local' has no gradient"),
    (lambda s: s.set_gradient_compression({"type": "3bit"}), RuntimeError, "the types are '2bit', '1bit', 'sign'"),
    (lambda s: s.set_gradient_compression({"threshold": 1}), RuntimeError, "the types are '2bit'"),
    (lambda s: s.set_gradient_compression({"type": "2bit", "threshold": 0}), RuntimeError, "must be above 0"),
    (lambda s: kvstore.create(3), TypeError, "is a string, not 3"),
    (lambda s: kvstore.create("dist_synchronous"), RuntimeError, "no kvstore 'dist_synchronous'"),
    (lambda s: kvstore.create("nccl"), RuntimeError, "'nccl' spans"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors_change_nothing(call: Any, error: type[Exception], message: str) -> None:
    store = filled("device")
    with pytest.raises(error, match=message):
        call(store)
    assert pulled(store, "w") == [1, 1] and list(store._values) == ["w"]


def test_compression_of_other_types_is_refused_before_anything_changes() -> None:
    store = KVStore("device")
    store.init(["a", "b"], [nd.zeros((2,)), nd.zeros((2,), dtype="float64")])
    store.set_gradient_compression({"type": "2bit"})
    with pytest.raises(RuntimeError, match="float32 alone"):
        store.push(["a", "b"], [nd.ones((2,)), nd.ones((2,), dtype="float64")])
    assert pulled(store, "a") == [0, 0]
