"""A parser, jsonargparse's, that takes the arguments of what takes part in a training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.module import LightningModule
from gluongraph.lightning.trainer import Trainer

try:
    from jsonargparse import ArgumentParser
    from jsonargparse import Namespace as Namespace
    from jsonargparse.typing import class_from_function
except ImportError as error:
    raise ModuleNotFoundError(
        with_user_location(
            "LightningCLI needs jsonargparse, which is not installed", help="pip install 'gluongraph[lightning]'"
        ),
        name="jsonargparse",
    ) from error


class LightningArgumentParser(ArgumentParser):
    """jsonargparse's parser, which takes the arguments of modules, data modules, callbacks, optimizers and schedulers.

    >>> import gluongraph.lightning as L
    >>> from gluongraph.lightning.cli import LightningArgumentParser
    >>> parser = LightningArgumentParser()
    >>> _ = parser.add_lightning_class_args(L.callbacks.EarlyStopping, "stopping")
    >>> parser.parse_args(["--stopping.monitor", "loss"]).stopping.monitor
    'loss'
    """

    def __init__(
        self,
        *args: Any,
        description: str = "Trains a LightningModule.",
        env_prefix: str = "PL",
        default_env: bool = False,
        **kwargs: Any,
    ):
        how = {"description": description, "env_prefix": env_prefix, "default_env": default_env, "allow_abbrev": False}
        super().__init__(*args, **{**how, **kwargs})
        self.callback_keys: list[str] = []
        self.optimizers: dict[str, tuple[Any, str]] = {}  # key -> classes, and where the arguments go
        self.lr_schedulers: dict[str, tuple[Any, str]] = {}

    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, subclass_mode: bool = False, required: bool = True
    ) -> list[str]:
        """Take the arguments of a class, or of a function that makes an object of one, under a key; gives their names.

        With `subclass_mode` the class itself is an argument: `--model=MyModule --model.lr=0.1`.

        Raises:
            MisconfigurationException: it makes no Trainer, module, data module or callback.
        """
        made = lightning_class
        if callable(made):
            made = class_of(made)
        kinds = (Trainer, LightningModule, LightningDataModule, Callback)
        if not isinstance(made, type) or not issubclass(made, kinds):
            help = "give a class, or a function whose return annotation is one"
            known = ", ".join(kind.__name__ for kind in kinds)
            raise misconfigured(f"{lightning_class!r} makes none of {known}", help=help)
        if issubclass(made, Callback):
            self.callback_keys.append(nested_key)
        if subclass_mode:
            names: list[str] = self.add_subclass_arguments(made, nested_key, fail_untyped=False, required=required)
            return names
        how: dict[str, Any] = {"instantiate": not issubclass(made, Trainer), "sub_configs": True}
        names = self.add_class_arguments(made, nested_key, fail_untyped=False, **how)
        return names

    def add_optimizer_args(
        self, optimizer_class: Any = None, nested_key: str = "optimizer", link_to: str = "AUTOMATIC"
    ) -> None:
        """Take the arguments of an optimizer of torch.optim, of one class or of those in a tuple (None: of all).

        `link_to` names an argument that gets them; AUTOMATIC makes the module's `configure_optimizers` of them.
        """
        self._add_class_of_torch(optimizer_class or (_torch().optim.Optimizer,), nested_key, {"params"})
        self.optimizers[nested_key] = optimizer_class or (_torch().optim.Optimizer,), link_to

    def add_lr_scheduler_args(
        self, lr_scheduler_class: Any = None, nested_key: str = "lr_scheduler", link_to: str = "AUTOMATIC"
    ) -> None:
        """Take the arguments of a scheduler of torch.optim.lr_scheduler, as `add_optimizer_args` of an optimizer."""
        self._add_class_of_torch(lr_scheduler_class or schedulers(), nested_key, {"optimizer"})
        self.lr_schedulers[nested_key] = lr_scheduler_class or schedulers(), link_to

    def _add_class_of_torch(self, kind: Any, key: str, skip: set[str]) -> None:
        how: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": skip}
        if isinstance(kind, tuple):
            self.add_subclass_arguments(kind, key, **how)
        else:
            self.add_class_arguments(kind, key, sub_configs=True, **how)


def instantiate_class(args: Any, init: Mapping[str, Any]) -> Any:
    """The object of {"class_path": "module.Class", "init_args": {...}}, with `args` as its first arguments.

    >>> from gluongraph.lightning.argument_parser import instantiate_class
    >>> instantiate_class((1, 2), {"class_path": "builtins.complex"})
    (1+2j)
    """
    module, _, name = init["class_path"].rpartition(".")
    made = getattr(__import__(module, fromlist=[name]), name)
    return made(*(args if isinstance(args, tuple) else (args,)), **(init.get("init_args") or {}))


def with_class_path(kind: type, arguments: Any = None) -> dict[str, Any]:
    """The arguments of a class, as `instantiate_class` takes them."""
    told = arguments.as_dict() if isinstance(arguments, Namespace) else arguments
    return {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": told or {}}


def class_of(given: Any) -> Any:
    """The class, or one whose arguments are those of a function that makes an object of its return annotation.

    Raises:
        MisconfigurationException: the function does not say what it makes.
    """
    if isinstance(given, type):
        return given
    try:
        return class_from_function(given)
    except ValueError:
        name = getattr(given, "__name__", repr(given))
        help = f"def {name}(...) -> Module"
        raise misconfigured(f"{name} is a function that does not say what it makes", help=help) from None


def _torch() -> Any:
    return sys.modules["torch"]


def schedulers() -> tuple[Any, ...]:
    """The schedulers that --lr_scheduler takes."""
    return _torch().optim.lr_scheduler.LRScheduler, reduce_on_plateau()


@cache
def reduce_on_plateau() -> Any:
    """PyTorch's ReduceLROnPlateau with the name of what it looks at, `monitor`, among its arguments."""
    base: Any = _torch().optim.lr_scheduler.ReduceLROnPlateau

    class ReduceLROnPlateau(base):  # type: ignore[misc]
        """Lowers the learning rate when `monitor` has stopped getting better."""

        def __init__(self, optimizer: Any, monitor: str, *args: Any, **kwargs: Any):
            super().__init__(optimizer, *args, **kwargs)
            self.monitor = monitor

    ReduceLROnPlateau.__module__, ReduceLROnPlateau.__qualname__ = "gluongraph.lightning.cli", "ReduceLROnPlateau"
    return ReduceLROnPlateau


def of_torch(name: str) -> Any:
    """ReduceLROnPlateau; or the type of a module's argument from which jsonargparse makes a function: OptimizerCallable
    makes an optimizer of parameters, LRSchedulerCallable a scheduler of an optimizer."""
    optimizer = _torch().optim.Optimizer
    if name == "OptimizerCallable":
        return Callable[[Iterable[Any]], optimizer]
    if name == "LRSchedulerCallable":
        return Callable[[optimizer], _torch().optim.lr_scheduler.LRScheduler | reduce_on_plateau()]
    return reduce_on_plateau()
