"""Compressed gradients in the graph of a step: what ranks send, and how they train with what arrives."""

from __future__ import annotations

import tempfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rank_checks import Array, Check, assert_clean, assert_passed, own, run_checks, same_everywhere, weights
from ranks import needs_mpi

import gluongraph as mx
from gluongraph import autograd, cpu, gluon, nd, ops
from gluongraph.eager.function import leaf
from gluongraph.errors import MXNetError
from gluongraph.gluon import nn
from gluongraph.host import services
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.kvstore.compression import Compression
from gluongraph.optimizer import SGD
from gluongraph.runtime.communicator.environment import world
from gluongraph.tracing.compressed_exchange import compressed_sums, wire_bytes
from gluongraph.tracing.gradient_exchange import Exchange

LOW: dict[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
THRESHOLD = 0.5


# -- the graph


def grads_of(**shapes: tuple[int, ...]) -> dict[str, dict[str, Node]]:
    return {name: {name: leaf("grad:" + name, TensorType(shape))} for name, shape in shapes.items()}


def graph_of(kind: str, ranks: int, **shapes: tuple[int, ...]) -> Graph:
    owners = grads_of(**shapes)
    found = compressed_sums(owners, Compression(kind, THRESHOLD, of_workers=True), ranks=ranks)
    inputs = {f"grad:{name}": g for name, grads in owners.items() for g in grads.values()} | found.residuals
    return Graph(inputs, found.sums, found.kept)


def collectives(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes() if n.op.kind == "collective" or n.attrs.get("ranks", 1) > 1]


@pytest.mark.parametrize("kind", ["2bit", "1bit", "sign"])
def test_codes_of_all_gradients_are_one_collective(kind: str) -> None:
    graph = graph_of(kind, 3, w=(33, 40), b=(7,))
    assert collectives(graph) == ["all_gather"]
    assert set(graph.updates) == (set() if kind == "sign" else {"residual:w", "residual:b"})
    assert {name: n.shape for name, n in graph.outputs.items()} == {"w": (33, 40), "b": (7,)}


def test_gradients_of_16_bits_are_summed_as_others_are() -> None:
    graph = graph_of("bf16", 3, w=(33, 40), b=(7,))
    assert collectives(graph) == ["allreduce", "allreduce"] and not graph.updates
    assert {n.dtype for n in graph.nodes() if n.op.name == "allreduce"} == {"bf16"}


@pytest.mark.parametrize("kind", ["2bit", "bf16"])
def test_one_rank_sends_nothing(kind: str) -> None:
    graph = graph_of(kind, 1, w=(3, 4))
    assert collectives(graph) == [] and wire_bytes(graph) == 0


def test_no_gradients_at_all() -> None:
    assert graph_of("2bit", 2).outputs == {}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_codes_are_unpacked_in_the_kernel_of_the_update(momentum: float) -> None:
    """What arrives of a gradient is never stored."""
    owners = grads_of(w=(64, 64), b=(64,))
    grads = {name: g for each in owners.values() for name, g in each.items()}
    inputs = {f"grad:{name}": g for name, g in grads.items()} | {name: leaf(name, g.ty) for name, g in grads.items()}
    how = Compression("2bit", THRESHOLD, of_workers=True)
    exchange = Exchange({name: (name,) for name in grads}, once=True, summed=True, compression=how, ranks=2)
    graph = Graph(inputs, {f"grad:{name}": g for name, g in grads.items()})
    graph = exchange.update(graph, SGD(learning_rate=0.1, momentum=momentum), cpu(0)).graph
    roles = {name: "scalar" if name.startswith("scalar:") else "state" for name in graph.inputs}
    launches = services.get("lower")(graph, roles).plan.launches
    number = next(i for i, launch in enumerate(launches) if launch.group.collective)
    assert [launch.label for launch in launches[number + 1 :] if "unpack_codes" not in launch.label] == []
    assert len(launches[number + 1 :]) == 1


# -- bytes


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (2, {"2bit": 4096 // 16, "1bit": 4096 // 32, "sign": 4096 // 32, "bf16": 4096 // 2, "fp16": 4096 // 2}),
        (4, {"2bit": 3 * 4096 // 16, "1bit": 3 * 4096 // 32, "sign": 3 * 4096 // 32, "bf16": 6 * 1024 // 2}),
    ],
)
def test_bytes_on_the_wire(ranks: int, expected: dict[str, int]) -> None:
    """Of 1024 gradients: of a sum each rank sends 2 (n - 1) / n times its bytes, of codes n - 1 times theirs."""
    assert {kind: wire_bytes(graph_of(kind, ranks, w=(16, 64))) for kind in expected} == expected


def test_bytes_of_collectives() -> None:
    x = leaf("x", TensorType((64,)))
    shard = ops.reduce_scatter(x, ranks=4)
    (whole,) = ops.all_gather(shard, ranks=4, shapes=((64,),))
    assert wire_bytes(Graph({"x": x}, {"y": ops.allreduce(x, x, ranks=4)})) == 2 * 3 * 64
    assert wire_bytes(Graph({"x": x}, {"y": shard})) == 3 * 64
    assert wire_bytes(Graph({"x": x}, {"y": whole})) == 3 * 64 + 3 * 64
    assert wire_bytes(Graph({"x": x}, {"y": ops.allreduce(x, x)})) == 0


def test_a_trainer_without_workers_sends_nothing() -> None:
    net = nn.Dense(1, in_units=2)
    net.initialize(ctx=[cpu(0), cpu(1)])
    for store in ("device", "local", None):
        assert gluon.Trainer(net.collect_params(), "sgd", kvstore=store).wire_bytes == 0


# -- training on several ranks, against numpy

ROWS, INPUTS, OUTPUTS, STEPS, LR = 8, 20, 3, 6, 0.05  # ROWS of each of 4 ranks, or 2 * ROWS of each of 2
RNG = np.random.RandomState(3)
X = RNG.randn(STEPS, 4 * ROWS, INPUTS).astype(np.float32)
Y = RNG.randn(STEPS, 4 * ROWS, OUTPUTS).astype(np.float32)
START = RNG.randn(OUTPUTS, INPUTS).astype(np.float32) * np.float32(0.3)


def sent(values: Array, kind: str) -> Array:
    limit = np.float32(THRESHOLD)
    if kind == "2bit":
        return np.where(values >= limit, limit, np.where(values <= -limit, -limit, np.float32(0)))
    if kind in LOW:
        return values.astype(LOW[kind]).astype(np.float32)
    return np.where(values > (limit if kind == "1bit" else 0), np.float32(1), np.float32(-1))


class Simulation:
    """The same training in numpy: y = w x without a bias, the loss (w x - y)² / 2 in the mean over outputs."""

    def __init__(self, kind: str | None, ranks: int, signum: float | None = None):
        self.kind, self.ranks, self.signum = kind, ranks, signum
        self.w, self.momentum = START.copy(), np.zeros_like(START)
        self.residuals = np.zeros((ranks, *START.shape), np.float32)

    def step(self, x: Array, y: Array) -> None:
        parts = zip(np.split(x, self.ranks), np.split(y, self.ranks), strict=True)
        grads = np.stack([self.gradient(*part) for part in parts])
        total = self.arrived(grads) if self.kind else grads.sum(0)
        g = total / np.float32(len(x))
        if self.signum is None:
            self.w -= np.float32(LR) * g
        elif self.signum == 0:
            self.w -= np.float32(LR) * np.sign(g)
        else:
            self.momentum = np.float32(self.signum) * self.momentum - np.float32(1 - self.signum) * g
            self.w += np.float32(LR) * np.sign(self.momentum)

    def gradient(self, x: Array, y: Array) -> Array:
        return ((x @ self.w.T - y) / np.float32(OUTPUTS)).T @ x

    def arrived(self, grads: Array) -> Array:
        assert self.kind is not None
        values = self.residuals + grads
        arrived = sent(values, self.kind)
        if self.kind in ("2bit", "1bit"):
            self.residuals = values - arrived
        total: Array = arrived.sum(0, dtype=np.float32)
        return np.sign(total) if self.kind == "sign" else sent(total, self.kind) if self.kind in LOW else total


def linear(ctx: Any = None) -> nn.Dense:
    net = nn.Dense(OUTPUTS, in_units=INPUTS, use_bias=False, prefix="l_")
    net.initialize(ctx=ctx)
    net.weight.set_data(nd.array(START))
    return net


def trainer_of(net: Any, kind: str | None, optimizer: str = "sgd", **how: Any) -> gluon.Trainer:
    params = {"type": kind, "threshold": THRESHOLD} if kind else None
    momentum = {"momentum": how.pop("momentum")} if "momentum" in how else {}
    settings = {"learning_rate": LR, **momentum}
    return gluon.Trainer(
        net.collect_params(), optimizer, settings, kvstore="dist_sync", compression_params=params, **how
    )


def is_simulated(net: Any, trainer: gluon.Trainer, simulation: Simulation) -> None:
    np.testing.assert_allclose(net.weight.list_data()[0].asnumpy(), simulation.w, rtol=1e-5, atol=1e-6)
    same_everywhere(weights(net))
    kept = list(trainer.residual_arrays(trainer.names).values())
    assert len(kept) == (simulation.kind in ("2bit", "1bit"))
    if kept:
        np.testing.assert_allclose(kept[0].asnumpy(), simulation.residuals[world().rank], rtol=1e-5, atol=1e-5)


def compiled_run(kind: str | None, **how: Any) -> None:
    net = linear()
    trainer = trainer_of(net, kind, **how)
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    simulation = Simulation(kind, world().size, how.get("momentum"))
    for x, y in zip(X, Y, strict=True):
        step(own(x), own(y))
        simulation.step(x, y)
        is_simulated(net, trainer, simulation)
    elements = START.size
    n = world().size
    codes = -(-elements * {"2bit": 2, "1bit": 1, "sign": 1}.get(kind or "", 0) // 32)
    expected = (n - 1) * 4 * -(-codes // 16) * 16 or 2 * (n - 1) * elements * (2 if kind in LOW else 4) // n
    assert step.wire_bytes == trainer.wire_bytes == expected


def eager_run(kind: str, **how: Any) -> None:
    net, loss = linear(), gluon.loss.L2Loss()
    trainer = trainer_of(net, kind, **how)
    simulation = Simulation(kind, world().size, how.get("momentum"))
    for x, y in zip(X, Y, strict=True):
        with autograd.record():
            value = loss(net(nd.array(own(x))), nd.array(own(y)))
        value.backward()
        trainer.step(len(x))
        simulation.step(x, y)
        is_simulated(net, trainer, simulation)


def check_uncompressed() -> None:
    compiled_run(None)


def check_compiled_steps() -> None:
    for kind in ("2bit", "1bit", "sign", "fp16", "bf16"):
        compiled_run(kind)


def check_eager_steps() -> None:
    for kind in ("2bit", "1bit", "sign", "fp16", "bf16"):
        eager_run(kind)


def check_updates_by_the_trainer() -> None:
    """With update_on_kvstore=False the sum is put into the gradients."""
    for kind in ("2bit", "bf16"):
        compiled_run(kind, update_on_kvstore=False)
        eager_run(kind, update_on_kvstore=False)


def check_majority_votes() -> None:
    """signSGD and Signum take the sign of the sum of signs for the gradient."""
    for momentum in (0.0, 0.9):
        compiled_run("sign", optimizer="signum", momentum=momentum)
        eager_run("sign", optimizer="signum", momentum=momentum)


def check_several_contexts() -> None:
    """The contexts of a rank are summed as they are: it sends, and keeps back, as if it had one."""
    net = linear([cpu(0), cpu(1)])
    trainer = trainer_of(net, "2bit")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    simulation = Simulation("2bit", world().size)
    for x, y in zip(X, Y, strict=True):
        step(own(x), own(y))
        simulation.step(x, y)
        is_simulated(net, trainer, simulation)


def check_accumulated_gradients() -> None:
    """They are compressed once, as a whole; `grads` gives sums that are not compressed."""
    net = linear()
    trainer = trainer_of(net, "2bit")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    simulation = Simulation("2bit", world().size)
    for x, y in zip(X, Y, strict=True):
        (exact,) = step.grads(own(x), own(y)).values()
        np.testing.assert_allclose(exact.asnumpy(), simulation.gradient(x, y), rtol=1e-4, atol=1e-5)
        half = len(own(x)) // 2
        for part in (slice(half), slice(half, None)):
            step.accumulate(own(x)[part], own(y)[part])
        step.apply(len(x))
        simulation.step(x, y)
        is_simulated(net, trainer, simulation)


def check_skipped_steps() -> None:
    """A gradient that is not finite on one rank changes nothing on any, residuals included."""
    net = linear()
    trainer = trainer_of(net, "2bit")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer, precision="16-mixed")
    for _ in range(10):  # the first scales are too large
        step(own(X[0]), own(Y[0]))
    kept = next(iter(trainer.residual_arrays(trainer.names).values()))
    before = kept.asnumpy(), net.weight.data().asnumpy()
    assert step.skipped < 10 and np.abs(before[0]).max() > 0
    x = own(X[1]).copy()
    if world().rank == 1:
        x[0, 0] = np.inf
    skipped = step.skipped
    step(x, own(Y[1]))
    assert step.skipped == skipped + 1
    np.testing.assert_array_equal(kept.asnumpy(), before[0])
    np.testing.assert_array_equal(net.weight.data().asnumpy(), before[1])


def check_residuals_in_files() -> None:
    """A file of the trainer's has the residuals of the rank that wrote it: it gets them back, and no other rank does. A
    checkpoint of the step, which all ranks write together, has those of all."""
    net = linear()
    trainer = trainer_of(net, "2bit")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    step(own(X[0]), own(Y[0]))
    kept = next(iter(trainer.residual_arrays(trainer.names).values()))
    mine, rank = kept.asnumpy(), world().rank
    assert np.abs(mine).max() > 0
    with tempfile.TemporaryDirectory() as folder:
        names = world().exchange(f"{folder}/states")
        trainer.save_states(names[rank])
        kept[:] = 7
        trainer.load_states(names[rank])
        np.testing.assert_array_equal(kept.asnumpy(), mine)
        world().barrier()
        trainer.load_states(names[0])
        np.testing.assert_array_equal(kept.asnumpy(), mine if rank == 0 else 0 * mine)
        kept[:] = nd.array(mine)
        step.save(names[0] + ".run")
        kept[:] = 7
        step.load(names[0] + ".run")
        np.testing.assert_array_equal(kept.asnumpy(), mine)
        world().barrier()


def check_sharded_state_is_refused() -> None:
    trainer = trainer_of(linear(), "2bit", strategy="zero1")
    with pytest.raises(ValueError, match="strategy='zero1' with compression_params"):
        trainer.prepare()


def check_codes_are_of_float32_alone() -> None:
    net = nn.Dense(1, in_units=2)
    net.cast("float64")
    net.initialize()
    x, y = nd.ones((2, 2), dtype="float64"), nd.ones((2, 1), dtype="float64")
    with pytest.raises(MXNetError, match="float32 alone"):
        mx.compile(net, gluon.loss.L2Loss(), trainer_of(net, "1bit"))(x, y)
    mx.compile(net, gluon.loss.L2Loss(), trainer_of(net, "bf16"))(x, y)
    same_everywhere(weights(net))


CHECKS: list[Check] = [
    check_uncompressed,
    check_compiled_steps,
    check_eager_steps,
    check_updates_by_the_trainer,
    check_majority_votes,
    check_several_contexts,
    check_accumulated_gradients,
    check_skipped_steps,
    check_residuals_in_files,
    check_sharded_state_is_refused,
    check_codes_are_of_float32_alone,
]


def on_each_rank() -> None:
    run_checks(CHECKS)


@needs_mpi
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_ranks(check: Check, number: int) -> None:
    assert_passed(number, on_each_rank, check)


@needs_mpi
@pytest.mark.parametrize("number", [2, 4])
def test_jobs_end(number: int) -> None:
    assert_clean(number, on_each_rank)


# -- digits


def accuracy(kind: str | None, seed: int, optimizer: str = "sgd", **settings: float) -> float:
    """The accuracy on digits that training has not seen, of a small network after 30 epochs."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(pixels))
    x, y = (pixels[order] / 16).astype(np.float32), labels[order].astype(np.float32)
    net = nn.HybridSequential(prefix="d_")
    with net.name_scope():
        net.add(nn.Dense(64, in_units=64, activation="relu"), nn.Dense(10, in_units=64))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    params = {"type": kind, "threshold": THRESHOLD} if kind else None
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings, kvstore="dist_sync", compression_params=params)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    train, batch, rng = 1408, 32, np.random.RandomState(seed)
    for _ in range(30):
        for rows in rng.permutation(train).reshape(-1, batch):
            step(x[own(rows)], y[own(rows)])
    return float((step.predict(x[train:]).asnumpy().argmax(1) == y[train:]).mean())


def check_digits() -> None:
    """In the mean of three runs, 2 bits are within half a percent of 32; so are 16. Votes train, too."""
    seeds = (1, 2, 3)
    plain = np.mean([accuracy(None, seed, learning_rate=0.2) for seed in seeds])
    assert plain > 0.97, plain
    for kind in ("2bit", "bf16", "fp16"):
        found = np.mean([accuracy(kind, seed, learning_rate=0.2) for seed in seeds])
        assert found > plain - 0.005, (kind, found, plain)
    votes = np.mean([accuracy("sign", seed, "signum", learning_rate=0.001, momentum=0.9) for seed in seeds])
    assert votes > 0.95, votes


def digits_on_each_rank() -> None:
    run_checks([check_digits])


@needs_mpi
def test_digits() -> None:
    pytest.importorskip("sklearn")
    assert_passed(2, digits_on_each_rank, check_digits)
