"""How MXNet writes the type of an operator's argument: "int, optional, default='1'"."""

from __future__ import annotations

import ast
import inspect
from typing import Any

ARRAY = "NDArray-or-Symbol"
_ARRAYS = frozenset({"Node", "NDArray", "Value", "float | Node", "int | Node"})
_NAMES = {
    "int": "int",
    "float": "float",
    "bool": "boolean",
    "str": "string",
    **dict.fromkeys(("Sequence[int]", "Shape", "Extents", "Axes"), "Shape(tuple)"),
}


def argument_text(argument: inspect.Parameter) -> str:
    """The type of an argument, and its default.

    >>> def f(data: Node, axis: int = -1, keepdims: bool = False, mode: Literal["wrap", "clip"] = "clip"): ...
    >>> for each in inspect.signature(f).parameters.values():
    ...     print(argument_text(each))
    NDArray-or-Symbol
    int, optional, default='-1'
    boolean, optional, default=0
    {'clip', 'wrap'}, optional, default='clip'
    """
    annotation = str(argument.annotation)
    kind = annotation.removesuffix(" | None")
    if argument.kind is inspect.Parameter.VAR_POSITIONAL or kind in ("Sequence[Node]", "Sequence[NDArray]"):
        return ARRAY + "[]"
    if kind in _ARRAYS:
        return ARRAY
    text = _choices(kind) or _NAMES.get(kind, kind)
    if kind != annotation:
        text += " or None"
    return text + (", required" if argument.default is argument.empty else f", optional, default={_default(argument)}")


def _choices(annotation: str) -> str:
    """Of Literal["b", "a"]: {'a', 'b'}."""
    if not annotation.startswith("Literal["):
        return ""
    values = ast.literal_eval(f"({annotation.removeprefix('Literal[').removesuffix(']')},)")
    return "{" + ", ".join(map(repr, sorted(values))) + "}"


def _default(argument: inspect.Parameter) -> str:
    value: Any = argument.default
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return format(value, "g")
    return str(list(value) if isinstance(value, tuple) else value if value is None else f"'{value}'")
