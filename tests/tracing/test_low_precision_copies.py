"""16-bit copies of weights: whoever writes a weight, the next call multiplies with what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.gluon import eager_update, nn
from gluongraph.step import TrainStep

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(4, 6)).astype(np.float32), RNG.normal(size=(4, 3)).astype(np.float32)
LOSS = gluon.loss.L2Loss()
LOW = {"bf16-mixed": "bf16", "16-mixed": "f16"}


def made(precision: str = "bf16-mixed", optimizer: str = "sgd") -> tuple[nn.HybridSequential, TrainStep]:
    mx.random.seed(1)
    np.random.seed(1)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, activation="tanh", in_units=6), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Xavier())
    return net, compiled(net, precision, gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1}))


def compiled(net: Any, precision: str, trainer: gluon.Trainer | None) -> TrainStep:
    step: TrainStep = mx.compile(net, LOSS, trainer, precision=precision)
    return step


def copies(step: TrainStep) -> dict[str, str]:
    """The names of the copies that a plan reads and writes, with their dtypes."""
    buffers = [b for launch in step.plan.launches for b in launch.buffers if b.space == "state"]
    return {b.name: b.type.dtype for b in buffers if b.name.endswith(("/bf16", "/f16"))}


@pytest.mark.parametrize("precision", LOW)
def test_the_update_writes_what_products_read(precision: str) -> None:
    net, step = made(precision)
    step(X, Y)
    names = {f"net_dense{i}_weight/{LOW[precision]}": LOW[precision] for i in range(2)}
    assert copies(step) == names
    assert {b.name for b in step.plan.updates.values()} >= names.keys()
    for launch in step.plan.launches:  # nothing but data and activations is rounded on its way
        body = launch.group.body
        memory = dict(zip(body.inputs.values(), launch.reads, strict=True))
        rounded = [n for n in body.nodes() if n.op.name == "cast" and n.dtype == LOW[precision] and n.src[0] in memory]
        assert not [n for n in rounded if memory[n.src[0]].space == "state"], launch.label
    for name, p in net.collect_params().items():
        kept = p.data().storage.copies
        assert bool(kept) == name.endswith("weight")
        for dtype, copy in kept.items():
            assert dtype == LOW[precision]
            np.testing.assert_array_equal(copy.asnumpy(), p.data().asnumpy().astype(copy.dtype))


def new_weight(weight: Any) -> Any:
    return nd.array(RNG.normal(size=weight.shape))


def set_data(net: Any, step: TrainStep, path: Path) -> None:
    net[0].weight.set_data(new_weight(net[0].weight))


def assign(net: Any, step: TrainStep, path: Path) -> None:
    net[0].weight.data()[:] = new_weight(net[0].weight)


def assign_a_part(net: Any, step: TrainStep, path: Path) -> None:
    net[0].weight.data()[1:3] = 0.25


def write_into_a_view(net: Any, step: TrainStep, path: Path) -> None:
    net[0].weight.data()[1:3][:] = 0.5


def in_place(net: Any, step: TrainStep, path: Path) -> None:
    weight = net[1].weight.data()
    weight *= 0.5


def out(net: Any, step: TrainStep, path: Path) -> None:
    nd.negative(net[1].weight.data(), out=net[1].weight.data())


def another_library(net: Any, step: TrainStep, path: Path) -> None:
    np.from_dlpack(net[0].weight.data())  # and so from now on
    memory = net[0].weight.data().storage.array
    memory[...] = new_weight(net[0].weight).asnumpy()


def initialize(net: Any, step: TrainStep, path: Path) -> None:
    net.initialize(mx.init.Uniform(0.3), force_reinit=True)


def load_parameters(net: Any, step: TrainStep, path: Path) -> None:
    other, _ = made()
    for p in other.collect_params().values():
        p.set_data(new_weight(p))
    other.save_parameters(str(path / "x.params"))
    net.load_parameters(str(path / "x.params"))


def eager_step(net: Any, step: TrainStep, path: Path) -> None:
    with autograd.record():
        loss = LOSS(net(nd.array(X)), nd.array(Y))
    loss.backward()
    assert step.trainer is not None
    step.trainer.step(4)


def load(net: Any, step: TrainStep, path: Path) -> None:
    step.save(path)
    step(X, Y)
    step(X, Y)
    step.load(path)


def float32_step(net: Any, step: TrainStep, path: Path) -> None:
    compiled(net, "32", step.trainer)(X, Y)


def step_in_float16(net: Any, step: TrainStep, path: Path) -> None:
    compiled(net, "16-mixed", step.trainer)(X, Y)


def another_trainer(net: Any, step: TrainStep, path: Path) -> None:
    compiled(net, "bf16-mixed", gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3}))(X, Y)


def a_large_eager_step(net: Any, step: TrainStep, path: Path) -> None:
    """By a compiled kernel, which writes by address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager_update, "WORTH_COMPILING", 0)
        eager_step(net, step, path)


WRITERS: tuple[Callable[[Any, TrainStep, Path], None], ...] = (
    set_data,
    assign,
    assign_a_part,
    write_into_a_view,
    in_place,
    out,
    another_library,
    initialize,
    load_parameters,
    eager_step,
    a_large_eager_step,
    load,
    float32_step,
    step_in_float16,
    another_trainer,
)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda f: f.__name__)
def test_whoever_writes_a_weight(writer: Callable[[Any, TrainStep, Path], None], tmp_path: Path) -> None:
    """Predictions, losses and updates afterwards are those of a net that has been compiled with these weights."""
    net, step = made()
    step(X, Y)
    step.predict(X)
    writer(net, step, tmp_path)
    other, fresh = made()
    for p, q in zip(net.collect_params().values(), other.collect_params().values(), strict=True):
        q.set_data(p.data())
    for _ in range(2):
        np.testing.assert_array_equal(step.predict(X).asnumpy(), fresh.predict(X).asnumpy())
        np.testing.assert_array_equal(step.evaluate(X, Y).asnumpy(), fresh.evaluate(X, Y).asnumpy())
        np.testing.assert_array_equal(step(X, Y).asnumpy(), fresh(X, Y).asnumpy())
        for p, q in zip(net.collect_params().values(), other.collect_params().values(), strict=True):
            np.testing.assert_array_equal(p.data().asnumpy(), q.data().asnumpy())


def test_a_net_without_trainer_reads_copies_too() -> None:
    net, _ = made()
    step = compiled(net, "bf16-mixed", None)
    before = step.predict(X).asnumpy()
    assert len(copies(step)) == 2
    for p in net.collect_params().values():
        p.set_data(p.data() * 2)
    assert not np.array_equal(step.predict(X).asnumpy(), before)


def test_a_step_that_is_left_out_leaves_the_copies() -> None:
    net, step = made("16-mixed")
    step(X, Y)
    before = net[0].weight.data().storage.copies["f16"].asnumpy()
    step(np.full_like(X, np.inf), Y)
    assert step.skipped == 1
    np.testing.assert_array_equal(net[0].weight.data().storage.copies["f16"].asnumpy(), before)


def test_weights_that_have_been_moved_about_and_replicas_have_copies() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.Dense(3, use_bias=False, in_units=6)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step: TrainStep = mx.compile(
        lambda x: nd.dot(x, net.weight.data(x.context).T).sum(axis=1), trainer=trainer, precision="bf16-mixed"
    )
    for _ in range(2):
        step(X)
    assert len(copies(step)) == 2
    for weight in net.weight.list_data():
        copy = weight.storage.copies["bf16"]
        np.testing.assert_array_equal(copy.asnumpy(), weight.asnumpy().astype(copy.dtype))
