"""States that loaders give, written as JSON: tuples, bytes, arrays and tensors are marked, and come back as they were.

Reading creates these kinds of objects alone, and executes nothing.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.host.torch_module import is_torch_loaded

_MARK = "$"  # the key that says what a dictionary stands for


def to_json(value: Any, where: str = "the state") -> Any:
    """The value in dictionaries with keys of text, lists, numbers, texts, True, False and None.

    >>> from gluongraph.lightning.data import plain
    >>> plain.to_json({"epoch": 1, "seen": (2, 3)})
    {'epoch': 1, 'seen': {'$': 'tuple', 'of': [2, 3]}}

    Raises:
        TypeError: something else is in it; `where` says whose state it is.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [to_json(each, where) for each in value]
    if type(value) is tuple:
        return {_MARK: "tuple", "of": [to_json(each, where) for each in value]}
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: to_json(each, where) for key, each in value.items()}
        return {_MARK: "dict", "of": [[to_json(k, where), to_json(v, where)] for k, v in value.items()]}
    if isinstance(value, bytes):
        return {_MARK: "bytes", "of": base64.b64encode(value).decode()}
    return _array(value, where)


def _array(value: Any, where: str) -> Any:
    kind = "array"
    if is_torch_loaded() and isinstance(value, sys.modules["torch"].Tensor):
        kind, value = "tensor", value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        array = np.ascontiguousarray(value)
        text = base64.b64encode(array.tobytes()).decode()
        return {_MARK: kind, "dtype": array.dtype.str, "shape": list(np.shape(value)), "of": text}
    help = "give dictionaries, lists, numbers, texts, arrays: float(x), list(x)"
    message = f"{where} holds a {type(value).__name__}, which a checkpoint does not keep"
    raise TypeError(with_user_location(message, help=help))


def from_json(told: Any) -> Any:
    """What `to_json` was given.

    >>> from gluongraph.lightning.data import plain
    >>> plain.from_json(plain.to_json({0: b"x", "seen": (2, 3)}))
    {0: b'x', 'seen': (2, 3)}
    """
    if isinstance(told, list):
        return [from_json(each) for each in told]
    if not isinstance(told, dict):
        return told
    if _MARK not in told:
        return {key: from_json(each) for key, each in told.items()}
    kind, of = told[_MARK], told["of"]
    if kind == "tuple":
        return tuple(from_json(each) for each in of)
    if kind == "dict":
        return {from_json(key): from_json(each) for key, each in of}
    if kind == "bytes":
        return base64.b64decode(of)
    array = np.frombuffer(base64.b64decode(of), np.dtype(told["dtype"])).reshape(told["shape"]).copy()
    if kind == "tensor":
        return sys.modules["torch"].from_numpy(array)
    return array if told["shape"] else array[()]
