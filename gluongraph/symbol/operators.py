"""Running MXNet's operators by the names and texts that symbol files have for them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from gluongraph import nd
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.nd import _internal
from gluongraph.nd.function import TUNING
from gluongraph.ndarray import NDArray

# Attributes that change nothing here, whatever they say: of all operators, and of some. The device is that of the
# arrays, and of the call; sizes are those of the weights.
_IGNORED = {
    *TUNING, "num_args", "sparse_grad", "input_dim", "output_dim", "forward_stype", "min_calib_range",
    "max_calib_range", "ctx", "lazy_update",
}  # fmt: skip
_IGNORED_OF = {
    "Embedding": {"dtype"},
    "_contrib_gradientmultiplier": {"is_int"},
    "_linspace": {"step", "repeat", "infer_range"},  # `num` and `endpoint` say it all
}
# Attributes that the functions here do not have: the only value that a file may give them, MXNet's default.
_FIXED: dict[str, dict[str, Any]] = {
    "Reshape": {"target_shape": (), "keep_highest": False},
    "softmin": {"use_length": False},
    "_np_cumsum": {},
}
# Where the numbers of MXNet differ from those of the functions here, if a file does not say them: the defaults.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LeakyReLU": {"slope": 0.25},
    "RNN": {"p": 0.0},
    "_eye": {"dtype": "float32"},
    "_linspace": {"dtype": "float32"},
}


def _likewise(of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The attributes of a function that takes any are those of another."""

    def named(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.__signature__ = inspect.signature(of)  # type: ignore[attr-defined]  # `inspect` looks here first
        return fn

    return named


@_likewise(nd.SoftmaxOutput)
def _softmax_output(data: NDArray, label: NDArray | None = None, **how: Any) -> Any:
    if label is None:
        return nd.softmax(data.reshape((data.shape[0], -1)), axis=1).reshape(data.shape)
    return nd.SoftmaxOutput(data, label, **how)


def _regression(output: Callable[..., Any], value: Callable[..., Any]) -> Callable[..., Any]:
    """An output layer; without a label its value alone."""

    @_likewise(output)
    def regression(data: NDArray, label: NDArray | None = None, **how: Any) -> Any:
        return value(data) if label is None else output(data, label, **how)

    return regression


def _exponential(lam: float = 1.0, shape: Any = None, dtype: Any = None) -> NDArray:
    return nd.random.exponential(1.0 / lam, shape=shape, dtype=dtype)


def _histogram(data: NDArray, bins: NDArray | None = None, bin_cnt: int | None = None, range: Any = None) -> Any:
    if bins is not None:
        return nd.histogram(data, bins)
    if bin_cnt is None or range is None:
        raise MXNetError(with_user_location("_histogram has neither bins nor bin_cnt and range"))
    return nd.histogram(data, bin_cnt, range)


def _split_v2(data: NDArray, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    if sections:
        return nd.split_v2(data, sections, axis, squeeze_axis)
    first, *others = _tuple(indices)  # where each part begins; nd.split_v2 has only those between two parts
    if first == 0:
        return nd.split_v2(data, tuple(others), axis, squeeze_axis)
    return nd.split_v2(data, (first, *others), axis, squeeze_axis)[1:]


_SPECIAL: dict[str, Callable[..., Any]] = {
    "_zeros": lambda shape=(), dtype="float32": nd.zeros(_tuple(shape), dtype=dtype),
    "_ones": lambda shape=(), dtype="float32": nd.ones(_tuple(shape), dtype=dtype),
    "_full": lambda shape, value=0.0, dtype="float32": nd.full(_tuple(shape), value, dtype=dtype),
    "_arange": lambda start=0.0, stop=None, step=1.0, repeat=1, dtype="float32", infer_range=False: nd.arange(
        start, stop, step, repeat, dtype=dtype
    ),
    "_rnn_param_concat": lambda *parts, dim=1: nd.concat(*parts, dim=dim),
    "_random_exponential": _exponential,
    "_histogram": _histogram,
    "_split_v2": _split_v2,
    "_hypot": nd.broadcast_hypot,
    "_hypot_scalar": lambda data, scalar=1.0, is_int=True: nd.broadcast_hypot(data, scalar),
    "_np_cumsum": nd.cumsum,
    "BatchNorm_v1": nd.BatchNorm,
    "SoftmaxOutput": _softmax_output,
    "LinearRegressionOutput": _regression(nd.LinearRegressionOutput, nd.identity),
    "LogisticRegressionOutput": _regression(nd.LogisticRegressionOutput, nd.sigmoid),
    "MAERegressionOutput": _regression(nd.MAERegressionOutput, nd.identity),
}


def _tuple(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


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
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply for the parser
        return {"true": True, "false": False}.get(text, text)
    return tuple(found) if isinstance(found, list) else found


def _renamed(op: str) -> str:
    """An operator's first name: `_PlusScalar` of old files is `_plus_scalar`.

    >>> _renamed("_RMinusScalar"), _renamed("_sparse_abs"), _renamed("reshape")
    ('_rminus_scalar', 'abs', 'Reshape')
    """
    op = op.removeprefix("_sparse_")
    if re.fullmatch(r"_(R?[A-Z][a-z]+)+Scalar", op):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op).lower()
    return {"reshape": "Reshape", "_Hypot": "_hypot", "cumsum": "_np_cumsum", "_sub": "elemwise_sub"}.get(op, op)


@cache
def function(op: str) -> Callable[..., Any]:
    """The function that an operator of MXNet is here.

    Raises:
        NotImplementedError: there is none.
    """
    op = _renamed(op)
    if op in _SPECIAL:
        return _SPECIAL[op]
    if op.startswith("_np"):  # numpy's meaning of sums without axes, of dot, ...: another front end
        raise NotImplementedError(with_user_location(f"MXNet's operator {op!r} of mx.np does not exist in gluongraph"))
    for owner, name in (
        (nd, op),
        (_internal, op),
        (nd.contrib, op.removeprefix("_contrib_")),
        (nd.linalg, op.removeprefix("_linalg_")),
        (nd.random, op.removeprefix("_random_")),
        (nd.image, op.removeprefix("_image_")),
        (nd, op.lstrip("_")),
    ):
        found: Callable[..., Any] | None = getattr(owner, name, None)
        if callable(found):
            return found
    raise NotImplementedError(with_user_location(f"MXNet's operator {op!r} does not exist in gluongraph"))


def apply(op: str, name: str, attrs: Mapping[str, str], arrays: Sequence[NDArray]) -> list[NDArray]:
    """The outputs of an operator on arrays.

    Raises:
        NotImplementedError: there is no such operator here.
        MXNetError: it does not take one of the attributes.
    """
    op = _renamed(op)
    call = function(op)
    how = _taken(op, name, {**_DEFAULTS.get(op, {}), **values(attrs)})
    if op == "Reshape" and isinstance(how.get("shape"), int):
        how["shape"] = (how["shape"],)
    made = call(*arrays, **how)
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _taken(op: str, name: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that the function takes; without those that change nothing."""
    known = keywords(op)
    fixed, kept = _FIXED.get(op, {}), {}
    for attribute, given in how.items():
        if attribute in _IGNORED or attribute in _IGNORED_OF.get(op, ()):
            continue
        if known is None or attribute in known:
            kept[attribute] = given
        elif attribute not in fixed or given != fixed[attribute]:
            what = f"{attribute}={given!r}, which is not known here"
            only = f"only {attribute}={fixed[attribute]!r}, MXNet's default, is" if attribute in fixed else ""
            raise MXNetError(with_user_location(f"{op} {name!r} of a symbol file has {what}", help=only))
    return kept


@cache
def keywords(op: str) -> dict[str, Any] | None:
    """The attributes that an operator takes here, with their defaults; None if its function looks for itself."""
    parameters = inspect.signature(function(op)).parameters.values()
    if op.endswith("_update") and any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None  # they pass on what they get, and refuse what nothing takes
    return {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
