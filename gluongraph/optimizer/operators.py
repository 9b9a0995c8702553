"""MXNet's update operators, as builders over nodes: each gives the new weight, and then the new states.

They compute by the `rule` of the optimizer of the same name: the optimizer is made with the settings that its rule
branches on, and all numbers are given as scalars. Those that change from step to step (rates, decays, step counts) are
nodes too. `C` in the formulas limits to ±clip_gradient, where that is above 0.
"""

from __future__ import annotations

from typing import Any

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.optimizer.adagrad import RMSProp
from gluongraph.optimizer.adam import Adam, AdamW, averaging
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.ftrl import FTML, Ftrl
from gluongraph.optimizer.layerwise import LAMB
from gluongraph.optimizer.sgd import NAG, SGD, Signum

Made = tuple[Node, ...]


def by_rule(optimizer: Optimizer, weight: Any, grad: Any, state: dict[str, Any], **scalars: Any) -> Made:
    """The optimizer's `rule`, with these scalars, nodes or numbers, in place of those that its settings give.

    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> from gluongraph.optimizer import SGD
    >>> from gluongraph.optimizer.operators import by_rule
    >>> step = lambda w, g, lr: by_rule(SGD(), w, g, {}, lr=lr, wd=0.5)
    >>> [new] = invoke(step, nd.array([2.0]), nd.array([3.0]), nd.array(0.25))
    >>> new.asnumpy().tolist()
    [1.0]
    """
    numbers: dict[str, Any] = {**optimizer.scalars(0), **scalars}
    new, after = optimizer.rule(weight, grad, state, numbers)
    return (new, *(after[name] for name in state))


def sgd_update(
    weight: Any, grad: Any, *, lr: Any, wd: Any = 0.0, rescale_grad: Any = 1.0, clip_gradient: float = -1.0
) -> Made:
    """w - lr (C(r g) + wd w)"""
    sgd = SGD(clip_gradient=clip_gradient)
    return by_rule(sgd, weight, grad, {}, lr=lr, wd=wd, rescale=rescale_grad)


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
    sgd = SGD(clip_gradient=clip_gradient)
    return by_rule(sgd, weight, grad, {"mom": mom}, lr=lr, momentum=momentum, wd=wd, rescale=rescale_grad)


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
    nag = NAG(clip_gradient=clip_gradient)
    return by_rule(nag, weight, grad, {"mom": mom}, lr=lr, momentum=momentum, wd=wd, rescale=rescale_grad)


def signsgd_update(
    weight: Any, grad: Any, *, lr: Any, wd: Any = 0.0, rescale_grad: Any = 1.0, clip_gradient: float = -1.0
) -> Made:
    """(1 - lr wd) w - lr sign(g)"""
    return by_rule(Signum(), weight, grad, {}, lr=lr, wd=wd)


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
    signum, numbers = Signum(clip_gradient=clip_gradient), {"momentum": momentum, "new": 1.0 - momentum, "wd_lh": wd_lh}
    return by_rule(signum, weight, grad, {"mom": mom}, lr=lr, wd=wd, rescale=rescale_grad, **numbers)


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
    adam, state = Adam(clip_gradient=clip_gradient), {"mean": mean, "var": var}
    numbers = {"epsilon": epsilon, **averaging(beta1, beta2)}
    return by_rule(adam, weight, grad, state, lr=lr, wd=wd, rescale=rescale_grad, **numbers)


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
    adamw, state = AdamW(clip_gradient=clip_gradient), {"mean": mean, "var": var}
    numbers = {"epsilon": epsilon, **averaging(beta1, beta2)}
    # The decay is not scaled by lr, as the optimizer's is.
    new, *states = by_rule(adamw, weight, grad, state, lr=eta * lr, wd=0.0, rescale=scale, **numbers)
    pairs = zip((new - eta * wd * weight, *states), (weight, mean, var), strict=True)
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
    rmsprop = RMSProp(clip_gradient=clip_gradient, clip_weights=clip_weights)
    numbers = {"gamma1": gamma1, "new1": 1.0 - gamma1, "epsilon": epsilon}
    return by_rule(rmsprop, weight, grad, {"n": n}, lr=lr, wd=wd, rescale=rescale_grad, **numbers)


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
    rmsprop = RMSProp(centered=True, clip_gradient=clip_gradient, clip_weights=clip_weights)
    state = {"n": n, "mean": g, "delta": delta}
    numbers = {"gamma1": gamma1, "new1": 1.0 - gamma1, "gamma2": gamma2, "epsilon": epsilon}
    return by_rule(rmsprop, weight, grad, state, lr=lr, wd=wd, rescale=rescale_grad, **numbers)


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
    ftrl, numbers = Ftrl(clip_gradient=clip_gradient), {"lamda1": lamda1, "beta": beta}
    return by_rule(ftrl, weight, grad, {"z": z, "n": n}, inverse=1.0 / lr, wd=wd, rescale=rescale_grad, **numbers)


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
    ftml, state = FTML(clip_gradient=clip_grad), {"d": d, "v": v, "z": z}
    corrected = {"inverse": (1.0 - ops.pow(beta1, t)) / lr, "of_var": 1.0 / (1.0 - ops.pow(beta2, t))}
    numbers = {"epsilon": epsilon, **averaging(beta1, beta2)}
    return by_rule(ftml, weight, grad, state, wd=wd, rescale=rescale_grad, **corrected, **numbers)


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
    lamb = LAMB(clip_gradient=clip_gradient, bias_correction=False)
    numbers: dict[str, Any] = {**lamb.scalars(0), **averaging(beta1, beta2), "epsilon": epsilon}
    numbers.update(wd=wd, rescale=rescale_grad)
    if bias_correction:
        numbers.update(of_mean=1.0 / (1.0 - ops.pow(beta1, t)), of_var=1.0 / (1.0 - ops.pow(beta2, t)))
    direction, new = lamb.direction(weight, grad, {"mean": mean, "var": var}, numbers)
    return direction, new["mean"], new["var"]


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
