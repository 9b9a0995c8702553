"""The store dist_sync on several workers: what push, pull and an optimizer do to values, and workers that disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_checks import Check, assert_clean, assert_passed, refused, run_checks, same_everywhere
from ranks import needs_mpi, try_ranks

import gluongraph as mx
from gluongraph import autograd, kvstore, nd, optimizer
from gluongraph.errors import MXNetError
from gluongraph.kvstore.distributed import DistributedStore
from gluongraph.nd.sparse import RowSparseNDArray
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world

pytestmark = needs_mpi


def made(value: float = 1.0, shape: tuple[int, ...] = (3, 2), name: str = "dist_sync") -> DistributedStore:
    """A store with a value "w", which other workers than the first give otherwise."""
    store = kvstore.create(name)
    assert isinstance(store, DistributedStore)
    store.init("w", nd.ones(shape) * (value + store.rank))
    return store


def pulled(store: DistributedStore, key: Any = "w", shape: tuple[int, ...] = (3, 2)) -> Any:
    out = nd.zeros(shape)
    store.pull(key, out)
    return out.asnumpy()


def total() -> int:
    """1 + 2 + ... of so many workers."""
    return sum(range(1, world().size + 1))


def check_names() -> None:
    for name in ("dist", "dist_sync", "dist_device_sync", "dist_sync_device"):
        store = kvstore.create(name)
        assert (store.type, store.rank, store.num_workers) == (name, world().rank, world().size)
        assert store.is_capable("optimizer")
    store.barrier()
    store._barrier()


def check_values() -> None:
    """First values are worker 0's; a push replaces by the sum over the devices of all workers."""
    store = made()
    assert (pulled(store) == 1).all()
    store.push("w", nd.ones((3, 2)) * (store.rank + 1))
    assert (pulled(store) == total()).all()
    store.push("w", [nd.ones((3, 2), ctx=mx.cpu(i)) * (store.rank + 1) for i in range(2)])
    assert (pulled(store) == 2 * total()).all()
    out = [nd.zeros((3, 2), ctx=mx.cpu(i)) for i in range(2)]
    store.pushpull("w", nd.ones((3, 2)) * (store.rank + 1), out=out)
    assert all((o.asnumpy() == total()).all() for o in out)
    mine = nd.ones((3, 2)) * (store.rank + 1)
    store.pushpull("w", mine)
    assert (mine.asnumpy() == total()).all()
    store.broadcast("v", nd.ones((2,)) * (5 + store.rank), out=(value := nd.zeros((2,))))
    assert value.asnumpy().tolist() == [5, 5]
    store.init(["a", "b"], [nd.ones((2,)) * store.rank, nd.ones((1,))])
    store.push(["a", "b"], [nd.ones((2,)), nd.ones((1,))])
    assert pulled(store, "a", (2,)).tolist() == [store.num_workers] * 2


def check_types() -> None:
    """16-bit floats are summed in float32; integers and float64 as they are."""
    store = kvstore.create("dist_sync")
    for key, dtype in enumerate(("float16", "float32", "float64", "int32", "int64", "uint8")):
        store.init(key, nd.zeros((1000,), dtype=dtype))
        store.push(key, nd.array(np.arange(1000) % 7 + store.rank, dtype=dtype))
        out = nd.zeros((1000,), dtype=dtype)
        store.pull(key, out)
        expected = sum(np.arange(1000) % 7 + rank for rank in range(store.num_workers))
        assert (out.asnumpy().astype(np.int64) == expected).all(), dtype


def check_optimizers() -> None:
    """The sum is the gradient by which each worker updates: equal bits everywhere, also of an optimizer's noise."""
    for name, settings in (("sgd", {"momentum": 0.9}), ("adam", {}), ("sgld", {})):
        store = made()
        store.set_optimizer(optimizer.create(name, learning_rate=0.1, **settings))
        for _ in range(3):
            store.push("w", nd.ones((3, 2)) * (store.rank + 1))
        same_everywhere({name: pulled(store)})
    store = made()
    store.set_optimizer(optimizer.SGD(learning_rate=0.5))
    store.push("w", nd.ones((3, 2)) * (store.rank + 1))
    assert (pulled(store) == 1 - 0.5 * total()).all()
    other = made()
    other.set_updater(lambda key, summed, stored: stored.__iadd__(summed * 2))
    other.push("w", nd.ones((3, 2)))
    assert (pulled(other) == 1 + 2 * other.num_workers).all()


