"""Layers against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gluongraph import MXNetError, autograd, nd, random
from gluongraph.gluon import nn

RNG = np.random.default_rng(3)


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def run(layer: Any, *arrays: Any) -> Any:
    layer.initialize()
    return layer(*map(nd.array, arrays)).asnumpy()


def close(a: Any, b: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("flatten,shape", [(True, (4, 2, 3)), (False, (4, 2, 3)), (True, (4, 6)), (False, (6,))])
@pytest.mark.parametrize("bias", [True, False])
def test_dense(flatten: bool, shape: tuple[int, ...], bias: bool) -> None:
    x, layer = draw(*shape), nn.Dense(5, use_bias=bias, flatten=flatten, bias_initializer="ones")
    y = run(layer, x)
    rows = x.reshape(shape[0], -1) if flatten else x
    close(y, rows @ layer.weight.data().asnumpy().T + (1 if bias else 0))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "softrelu": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    x = draw(3, 4)
    close(run(nn.Activation(name), x), ACTIVATIONS[name](x))
    assert nn.Dense(1, activation=name).act is not None


def test_other_elementwise_layers() -> None:
    x = draw(3, 4)
    close(run(nn.LeakyReLU(0.1), x), np.where(x > 0, x, 0.1 * x))
    erf = np.vectorize(math.erf)
    close(run(nn.GELU(), x), x * 0.5 * (1 + erf(x / math.sqrt(2))))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    close(run(nn.GELU("tanh"), x), 0.5 * x * (1 + np.tanh(inner)))
    close(run(nn.Identity(), x), x)
    assert run(nn.Flatten(), draw(2, 3, 4)).shape == (2, 12)


def convolution(x: Any, w: Any, stride: int, pad: int, dilation: int, groups: int) -> Any:
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    n, c, h, wide = x.shape
    out, _, k, _ = w.shape
    reach = dilation * (k - 1) + 1
    rows, columns = (h - reach) // stride + 1, (wide - reach) // stride + 1
    y = np.zeros((n, out, rows, columns))
    for o in range(out):
        g = o // (out // groups)
        part = x[:, g * (c // groups) : (g + 1) * (c // groups)]
        for i in range(rows):
            for j in range(columns):
                window = part[
                    :, :, i * stride : i * stride + reach : dilation, j * stride : j * stride + reach : dilation
                ]
                y[:, o, i, j] = (window * w[o]).sum(axis=(1, 2, 3))
    return y


@pytest.mark.parametrize("stride,pad,dilation,groups", [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, 1, 1, 2)])
def test_convolution(stride: int, pad: int, dilation: int, groups: int) -> None:
    x = draw(2, 4, 7, 6)
    layer = nn.Conv2D(6, 3, stride, pad, dilation, groups, bias_initializer="ones")
    y = run(layer, x)
    close(y, convolution(x, layer.weight.data().asnumpy(), stride, pad, dilation, groups) + 1, 1e-5)


def test_pooling() -> None:
    x = draw(2, 3, 6, 6)
    windows = x.reshape(2, 3, 3, 2, 3, 2)
    close(run(nn.MaxPool2D(), x), windows.max(axis=(3, 5)))
    close(run(nn.AvgPool2D(), x), windows.mean(axis=(3, 5)))
    close(run(nn.GlobalMaxPool2D(), x), x.max(axis=(2, 3), keepdims=True))
    close(run(nn.GlobalAvgPool2D(), x), x.mean(axis=(2, 3), keepdims=True))
    assert run(nn.MaxPool2D(3, 2), x).shape == (2, 3, 2, 2)
    assert run(nn.MaxPool2D(3, 2, ceil_mode=True), x).shape == (2, 3, 3, 3)
    one = np.ones((1, 1, 2, 2), np.float32)
    close(run(nn.AvgPool2D(2, 2, 1), one), np.full((1, 1, 2, 2), 0.25))
    close(run(nn.AvgPool2D(2, 2, 1, count_include_pad=False), one), np.ones((1, 1, 2, 2)))


@pytest.mark.parametrize("axis,shape", [(1, (4, 3, 2, 2)), (-1, (5, 3)), (1, (5, 3))])
def test_batch_norm(axis: int, shape: tuple[int, ...]) -> None:
    x, layer = draw(*shape) * 2 + 1, nn.BatchNorm(axis=axis, momentum=0.8, gamma_initializer="ones")
    layer.initialize()
    others = tuple(i for i in range(len(shape)) if i != axis % len(shape))
    wide = [1] * len(shape)
    wide[axis] = shape[axis]
    mean, var = x.mean(axis=others), x.var(axis=others)
    close(layer(nd.array(x)).asnumpy(), x / math.sqrt(1 + 1e-5))  # not training: the running statistics
    assert (layer.running_mean.data().asnumpy() == 0).all()
    with autograd.record():
        y = layer(nd.array(x))
    close(y.asnumpy(), (x - mean.reshape(wide)) / np.sqrt(var.reshape(wide) + 1e-5), 1e-5)
    close(layer.running_mean.data().asnumpy(), 0.2 * mean)
    close(layer.running_var.data().asnumpy(), 0.8 + 0.2 * var)
    with autograd.predict_mode():
        running = (x - 0.2 * mean.reshape(wide)) / np.sqrt(0.8 + 0.2 * var.reshape(wide) + 1e-5)
        close(layer(nd.array(x)).asnumpy(), running, 1e-5)


def test_batch_norm_settings() -> None:
    x = nd.array(draw(4, 3))
    fixed = nn.BatchNorm(scale=False, center=False, gamma_initializer="zeros")
    fixed.initialize()
    with autograd.record():
        y = fixed(x)
    assert fixed.gamma.grad_req == fixed.beta.grad_req == "null" and y.asnumpy().std() == pytest.approx(1, abs=1e-2)
    world = nn.BatchNorm(use_global_stats=True)
    world.initialize()
    with autograd.record():
        close(world(x).asnumpy(), x.asnumpy() / math.sqrt(1 + 1e-5))
    assert (world.running_mean.data().asnumpy() == 0).all()
    world.cast("float16")
    assert world.gamma.data().dtype == np.float32
    assert world(nd.array(draw(4, 3), dtype="float16")).dtype == np.float16
    assert len(world.collect_params()) == 4


def test_layer_norm() -> None:
    x, layer = draw(4, 3, 5), nn.LayerNorm()
    mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    close(run(layer, x), (x - mean) / np.sqrt(var + 1e-5), 1e-5)
    assert layer.gamma.shape == (5,)


def test_embedding() -> None:
    layer = nn.Embedding(5, 3)
    layer.initialize()
    w = layer.weight.data().asnumpy()
    close(layer(nd.array([[0, 4], [2, 2]])).asnumpy(), w[[[0, 4], [2, 2]]])
    with autograd.record():
        loss = layer(nd.array([1, 1, 3])).sum()
    loss.backward()
    assert layer.weight.grad().asnumpy()[:, 0].tolist() == [0, 2, 0, 1, 0]


def test_dropout() -> None:
    random.seed(0)
    layer, x = nn.Dropout(0.3), nd.ones((100, 100))
    layer.initialize()
    assert (layer(x).asnumpy() == 1).all()
    with autograd.train_mode():
        y = layer(x).asnumpy()
        close(np.unique(y), [0, 1 / 0.7])
        assert (y == 0).mean() == pytest.approx(0.3, abs=0.02)
        assert not (layer(x).asnumpy() == y).all()
        rows = nn.Dropout(0.5, axes=(1,))(x).asnumpy()
    assert (rows == rows[:, :1]).all() and 20 < (rows[:, 0] == 0).sum() < 80


REPRS: list[tuple[Any, str]] = [
    (lambda: nn.Conv2D(8, 3, padding=1, in_channels=4, activation="relu"),
     "Conv2D(4 -> 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), Activation(relu))"),
    (lambda: nn.Dropout(0.5), "Dropout(p = 0.5, axes=())"),
    (lambda: nn.Embedding(3, 2), "Embedding(3 -> 2, float32)"),
    (lambda: nn.MaxPool2D(), "MaxPool2D(size=(2, 2), stride=(2, 2), padding=(0, 0), ceil_mode=False, "
     "global_pool=False, pool_type=max, layout=NCHW)"),
    (lambda: nn.BatchNorm(in_channels=3), "BatchNorm(axis=1, eps=1e-05, momentum=0.9, fix_gamma=False, "
     "use_global_stats=False, in_channels=3)"),
]  # fmt: skip


@pytest.mark.parametrize("make,text", REPRS)
def test_repr(make: Any, text: str) -> None:
    assert repr(make()) == text


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: nn.Conv2D(2, 3, layout="HWCN"), AssertionError, "no layout 'HWCN'; there are NCHW, NHWC"),
    (lambda: nn.Conv2D(3, 3, groups=2), ValueError, "groups"),
    (lambda: nn.Conv2D(3, (3, 3, 3)), AssertionError, "a number or 2 of them"),
    (lambda: run(nn.Conv2D(2, 3), draw(2, 3)), ValueError, r"takes \(N, C, H, W\), and got f32\[2,3\]"),
    (lambda: run(nn.MaxPool2D(), draw(2, 3)), ValueError, r"takes \(N, C, H, W\)"),
    (lambda: nn.Activation("rellu"), MXNetError, "no activation is called"),
    (lambda: nn.Dropout(1.5), ValueError, "Dropout: rate must be from 0 to 1, not 1.5"),
    (lambda: run(nn.BatchNorm(axis=3), draw(2, 3)), ValueError, "no axis 3"),
    (lambda: nn.Lambda(3), ValueError, "neither a function"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
