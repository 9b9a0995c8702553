"""Weights as the minimum of what all gradients so far add up to: Ftrl and FTML.

r is `rescale_grad`, C the clipping, lr and wd the rate and decay of the parameter, t the number of its update.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.adam import averaging
from gluongraph.optimizer.base import Nodes, Optimizer, Updated
from gluongraph.optimizer.counting import Index


@Optimizer.register
class Ftrl(Optimizer):
    """g = C(r g);  z = z + g - (sqrt(n + g²) - sqrt(n)) w / lr;  n = n + g²;

    w = (lamda1 sign(z) - z) / ((beta + sqrt(n)) / lr + wd) where |z| > lamda1, else 0. As z knows nothing of first
    weights, one whose first gradient is 0 becomes 0. McMahan et al.: Ad click prediction: a view from the trenches
    (2013).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.Ftrl(lamda1=1.0, learning_rate=0.5))
    >>> weight = nd.zeros((2,))
    >>> updater(0, nd.array([3.0, 0.5]), weight)
    >>> weight.asnumpy().tolist()
    [-0.25, 0.0]

    Raises:
        ZeroDivisionError: at an update, the rate is 0.
    """

    default_rate: ClassVar[float] = 0.1
    per_parameter: ClassVar[frozenset[str]] = frozenset({"inverse", "wd"})
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, lamda1: float = 0.01, learning_rate: float | None = None, beta: float = 1.0, **kwargs: Any):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.lamda1, self.beta = lamda1, beta

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"z": weight, "n": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {
            **{"inverse": self.inverse_rate(index), "wd": self.decay(index)},
            **{**self._common(), "lamda1": self.lamda1, "beta": self.beta},
        }

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"], s)
        n = state["n"] + g * g
        root = ops.sqrt(n)
        z = state["z"] + g - (root - ops.sqrt(state["n"])) * w * s["inverse"]
        least = (ops.sign(z) * s["lamda1"] - z) / ((s["beta"] + root) * s["inverse"] + s["wd"])
        return ops.where(ops.greater(ops.abs(z), s["lamda1"]), least, 0.0), {"z": z, "n": n}


@Optimizer.register
class FTML(Optimizer):
    """g = C(r g + wd w);  v = b2 v + (1 - b2) g²;  d' = (1 - b1^t) / lr (sqrt(v / (1 - b2^t)) + epsilon);

    z = b1 z + (1 - b1) g - (d' - b1 d) w;  w = -z / d';  d = d'. Zheng, Kwok: Follow the moving leader in deep learning
    (2017).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.FTML(beta1=0.5, beta2=0.75, epsilon=0.0, learning_rate=0.5))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)  # v = 4, d = 4, z = -2
    >>> weight.asnumpy().tolist()
    [0.5]

    Raises:
        ZeroDivisionError: at an update, the rate is 0.
    """

    per_parameter: ClassVar[frozenset[str]] = frozenset({"inverse", "wd", "of_var"})

    def __init__(
        self,
        beta1: float = 0.6,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        learning_rate: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"d": weight, "v": weight, "z": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        t = self.t(index)
        return {
            "inverse": (1.0 - self.beta1**t) * self.inverse_rate(index),
            "of_var": 1.0 / (1.0 - self.beta2**t),
            "wd": self.decay(index),
            **self._common(),
            **averaging(self.beta1, self.beta2),
            "epsilon": self.epsilon,
        }

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"] + s["wd"] * w, s)
        v = s["beta2"] * state["v"] + s["new2"] * (g * g)
        d = s["inverse"] * (ops.sqrt(v * s["of_var"]) + s["epsilon"])
        z = s["beta1"] * state["z"] + s["new1"] * g - (d - s["beta1"] * state["d"]) * w
        return -z / d, {"d": d, "v": v, "z": z}
