"""Gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import autograd, nd
from gluongraph.context import Context, current_context
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array
from gluongraph.symbol import Symbol
from gluongraph.test_utils.compare import Tolerance, assert_almost_equal, default_numeric_eps, get_tolerance

Location = Mapping[str, Any] | Sequence[Any]


def check_numeric_gradient(
    sym: Callable[..., Any] | Symbol,
    location: Location,
    aux_states: Location | None = None,
    numeric_eps: Tolerance = None,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    grad_nodes: Sequence[str] | Mapping[str, str] | None = None,
    use_forward_train: bool = True,
    ctx: Context | None = None,
    dtype: Any = np.float32,
) -> None:
    """Raise AssertionError unless backward agrees with central differences of <random weights, sym(*location)>.

    `sym` is a function of arrays, a block, or a Symbol, whose arguments `location` has in order or by name. An array
    of `location` that is not of floating-point numbers has no gradient. `grad_nodes` are the names (of a function: the
    places, "0", "1") whose gradients are looked at, or these with their grad_req; of a Symbol, `aux_states` are its
    auxiliary states.

    >>> check_numeric_gradient(lambda x, y: x * y, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    """
    fn, names = _callable(sym, aux_states, location)
    values = _values(location, names, dtype)
    here = ctx or current_context()
    reqs = _requests(grad_nodes, {k: v for k, v in values.items() if v.dtype.kind == "f"})
    arrays = {name: nd.array(value, ctx=here, dtype=value.dtype) for name, value in values.items()}
    begin = {name: np.array(np.random.normal(0, 0.01, v.shape), v.dtype) for name, v in values.items() if name in reqs}
    for name, req in reqs.items():
        arrays[name].attach_grad(req)
        if (grad := arrays[name].grad) is not None:
            grad[:] = nd.array(begin[name])
    with autograd.record():
        made = _first(fn(*arrays.values()))
        weights = nd.array(np.random.uniform(0.1, 1.1, made.shape), ctx=here, dtype=made.dtype)
        head = made * weights
    head.backward()

    def objective() -> float:
        with autograd.pause(train_mode=use_forward_train):
            out = _first(fn(*arrays.values())).asnumpy().astype(np.float64)
        return float(np.sum(out * weights.asnumpy().astype(np.float64)))

    eps = get_tolerance(made, numeric_eps, default_numeric_eps())
    for name, req in reqs.items():
        if (grad := arrays[name].grad) is None:  # grad_req "null"
            continue
        expected = _differences(objective, arrays[name], values[name], eps)
        expected += begin[name] if req == "add" else 0
        assert_almost_equal(expected, grad, rtol, atol, (f"NUMERICAL_{name}", f"BACKWARD_{name}"))


def _differences(objective: Callable[[], float], array: NDArray, at: Array, eps: float) -> Array:
    """Central differences of the objective by every element of an array that it reads, which holds `at` in the end."""
    found = np.zeros(at.shape, at.dtype)
    for place in np.ndindex(*at.shape):
        around = []
        for sign in (0.5, -0.5):
            moved = at.copy()
            moved[place] += sign * eps
            with autograd.pause():
                array[:] = moved
            around.append(objective())
        found[place] = (around[0] - around[1]) / eps
    with autograd.pause():
        array[:] = at
    return found


def _callable(sym: Any, aux_states: Location | None, location: Location) -> tuple[Callable[..., Any], list[str]]:
    """A function of arrays, and the names of its arguments."""
    if not isinstance(sym, Symbol):
        return sym, list(location) if isinstance(location, Mapping) else [str(i) for i in range(len(location))]
    from gluongraph import gluon, symbol

    names = sym.list_arguments()
    auxiliary = sym.list_auxiliary_states()
    block = gluon.SymbolBlock(sym, [symbol.var(name) for name in names])
    given = aux_states or {}
    states = given if isinstance(given, Mapping) else dict(zip(auxiliary, given, strict=True))
    block.initialize()
    for name, value in states.items():
        block.collect_params()[name].set_data(nd.array(value))
    return block, names


def _values(location: Location, names: Sequence[str], dtype: Any) -> dict[str, Array]:
    listed = [location[name] for name in names] if isinstance(location, Mapping) else list(location)
    arrays = [x.asnumpy() if isinstance(x, NDArray) else np.asarray(x) for x in listed]
    return {
        name: np.array(a, dtype if a.dtype.kind == "f" else a.dtype, order="C", ndmin=1)
        for name, a in zip(names, arrays, strict=True)
    }


def _requests(grad_nodes: Sequence[str] | Mapping[str, str] | None, values: Mapping[str, Array]) -> dict[str, str]:
    if grad_nodes is None:
        return dict.fromkeys(values, "write")
    return dict(grad_nodes) if isinstance(grad_nodes, Mapping) else dict.fromkeys(grad_nodes, "write")


def _first(made: Any) -> NDArray:
    return made if isinstance(made, NDArray) else made[0]
