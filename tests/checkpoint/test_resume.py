"""Ten steps, a checkpoint, ten more from it: the same bits as twenty in a row, whatever is trained by what."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training import Training, X, Y, network, seed

import gluongraph as mx
from gluongraph import cpu, debug, gluon, lr_scheduler, nd
from gluongraph.optimizer import Optimizer

NAMES = sorted(name for name, made in Optimizer.opt_registry.items() if made.__module__.startswith("gluongraph."))


def same_bits(
    run: pathlib.Path, make: Callable[[], Training], before: int = 10, after: int = 10, **how: Any
) -> Training:
    """20 steps, of which the last 10 are done again by new objects from a checkpoint, in the middle of an epoch: what
    has gone on from it."""
    seed(1)
    straight = make()
    straight.go(before)
    straight.save(run, **how)
    losses, state = straight.go(after), straight.state()
    straight.step.wait()
    seed(2)
    again = make()
    again.load(run)
    assert again.go(after) == losses
    assert again.state() == state
    return again


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer(name: str, tmp_path: pathlib.Path) -> None:
    """In the middle of an epoch and of a window; gradients overflow before the checkpoint and after."""

    def made() -> Training:
        return Training(name, precision="16-mixed", window=3, overflows=(2, 14))

    with debug.override(backend="reference"):
        again = same_bits(tmp_path, made)
        assert again.step.accumulator.batches == 2
        first = made()
        first.load(tmp_path)
        assert 0 < first.step.skipped < again.step.skipped < 12


class Slowing(lr_scheduler.LRScheduler):
    """As people wrote them for MXNet: it remembers."""

    def __init__(self) -> None:
        super().__init__(base_lr=0.1)
        self.seen = 0

    def __call__(self, num_update: int) -> float:
        if num_update > self.seen:
            self.seen, self.base_lr = num_update, self.base_lr * 0.9
        return self.base_lr


VARIANTS: dict[str, Callable[[], Training]] = {
    "momentum": lambda: Training("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    "schedule": lambda: Training("adam", {"lr_scheduler": lr_scheduler.CosineScheduler(30, 0.1, warmup_steps=5)}),
    "own schedule": lambda: Training("sgd", {"lr_scheduler": Slowing()}),
    "float16": lambda: Training("adam", {"learning_rate": 0.01, "multi_precision": True}, "float16"),
    "bfloat16": lambda: Training("adam", {"learning_rate": 0.01, "multi_precision": True}, "bfloat16"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, tmp_path: pathlib.Path) -> None:
    with debug.override(backend="reference"):
        same_bits(tmp_path, VARIANTS[name])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_compiled(asynchronous: bool, tmp_path: pathlib.Path) -> None:
    same_bits(tmp_path, Training, asynchronous=asynchronous)


def test_in_another_process(tmp_path: pathlib.Path) -> None:
    seed(1)
    straight = Training()
    straight.go(10)
    straight.save(tmp_path)
    expected = repr((straight.go(10), straight.state()))
    program = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from training import Training
again = Training()
again.load({str(tmp_path)!r})
print(repr((again.go(10), again.state())))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_a_net_that_has_seen_no_batch_yet(tmp_path: pathlib.Path) -> None:
    """Its shapes come from the checkpoint, too."""

    def made() -> Any:
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(4, activation="relu"), gluon.nn.Dense(1))
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
        return net, mx.compile(net, gluon.loss.L2Loss(), trainer)

    with debug.override(backend="reference"):
        seed(1)
        net, step = made()
        net(nd.array(X))
        step(X, Y)
        step.save(tmp_path)
        expected = [step(X, Y).asnumpy() for _ in range(2)]
        _, again = made()
        assert again.load(tmp_path) == {}
        for loss in expected:
            np.testing.assert_array_equal(again(X, Y).asnumpy(), loss)


def test_what_is_set_during_training_comes_back(tmp_path: pathlib.Path) -> None:
    with debug.override(backend="reference"):
        first = Training()
        first.go(1)
        first.trainer.set_learning_rate(0.5)
        first.trainer.optimizer.beta1 = 0.7
        first.net[0].weight.lr_mult = 3.0
        first.save(tmp_path)
        losses = first.go(3)
        again = Training()
        again.load(tmp_path)
        assert again.trainer.learning_rate == 0.5 and again.trainer.optimizer.beta1 == 0.7
        assert again.net[0].weight.lr_mult == 3.0
        assert again.go(3) == losses


def test_gradients_that_are_added_up(tmp_path: pathlib.Path) -> None:
    """What grad_req="add" has gathered is added to by the next step, so it is state."""

    def made() -> Training:
        training = Training("sgd")
        training.net.collect_params().setattr("grad_req", "add")
        return training

    with debug.override(backend="reference"):
        same_bits(tmp_path, made, 3, 3)


MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}


def on_two(**how: Any) -> Training:
    training = Training("adam")
    training.net.collect_params().reset_ctx([cpu(0), cpu(1)])
    training.trainer = gluon.Trainer(
        training.net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **how
    )
    training.step = mx.compile(training.net, gluon.loss.SoftmaxCrossEntropyLoss(), training.trainer)
    return training


@pytest.mark.parametrize("on_store", [True, False])
def test_several_contexts_with_compression(on_store: bool, tmp_path: pathlib.Path) -> None:
    """Running statistics differ between contexts, and go on to; compression keeps something back on each."""
    how = {"update_on_kvstore": on_store, "compression_params": {"type": "2bit", "threshold": 0.05}}
    with debug.override(backend="reference"):
        same_bits(tmp_path, lambda: on_two(**how), 5, 5)


@pytest.mark.parametrize("on_store", [True, False])
def test_names_with_a_sign_of_contexts(on_store: bool, tmp_path: pathlib.Path) -> None:
    """A @ in a name is no replica of a parameter."""

    def training() -> Any:
        mx.random.seed(3)
        net = gluon.nn.Dense(2, in_units=3, prefix="a@cpu(1)b@")
        net.initialize(ctx=[cpu(0), cpu(1)])
        trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=on_store)
        return mx.compile(net.forward, gluon.loss.L2Loss(), trainer)

    batch = nd.ones((4, 3)), nd.ones((4, 2))
    with debug.override(backend="reference"):
        one, other = training(), training()
        one(*batch)
        one.save(tmp_path)
        other.load(tmp_path)
        assert one(*batch).asnumpy().tobytes() == other(*batch).asnumpy().tobytes()


def test_on_fewer_contexts(tmp_path: pathlib.Path) -> None:
    """Weights and states are those of all; statistics their mean; what was kept back on both is kept back on one."""
    with debug.override(backend="reference"):
        two = on_two(compression_params={"type": "2bit", "threshold": 0.05})
        two.go(3)
        two.save(tmp_path)
        one = Training("sgd", MOMENTUM)
        one.load(tmp_path)
        pairs = (t.net._collect_params_with_prefix() for t in (one, two))
        for (key, p), q in zip(next(pairs).items(), next(pairs).values(), strict=True):
            np.testing.assert_array_equal(p.data().asnumpy(), q.averaged(), err_msg=key)
        states = two.trainer.state_arrays(two.trainer.states)
        for mine, theirs in zip(one.trainer.state_arrays(one.trainer.states).values(), states.values(), strict=True):
            np.testing.assert_array_equal(mine.asnumpy(), theirs.asnumpy())
        one.go(1)


class Counting(Optimizer):
    """Written for MXNet, with nested states."""

    def create_state(self, index: Any, weight: nd.NDArray) -> Any:
        return (nd.zeros(weight.shape, ctx=weight.context), (None, nd.ones((1,), ctx=weight.context)))

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        self._update_count(index)
        mom, (_, number) = state
        mom[:] = 0.5 * mom - 0.1 * number * grad
        number[:] = number + 1
        weight[:] = weight + mom


def test_an_optimizer_without_a_formula(tmp_path: pathlib.Path) -> None:
    def trained(run: str) -> Any:
        net = network()
        trainer = gluon.Trainer(net.collect_params(), Counting())
        step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
        if run:
            step.load(run)
        return step

    with debug.override(backend="reference"):
        step = trained("")
        step(X, Y)
        step.save(tmp_path)
        expected = [step(X, Y).asnumpy() for _ in range(3)]
        again = trained(str(tmp_path))
        for loss in expected:
            np.testing.assert_array_equal(again(X, Y).asnumpy(), loss)


def test_steps_of_functions_go_by_the_names_of_parameters(tmp_path: pathlib.Path) -> None:
    def made() -> Any:
        w = gluon.Parameter("w", shape=(5, 1))
        w.initialize(mx.init.One())
        trainer = gluon.Trainer([w], "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        return w, mx.compile(lambda x: (nd.dot(x, w.data()) ** 2).sum(), trainer=trainer)

    with debug.override(backend="reference"):
        w, step = made()
        step(X)
        step.save(tmp_path)
        step(X)
        v, again = made()
        again.load(tmp_path)
        again(X)
        np.testing.assert_array_equal(v.data().asnumpy(), w.data().asnumpy())
