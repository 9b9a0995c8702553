"""PyTorch's steps along the gradient or its sign: SGD, ASGD, Rprop; and Lion, which is not PyTorch's."""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.errors import with_user_location
from gluongraph.formulas import number
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.base import Nodes, Updated
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.torch.base import TorchRule, averaging, register


@register
class SGD(TorchRule):
    """g = C(r g) + wd w;  b = momentum b + (1 - dampening) g, at first b = g;  w = w - lr b.

    With `nesterov` w = w - lr (g + momentum b); without momentum w = w - lr g. Unlike MXNet's, the momentum does not
    hold the rate. torch.optim.SGD.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.SGD(lr=0.5, momentum=0.5, dampening=0.75))
    >>> weight = nd.array([1.0])
    >>> for _ in range(2):
    ...     updater(0, nd.array([2.0]), weight)
    ...     print(weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist())
    [0.0] [2.0]
    [-0.75] [1.5]

    Raises:
        ValueError: `nesterov` without momentum, or with dampening.
    """

    default_rate: ClassVar[float] = 1e-3
    options: ClassVar = {**TorchRule.options, "momentum": ("momentum",), "dampening": ("dampening",)}
    flags: ClassVar = ("maximize", "nesterov")
    steps: ClassVar[bool] = False
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "new"})
    varying: ClassVar[frozenset[str] | None] = frozenset({"new"})

    def __init__(
        self,
        lr: float | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        if nesterov and (momentum <= 0 or dampening != 0):
            message = f"torch.SGD: nesterov with momentum={momentum:g} and dampening={dampening:g}"
            raise ValueError(with_user_location(message, help="nesterov takes a momentum above 0 and no dampening"))
        self.momentum, self.dampening, self.nesterov = momentum, dampening, nesterov

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), self.momentum != 0.0)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"momentum_buffer": weight} if self.momentum != 0.0 else {}

    def scalars(self, index: Index) -> dict[str, float]:
        new = 1.0 - self.dampening * (1.0 - self.first(index))
        return {**super().scalars(index), "momentum": self.momentum, "new": new}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s)
        if "momentum_buffer" not in state:
            return w - s["lr"] * g, {}
        buffer = s["momentum"] * state["momentum_buffer"] + s["new"] * g
        step = g + s["momentum"] * buffer if self.nesterov else buffer
        return w - s["lr"] * step, {"momentum_buffer": buffer}


@register
class ASGD(TorchRule):
    """g = C(r g) + wd w;  w = (1 - lambd eta) w - eta g;  ax = ax + mu (w - ax).

    eta is the rate at first, and lr / (1 + lambd lr t)^alpha for the update after the one of number t, with the lr of
    that; mu = 1 / max(1, t - 1 - t0). `ax` is the average, for the user to take. Polyak, Juditsky: Acceleration of
    stochastic approximation by averaging (1992). torch.optim.ASGD.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.ASGD(lr=0.5, lambd=0.5))
    >>> weight = nd.array([4.0])
    >>> updater(0, nd.array([2.0]), weight)  # 0.75 * 4 - 0.5 * 2
    >>> weight.asnumpy().tolist()
    [2.0]
    """

    options: ClassVar = {**TorchRule.options, "lambd": ("lambd",), "alpha": ("alpha",), "t0": ("t0",)}
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "first", "later", "next_eta", "mu", "rest"})

    def __init__(
        self,
        lr: float | None = None,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        self.lambd, self.alpha, self.t0 = lambd, alpha, t0

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"ax": weight, "eta": TensorType((), weight.dtype)}

    def _mu(self, updates: float) -> float:
        """The weight of the update after so many in the average."""
        after = updates - self.t0
        averages = number(after > 1.0)  # no branch: an exported step takes this from a tape of arithmetic
        return 1.0 / (after * averages + 1.0 - averages)

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        t, lr, first = self.t(index) - self.begin_num_update, numbers["lr"], self.first(index)
        mu = self._mu(t - 1)
        return {
            **numbers,
            "lambd": self.lambd,
            "first": lr * first,
            "later": 1.0 - first,
            "next_eta": lr / (1.0 + self.lambd * lr * t) ** self.alpha,
            "mu": mu,
            "rest": 1.0 - mu,
        }

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s)
        eta = s["first"] + s["later"] * state["eta"]
        new = w * (1.0 - s["lambd"] * eta) - eta * g
        return new, {"ax": s["rest"] * state["ax"] + s["mu"] * new, "eta": s["next_eta"]}

    def counted(self, index: Index) -> dict[str, float]:
        told = super().counted(index)
        return {**told, "mu": self._mu(told["step"])}


