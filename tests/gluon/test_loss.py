"""Losses against numpy: per sample, and with weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, nd
from gluongraph.gluon import loss

RNG = np.random.default_rng(5)
P = RNG.normal(size=(4, 3)).astype(np.float32)
Y = RNG.normal(size=(4, 3)).astype(np.float32)
BITS = (Y > 0).astype(np.float32)
CLASSES = np.array([0, 2, 1, 1], np.float32)
W = np.array([1, 0, 2, 0.5], np.float32)
LOG_P = P - np.log(np.exp(P).sum(axis=1, keepdims=True))
PICKED = -LOG_P[np.arange(4), CLASSES.astype(int)]
BCE = np.log1p(np.exp(P)) - P * BITS
SIGMOID = 1 / (1 + np.exp(-P))

CASES: list[tuple[str, Any, tuple[Any, ...], Any]] = [
    ("l2", loss.L2Loss(), (P, Y), ((Y - P) ** 2 / 2).mean(axis=1)),
    ("l2 weight", loss.L2Loss(weight=3.0), (P, Y), 3 * ((Y - P) ** 2 / 2).mean(axis=1)),
    ("l2 sample", loss.L2Loss(), (P, Y, W), W * ((Y - P) ** 2 / 2).mean(axis=1)),
    ("l2 reshaped", loss.L2Loss(), (P, Y.reshape(4, 3, 1)), ((Y - P) ** 2 / 2).mean(axis=1)),
    ("l1", loss.L1Loss(), (P, Y), np.abs(Y - P).mean(axis=1)),
    ("l1 batch axis", loss.L1Loss(batch_axis=1), (P, Y), np.abs(Y - P).mean(axis=0)),
    ("ce", loss.SoftmaxCrossEntropyLoss(), (P, CLASSES), PICKED),
    ("ce column", loss.SoftmaxCELoss(), (P, CLASSES.reshape(4, 1)), PICKED),
    ("ce sample", loss.SoftmaxCELoss(weight=2.0), (P, CLASSES, W), 2 * W * PICKED),
    ("ce dense", loss.SoftmaxCELoss(sparse_label=False), (P, SIGMOID), -(LOG_P * SIGMOID).sum(axis=1)),
    ("ce logits", loss.SoftmaxCELoss(from_logits=True), (LOG_P, CLASSES), PICKED),
    (
        "ce logits dense",
        loss.SoftmaxCELoss(from_logits=True, sparse_label=False),
        (LOG_P, BITS),
        -(LOG_P * BITS).sum(1),
    ),
    ("ce axis", loss.SoftmaxCELoss(axis=1), (np.stack([P, P], axis=2), np.stack([CLASSES] * 2, axis=1)), PICKED),
    ("bce", loss.SigmoidBCELoss(), (P, BITS), BCE.mean(axis=1)),
    ("bce sample", loss.SigmoidBinaryCrossEntropyLoss(), (P, BITS, W), W * BCE.mean(axis=1)),
    ("bce sigmoid", loss.SigmoidBCELoss(from_sigmoid=True), (SIGMOID, BITS), BCE.mean(axis=1)),
]


@pytest.mark.parametrize("name,fn,given,expected", CASES, ids=[c[0] for c in CASES])
def test_loss(name: str, fn: Any, given: tuple[Any, ...], expected: Any) -> None:
    out = fn(*map(nd.array, given))
    assert out.shape == expected.shape
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("from_sigmoid", [False, True])
@pytest.mark.parametrize("weight", [None, W])
def test_positive_weight(from_sigmoid: bool, weight: Any) -> None:
    c = np.array([[2.0, 0.5, 1.0]], np.float32)
    given = SIGMOID if from_sigmoid else P
    expected = -(c * BITS * np.log(SIGMOID) + (1 - BITS) * np.log(1 - SIGMOID)).mean(axis=1)
    arrays = [nd.array(given), nd.array(BITS), None if weight is None else nd.array(weight), nd.array(c)]
    out = loss.SigmoidBCELoss(from_sigmoid=from_sigmoid)(*arrays)
    np.testing.assert_allclose(out.asnumpy(), expected * (1 if weight is None else weight), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_gradient_of_cross_entropy(dtype: str) -> None:
    x = nd.array(P)
    x.attach_grad()
    with autograd.record():
        each = loss.SoftmaxCELoss()(x, nd.array(CLASSES, dtype=dtype))
    each.backward()
    expected = np.exp(LOG_P) - np.eye(3)[CLASSES.astype(int)]
    np.testing.assert_allclose(x.grad.asnumpy(), expected, atol=2e-6)


ERRORS: list[tuple[Any, str]] = [
    (
        lambda: loss.SoftmaxCELoss()(nd.array(P), nd.array(CLASSES[:3])),
        r"labels f32\[3\] do not fit[\s\S]*test_loss.py",
    ),
    (lambda: loss.SoftmaxCELoss(axis=2)(nd.array(P), nd.array(CLASSES)), "no axis 2"),
    (lambda: loss.L2Loss()(nd.array(P), nd.array(CLASSES)), r"L2Loss: the label f32\[4\]"),
]


@pytest.mark.parametrize("call,message", ERRORS)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
