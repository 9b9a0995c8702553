"""Optimizers on servers: what is sent of one, and the numbers of an update that go with each push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.counting import Counts, Index
from gluongraph.optimizer.registry import name_of

_NO_INDEX = "\0"  # an index that no parameter has: its multipliers are 1
_LEFT_OUT = ("lr_scheduler", "param_dict", "lr_mult", "wd_mult", "_index_update_count")  # workers' own
_Told = dict[str, Any]


def told_of(optimizer: Optimizer) -> _Told:
    """An optimizer as JSON: the name of its class, and its attributes.

    >>> from gluongraph.kvstore.server_optimizer import optimizer_of, told_of
    >>> from gluongraph.optimizer import SGD
    >>> optimizer_of(told_of(SGD(momentum=0.5, learning_rate=0.25))).momentum
    0.5

    Raises:
        MXNetError: its class is not registered, or an attribute is not of numbers, texts and lists of them.
    """
    cls = type(optimizer)
    if optimizer.members != (optimizer,):
        message = f"{cls.__name__} of several optimizers, of which servers take one"
        raise MXNetError(with_user_location(message, help='kvstore="dist_sync", or one optimizer for all parameters'))
    if (name := name_of(cls)) is None:
        message = f"servers know optimizers by their names, and {cls.__name__} is not registered"
        raise MXNetError(with_user_location(message, help="@mx.optimizer.register, above the class"))
    own = {name: value for name, value in vars(optimizer).items() if name not in _LEFT_OUT}
    return {
        "class": name,
        "called": cls.__name__,
        "attributes": {key: _plain(value, cls, key) for key, value in own.items()},
    }


def optimizer_of(told: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `told_of` told of: with the class of that name here, its counts new.

    Raises:
        MXNetError: there is no such class.
    """
    cls = Optimizer.opt_registry.get(told["class"])
    if cls is None:
        message = f"no optimizer {told['called']} is registered on the server"
        help = "a server leaves the script where the kvstore or the Trainer is made: define the class above that"
        raise MXNetError(f"{message}\n  help: {help}")
    made = cls.__new__(cls)
    vars(made).update({name: _value(plain) for name, plain in told["attributes"].items()})
    own: dict[str, Any] = {"lr_scheduler": None, "param_dict": {}, "lr_mult": {}, "wd_mult": {}}
    vars(made).update(own, _index_update_count=Counts(made.begin_num_update))
    return made


def numbers_of(optimizer: Optimizer, keys: Sequence[Index]) -> _Told:
    """What an update of these keys is to read, as it is now: rate, decay and all other settings, the multipliers that
    are not 1. The update has been counted, so that a schedule gives its rate."""
    settings = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(optimizer).items()
        if not name.startswith("_")
        and name not in optimizer.carried
        and (value is None or isinstance(value, (bool, int, float, str, np.generic)))
    }
    settings["lr"] = optimizer.rate(_NO_INDEX)
    settings.pop("lr_scheduler", None)
    multipliers = ((number, *map(float, optimizer.multipliers(key))) for number, key in enumerate(keys))
    return {"settings": settings, "multipliers": [each for each in multipliers if each[1:] != (1.0, 1.0)]}


def use_numbers(optimizer: Optimizer, keys: Sequence[Index], told: Mapping[str, Any]) -> None:
    """Have the next update of these keys read the numbers that `numbers_of` told."""
    for name, value in told["settings"].items():
        if value != getattr(optimizer, name, None):
            setattr(optimizer, name, value)
    given = {keys[number]: (lr, wd) for number, lr, wd in told["multipliers"]}
    for key in keys:
        optimizer.lr_mult[key], optimizer.wd_mult[key] = given.get(key, (1.0, 1.0))


def _plain(value: Any, cls: type, name: str) -> Any:
    """A value as JSON that says what is a list, a tuple or a dictionary."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [_plain(each, cls, name) for each in value]}
    if type(value) is dict:
        return {"dict": [[_plain(each, cls, name) for each in item] for item in value.items()]}
    message = f"{cls.__name__}.{name} is a {type(value).__name__}, which cannot be sent to servers"
    help = "attributes of numbers, texts, lists and dictionaries can; make others in states or where they are read"
    raise MXNetError(with_user_location(message, help=help))


def _value(plain: Any) -> Any:
    """The value that `_plain` made this of."""
    if not isinstance(plain, dict):
        return plain
    ((kind, parts),) = plain.items()
    values = [_value(each) for each in parts] if kind != "dict" else []
    return {_value(k): _value(v) for k, v in parts} if kind == "dict" else tuple(values) if kind == "tuple" else values