@register
class Rprop(TorchRule):
    """g = C(r g);  f = etas[1] where g prev > 0, etas[0] where < 0, else 1;  s = s f, held within `step_sizes`;

    where g prev < 0, g = 0;  w = w - sign(g) s;  prev = g. The sizes s begin as lr, which nothing else reads.
    Riedmiller, Braun: A direct adaptive method for faster backpropagation learning (1993). torch.optim.Rprop.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.Rprop(lr=0.5, etas=(0.5, 2.0)))
    >>> weight = nd.array([4.0, 4.0])
    >>> updater(0, nd.array([3.0, 3.0]), weight)
    >>> updater(0, nd.array([3.0, -3.0]), weight)
    >>> weight.asnumpy().tolist()
    [2.5, 3.5]

    Raises:
        ValueError: etas[0] is not between 0 and 1, or etas[1] not above 1.
    """

    options: ClassVar = {
        "lr": ("lr",),
        "etas": ("etaminus", "etaplus"),
        "step_sizes": ("step_size_min", "step_size_max"),
    }
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "first"})
    varying: ClassVar[frozenset[str] | None] = frozenset({"first"})

    def __init__(
        self,
        lr: float | None = None,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, maximize=maximize, **kwargs)
        self.etaminus, self.etaplus = etas
        self.step_size_min, self.step_size_max = step_sizes

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"prev": weight, "step_size": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        bounds = {"least": self.step_size_min, "most": self.step_size_max}
        factors = {"etaminus": self.etaminus, "etaplus": self.etaplus}
        return {**numbers, **bounds, **factors, "first": numbers["lr"] * self.first(index)}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        g = self.clip(g * s["rescale"], s)
        same = g * state["prev"]
        turned = ops.less(same, 0.0)
        factor = ops.where(ops.greater(same, 0.0), s["etaplus"], ops.where(turned, s["etaminus"], 1.0))
        size = (state["step_size"] + s["first"]) * factor
        size = ops.minimum(ops.maximum(size, s["least"]), s["most"])
        g = ops.where(turned, 0.0, g)
        return w - ops.sign(g) * size, {"prev": g, "step_size": size}


@register
class Lion(TorchRule):
    """g = C(r g);  c = b1 m + (1 - b1) g;  w = w - lr (sign(c) + wd w);  m = b2 m + (1 - b2) g.

    Chen et al.: Symbolic discovery of optimization algorithms (2023). torch.optim has none; the arguments are those of
    its other classes.

    >>> from gluongraph import nd, optimizer
    >>> weight = nd.array([1.0, 1.0])
    >>> optimizer.get_updater(optimizer.torch.Lion(lr=0.5))(0, nd.array([3.0, -0.1]), weight)
    >>> weight.asnumpy().tolist()
    [0.5, 1.5]
    """

    default_rate: ClassVar[float] = 1e-4
    options: ClassVar = {**TorchRule.options, "betas": ("beta1", "beta2")}
    steps: ClassVar[bool] = False
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "keep"})
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self,
        lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        self.beta1, self.beta2 = betas

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"exp_avg": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {**super().scalars(index), **averaging(beta1=self.beta1, beta2=self.beta2)}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s, decoupled=True)
        mean = state["exp_avg"]
        step = ops.sign(s["beta1"] * mean + s["new1"] * g)
        return w - s["lr"] * step, {"exp_avg": s["beta2"] * mean + s["new2"] * g}
