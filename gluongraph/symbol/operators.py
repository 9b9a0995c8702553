"""Running MXNet's operators by the names and texts that symbol files have for them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from gluongraph import nd
from gluongraph.errors import MXNetError, located
from gluongraph.nd import _internal
from gluongraph.nd.function import TUNING
from gluongraph.ndarray import NDArray

# What operators carry that changes nothing here.
_IGNORED = {
    *TUNING, "num_args", "cudnn_off", "sparse_grad", "input_dim", "output_dim", "forward_stype", "min_calib_range",
    "max_calib_range", "output_mean_var", "is_int", "lhs_stype", "rhs_stype", "ctx", "p_value",
}  # fmt: skip
# Where the numbers of MXNet differ from those of the functions here, if a file does not say them: the defaults.
_DEFAULTS: dict[str, dict[str, Any]] = {"LeakyReLU": {"slope": 0.25}, "RNN": {"p": 0.0}}

_SPECIAL: dict[str, Callable[..., Any]] = {
    "_zeros": lambda shape, dtype="float32": nd.zeros(_tuple(shape), dtype=dtype),
    "_ones": lambda shape, dtype="float32": nd.ones(_tuple(shape), dtype=dtype),
    "_full": lambda shape, value=0.0, dtype="float32": nd.full(_tuple(shape), value, dtype=dtype),
    "_arange": lambda start=0.0, stop=None, step=1.0, repeat=1, dtype="float32", infer_range=False: nd.arange(
        start, stop, step, repeat, dtype=dtype
    ),
    "_rnn_param_concat": lambda *parts, dim=0: nd.concat(*parts, dim=dim),
    "_contrib_SyncBatchNorm": lambda *arrays, key="", ndev=1, **how: nd.BatchNorm(*arrays, **how),
    "BatchNorm_v1": lambda *arrays, **how: nd.BatchNorm(*arrays, **how),
    "SoftmaxOutput": lambda data, label=None, **how: _prediction(nd.SoftmaxOutput, _softmax, data, label, how),
    "LinearRegressionOutput": lambda data, label=None, **how: _prediction(
        nd.LinearRegressionOutput, nd.identity, data, label, how
    ),
    "LogisticRegressionOutput": lambda data, label=None, **how: _prediction(
        nd.LogisticRegressionOutput, nd.sigmoid, data, label, how
    ),
}


def _tuple(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _prediction(output: Callable[..., Any], value: Callable[..., Any], data: Any, label: Any, how: Any) -> Any:
    """An output layer; without a label its value alone."""
    return value(data) if label is None else output(data, label, **how)


def _softmax(data: NDArray) -> NDArray:
    return nd.softmax(data.reshape((data.shape[0], -1)), axis=1).reshape(data.shape)


def values(attrs: Mapping[str, str]) -> dict[str, Any]:
    """An operator's attributes as numbers, tuples and texts; hidden ones (`__lr_mult__`) left out.

    >>> values({"kernel": "(3, 3)", "no_bias": "True", "eps": "1e-05", "act_type": "relu", "__shape__": "(0,)"})
    {'kernel': (3, 3), 'no_bias': True, 'eps': 1e-05, 'act_type': 'relu'}
    """
    return {name: value(text) for name, text in attrs.items() if not name.startswith("__")}


def value(text: str) -> Any:
    """One attribute as what its text means."""
    try:
        found = ast.literal_eval(re.sub(r"(?<=\d)L\b", "", text))
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text, text)
    return tuple(found) if isinstance(found, list) else found


@cache
def function(op: str) -> Callable[..., Any]:
    """The function that an operator of MXNet is here.

    Raises:
        NotImplementedError: there is none.
    """
    if op in _SPECIAL:
        return _SPECIAL[op]
    for owner, name in (
        (nd, op),
        (_internal, op),
        (nd.contrib, op.removeprefix("_contrib_")),
        (nd.linalg, op.removeprefix("_linalg_")),
        (nd.random, op.removeprefix("_random_")),
        (nd, op.removeprefix("_np").lstrip("_")),
    ):
        found: Callable[..., Any] | None = getattr(owner, name, None)
        if callable(found):
            return found
    raise NotImplementedError(located(f"MXNet's operator {op!r} does not exist in gluongraph"))


def apply(op: str, name: str, attrs: Mapping[str, str], arrays: Sequence[NDArray]) -> list[NDArray]:
    """The outputs of an operator on arrays.

    Raises:
        NotImplementedError: there is no such operator here.
        MXNetError: it does not take one of the attributes.
    """
    call = function(op)
    how = {**_DEFAULTS.get(op, {}), **values(attrs)}
    if op in ("reshape", "Reshape") and isinstance(how.get("shape"), int):
        how["shape"] = (how["shape"],)
    known = inspect.signature(call).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        strange = [a for a in how if a not in known]
        if refused := [a for a in strange if a not in _IGNORED and how[a] not in (None, False)]:
            what = f"{refused[0]}={how[refused[0]]!r}"
            raise MXNetError(located(f"{op} {name!r} of a symbol file has {what}, which is not known here"))
        how = {a: v for a, v in how.items() if a in known}
    made = call(*arrays, **how)
    return list(made) if isinstance(made, (list, tuple)) else [made]
