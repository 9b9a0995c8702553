"""The optimizers in float64 numpy, written apart from the package: one update of one parameter.

Each takes weight, gradient, a dict of states that it keeps, and the number of the update; `r` is the rescaling of the
gradient, `clip` the threshold or None. What an optimizer carries over from update to update beside arrays (LARS's last
rate, Nadam's product) lies in the states as well, under names with an underscore.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
State = dict[str, Any]


def clipped(x: Array, clip: float | None) -> Array:
    return x if clip is None or clip <= 0 else np.clip(x, -clip, clip)


def norm(x: Array) -> float:
    return math.sqrt(float((x * x).sum()))


def _moved(w: Array, step: Array, s: State, momentum: float) -> Array:
    if momentum == 0.0:
        return w - step
    s["mom"] = momentum * s.get("mom", 0.0 * w) - step
    return w + s["mom"]


def sgd(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, momentum: float = 0.0
) -> Array:
    return _moved(w, lr * (clipped(r * g, clip) + wd * w), s, momentum)


def nag(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, momentum: float = 0.0
) -> Array:
    d = clipped(r * g, clip) + wd * w
    if momentum == 0.0:
        return w - lr * d
    s["mom"] = momentum * s.get("mom", 0.0 * w) - lr * d
    return w + momentum * s["mom"] - lr * d


def signum(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    momentum: float = 0.9, wd_lh: float = 0.0,
) -> Array:  # fmt: skip
    if momentum == 0.0:
        return (1 - lr * wd) * w - lr * np.sign(g)
    s["mom"] = momentum * s.get("mom", 0.0 * w) - (1 - momentum) * (clipped(r * g, clip) + wd * w)
    return (1 - lr * wd_lh) * w + lr * np.sign(s["mom"])


def dcasgd(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    momentum: float = 0.0, lamda: float = 0.04,
) -> Array:  # fmt: skip
    d = clipped(r * g, clip)
    step = lr * (d + wd * w + lamda * d * d * (w - s.get("previous", w)))
    s["previous"] = w
    return _moved(w, step, s, momentum)


def sgld(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, noise: Array | float = 0.0
) -> Array:
    return w - lr / 2 * (clipped(r * g, clip) + wd * w) + math.sqrt(lr) * noise


def test(w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any) -> Array:
    s["copy"] = w + r * g
    return w + r * g


def _moments(g: Array, s: State, b1: float, b2: float) -> None:
    s["mean"] = b1 * s.get("mean", 0.0 * g) + (1 - b1) * g
    s["var"] = b2 * s.get("var", 0.0 * g) + (1 - b2) * g * g


def _lr_t(lr: float, t: int, b1: float, b2: float) -> float:
    return lr * math.sqrt(1 - b2**t) / (1 - b1**t)


def adam(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
) -> Array:  # fmt: skip
    _moments(clipped(r * g + wd * w, clip), s, beta1, beta2)
    return w - _lr_t(lr, t, beta1, beta2) * s["mean"] / (np.sqrt(s["var"]) + epsilon)


def adamw(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, correct_bias: bool = True,
) -> Array:  # fmt: skip
    _moments(clipped(r * g, clip), s, beta1, beta2)
    lr = _lr_t(lr, t, beta1, beta2) if correct_bias else lr
    return w - lr * (s["mean"] / (np.sqrt(s["var"]) + epsilon) + wd * w)


def adabelief(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, correct_bias: bool = True,
) -> Array:  # fmt: skip
    g = clipped(r * g + wd * w, clip)
    s["mean"] = beta1 * s.get("mean", 0.0 * g) + (1 - beta1) * g
    s["var"] = beta2 * s.get("var", 0.0 * g) + (1 - beta2) * (g - s["mean"]) ** 2 + epsilon
    lr = _lr_t(lr, t, beta1, beta2) if correct_bias else lr
    return w - lr * s["mean"] / (np.sqrt(s["var"]) + epsilon)


def adamax(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
) -> Array:  # fmt: skip
    g = clipped(r * g + wd * w, clip)
    s["mean"] = beta1 * s.get("mean", 0.0 * g) + (1 - beta1) * g
    s["largest"] = np.maximum(beta2 * s.get("largest", 0.0 * g), np.abs(g))
    return w - lr / (1 - beta1**t) * s["mean"] / (s["largest"] + epsilon)


def nadam(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, schedule_decay: float = 0.004,
) -> Array:  # fmt: skip
    g = clipped(r * g + wd * w, clip)
    mu, ahead = (beta1 * (1 - 0.5 * 0.96 ** (n * schedule_decay)) for n in (t, t + 1))
    s["_product"] = s.get("_product", 1.0) * mu
    _moments(g, s, beta1, beta2)
    mean = (1 - mu) * g / (1 - s["_product"]) + ahead * s["mean"] / (1 - s["_product"] * ahead)
    return w - lr * mean / (np.sqrt(s["var"] / (1 - beta2**t)) + epsilon)


def adagrad(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, eps: float = 1e-7
) -> Array:
    g = clipped(r * g, clip)
    s["history"] = s.get("history", 0.0 * g) + g * g
    return w - lr * (g / np.sqrt(s["history"] + eps) + wd * w)


def groupadagrad(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, eps: float = 1e-5
) -> Array:
    g = clipped(r * g, clip)
    s["history"] = s.get("history", np.zeros((len(g), 1))) + (g * g).mean(axis=1, keepdims=True)
    return w - lr * g / np.sqrt(s["history"] + eps)


def rmsprop(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, gamma1: float = 0.9,
    gamma2: float = 0.9, epsilon: float = 1e-8, centered: bool = False, clip_weights: float | None = None,
) -> Array:  # fmt: skip
    g = clipped(r * g + wd * w, clip)
    s["n"] = gamma1 * s.get("n", 0.0 * g) + (1 - gamma1) * g * g
    if not centered:
        return clipped(w - lr * g / np.sqrt(s["n"] + epsilon), clip_weights)
    s["mean"] = gamma1 * s.get("mean", 0.0 * g) + (1 - gamma1) * g
    s["delta"] = gamma2 * s.get("delta", 0.0 * g) - lr * g / np.sqrt(s["n"] - s["mean"] ** 2 + epsilon)
    return clipped(w + s["delta"], clip_weights)


def adadelta(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    rho: float = 0.9, epsilon: float = 1e-5,
) -> Array:  # fmt: skip
    g = clipped(r * g, clip)
    s["acc_g"] = rho * s.get("acc_g", 0.0 * g) + (1 - rho) * g * g
    before = s.get("acc_delta", 0.0 * g)
    delta = np.sqrt(before + epsilon) / np.sqrt(s["acc_g"] + epsilon) * g
    s["acc_delta"] = rho * before + (1 - rho) * delta * delta
    return w - delta - wd * w


def ftrl(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    lamda1: float = 0.01, beta: float = 1.0,
) -> Array:  # fmt: skip
    g = clipped(r * g, clip)
    before = s.get("n", 0.0 * g)
    s["n"] = before + g * g
    s["z"] = s.get("z", 0.0 * g) + g - (np.sqrt(s["n"]) - np.sqrt(before)) * w / lr
    least = (np.sign(s["z"]) * lamda1 - s["z"]) / ((beta + np.sqrt(s["n"])) / lr + wd)
    return np.where(np.abs(s["z"]) > lamda1, least, 0.0)


def ftml(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any,
    beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8,
) -> Array:  # fmt: skip
    g = clipped(r * g + wd * w, clip)
    s["v"] = beta2 * s.get("v", 0.0 * g) + (1 - beta2) * g * g
    d = (1 - beta1**t) / lr * (np.sqrt(s["v"] / (1 - beta2**t)) + epsilon)
    s["z"] = beta1 * s.get("z", 0.0 * g) + (1 - beta1) * g - (d - beta1 * s.get("d", 0.0 * g)) * w
    s["d"] = d
    return -s["z"] / d


def lars(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, momentum: float = 0.0,
    eta: float = 0.001, eps: float = 0.0, momentum_correction: bool = True,
) -> Array:  # fmt: skip
    before, s["_lr"] = s.get("_lr", lr), lr
    of_w, of_g = norm(w), r * norm(g)
    trust = eta * of_w / (of_g + wd * of_w + eps) if of_w > 0 and of_g > 0 else 1.0
    momentum *= lr / before if momentum_correction else 1.0
    return _moved(w, lr * trust * (clipped(r * g, clip) + wd * w), s, momentum)


def lbsgd(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, momentum: float = 0.0,
    warmup_strategy: str = "linear", warmup_epochs: int = 5, batch_scale: int = 1, updates_per_epoch: int = 32,
    begin_epoch: int = 0,
) -> Array:  # fmt: skip
    n = begin_epoch * updates_per_epoch + t
    total = s.get("sum", 0.0 * g) + g
    if n % batch_scale:
        s["sum"] = total
        s.setdefault("mom", 0.0 * w)
        return w
    g = total / batch_scale
    s["sum"] = 0.0 * g
    whole = warmup_epochs * updates_per_epoch
    if warmup_strategy == "lars":
        factor = math.sqrt((w * w).sum() / ((g * g).sum() + wd * (w * w).sum() + 1e-18))
        factor = min(100.0, max(0.01, factor))
    elif n >= whole:
        factor = float(batch_scale)
    else:
        share = {"linear": n / whole, "power2": (n / whole) ** 2, "sqrt": math.sqrt(n / whole)}[warmup_strategy]
        factor = 1 + (batch_scale - 1) * share
    return _moved(w, lr * factor * (clipped(r * g, clip) + wd * w), s, momentum)


def _bounded(size: float, lower: float | None, upper: float | None) -> float:
    size = max(size, lower) if lower else size
    return min(size, upper) if upper else size


def _trust(above: float, below: float) -> float:
    return above / below if above > 0 and below > 0 else 1.0


def lamb(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, beta1: float = 0.9,
    beta2: float = 0.999, epsilon: float = 1e-6, lower_bound: float | None = None, upper_bound: float | None = None,
    bias_correction: bool = True,
) -> Array:  # fmt: skip
    _moments(clipped(r * g, clip), s, beta1, beta2)
    mean, var = s["mean"], s["var"]
    if bias_correction:
        mean, var = mean / (1 - beta1**t), var / (1 - beta2**t)
    u = mean / (np.sqrt(var) + epsilon) + wd * w
    return w - lr * _trust(_bounded(norm(w), lower_bound, upper_bound), norm(u)) * u


def lans(
    w: Array, g: Array, s: State, t: int, *, lr: float, wd: float, r: float, clip: Any, beta1: float = 0.9,
    beta2: float = 0.999, epsilon: float = 1e-6, lower_bound: float | None = None, upper_bound: float | None = None,
) -> Array:  # fmt: skip
    size = norm(r * g)
    g = clipped(r * g / size if size > 0 else 0.0 * g, clip)
    _moments(g, s, beta1, beta2)
    below = np.sqrt(s["var"] / (1 - beta2**t)) + epsilon
    u, v = s["mean"] / (1 - beta1**t) / below + wd * w, g / below + wd * w
    size = _bounded(norm(w), lower_bound, upper_bound)
    return w - lr * (beta1 * _trust(size, norm(u)) * u + (1 - beta1) * _trust(size, norm(v)) * v)


_ALL: tuple[Callable[..., Array], ...] = (
    *(adabelief, adadelta, adagrad, adam, adamax, adamw, dcasgd, ftml, ftrl, groupadagrad, lamb, lans, lars, lbsgd),
    *(nadam, nag, rmsprop, sgd, sgld, signum, test),
)
FORMULAS: dict[str, Callable[..., Array]] = {formula.__name__: formula for formula in _ALL}
