"""Elementwise layers."""

from __future__ import annotations

from typing import Any

from gluongraph import nd, ops
from gluongraph.errors import MXNetError, located
from gluongraph.gluon.block import HybridBlock
from gluongraph.initializer import Constant
from gluongraph.ndarray import invoke

_QUARTER = Constant(0.25)
ACTIVATIONS = ("relu", "sigmoid", "softrelu", "softsign", "tanh")


class Activation(HybridBlock):
    """relu, sigmoid, softrelu, softsign or tanh, by name."""

    def __init__(self, activation: str, **kwargs: Any):
        if activation not in ACTIVATIONS:
            raise MXNetError(located(f"no activation is called {activation!r}; there are {', '.join(ACTIVATIONS)}"))
        self._act_type = activation
        super().__init__(**kwargs)

    def _alias(self) -> str:
        return self._act_type

    def forward(self, x: Any) -> Any:
        return getattr(nd, self._act_type)(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._act_type})"


class LeakyReLU(HybridBlock):
    """x where x > 0, else alpha x."""

    def __init__(self, alpha: float, **kwargs: Any):
        if alpha < 0:
            raise AssertionError(f"the slope of LeakyReLU must not be negative, it is {alpha}")
        super().__init__(**kwargs)
        self._alpha = alpha

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, act_type="leaky", slope=self._alpha)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._alpha})"


class PReLU(HybridBlock):
    """x where x > 0, else alpha x, with a trained alpha: one for all, or one for each of `in_channels` channels."""

    def __init__(self, alpha_initializer: Any = _QUARTER, in_channels: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.alpha = self.params.get("alpha", shape=(in_channels,), init=alpha_initializer)

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, self.alpha.data(), act_type="prelu")


class ELU(HybridBlock):
    """x where x > 0, else alpha (eˣ - 1)."""

    def __init__(self, alpha: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self._alpha = alpha

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, act_type="elu", slope=self._alpha)


class SELU(HybridBlock):
    """ELU times a scale, with the two numbers for which mean 0 and variance 1 stay (Klambauer et al., 2017)."""

    def forward(self, x: Any) -> Any:
        return nd.LeakyReLU(x, act_type="selu")


class GELU(HybridBlock):
    """x Φ(x), by the error function; by tanh with `approximation="tanh"`."""

    def __init__(self, approximation: str = "erf", **kwargs: Any):
        if approximation not in ("erf", "tanh"):
            raise ValueError(f"approximation is 'erf' or 'tanh', not {approximation!r}")
        super().__init__(**kwargs)
        self._approximate = approximation == "tanh"

    def forward(self, x: Any) -> Any:
        return invoke(ops.gelu, x, approximate=self._approximate)


class Swish(HybridBlock):
    """x · sigmoid(beta x)"""

    def __init__(self, beta: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self._beta = beta

    def forward(self, x: Any) -> Any:
        return x * nd.sigmoid(x if self._beta == 1.0 else x * self._beta)


class SiLU(HybridBlock):
    """x · sigmoid(x)"""

    def forward(self, x: Any) -> Any:
        return x * nd.sigmoid(x)
