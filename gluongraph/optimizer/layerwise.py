"""Rates scaled by norms of the whole parameter: LARS, LBSGD, LAMB, LANS.

r is `rescale_grad`, C the clipping, lr and wd the rate and decay of the parameter, t the number of its update, |x| the
root of the sum of squares over all elements. The norms are those of the float32 weight, also of a 16-bit parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.errors import warn
from gluongraph.formulas import known, number, sqrt
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ir.rewrite import restamp
from gluongraph.optimizer.adam import Moments
from gluongraph.optimizer.base import Nodes, Optimizer, Updated
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.sgd import Momentum


def norm(copy: int, x: Node, *known: Node) -> Node:
    """|x|, of which `known` is in memory. Norms of one parameter have different numbers.

    >>> from gluongraph.optimizer.layerwise import norm
    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> invoke(lambda x: norm(1, x), nd.array([3.0, 4.0])).asscalar().item()
    5.0
    """
    return ops.sqrt(squares(copy, x, *known))


def squares(copy: int, x: Node, *known: Node) -> Node:
    """The sum of the squares of all elements. It is complete before the update of the parameter can begin.

    So a value that both read would be written to memory in between. It is computed twice instead, from the known ones,
    and nothing is written; so every sum has a copy of its own.

    >>> from gluongraph.optimizer.layerwise import squares
    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> invoke(lambda x: squares(1, x), nd.array([3.0, 4.0])).asscalar().item()
    25.0
    """
    stored = [k.src[0] if k.op.name == "cast" else k for k in known or (x,)]
    x = restamp(x, copy, stored)
    return ops.sum(x * x)


def ratio(above: Node, below: Node) -> Node:
    """above / below, or 1 where either is 0.

    >>> from gluongraph.optimizer.layerwise import ratio
    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> invoke(ratio, nd.array([6.0, 0.0, 6.0]), nd.array([3.0, 3.0, 0.0])).asnumpy().tolist()
    [2.0, 1.0, 1.0]
    """
    both = ops.logical_and(ops.greater(above, 0.0), ops.greater(below, 0.0))
    return ops.where(both, above / ops.where(both, below, 1.0), 1.0)


@Optimizer.register
class LARS(Momentum):
    """a = eta |w| / (r |g| + wd |w| + eps), 1 where |w| or |g| is 0;  d = C(r g) + wd w;  m = momentum m - lr a d;

    w = w + m.  `momentum_correction` multiplies the momentum by lr / lr of the update before (Goyal et al., 2017).
    `epsilon` is another name of `eps`. Where `param_idx2name` tells names, those that end in gamma, beta or bias have
    a = 1, and only those in _weight decay. You, Gitman, Ginsburg: Large batch training of convolutional networks
    (2017).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.LARS(eta=1.0, learning_rate=0.5))
    >>> weight = nd.array([3.0, 4.0])
    >>> updater(0, nd.array([0.0, 10.0]), weight)  # a = 5 / 10
    >>> weight.asnumpy().tolist()
    [3.0, 1.5]
    """

    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "adapts"})
    varying: ClassVar[frozenset[str] | None] = frozenset({"momentum"})  # after a change of the rate
    carried: ClassVar[tuple[str, ...]] = ("last_lr", "cur_lr")
    master_last: ClassVar[bool] = True

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        eta: float = 0.001,
        eps: float = 0.0,
        momentum_correction: bool = True,
        learning_rate: float | None = None,
        *,
        epsilon: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(momentum, learning_rate=learning_rate, **kwargs)
        self.lazy_update, self.momentum_correction = lazy_update, momentum_correction
        self.eta, self.eps = eta, eps if epsilon is None else epsilon
        self.last_lr: float | None = None  # the rates of the last two updates
        self.cur_lr: float | None = None

    def _decays(self, name: str) -> bool:
        return name.endswith("_weight")

    def _adapts(self, index: Index) -> bool:
        return not self.idx2name.get(index, "").endswith(("gamma", "beta", "bias"))

    def alike(self, index: Index) -> tuple[Any, ...]:
        return (*super().alike(index), self._adapts(index))

    def count(self, indices: tuple[Index, ...]) -> None:
        """One update of all parameters, counted at once or one by one, sees one change of the rate."""
        before = self.num_update
        super().count(indices)
        if self.num_update != before:
            now = self.learning_rate
            self.last_lr, self.cur_lr = self.cur_lr if known(self.cur_lr) else now, now

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        if "momentum" in numbers and self.momentum_correction and known(self.last_lr) and known(self.cur_lr):
            numbers["momentum"] *= self.cur_lr / self.last_lr if self.last_lr else 1.0
        return {**numbers, "eta": self.eta, "eps": self.eps, "adapts": float(self._adapts(index))}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        of_w, of_g = norm(1, w), norm(2, g) * s["rescale"]
        both = ops.logical_and(ops.greater(of_w * s["adapts"], 0.0), ops.greater(of_g, 0.0))
        below = ops.where(both, of_g + s["wd"] * of_w + s["eps"], 1.0)
        trust = ops.where(both, s["eta"] * of_w / below, 1.0)
        step = s["lr"] * trust * (self.clip(g * s["rescale"], s) + s["wd"] * w)
        return self.moved(w, step, state, s)


_WARM_UP: dict[str, Callable[[float], float]] = {"linear": lambda x: x, "power2": lambda x: x * x, "sqrt": sqrt}


@Optimizer.register
class LBSGD(Momentum):
    """Every `batch_scale` updates SGD on the mean G of the gradients since, at the rate lr times a factor:

    1 + (batch_scale - 1) f(n / N), N = warmup_epochs updates_per_epoch, until n = N, then batch_scale. n counts all
    updates from begin_epoch updates_per_epoch on; f(x) is x, x² or sqrt(x) by `warmup_strategy`: linear, power2, sqrt.
    With the strategy lars the factor is |w| / sqrt(|G|² + wd |w|²), held within 0.01 and 100. A scheduler is asked for
    the update before, as in MXNet. `num_epochs` is not used there either.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.LBSGD(batch_scale=2, warmup_epochs=0, learning_rate=0.25))
    >>> weight = nd.array([1.0])
    >>> for gradient in (2.0, 6.0):  # G = 4, at twice the rate
    ...     updater(0, nd.array([gradient]), weight)
    ...     print(weight.asnumpy().tolist())
    [1.0]
    [-1.0]
    """

    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "due"})

    def __init__(
        self,
        momentum: float = 0.0,
        multi_precision: bool = False,
        warmup_strategy: str = "linear",
        warmup_epochs: int = 5,
        batch_scale: int = 1,
        updates_per_epoch: int = 32,
        begin_epoch: int = 0,
        num_epochs: int = 60,
        learning_rate: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(momentum, multi_precision=multi_precision, learning_rate=learning_rate, **kwargs)
        if warmup_strategy not in (*_WARM_UP, "lars"):
            known = ", ".join((*_WARM_UP, "lars"))
            message = f"LBSGD has no warmup_strategy {warmup_strategy!r}: the factor is 1 until the end of the warm-up."
            warn(f"{message} There are: {known}")
        self.warmup_strategy, self.warmup_epochs = warmup_strategy, warmup_epochs
        self.batch_scale, self.updates_per_epoch, self.begin_epoch = batch_scale, updates_per_epoch, begin_epoch

    @property
    def _gathers(self) -> bool:
        return self.batch_scale > 1

    @property
    def _adapts(self) -> bool:
        return self.warmup_strategy == "lars"

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), self._gathers, self._adapts)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {**super().states(weight), **({"sum": weight} if self._gathers else {})}

    def _number(self, index: Index) -> int:
        """n of this update."""
        return self.begin_epoch * self.updates_per_epoch + self.t(index) - self.begin_num_update

    def _factor(self, n: int) -> float:
        whole = self.warmup_epochs * self.updates_per_epoch
        if n >= whole:
            return number(self.batch_scale)
        if whole <= 1 or self.warmup_strategy not in _WARM_UP:
            return 1.0
        return 1.0 + (self.batch_scale - 1) * _WARM_UP[self.warmup_strategy](n / whole)

    def rate(self, index: Index) -> float:
        """That of the update before: MXNet asks ahead of counting."""
        if self.lr_scheduler is None:
            return super().rate(index)
        return self.lr_scheduler(max(self.num_update - 1, 0)) * self.multipliers(index)[0]

    def scalars(self, index: Index) -> dict[str, float]:
        numbers, n = super().scalars(index), self._number(index)
        if not self._adapts:
            numbers["lr"] *= self._factor(n)
        if self._gathers:
            numbers.update(due=number(n % self.batch_scale == 0), share=1.0 / self.batch_scale)
        return numbers

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        total = state["sum"] + g if self._gathers else g
        mean = total * s["share"] if self._gathers else g
        rate = s["lr"]
        if self._adapts:
            of_w, of_g = squares(1, w), squares(2, mean, g, *state.values(), *s.values())
            factor = ops.sqrt(of_w / (of_g + s["wd"] * of_w + 1e-18))
            rate = rate * ops.maximum(ops.minimum(factor, 100.0), 0.01)
        new, states = self.moved(w, rate * (self.clip(mean * s["rescale"], s) + s["wd"] * w), state, s)
        if not self._gathers:
            return new, states
        due = ops.greater(s["due"], 0.0)
        kept = {k: ops.where(due, n, state[k]) for k, n in states.items()}
        return ops.where(due, new, w), {**kept, "sum": ops.where(due, 0.0, total)}


class _Bounded(Moments):
    """The norm of the weight held within bounds that are given and not 0."""

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), bool(self.lower_bound), bool(self.upper_bound))

    def scalars(self, index: Index) -> dict[str, float]:
        bounds = {"lower": self.lower_bound, "upper": self.upper_bound}
        t = self.t(index)
        return {
            **super().scalars(index),
            "of_mean": 1.0 / (1.0 - self.beta1**t),
            "of_var": 1.0 / (1.0 - self.beta2**t),
            **{name: bound for name, bound in bounds.items() if bound},
        }

    def size(self, w: Node, s: Nodes) -> Node:
        """|w| within the bounds."""
        found = norm(1, w)
        found = ops.maximum(found, s["lower"]) if self.lower_bound else found
        return ops.minimum(found, s["upper"]) if self.upper_bound else found


@Optimizer.register
class LAMB(_Bounded):
    """m, v of C(r g) as Adam's;  u = m' / (sqrt(v') + epsilon) + wd w;  w = w - lr |w| / |u| u.

    m' = m / (1 - b1^t), v' = v / (1 - b2^t); without `bias_correction` m and v. |w| is held within `lower_bound` and
    `upper_bound`; the ratio is 1 where either norm is 0. You et al.: Large batch optimization for deep learning (2019).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.LAMB(learning_rate=0.5, beta1=0.5, beta2=0.75, epsilon=0.0))
    >>> weight = nd.array([2.0, 2.0, 2.0, 2.0])
    >>> updater(0, nd.array([4.0, -4.0, 4.0, -4.0]), weight)  # |w| = 4, u = [1, -1, 1, -1], |u| = 2
    >>> weight.asnumpy().tolist()
    [1.0, 3.0, 1.0, 3.0]
    """

    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "of_mean", "of_var"})

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, lower_bound, upper_bound, **kwargs)
        self.bias_correction = bias_correction

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        return numbers if self.bias_correction else {**numbers, "of_mean": 1.0, "of_var": 1.0}

    def direction(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        """u, and the new state."""
        new = self.moments(self.clip(g * s["rescale"], s), state, s)
        return new["mean"] * s["of_mean"] / (ops.sqrt(new["var"] * s["of_var"]) + s["epsilon"]) + s["wd"] * w, new

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        u, new = self.direction(w, g, state, s)
        trust = ratio(self.size(w, s), norm(2, u, w, g, *state.values(), *s.values()))
        return w - s["lr"] * trust * u, new


@Optimizer.register
class LANS(_Bounded):
    """g = C(g / |g|);  m', v' as LAMB's;  D = sqrt(v') + epsilon;  u = m' / D + wd w;  n = g / D + wd w;

    w = w - lr (b1 |w| / |u| u + (1 - b1) |w| / |n| n), with bounds on |w| and ratios as LAMB's; g stays 0 where |g| is.
    As MXNet 2.0's. Zheng et al.: Accelerated large batch optimization of BERT pretraining in 54 minutes (2020).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.LANS(learning_rate=0.5, beta1=0.5, beta2=0.75, epsilon=0.0))
    >>> weight = nd.array([2.0, 2.0, 2.0, 2.0])
    >>> updater(0, nd.array([4.0, -4.0, 4.0, -4.0]), weight)  # |w| = 4, u = n = [1, -1, 1, -1]
    >>> weight.asnumpy().tolist()
    [1.0, 3.0, 1.0, 3.0]
    """

    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "of_mean", "of_var"})

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        of_g = norm(2, g) * s["rescale"]
        scale = s["rescale"] / ops.where(ops.greater(of_g, 0.0), of_g, 1.0)
        unit = self.clip(g * scale, s)
        new = self.moments(unit, state, s)
        below = ops.sqrt(new["var"] * s["of_var"]) + s["epsilon"]
        parts = new["mean"] * s["of_mean"] / below + s["wd"] * w, unit / below + s["wd"] * w
        size, known = self.size(w, s), (w, g, scale, *state.values(), *s.values())
        of_mean, of_unit = (ratio(size, norm(i, u, *known)) for i, u in enumerate(parts, 3))
        return w - s["lr"] * (s["beta1"] * of_mean * parts[0] + s["new1"] * of_unit * parts[1]), new
