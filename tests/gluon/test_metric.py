"""Metrics against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gluongraph import metric, nd


def test_accuracy() -> None:
    acc = metric.create("acc")
    assert math.isnan(acc.get()[1])
    acc.update([nd.array([0, 1, 1])], [nd.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])])
    assert acc.get() == ("accuracy", pytest.approx(2 / 3))
    acc.update(np.array([1]), np.array([1]))
    assert acc.get()[1] == pytest.approx(3 / 4)
    acc.reset_local()
    assert math.isnan(acc.get()[1]) and acc.get_global()[1] == pytest.approx(3 / 4)
    acc.reset()
    assert math.isnan(acc.get_global()[1])


def test_accuracy_along_another_axis() -> None:
    acc = metric.Accuracy(axis=-1)
    acc.update([nd.array([[0, 1]])], [nd.array([[[2, 1], [1, 2]]])])
    assert acc.get()[1] == 1


def test_top_k() -> None:
    top = metric.create("top_k_accuracy", top_k=2)
    top.update([nd.array([0, 2])], [nd.array([[0.1, 0.2, 0.7], [0.3, 0.1, 0.6]])])
    assert top.get() == ("top_k_accuracy_2", 0.5)
    with pytest.raises(AssertionError):
        metric.TopKAccuracy(top_k=1)


def test_loss() -> None:
    loss = metric.Loss()
    loss.update(None, [nd.array([1, 2, 3])])
    loss.update(None, nd.array([6]))
    assert loss.get() == ("loss", 3.0)


def test_composite_and_custom() -> None:
    both = metric.create(["acc", lambda label, pred: float(np.abs(label - pred).max())])
    both.update([nd.array([1, 0])], [nd.array([1, 1])])
    assert both.get_name_value() == [("accuracy", 0.5), ("custom(<lambda>)", 1.0)]
    both.reset()
    assert all(math.isnan(v) for _, v in both.get_name_value())


ERRORS: list[tuple[Any, str]] = [
    (lambda: metric.create("accurcy"), "did you mean 'accuracy'"),
    (lambda: metric.Accuracy().update([nd.zeros((2,))], [nd.zeros((3, 2))]), "do not fit"),
    (lambda: metric.Accuracy().update([nd.zeros((2,))] * 2, [nd.zeros((2,))]), "2 label arrays"),
]


@pytest.mark.parametrize("call,message", ERRORS)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
