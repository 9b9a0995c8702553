"""PyTorch's Muon: steps along the momentum of a matrix, made nearly orthogonal."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from gluongraph import ops
from gluongraph.errors import with_user_location
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.matmul import MATMUL
from gluongraph.optimizer.base import Nodes, Updated
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.torch.base import TorchRule, register

_FACTORS = {
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}


@register
class Muon(TorchRule):
    """b = momentum b + (1 - momentum) C(r g);  u = (1 - momentum) C(r g) + momentum b, without `nesterov` u = b;

    w = (1 - lr wd) w - lr f O(u), where O is `orthogonalized`, and f by `adjust_lr_fn` sqrt(max(1, rows / columns))
    ("original", which None means) or 0.2 sqrt(max(rows, columns)) ("match_rms_adamw"). Weights are matrices. Jordan:
    Muon: an optimizer for hidden layers in neural networks (2024); Liu et al.: Muon is scalable for LLM training
    (2025). torch.optim.Muon.

    >>> from gluongraph import nd, optimizer
    >>> weight = nd.zeros((2, 2))
    >>> rule = optimizer.torch.Muon(lr=1.0, ns_coefficients=(1.5, -0.5, 0.0), ns_steps=20)  # Newton and Schulz
    >>> optimizer.get_updater(rule)(0, nd.array([[3.0, 0.0], [0.0, 1.0]]), weight)
    >>> weight.asnumpy().round(1).tolist()
    [[-1.0, 0.0], [0.0, -1.0]]

    Raises:
        ValueError: a weight that is no matrix; 100 steps or more; other than three coefficients; no such adjust_lr_fn.
    """

    default_rate: ClassVar[float] = 1e-3
    options: ClassVar = {**TorchRule.options, "momentum": ("momentum",), "eps": ("eps",)}
    flags: ClassVar = ("nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn")
    steps: ClassVar[bool] = False
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd", "keep"})
    varying: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(
        self,
        lr: float | None = None,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(lr, weight_decay, **kwargs)
        wrong = ""
        if adjust_lr_fn not in (None, *_FACTORS):
            wrong = f"adjust_lr_fn is None, 'original' or 'match_rms_adamw', not {adjust_lr_fn!r}"
        elif len(ns_coefficients) != 3:
            wrong = f"ns_coefficients are three numbers, not {len(ns_coefficients)}"
        elif not 0 <= ns_steps < 100:
            wrong = f"ns_steps is below 100, not {ns_steps}"
        if wrong:
            raise ValueError(with_user_location(f"torch.Muon: {wrong}"))
        self.momentum, self.nesterov, self.eps = momentum, nesterov, eps
        self.ns_coefficients, self.ns_steps, self.adjust_lr_fn = tuple(ns_coefficients), ns_steps, adjust_lr_fn

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        if weight.rank != 2:
            help = "another optimizer for the other parameters: mx.optimizer.ParameterGroups, or a Trainer of their own"
            raise ValueError(with_user_location(f"torch.Muon updates matrices, and a weight is {weight}", help=help))
        return {"momentum_buffer": weight}

    def scalars(self, index: Index) -> dict[str, float]:
        means = {"momentum": self.momentum, "new": 1.0 - self.momentum}
        return {**super().scalars(index), **means, "eps": self.eps}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        w, g = self.decayed(w, g, s, decoupled=True)
        buffer = s["momentum"] * state["momentum_buffer"] + s["new"] * g
        u = s["new"] * g + s["momentum"] * buffer if self.nesterov else buffer
        rows, columns = w.shape
        made = ops.cast(orthogonalized(u, s["eps"], self.ns_coefficients, self.ns_steps), w.dtype)
        factor = _FACTORS[self.adjust_lr_fn or "original"](rows, columns)
        return w - s["lr"] * factor * made, {"momentum_buffer": buffer}


def orthogonalized(u: Node, eps: Node, coefficients: tuple[float, ...], steps: int) -> Node:
    """X from U / max(|U|, eps) by steps X = a X + (b A + c A A) X, A = X X': with the singular vectors of U, and
    singular values near 1. In bfloat16 as in PyTorch: each product sums in float32 and is rounded once.

    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> from gluongraph.optimizer.torch.muon import orthogonalized
    >>> u, eps = nd.array([[2.0, 0.0], [0.0, 2.0]]), nd.array(1e-7)
    >>> invoke(lambda u, eps: orthogonalized(u, eps, (1.5, -0.5, 0.0), 20), u, eps).asnumpy().astype(float).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    a, b, c = coefficients
    upright = u.shape[0] > u.shape[1]  # then the small products are of columns
    x = _rounded(u)
    x = _transposed(x) if upright else x
    wide = ops.cast(x, "f32")
    size = ops.cast(_rounded(ops.sqrt(ops.sum(wide * wide))), "f32")
    x = _rounded(wide / ops.maximum(size, ops.cast(eps, "f32")))
    for _ in range(steps):
        gram = _rounded(_product(x, x, tb=True))
        change = _rounded(b * ops.cast(gram, "f32") + c * _product(gram, gram))
        x = _rounded(a * ops.cast(x, "f32") + _product(change, x))
    return _transposed(x) if upright else x


def _rounded(x: Node) -> Node:
    return ops.cast(x, "bf16")


def _product(a: Node, b: Node, tb: bool = False) -> Node:
    return MATMUL(a, b, ta=False, tb=tb, dtype="f32")


def _transposed(x: Node) -> Node:
    return ops.transpose(x, (1, 0))
