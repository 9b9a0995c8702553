"""Steps along the running mean of the gradient over that of its size: Adam, AdamW, AdaBelief, Adamax, Nadam.

r is `rescale_grad`, C the clipping, lr and wd the rate and decay of the parameter, t the number of its update.
lr_t = lr sqrt(1 - beta2^t) / (1 - beta1^t) corrects for the means' beginning at 0.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.formulas import number, product, sqrt
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.base import Nodes, Optimizer, Updated
from gluongraph.optimizer.counting import Index

NOTHING = 2.0**-54  # beside 1.0, in float64


def averaging(beta1: float, beta2: float) -> dict[str, float]:
    """The scalars of two running means, beta m + new x. 1 - beta is formed here: in float32, 1 - 0.999 is off by 1e-5
    of itself.

    >>> from gluongraph.optimizer.adam import averaging
    >>> averaging(0.5, 0.75)
    {'beta1': 0.5, 'beta2': 0.75, 'new1': 0.5, 'new2': 0.25}
    """
    return {"beta1": beta1, "beta2": beta2, "new1": 1.0 - beta1, "new2": 1.0 - beta2}


class Moments(Optimizer):
    """The running means of the gradient and of its square.

    >>> from gluongraph.optimizer.adam import Moments
    >>> from gluongraph.optimizer import Adam
    >>> issubclass(Adam, Moments), Adam.default_rate
    (True, 0.001)
    """

    default_rate: ClassVar[float] = 0.001

    def __init__(self, learning_rate: float | None, beta1: float, beta2: float, epsilon: float, **kwargs: Any):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"mean": weight, "var": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {**super().scalars(index), **averaging(self.beta1, self.beta2), "epsilon": self.epsilon}

    def corrected(self, rate: float, index: Index) -> float:
        """lr_t, from lr.

        >>> from gluongraph.optimizer import Adam
        >>> Adam(beta1=0.75, beta2=0.75).corrected(0.5, index=0)
        1.0
        """
        t = self.t(index)
        return rate * sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)

    def moments(self, g: Node, state: Nodes, s: Nodes) -> dict[str, Node]:
        """mean = beta1 mean + (1 - beta1) g;  var = beta2 var + (1 - beta2) g²"""
        mean = s["beta1"] * state["mean"] + s["new1"] * g
        return {"mean": mean, "var": s["beta2"] * state["var"] + s["new2"] * (g * g)}


@Optimizer.register
class Adam(Moments):
    """g = C(r g + wd w);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w = w - lr_t m / (sqrt(v) + epsilon).

    Epsilon is added to the uncorrected root, as in MXNet. Kingma, Ba: Adam: a method for stochastic optimization
    (2014).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.Adam(learning_rate=0.5, beta1=0.5, beta2=0.75, epsilon=0.0))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)  # m = 2, v = 4, lr_1 = 0.5
    >>> weight.asnumpy().tolist()
    [0.5]
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
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.lazy_update = lazy_update

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        return {**numbers, "lr": self.corrected(numbers["lr"], index)}

    @property
    def lazy(self) -> bool:
        return self.lazy_update

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        new = self.moments(self.clip(g * s["rescale"] + s["wd"] * w, s), state, s)
        return w - s["lr"] * (new["mean"] / (ops.sqrt(new["var"]) + s["epsilon"])), new


class _MaybeCorrected(Moments):
    """With `correct_bias` or without: lr_t or lr."""

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        correct_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.correct_bias = correct_bias

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        return {**numbers, "lr": self.corrected(numbers["lr"], index)} if self.correct_bias else numbers


@Optimizer.register
class AdamW(_MaybeCorrected):
    """m, v of C(r g) as Adam's;  w = w - lr_t (m / (sqrt(v) + epsilon) + wd w): decay apart from the gradient.

    As MXNet 2.0's. Loshchilov, Hutter: Decoupled weight decay regularization (2017).

    >>> from gluongraph import nd, optimizer
    >>> rule = optimizer.AdamW(learning_rate=0.5, beta1=0.5, beta2=0.75, epsilon=0.0, wd=0.5)
    >>> weight = nd.array([2.0])
    >>> optimizer.get_updater(rule)(0, nd.array([4.0]), weight)  # m = 2, v = 4, wd w = 1
    >>> weight.asnumpy().tolist()
    [1.0]
    """

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        new = self.moments(self.clip(g * s["rescale"], s), state, s)
        return w - s["lr"] * (new["mean"] / (ops.sqrt(new["var"]) + s["epsilon"]) + s["wd"] * w), new


