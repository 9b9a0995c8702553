"""States of optimizers of PyTorch's whose formulas are not known here: what `state_dict` gives, as arrays and JSON.

In JSON numbers, texts and lists are themselves; what else there is, is an object with one key that says what it is:

    {"tensor": name}    an array of the group
    {"float": "nan"}    a number that JSON has not
    {"tuple": [...]}, {"dict": [[key, value], ...]}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name
from gluongraph.errors import DTypeError, FormatError, MXNetError, with_user_location
from gluongraph.lightning.errors import misconfigured
from gluongraph.storage import Array

KEY, GROUP = "optimizer_states", "optimizers"  # in JSON, and of arrays


def taken(optimizers: Sequence[Any], arrays: dict[str, Array]) -> list[Any]:
    """The states of optimizers, for JSON; their tensors are added to `arrays`, as copies.

    Raises:
        MXNetError: a state is of a kind that a checkpoint does not hold.
    """
    made = []
    for number, each in enumerate(optimizers):
        told = each.state_dict()
        groups = [{name: value for name, value in group.items() if _is_held(value)} for group in told["param_groups"]]
        try:
            state = _told({**told, "param_groups": groups}, arrays, str(number))
        except (TypeError, DTypeError) as error:
            message = f"the state of {_name(each)} cannot be saved: {error}"
            help = "a checkpoint holds tensors, numbers, texts, None, and lists, tuples and dicts of them"
            raise MXNetError(with_user_location(message, help=help)) from None
        made.append({"optimizer": _name(each), "state": state})
    return made


def check(told: Sequence[Any] | None, optimizers: Sequence[Any], keeps: bool) -> None:
    """Compare what a checkpoint holds with the optimizers; do they keep their states themselves?

    Raises:
        FormatError: it is of other optimizers.
        MisconfigurationException: their states are PyTorch's, and steps are compiled here.
    """
    if told is None and not keeps:
        return
    here = ", ".join(map(_name, optimizers))
    saved = "others" if told is None else ", ".join(each["optimizer"] for each in told)
    if saved != here:
        message = f"the checkpoint is of other optimizers: {saved}; here there are {here}"
        raise FormatError(with_user_location(message, help="give the optimizers that it was saved with"))
    if not keeps:
        message = f"the checkpoint has states that {saved} has in PyTorch, and steps are compiled here"
        raise misconfigured(message, help="L.Trainer(eager=True), or automatic_optimization = False, as it was saved")


def put(optimizers: Sequence[Any], told: Sequence[Any], arrays: Mapping[str, Array]) -> None:
    """Make the states of optimizers those of a checkpoint; options that it does not hold stay as they are."""
    for each, saved in zip(optimizers, told, strict=True):
        state = _built(saved["state"], arrays)
        own = each.state_dict()["param_groups"]
        if len(own) == len(state["param_groups"]):
            state["param_groups"] = [{**mine, **its} for mine, its in zip(own, state["param_groups"], strict=True)]
        each.load_state_dict(state)
        tensors = [p for group in each.param_groups for p in group["params"]]
        for number, told_of in state["state"].items():
            if isinstance(number, int) and number < len(tensors) and tensors[number] in each.state:
                each.state[tensors[number]] = _uncast(each.state[tensors[number]], told_of)


def _uncast(loaded: Any, saved: Any) -> Any:
    """A state as `load_state_dict` has made it, with the dtypes of the saved one: it casts tensors to those of their
    parameters, which loses bits."""
    if isinstance(loaded, dict) and isinstance(saved, dict):
        return {key: _uncast(value, saved[key]) if key in saved else value for key, value in loaded.items()}
    if type(loaded) in (list, tuple) and type(loaded) is type(saved) and len(loaded) == len(saved):
        return type(loaded)(_uncast(a, b) for a, b in zip(loaded, saved, strict=True))
    cast = hasattr(loaded, "dtype") and hasattr(saved, "dtype") and loaded.dtype != saved.dtype
    return saved if cast else loaded


def _name(optimizer: Any) -> str:
    return type(optimizer).__name__


def _is_held(value: Any) -> bool:
    """Can a checkpoint hold it?"""
    try:
        _told(value, {}, "")
    except (TypeError, DTypeError):
        return False
    return True


def _told(value: Any, arrays: dict[str, Array], name: str) -> Any:
    """A value for JSON. Raises TypeError or DTypeError for what is not held."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        pairs = [[_told(k, arrays, name), _told(v, arrays, f"{name}/{k}")] for k, v in value.items()]
        return {"dict": pairs}
    if type(value) in (list, tuple):
        parts = [_told(each, arrays, f"{name}/{i}") for i, each in enumerate(value)]
        return parts if type(value) is list else {"tuple": parts}
    from gluongraph.torch.tensors import is_tensor, to_numpy

    if not is_tensor(value):
        raise TypeError(f"{name} is {type(value).__name__}")
    array = to_numpy(value.cpu())
    dtype_name(array.dtype)
    arrays[name] = np.array(array, copy=True)
    return {"tensor": name}


def _built(told: Any, arrays: Mapping[str, Array]) -> Any:
    """The value of which `_told` gave this."""
    if isinstance(told, list):
        return [_built(each, arrays) for each in told]
    if not isinstance(told, dict):
        return told
    ((kind, held),) = told.items()
    if kind == "tensor":
        from gluongraph.torch.tensors import to_torch

        return to_torch(np.array(arrays[held], copy=True))
    if kind == "dict":
        return {_built(key, arrays): _built(value, arrays) for key, value in held}
    return float(held) if kind == "float" else tuple(_built(held, arrays))
