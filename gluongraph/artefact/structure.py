"""The nested structure of a program's results as JSON, and back."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import FormatError, MXNetError, with_user_location
from gluongraph.tracing.tracer import Output


def to_data(part: Any) -> Any:
    """The structure with the names of outputs in place of arrays. Of a named tuple only a tuple remains.

    Raises:
        MXNetError: it holds what JSON does not.
    """
    if isinstance(part, Output):
        return {"output": part.name}
    if isinstance(part, (tuple, list)):
        return {"tuple" if isinstance(part, tuple) else "list": [to_data(each) for each in part]}
    if isinstance(part, dict) and all(isinstance(key, str) for key in part):
        return {"dict": [[key, to_data(each)] for key, each in part.items()]}
    if part is None or isinstance(part, (bool, int, float, str)):
        return {"value": part}
    message = f"the program gives back {type(part).__name__}, which an artefact cannot"
    raise MXNetError(
        with_user_location(message, help="return arrays, numbers and texts, in tuples, lists and dictionaries")
    )


def from_data(data: Any) -> Any:
    """What `to_data` took apart. Raises FormatError: it is no such thing."""
    match data:
        case {"output": str(name), **rest} if not rest:
            return Output(name)
        case {"tuple": list(parts), **rest} if not rest:
            return tuple(map(from_data, parts))
        case {"list": list(parts), **rest} if not rest:
            return list(map(from_data, parts))
        case {"dict": list(pairs), **rest} if not rest:
            return {str(key): from_data(part) for key, part in pairs}
        case {"value": None | bool() | int() | float() | str() as value, **rest} if not rest:
            return value
    raise FormatError(f"results of a program: {data!r}")