@Optimizer.register
class AdaBelief(_MaybeCorrected):
    """g = C(r g + wd w);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2)(g - m)² + epsilon;  w as Adam's.

    As MXNet 2.0's. Zhuang et al.: AdaBelief optimizer: adapting stepsizes by the belief in observed gradients (2020).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.AdaBelief(learning_rate=0.5, beta1=0.5, beta2=0.75, epsilon=0.0))
    >>> weight = nd.array([2.0])
    >>> updater(0, nd.array([4.0]), weight)  # m = 2, v = 1
    >>> weight.asnumpy().tolist()
    [1.0]
    """

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"] + s["wd"] * w, s)
        mean = s["beta1"] * state["mean"] + s["new1"] * g
        surprise = g - mean
        var = s["beta2"] * state["var"] + s["new2"] * (surprise * surprise) + s["epsilon"]
        return w - s["lr"] * (mean / (ops.sqrt(var) + s["epsilon"])), {"mean": mean, "var": var}


@Optimizer.register
class Adamax(Moments):
    """g = C(r g + wd w);  m = b1 m + (1 - b1) g;  u = max(b2 u, |g|);  w = w - lr / (1 - b1^t) m / (u + epsilon).

    Kingma and Ba, as Adam. MXNet 1.9.1 has no epsilon, and makes NaN of a gradient that is 0 at first.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.Adamax(learning_rate=0.5, beta1=0.5, epsilon=0.0))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)  # m = 2, u = 4
    >>> weight.asnumpy().tolist()
    [0.5]
    """

    default_rate: ClassVar[float] = 0.002

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"mean": weight, "largest": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        del numbers["new2"]
        return {**numbers, "lr": numbers["lr"] / (1.0 - self.beta1 ** self.t(index))}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"] + s["wd"] * w, s)
        mean = s["beta1"] * state["mean"] + s["new1"] * g
        largest = ops.maximum(s["beta2"] * state["largest"], ops.abs(g))
        return w - s["lr"] * (mean / (largest + s["epsilon"])), {"mean": mean, "largest": largest}


@Optimizer.register
class Nadam(Moments):
    """g, m, v as Adam's;  w = w - lr n / (sqrt(v / (1 - b2^t)) + epsilon), where

    n = (1 - mu_t) g / (1 - P_t) + mu_(t+1) m / (1 - P_(t+1)),  mu_t = b1 (1 - 0.96^(t schedule_decay) / 2),
    and P_t is the product of mu_1 to mu_t; where b1 has been changed, as if it had been so from the first update on.
    Dozat: Incorporating Nesterov momentum into Adam (2016). In MXNet 1.9.1 all parameters multiply one P, so that it
    runs away with their number; here each has its own.

    >>> from gluongraph import nd, optimizer
    >>> rule = optimizer.Nadam(learning_rate=15.0, beta1=0.5, beta2=0.75, epsilon=0.0, schedule_decay=0.0)
    >>> weight = nd.array([100.0])
    >>> optimizer.get_updater(rule)(0, nd.array([15.0]), weight)  # m = 7.5, v = 225 / 4, n = 15 + 4/15 m = 17
    >>> weight.asnumpy().tolist()
    [83.0]
    """

    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "of_g", "of_mean", "of_var"})

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.schedule_decay = schedule_decay
        self._products: dict[tuple[float, ...], list[float]] = {}  # settings -> P, as far as they are asked for

    def _mu(self, t: int) -> float:
        return number(self.beta1 * (1.0 - 0.5 * 0.96 ** (t * self.schedule_decay)))

    def _product(self, t: int) -> float:
        """P_t, counted from the first update after `begin_num_update`. What is below NOTHING changes no 1 - P."""
        settings = (self.beta1, self.schedule_decay, self.begin_num_update)
        return product(self._mu, self.begin_num_update + 1, t, NOTHING, self._products, settings)

    def scalars(self, index: Index) -> dict[str, float]:
        t = self.t(index)
        mu, next_mu, product = self._mu(t), self._mu(t + 1), self._product(t)
        return {
            **super().scalars(index),
            "of_g": (1.0 - mu) / (1.0 - product),
            "of_mean": next_mu / (1.0 - product * next_mu),
            "of_var": 1.0 / (1.0 - self.beta2**t),
        }

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"] + s["wd"] * w, s)
        new = self.moments(g, state, s)
        ahead = s["of_g"] * g + s["of_mean"] * new["mean"]
        return w - s["lr"] * (ahead / (ops.sqrt(new["var"] * s["of_var"]) + s["epsilon"])), new
