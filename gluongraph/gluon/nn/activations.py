"""Elementwise layers."""

from __future__ import annotations

from typing import Any

from gluongraph import nd, ops
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.initializer import Constant
from gluongraph.ndarray import invoke
from gluongraph.ranges import NOT_NEGATIVE, check_count, check_range

_QUARTER = Constant(0.25)
ACTIVATIONS = ("relu", "sigmoid", "softrelu", "softsign", "tanh")


class Activation(HybridBlock):
    """relu, sigmoid, softrelu, softsign or tanh, by name; the result has the shape of x.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.Activation("relu")(nd.array([-1, 0, 2])).asnumpy()
    array([0., 0., 2.], dtype=float32)

    Raises:
        MXNetError: `activation` is none of them.
    """

    def __init__(self, activation: str, **kwargs: Any):
        if activation not in ACTIVATIONS:
            raise MXNetError(
                with_user_location(f"no activation is called {activation!r}; there are {', '.join(ACTIVATIONS)}")
            )
        self._act_type = activation
        super().__init__(**kwargs)

    def _alias(self) -> str:
        return self._act_type

    def forward(self, x: Any) -> Any:
        return getattr(nd, self._act_type)(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._act_type})"


class LeakyReLU(HybridBlock):
    """x where x > 0, else alpha x.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.LeakyReLU(0.5)(nd.array([-2, 0, 2])).asnumpy()
    array([-1.,  0.,  2.], dtype=float32)

    Raises:
        AssertionError: `alpha` is negative or not finite.
    """

    def __init__(self, alpha: float, **kwargs: Any):
        check_range(self, "alpha", alpha, NOT_NEGATIVE, AssertionError)
        super().__init__(**kwargs)
        self._alpha = alpha

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, act_type="leaky", slope=self._alpha)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._alpha})"


class PReLU(HybridBlock):
    """x where x > 0, else alpha x, with a trained alpha: one for all, or one for each of `in_channels` channels.

    The channels are axis 1 of x. alpha has shape (in_channels,) and starts at 0.25.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.PReLU(in_channels=2)
    >>> layer.initialize()
    >>> layer(nd.array([[-4, 4], [8, -8]])).asnumpy()
    array([[-1.,  4.],
           [ 8., -2.]], dtype=float32)

    Raises:
        ValueError: `in_channels` is no whole number from 1 on.
    """

    def __init__(self, alpha_initializer: Any = _QUARTER, in_channels: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        check_count(self, "in_channels", in_channels)
        with self.name_scope():
            self.alpha = self.params.get("alpha", shape=(in_channels,), init=alpha_initializer)

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, self.alpha.data(), act_type="prelu")


class ELU(HybridBlock):
    """x where x > 0, else alpha (eˣ - 1) (Clevert et al., 2015).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.ELU(alpha=2)(nd.array([-1000, 0, 3])).asnumpy()
    array([-2.,  0.,  3.], dtype=float32)

    Raises:
        ValueError: `alpha` is not finite.
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        check_range(self, "alpha", alpha)
        self._alpha = alpha

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, act_type="elu", slope=self._alpha)


class SELU(HybridBlock):
    """ELU times a scale, with the two numbers for which mean 0 and variance 1 stay (Klambauer et al., 2017).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.SELU()(nd.array([0, 100])).round().asnumpy()  # the scale is 1.0507
    array([  0., 105.], dtype=float32)
    """

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, act_type="selu")


class GELU(HybridBlock):
    """x Φ(x), by the error function; by tanh with `approximation="tanh"` (Hendrycks and Gimpel, 2016).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.GELU()(nd.array([0, 100])).round().asnumpy()
    array([  0., 100.], dtype=float32)

    Raises:
        ValueError: another `approximation`.
    """

    def __init__(self, approximation: str = "erf", **kwargs: Any):
        if approximation not in ("erf", "tanh"):
            raise ValueError(with_user_location(f"GELU: approximation is 'erf' or 'tanh', not {approximation!r}"))
        super().__init__(**kwargs)
        self._approximate = approximation == "tanh"

    def forward(self, x: Any) -> Any:
        return invoke(ops.gelu, x, approximate=self._approximate)


class Swish(HybridBlock):
    """x · sigmoid(beta x) (Ramachandran et al., 2017)

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.Swish(beta=2)(nd.array([0, 100])).round().asnumpy()
    array([  0., 100.], dtype=float32)

    Raises:
        ValueError: `beta` is not finite.
    """

    def __init__(self, beta: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        check_range(self, "beta", beta)
        self._beta = beta

    def forward(self, x: Any) -> Any:
        return x * nd.sigmoid(x if self._beta == 1.0 else x * self._beta)


class SiLU(HybridBlock):
    """x · sigmoid(x): Swish with beta 1

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.SiLU()(nd.array([0, 100])).round().asnumpy()
    array([  0., 100.], dtype=float32)
    """

    def forward(self, x: Any) -> Any:
        return x * nd.sigmoid(x)
