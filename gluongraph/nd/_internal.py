"""`mx.nd._internal`: the operators behind Python's, by the names that MXNet's graphs know them by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.builders import mxops
from gluongraph.nd.function import function

_BINARY: dict[str, Callable[..., Any]] = {
    "plus": mxops.add,
    "minus": mxops.subtract,
    "mul": mxops.multiply,
    "div": mxops.divide,
    "mod": mxops.modulo,
    "power": mxops.power,
    "maximum": mxops.maximum,
    "minimum": mxops.minimum,
    "equal": mxops.equal,
    "not_equal": mxops.not_equal,
    "greater": mxops.greater,
    "greater_equal": mxops.greater_equal,
    "lesser": mxops.lesser,
    "lesser_equal": mxops.lesser_equal,
    "logical_and": mxops.logical_and,
    "logical_or": mxops.logical_or,
    "logical_xor": mxops.logical_xor,
}


def _with_scalar(build: Callable[..., Any], name: str, swapped: bool) -> Callable[..., Any]:
    def by_number(data: Any, scalar: float = 1.0, is_int: bool = True) -> Any:
        return build(scalar, data) if swapped else build(data, scalar)

    by_number.__doc__ = f"{build.__doc__}, with `scalar` as {'lhs' if swapped else 'rhs'}"
    return function(by_number, name)


for _name, _build in _BINARY.items():
    globals()[f"_{_name}"] = globals()[f"_{_name.title()}"] = function(_build, f"_{_name}")
    globals()[f"_{_name}_scalar"] = _with_scalar(_build, f"_{_name}_scalar", swapped=False)
    if _name in ("minus", "div", "mod", "power"):
        globals()[f"_r{_name}_scalar"] = _with_scalar(_build, f"_r{_name}_scalar", swapped=True)

_copy = function(mxops.identity, "_copy")
_grad_add = function(mxops.add, "_grad_add")
