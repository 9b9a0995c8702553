"""dist_async on real MPI: two workers and a server, or three ranks with two servers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import needs_mpi, run_ranks, try_ranks

import gluongraph as mx
from gluongraph import autograd, gluon, kvstore, nd, optimizer
from gluongraph.errors import MXNetError
from gluongraph.kvstore.asynchronous import AsynchronousStore

pytestmark = needs_mpi
RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 20)).astype(np.float32)
Y = X @ RNG.standard_normal((20, 10)).astype(np.float32)
TARGET = RNG.uniform(0.5, 1.5, 64).astype(np.float32)


def trained(name: str, compiled: bool, steps: int = 60) -> tuple[gluon.Trainer, float]:
    """A linear regression by all workers; the trainer, and the last loss."""
    mx.random.seed(3)
    net = gluon.nn.Dense(10, in_units=20, prefix="d_")
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), name, {"learning_rate": 0.05}, kvstore="dist_async")
    loss_of = gluon.loss.L2Loss()
    step = mx.compile(net, loss_of, trainer)
    loss: Any = None
    for _ in range(steps):
        if compiled:
            loss = step(X, Y)
        else:
            with autograd.record():
                loss = loss_of(net(nd.array(X)), nd.array(Y))
            loss.backward()
            trainer.step(len(X))
    return trainer, float(loss.mean().asscalar())


def training(folder: str, name: str, compiled: str) -> None:
    trainer, loss = trained(name, compiled == "True")
    store = trainer._kvstore
    assert isinstance(store, AsynchronousStore)
    assert (store.num_workers, store.is_capable("optimizer")) == (2, True)
    assert loss < 4.0, (name, loss)  # 9 at first
    assert store.staleness.pushes == 60 and 0 <= store.staleness.mean <= store.staleness.largest
    store.barrier()
    weight = trainer.params[-1]
    held = nd.zeros(weight.shape)
    store.pull(trainer.index(weight), held)
    store.barrier()
    # a factor of 0 acts at the next push, as does another rate
    weight.lr_mult = 0.0
    store.push(trainer.index(weight), nd.ones(weight.shape))
    store.barrier()
    again = nd.zeros(weight.shape)
    store.pull(trainer.index(weight), again)
    assert (again.asnumpy() == held.asnumpy()).all()
    file = f"{folder}/{name}.states"
    store.save_optimizer_states(file)
    store.load_optimizer_states(file)


def errors(folder: str) -> None:
    store = kvstore.create("dist_async")
    store.init("w", nd.ones((3,)) * (store.rank + 1))
    store.set_optimizer(optimizer.SGD(learning_rate=0.5))
    out = nd.zeros((3,))
    store.pull("w", out)
    assert out.asnumpy().tolist() == [1.0] * 3  # worker 0's
    for wrong, message in (
        (lambda: store.push("v", nd.ones((3,))), "'v' has not been initialized"),
        (lambda: store.push("w", nd.ones((4,))), "server 0 of kvstore 'dist_async'"),
        (lambda: store.init("w", nd.ones((3,))), "initialized already"),
        (lambda: store.row_sparse_pull("w", out, row_ids=out), "dense values"),
        (lambda: store.set_gradient_compression({"type": "2bit"}), "dist_sync"),
    ):
        with pytest.raises(MXNetError, match=message):
            wrong()
    store.barrier()
    with pytest.raises(ValueError, match="update_on_kvstore=False"):
        net = gluon.nn.Dense(1, in_units=1)
        net.initialize()
        gluon.Trainer(net.collect_params(), "sgd", kvstore=store, update_on_kvstore=False).prepare()
    store.push("w", nd.ones((3,)))
    store.barrier()
    store.pull("w", out)
    assert out.asnumpy().tolist() == [0.0] * 3  # 1 - 0.5 - 0.5


def straggler(name: str) -> None:
    """Worker 1 pushes once while worker 0 pushes three times, by turns: the same delays in every run."""
    store = kvstore.create("dist_async")
    store.init(0, nd.zeros(TARGET.shape))
    arguments = {"lamda": 0.5} if name == "dcasgd" else {}
    store.set_optimizer(optimizer.create(name, learning_rate=0.8, wd=0.0, **arguments))
    weight = nd.zeros(TARGET.shape)
    store.pull(0, weight)
    store.barrier()
    for _ in range(4):
        for turn in range(4):
            if store.rank == (turn == 3):
                store.pushpull(0, weight - nd.array(TARGET), out=weight)
            store.barrier()
    store.pull(0, weight)
    assert store.staleness.largest == (3 if store.rank else 1)
    print(f"loss {0.5 * float(((weight - nd.array(TARGET)) ** 2).mean().asscalar()):.6f}")


def without_optimizer() -> None:
    store = kvstore.create("dist_async")
    store.init("w", nd.ones((3,)))
    with pytest.raises(MXNetError, match="has no optimizer"):
        store.push("w", nd.ones((3,)))


def test_workers_train_and_rates_act_at_once(tmp_path: Path) -> None:
    run_ranks(3, training, tmp_path, "sgd", False)


def test_keys_are_divided_among_servers(tmp_path: Path) -> None:
    run_ranks(4, training, tmp_path, "adam", True, env={"GG_SERVERS": "2"})


def test_errors_of_servers_reach_the_worker(tmp_path: Path) -> None:
    run_ranks(3, errors, tmp_path)


def test_a_server_without_optimizer_says_so() -> None:
    run_ranks(3, without_optimizer)


def test_compensation_of_the_delay_beats_plain_descent() -> None:
    found = {}
    for name in ("sgd", "dcasgd"):
        outputs = run_ranks(3, straggler, name)
        found[name] = float(outputs[0].split("loss ")[1])
    assert math.isclose(found["sgd"], 0.0643, rel_tol=0.2) and found["dcasgd"] < found["sgd"] / 4, found


def test_a_worker_that_is_killed_ends_the_job() -> None:
    job = try_ranks(
        3,
        """
        import os, signal
        from gluongraph import kvstore, nd, optimizer
        store = kvstore.create("dist_async")
        store.init("w", nd.ones((3,)))
        store.set_optimizer(optimizer.SGD())
        if store.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        store.barrier()
        """,
    )
    assert job.code != 0 and not job.orphans and not job.timed_out, str(job)


def test_one_process_is_too_few() -> None:
    with pytest.raises(MXNetError, match="needs more ranks than 1"):
        kvstore.create("dist_async")
    with pytest.raises(MXNetError, match="no kvstore 'dist_asynchronous'"):
        kvstore.create("dist_asynchronous")
