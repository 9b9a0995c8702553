"""MXNet's update operators, as builders over nodes: each gives the new weight, and then the new states.

Numbers that change from step to step (rates, decays, step counts) are nodes too. `C` in the formulas limits to
±clip_gradient, where that is above 0. The formulas are those of the optimizers of the same names.
"""

from __future__ import annotations

from typing import Any

from gluongraph import ops
from gluongraph.ir.graph import Node

Made = tuple[Node, ...]


def clipped(g: Any, limit: float) -> Node:
    """g held between ±limit; g itself for a limit that is not above 0"""
    return ops.minimum(ops.maximum(g, -limit), limit) if limit > 0 else g


def sgd_update(
    weight: Any, grad: Any, *, lr: Any, wd: Any = 0.0, rescale_grad: Any = 1.0, clip_gradient: float = -1.0
) -> Made:
    """w - lr (C(r g) + wd w)"""
    return (weight - lr * (clipped(rescale_grad * grad, clip_gradient) + wd * weight),)


def sgd_mom_update(
    weight: Any,
    grad: Any,
    mom: Any,
    *,
    lr: Any,
    momentum: float = 0.0,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
) -> Made:
    """m = momentum m - lr (C(r g) + wd w);  w + m"""
    mom = momentum * mom - lr * (clipped(rescale_grad * grad, clip_gradient) + wd * weight)
    return weight + mom, mom


def nag_mom_update(
    weight: Any,
    grad: Any,
    mom: Any,
    *,
    lr: Any,
    momentum: float = 0.0,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
) -> Made:
    """d = C(r g) + wd w;  m = momentum m - lr d;  w + momentum m - lr d"""
    step = lr * (clipped(rescale_grad * grad, clip_gradient) + wd * weight)
    mom = momentum * mom - step
    return weight + momentum * mom - step, mom


def signsgd_update(
    weight: Any, grad: Any, *, lr: Any, wd: Any = 0.0, rescale_grad: Any = 1.0, clip_gradient: float = -1.0
) -> Made:
    """(1 - lr wd) w - lr sign(g)"""
    return (weight - lr * wd * weight - lr * ops.sign(grad),)


def signum_update(
    weight: Any,
    grad: Any,
    mom: Any,
    *,
    lr: Any,
    momentum: float = 0.0,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
    wd_lh: float = 0.0,
) -> Made:
    """m = momentum m - (1 - momentum)(C(r g) + wd w);  (1 - lr wd_lh) w + lr sign(m)"""
    mom = momentum * mom - (1.0 - momentum) * (clipped(rescale_grad * grad, clip_gradient) + wd * weight)
    return weight - lr * wd_lh * weight + lr * ops.sign(mom), mom


def adam_update(
    weight: Any,
    grad: Any,
    mean: Any,
    var: Any,
    *,
    lr: Any,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
) -> Made:
    """g = C(r g + wd w);  m, v averages of g, g²;  w - lr m / (sqrt(v) + epsilon); bias correction is left to lr"""
    g = clipped(rescale_grad * grad + wd * weight, clip_gradient)
    mean = beta1 * mean + (1.0 - beta1) * g
    var = beta2 * var + (1.0 - beta2) * (g * g)
    return weight - lr * mean / (ops.sqrt(var) + epsilon), mean, var


def adamw_update(
    weight: Any,
    grad: Any,
    mean: Any,
    var: Any,
    rescale_grad: Any,
    *,
    lr: Any,
    eta: Any,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: Any = 0.0,
    clip_gradient: float = -1.0,
) -> Made:
    """w - eta (lr m / (sqrt(v) + epsilon) + wd w); nothing changes where rescale_grad is 0 or not finite"""
    scale = ops.reshape(rescale_grad, ()) if isinstance(rescale_grad, Node) else ops.const(rescale_grad, weight.dtype)
    usable = ops.logical_and(ops.isfinite(scale), ops.not_equal(scale, 0.0))
    g = clipped(scale * grad, clip_gradient)
    new_mean = beta1 * mean + (1.0 - beta1) * g
    new_var = beta2 * var + (1.0 - beta2) * (g * g)
    new = weight - eta * (lr * new_mean / (ops.sqrt(new_var) + epsilon) + wd * weight)
    pairs = ((new, weight), (new_mean, mean), (new_var, var))
    return tuple(ops.where(ops.expand(ops.reshape(usable, (1,) * old.ty.rank), old.shape), n, old) for n, old in pairs)


