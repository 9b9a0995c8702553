"""Steps over the root of what the squared gradients add up to: AdaGrad, GroupAdaGrad, RMSProp, AdaDelta.

r is `rescale_grad`, C the clipping, lr and wd the rate and decay of the parameter. Epsilon is within the root, as in
MXNet 1.9.1; the arguments are also known by their names in MXNet 2.0.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.errors import with_user_location
from gluongraph.formulas import number
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.base import Nodes, Optimizer, Updated
from gluongraph.optimizer.counting import Index


@Optimizer.register
class AdaGrad(Optimizer):
    """g = C(r g);  h = h + g²;  w = w - lr (g / sqrt(h + eps) + wd w).

    `epsilon` is another name of `eps`. Duchi, Hazan, Singer: Adaptive subgradient methods for online learning and
    stochastic optimization (2011).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.AdaGrad(eps=0.0, learning_rate=0.5))
    >>> weight = nd.array([2.0, 2.0])
    >>> updater(0, nd.array([4.0, -8.0]), weight)
    >>> weight.asnumpy().tolist()
    [1.5, 2.5]
    >>> updater.states[0].asnumpy().tolist()
    [16.0, 64.0]
    """

    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self, eps: float = 1e-7, learning_rate: float | None = None, *, epsilon: float | None = None, **kwargs: Any
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.eps = eps if epsilon is None else epsilon

    @property
    def lazy(self) -> bool:
        return True

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"history": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {**super().scalars(index), "eps": self.eps}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"], s)
        history = state["history"] + g * g
        return w - s["lr"] * (g / ops.sqrt(history + s["eps"]) + s["wd"] * w), {"history": history}


@Optimizer.register
class GroupAdaGrad(Optimizer):
    """g = C(r g);  h = h + the mean of g² over each row;  w = w - lr g / sqrt(h + eps).

    AdaGrad with one rate for a row. Weights are matrices, h is (rows, 1). `epsilon` is another name of `eps`.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.GroupAdaGrad(eps=0.0, learning_rate=5.0))
    >>> weight = nd.array([[2.0, 8.0]])
    >>> updater(0, nd.array([[1.0, 7.0]]), weight)  # the mean of 1 and 49 is 25
    >>> weight.asnumpy().tolist()
    [[1.0, 1.0]]

    Raises:
        AssertionError: a weight that is no matrix, or that has weight decay.
    """

    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self, eps: float = 1e-5, learning_rate: float | None = None, *, epsilon: float | None = None, **kwargs: Any
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.eps = eps if epsilon is None else epsilon

    @property
    def lazy(self) -> bool:
        return True

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        if weight.rank != 2:
            help = "use AdaGrad for the other parameters, in a Trainer of their own"
            raise AssertionError(
                with_user_location(f"GroupAdaGrad updates matrices, and a weight is {weight}", help=help)
            )
        return {"history": TensorType((weight.shape[0], 1), weight.dtype)}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        if numbers.pop("wd"):
            name = getattr(self.param_dict.get(index), "name", index)
            message = f"GroupAdaGrad has no weight decay, and parameter {name!r} has {self.decay(index)}"
            raise AssertionError(with_user_location(message, help="leave wd out, or set wd_mult=0 on the parameter"))
        return {**numbers, "eps": self.eps}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"], s)
        history = state["history"] + ops.mean(g * g, 1, keepdims=True)
        return w - s["lr"] * (g / ops.sqrt(history + s["eps"])), {"history": history}


@Optimizer.register
class RMSProp(Optimizer):
    """g = C(r g + wd w);  n = gamma1 n + (1 - gamma1) g²;  w = w - lr g / sqrt(n + epsilon).

    `centered` (Graves, 2013): m = gamma1 m + (1 - gamma1) g;  d = gamma2 d - lr g / sqrt(n - m² + epsilon);  w = w + d.
    `clip_weights` then holds w within ±clip_weights. `rho` and `momentum` are other names of `gamma1` and `gamma2`.
    Tieleman, Hinton: Lecture 6.5, Neural networks for machine learning (2012).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.RMSProp(learning_rate=0.5, gamma1=0.75, epsilon=0.0))
    >>> weight = nd.array([3.0])
    >>> updater(0, nd.array([4.0]), weight)  # n = 16 / 4
    >>> weight.asnumpy().tolist()
    [2.0]
    """

    default_rate: ClassVar[float] = 0.001
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self,
        learning_rate: float | None = None,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        *,
        rho: float | None = None,
        momentum: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.gamma1 = gamma1 if rho is None else rho
        self.gamma2 = gamma2 if momentum is None else momentum
        self.epsilon, self.centered, self.clip_weights = epsilon, centered, clip_weights

    @property
    def _clips_weights(self) -> bool:
        return self.clip_weights is not None and self.clip_weights > 0

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), self.centered, self._clips_weights)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return dict.fromkeys(("n", "mean", "delta") if self.centered else ("n",), weight)

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = {**super().scalars(index), "gamma1": self.gamma1, "new1": 1.0 - self.gamma1, "epsilon": self.epsilon}
        if self.centered:
            numbers["gamma2"] = self.gamma2
        if self._clips_weights:
            bound = number(self.clip_weights or 0.0)
            numbers.update(high=bound, low=-bound)
        return numbers

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"] + s["wd"] * w, s)
        new = {"n": s["gamma1"] * state["n"] + s["new1"] * (g * g)}
        if self.centered:
            mean = new["mean"] = s["gamma1"] * state["mean"] + s["new1"] * g
            variance = ops.maximum(new["n"] - mean * mean, 0.0)  # rounding may take it below 0
            new["delta"] = s["gamma2"] * state["delta"] - s["lr"] * g / ops.sqrt(variance + s["epsilon"])
            w = w + new["delta"]
        else:
            w = w - s["lr"] * (g / ops.sqrt(new["n"] + s["epsilon"]))
        if self._clips_weights:
            w = ops.maximum(ops.minimum(w, s["high"]), s["low"])
        return w, new


@Optimizer.register
class AdaDelta(Optimizer):
    """g = C(r g);  a = rho a + (1 - rho) g²;  d = sqrt(b + epsilon) / sqrt(a + epsilon) g;  w = w - d - wd w;

    b = rho b + (1 - rho) d². There is no learning rate: lr, lr_mult and schedulers change nothing, and the decay is not
    scaled. Zeiler: ADADELTA: an adaptive learning rate method (2012).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.AdaDelta(rho=0.25, epsilon=1.0))
    >>> weight = nd.array([3.0])
    >>> updater(0, nd.array([2.0]), weight)  # a = 3, d = sqrt(1) / sqrt(4) 2
    >>> weight.asnumpy().tolist()
    [2.0]
    """

    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, rho: float = 0.9, epsilon: float = 1e-5, learning_rate: float | None = None, **kwargs: Any):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.rho, self.epsilon = rho, epsilon

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"acc_g": weight, "acc_delta": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = {**super().scalars(index), "rho": self.rho, "new": 1.0 - self.rho, "epsilon": self.epsilon}
        del numbers["lr"]
        return numbers

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"], s)
        acc_g = s["rho"] * state["acc_g"] + s["new"] * (g * g)
        delta = ops.sqrt(state["acc_delta"] + s["epsilon"]) / ops.sqrt(acc_g + s["epsilon"]) * g
        acc_delta = s["rho"] * state["acc_delta"] + s["new"] * (delta * delta)
        return w - delta - s["wd"] * w, {"acc_g": acc_g, "acc_delta": acc_delta}
