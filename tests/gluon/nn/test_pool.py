"""Pooling over one, two and three axes, and over all positions, against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both import eager_is_hybridized
from numpy_layers import pooling

from gluongraph import MXNetError, autograd, nd
from gluongraph.gluon import nn

RNG = np.random.default_rng(5)
MAX = {1: nn.MaxPool1D, 2: nn.MaxPool2D, 3: nn.MaxPool3D}
AVERAGE = {1: nn.AvgPool1D, 2: nn.AvgPool2D, 3: nn.AvgPool3D}

# shape of the data, window, stride, padding, may the last window hang over
WINDOWS: list[tuple[Any, ...]] = [
    ((2, 3, 9), (2,), (2,), (0,), False),
    ((2, 3, 9), (3,), (2,), (1,), True),
    ((2, 3, 6, 8), (2, 2), (2, 2), (0, 0), False),
    ((2, 3, 7, 8), (3, 2), (2, 3), (1, 0), True),
    ((2, 3, 4, 6, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0), False),
    ((2, 3, 5, 4, 6), (3, 2, 3), (2, 1, 2), (1, 0, 1), True),
]


def check(layer: Any, x: Any, want: Any) -> None:
    np.testing.assert_allclose(layer(nd.array(x)).asnumpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape,kernel,stride,pad,ceil", WINDOWS)
def test_pooling(shape: Any, kernel: Any, stride: Any, pad: Any, ceil: bool) -> None:
    x, axes = RNG.normal(size=shape), len(kernel)
    how = (x, kernel, stride, pad, ceil)
    check(MAX[axes](kernel, stride, pad, ceil_mode=ceil), x, pooling(lambda v, n: v.max(-1), *how))
    average = AVERAGE[axes](kernel, stride, pad, ceil_mode=ceil)
    check(average, x, pooling(lambda v, n: v.sum(-1) / n, *how))
    inside = AVERAGE[axes](kernel, stride, pad, ceil_mode=ceil, count_include_pad=False)
    check(inside, x, pooling(lambda v, n: v.mean(-1), *how))


FOLDS: list[tuple[dict[str, Any], Any]] = [
    ({"pool_type": "sum"}, lambda v, n: v.sum(-1)),
    ({"pool_type": "lp", "p_value": 1}, lambda v, n: v.sum(-1)),
    ({"pool_type": "lp", "p_value": 2}, lambda v, n: np.sqrt((v**2).sum(-1))),
    ({"pool_type": "lp", "p_value": 3}, lambda v, n: np.cbrt((v**3).sum(-1))),
]


@pytest.mark.parametrize("settings,fold", FOLDS)
def test_other_kinds(settings: dict[str, Any], fold: Any) -> None:
    x = RNG.normal(size=(2, 3, 7, 8))
    for convention in ("valid", "full"):
        got = nd.Pooling(nd.array(x), (3, 2), stride=(2, 3), pad=(1, 0), pooling_convention=convention, **settings)
        want = pooling(fold, x, (3, 2), (2, 3), (1, 0), convention == "full")
        np.testing.assert_allclose(got.asnumpy(), want, rtol=1e-4, atol=1e-5)
    got = nd.Pooling(nd.array(x), global_pool=True, **settings).asnumpy()
    np.testing.assert_allclose(got[:, :, 0, 0], fold(x.reshape(2, 3, -1), 0), rtol=1e-4, atol=1e-5)


def test_all_positions() -> None:
    kinds = [(nn.GlobalMaxPool1D, nn.GlobalAvgPool1D), (nn.GlobalMaxPool2D, nn.GlobalAvgPool2D)]
    kinds += [(nn.GlobalMaxPool3D, nn.GlobalAvgPool3D)]
    for axes, (largest, average) in enumerate(kinds, 1):
        x = RNG.normal(size=(2, 3, 5, 4, 6)[: 2 + axes])
        inner = tuple(range(2, 2 + axes))
        check(largest(), x, x.max(inner, keepdims=True))
        check(average(), x, x.mean(inner, keepdims=True))


@pytest.mark.parametrize("make", [
    lambda layout: nn.MaxPool1D(3, 2, layout=layout or "NWC"),
    lambda layout: nn.AvgPool2D(3, 2, 1, layout=layout or "NHWC"),
    lambda layout: nn.MaxPool3D(2, layout=layout or "NDHWC"),
    lambda layout: nn.GlobalAvgPool2D(layout=layout or "NHWC"),
])  # fmt: skip
def test_channels_last(make: Any) -> None:
    """The same numbers in another order."""
    last = make("")
    first = make({3: "NCW", 4: "NCHW", 5: "NCDHW"}[len(last._layout)])
    x = nd.array(RNG.normal(size=(2, 3, 5, 6, 4)[: len(last._layout)]))
    got = nd.moveaxis(last(nd.moveaxis(x, 1, -1)), -1, 1)
    np.testing.assert_allclose(got.asnumpy(), first(x).asnumpy(), rtol=1e-6, atol=1e-7)


def test_the_first_largest_element_gets_the_gradient() -> None:
    x = nd.array(np.zeros((1, 1, 4, 4, 4)))
    x.attach_grad()
    with autograd.record():
        y = nn.MaxPool3D()(x)
    y.backward()
    want = np.zeros((4, 4, 4))
    want[::2, ::2, ::2] = 1
    np.testing.assert_array_equal(x.grad.asnumpy()[0, 0], want)


def test_hybridized() -> None:
    eager_is_hybridized(
        {
            "lines": (nn.MaxPool1D(), (2, 3, 8)),
            "overlapping lines": (nn.AvgPool1D(3, 2, 1), (2, 3, 9)),
            "volumes": (nn.MaxPool3D(), (2, 3, 4, 4, 4)),
            "overlapping volumes": (nn.MaxPool3D(3, 2, 1), (2, 2, 5, 4, 6)),
            "mean of volumes": (nn.AvgPool3D(2, ceil_mode=True, count_include_pad=False), (2, 3, 5, 4, 3)),
            "mean of all": (nn.GlobalAvgPool3D(), (2, 3, 2, 4, 3)),
            "largest of all": (nn.GlobalMaxPool2D(), (2, 3, 4, 5)),
            "mirrored": (nn.ReflectionPad2D((0, 0, 0, 0, 1, 2, 0, 3)), (2, 3, 4, 5)),
        }
    )


def test_reflection() -> None:
    x = RNG.normal(size=(1, 2, 4, 5))
    check(nn.ReflectionPad2D(2), x, np.pad(x, [(0, 0), (0, 0), (2, 2), (2, 2)], mode="reflect"))
    check(nn.ReflectionPad2D(), x, x)


REPRS: list[tuple[Any, str]] = [
    (lambda: nn.AvgPool1D(3, 2, 1), "AvgPool1D(size=(3,), stride=(2,), padding=(1,), ceil_mode=False, "
     "global_pool=False, pool_type=avg, layout=NCW)"),
    (lambda: nn.MaxPool3D(2, None, 0, True, "NDHWC"), "MaxPool3D(size=(2, 2, 2), stride=(2, 2, 2), padding=(0, 0, 0), "
     "ceil_mode=True, global_pool=False, pool_type=max, layout=NDHWC)"),
    (lambda: nn.GlobalAvgPool3D(), "GlobalAvgPool3D(size=(1, 1, 1), stride=(1, 1, 1), padding=(0, 0, 0), "
     "ceil_mode=True, global_pool=True, pool_type=avg, layout=NCDHW)"),
]  # fmt: skip


@pytest.mark.parametrize("make,text", REPRS)
def test_repr(make: Any, text: str) -> None:
    assert repr(make()) == text


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: nn.MaxPool1D(layout="CWN"), AssertionError, "no layout 'CWN'; there are NCW, NWC"),
    (lambda: nn.MaxPool2D((2, 2, 2)), AssertionError, "pool_size is a number or 2 of them"),
    (lambda: nn.AvgPool3D(2)(nd.zeros((2, 3, 4, 4))), ValueError, r"takes \(N, C, D, H, W\)"),
    (lambda: nn.GlobalAvgPool1D()(nd.zeros((2, 3))), ValueError, r"takes \(N, C, W\)"),
    (lambda: nn.MaxPool1D(9)(nd.zeros((2, 3, 4))), MXNetError, "larger than the padded image"),
    (lambda: nn.ReflectionPad2D(4)(nd.zeros((1, 1, 4, 5))), MXNetError, "a mirror image of 4 elements needs more"),
    (lambda: nn.ReflectionPad2D((1, 2, 3, 4)), AssertionError, "two for each of 4 axes"),
    (lambda: nd.Pooling(nd.zeros((1, 1, 4)), 2, "median"), MXNetError, "no pool_type 'median'; there are max, avg"),
    (lambda: nd.Pooling(nd.zeros((1, 1, 4)), 2, pooling_convention="odd"), MXNetError, "there are valid, full"),
    (lambda: nd.Pooling(nd.zeros((1, 1, 4)), 2, "lp"), MXNetError, "p_value is 1, 2 or 3"),
    (lambda: nd.Pooling(nd.zeros((1, 1, 4))), MXNetError, "needs a kernel"),
    (lambda: nd.Pooling(nd.zeros((1, 1, 4)), 2, layout="NHWC"), MXNetError, "'NHWC' is none of f32"),
    (lambda: nd.Pooling(nd.zeros((1, 4)), 2), ValueError, r"\(N, C, W\), \(N, C, H, W\) or"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
