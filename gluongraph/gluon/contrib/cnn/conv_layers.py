"""Deformable convolutions as layers: an ordinary convolution gives the offsets, and in the second form the mask."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn.activations import Activation
from gluongraph.gluon.nn.layout import Extents, check_groups, each_axis
from gluongraph.gluon.parameter import Parameter
from gluongraph.ranges import UNKNOWN, check_count


class DeformableConvolution(HybridBlock):
    """A convolution (N, C, H, W) that reads the image at places moved by offsets, which are learned.

    Parameters: deformable_conv_weight (channels, in_channels / groups, *kernel_size), deformable_conv_bias, and of the
    convolution that gives the offsets offset_weight and offset_bias. Dai and others, 2017.
    """

    _per_element = 2  # what the first convolution gives for each kernel element: y and x

    def __init__(
        self,
        channels: int,
        kernel_size: Extents = (1, 1),
        strides: Extents = (1, 1),
        padding: Extents = (0, 0),
        dilation: Extents = (1, 1),
        groups: int = 1,
        num_deformable_group: int = 1,
        layout: str = "NCHW",
        use_bias: bool = True,
        in_channels: int = 0,
        activation: str | None = None,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        offset_weight_initializer: Any = "zeros",
        offset_bias_initializer: Any = "zeros",
        offset_use_bias: bool = True,
        op_name: str | None = None,
        adj: Any = None,
        prefix: str | None = None,
        params: Any = None,
    ):
        super().__init__(prefix, params)
        if layout != "NCHW":
            raise MXNetError(with_user_location(f"{type(self).__name__}: the layout is NCHW, not {layout!r}"))
        check_count(self, "channels", channels)
        check_count(self, "in_channels", in_channels, UNKNOWN)
        check_count(self, "num_deformable_group", num_deformable_group)
        check_groups(self, groups, channels, in_channels)
        self._groups, self._deformable = groups, num_deformable_group
        self._kernel = each_axis(self, "kernel_size", kernel_size, 2)
        self._how: dict[str, Any] = {
            "kernel": self._kernel,
            "stride": each_axis(self, "strides", strides, 2),
            "pad": each_axis(self, "padding", padding, 2),
            "dilate": each_axis(self, "dilation", dilation, 2),
            "num_group": groups,
        }
        self._elements = num_deformable_group * self._kernel[0] * self._kernel[1]
        self._channels, self._offsets = channels, self._per_element * self._elements
        with self.name_scope():
            self.deformable_conv_weight = self._weight(
                "deformable_conv_weight", channels, in_channels, weight_initializer
            )
            self.offset_weight = self._weight("offset_weight", self._offsets, in_channels, offset_weight_initializer)
            self.deformable_conv_bias = self._bias("deformable_conv_bias", channels, bias_initializer, use_bias)
            self.offset_bias = self._bias("offset_bias", self._offsets, offset_bias_initializer, offset_use_bias)
            self.act = Activation(activation, prefix=activation + "_") if activation else None

    def _alias(self) -> str:
        return "deformable_conv"

    def _weight(self, name: str, count: int, in_channels: int, init: Any) -> Parameter:
        shape = (count, in_channels // self._groups, *self._kernel)
        return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

    def _bias(self, name: str, count: int, init: Any, used: bool) -> Parameter | None:
        return self.params.get(name, shape=(count,), init=init) if used else None

    def infer_shape(self, x: Any, *args: Any) -> None:
        inner = (x.shape[1] // self._groups, *self._kernel)
        self.deformable_conv_weight.shape = (self._channels, *inner)
        self.offset_weight.shape = (self._offsets, *inner)

    def forward(self, x: Any) -> Any:
        weight, bias = self.offset_weight.data(), self._data(self.offset_bias)
        moved = nd.Convolution(x, weight, bias, num_filter=self._offsets, no_bias=bias is None, **self._how)
        weight, bias = self.deformable_conv_weight.data(), self._data(self.deformable_conv_bias)
        how = {"num_filter": self._channels, "num_deformable_group": self._deformable, "no_bias": bias is None}
        y = self._convolved(x, moved, weight, bias, {**self._how, **how})
        return y if self.act is None else self.act(y)

    @staticmethod
    def _data(parameter: Parameter | None) -> Any:
        return None if parameter is None else parameter.data()

    def _convolved(self, x: Any, moved: Any, weight: Any, bias: Any, how: dict[str, Any]) -> Any:
        return nd.contrib.DeformableConvolution(x, moved, weight, bias, **how)


class ModulatedDeformableConvolution(DeformableConvolution):
    """The same with a factor 2 sigmoid(m) for each kernel element, learned like the offsets. Zhu and others, 2018."""

    _per_element = 3

    def _alias(self) -> str:
        return "modulated_deformable_conv"

    def _convolved(self, x: Any, moved: Any, weight: Any, bias: Any, how: dict[str, Any]) -> Any:
        offset = moved.slice_axis(axis=1, begin=0, end=2 * self._elements)
        mask = moved.slice_axis(axis=1, begin=2 * self._elements, end=None).sigmoid() * 2
        return nd.contrib.ModulatedDeformableConvolution(x, offset, mask, weight, bias, **how)
