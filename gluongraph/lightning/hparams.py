"""Hyperparameters of modules and data modules: what `save_hyperparameters` keeps of the arguments of __init__."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

import numpy as np

from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.read_attributes import noted

WHOLE = "kwargs"  # what __init__ takes the hyperparameters as, unless all of them are one of its arguments


class Hyperparameters(dict[str, Any]):
    """A dict whose values are attributes, too.

    >>> Hyperparameters(lr=0.1).lr
    0.1
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no hyperparameter {name!r}; there are {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class HyperparametersMixin:
    """`save_hyperparameters` and `hparams`."""

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: str | Iterable[str] | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of `__init__`, from where it is called, in `hparams`, checkpoints and loggers.

        `args` are the names of those to keep, or a dict or namespace of all; by default all but those in `ignore`.
        """
        here = inspect.currentframe()
        found = _arguments(frame or (here and here.f_back), type(self))
        name = WHOLE
        if len(args) == 1 and not isinstance(args[0], str) and (given := _as_dict(args[0])) is not None:
            name = next((each for each, value in found.items() if value is args[0]), WHOLE)
            found = given
        elif args:
            found = {each: found[each] for each in args}
        left_out = {ignore} if isinstance(ignore, str) else set(ignore or ())
        found = {name: value for name, value in found.items() if name not in left_out}
        self.__dict__["_log_hyperparams"], self.__dict__["_hparams_name"] = logger, name
        for name in left_out:
            self.hparams.pop(name, None)  # a base class may have kept it
        self.hparams.update(found)
        self.__dict__["_hparams_initial"] = copy.deepcopy({k: v for k, v in found.items() if _is_plain(v)})

    @noted
    def hparams(self) -> Hyperparameters:
        """What `save_hyperparameters` has kept; may be changed."""
        if "_hparams" not in self.__dict__:
            self.__dict__["_hparams"] = Hyperparameters()
        return self.__dict__["_hparams"]  # type: ignore[no-any-return]

    @property
    def hparams_initial(self) -> Hyperparameters:
        """The hyperparameters as they were kept first."""
        return Hyperparameters(copy.deepcopy(self.__dict__.get("_hparams_initial", {})))


def check_agreement(data: Any, module: Any) -> None:
    """Raise MisconfigurationException where a data module and a module log different values of one hyperparameter."""
    for name in sorted(data.hparams.keys() & module.hparams.keys()):
        ours, theirs = module.hparams[name], data.hparams[name]
        if _differ(ours, theirs):
            message = (
                f"the hyperparameter {name!r} is {ours!r} in {type(module).__name__} and {theirs!r} in"
                f" {type(data).__name__}, and loggers get one of that name"
            )
            raise misconfigured(message, help=f"self.save_hyperparameters(ignore={name!r}), or logger=False, in one")


def _differ(left: Any, right: Any) -> bool:
    if left is right:
        return False
    try:
        return type(left) is not type(right) or bool(left != right)
    except (TypeError, ValueError, RuntimeError):  # of arrays
        return True


def _as_dict(value: Any) -> dict[str, Any] | None:
    """A dict or namespace as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    return dict(vars(value)) if hasattr(value, "__dict__") else None


def _arguments(frame: FrameType | None, cls: type) -> dict[str, Any]:
    """The arguments of the __init__ that this frame is in, and of those of subclasses that have called it."""
    found: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        info = inspect.getargvalues(frame)
        if not info.args or not isinstance(info.locals[info.args[0]], cls):
            break
        own = {name: info.locals[name] for name in info.args[1:]}
        own.update(info.locals[info.keywords] if info.keywords else {})
        found = {**found, **own}
        frame = frame.f_back
    return found


def _is_plain(value: Any) -> bool:
    """Is it a value that JSON holds, as are the numbers of numpy's scalars and the texts of paths?"""
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, np.generic, os.PathLike))
