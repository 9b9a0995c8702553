"""MXNet's update operators: one step of an optimizer as a function, for optimizers written by hand.

`sgd_mom_update(weight, grad, mom, lr=0.1, momentum=0.9, out=weight)` gives the new weight, and writes it into `out`;
the states given (here mom) are written in place. Operators whose name begins with `mp_` take a float32 copy `weight32`
behind the states: that is what is updated, and the weight follows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from gluongraph.nd.function import into
from gluongraph.ndarray import NDArray, invoke
from gluongraph.optimizer import operators

# Arguments that are read and not written; the other arrays are states.
_READ = ("weight", "grad", "rescale_grad")
# Numbers that may change at every step: they travel as arrays, so that the same function serves them all.
_CHANGING = ("lr", "wd", "rescale_grad", "eta", "t")


def _update(build: Callable[..., Any], reads: tuple[str, ...] = _READ) -> Callable[..., NDArray]:
    arrays = [name for name, p in inspect.signature(build).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @wraps(build, assigned=("__name__", "__doc__"))
    def call(
        *args: Any, out: NDArray | None = None, name: str | None = None, lazy_update: bool = True, **kwargs: Any
    ) -> NDArray:
        given = {**dict(zip(arrays, args, strict=False)), **kwargs}
        if missing := [a for a in arrays if a not in given]:
            raise TypeError(f"{build.__name__}: {', '.join(missing)} not given; it takes {', '.join(arrays)}")
        weight: NDArray = given["weight"]
        states = [given[a] for a in arrays if a not in reads]
        for each in _CHANGING:
            if isinstance(given.get(each), (int, float)):
                given[each] = NDArray(np.asarray(given[each], weight.dtype), weight.context)
        made = invoke(build, *(given.pop(a) for a in arrays), **given)
        new, *after = [made] if isinstance(made, NDArray) else made
        for state, value in zip(states, after, strict=True):
            state[:] = value
        return new if out is None else into(out, new)

    return call


def _mixed(update: Callable[..., NDArray]) -> Callable[..., NDArray]:
    """The update on a float32 copy of a 16-bit weight: mp_..._update(weight, grad, *states, weight32, ...)."""

    def call(weight: NDArray, grad: NDArray, *args: Any, out: NDArray | None = None, **kwargs: Any) -> NDArray:
        *states, weight32 = (*args, kwargs.pop("weight32")) if "weight32" in kwargs else args
        update(weight32, grad.astype("float32"), *states, out=weight32, **kwargs)
        made = weight32.astype(weight.dtype)
        return made if out is None else into(out, made)

    call.__name__ = call.__qualname__ = "mp_" + update.__name__
    call.__doc__ = f"`{update.__name__}` on `weight32`, the float32 copy of a 16-bit weight, which follows it."
    return call


sgd_update = _update(operators.sgd_update)
sgd_mom_update = _update(operators.sgd_mom_update)
nag_mom_update = _update(operators.nag_mom_update)
signsgd_update = _update(operators.signsgd_update)
signum_update = _update(operators.signum_update)
adam_update = _update(operators.adam_update)
adamw_update = _update(operators.adamw_update)
rmsprop_update = _update(operators.rmsprop_update)
rmspropalex_update = _update(operators.rmspropalex_update)
ftrl_update = _update(operators.ftrl_update)
ftml_update = _update(operators.ftml_update)
lamb_update_phase1 = _update(operators.lamb_update_phase1)
lamb_update_phase2 = _update(operators.lamb_update_phase2, ("weight", "g", "r1", "r2"))
mp_sgd_update = _mixed(sgd_update)
mp_sgd_mom_update = _mixed(sgd_mom_update)
mp_nag_mom_update = _mixed(nag_mom_update)
