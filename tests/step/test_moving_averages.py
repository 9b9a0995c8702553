"""Running averages of the weights, kept by the kernels that update them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug, gluon
from gluongraph.errors import FormatError, MXNetError

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)
LOSS = gluon.loss.L2Loss()


def made(dtype: str = "float32", ctx: Any = None, **options: Any) -> Any:
    mx.random.seed(5)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.Dense(2, in_units=3))
    net.initialize(ctx=ctx)
    net.cast(dtype)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2, "multi_precision": True})
    return net, mx.compile(net, LOSS, trainer, **options)


@pytest.mark.parametrize("backend", ["", "reference"])
def test_they_follow_the_weights(backend: str) -> None:
    with debug.override(backend=backend):
        net, step = made(ema=0.75)
        expected = {p.name: p.data().asnumpy().astype(np.float64) for p in net.collect_params().values()}
        for decay in (0.75, 0.75, 0.5):
            step.averages.decay = decay
            step(X, Y)
            for p in net.collect_params().values():
                expected[p.name] = decay * expected[p.name] + (1 - decay) * p.data().asnumpy()
        assert step.averages.keys() == expected.keys()
        for name, average in step.averages.items():
            np.testing.assert_allclose(average.asnumpy(), expected[name], rtol=1e-6, atol=1e-7)
        assert len(step._specializations.all) == 1


def test_of_halves_they_follow_the_master_weights() -> None:
    with debug.override(backend="reference"):
        net, step = made("float16", ema=0.5)
        start = {p.name: p.data().asnumpy().astype(np.float64) for p in net.collect_params().values()}
        step(X.astype(np.float16), Y.astype(np.float16))
        for name, average in step.averages.items():
            master = step.trainer.state_arrays([name])[f"{name}/master"].asnumpy()
            assert average.dtype == np.float32
            np.testing.assert_allclose(average.asnumpy(), 0.5 * start[name] + 0.5 * master, rtol=1e-6)


@pytest.mark.parametrize("ctx", [None, [mx.cpu(0), mx.cpu(1)]])
def test_averaged(ctx: Any, tmp_path: pathlib.Path) -> None:
    with debug.override(backend="reference"):
        net, step = made(ema=0.9, ctx=ctx)
        for _ in range(3):
            step(X, Y)
        before = [a.asnumpy() for p in net.collect_params().values() for a in p.list_data()]
        plain = step.predict(X).asnumpy()
        with pytest.raises(ZeroDivisionError), step.averaged():
            for p in net.collect_params().values():
                for array in p.list_data():
                    assert (array.asnumpy() == step.averages[p.name].asnumpy()).all()
            assert (step.predict(X).asnumpy() != plain).any()
            with pytest.raises(MXNetError, match=r"training within averaged\(\)"):
                step(X, Y)
            with pytest.raises(MXNetError, match=r"averaged\(\) within averaged\(\)"), step.averaged():
                pass
            with pytest.raises(MXNetError, match="leave the block"):
                step.save(tmp_path)
            raise ZeroDivisionError
        after = [a.asnumpy() for p in net.collect_params().values() for a in p.list_data()]
        assert all((a == b).all() for a, b in zip(before, after, strict=True))
        step(X, Y)


def test_errors(tmp_path: pathlib.Path) -> None:
    for decay in (1, -0.1, float("nan"), "0.9"):
        with pytest.raises(ValueError, match="ema is a decay"):
            made(ema=decay)
    with debug.override(backend="reference"):
        _, step = made()
        assert step.averages is None
        with pytest.raises(MXNetError, match=r"ema=0.999"), step.averaged():
            pass
        _, kept = made(ema=0.9)
        kept(X, Y)
        kept.save(tmp_path)
        with pytest.raises(FormatError, match="averages of the parameters"):
            step.load(tmp_path)
        net = made()[0]
        trainer = gluon.Trainer(net.collect_params(), Half())
        with pytest.raises(MXNetError, match="ema, where Python acts"):
            mx.compile(net, LOSS, trainer, ema=0.9)(X, Y)


class Half(mx.optimizer.Optimizer):
    """As people wrote them for MXNet."""

    def create_state(self, index: Any, weight: Any) -> None:
        return None

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        weight[:] = weight * 0.5