def rmsprop_update(
    weight: Any,
    grad: Any,
    n: Any,
    *,
    lr: Any,
    gamma1: float = 0.95,
    epsilon: float = 1e-8,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
    clip_weights: float = -1.0,
) -> Made:
    """g = C(r g + wd w);  n average of g²;  w - lr g / sqrt(n + epsilon)"""
    g = clipped(rescale_grad * grad + wd * weight, clip_gradient)
    n = gamma1 * n + (1.0 - gamma1) * (g * g)
    return clipped(weight - lr * g / ops.sqrt(n + epsilon), clip_weights), n


def rmspropalex_update(
    weight: Any,
    grad: Any,
    n: Any,
    g: Any,
    delta: Any,
    *,
    lr: Any,
    gamma1: float = 0.95,
    gamma2: float = 0.9,
    epsilon: float = 1e-8,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
    clip_weights: float = -1.0,
) -> Made:
    """n, G averages of g², g;  δ = gamma2 δ - lr g / sqrt(n - G² + epsilon);  w + δ"""
    step = clipped(rescale_grad * grad + wd * weight, clip_gradient)
    n = gamma1 * n + (1.0 - gamma1) * (step * step)
    g = gamma1 * g + (1.0 - gamma1) * step
    delta = gamma2 * delta - lr * step / ops.sqrt(n - g * g + epsilon)
    return clipped(weight + delta, clip_weights), n, g, delta


def ftrl_update(
    weight: Any,
    grad: Any,
    z: Any,
    n: Any,
    *,
    lr: Any,
    lamda1: float = 0.01,
    beta: float = 1.0,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
) -> Made:
    """n' = n + g²;  z += g - (sqrt(n') - sqrt(n)) w / lr;  w = (|z| > λ)(λ sign z - z) / ((β + sqrt(n')) / lr + wd)"""
    g = clipped(rescale_grad * grad, clip_gradient)
    new = n + g * g
    z = z + g - (ops.sqrt(new) - ops.sqrt(n)) * weight / lr
    moved = (lamda1 * ops.sign(z) - z) / ((beta + ops.sqrt(new)) / lr + wd)
    return ops.where(ops.greater(ops.abs(z), lamda1), moved, 0.0), z, new


def ftml_update(
    weight: Any,
    grad: Any,
    d: Any,
    v: Any,
    z: Any,
    *,
    lr: Any,
    t: Any,
    beta1: float = 0.6,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_grad: float = -1.0,
) -> Made:
    """v average of g²;  d' = (1 - β₁ᵗ) / lr (sqrt(v / (1 - β₂ᵗ)) + ε);  z = β₁ z + (1 - β₁) g - (d' - β₁ d) w; -z/d'"""
    g = clipped(rescale_grad * grad + wd * weight, clip_grad)
    v = beta2 * v + (1.0 - beta2) * (g * g)
    new = (1.0 - ops.pow(beta1, t)) / lr * (ops.sqrt(v / (1.0 - ops.pow(beta2, t))) + epsilon)
    z = beta1 * z + (1.0 - beta1) * g - (new - beta1 * d) * weight
    return -z / new, new, v, z


def lamb_update_phase1(
    weight: Any,
    grad: Any,
    mean: Any,
    var: Any,
    *,
    t: Any,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    bias_correction: bool = True,
    wd: Any = 0.0,
    rescale_grad: Any = 1.0,
    clip_gradient: float = -1.0,
) -> Made:
    """g = C(r g);  m, v averages, bias-corrected;  m / (sqrt(v) + epsilon) + wd w: the direction, for phase 2"""
    g = clipped(rescale_grad * grad, clip_gradient)
    mean = beta1 * mean + (1.0 - beta1) * g
    var = beta2 * var + (1.0 - beta2) * (g * g)
    m, v = mean, var
    if bias_correction:
        m, v = m / (1.0 - ops.pow(beta1, t)), v / (1.0 - ops.pow(beta2, t))
    return m / (ops.sqrt(v) + epsilon) + wd * weight, mean, var


def lamb_update_phase2(
    weight: Any, g: Any, r1: Any, r2: Any, *, lr: Any, lower_bound: float = -1.0, upper_bound: float = -1.0
) -> Made:
    """w - lr (r1 / r2) g, with r1 = ‖w‖ held between the bounds and r2 = ‖g‖; a ratio of 1 where one of them is 0"""
    r1, r2 = ops.reshape(r1, ()), ops.reshape(r2, ())
    if lower_bound > 0:
        r1 = ops.maximum(r1, lower_bound)
    if upper_bound > 0:
        r1 = ops.minimum(r1, upper_bound)
    usable = ops.logical_and(ops.not_equal(r1, 0.0), ops.not_equal(r2, 0.0))
    ratio = ops.where(usable, r1 / ops.where(usable, r2, 1.0), 1.0)
    return (weight - lr * ratio * g,)
