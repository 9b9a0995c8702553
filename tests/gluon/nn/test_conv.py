"""Convolutions and transposed convolutions over one, two and three axes, against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both import eager_is_hybridized
from numpy_layers import convolution, deconvolution

from gluongraph import MXNetError, nd
from gluongraph.codegen.targets import target
from gluongraph.compiler.pipeline import plan_of
from gluongraph.gluon import nn
from gluongraph.tracing.tracer import trace

RNG = np.random.default_rng(3)
KINDS = {1: (nn.Conv1D, nn.Conv1DTranspose), 2: (nn.Conv2D, nn.Conv2DTranspose), 3: (nn.Conv3D, nn.Conv3DTranspose)}

# shape of the data, kernel, stride, padding, dilation, groups
CONVOLUTIONS: list[tuple[Any, ...]] = [
    ((2, 4, 9), (3,), (1,), (0,), (1,), 1),
    ((2, 4, 9), (2,), (3,), (1,), (2,), 2),
    ((2, 4, 7, 6), (3, 3), (1, 1), (0, 0), (1, 1), 1),
    ((2, 4, 7, 6), (3, 2), (2, 1), (1, 2), (1, 2), 2),
    ((2, 4, 7, 6), (3, 3), (1, 1), (1, 1), (1, 1), 4),
    ((2, 4, 5, 4, 6), (3, 3, 3), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1),
    ((2, 4, 5, 4, 6), (2, 1, 3), (2, 1, 3), (1, 0, 2), (2, 1, 1), 2),
    ((1, 4, 3, 4, 4), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1),
]


def check(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("shape,kernel,stride,pad,dilation,groups", CONVOLUTIONS)
def test_convolution(shape: Any, kernel: Any, stride: Any, pad: Any, dilation: Any, groups: int) -> None:
    layer = KINDS[len(kernel)][0](8, kernel, stride, pad, dilation, groups, bias_initializer="ones")
    layer.initialize()
    x = RNG.normal(size=shape)
    y = layer(nd.array(x)).asnumpy()
    check(y, convolution(x, layer.weight.data().asnumpy(), stride, pad, dilation, groups) + 1)
    assert layer.weight.shape == (8, 4 // groups, *kernel)


# the same, and the output padding
TRANSPOSED: list[tuple[Any, ...]] = [
    ((2, 4, 5), (3,), (1,), (0,), (1,), 1, (0,)),
    ((2, 4, 5), (4,), (3,), (1,), (2,), 2, (2,)),
    ((2, 4, 4, 3), (4, 4), (2, 2), (1, 1), (1, 1), 1, (0, 0)),
    ((2, 4, 4, 3), (3, 2), (2, 3), (2, 0), (2, 1), 2, (1, 2)),
    ((2, 4, 3, 4, 2), (3, 3, 3), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1, (0, 0, 0)),
    ((2, 4, 3, 4, 2), (3, 2, 4), (2, 1, 2), (1, 0, 1), (2, 1, 1), 2, (1, 0, 1)),
]


@pytest.mark.parametrize("shape,kernel,stride,pad,dilation,groups,more", TRANSPOSED)
def test_transposed(shape: Any, kernel: Any, stride: Any, pad: Any, dilation: Any, groups: int, more: Any) -> None:
    layer = KINDS[len(kernel)][1](6, kernel, stride, pad, more, dilation, groups, bias_initializer="ones")
    layer.initialize()
    x = RNG.normal(size=shape)
    y = layer(nd.array(x)).asnumpy()
    check(y, deconvolution(x, layer.weight.data().asnumpy(), stride, pad, dilation, groups, more) + 1)
    assert layer.weight.shape == (4, 6 // groups, *kernel)


@pytest.mark.parametrize("kind", [nn.Conv2D, nn.Conv2DTranspose, nn.Conv3D, nn.Conv3DTranspose])
def test_channels_last(kind: Any) -> None:
    """The same numbers in another order."""
    axes = 3 if kind in KINDS[3] else 2
    first = kind(6, (3, 2, 1)[:axes], 2, 1, groups=2)
    last = kind(6, (3, 2, 1)[:axes], 2, 1, groups=2, layout="NDHWC" if axes == 3 else "NHWC")
    x = nd.array(RNG.normal(size=(2, 4, 5, 6, 3)[: 2 + axes]))
    first.initialize()
    last.initialize()
    y, moved = first(x), nd.moveaxis(x, 1, -1)
    last(moved)
    last.weight.set_data(nd.moveaxis(first.weight.data(), 1, -1))
    assert last.weight.shape == (*first.weight.shape[:1], *first.weight.shape[2:], first.weight.shape[1])
    np.testing.assert_array_equal(nd.moveaxis(last(moved), -1, 1).asnumpy(), y.asnumpy())


def test_hybridized() -> None:
    eager_is_hybridized(
        {
            "line": (nn.Conv1D(5, 3, 2, 1, activation="relu"), (3, 4, 9)),
            "volume": (nn.Conv3D(4, 3, (2, 1, 1), 1, activation="tanh"), (2, 3, 5, 4, 3)),
            "line back": (nn.Conv1DTranspose(5, 4, 2, 1), (3, 4, 6)),
            "image back": (nn.Conv2DTranspose(4, 4, 2, 1, activation="tanh"), (2, 6, 4, 5)),
            "volume back": (nn.Conv3DTranspose(2, (3, 2, 3), 2, 1, 1), (2, 3, 3, 2, 4)),
            "last": (nn.Conv2D(4, 3, layout="NHWC"), (2, 5, 6, 3)),
        }
    )


def test_a_transposed_convolution_is_one_kernel() -> None:
    """With its bias and its activation, by the rule of convolutions; 21 images fill the blocks of no target."""
    net = nn.Conv2DTranspose(8, 4, 2, 1, activation="tanh", in_channels=16)
    net.initialize()
    graph = trace(net, (nd.ones((21, 16, 4, 4)),), training=False).graph
    plan, _ = plan_of(graph, dict.fromkeys(graph.inputs, "input"), target())
    assert [launch.candidate.rule for launch in plan.launches] == ["conv"]


def test_settings_and_reprs() -> None:
    layer = nn.Conv2DTranspose(6, 3, 2, 1, 1, groups=2, use_bias=False, in_channels=4)
    assert layer.bias is None and list(layer.collect_params()) == [f"{layer.prefix}weight"]
    assert repr(layer) == (
        "Conv2DTranspose(4 -> 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2, bias=False)"
    )
    rows = {
        "Conv1D(None -> 4, kernel_size=(3,), stride=(1,), Activation(relu))": nn.Conv1D(4, 3, activation="relu"),
        "Conv2D(1 -> 4, kernel_size=(3, 3), stride=(1, 1), groups=4)": nn.Conv2D(4, 3, groups=4, in_channels=4),
        "Conv3D(2 -> 4, kernel_size=(3, 3, 3), stride=(2, 2, 2), dilation=(2, 2, 2))": nn.Conv3D(
            4, 3, 2, dilation=2, in_channels=2
        ),
    }
    for text, made in rows.items():
        assert repr(made) == text
    assert nn.Conv3DTranspose(3, 1).name.startswith("conv")


def run(layer: Any, *shape: int) -> Any:
    layer.initialize()
    return layer(nd.zeros(shape))


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: nn.Conv1D(2, 3, layout="NWC"), AssertionError, "no layout 'NWC'; there are NCW"),
    (lambda: nn.Conv3D(2, 3, layout="NCHW"), AssertionError, "there are NCDHW, NDHWC"),
    (lambda: nn.Conv1D(2, (3, 3)), AssertionError, "kernel_size is a number or 1 of them"),
    (lambda: nn.Conv2D(2, 3, (1, 1, 1)), AssertionError, "strides is a number or 2 of them"),
    (lambda: nn.Conv2D(3, 3, groups=2), MXNetError, "do not divide into 2 groups"),
    (lambda: nn.Conv2DTranspose(3, 3, 2, output_padding=2), MXNetError, r"output_padding \(2, 2\) is not below"),
    (lambda: nn.Conv2D(3, 3, activation="rellu"), MXNetError, "no activation is called 'rellu'"),
    (lambda: run(nn.Conv3D(2, 3), 2, 3, 4, 4), ValueError, r"takes \(N, C, D, H, W\), and got f32\[2,3,4,4\]"),
    (lambda: run(nn.Conv2D(4, 3, groups=2), 1, 3, 5, 5), MXNetError, "3 channels do not divide into 2 groups"),
    (lambda: run(nn.Conv2D(4, 3, in_channels=5), 1, 3, 5, 5), MXNetError, "channels do not fit"),
    (lambda: run(nn.Conv3D(4, 3), 1, 3, 2, 5, 5), MXNetError, "larger than the padded volume"),
    (lambda: run(nn.Conv1D(4, 9), 1, 3, 5), MXNetError, "larger than the padded image"),
    (lambda: run(nn.Conv2DTranspose(4, 3, padding=3), 1, 3, 2, 2), MXNetError, "leaves nothing of the result"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
