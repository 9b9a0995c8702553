"""Convolution and pooling, in layout NCHW."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.errors import MXNetError, ShapeError, located
from gluongraph.gluon.block import HybridBlock
from gluongraph.gluon.nn.activations import Activation

Pair = int | tuple[int, int] | list[int]


class Conv2D(HybridBlock):
    """Cross-correlation of (N, C, H, W) with a (channels, in_channels / groups, *kernel_size) weight, plus bias."""

    def __init__(
        self,
        channels: int,
        kernel_size: Pair,
        strides: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        layout: str = "NCHW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_layout(self, layout)
        self._channels, self._groups = channels, groups
        self._kernel = _pair(self, "kernel_size", kernel_size)
        self._strides, self._padding = _pair(self, "strides", strides), _pair(self, "padding", padding)
        self._dilation = _pair(self, "dilation", dilation)
        if channels % groups or in_channels % groups:
            raise ValueError(f"{channels} and {in_channels} channels do not divide into {groups} groups")
        with self.name_scope():
            self.weight = self.params.get(
                "weight",
                shape=(channels, in_channels // groups, *self._kernel),
                init=weight_initializer,
                allow_deferred_init=True,
            )
            self.bias = (
                self.params.get("bias", shape=(channels,), init=bias_initializer, allow_deferred_init=True)
                if use_bias
                else None
            )
            self.act = Activation(activation, prefix=activation + "_") if activation is not None else None

    def _alias(self) -> str:
        return "conv"

    def infer_shape(self, x: Any, *args: Any) -> None:
        _check_rank(self, x)
        if x.shape[1] % self._groups:
            raise ShapeError(located(f"{self.name}: {x.shape[1]} channels do not divide into {self._groups} groups"))
        self.weight.shape = (self._channels, x.shape[1] // self._groups, *self._kernel)

    def forward(self, x: Any) -> Any:
        _check_rank(self, x)
        bias = None if self.bias is None else self.bias.data()
        y = nd.Convolution(
            x,
            self.weight.data(),
            bias,
            kernel=self._kernel,
            stride=self._strides,
            dilate=self._dilation,
            pad=self._padding,
            num_filter=self._channels,
            num_group=self._groups,
            no_bias=bias is None,
        )
        return y if self.act is None else self.act(y)

    def __repr__(self) -> str:
        taken = (self.weight.shape or (0, 0))[1] * self._groups
        text = f"{taken or None} -> {self._channels}, kernel_size={self._kernel}, stride={self._strides}"
        if any(self._padding):
            text += f", padding={self._padding}"
        if self._dilation != (1, 1):
            text += f", dilation={self._dilation}"
        if self._groups != 1:
            text += f", groups={self._groups}"
        if self.bias is None:
            text += ", bias=False"
        return f"{type(self).__name__}({text}{'' if self.act is None else f', {self.act}'})"


class _Pool2D(HybridBlock):
    """A window that slides over (N, C, H, W); without `strides` the windows do not overlap."""

    _kind = "max"

    def __init__(
        self, pool_size: Pair, strides: Pair | None, padding: Pair, layout: str, ceil_mode: bool, **kwargs: Any
    ):
        super().__init__(**kwargs)
        _check_layout(self, layout)
        self._kernel = _pair(self, "pool_size", pool_size)
        self._strides = self._kernel if strides is None else _pair(self, "strides", strides)
        self._padding, self._ceil = _pair(self, "padding", padding), ceil_mode
        self._count_include_pad = True

    def _alias(self) -> str:
        return "pool"

    def forward(self, x: Any) -> Any:
        _check_rank(self, x)
        return nd.Pooling(
            x,
            kernel=self._kernel,
            pool_type=self._kind,
            stride=self._strides,
            pad=self._padding,
            pooling_convention="full" if self._ceil else "valid",
            count_include_pad=self._count_include_pad,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self._kernel}, stride={self._strides}, padding={self._padding}, "
            f"ceil_mode={self._ceil}, global_pool=False, pool_type={self._kind}, layout=NCHW)"
        )


class MaxPool2D(_Pool2D):
    """The largest element of each window."""

    def __init__(
        self,
        pool_size: Pair = (2, 2),
        strides: Pair | None = None,
        padding: Pair = 0,
        layout: str = "NCHW",
        ceil_mode: bool = False,
        **kwargs: Any,
    ):
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)


class AvgPool2D(_Pool2D):
    """The mean of each window; the zeros of the padding count, unless `count_include_pad` is False."""

    _kind = "avg"

    def __init__(
        self,
        pool_size: Pair = (2, 2),
        strides: Pair | None = None,
        padding: Pair = 0,
        ceil_mode: bool = False,
        layout: str = "NCHW",
        count_include_pad: bool = True,
        **kwargs: Any,
    ):
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)
        self._count_include_pad = count_include_pad


class _GlobalPool2D(HybridBlock):
    """(N, C, H, W) -> (N, C, 1, 1)"""

    _kind = "max"

    def __init__(self, layout: str = "NCHW", **kwargs: Any):
        super().__init__(**kwargs)
        _check_layout(self, layout)

    def _alias(self) -> str:
        return "pool"

    def forward(self, x: Any) -> Any:
        _check_rank(self, x)
        reduce = nd.max if self._kind == "max" else nd.mean
        return reduce(x, axis=(2, 3), keepdims=True)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size=(1, 1), stride=(1, 1), padding=(0, 0), ceil_mode=True, global_pool=True, "
            f"pool_type={self._kind}, layout=NCHW)"
        )


class GlobalMaxPool2D(_GlobalPool2D):
    """The largest element of each channel."""


class GlobalAvgPool2D(_GlobalPool2D):
    """The mean of each channel."""

    _kind = "avg"


def _pair(block: HybridBlock, what: str, value: Pair) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"{type(block).__name__}: {what} is a number or a pair, not {value!r}")
    return pair[0], pair[1]


def _check_layout(block: HybridBlock, layout: str) -> None:
    if layout != "NCHW":
        raise MXNetError(
            f"{type(block).__name__}: layout {layout!r} is not supported, only 'NCHW'; transpose the input: "
            "x.transpose((0, 3, 1, 2)) for NHWC"
        )


def _check_rank(block: HybridBlock, x: Any) -> None:
    if x.ndim != 4:
        raise ShapeError(
            located(
                f"{type(block).__name__} {block.name!r} takes (N, C, H, W), and got {x.type}",
                help="reshape the input to four axes",
                scope=block.name,
            )
        )
