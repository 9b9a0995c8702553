"""Elementwise layers."""

from __future__ import annotations

from typing import Any

from gluongraph import nd, ops
from gluongraph.gluon.block import HybridBlock
from gluongraph.ndarray import invoke

ACTIVATIONS = ("relu", "sigmoid", "softrelu", "softsign", "tanh")


class Activation(HybridBlock):
    """relu, sigmoid, softrelu, softsign or tanh, by name."""

    def __init__(self, activation: str, **kwargs: Any):
        if activation not in ACTIVATIONS:
            raise ValueError(f"no activation is called {activation!r}; there are {', '.join(ACTIVATIONS)}")
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


class GELU(HybridBlock):
    """x Φ(x), by the error function; by tanh with `approximation="tanh"`."""

    def __init__(self, approximation: str = "erf", **kwargs: Any):
        if approximation not in ("erf", "tanh"):
            raise ValueError(f"approximation is 'erf' or 'tanh', not {approximation!r}")
        super().__init__(**kwargs)
        self._approximate = approximation == "tanh"

    def forward(self, x: Any) -> Any:
        return invoke(ops.gelu, x, approximate=self._approximate)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
