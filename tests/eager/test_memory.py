"""What eager mode keeps: functions, never arrays. An array that nobody refers to any more is freed."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.ir.graph import OPS, Op
from gluongraph.ndarray import NDArray, invoke


def refs(arrays: list[NDArray]) -> list[weakref.ref[Any]]:
    return [ref for a in arrays for ref in (weakref.ref(a), weakref.ref(a.storage.array))]


def alive(found: list[weakref.ref[Any]]) -> list[Any]:
    gc.collect()
    return [ref() for ref in found if ref() is not None]


def run(op: Op, arrays: tuple[Any, ...], attrs: dict[str, Any], recording: bool) -> list[NDArray]:
    """Arguments, results and gradients of an op in eager mode."""
    given = [NDArray(np.array(a)) for a in arrays]
    floats = [a for a in given if is_float(dtype_name(a.dtype))] if recording else []
    for each in floats:
        each.attach_grad()
    with autograd.record() if recording else nullcontext():
        made = invoke(op, *given, **attrs)
    results = made if isinstance(made, list) else [made]
    if heads := [r for r in results if r._source is not None]:
        autograd.backward(heads)
    return [*given, *results, *(each.grad for each in floats if each.grad is not None)]


@pytest.mark.parametrize("recording", [False, True], ids=["plain", "recorded"])
def test_no_op_keeps_an_array(recording: bool) -> None:
    """Of every op and sample: arguments, results and gradients are freed, though the function of the call is kept."""
    gc.collect()
    found: dict[str, list[weakref.ref[Any]]] = {}
    for op in OPS.values():
        for arrays, attrs in op.samples(np.random.default_rng(0)) if op.samples else ():
            if arrays and not any(isinstance(a, tuple) for a in arrays):  # a tuple is no NDArray
                found.setdefault(op.name, []).extend(refs(run(op, arrays, attrs, recording)))
    gc.collect()
    assert len(found) > 100
    assert [name for name, each in found.items() if any(ref() is not None for ref in each)] == []


def kept_by(make: Callable[[], list[Any]]) -> list[Any]:
    return alive([weakref.ref(each) for each in make()])


@pytest.mark.parametrize("name", ["sgd", "adam", "lbsgd", "sgld", "nadam", "lamb"])
def test_a_training_leaves_nothing_behind(name: str) -> None:
    """Parameters, gradients, states, Trainer and Optimizer, of dense and of row-sparse gradients."""

    def train() -> list[Any]:
        net = gluon.nn.Sequential()
        net.add(gluon.nn.Embedding(7, 3, sparse_grad=True), gluon.nn.Dense(4), gluon.nn.BatchNorm())
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), name, {"learning_rate": 0.1})
        for _ in range(2):
            with autograd.record():
                loss = gluon.loss.L2Loss()(net(nd.array([[1, 2]])), nd.ones((1, 4)))
            loss.backward()
            trainer.step(1)
        arrays = [p.data() for p in net.collect_params().values()]
        return [net, trainer, trainer.optimizer, loss, *arrays, *(a.storage.array for a in arrays)]

    assert not kept_by(train)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Test", "DCASGD", "Signum"])
def test_an_updater_leaves_nothing_behind(name: str) -> None:
    """An optimizer called by hand: it knows the parameters, and the functions that it made outlive it."""

    def update() -> list[Any]:
        parameter = gluon.Parameter("w", shape=(3,))
        parameter.initialize()
        optimizer = mx.optimizer.create(name, param_dict={0: parameter})
        updater = mx.optimizer.get_updater(optimizer)
        updater(0, nd.ones((3,)), parameter.data())
        return [optimizer, updater, parameter, parameter.data(), parameter.data().storage.array]

    assert not kept_by(update)


def test_second_gradients_and_parts_leave_nothing_behind() -> None:
    def run() -> list[Any]:
        x = nd.ones((4, 5))
        x.attach_grad()
        with autograd.record():
            y = (x[1:3, ::2] ** 3).sum()
            (g,) = autograd.grad(y, [x], create_graph=True, retain_graph=True)
            z = (g * g).sum()
        z.backward()
        return [x, y, g, z, x.grad, x.storage.array, g.storage.array]

    assert not kept_by(run)


def test_losses_leave_nothing_behind() -> None:
    def run() -> list[Any]:
        made: list[Any] = []
        for loss in (gluon.loss.L1Loss(), gluon.loss.SoftmaxCELoss(), gluon.loss.SDMLLoss(), gluon.loss.HuberLoss()):
            shape = (3, 4)
            label = nd.zeros((3,)) if isinstance(loss, gluon.loss.SoftmaxCELoss) else nd.ones(shape)
            made += [loss, label, loss(nd.ones(shape), label)]
        return made

    assert not kept_by(run)


def test_memory_does_not_grow_with_shapes() -> None:
    """Resident memory over 300 shapes of 4 MB arrays, each seen once."""
    program = """
        import resource
        from gluongraph import autograd, nd

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize() / 2**20

        def work(k):
            x = nd.ones((1500 + k, 700))
            x.attach_grad()
            y = (x - 0.5) / 0.25
            with autograd.record():
                z = (nd.relu(x) * y).sum()
            z.backward()

        for k in range(10):
            work(k)
        before = resident()
        for k in range(10, 310):
            work(k)
        print(resident() - before)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=300
    )
    assert float(found.stdout) < 60, f"{found.stdout} MB more"
