"""Pooling over one, two and three axes, and over all positions; reflection padding."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.errors import with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn.layout import Extents, check_layout, check_rank, each_axis
from gluongraph.ir.plain import plain
from gluongraph.ranges import check_count

_LINES, _IMAGES, _VOLUMES = ("NCW", "NWC"), ("NCHW", "NHWC"), ("NCDHW", "NDHWC")


class _Pool(HybridBlock):
    """A window that slides over the data; without `strides` the windows lie side by side."""

    _kind = "max"
    _layouts: tuple[str, ...] = ()

    def __init__(
        self,
        pool_size: Extents,
        strides: Extents | None,
        padding: Extents,
        layout: str | None,
        ceil_mode: bool,
        count_include_pad: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._layout = check_layout(self, layout or self._layouts[0], self._layouts)
        axes = len(self._layout) - 2
        self._kernel = each_axis(self, "pool_size", pool_size, axes)
        self._strides = self._kernel if strides is None else each_axis(self, "strides", strides, axes)
        self._padding, self._ceil = each_axis(self, "padding", padding, axes), ceil_mode
        self._count_include_pad = count_include_pad

    def _alias(self) -> str:
        return "pool"

    def forward(self, x: Any) -> Any:
        check_rank(self, x, self._layout)
        return nd.Pooling(
            x,
            kernel=self._kernel,
            pool_type=self._kind,
            stride=self._strides,
            pad=self._padding,
            pooling_convention="full" if self._ceil else "valid",
            count_include_pad=self._count_include_pad,
            layout=self._layout,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self._kernel}, stride={self._strides}, padding={self._padding}, "
            f"ceil_mode={self._ceil}, global_pool=False, pool_type={self._kind}, layout={self._layout})"
        )


class _MaxPool(_Pool):
    """The largest element of each window."""

    def __init__(
        self,
        pool_size: Extents = 2,
        strides: Extents | None = None,
        padding: Extents = 0,
        layout: str | None = None,
        ceil_mode: bool = False,
        **kwargs: Any,
    ):
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)


class MaxPool1D(_MaxPool):
    """The largest element of each window of (N, C, W).

    An extent n becomes floor((n + 2 padding - pool_size) / strides) + 1, with `ceil_mode` the ceiling; `strides` are
    `pool_size` if not given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.MaxPool1D(2)(nd.array([[[1, 3, 5, 7]]])).asnumpy()
    array([[[3., 7.]]], dtype=float32)

    Raises:
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        ShapeError: x has more axes than the layout, or fewer; a window is larger than the padded x.
    """

    _layouts = _LINES


class MaxPool2D(_MaxPool):
    """The largest element of each window of (N, C, H, W).

    An extent n becomes floor((n + 2 padding - pool_size) / strides) + 1, with `ceil_mode` the ceiling; `strides` are
    `pool_size` if not given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.MaxPool2D(2)(nd.array([[[[1, 3], [5, 7]]]])).asnumpy()
    array([[[[7.]]]], dtype=float32)

    Raises:
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        ShapeError: x has more axes than the layout, or fewer; a window is larger than the padded x.
    """

    _layouts = _IMAGES


class MaxPool3D(_MaxPool):
    """The largest element of each window of (N, C, D, H, W).

    An extent n becomes floor((n + 2 padding - pool_size) / strides) + 1, with `ceil_mode` the ceiling; `strides` are
    `pool_size` if not given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.MaxPool3D((1, 2, 2))(nd.array([[[[[1, 3], [5, 7]]]]])).asnumpy()
    array([[[[[7.]]]]], dtype=float32)

    Raises:
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        ShapeError: x has more axes than the layout, or fewer; a window is larger than the padded x.
    """

    _layouts = _VOLUMES

    def __init__(
        self,
        pool_size: Extents = 2,
        strides: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,  # MXNet's order, here and in AvgPool1D
        layout: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)


class _AvgPool(_Pool):
    """The mean of each window; the zeros of the padding count, unless `count_include_pad` is False."""

    _kind = "avg"

    def __init__(
        self,
        pool_size: Extents = 2,
        strides: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,
        layout: str | None = None,
        count_include_pad: bool = True,
        **kwargs: Any,
    ):
        super().__init__(pool_size, strides, padding, layout, ceil_mode, count_include_pad, **kwargs)


class AvgPool1D(_AvgPool):
    """The mean of each window of (N, C, W); the zeros of the padding count, unless `count_include_pad` is False.

    An extent n becomes floor((n + 2 padding - pool_size) / strides) + 1, with `ceil_mode` the ceiling; `strides` are
    `pool_size` if not given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.AvgPool1D(2)(nd.array([[[1, 3, 5, 7]]])).asnumpy()
    array([[[2., 6.]]], dtype=float32)

    Raises:
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        ShapeError: x has more axes than the layout, or fewer; a window is larger than the padded x.
    """

    _layouts = _LINES

    def __init__(
        self,
        pool_size: Extents = 2,
        strides: Extents | None = None,
        padding: Extents = 0,
        layout: str | None = None,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        **kwargs: Any,
    ):
        super().__init__(pool_size, strides, padding, ceil_mode, layout, count_include_pad, **kwargs)


class AvgPool2D(_AvgPool):
    """The mean of each window of (N, C, H, W); the zeros of the padding count, unless `count_include_pad` is False.

    An extent n becomes floor((n + 2 padding - pool_size) / strides) + 1, with `ceil_mode` the ceiling; `strides` are
    `pool_size` if not given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.AvgPool2D(2)(nd.array([[[[1, 3], [5, 7]]]])).asnumpy()
    array([[[[4.]]]], dtype=float32)

    Raises:
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        ShapeError: x has more axes than the layout, or fewer; a window is larger than the padded x.
    """

    _layouts = _IMAGES


class AvgPool3D(_AvgPool):
    """The mean of each window of (N, C, D, H, W); zeros of the padding count, unless `count_include_pad` is False.

    An extent n becomes floor((n + 2 padding - pool_size) / strides) + 1, with `ceil_mode` the ceiling; `strides` are
    `pool_size` if not given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.AvgPool3D((1, 2, 2))(nd.array([[[[[1, 3], [5, 7]]]]])).asnumpy()
    array([[[[[4.]]]]], dtype=float32)

    Raises:
        AssertionError: another layout; not one number for each axis.
        ArgumentError: an extent is no whole number, or less than makes sense.
        ShapeError: x has more axes than the layout, or fewer; a window is larger than the padded x.
    """

    _layouts = _VOLUMES


class _GlobalPool(HybridBlock):
    """One number for each channel: the axes behind the channels become 1."""

    _kind = "max"
    _layouts: tuple[str, ...] = ()

    def __init__(self, layout: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._layout = check_layout(self, layout or self._layouts[0], self._layouts)

    def _alias(self) -> str:
        return "pool"

    def forward(self, x: Any) -> Any:
        check_rank(self, x, self._layout)
        return nd.Pooling(x, pool_type=self._kind, global_pool=True, layout=self._layout)

    def __repr__(self) -> str:
        axes = len(self._layout) - 2
        return (
            f"{type(self).__name__}(size={(1,) * axes}, stride={(1,) * axes}, padding={(0,) * axes}, ceil_mode=True, "
            f"global_pool=True, pool_type={self._kind}, layout={self._layout})"
        )


class GlobalMaxPool1D(_GlobalPool):
    """The largest element of each channel: (N, C, W) -> (N, C, 1).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GlobalMaxPool1D()(nd.array([[[1, 3, 5, 7]]])).asnumpy()
    array([[[7.]]], dtype=float32)

    Raises:
        AssertionError: another layout.
        ShapeError: x has more axes than the layout, or fewer.
    """

    _layouts = _LINES


class GlobalMaxPool2D(_GlobalPool):
    """The largest element of each channel: (N, C, H, W) -> (N, C, 1, 1).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GlobalMaxPool2D()(nd.array([[[[1, 3], [5, 7]]]])).asnumpy()
    array([[[[7.]]]], dtype=float32)

    Raises:
        AssertionError: another layout.
        ShapeError: x has more axes than the layout, or fewer.
    """

    _layouts = _IMAGES


class GlobalMaxPool3D(_GlobalPool):
    """The largest element of each channel: (N, C, D, H, W) -> (N, C, 1, 1, 1).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GlobalMaxPool3D()(nd.array([[[[[1, 3], [5, 7]]]]])).asnumpy()
    array([[[[[7.]]]]], dtype=float32)

    Raises:
        AssertionError: another layout.
        ShapeError: x has more axes than the layout, or fewer.
    """

    _layouts = _VOLUMES


class GlobalAvgPool1D(_GlobalPool):
    """The mean of each channel: (N, C, W) -> (N, C, 1).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GlobalAvgPool1D()(nd.array([[[1, 3, 5, 7]]])).asnumpy()
    array([[[4.]]], dtype=float32)

    Raises:
        AssertionError: another layout.
        ShapeError: x has more axes than the layout, or fewer.
    """

    _kind, _layouts = "avg", _LINES


class GlobalAvgPool2D(_GlobalPool):
    """The mean of each channel: (N, C, H, W) -> (N, C, 1, 1).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GlobalAvgPool2D()(nd.array([[[[1, 3], [5, 7]]]])).asnumpy()
    array([[[[4.]]]], dtype=float32)

    Raises:
        AssertionError: another layout.
        ShapeError: x has more axes than the layout, or fewer.
    """

    _kind, _layouts = "avg", _IMAGES


class GlobalAvgPool3D(_GlobalPool):
    """The mean of each channel: (N, C, D, H, W) -> (N, C, 1, 1, 1).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GlobalAvgPool3D()(nd.array([[[[[1, 3], [5, 7]]]]])).asnumpy()
    array([[[[[4.]]]]], dtype=float32)

    Raises:
        AssertionError: another layout.
        ShapeError: x has more axes than the layout, or fewer.
    """

    _kind, _layouts = "avg", _VOLUMES


class ReflectionPad2D(HybridBlock):
    """Images with a mirrored border: as wide everywhere, or `padding` as `nd.pad` takes it, two numbers an axis.

    x is (N, C, H, W); the edge itself is not repeated.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.ReflectionPad2D((0, 0, 0, 0, 0, 0, 1, 1))(nd.array([[[[1, 2, 3]]]])).asnumpy()
    array([[[[2., 1., 2., 3., 2.]]]], dtype=float32)

    Raises:
        AssertionError: `padding` is neither one number nor eight.
        ValueError: it is no whole numbers from 0 on.
    """

    def __init__(self, padding: Extents = 0, **kwargs: Any):
        super().__init__(**kwargs)
        given = plain(padding)
        self._padding = (0, 0, 0, 0, *(given,) * 4) if isinstance(given, int | float) else tuple(given)
        for number in self._padding:
            check_count(self, "padding", number, 0)
        if len(self._padding) != 8:
            raise AssertionError(
                with_user_location(f"ReflectionPad2D: padding is one number or two for each of 4 axes, not {padding!r}")
            )

    def forward(self, x: Any) -> Any:
        return nd.pad(x, mode="reflect", pad_width=self._padding)
