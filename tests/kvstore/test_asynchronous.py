"""dist_async on real MPI: workers and servers, and what one process finds wrong before."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import needs_mpi, run_ranks, try_ranks

import gluongraph as mx
from gluongraph import autograd, gluon, kvstore, nd, optimizer
from gluongraph.errors import DTypeError, IndexRangeError, MXNetError, ShapeError
from gluongraph.kvstore import KVStore, server_messages
from gluongraph.kvstore.asynchronous import AsynchronousStore
from gluongraph.kvstore.server_optimizer import optimizer_of, told_of
from gluongraph.lr_scheduler import FactorScheduler
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world

RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 20)).astype(np.float32)
Y = X @ RNG.standard_normal((20, 10)).astype(np.float32)
TARGET = RNG.uniform(0.5, 1.5, 64).astype(np.float32)
TWO_SERVERS = {"GG_SERVERS": "2", "MXNET_KVSTORE_BIGARRAY_BOUND": "10"}  # values of 10 elements are divided


@optimizer.Optimizer.register
class Refusing(optimizer.SGD):
    """SGD that looks at gradients."""

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if float(grad.max().asscalar()) > 100:
            raise ValueError("a gradient above 100")
        super().update(index, weight, grad, state)


def created() -> AsynchronousStore:
    store = kvstore.create("dist_async")
    assert isinstance(store, AsynchronousStore)
    return store


def pulled(store: Any, key: Any, shape: tuple[int, ...] = (3,)) -> list[Any]:
    out = nd.zeros(shape)
    store.pull(key, out)
    return list(out.asnumpy().tolist())


# -- training


def training(folder: str, name: str, compiled: str) -> None:
    """A linear regression by all workers."""
    mx.random.seed(3)
    net = gluon.nn.Dense(10, in_units=20, prefix="d_")
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), name, {"learning_rate": 0.05}, kvstore="dist_async")
    loss_of = gluon.loss.L2Loss()
    step = mx.compile(net, loss_of, trainer)
    losses = []
    for _ in range(60):
        if compiled == "True":
            losses.append(step(X, Y))
        else:
            with autograd.record():
                losses.append(loss_of(net(nd.array(X)), nd.array(Y)))
            losses[-1].backward()
            trainer.step(len(X))
    first, *_, last = (float(loss.mean().asscalar()) for loss in losses)
    assert last < first / 2, (first, last)
    store = trainer._kvstore
    assert isinstance(store, AsynchronousStore) and trainer.communicator is store.communicator
    assert (store.num_workers, store.is_capable("optimizer")) == (2, True)
    assert store.staleness.pushes == 60 and 0 <= store.staleness.mean <= store.staleness.largest
    trainer.save_states(f"{folder}/trainer.states")
    store.barrier()
    trainer.load_states(f"{folder}/trainer.states")
    assert 60 <= trainer.optimizer.num_update <= 120
    print(f"rank {store.rank}")


@needs_mpi
def test_workers_train_and_a_server_leaves_the_script(tmp_path: Path) -> None:
    outputs = run_ranks(3, training, tmp_path, "sgd", False)
    assert outputs == ["rank 0\n", "rank 1\n", ""]


@needs_mpi
def test_compiled_steps_and_two_servers_that_divide_values(tmp_path: Path) -> None:
    outputs = run_ranks(4, training, tmp_path, "adam", True, env=TWO_SERVERS)
    assert outputs == ["rank 0\n", "rank 1\n", "", ""]


# -- the same as in one process, where one worker pushes

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "wd": 0.01},
    "adam": {"clip_gradient": 0.5},
    "nag": {"momentum": 0.5, "multi_precision": True},
    "lamb": {},  # looks at whole values, which are not divided then
    "adagrad": {"wd": 0.1},
    "lars": {"momentum": 0.9},
    "lbsgd": {"batch_scale": 2, "warmup_epochs": 1, "updates_per_epoch": 4},
}


def gradients(number: int) -> list[nd.NDArray]:
    rng = np.random.default_rng(number)
    return [nd.array(rng.standard_normal(shape)) for shape in ((5, 4), (3,), ())]


def updates(store: Any, rule: optimizer.Optimizer, dtype: str, start: int = 0, save: str = "") -> list[Any]:
    """The values after updates with changing settings: all workers call this, worker 0 pushes."""
    store.set_optimizer(rule)
    keys = ["weight", "bias", "scale"]
    store.init(keys, [g.astype(dtype) for g in gradients(99)])
    if start:
        store.load_optimizer_states(save)
    outs = [nd.zeros(g.shape, dtype=dtype) for g in gradients(99)]
    for number in range(start, 6):
        rule.rescale_grad = 1.0 / (1 + number)
        rule.wd = 0.01 * number
        rule.set_lr_mult({"bias": 1.0 + number})
        rule.set_wd_mult({"weight": 0.5 * number})
        if number == 3 and save and not start:
            store.save_optimizer_states(save, dump_optimizer=True)
        if store.rank == 0:
            store.pushpull(keys, [g.astype(dtype) for g in gradients(number)], out=outs)
        else:
            rule.count(tuple(keys))
        store.barrier()
    store.pull(keys, outs)
    return [out.asnumpy() for out in outs]


def rule_of(name: str, factor: float = 0.9) -> optimizer.Optimizer:
    return optimizer.create(name, learning_rate=0.1, lr_scheduler=FactorScheduler(2, factor), **OPTIMIZERS[name])


def same_as_one_process() -> None:
    for name, arguments in OPTIMIZERS.items():
        dtype = "float16" if "multi_precision" in arguments else "float32"
        found = updates(created(), rule_of(name), dtype)
        wanted = updates(KVStore("local"), rule_of(name), dtype)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)


@needs_mpi
def test_rates_schedules_multipliers_and_settings_act_at_once() -> None:
    run_ranks(3, same_as_one_process)


@needs_mpi
def test_divided_values_are_updated_as_whole_ones() -> None:
    run_ranks(4, same_as_one_process, env=TWO_SERVERS)


def saving(folder: str) -> None:
    """Train to the end, with states saved on the way; or with them loaded after three updates, to the same end."""
    for name in ("adam", "lars"):
        whole = updates(created(), rule_of(name), "float32", save=f"{folder}/{name}.states")
        local = KVStore("local")
        same = updates(local, rule_of(name), "float32", save=f"{folder}/{name}.{world().rank}.local")
        np.testing.assert_allclose(whole[0], same[0], rtol=1e-6)
    loading(folder)


def loading(folder: str) -> None:
    for name in ("adam", "lars"):
        for file in (f"{folder}/{name}.states", f"{folder}/{name}.0.local"):  # of servers, and of one process
            found = updates(created(), rule_of(name), "float32", start=3, save=file)
            wanted = updates(KVStore("local"), rule_of(name), "float32", start=3, save=file)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=file)
    store = created()
    store.init("weight", nd.ones((5, 4)))
    store.set_optimizer(optimizer.SGD())
    with pytest.raises(MXNetError, match="not of SGD"):
        store.load_optimizer_states(f"{folder}/adam.states")


@needs_mpi
def test_states_load_on_another_number_of_servers(tmp_path: Path) -> None:
    run_ranks(4, saving, tmp_path, env=TWO_SERVERS)
    run_ranks(3, loading, tmp_path)


# -- values, errors, the end


def values() -> None:
    server_messages.LIMIT = 40  # bytes: messages are sent in pieces
    store, other = created(), created()
    store.init("w", nd.ones((3,)) * (store.rank + 1))
    other.init("w", nd.array([[1, 1], [2, 2], [3, 3]]))
    assert pulled(store, "w") == [1, 1, 1]  # worker 0's
    array = nd.zeros((3, 2))
    array.attach_grad(stype="row_sparse")
    for out in (nd.zeros((3, 2)), array.grad):
        other.row_sparse_pull("w", out=out, row_ids=nd.array([2, 0, 2]))
        assert out.asnumpy().tolist() == [[1, 1], [0, 0], [3, 3]]
    for wrong, kind, message in (
        (lambda: store.push("w", nd.ones((3,))), MXNetError, "have no optimizer to update with"),
        (lambda: store.push("v", nd.ones((3,))), MXNetError, "'v' has not been initialized"),
        (lambda: store.push("w", nd.ones((4,))), ShapeError, r"holds f32\[3\]"),
        (lambda: store.pull("w", nd.ones((3,), dtype="int32")), DTypeError, r"holds f32\[3\]"),
        (lambda: store.init("w", nd.ones((3,))), MXNetError, "initialized already"),
        (lambda: other.row_sparse_pull("w", nd.ones((3, 2)), row_ids=nd.array([3])), IndexRangeError, "rows 0 to 2"),
        (lambda: store.init("u", nd.ones((store.rank + 1,))), Disagreement, r"init of 'u': f32\[1\] on rank 0"),
        (lambda: store.set_gradient_compression({"type": "2bit"}), MXNetError, "dist_sync"),
        (lambda: store.set_updater(lambda key, g, w: None), MXNetError, "cannot be sent"),
        (lambda: store.save_optimizer_states("x"), AssertionError, "no optimizer"),
    ):
        with pytest.raises(kind, match=message):
            wrong()
    errors_of_the_optimizer(store)
    if store.rank == 1:
        sys.exit(0)  # the others and the server go on
    for _ in range(50):
        store.pushpull("w", nd.ones((3,)), out=nd.zeros((3,)))


def errors_of_the_optimizer(store: AsynchronousStore) -> None:
    """What happens on the server reaches the worker that has asked, and no other."""
    store.set_optimizer(Refusing(learning_rate=0.5))
    store.barrier()
    if store.rank:
        with pytest.raises(MXNetError, match="update of key 'w': ValueError: a gradient above 100"):
            store.push("w", nd.ones((3,)) * 1000)
        assert store._optimizer is not None and store._optimizer.num_update == 0
    else:
        store.push("w", nd.ones((3,)))
    store.barrier()
    assert pulled(store, "w") == [0.5, 0.5, 0.5]

    @optimizer.Optimizer.register
    class Later(optimizer.SGD):
        """The server does not come here."""

    with pytest.raises(MXNetError, match="no optimizer Later is registered"):
        store.set_optimizer(Later())


@needs_mpi
def test_values_and_errors() -> None:
    run_ranks(3, values)


def parts_of_parameters() -> None:
    by_rows()
    stale()


def by_rows() -> None:
    """A large embedding, of which a step touches few rows: as in one process."""
    found = []
    for store in ("dist_async", "local"):
        mx.random.seed(1)
        net = gluon.nn.Embedding(12, 3, sparse_grad=True, prefix="e_")
        net.initialize(mx.init.Uniform())
        arguments = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.1}
        trainer = gluon.Trainer(net.collect_params(), "sgd", arguments, kvstore=store)
        for number in range(4):
            if store == "local" or trainer.communicator.rank == 0:
                with autograd.record():
                    loss = net(nd.array([number, 5, number, 11])).sum()
                loss.backward()
                trainer.step(2)
        found.append(net.weight.data().asnumpy())
    if world().rank == 0:
        np.testing.assert_allclose(*found, rtol=1e-6)


def stale() -> None:
    """Parameters without a fresh gradient are pulled, not pushed."""
    used, unused = (gluon.Parameter(name, shape=(2,), init="ones") for name in ("used", "unused"))
    for each in (used, unused):
        each.initialize()
    trainer = gluon.Trainer([used, unused], "sgd", {"learning_rate": 0.5, "wd": 0.5}, kvstore="dist_async")
    trainer.prepare()
    store = trainer._kvstore
    assert isinstance(store, AsynchronousStore)
    for rank, parameter in enumerate((used, unused)):
        if store.rank == rank:
            with autograd.record():
                loss = parameter.data().sum()
            loss.backward()
            trainer.step(1, ignore_stale_grad=True)
        store.barrier()
    expected = [[0.25, 0.25], [0.25, 0.25]] if store.rank else [[0.25, 0.25], [1.0, 1.0]]  # 1 - 0.5 (1 + 0.5)
    assert [p.data().asnumpy().tolist() for p in (used, unused)] == expected


@needs_mpi
def test_gradients_by_rows_and_parameters_without_a_fresh_gradient() -> None:
    run_ranks(4, parts_of_parameters, env=TWO_SERVERS)


# -- delays


def straggler(name: str, dtype: str, **arguments: Any) -> float:
    """Worker 1 pushes once while worker 0 pushes three times, by turns: the same delays in every run. The last loss."""
    store = created()
    store.init(0, nd.zeros(TARGET.shape, dtype=dtype))
    weight, target = nd.zeros(TARGET.shape, dtype=dtype), nd.array(TARGET).astype(dtype)
    store.pull(0, weight)  # before the server knows that it needs copies
    store.barrier()
    store.set_optimizer(optimizer.create(name, learning_rate=0.8, multi_precision=dtype == "float16", **arguments))
    for _ in range(4):
        for turn in range(4):
            if store.rank == (turn == 3):
                store.pushpull(0, weight - target, out=weight)
            store.barrier()
    store.pull(0, weight)
    assert store.staleness.largest == (3 if store.rank else 1)
    assert store.staleness.mean == (3 if store.rank else 0.25)
    return 0.5 * float(((weight - target).astype("float32") ** 2).mean().asscalar())


def stragglers() -> None:
    for dtype in ("float32", "float16"):
        plain, compensated = straggler("sgd", dtype), straggler("dcasgd", dtype, lamda=0.5)
        assert math.isclose(plain, 0.0643, rel_tol=0.2) and compensated < plain / 4, (dtype, plain, compensated)


@needs_mpi
def test_compensation_of_the_delay_beats_plain_descent() -> None:
    run_ranks(3, stragglers)


def logged() -> None:
    store = created()
    store.init("w", nd.ones((3,)))
    store.set_optimizer(optimizer.SGD())
    store.pull("w", nd.zeros((3,)))
    store.push("w", nd.ones((3,)))
    store.push("w", nd.ones((3,)))


@needs_mpi
def test_the_server_logs_staleness() -> None:
    job = try_ranks(2, logged, env={"GG_LOG": "kvstore"})
    assert job.code == 0, str(job)
    assert job.errors[1].splitlines() == [
        f"server 0: worker 0 has pushed 1 keys, staleness {staleness}" for staleness in (0, 1)
    ]


# -- when something goes wrong


def killed() -> None:
    logged()
    if world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world_of_workers = created()
    world_of_workers.barrier()


@needs_mpi
def test_a_worker_that_is_killed_ends_the_job() -> None:
    job = try_ranks(3, killed)
    assert job.code != 0 and not job.orphans and not job.timed_out, str(job)


def stopped(folder: str) -> None:
    """The server is stopped while a worker waits for it."""
    Path(folder, str(world().rank)).write_text(str(os.getpid()))
    store = created()
    store.init("w", nd.ones((3,)))
    store.barrier()
    if store.rank == 0:
        os.kill(int(Path(folder, "2").read_text()), signal.SIGSTOP)
    store.barrier()
    store.pull("w", nd.zeros((3,)))


@needs_mpi
def test_a_server_that_is_stopped_is_named(tmp_path: Path) -> None:
    job = try_ranks(3, stopped, tmp_path)
    assert job.code != 0 and not job.orphans and not job.timed_out, str(job)
    assert "rank 2 is stopped" in "".join(job.errors) and "push or pull of dist_async" in "".join(job.errors), str(job)


def two_kinds() -> None:
    """The store of one rank has servers, that of the other has none."""
    weight = gluon.Parameter("w", shape=(2,), init="ones")
    weight.initialize()
    trainer = gluon.Trainer([weight], "sgd", kvstore="dist_async" if world().rank else "dist_sync")
    with autograd.record():
        weight.data().sum().backward()
    trainer.step(1)


@needs_mpi
def test_stores_of_two_kinds_are_told_apart() -> None:
    job = try_ranks(2, two_kinds)
    assert job.code != 0 and not job.timed_out, str(job)
    for error in job.errors:
        assert "kvstore: dist_sync on rank 0, dist_async, 1 server on rank 1" in error, str(job)


def test_one_process_is_too_few() -> None:
    with pytest.raises(MXNetError, match=r"(?s)at least one worker and one server.*gluongraph run -n 2") as caught:
        kvstore.create("dist_async")
    assert "there is 1 rank" in str(caught.value)
    with pytest.raises(MXNetError, match="no kvstore 'dist_asynchronous'"):
        kvstore.create("dist_asynchronous")


def test_servers_update() -> None:
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    with pytest.raises(ValueError, match="update_on_kvstore=False with a kvstore 'dist_device_async'"):
        gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_device_async", update_on_kvstore=False)


# -- optimizers as messages


def test_all_optimizers_can_be_sent() -> None:
    for cls in optimizer.Optimizer.opt_registry.values():
        with contextlib.suppress(TypeError):  # those of tests may need arguments
            before = cls()
            after = optimizer_of(told_of(before))
            assert type(after) is cls and after.structure() == before.structure()
            assert {k: v for k, v in vars(after).items() if k != "_index_update_count"} == {
                k: v for k, v in vars(before).items() if k != "_index_update_count"
            }


def test_optimizers_that_cannot_be_sent() -> None:
    class Unknown(optimizer.SGD):
        """Not registered."""

    with pytest.raises(MXNetError, match="Unknown is not registered"):
        told_of(Unknown())
    table = Refusing()
    table.table = np.ones(3)  # type: ignore[attr-defined]
    with pytest.raises(MXNetError, match=r"Refusing.table is a ndarray, which cannot be sent"):
        told_of(table)
    table.table = {"a": (1, [None, "b"]), 2: True}  # type: ignore[attr-defined]
    assert optimizer_of(told_of(table)).table == table.table  # type: ignore[attr-defined]
