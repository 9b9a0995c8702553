"""States of schedulers: what `state_dict` gives, for JSON and the arrays of a checkpoint.

A dict whose keys are no texts is `{"pairs": [[key, value], ...]}`. Of a scheduler of several ones each of these has a
state of its own. What a checkpoint does not hold, functions above all, stays as the script has made it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gluongraph.errors import FormatError, with_user_location
from gluongraph.lightning.batch import as_array
from gluongraph.lightning.hparams import _is_plain

PAIRS = "pairs"


def scheduler_state(scheduler: Any) -> Any:
    """The state of a scheduler, of numbers, texts, lists, dicts with texts as keys, and arrays; None where it tells
    none.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.ones(1)], 0.1)
    >>> scheduler_state(torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]))["milestones"]
    {'pairs': [[2, 1], [4, 1]]}
    """
    if not hasattr(scheduler, "state_dict"):
        return None
    told = {}
    for name, value in scheduler.state_dict().items():
        if (parts := _parts(scheduler, name)) is not None:
            told[name] = [scheduler_state(each) for each in parts]
        elif _is_held(value):
            told[name] = _told(value)
    return told


def load_scheduler(scheduler: Any, told: Any) -> None:
    """Put the state of a scheduler back; what it does not tell stays as it is.

    Raises:
        FormatError: it is of another number of schedulers.
    """
    if told is None or not hasattr(scheduler, "load_state_dict"):
        return
    for name in told:
        if (parts := _parts(scheduler, name)) is not None:
            if len(parts) != len(told[name]):
                message = f"the checkpoint has a scheduler of {len(told[name])} ones; here {type(scheduler).__name__}"
                help = "give the schedulers that it was saved with"
                raise FormatError(with_user_location(f"{message} has {len(parts)}", help=help))
            for part, state in zip(parts, told[name], strict=True):
                load_scheduler(part, state)
    own = scheduler.state_dict()  # with the states of its parts as they are now
    for name, value in told.items():
        if _parts(scheduler, name) is None:
            own[name] = _as(own.get(name), _built(value))
    scheduler.load_state_dict({name: value for name, value in own.items() if not _are_schedulers(value)})


def _parts(scheduler: Any, name: str) -> Any:
    """The schedulers that an attribute is a list of; None if it is anything else."""
    value = getattr(scheduler, name, None)
    return value if _are_schedulers(value) else None


def _are_schedulers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(hasattr(each, "state_dict") for each in value)


def _is_held(value: Any) -> bool:
    """Can a checkpoint hold it?"""
    if isinstance(value, Mapping):
        return all(isinstance(k, (int, str)) and _is_held(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_held, value))
    return _is_plain(value) or as_array(value) is not None


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and value.keys() != {PAIRS}:
            return {key: _told(each) for key, each in value.items()}
        return {PAIRS: [[key, _told(each)] for key, each in value.items()]}
    return [_told(each) for each in value] if isinstance(value, (list, tuple)) else value


def _built(told: Any) -> Any:
    """The value of which `_told` gave this."""
    if isinstance(told, Mapping):
        if told.keys() == {PAIRS}:
            return {key: _built(each) for key, each in told[PAIRS]}
        return {key: _built(each) for key, each in told.items()}
    return [_built(each) for each in told] if isinstance(told, list) else told


def _as(own: Any, value: Any) -> Any:
    """A value of the kind of the scheduler's own one: a Counter stays one."""
    if isinstance(own, dict) and isinstance(value, dict) and type(own) is not dict:
        made = copy.copy(own)
        made.clear()
        made.update(value)
        return made
    return tuple(value) if isinstance(own, tuple) and isinstance(value, list) else value
