"""The optimizers in float64 numpy, written apart from the package: one update of one parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
State = dict[str, Array]


def clipped(x: Array, clip: float | None) -> Array:
    return x if clip is None or clip <= 0 else np.clip(x, -clip, clip)


def sgd(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, momentum: float = 0.0
) -> Array:
    d = clipped(r * g, clip) + wd * w
    if momentum == 0.0:
        return w - lr * d
    s["mom"] = momentum * s.get("mom", 0.0 * w) - lr * d
    return w + s["mom"]


def _moments(g: Array, s: State, b1: float, b2: float) -> None:
    s["mean"] = b1 * s.get("mean", 0.0 * g) + (1 - b1) * g
    s["var"] = b2 * s.get("var", 0.0 * g) + (1 - b2) * g * g


def adam(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
) -> Array:  # fmt: skip
    _moments(clipped(r * g + wd * w, clip), s, beta1, beta2)
    lr *= math.sqrt(1 - beta2**t) / (1 - beta1**t)
    return w - lr * s["mean"] / (np.sqrt(s["var"]) + epsilon)


def adamw(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, correct_bias: bool = True,
) -> Array:  # fmt: skip
    _moments(clipped(r * g, clip), s, beta1, beta2)
    if correct_bias:
        lr *= math.sqrt(1 - beta2**t) / (1 - beta1**t)
    return w - lr * (s["mean"] / (np.sqrt(s["var"]) + epsilon) + wd * w)


FORMULAS: dict[str, Callable[..., Array]] = {"sgd": sgd, "adam": adam, "adamw": adamw}
