"""PyTorch's steps over the root of what the squared gradients add up to: Adagrad, RMSprop, Adadelta."""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.base import Nodes, Updated
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.torch.base import TorchRule, register


@register
class Adagrad(TorchRule):
    """g = C(r g) + wd w;  h = h + g²;  w = w - lr / (1 + (t - 1) lr_decay) g / (sqrt(h) + eps).

    h begins as `initial_accumulator_value`. Duchi, Hazan, Singer: Adaptive subgradient methods for online learning and
    stochastic optimization (2011). torch.optim.Adagrad.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.Adagrad(lr=0.5, initial_accumulator_value=9.0))
    >>> weight = nd.array([2.0])
    >>> updater(0, nd.array([4.0]), weight)
    >>> updater.states[0].asnumpy().tolist(), round(weight.asscalar().item(), 6)
    ([25.0], 1.6)
    """

    options: ClassVar = {
        **TorchRule.options,
        "lr_decay": ("lr_decay",),
        "initial_accumulator_value": ("initial_accumulator_value",),
        "eps": ("eps",),
    }
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "step", "begin"})

    def __init__(
        self,
        lr: float | None = None,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        self.lr_decay, self.eps = lr_decay, eps
        self.initial_accumulator_value = initial_accumulator_value

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"sum": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        t = self.t(index) - self.begin_num_update
        step = numbers["lr"] / (1.0 + (t - 1) * self.lr_decay)
        return {**numbers, "eps": self.eps, "step": step, "begin": self.initial_accumulator_value * self.first(index)}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s)
        total = state["sum"] + s["begin"] + g * g
        return w - s["step"] * (g / (ops.sqrt(total) + s["eps"])), {"sum": total}


@register
class RMSprop(TorchRule):
    """g = C(r g) + wd w;  v = alpha v + (1 - alpha) g²;  d = g / (sqrt(v) + eps);  w = w - lr d.

    With momentum b = momentum b + d, and w = w - lr b. With `centered` the root is of v - m², where m is the running
    mean of g. Tieleman, Hinton (2012); Graves: Generating sequences with recurrent neural networks (2013).
    torch.optim.RMSprop.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.RMSprop(lr=0.5, alpha=0.75, eps=2.0))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([4.0]), weight)  # v = 4
    >>> weight.asnumpy().tolist()
    [0.5]
    """

    options: ClassVar = {**TorchRule.options, "alpha": ("alpha",), "eps": ("eps",), "momentum": ("momentum",)}
    flags: ClassVar = ("maximize", "centered")
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd"})
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self,
        lr: float | None = None,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        self.alpha, self.eps, self.momentum, self.centered = alpha, eps, momentum, centered

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), self.momentum > 0.0)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        more = {"momentum_buffer": self.momentum > 0.0, "grad_avg": self.centered}
        return {"square_avg": weight, **{name: weight for name, wanted in more.items() if wanted}}

    def scalars(self, index: Index) -> dict[str, float]:
        means = {"alpha": self.alpha, "new": 1.0 - self.alpha}
        return {**super().scalars(index), **means, "eps": self.eps, "momentum": self.momentum}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s)
        size = square = s["alpha"] * state["square_avg"] + s["new"] * (g * g)
        new = {"square_avg": square}
        if self.centered:
            mean = new["grad_avg"] = s["alpha"] * state["grad_avg"] + s["new"] * g
            size = square - mean * mean
        step = g / (ops.sqrt(size) + s["eps"])
        if "momentum_buffer" in state:
            step = new["momentum_buffer"] = s["momentum"] * state["momentum_buffer"] + step
        return w - s["lr"] * step, new


@register
class Adadelta(TorchRule):
    """g = C(r g) + wd w;  v = rho v + (1 - rho) g²;  d = sqrt(u + eps) / sqrt(v + eps) g;  u = rho u + (1 - rho) d²;

    w = w - lr d. Zeiler: ADADELTA: an adaptive learning rate method (2012). torch.optim.Adadelta.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.torch.Adadelta(rho=0.75, eps=12.0))
    >>> weight = nd.array([2.0])
    >>> updater(0, nd.array([4.0]), weight)  # v = 4, d = sqrt(12 / 16) 4
    >>> round(weight.asscalar().item(), 6)
    -1.464102
    """

    default_rate: ClassVar[float] = 1.0
    options: ClassVar = {**TorchRule.options, "rho": ("rho",), "eps": ("eps",)}
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self,
        lr: float | None = None,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, maximize, **kwargs)
        self.rho, self.eps = rho, eps

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"square_avg": weight, "acc_delta": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {**super().scalars(index), "rho": self.rho, "new": 1.0 - self.rho, "eps": self.eps}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s)
        square = s["rho"] * state["square_avg"] + s["new"] * (g * g)
        delta = ops.sqrt(state["acc_delta"] + s["eps"]) / ops.sqrt(square + s["eps"]) * g
        moved = s["rho"] * state["acc_delta"] + s["new"] * (delta * delta)
        return w - s["lr"] * delta, {"square_avg": square, "acc_delta": moved}
