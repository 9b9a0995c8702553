"""Normalization layers."""

from __future__ import annotations

from typing import Any

from gluongraph import autograd, ops
from gluongraph.dtypes import dtype_name
from gluongraph.errors import ShapeError, located
from gluongraph.gluon.block import HybridBlock
from gluongraph.gluon.parameter import Parameter
from gluongraph.ndarray import invoke


class _Norm(HybridBlock):
    """What the normalization layers share: gamma and beta along one axis, whose extent may be known late."""

    def __init__(self, axis: int, epsilon: float, center: bool, scale: bool, in_channels: int, **kwargs: Any):
        super().__init__(**kwargs)
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

    def _extent(self, x: Any) -> int:
        if not -x.ndim <= self._axis < x.ndim:
            raise ShapeError(
                located(f"{type(self).__name__} {self.name!r}: {x.type} has no axis {self._axis}", scope=self.name)
            )
        return int(x.shape[self._axis])

    def infer_shape(self, x: Any, *args: Any) -> None:
        for parameter in self._reg_params.values():
            parameter.shape = (self._extent(x),)

    def _settings(self) -> str:
        return f"eps={self._epsilon}, axis={self._axis}, center={self._center}, scale={self._scale}"

    def __repr__(self) -> str:
        (channels,) = self._reg_params["gamma"].shape or (0,)
        return f"{type(self).__name__}({self._settings()}, in_channels={channels or None})"


class BatchNorm(_Norm):
    """gamma (x - mean) / sqrt(var + epsilon) + beta, per channel of `axis`.

    In training mode mean and (biased) variance are the batch's, and the running ones become
    momentum running + (1 - momentum) batch in the forward. Otherwise, and with `use_global_stats`, the running ones
    normalize. Without `scale` gamma is 1, without `center` beta is 0; they exist, untrained.
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
        self._momentum, self._use_global_stats = momentum, use_global_stats
        self.gamma = self._vector("gamma", gamma_initializer, scale)
        self.beta = self._vector("beta", beta_initializer, center)
        self.running_mean = self._vector("running_mean", running_mean_initializer, differentiable=False)
        self.running_var = self._vector("running_var", running_variance_initializer, differentiable=False)

    def cast(self, dtype: Any) -> None:
        """Change the element type; 16-bit types leave the four vectors at float32, as statistics need it."""
        super().cast("float32" if dtype_name(dtype) in ("f16", "bf16") else dtype)

    def forward(self, x: Any) -> Any:
        axis = self._axis % x.ndim if self._extent(x) else self._axis
        gamma, beta = self.gamma.data(), self.beta.data()
        mean, var = self.running_mean.data(), self.running_var.data()
        if not autograd.is_training() or self._use_global_stats:
            return invoke(_by_running, x, gamma, beta, mean, var, axis=axis, eps=self._epsilon, scale=self._scale)
        y, batch_mean, batch_var = invoke(_by_batch, x, gamma, beta, axis=axis, eps=self._epsilon, scale=self._scale)
        keep = self._momentum
        with autograd.pause(train_mode=True):
            mean[:] = invoke(_moved, mean, batch_mean.detach(), keep=keep)
            var[:] = invoke(_moved, var, batch_var.detach(), keep=keep)
        return y

    def _settings(self) -> str:
        return f"{super()._settings()}, momentum={self._momentum}, use_global_stats={self._use_global_stats}"


def _by_batch(x: Any, gamma: Any, beta: Any, *, axis: int, eps: float, scale: bool) -> Any:
    gamma = gamma if scale else ops.full(gamma.shape, 1.0, gamma.dtype)
    y, mean, var = ops.batch_norm(_wide(x, gamma), gamma, beta, axis=axis, eps=eps)
    return ops.cast(y, x.dtype), mean, var


def _by_running(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, *, axis: int, eps: float, scale: bool) -> Any:
    gamma = gamma if scale else ops.full(gamma.shape, 1.0, gamma.dtype)
    return ops.cast(ops.batch_norm_inference(_wide(x, gamma), gamma, beta, mean, var, axis=axis, eps=eps), x.dtype)


def _wide(x: Any, gamma: Any) -> Any:
    """x in the type that the statistics are held in."""
    return ops.cast(x, gamma.dtype)


def _moved(running: Any, batch: Any, *, keep: float) -> Any:
    return keep * running + (1.0 - keep) * batch


class LayerNorm(_Norm):
    """gamma (x - mean) / sqrt(var + epsilon) + beta, mean and biased variance along `axis` of each sample."""

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
        axis = self._axis % x.ndim if self._extent(x) else self._axis
        return invoke(ops.layer_norm, x, self.gamma.data(), self.beta.data(), axis=axis, eps=self._epsilon)
