"""PyTorch's steps along the running mean of the gradient over that of its size: Adam, AdamW, NAdam, RAdam, Adamax."""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.formulas import number, sqrt
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.base import Nodes, Updated
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.torch.base import TorchRule, averaging, register


class Moments(TorchRule):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²: the states exp_avg and exp_avg_sq.

    >>> from gluongraph.optimizer.torch.adam import Moments
    >>> from gluongraph import optimizer
    >>> issubclass(optimizer.torch.RAdam, Moments)
    True
    """

    options: ClassVar = {**TorchRule.options, "betas": ("beta1", "beta2"), "eps": ("eps",)}
    flags: ClassVar[tuple[str, ...]] = ("maximize", "decoupled_weight_decay")

    def __init__(
        self,
        lr: float | None,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        decoupled_weight_decay: bool,
        maximize: bool,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        self.beta1, self.beta2 = betas
        self.eps, self.decoupled_weight_decay = eps, decoupled_weight_decay

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"exp_avg": weight, "exp_avg_sq": weight}

    def updates(self, index: Index) -> float:
        """How many updates of a parameter there have been, with the one that has just been counted.

        >>> from gluongraph import optimizer
        >>> optimizer.torch.Adam().updates(0)
        1
        """
        return self.t(index) - self.begin_num_update

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        step = numbers["lr"] / (1.0 - self.beta1 ** self.updates(index))
        return {**numbers, **averaging(beta1=self.beta1, beta2=self.beta2), "eps": self.eps, "step": step}

    def moments(self, g: Node, state: Nodes, s: Nodes) -> dict[str, Node]:
        """The new states."""
        mean = s["beta1"] * state["exp_avg"] + s["new1"] * g
        return {"exp_avg": mean, "exp_avg_sq": s["beta2"] * state["exp_avg_sq"] + s["new2"] * (g * g)}


@register
class Adam(Moments):
    """g = C(r g) + wd w;  m, v of g;  w = w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps).

    With `decoupled_weight_decay` w = (1 - lr wd) w comes first, and g is without it. With `amsgrad` the largest v so
    far takes the place of v. Unlike MXNet's, epsilon is added to the corrected root. Kingma, Ba: Adam: a method for
    stochastic optimization (2014). torch.optim.Adam.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.Adam(lr=0.5, betas=(0.5, 0.75), eps=4.0))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)  # m = 2, v = 4, corrected 4 and 16
    >>> weight.asnumpy().tolist()
    [0.75]
    """

    default_rate: ClassVar[float] = 1e-3
    flags: ClassVar[tuple[str, ...]] = (*Moments.flags, "amsgrad")
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "keep", "step", "of_root"})

    def __init__(
        self,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, betas, eps, weight_decay, decoupled_weight_decay, maximize, **kwargs)
        self.amsgrad = amsgrad

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {**super().states(weight), **({"max_exp_avg_sq": weight} if self.amsgrad else {})}

    def scalars(self, index: Index) -> dict[str, float]:
        of_root = 1.0 / sqrt(1.0 - self.beta2 ** self.updates(index))
        return {**super().scalars(index), "of_root": of_root}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s, self.decoupled_weight_decay)
        new = self.moments(g, state, s)
        size = new["exp_avg_sq"]
        if self.amsgrad:
            size = new["max_exp_avg_sq"] = ops.maximum(state["max_exp_avg_sq"], size)
        return w - s["step"] * (new["exp_avg"] / (ops.sqrt(size) * s["of_root"] + s["eps"])), new


@register
class AdamW(Adam):
    """Adam with decoupled_weight_decay, and a decay of 0.01: w = (1 - lr wd) w, then Adam's step without wd in g.

    Loshchilov, Hutter: Decoupled weight decay regularization (2017). torch.optim.AdamW.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.AdamW(lr=0.5, betas=(0.5, 0.75), eps=4.0, weight_decay=0.5))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)
    >>> weight.asnumpy().tolist()
    [0.5]
    """

    def __init__(
        self,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        settings: dict[str, Any] = {"maximize": maximize, "decoupled_weight_decay": True, **kwargs}
        super().__init__(lr, betas, eps, weight_decay, amsgrad, **settings)


@register
class NAdam(Moments):
    """g, m, v as Adam's;  w = w - lr ((1 - mu_t) / (1 - P_t) g + mu_(t+1) / (1 - P_t mu_(t+1)) m) / d, where

    d = sqrt(v / (1 - b2^t)) + eps;  mu_t = b1 (1 - 0.96^(t momentum_decay) / 2);  P_t is the product of mu_1 to mu_t,
    each with the b1 of its update: a state. Dozat: Incorporating Nesterov momentum into Adam (2016). torch.optim.NAdam.

    >>> from gluongraph import nd, optimizer
    >>> rule = optimizer.torch.NAdam(lr=15.0, betas=(0.5, 0.75), eps=0.0, momentum_decay=0.0)
    >>> weight = nd.array([100.0])
    >>> optimizer.get_updater(rule)(0, nd.array([15.0]), weight)  # m = 7.5, v = 225 / 4, 15 + 4/15 m = 17
    >>> weight.asnumpy().tolist()
    [83.0]
    """

    default_rate: ClassVar[float] = 2e-3
    options: ClassVar = {**Moments.options, "momentum_decay": ("momentum_decay",)}
    per_parameter: ClassVar[frozenset[str]] = frozenset(
        {"lr", "wd", "keep", "mu", "next_mu", "first", "later", "of_var"}
    )

    def __init__(
        self,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, betas, eps, weight_decay, decoupled_weight_decay, maximize, **kwargs)
        self.momentum_decay = momentum_decay

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {**super().states(weight), "mu_product": TensorType((), weight.dtype)}

    def _mu(self, t: float) -> float:
        return number(self.beta1 * (1.0 - 0.5 * 0.96 ** (t * self.momentum_decay)))

    def scalars(self, index: Index) -> dict[str, float]:
        t, first = self.updates(index), self.first(index)
        mus = {"mu": self._mu(t), "next_mu": self._mu(t + 1)}
        of_var = 1.0 / (1.0 - self.beta2**t)
        return {**super().scalars(index), **mus, "first": first, "later": 1.0 - first, "of_var": of_var}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s, self.decoupled_weight_decay)
        new = self.moments(g, state, s)
        product = s["mu"] * (s["first"] + s["later"] * state["mu_product"])
        of_g = s["lr"] * (1.0 - s["mu"]) / (1.0 - product)
        of_mean = s["lr"] * s["next_mu"] / (1.0 - product * s["next_mu"])
        below = ops.sqrt(new["exp_avg_sq"] * s["of_var"]) + s["eps"]
        return w - (of_g * g + of_mean * new["exp_avg"]) / below, {**new, "mu_product": product}


@register
class RAdam(Moments):
    """g, m, v as Adam's;  w = w - lr m' r_t sqrt(1 - b2^t) / (sqrt(v) + eps), while rho_t <= 5 w = w - lr m', where

    m' = m / (1 - b1^t);  rho_t = rho - 2 t b2^t / (1 - b2^t), rho = 2 / (1 - b2) - 1;
    r_t² = (rho_t - 4)(rho_t - 2) rho / ((rho - 4)(rho - 2) rho_t). Liu et al.: On the variance of the adaptive learning
    rate and beyond (2019). torch.optim.RAdam.

    >>> from gluongraph import nd, optimizer
    >>> weight = nd.array([1.0])
    >>> optimizer.get_updater(optimizer.torch.RAdam(lr=0.5))(0, nd.array([4.0]), weight)
    >>> weight.asnumpy().tolist()
    [-1.0]
    """

    default_rate: ClassVar[float] = 1e-3
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "keep", "step", "adapts", "rectified"})

    def __init__(
        self,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, betas, eps, weight_decay, decoupled_weight_decay, maximize, **kwargs)

    def scalars(self, index: Index) -> dict[str, float]:
        t, limit = self.updates(index), 2.0 / (1.0 - self.beta2) - 1.0
        decay = self.beta2**t
        adapts, rectified = 0.0, 0.0
        if limit > 5.0:  # rho_t stays below it
            rho = limit - 2.0 * t * decay / (1.0 - decay)
            adapts = number(rho > 5.0)
            rho = rho * adapts + 5.0 * (1.0 - adapts)  # no branch on t: the root is of a positive number either way
            below = (limit - 4.0) * (limit - 2.0) * rho
            rectified = sqrt((rho - 4.0) * (rho - 2.0) * limit / below) * sqrt(1.0 - decay)
        return {**super().scalars(index), "adapts": adapts, "rectified": rectified}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s, self.decoupled_weight_decay)
        new = self.moments(g, state, s)
        scaled = s["rectified"] / (ops.sqrt(new["exp_avg_sq"]) + s["eps"])
        factor = ops.where(ops.greater(s["adapts"], 0.0), scaled, 1.0)
        return w - s["step"] * (new["exp_avg"] * factor), new


@register
class Adamax(Moments):
    """g = C(r g) + wd w;  m = b1 m + (1 - b1) g;  u = max(b2 u, |g| + eps);  w = w - lr / (1 - b1^t) m / u.

    Kingma and Ba, as Adam. Unlike MXNet's, epsilon is in the maximum. torch.optim.Adamax.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.Adamax(lr=0.5, betas=(0.5, 0.75), eps=4.0))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)  # m = 2, u = 8
    >>> weight.asnumpy().tolist()
    [0.75]
    """

    default_rate: ClassVar[float] = 2e-3
    flags: ClassVar[tuple[str, ...]] = ("maximize",)
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "step"})

    def __init__(
        self,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, betas, eps, weight_decay, False, maximize, **kwargs)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"exp_avg": weight, "exp_inf": weight}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s)
        mean = s["beta1"] * state["exp_avg"] + s["new1"] * g
        largest = ops.maximum(s["beta2"] * state["exp_inf"], ops.abs(g) + s["eps"])
        return w - s["step"] * (mean / largest), {"exp_avg": mean, "exp_inf": largest}
