"""Steps along the gradient, its sign or its running mean: SGD, NAG, Signum, DCASGD, SGLD, Test.

r is `rescale_grad`, C the clipping, lr and wd the rate and decay of the parameter.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.formulas import sqrt
from gluongraph.ir.graph import Node, TensorType
from gluongraph.optimizer.base import Nodes, Optimizer, Updated
from gluongraph.optimizer.counting import Index


class Momentum(Optimizer):
    """What optimizers with a buffer `mom` share; where `momentum` is 0 there is none.

    >>> from gluongraph.optimizer.sgd import Momentum
    >>> from gluongraph.ir.graph import TensorType
    >>> Momentum(0.5).states(TensorType((2,), "f32")).keys()
    dict_keys(['mom'])
    >>> Momentum(0.0).states(TensorType((2,), "f32"))
    {}
    """

    def __init__(self, momentum: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.momentum = momentum

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), self.momentum != 0.0)

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"mom": weight} if self.momentum != 0.0 else {}

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        return {**numbers, "momentum": self.momentum} if self.momentum != 0.0 else numbers

    def moved(self, w: Node, step: Node, state: Nodes, s: Nodes) -> Updated:
        """m = momentum m - step;  w = w + m.  (w = w - step without the buffer)"""
        if "mom" not in state:
            return w - step, {}
        mom = s["momentum"] * state["mom"] - step
        return w + mom, {"mom": mom}


@Optimizer.register
class SGD(Momentum):
    """d = C(r g) + wd w;  m = momentum m - lr d;  w = w + m.  (w = w - lr d without momentum)

    The momentum holds the rate at which it was gathered, as MXNet's does.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.SGD(momentum=0.5, learning_rate=0.5))
    >>> weight = nd.array([1.0])
    >>> for _ in range(2):
    ...     updater(0, nd.array([2.0]), weight)
    ...     print(weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist())
    [0.0] [-1.0]
    [-1.5] [-1.5]
    """

    master_last: ClassVar[bool] = True
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self, momentum: float = 0.0, lazy_update: bool = True, learning_rate: float | None = None, **kwargs: Any
    ):
        super().__init__(momentum, learning_rate=learning_rate, **kwargs)
        self.lazy_update = lazy_update

    @property
    def lazy(self) -> bool:
        return self.lazy_update

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        step = s["lr"] * (self.clip(g * s["rescale"], s) + s["wd"] * w)
        return self.moved(w, step, state, s)


@Optimizer.register
class ccSGD(SGD):
    """Another name of SGD, which old scripts use.

    >>> from gluongraph import nd, optimizer
    >>> weight = nd.array([1.0])
    >>> optimizer.get_updater(optimizer.create("ccsgd", learning_rate=0.5))(0, nd.array([1.0]), weight)
    >>> weight.asnumpy().tolist()
    [0.5]
    """

    varying: ClassVar[frozenset[str] | None] = frozenset()


@Optimizer.register
class NAG(Momentum):
    """d = C(r g) + wd w;  m = momentum m - lr d;  w = w + momentum m - lr d.  (SGD without momentum)

    Nesterov's accelerated gradient (1983), with the point that looks ahead as the weight. In MXNet 1.9.1 the momentum
    takes its decay from the new weight, here from the old one, as in MXNet 2.0.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.NAG(momentum=0.5, learning_rate=0.5))
    >>> weight = nd.array([1.0])
    >>> updater(0, nd.array([2.0]), weight)  # m = -1
    >>> weight.asnumpy().tolist()
    [-0.5]
    """

    master_last: ClassVar[bool] = True
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, momentum: float = 0.0, learning_rate: float | None = None, **kwargs: Any):
        super().__init__(momentum, learning_rate=learning_rate, **kwargs)

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        step = s["lr"] * (self.clip(g * s["rescale"], s) + s["wd"] * w)
        if "mom" not in state:
            return w - step, {}
        mom = s["momentum"] * state["mom"] - step
        return w + (s["momentum"] * mom - step), {"mom": mom}


@Optimizer.register
class Signum(Momentum):
    """m = momentum m - (1 - momentum)(C(r g) + wd w);  w = (1 - lr wd_lh) w + lr sign(m).

    Without momentum signSGD: w = (1 - lr wd) w - lr sign(g), which takes no notice of r and C.
    Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: compressed optimisation for non-convex problems (2018).

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.Signum(learning_rate=0.5, momentum=0.5))
    >>> weight = nd.array([1.0, 1.0])
    >>> updater(0, nd.array([8.0, -2.0]), weight)  # m = [-4, 1]
    >>> weight.asnumpy().tolist()
    [0.5, 1.5]

    Raises:
        MXNetError: `wd_lh` without momentum.
    """

    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, learning_rate: float | None = None, momentum: float = 0.9, wd_lh: float = 0.0, **kwargs: Any):
        super().__init__(momentum, learning_rate=learning_rate, **kwargs)
        if momentum == 0.0 and wd_lh:
            raise MXNetError(
                with_user_location(f"Signum without momentum has no wd_lh, and {wd_lh} is given", help="use wd")
            )
        self.wd_lh = wd_lh

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        if self.momentum == 0.0:
            return {"lr": numbers["lr"], "wd": numbers["wd"]}
        return {**numbers, "new": 1.0 - self.momentum, "wd_lh": self.wd_lh}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        if "mom" not in state:
            return w - s["lr"] * (s["wd"] * w + ops.sign(g)), {}
        mom = s["momentum"] * state["mom"] - s["new"] * (self.clip(g * s["rescale"], s) + s["wd"] * w)
        return w - s["lr"] * (s["wd_lh"] * w - ops.sign(mom)), {"mom": mom}


@Optimizer.register
class DCASGD(Momentum):
    """d = C(r g);  w = w - lr (d + wd w + lamda d² (w - p));  p = the weight before.  With momentum as SGD.

    The gradient is corrected for what the weight has moved since the last update; p begins as the weight. Zheng et al.:
    Asynchronous stochastic gradient descent with delay compensation (2017). Momentum fails in MXNet 1.9.1.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.DCASGD(lamda=0.25, learning_rate=0.5))
    >>> weight = nd.array([1.0])
    >>> for _ in range(2):
    ...     updater(0, nd.array([2.0]), weight)
    ...     print(weight.asnumpy().tolist())
    [0.0]
    [-0.5]
    """

    copies: ClassVar[frozenset[str]] = frozenset({"previous"})
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, learning_rate: float | None = None, **kwargs: Any):
        super().__init__(momentum, learning_rate=learning_rate, **kwargs)
        self.lamda = lamda

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {**super().states(weight), "previous": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {**super().scalars(index), "lamda": self.lamda}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        d = self.clip(g * s["rescale"], s)
        step = s["lr"] * (d + s["wd"] * w + s["lamda"] * d * d * (w - state["previous"]))
        new, states = self.moved(w, step, state, s)
        return new, {**states, "previous": w}


@Optimizer.register
class SGLD(Optimizer):
    """w = w - lr/2 (C(r g) + wd w) + sqrt(lr) e, with e drawn from the normal distribution.

    Welling, Teh: Bayesian learning via stochastic gradient Langevin dynamics (2011).

    >>> from gluongraph import nd, optimizer
    >>> weight = nd.zeros((10000,))
    >>> optimizer.get_updater(optimizer.SGLD(learning_rate=4.0))(0, nd.zeros((10000,)), weight)
    >>> bool(1.8 < weight.asnumpy().std() < 2.2)
    True
    """

    noise: ClassVar[tuple[str, ...]] = ("normal",)
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "spread"})
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        return {**numbers, "lr": numbers["lr"] / 2, "spread": sqrt(numbers["lr"])}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        step = s["lr"] * (self.clip(g * s["rescale"], s) + s["wd"] * w)
        return w - step + s["spread"] * s["normal"], {}


@Optimizer.register
class Test(Optimizer):
    """w = w + r g, of which the state is a copy: MXNet's optimizer for tests.

    >>> from gluongraph import nd, optimizer
    >>> weight = nd.array([1.0])
    >>> optimizer.get_updater(optimizer.Test(rescale_grad=0.5))(0, nd.array([4.0]), weight)
    >>> weight.asnumpy().tolist()
    [3.0]
    """

    varying: ClassVar[frozenset[str] | None] = frozenset()

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"copy": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        return {"rescale": self.rescale_grad}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        new = w + g * s["rescale"]
        return new, {"copy": new}
