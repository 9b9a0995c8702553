"""Convolutions and transposed convolutions over one, two and three axes.

Layouts are MXNet's: channels first (NCW, NCHW, NCDHW), or last (NHWC, NDHWC), where weights have them last too.
"""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn.activations import Activation
from gluongraph.gluon.nn.layout import Extents, check_groups, check_layout, check_rank, each_axis
from gluongraph.ranges import UNKNOWN, check_count


class _Conv(HybridBlock):
    """What all convolutions share; `_layouts` are those that a class knows, the first its default."""

    _layouts: tuple[str, ...] = ()

    def __init__(
        self,
        channels: int,
        kernel_size: Extents,
        strides: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        layout: str | None = None,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._layout = check_layout(self, layout or self._layouts[0], self._layouts)
        axes = len(self._layout) - 2
        check_count(self, "channels", channels)
        check_count(self, "in_channels", in_channels, UNKNOWN)
        check_groups(self, groups, channels, in_channels)
        self._channels, self._groups = channels, groups
        self._kernel = each_axis(self, "kernel_size", kernel_size, axes)
        self._strides = each_axis(self, "strides", strides, axes)
        self._padding = each_axis(self, "padding", padding, axes)
        self._dilation = each_axis(self, "dilation", dilation, axes)
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=self._weight_shape(in_channels), init=weight_initializer, allow_deferred_init=True
            )
            self.bias = (
                self.params.get("bias", shape=(channels,), init=bias_initializer, allow_deferred_init=True)
                if use_bias
                else None
            )
            self.act = Activation(activation, prefix=activation + "_") if activation is not None else None

    def _alias(self) -> str:
        return "conv"

    def _weight_shape(self, in_channels: int) -> tuple[int, ...]:
        return self._ordered(self._channels, in_channels // self._groups)

    def _ordered(self, outer: int, inner: int) -> tuple[int, ...]:
        """The weight's shape: its inner channels lie where the layout has them."""
        return (outer, *self._kernel, inner) if self._layout.endswith("C") else (outer, inner, *self._kernel)

    def infer_shape(self, x: Any, *args: Any) -> None:
        check_rank(self, x, self._layout)
        channels = x.shape[self._layout.index("C")]
        if channels % self._groups:
            raise ShapeError(
                with_user_location(f"{self.name}: {channels} channels do not divide into {self._groups} groups")
            )
        self.weight.shape = self._weight_shape(channels)

    def forward(self, x: Any) -> Any:
        check_rank(self, x, self._layout)
        bias = None if self.bias is None else self.bias.data()
        y = self._convolved(x, self.weight.data(), bias, no_bias=bias is None, layout=self._layout, **self._settings())
        return y if self.act is None else self.act(y)

    def _settings(self) -> dict[str, Any]:
        """The arguments of the operator."""
        return {
            "kernel": self._kernel,
            "stride": self._strides,
            "dilate": self._dilation,
            "pad": self._padding,
            "num_filter": self._channels,
            "num_group": self._groups,
        }

    def _convolved(self, *args: Any, **kwargs: Any) -> Any:
        return nd.Convolution(*args, **kwargs)

    def _in_channels(self) -> int:
        """As the weight has them; 0 if that is not known yet."""
        return (self.weight.shape or (0,))[-1 if self._layout.endswith("C") else 1]

    def __repr__(self) -> str:
        text = f"{self._in_channels() or None} -> {self._channels}, kernel_size={self._kernel}, stride={self._strides}"
        if any(self._padding):
            text += f", padding={self._padding}"
        if any(d != 1 for d in self._dilation):
            text += f", dilation={self._dilation}"
        if self._groups != 1:
            text += f", groups={self._groups}"
        if self.bias is None:
            text += ", bias=False"
        return f"{type(self).__name__}({text}{'' if self.act is None else f', {self.act}'})"


class Conv1D(_Conv):
    """Cross-correlation of (N, C, W) with a (channels, in_channels / groups, k) weight, plus bias.

    An extent n becomes floor((n + 2 padding - dilation (kernel_size - 1) - 1) / strides) + 1; an `in_channels` of 0
    is taken from the first x. The result is (N, channels, W'), through `activation` if one is given.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Conv1D(1, 2, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.array([[[1, 2, 3]]])).asnumpy()
    array([[[3., 5.]]], dtype=float32)

    Raises:
        ValueError: `channels` or `groups` is no whole number from 1 on.
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        MXNetError: no activation is called `activation`.
        ShapeError: channels do not divide into groups; x has more axes than the layout, or fewer;
            the kernel is larger than the padded x.
    """

    _layouts = ("NCW",)


class Conv2D(_Conv):
    """Cross-correlation of (N, C, H, W) with a (channels, in_channels / groups, *kernel_size) weight, plus bias.

    An extent n becomes floor((n + 2 padding - dilation (kernel_size - 1) - 1) / strides) + 1; an `in_channels` of 0
    is taken from the first x. With `layout="NHWC"` x and the weight have their channels last.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Conv2D(1, 2, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.array([[[[1, 2, 3], [4, 5, 6]]]])).asnumpy()
    array([[[[12., 16.]]]], dtype=float32)

    Raises:
        ValueError: `channels` or `groups` is no whole number from 1 on.
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        MXNetError: no activation is called `activation`.
        ShapeError: channels do not divide into groups; x has more axes than the layout, or fewer;
            the kernel is larger than the padded x.
    """

    _layouts = ("NCHW", "NHWC")


class Conv3D(_Conv):
    """Cross-correlation of (N, C, D, H, W) with a (channels, in_channels / groups, *kernel_size) weight, plus bias.

    An extent n becomes floor((n + 2 padding - dilation (kernel_size - 1) - 1) / strides) + 1; an `in_channels` of 0
    is taken from the first x. With `layout="NDHWC"` x and the weight have their channels last.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Conv3D(4, 3, padding=1, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.zeros((2, 1, 3, 5, 7))).shape
    (2, 4, 3, 5, 7)

    Raises:
        ValueError: `channels` or `groups` is no whole number from 1 on.
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        MXNetError: no activation is called `activation`.
        ShapeError: channels do not divide into groups; x has more axes than the layout, or fewer;
            the kernel is larger than the padded x.
    """

    _layouts = ("NCDHW", "NDHWC")


class _ConvTranspose(_Conv):
    """The gradient of a convolution for its data, as a layer.

    An extent n becomes (n - 1) strides - 2 padding + dilation (kernel_size - 1) + 1 + output_padding.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Extents,
        strides: Extents = 1,
        padding: Extents = 0,
        output_padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        layout: str | None = None,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ):
        super().__init__(
            channels,
            kernel_size,
            strides,
            padding,
            dilation,
            groups,
            layout,
            activation,
            use_bias,
            weight_initializer,
            bias_initializer,
            in_channels,
            **kwargs,
        )
        self._more = each_axis(self, "output_padding", output_padding, len(self._kernel))
        if any(m >= s for m, s in zip(self._more, self._strides, strict=True)):
            raise ShapeError(
                with_user_location(
                    f"{type(self).__name__}: output_padding {self._more} is not below the strides {self._strides}"
                )
            )

    def _weight_shape(self, in_channels: int) -> tuple[int, ...]:
        return self._ordered(in_channels, self._channels // self._groups)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "adj": self._more}

    def _convolved(self, *args: Any, **kwargs: Any) -> Any:
        return nd.Deconvolution(*args, **kwargs)

    def _in_channels(self) -> int:
        return (self.weight.shape or (0,))[0]


class Conv1DTranspose(_ConvTranspose):
    """The gradient of Conv1D for its data: (N, C, W), weight (in_channels, channels / groups, k).

    An extent n becomes (n - 1) strides - 2 padding + dilation (kernel_size - 1) + 1 + output_padding.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Conv1DTranspose(1, 2, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.array([[[1, 2, 3]]])).asnumpy()
    array([[[1., 3., 5., 3.]]], dtype=float32)

    Raises:
        ValueError: `channels` or `groups` is no whole number from 1 on.
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        MXNetError: no activation is called `activation`.
        ShapeError: channels do not divide into groups; x has more axes than the layout, or fewer;
            `output_padding` is not below `strides`.
    """

    _layouts = ("NCW",)


class Conv2DTranspose(_ConvTranspose):
    """The gradient of Conv2D for its data: (N, C, H, W), weight (in_channels, channels / groups, *kernel_size).

    An extent n becomes (n - 1) strides - 2 padding + dilation (kernel_size - 1) + 1 + output_padding.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Conv2DTranspose(1, 2, strides=2, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.array([[[[1, 2]]]])).asnumpy()
    array([[[[1., 1., 2., 2.],
             [1., 1., 2., 2.]]]], dtype=float32)

    Raises:
        ValueError: `channels` or `groups` is no whole number from 1 on.
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        MXNetError: no activation is called `activation`.
        ShapeError: channels do not divide into groups; x has more axes than the layout, or fewer;
            `output_padding` is not below `strides`.
    """

    _layouts = ("NCHW", "NHWC")


class Conv3DTranspose(_ConvTranspose):
    """The gradient of Conv3D for its data: (N, C, D, H, W), weight (in_channels, channels / groups, *kernel_size).

    An extent n becomes (n - 1) strides - 2 padding + dilation (kernel_size - 1) + 1 + output_padding.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Conv3DTranspose(4, 2, strides=2, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.zeros((2, 1, 3, 5, 7))).shape
    (2, 4, 6, 10, 14)

    Raises:
        ValueError: `channels` or `groups` is no whole number from 1 on.
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        MXNetError: no activation is called `activation`.
        ShapeError: channels do not divide into groups; x has more axes than the layout, or fewer;
            `output_padding` is not below `strides`.
    """

    _layouts = ("NCDHW", "NDHWC")
