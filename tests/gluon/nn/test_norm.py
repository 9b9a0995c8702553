"""Group and instance normalization, and batch normalization's settings, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both import eager_is_hybridized
from numpy_layers import normalized

from gluongraph import MXNetError, autograd, nd
from gluongraph.gluon import nn

RNG = np.random.default_rng(7)


def drawn(layer: Any, x: Any) -> tuple[Any, Any, Any]:
    """The result, and gamma and beta, which are random."""
    layer.initialize()
    layer(nd.array(x))
    for vector in (layer.gamma, layer.beta):
        vector.set_data(nd.array(RNG.normal(size=vector.shape)))
    return layer(nd.array(x)).asnumpy(), layer.gamma.data().asnumpy(), layer.beta.data().asnumpy()


def check(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape,groups", [((2, 6, 3, 5), 3), ((2, 4, 7), 1), ((3, 4, 5), 4)])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    x = RNG.normal(size=shape) * 2 + 1
    y, gamma, beta = drawn(nn.GroupNorm(groups, epsilon=1e-3), x)
    grouped = normalized(x.reshape(shape[0], groups, -1), (2,), 1e-3)
    check(y, (grouped * gamma[:, None] + beta[:, None]).reshape(shape))
    assert gamma.shape == (groups,)


@pytest.mark.parametrize("axis,shape", [(1, (2, 3, 4, 5)), (-1, (2, 4, 5, 3)), (2, (2, 4, 3))])
def test_instance_norm(axis: int, shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape) * 2 + 1
    layer = nn.InstanceNorm(axis, scale=True)
    y, gamma, beta = drawn(layer, x)
    wide = [3 if a == axis % len(shape) else 1 for a in range(len(shape))]
    others = tuple(a for a in range(1, len(shape)) if a != axis % len(shape))
    check(y, normalized(x, others, 1e-5) * gamma.reshape(wide) + beta.reshape(wide))
    assert nn.InstanceNorm().gamma.grad_req == "null"  # without scale, as by default, gamma is not trained


def test_layer_norm_of_another_axis() -> None:
    x = RNG.normal(size=(2, 3, 4))
    y, gamma, beta = drawn(nn.LayerNorm(axis=1), x)
    check(y, normalized(x, (1,), 1e-5) * gamma[:, None] + beta[:, None])


def test_batch_norm_with_relu() -> None:
    x = nd.array(RNG.normal(size=(4, 3, 5)))
    layer = nn.BatchNormReLU()
    layer.initialize()
    with autograd.train_mode():
        check(layer(x).asnumpy(), np.maximum(normalized(x.asnumpy(), (0, 2), 1e-5), 0))


def test_the_operator() -> None:
    """nd.BatchNorm fixes gamma to 1 unless told otherwise, and moves its statistics in training."""
    x = RNG.normal(size=(4, 3, 5))
    mean, var = nd.zeros((3,)), nd.ones((3,))
    gamma, beta = nd.array([2, 3, 4]), nd.array([0, 1, 2])
    with autograd.record():
        fixed = nd.BatchNorm(nd.array(x), gamma, beta, mean, var, momentum=0.5)
    check(fixed.asnumpy(), normalized(x, (0, 2), 1e-3) + np.array([0, 1, 2])[:, None])
    check(mean.asnumpy(), x.mean((0, 2)) / 2)
    check(var.asnumpy(), 0.5 + x.var((0, 2)) / 2)
    scaled = nd.BatchNorm(nd.array(x), gamma, beta, nd.zeros((3,)), nd.ones((3,)), eps=0, fix_gamma=False, axis=-2)
    check(scaled.asnumpy(), x * np.array([2, 3, 4])[:, None] + np.array([0, 1, 2])[:, None])


def test_hybridized() -> None:
    eager_is_hybridized(
        {
            "groups": (nn.GroupNorm(2), (3, 4, 5, 3)),
            "instances": (nn.InstanceNorm(scale=True), (3, 4, 17)),
            "instances of the last axis": (nn.InstanceNorm(-1), (3, 5, 4)),
            "relu": (nn.BatchNormReLU(), (4, 3, 5)),
            "rows": (nn.LayerNorm(axis=1), (4, 6, 3)),
        }
    )


REPRS: list[tuple[Any, str]] = [
    (nn.BatchNormReLU, "BatchNormReLU(axis=1, eps=1e-05, momentum=0.9, fix_gamma=False, use_global_stats=False, "
     "in_channels=None)"),
    (nn.LayerNorm, "LayerNorm(eps=1e-05, axis=-1, center=True, scale=True, in_channels=0)"),
    (lambda: nn.GroupNorm(3), "GroupNorm(eps=1e-05, num_groups=3, center=True, scale=True)"),
    (lambda: nn.InstanceNorm(in_channels=4), "InstanceNorm(eps=1e-05, axis=1, center=True, scale=False, "
     "in_channels=4)"),
]  # fmt: skip


@pytest.mark.parametrize("make,text", REPRS)
def test_repr(make: Any, text: str) -> None:
    assert repr(make()) == text


def run(layer: Any, *shape: int) -> Any:
    layer.initialize()
    return layer(nd.zeros(shape))


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: run(nn.GroupNorm(3), 2, 4, 5), MXNetError, "as many as divide the channels"),
    (lambda: run(nn.InstanceNorm(3), 2, 4, 5), MXNetError, "has no axis 3"),
    (lambda: run(nn.LayerNorm(in_channels=5), 2, 4), MXNetError, "the parameters do not fit"),
    (lambda: run(nn.BatchNorm(in_channels=5), 2, 4), MXNetError, "the parameters do not fit"),
    (lambda: nd.GroupNorm(nd.zeros((2, 4, 5)), nd.zeros((4,)), nd.zeros((4,)), 2), MXNetError, "num_groups=2"),
    (lambda: nd.InstanceNorm(nd.zeros((2, 4, 5)), nd.zeros((2,)), nd.zeros((2,))), MXNetError, "for each channel"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