def check_states() -> None:
    """A worker writes and reads the optimizer's states by itself."""
    import tempfile

    store, other = made(), made()
    for each in (store, other):
        each.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.9))
    store.push("w", nd.ones((3, 2)))
    with tempfile.NamedTemporaryFile() as file:
        store.save_optimizer_states(file.name)
        other.load_optimizer_states(file.name)
    for each in (store, other):
        each.push("w", nd.ones((3, 2)))
    step = 0.5 * store.num_workers
    np.testing.assert_allclose(pulled(store), 1 - step - (0.9 * step + step))
    np.testing.assert_allclose(pulled(other), 1 - (0.9 * step + step))


def check_rows() -> None:
    store = made(shape=(5, 2))
    store.push("w", nd.array(np.arange(10).reshape(5, 2)))
    weight = nd.zeros((5, 2))
    weight.attach_grad(stype="row_sparse")
    rows = weight.grad
    assert isinstance(rows, RowSparseNDArray)
    store.row_sparse_pull("w", out=rows, row_ids=nd.array([store.rank, 3]))  # each worker its own
    assert rows.indices.asnumpy().tolist() == sorted({store.rank, 3})
    assert (rows.data.asnumpy()[-1] == np.array([6, 7]) * store.num_workers).all()
    with autograd.record():
        looked_up = nd.Embedding(nd.array([store.rank]), weight, input_dim=5, output_dim=2)
    looked_up.backward()
    store.push("w", weight.grad)  # a gradient by rows, of another row on each worker
    assert pulled(store, shape=(5, 2))[:, 0].tolist() == [1 if row < store.num_workers else 0 for row in range(5)]


def check_disagreement() -> None:
    """Other keys, shapes, calls, optimizers: all workers say where they differ, nothing has changed."""
    last = world().size - 1
    odd = world().rank == last
    store = made()
    store.init("v", nd.ones((3, 2)))
    with pytest.raises(Disagreement, match=f"(?s)store.push to 'w'.* on rank 0, store.push to 'v'.* on rank {last}"):
        store.push("v" if odd else "w", nd.ones((3, 2)))
    with refused(last, ValueError, r"which f32\[4\] does not fit"):
        store.push("w", nd.ones((4,) if odd else (3, 2)))
    with refused(last, ValueError, r"which f32\[4\] does not fit"):
        store.pushpull("w", nd.ones((3, 2)), out=nd.ones((4,) if odd else (3, 2)))
    with refused(last, MXNetError, "'v' is initialized already"):
        store.init("v" if odd else "u", nd.ones((3, 2)))
    with pytest.raises(Disagreement, match=r"store.init of 'x': f32\[2\] on rank 0, f32\[3\] on rank"):
        store.init("x", nd.ones((3 if odd else 2,)))
    store.init("x", nd.ones((2,)))
    second = made()
    if odd:
        second.set_optimizer(optimizer.SGD())
    with pytest.raises(Disagreement, match=r"replaced by f32\[3,2\] on rank 0, .*updated by SGD from f32"):
        second.push("w", nd.ones((3, 2)))
    second.set_optimizer(optimizer.SGD(learning_rate=0.2 if odd else 0.1))
    with pytest.raises(Disagreement, match=r"learning_rate: 0\.1 on rank 0, 0\.2 on rank"):
        second.push("w", nd.ones((3, 2)))
    assert (pulled(store) == 1).all() and (pulled(second) == 1).all()
    store.push("w", nd.ones((3, 2)))
    assert (pulled(store) == store.num_workers).all()


CHECKS: list[Check] = [
    check_names,
    check_values,
    check_types,
    check_optimizers,
    check_states,
    check_rows,
    check_disagreement,
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


def missing_push() -> None:
    """Worker 0 ends while worker 1 pushes."""
    store = made()
    if store.rank:
        store.push("w", nd.ones((3, 2)))


def test_a_worker_that_ends_too_early_is_named() -> None:
    found = try_ranks(2, missing_push, timeout=40)
    assert found.code != 0 and not found.timed_out and not found.orphans, str(found)
    message = found.errors[0] + found.errors[1]
    assert "rank 0" in message and "rank 1 waits in allreduce" in message, str(found)
