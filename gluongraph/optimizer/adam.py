"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.ir import Node, TensorType
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.counting import Index


class _Moments(Optimizer):
    """The running means of the gradient and of its square, and the bias-corrected rate."""

    default_rate: ClassVar[float] = 0.001

    def __init__(
        self, learning_rate: float | None, beta1: float, beta2: float, epsilon: float, correct_bias: bool, **kwargs: Any
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon, self.correct_bias = beta1, beta2, epsilon, correct_bias

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"mean": weight, "var": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        if self.correct_bias:
            t = self.t(index)
            numbers["lr"] *= math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)
        # 1 - beta is formed here: in float32, 1 - 0.999 is off by 1e-5 of itself.
        numbers.update(
            beta1=self.beta1, beta2=self.beta2, new1=1.0 - self.beta1, new2=1.0 - self.beta2, epsilon=self.epsilon
        )
        return numbers

    def moments(self, g: Node, state: Mapping[str, Node], s: Mapping[str, Node]) -> tuple[Node, dict[str, Node]]:
        """The direction mean / (sqrt(var) + epsilon), and the new state."""
        mean = s["beta1"] * state["mean"] + s["new1"] * g
        var = s["beta2"] * state["var"] + s["new2"] * (g * g)
        return mean / (ops.sqrt(var) + s["epsilon"]), {"mean": mean, "var": var}


@Optimizer.register
class Adam(_Moments):
    """g = C(r g + wd w);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w = w - lr_t m / (sqrt(v) + epsilon).

    lr_t = lr sqrt(1 - b2^t) / (1 - b1^t): epsilon is added to the uncorrected root, as in MXNet.
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, True, **kwargs)
        self.lazy_update = lazy_update

    def rule(self, w: Node, g: Node, state: Mapping[str, Node], s: Mapping[str, Node]) -> tuple[Node, dict[str, Node]]:
        direction, new = self.moments(self.clip(g * s["rescale"] + s["wd"] * w, s), state, s)
        return w - s["lr"] * direction, new


@Optimizer.register
class AdamW(_Moments):
    """m, v of C(r g) as Adam's;  w = w - lr_t (m / (sqrt(v) + epsilon) + wd w): decay apart from the gradient."""

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        correct_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, correct_bias, **kwargs)

    def rule(self, w: Node, g: Node, state: Mapping[str, Node], s: Mapping[str, Node]) -> tuple[Node, dict[str, Node]]:
        direction, new = self.moments(self.clip(g * s["rescale"], s), state, s)
        return w - s["lr"] * (direction + s["wd"] * w), new
