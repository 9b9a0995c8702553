"""MXNet's update operators of several weights in one call, and AdamW's of 16-bit weights with a float32 copy.

Arrays come one weight after the other, `multi_sgd_update(w0, g0, w1, g1, lrs=..., wds=..., out=[w0, w1])`, or as lists,
`multi_adamw_update([w0, w1], [g0, g1], ...)`. Each weight is updated as the operator without `multi_` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.nd.function import into
from gluongraph.nd.update import (
    adamw_update,
    lamb_update_phase1,
    lamb_update_phase2,
    mp_sgd_mom_update,
    mp_sgd_update,
    sgd_mom_update,
    sgd_update,
)
from gluongraph.ndarray import NDArray

Arrays = Sequence[NDArray]
Numbers = Sequence[float]


def _written(out: Arrays | None, made: list[NDArray]) -> list[NDArray] | Arrays:
    return made if out is None else into(out, made)


# -- AdamW


def mp_adamw_update(
    weight: NDArray,
    grad: NDArray,
    mean: NDArray,
    var: NDArray,
    weight32: NDArray,
    rescale_grad: Any,
    lr: float,
    eta: float,
    out: NDArray | None = None,
    **how: Any,
) -> NDArray:
    """`adamw_update` on `weight32`, the float32 copy of a 16-bit weight, which follows it."""
    adamw_update(weight32, grad.astype("float32"), mean, var, rescale_grad, lr=lr, eta=eta, out=weight32, **how)
    made = weight32.astype(weight.dtype)
    return made if out is None else into(out, made)


def multi_adamw_update(
    weights: Arrays,
    grads: Arrays,
    mean: Arrays,
    var: Arrays,
    rescale_grad: Any,
    lrs: Numbers,
    wds: Numbers,
    etas: Numbers,
    out: Arrays | None = None,
    size: int = 0,
    **how: Any,
) -> Any:
    """`adamw_update` of each weight, with a rate, a decay and an eta of its own."""
    each = zip(weights, grads, mean, var, lrs, wds, etas, strict=True)
    made = [adamw_update(w, g, m, v, rescale_grad, lr=lr, wd=wd, eta=eta, **how) for w, g, m, v, lr, wd, eta in each]
    return _written(out, made)


def multi_mp_adamw_update(
    weights: Arrays,
    grads: Arrays,
    mean: Arrays,
    var: Arrays,
    weights32: Arrays,
    rescale_grad: Any,
    lrs: Numbers,
    wds: Numbers,
    etas: Numbers,
    out: Arrays | None = None,
    size: int = 0,
    **how: Any,
) -> Any:
    """`mp_adamw_update` of each weight, with a rate, a decay and an eta of its own."""
    each = zip(weights, grads, mean, var, weights32, lrs, etas, wds, strict=True)
    made = [mp_adamw_update(w, g, m, v, c, rescale_grad, lr, eta, wd=wd, **how) for w, g, m, v, c, lr, eta, wd in each]
    return _written(out, made)


# -- LAMB


def _lamb(w: NDArray, g: NDArray, m: NDArray, v: NDArray, t: int, lr: float, wd: float, how: dict[str, Any]) -> NDArray:
    bounds = {k: how[k] for k in ("lower_bound", "upper_bound") if k in how}
    first = {k: value for k, value in how.items() if k not in bounds}
    direction = lamb_update_phase1(w, g, m, v, t=t, wd=wd, **first)
    return lamb_update_phase2(w, direction, w.norm(), direction.norm(), lr=lr, **bounds)


def multi_lamb_update(
    weights: Arrays,
    grads: Arrays,
    mean: Arrays,
    var: Arrays,
    step_count: Sequence[int],
    lrs: Numbers,
    wds: Numbers,
    out: Arrays | None = None,
    num_tensors: int = 0,
    **how: Any,
) -> Any:
    """Both phases of LAMB for each weight, with a count of steps, a rate and a decay of its own."""
    each = zip(weights, grads, mean, var, step_count, lrs, wds, strict=True)
    return _written(out, [_lamb(w, g, m, v, t, lr, wd, how) for w, g, m, v, t, lr, wd in each])


def multi_mp_lamb_update(
    weights: Arrays,
    grads: Arrays,
    mean: Arrays,
    var: Arrays,
    weights32: Arrays,
    step_count: Sequence[int],
    lrs: Numbers,
    wds: Numbers,
    out: Arrays | None = None,
    num_tensors: int = 0,
    **how: Any,
) -> Any:
    """`multi_lamb_update` on `weights32`, the float32 copies of 16-bit weights, which follow them."""
    wide = [g.astype("float32") for g in grads]
    multi_lamb_update(weights32, wide, mean, var, step_count, lrs, wds, out=weights32, **how)
    return _written(out, [c.astype(w.dtype) for c, w in zip(weights32, weights, strict=True)])


# -- SGD


def _sgd(update: Callable[..., NDArray], each: int, name: str) -> Callable[..., Any]:
    """update(*arrays of one weight, lr, wd) for `each` arrays per weight, one weight after the other."""

    def call(*data: NDArray, lrs: Any = (), wds: Any = (), out: Any = None, num_weights: int = 0, **how: Any) -> Any:
        parts = [data[i : i + each] for i in range(0, len(data), each)]
        if len(data) % each or not len(parts) == len(lrs) == len(wds):
            message = (
                f"{name}: {len(data)} arrays, {len(lrs)} rates, {len(wds)} decays; {each} arrays belong to a weight"
            )
            raise MXNetError(with_user_location(message))
        made = [update(*part, lr=lr, wd=wd, **how) for part, lr, wd in zip(parts, lrs, wds, strict=True)]
        return _written([out] if isinstance(out, NDArray) else out, made)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{update.__name__}` of each weight, {each} arrays each, with a rate and a decay of its own."
    return call


def _preloaded(update: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same with the rates and the decays as the last two arrays."""

    def call(*data: NDArray, out: Any = None, num_weights: int = 0, **how: Any) -> Any:
        *arrays, lrs, wds = data
        return update(*arrays, lrs=lrs.asnumpy().tolist(), wds=wds.asnumpy().tolist(), out=out, **how)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{update.__name__}` with the rates and the decays as arrays, the last two."
    return call


multi_sgd_update = _sgd(sgd_update, 2, "multi_sgd_update")
multi_sgd_mom_update = _sgd(sgd_mom_update, 3, "multi_sgd_mom_update")
multi_mp_sgd_update = _sgd(mp_sgd_update, 3, "multi_mp_sgd_update")
multi_mp_sgd_mom_update = _sgd(mp_sgd_mom_update, 4, "multi_mp_sgd_mom_update")
preloaded_multi_sgd_update = _preloaded(multi_sgd_update, "preloaded_multi_sgd_update")
preloaded_multi_sgd_mom_update = _preloaded(multi_sgd_mom_update, "preloaded_multi_sgd_mom_update")
preloaded_multi_mp_sgd_update = _preloaded(multi_mp_sgd_update, "preloaded_multi_mp_sgd_update")
preloaded_multi_mp_sgd_mom_update = _preloaded(multi_mp_sgd_mom_update, "preloaded_multi_mp_sgd_mom_update")
