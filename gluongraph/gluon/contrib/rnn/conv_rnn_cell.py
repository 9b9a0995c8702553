"""Recurrent cells whose products are convolutions, over one to three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import nd
from gluongraph.errors import ArgumentError, with_user_location
from gluongraph.gluon.nn.layout import each_axis
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.rnn.recurrent import HybridRecurrentCell
from gluongraph.ir.plain import plain
from gluongraph.ndarray import NDArray
from gluongraph.ranges import check_count

Extents = int | Sequence[int]
_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


class _ConvCell(HybridRecurrentCell):
    """What the cells share: W_i * x + b_i and W_h * h + b_h, where * is a convolution that keeps the extents of h.

    `input_shape` is that of one step of one sample: channels (0: as many as the first input has), then extents. Kernels
    of the states have odd extents.
    """

    _dims, _gates, _states = 0, 1, 1

    def __init__(
        self,
        input_shape: Sequence[int],
        hidden_channels: int,
        i2h_kernel: Extents,
        h2h_kernel: Extents,
        i2h_pad: Extents = 0,
        i2h_dilate: Extents = 1,
        h2h_dilate: Extents = 1,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        conv_layout: str | None = None,
        activation: Any = "tanh",
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ):
        super().__init__(prefix, params)
        if conv_layout not in (None, _LAYOUTS[self._dims]):
            raise ValueError(
                with_user_location(f"{type(self).__name__}: the layout is {_LAYOUTS[self._dims]}, not {conv_layout!r}")
            )
        channels, *extents = self._of_one_step(input_shape)
        check_count(self, "hidden_channels", hidden_channels)
        i2h, h2h = self._extents("i2h_kernel", i2h_kernel), self._extents("h2h_kernel", h2h_kernel)
        if any(k % 2 == 0 for k in h2h):
            raise AssertionError(
                with_user_location(f"{type(self).__name__}: h2h_kernel has odd extents only, and is {h2h_kernel}")
            )
        pad, dilate = self._extents("i2h_pad", i2h_pad), self._extents("i2h_dilate", i2h_dilate)
        back = self._extents("h2h_dilate", h2h_dilate)
        self._channels, self._function = hidden_channels, (activation,)
        self._i2h = {"kernel": i2h, "pad": pad, "dilate": dilate}
        self._h2h = {
            "kernel": h2h,
            "pad": tuple(d * (k - 1) // 2 for d, k in zip(back, h2h, strict=True)),
            "dilate": back,
        }
        reach = zip(extents, i2h, pad, dilate, strict=True)
        self._state_shape = (hidden_channels, *(n + 2 * p - d * (k - 1) for n, k, p, d in reach))
        rows = hidden_channels * self._gates
        self._add_weights(
            ((rows, channels, *i2h), (rows, hidden_channels, *h2h), (rows,), (rows,)),
            (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer),
        )

    def _of_one_step(self, input_shape: Any) -> tuple[int, ...]:
        """Channels, 0 where they are not known yet, and extents; raises ArgumentError unless it is those."""
        shape = plain(input_shape)
        if not isinstance(shape, tuple) or len(shape) != 1 + self._dims:
            form = ", ".join(_LAYOUTS[self._dims][1:])
            raise ArgumentError(
                with_user_location(f"{type(self).__name__}: input_shape is ({form}), not {input_shape!r}")
            )
        for number, least in zip(shape, (0, *(1,) * self._dims), strict=True):
            check_count(self, "input_shape", number, least)
        return shape

    def _extents(self, name: str, given: Extents) -> tuple[int, ...]:
        return each_axis(self, name, given, self._dims)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        one = {"shape": (batch_size, *self._state_shape), "__layout__": _LAYOUTS[self._dims]}
        return [dict(one) for _ in range(self._states)]

    def infer_shape(self, inputs: Any, *args: Any) -> None:
        """The channels of the input, where `input_shape` says 0."""
        weight = self._reg_params["i2h_weight"]
        weight.shape = (self._channels * self._gates, inputs.shape[1], *self._i2h["kernel"])

    def _products(self, inputs: Any, states: Any) -> tuple[NDArray, NDArray]:
        rows = self._channels * self._gates
        weights = [parameter.data() for parameter in self._reg_params.values()]
        x = nd.Convolution(inputs, weights[0], weights[2], num_filter=rows, **self._i2h)
        return x, nd.Convolution(states[0], weights[1], weights[3], num_filter=rows, **self._h2h)

    def _act(self, x: NDArray) -> NDArray:
        made: NDArray = self._get_activation(nd, x, self._function[0])
        return made

    def __repr__(self) -> str:
        shape = self._reg_params["i2h_weight"].shape or (0, 0)
        return f"{type(self).__name__}({shape[1] or None} -> {shape[0]}, {self._function[0]}, {_LAYOUTS[self._dims]})"


class _ConvRNNCell(_ConvCell):
    """h = act(W_i * x + b_i + W_h * h + b_h)"""

    def _alias(self) -> str:
        return "conv_rnn"

    def forward(self, inputs: Any, states: Any) -> Any:
        x, h = self._products(inputs, states)
        output = self._act(x + h)
        return output, [output]


class _ConvLSTMCell(_ConvCell):
    """i, f, g, o = σ, σ, act, σ of (W_i * x + b_i + W_h * h + b_h); c = f c + i g; h = o act(c) (Shi et al. 2015)"""

    _gates, _states = 4, 2

    def _alias(self) -> str:
        return "conv_lstm"

    def forward(self, inputs: Any, states: Any) -> Any:
        x, h = self._products(inputs, states)
        i, f, g, o = nd.split(x + h, num_outputs=4, axis=1)
        c = nd.sigmoid(f) * states[1] + nd.sigmoid(i) * self._act(g)
        output = nd.sigmoid(o) * self._act(c)
        return output, [output, c]


class _ConvGRUCell(_ConvCell):
    """r, z = σ(x + h); n = act(x_n + r h_n); h = (1 - z) n + z h, with x = W_i * x + b_i and h = W_h * h + b_h"""

    _gates = 3

    def _alias(self) -> str:
        return "conv_gru"

    def forward(self, inputs: Any, states: Any) -> Any:
        x, h = self._products(inputs, states)
        (xr, xz, xn), (hr, hz, hn) = (nd.split(both, num_outputs=3, axis=1) for both in (x, h))
        z = nd.sigmoid(xz + hz)
        output = (1 - z) * self._act(xn + nd.sigmoid(xr + hr) * hn) + z * states[0]
        return output, [output]


class Conv1DRNNCell(_ConvRNNCell):
    """An RNN cell of convolutions over one axis."""

    _dims = 1


class Conv2DRNNCell(_ConvRNNCell):
    """An RNN cell of convolutions over two axes."""

    _dims = 2


class Conv3DRNNCell(_ConvRNNCell):
    """An RNN cell of convolutions over three axes."""

    _dims = 3


class Conv1DLSTMCell(_ConvLSTMCell):
    """An LSTM cell of convolutions over one axis."""

    _dims = 1


class Conv2DLSTMCell(_ConvLSTMCell):
    """An LSTM cell of convolutions over two axes."""

    _dims = 2


class Conv3DLSTMCell(_ConvLSTMCell):
    """An LSTM cell of convolutions over three axes."""

    _dims = 3


class Conv1DGRUCell(_ConvGRUCell):
    """A GRU cell of convolutions over one axis."""

    _dims = 1


class Conv2DGRUCell(_ConvGRUCell):
    """A GRU cell of convolutions over two axes."""

    _dims = 2


class Conv3DGRUCell(_ConvGRUCell):
    """A GRU cell of convolutions over three axes."""

    _dims = 3
