"""Normalization layers."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.dtypes import dtype_name
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter import Parameter
from gluongraph.ranges import FRACTION, NOT_NEGATIVE, UNKNOWN, check_count, check_range


class _Norm(HybridBlock):
    """What the normalization layers share: gamma and beta, of as many elements as are known, or turn out."""

    def __init__(self, axis: int, epsilon: float, center: bool, scale: bool, in_channels: int, **kwargs: Any):
        super().__init__(**kwargs)
        check_range(self, "epsilon", epsilon, NOT_NEGATIVE)
        check_count(self, "in_channels", in_channels, UNKNOWN)
        self._axis, self._epsilon, self._center, self._scale = axis, epsilon, center, scale
        self._in_channels = in_channels

    def _vector(self, name: str, init: Any, trained: bool = True, differentiable: bool = True) -> Parameter:
        return self.params.get(
            name,
            grad_req="write" if trained else "null",
            shape=(self._in_channels,),
            init=init,
            allow_deferred_init=True,
            differentiable=differentiable and trained,
        )

    def _axis_of(self, x: Any) -> int:
        """The axis that gamma and beta run along, counted from the front."""
        if not -x.ndim <= self._axis < x.ndim:
            raise ShapeError(
                with_user_location(
                    f"{type(self).__name__} {self.name!r}: {x.type} has no axis {self._axis}", scope=self.name
                )
            )
        return int(self._axis % x.ndim)

    def infer_shape(self, x: Any, *args: Any) -> None:
        for parameter in self._reg_params.values():
            parameter.shape = (x.shape[self._axis_of(x)],)

    def _elements(self) -> int:
        """Of gamma; 0 if that is not known yet."""
        return (self._reg_params["gamma"].shape or (0,))[0]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(eps={self._epsilon}, axis={self._axis}, center={self._center}, "
            f"scale={self._scale}, in_channels={self._elements()})"
        )


class BatchNorm(_Norm):
    """gamma (x - mean) / sqrt(var + epsilon) + beta, per channel of `axis`.

    In training mode mean and (biased) variance are the batch's, and the running ones become
    momentum running + (1 - momentum) batch in the forward. Otherwise, and with `use_global_stats`, the running ones
    normalize. Without `scale` gamma is 1, without `center` beta is 0; they exist, untrained. The result has the shape
    of x; gamma, beta and the running ones have (C,).

    >>> from gluongraph import autograd, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.BatchNorm()
    >>> layer.initialize()
    >>> with autograd.record():
    ...     y = layer(nd.array([[1, 20], [3, 40]]))
    >>> y.round().asnumpy()
    array([[-1., -1.],
           [ 1.,  1.]], dtype=float32)

    Raises:
        ValueError: `momentum` is not from 0 to 1, or `epsilon` is negative or not finite.
        ShapeError: x has no axis `axis`.
    """

    def __init__(
        self,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ):
        super().__init__(axis, epsilon, center, scale, in_channels, **kwargs)
        check_range(self, "momentum", momentum, FRACTION)
        self._momentum, self._use_global_stats = momentum, use_global_stats
        self.gamma = self._vector("gamma", gamma_initializer, scale)
        self.beta = self._vector("beta", beta_initializer, center)
        self.running_mean = self._vector("running_mean", running_mean_initializer, differentiable=False)
        self.running_var = self._vector("running_var", running_variance_initializer, differentiable=False)

    def cast(self, dtype: Any) -> None:
        """Change the element type; 16-bit types leave the four vectors at float32, as statistics need it.

        >>> from gluongraph.gluon import nn
        >>> layer = nn.BatchNorm(in_channels=2)
        >>> layer.cast("float16")
        >>> layer.gamma.dtype.__name__
        'float32'
        """
        super().cast("float32" if dtype_name(dtype) in ("f16", "bf16") else dtype)

    def forward(self, x: Any) -> Any:
        return nd.BatchNorm(
            x,
            self.gamma.data(),
            self.beta.data(),
            self.running_mean.data(),
            self.running_var.data(),
            eps=self._epsilon,
            momentum=self._momentum,
            fix_gamma=not self._scale,
            use_global_stats=self._use_global_stats,
            axis=self._axis_of(x),
        )

    def _settings(self) -> str:
        return (
            f"eps={self._epsilon}, momentum={self._momentum}, fix_gamma={not self._scale}, "
            f"use_global_stats={self._use_global_stats}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(axis={self._axis}, {self._settings()}, in_channels={self._elements() or None})"


class BatchNormReLU(BatchNorm):
    """max(0, BatchNorm); compiled, the two are one anyway.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.BatchNormReLU()
    >>> layer.initialize()  # running mean 0, running variance 1
    >>> layer(nd.array([[-2, 3]])).round().asnumpy()
    array([[0., 3.]], dtype=float32)
    """

    def forward(self, x: Any) -> Any:
        return nd.relu(super().forward(x))


class LayerNorm(_Norm):
    """gamma (x - mean) / sqrt(var + epsilon) + beta, mean and biased variance along `axis` of each sample.

    The result has the shape of x; gamma and beta have the extent of `axis` (Ba et al., 2016).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.LayerNorm()
    >>> layer.initialize()
    >>> layer(nd.array([[1, 3], [60, 20]])).round().asnumpy()
    array([[-1.,  1.],
           [ 1., -1.]], dtype=float32)

    Raises:
        ValueError: `epsilon` is negative or not finite.
        ShapeError: x has no axis `axis`.
    """

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ):
        super().__init__(axis, epsilon, center, scale, in_channels, **kwargs)
        self.gamma = self._vector("gamma", gamma_initializer, scale)
        self.beta = self._vector("beta", beta_initializer, center)

    def forward(self, x: Any) -> Any:
        return nd.LayerNorm(x, self.gamma.data(), self.beta.data(), axis=self._axis_of(x), eps=self._epsilon)


class GroupNorm(_Norm):
    """gamma (x - mean) / sqrt(var + epsilon) + beta over each sample's groups of channels (Wu and He, 2018).

    x is (N, C, ...), and so is the result. As in MXNet 1.9.1, gamma and beta have one element for each group.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.GroupNorm(num_groups=2)
    >>> layer.initialize()
    >>> layer(nd.array([[[1], [3], [60], [20]]])).round().asnumpy().ravel()
    array([-1.,  1.,  1., -1.], dtype=float32)

    Raises:
        ValueError: `num_groups` is no whole number from 1 on, or `epsilon` is negative or not finite.
        ShapeError: the channels do not divide into `num_groups` groups.
    """

    def __init__(
        self,
        num_groups: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ):
        check_count(self, "num_groups", num_groups)
        super().__init__(1, epsilon, center, scale, num_groups, **kwargs)
        self.gamma = self._vector("gamma", gamma_initializer, scale)
        self.beta = self._vector("beta", beta_initializer, center)

    def forward(self, x: Any) -> Any:
        groups = self._in_channels
        return nd.GroupNorm(x, self.gamma.data(), self.beta.data(), num_groups=groups, eps=self._epsilon)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(eps={self._epsilon}, num_groups={self._in_channels}, center={self._center}, "
            f"scale={self._scale})"
        )


class InstanceNorm(_Norm):
    """gamma (x - mean) / sqrt(var + epsilon) + beta, over each sample's channels of `axis` (Ulyanov et al., 2016).

    The result has the shape of x; gamma and beta have (C,). As in MXNet 1.9.1, gamma is trained with `scale` only.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.InstanceNorm()
    >>> layer.initialize()
    >>> layer(nd.array([[[1, 3], [60, 20]]])).round().asnumpy()
    array([[[-1.,  1.],
            [ 1., -1.]]], dtype=float32)

    Raises:
        ValueError: `epsilon` is negative or not finite.
        ShapeError: x has no axis `axis`.
    """

    def __init__(
        self,
        axis: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ):
        super().__init__(axis, epsilon, center, scale, in_channels, **kwargs)
        self.gamma = self._vector("gamma", gamma_initializer, scale)
        self.beta = self._vector("beta", beta_initializer, center)

    def forward(self, x: Any) -> Any:
        axis = self._axis_of(x)
        moved = x if axis == 1 else nd.swapaxes(x, 1, axis)
        y = nd.InstanceNorm(moved, self.gamma.data(), self.beta.data(), eps=self._epsilon)
        return y if axis == 1 else nd.swapaxes(y, 1, axis)
