"""Stochastic gradient descent, with and without momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph.ir import Node, TensorType
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.counting import Index


@Optimizer.register
class SGD(Optimizer):
    """d = C(r g) + wd w;  m = momentum m - lr d;  w = w + m.  (w = w - lr d without momentum)

    r is `rescale_grad`, C the clipping. The momentum holds the rate at which it was gathered, as MXNet's does.
    """

    def __init__(
        self, momentum: float = 0.0, lazy_update: bool = True, learning_rate: float | None = None, **kwargs: Any
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum, self.lazy_update = momentum, lazy_update

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), self.momentum != 0.0)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"mom": weight} if self.momentum != 0.0 else {}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        return {**numbers, "momentum": self.momentum} if self.momentum != 0.0 else numbers

    def rule(self, w: Node, g: Node, state: Mapping[str, Node], s: Mapping[str, Node]) -> tuple[Node, dict[str, Node]]:
        step = s["lr"] * (self.clip(g * s["rescale"], s) + s["wd"] * w)
        if self.momentum == 0.0:
            return w - step, {}
        mom = s["momentum"] * state["mom"] - step
        return w + mom, {"mom": mom}


@Optimizer.register
class ccSGD(SGD):
    """Another name of SGD, which old scripts use."""
