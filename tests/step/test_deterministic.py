"""`deterministic`: the same bits on 1, 2 and 4 ranks, and in one process that knows of no ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from ranks import needs_mpi, run_ranks

import gluongraph as mx
from gluongraph import gluon
from gluongraph.errors import IndexRangeError, MXNetError
from gluongraph.runtime.communicator.environment import world

SAMPLES, STEPS = 32, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((STEPS, SAMPLES, 3, 8, 8)).astype(np.float32)
Y = RNG.integers(0, 10, (STEPS, SAMPLES)).astype(np.int32)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("adam", {"deterministic": True}),
    "clipped": ("sgd", {"deterministic": 8, "clip_norm": 0.1}),
    "lamb in bf16": ("lamb", {"deterministic": 4, "precision": "bf16-mixed"}),
}


def compiled(optimizer: str, store: str, how: dict[str, Any]) -> Any:
    mx.random.seed(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 3, in_channels=3), gluon.nn.BatchNorm(in_channels=8), gluon.nn.Activation("relu"))
    net.add(gluon.nn.Flatten(), gluon.nn.Dense(33, activation="relu", in_units=8 * 36), gluon.nn.Dropout(0.5))
    net.add(gluon.nn.Dense(10, in_units=33))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-2}, kvstore=store)
    return mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **how)


def digest(case: str, store: str = "dist_sync") -> str:
    """Of all parameters and statistics after some steps, each rank with its part of the batches."""
    optimizer, how = CASES[case]
    step = compiled(optimizer, store, how)
    own = SAMPLES // world().size
    mine = slice(world().rank * own, (world().rank + 1) * own)
    for x, y in zip(X, Y, strict=True):
        step(x[mine], y[mine])
    values = (p.data().asnumpy() for p in step.trainer.params)
    return hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()


def on_ranks(case: str) -> None:
    print(digest(case))


def refused_together() -> None:
    """A batch that one rank refuses changes nothing on any."""
    step = compiled("sgd", "dist_sync", {"deterministic": 4})
    before = [p.data().asnumpy() for p in step.trainer.params]
    labels = np.full(8, 11 if world().rank == 1 else 1, np.int32)
    with pytest.raises(IndexRangeError if world().rank == 1 else MXNetError):
        step(X[0][:8], labels)
    for p, value in zip(step.trainer.params, before, strict=True):
        np.testing.assert_array_equal(p.data().asnumpy(), value)
    step(X[0][:8], Y[0][:8])


def counted() -> None:
    """Gradients and running statistics are what each rank sends, once."""
    step = compiled("sgd", "dist_sync", {"deterministic": 4})
    step(X[0][:8], Y[0][:8])
    assert step.wire_bytes == sum(p.data().asnumpy().nbytes for p in step.trainer.params)
    step.predict(X[0][:8])
    assert step.wire_bytes == 0


@needs_mpi
def test_the_bytes_that_are_sent() -> None:
    run_ranks(2, counted)


@needs_mpi
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_on_any_number_of_ranks(case: str) -> None:
    alone = digest(case, "device")
    for ranks in (2, 4):
        assert {text.strip() for text in run_ranks(ranks, on_ranks, case)} == {alone}, ranks


@needs_mpi
def test_a_refused_batch() -> None:
    run_ranks(2, refused_together)


@pytest.mark.parametrize("wrong", [3, -1, "yes", 2.5])
def test_numbers_that_are_no_powers_of_two_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="deterministic is True, False or a number of micro-batches"):
        compiled("sgd", "device", {"deterministic": wrong})


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    step = compiled("sgd", "device", {"deterministic": 8})
    with pytest.raises(ValueError, match="micro-batches"):
        step(X[0][:30], Y[0][:30])
