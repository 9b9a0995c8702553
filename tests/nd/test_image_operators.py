"""Operators on images that are no layer of their own, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import MXNetError, autograd, nd

RNG = np.random.default_rng(11)
X = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)


def check(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got.asnumpy(), want, rtol=1e-5, atol=1e-5)


def test_padding() -> None:
    width = (0, 0, 0, 0, 1, 2, 3, 4)
    pairs = [(0, 0), (0, 0), (1, 2), (3, 4)]
    check(nd.pad(nd.array(X), "constant", width, 2.5), np.pad(X, pairs, constant_values=2.5))
    check(nd.pad(nd.array(X), "edge", width), np.pad(X, pairs, mode="edge"))
    check(nd.Pad(nd.array(X), "reflect", width), np.pad(X, pairs, mode="reflect"))
    x = nd.array(X)
    x.attach_grad()
    with autograd.record():
        y = nd.pad(x, "edge", width)
    y.backward()
    assert x.grad.asnumpy()[0, 0, 0, 0] == 2 * 4 and x.grad.asnumpy()[0, 0, 3, 4] == 3 * 5


def test_enlarging() -> None:
    doubled = X.repeat(2, 2).repeat(2, 3)
    check(nd.UpSampling(nd.array(X), scale=2, sample_type="nearest"), doubled)
    small, large = X[:, :, :2, :1], RNG.normal(size=(2, 3, 8, 10))
    several = [nd.array(X), nd.array(large), nd.array(small)]
    check(
        nd.UpSampling(*several[:2], scale=2, sample_type="nearest", multi_input_mode="sum", num_args=2), doubled + large
    )
    joined = nd.UpSampling(*several, scale=2, sample_type="nearest")
    check(joined[:, 6:], small.repeat(4, 2).repeat(10, 3))
    # a bilinear kernel keeps what is constant, away from the borders
    line = np.array([0.25, 0.75, 0.75, 0.25])
    weight = nd.array(np.broadcast_to(np.outer(line, line), (3, 1, 4, 4)))
    ones = nd.UpSampling(nd.ones((2, 3, 4, 5)), weight, scale=2, sample_type="bilinear", num_filter=3)
    assert ones.shape == (2, 3, 8, 10)
    check(ones[:, :, 1:-1, 1:-1], np.ones((2, 3, 6, 8)))


def test_resizing() -> None:
    ramp = np.add.outer(np.arange(4.0), 10 * np.arange(5.0))[None, None]
    x = nd.array(ramp)
    finer = np.add.outer(np.linspace(0, 3, 7), np.linspace(0, 40, 9))[None, None]
    check(nd.contrib.BilinearResize2D(x, height=7, width=9), finer)
    check(nd.contrib.BilinearResize2D(x, nd.zeros((1, 1, 7, 9)), mode="like"), finer)
    halves = nd.contrib.BilinearResize2D(x, scale_height=0.5, scale_width=1, align_corners=False)
    check(halves, ramp.reshape(1, 1, 2, 2, 5).mean(3))
    check(nd.contrib.BilinearResize2D(x, height=1, width=5), ramp[:, :, :1])


def test_adaptive_averages() -> None:
    x = RNG.normal(size=(2, 3, 6, 5))
    check(nd.contrib.AdaptiveAvgPooling2D(nd.array(x)), x.mean((2, 3), keepdims=True))
    rows = x.reshape(2, 3, 3, 2, 5).mean(3)
    want = np.stack([rows[..., 0:3].mean(-1), rows[..., 2:5].mean(-1)], -1)  # the middle column is in both
    check(nd.contrib.AdaptiveAvgPooling2D(nd.array(x), (3, 2)), want)


def test_norms_over_neighbours() -> None:
    squares = np.pad(X**2, [(0, 0), (1, 1), (0, 0), (0, 0)])
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    check(nd.LRN(nd.array(X), nsize=3, alpha=0.3, beta=0.6, knorm=1.5), X / (1.5 + 0.1 * total) ** 0.6)
    for mode, axes in (("instance", (1, 2, 3)), ("channel", (1,)), ("spatial", (2, 3))):
        want = X / np.sqrt((X**2).sum(axes, keepdims=True) + 1e-10)
        check(nd.L2Normalization(nd.array(X), mode=mode), want)


def test_transposed_to_a_size() -> None:
    """target_shape stands for pad and adj."""
    x, w = nd.array(X), nd.array(RNG.normal(size=(3, 2, 3, 3)))
    wanted = nd.Deconvolution(x, w, kernel=(3, 3), stride=(2, 2), pad=(1, 0), adj=(1, 0), num_filter=2)
    check(nd.Deconvolution(x, w, stride=(2, 2), target_shape=(8, 11), num_filter=2), wanted.asnumpy())


def test_softmax_of_lines_of_several_lengths() -> None:
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    y = nd.softmax(nd.array(x), nd.array([3, 0], dtype="int32"), use_length=True).asnumpy()
    e = np.exp(x[0, :3])
    np.testing.assert_allclose(y, [[*(e / e.sum()), 0], [0, 0, 0, 0]], rtol=1e-6)
    assert nd.log_softmax(nd.array(x, dtype="float16"), dtype="float32").dtype == np.float32


IMAGES = nd.array(X)
ERRORS: list[tuple[Any, str]] = [
    (lambda: nd.Convolution(IMAGES, nd.ones((2, 3, 3, 3)), kernel=(2, 2)), r"kernel=\(2, 2\), and the weight's"),
    (lambda: nd.Convolution(IMAGES, nd.ones((2, 3, 3, 3)), num_filter=4), "4 filters, and 2 in the weight"),
    (lambda: nd.Convolution(IMAGES, nd.ones((2, 3, 3, 3)), stride=(1, 1, 1)), "stride is a number for each of 2 axes"),
    (lambda: nd.Convolution(IMAGES, nd.ones((2, 3, 3))), "data and weight do not fit"),
    (lambda: nd.Deconvolution(IMAGES, nd.ones((3, 2, 3, 3)), target_shape=(9, 9)), "larger than"),
    (lambda: nd.pad(IMAGES, "wrap", (0, 0) * 4), "no mode 'wrap'; there are constant, edge and reflect"),
    (lambda: nd.pad(IMAGES, "edge", (1, 1)), "two numbers for each axis"),
    (lambda: nd.LRN(IMAGES, nsize=4), "nsize is odd"),
    (lambda: nd.L2Normalization(IMAGES, mode="row"), "the modes are instance, channel, spatial"),
    (lambda: nd.UpSampling(IMAGES, scale=0, sample_type="nearest"), "a scale of 1 or more"),
    (lambda: nd.UpSampling(IMAGES, nd.ones((2, 3, 3, 3)), scale=2, sample_type="nearest"), "by whole factors"),
    (lambda: nd.contrib.BilinearResize2D(IMAGES, mode="odd_scale"), "mode='odd_scale' needs"),
    (lambda: nd.contrib.BilinearResize2D(IMAGES, mode="like"), "needs `like`"),
    (lambda: nd.LeakyReLU(IMAGES, act_type="prelu"), "needs `gamma`"),
    (lambda: nd.softmax(IMAGES, use_length=True), "a length for each line"),
]


@pytest.mark.parametrize("call,message", ERRORS)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(MXNetError, match=message):
        call()
