"""LightningCLI: a command line made of the arguments of a module, a data module and the Trainer, by jsonargparse.

`gluongraph fit module.py` is this for a file's classes. See docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, update_wrapper
from types import MethodType
from typing import Any

from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning import argument_parser, checkpoints
from gluongraph.lightning.argument_parser import (
    LightningArgumentParser,
    Namespace,
    class_of,
    instantiate_class,
    with_class_path,
)
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.module import LightningModule
from gluongraph.lightning.save_config import SaveConfigCallback
from gluongraph.lightning.trainer import Trainer
from gluongraph.lightning.utilities.rank_zero import rank_zero_warn
from gluongraph.lightning.utilities.seed import seed_everything

__all__ = ["ArgsType", "LightningArgumentParser", "LightningCLI", "SaveConfigCallback", "instantiate_class"]

ArgsType = Sequence[str] | Mapping[str, Any] | Namespace | None
_SKIPPED = {  # the methods of a Trainer that are subcommands, and their arguments that are no options
    "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"},
    "validate": {"model", "dataloaders", "datamodule"},
    "test": {"model", "dataloaders", "datamodule"},
    "predict": {"model", "dataloaders", "datamodule"},
}


def __getattr__(name: str) -> Any:
    """What needs PyTorch: ReduceLROnPlateau, and the types of arguments that make optimizers and schedulers."""
    if name in ("ReduceLROnPlateau", "OptimizerCallable", "LRSchedulerCallable") and is_torch_loaded():
        return argument_parser.of_torch(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class LightningCLI:
    """A command line for a module: `fit`, `validate`, `test` and `predict`, with options of all that takes part.

    | option | of |
    |---|---|
    | `--trainer.max_epochs 3` | the Trainer |
    | `--model.lr 0.1`, `--data.batch_size 8` | the module, the data module |
    | `--optimizer Adam --optimizer.lr 0.1`, `--lr_scheduler ...` | those of PyTorch, where it is imported |
    | `--config run.yaml`, `--print_config` | all of them in a file |
    | `--seed_everything 7`, `--ckpt_path last` | the seed; a checkpoint |

    The classes may be functions with a return annotation; without one of them, `--model=path.to.Class` names it. Values
    of the module's hyperparameters come from the checkpoint that is given. With `run=False` there are no subcommands,
    and `cli.trainer`, `cli.model`, `cli.datamodule` are made only. `args` are used in place of the command line. A run
    writes config.yaml into its folder. Subclasses may override `add_arguments_to_parser`, `before_fit`, `after_fit`.
    `load_from_checkpoint_support` is accepted and changes nothing: hyperparameters are what `__init__` was given.

    >>> import gluongraph.lightning as L
    >>> from gluongraph.lightning.cli import LightningCLI
    >>> class Module(L.LightningModule):
    ...     def __init__(self, lr: float = 0.1):
    ...         super().__init__()
    ...         self.lr = lr
    >>> cli = LightningCLI(Module, run=False, args=["--model.lr", "0.5", "--seed_everything", "false"])
    >>> cli.model.lr
    0.5
    """

    def __init__(
        self,
        model_class: Callable[..., Any] | None = None,
        datamodule_class: Callable[..., Any] | None = None,
        save_config_callback: Callable[..., Any] | None = SaveConfigCallback,
        save_config_kwargs: Mapping[str, Any] | None = None,
        trainer_class: Callable[..., Any] = Trainer,
        trainer_defaults: Mapping[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: Mapping[str, Any] | None = None,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
        load_from_checkpoint_support: bool = True,
    ):
        self.model_class, self.datamodule_class = model_class, datamodule_class
        self.save_config_callback, self.save_config_kwargs = save_config_callback, dict(save_config_kwargs or {})
        self.trainer_class, self.trainer_defaults = trainer_class, dict(trainer_defaults or {})
        self.seed_everything_default, self.parser_class = seed_everything_default, parser_class
        self.subclass_mode_model = subclass_mode_model or model_class is None
        self.subclass_mode_data = subclass_mode_data or datamodule_class is None
        self.auto_configure_optimizers = auto_configure_optimizers
        self.subcommand: str | None = None
        self._parsers: dict[str, LightningArgumentParser] = {}
        self._options: dict[str, list[str]] = {}
        self.parser = self._make_parser(dict(parser_kwargs or {}), run)
        self.config = self._parse(args)
        self.subcommand = self.config["subcommand"] if run else None
        self._take_hyperparameters(args)
        self._set_seed()
        self.before_instantiate_classes()
        self.instantiate_classes()
        self.after_instantiate_classes()
        if self.subcommand is not None:
            self._run(self.subcommand)

    # -- the parser

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A parser that takes --config."""
        parser = self.parser_class(**kwargs)
        parser.add_argument("-c", "--config", action="config", help="a file with options, YAML or JSON")
        return parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The methods of the Trainer that are subcommands, with the arguments of theirs that are no options."""
        return {name: set(skipped) for name, skipped in _SKIPPED.items()}

    def _make_parser(self, kwargs: dict[str, Any], run: bool) -> LightningArgumentParser:
        own = {name: kwargs.pop(name, {}) for name in self.subcommands()}
        parser = self.init_parser(**kwargs)
        if not run:
            self._add_arguments(parser)
            return parser
        commands = parser.add_subcommands()
        for name, skipped in self.subcommands().items():
            method = getattr(class_of(self.trainer_class), name)
            line = (method.__doc__ or "").strip().split("\n")[0]
            part = self._parsers[name] = self.init_parser(**{"description": line, **own[name]})
            self._add_arguments(part)
            of = class_of(self.trainer_class)
            self._options[name] = part.add_method_arguments(of, name, skip=skipped, fail_untyped=False)
            commands.add_subcommand(name, part, help=line)
        return parser

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Take --seed_everything."""
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="a seed; true for that of PL_GLOBAL_SEED or 0, false for none",
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Take the arguments of the Trainer, the module and the data module."""
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        parser.set_defaults({f"trainer.{k}": v for k, v in self.trainer_defaults.items() if k != "callbacks"})
        parser.add_lightning_class_args(self.model_class or LightningModule, "model", self.subclass_mode_model)
        data = self.datamodule_class
        parser.add_lightning_class_args(
            data or LightningDataModule, "data", self.subclass_mode_data, required=data is not None
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Override it to take more arguments, or to link some."""

    def _add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_default_arguments_to_parser(parser)
        self.add_core_arguments_to_parser(parser)
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers and is_torch_loaded():
            if not parser.optimizers:
                parser.add_optimizer_args()
            if not parser.lr_schedulers:
                parser.add_lr_scheduler_args()
        for key, (kind, to) in {**parser.optimizers, **parser.lr_schedulers}.items():
            if to != "AUTOMATIC":
                parser.link_arguments(key, to, None if isinstance(kind, tuple) else partial(with_class_path, kind))

    def _parse(self, args: ArgsType, defaults: bool = True) -> Namespace:
        """All options, or without `defaults` those that are given."""
        how: dict[str, Any] = {"defaults": defaults}
        if isinstance(args, (Mapping, Namespace)):
            found: Namespace = self.parser.parse_object(dict(args) if isinstance(args, Mapping) else args, **how)
        else:
            found = self.parser.parse_args(None if args is None else list(args), **how)
        return found

    # -- objects

    def _get(self, config: Namespace, key: str, default: Any = None) -> Any:
        """A value that may lie in a subcommand's part."""
        part = config if self.subcommand is None else config[self.subcommand]
        return part.get(key, default)

    def _own_parser(self) -> LightningArgumentParser:
        return self.parser if self.subcommand is None else self._parsers[self.subcommand]

    def _take_hyperparameters(self, args: ArgsType) -> None:
        """Let the module's hyperparameters that are not given be those of the checkpoint that is given by its path."""
        path = None if self.subcommand is None else self._get(self.config, "ckpt_path")
        wanted = self._get(self.config, "model")
        if not isinstance(path, str) or not checkpoints.exists(path) or wanted is None:
            return
        told = checkpoints.told_by(checkpoints.read(path))
        given = self._get(self._parse(args, defaults=False), "model") or {}
        by_name = self.subclass_mode_model  # the class is an option as well
        if by_name:
            if wanted.class_path.rpartition(".")[2] != told["module"].rpartition(".")[2]:
                return
            wanted, given = wanted.get("init_args") or {}, given.get("init_args") or {}
        saved = told["hyper_parameters"]
        if found := {name: value for name, value in saved.items() if name in wanted and name not in given}:
            model = {"class_path": self._get(self.config, "model").class_path, "init_args": found} if by_name else found
            self.config = self.parser.parse_object({self.subcommand: {"model": model}}, self.config)

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if seed is False:
            return
        seed = seed_everything(None if seed is True else seed, workers=True, verbose=seed is not True)
        (self.config if self.subcommand is None else self.config[self.subcommand])["seed_everything"] = seed

    def before_instantiate_classes(self) -> None:
        """Override it to do something before the objects are made."""

    def instantiate_classes(self) -> None:
        """Make the data module, the module and the Trainer."""
        self.config_init = self.parser.instantiate(self.config)
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        self._make_configure_optimizers()
        self.trainer = self.instantiate_trainer()

    def after_instantiate_classes(self) -> None:
        """Override it to do something once the objects are there."""

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """The Trainer of the options; `kwargs` come before them."""
        options = dict(self._get(self.config_init, "trainer", {}).items(), **kwargs)
        callbacks = _listed(options.get("callbacks")) + _listed(self.trainer_defaults.get("callbacks"))
        callbacks += [self._get(self.config_init, key) for key in self._own_parser().callback_keys]
        if self.save_config_callback is not None and not options.get("fast_dev_run"):
            config = self.config if self.subcommand is None else self.config[self.subcommand]
            callbacks.append(self.save_config_callback(self._own_parser(), config, **self.save_config_kwargs))
        return self.trainer_class(**{**options, "callbacks": callbacks})

    @staticmethod
    def configure_optimizers(lightning_module: Any, optimizer: Any, lr_scheduler: Any = None) -> Any:
        """What the module's `configure_optimizers` gives where --optimizer is: override it for more."""
        if lr_scheduler is None:
            return optimizer
        if (monitor := getattr(lr_scheduler, "monitor", None)) is not None:
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lr_scheduler, "monitor": monitor}}
        return [optimizer], [lr_scheduler]

    def _make_configure_optimizers(self) -> None:
        """Let the module's optimizer be the one of --optimizer."""
        parser = self._own_parser()
        optimizers, schedulers = (
            [key for key, (_, to) in found.items() if to == "AUTOMATIC"]
            for found in (parser.optimizers, parser.lr_schedulers)
        )
        if not self.auto_configure_optimizers or not optimizers:
            return
        if len(optimizers) > 1 or len(schedulers) > 1:
            help = "link the others to arguments of the module: add_optimizer_args(..., link_to='model.optimizer')"
            raise misconfigured(f"{', '.join(optimizers + schedulers)}: one optimizer and one scheduler", help=help)
        chosen = self._chosen(parser.optimizers, optimizers[0])
        if chosen is None:
            return
        if type(self.model).configure_optimizers is not LightningModule.configure_optimizers:
            rank_zero_warn(f"--optimizer takes the place of {type(self.model).__name__}.configure_optimizers")
        optimizer = instantiate_class(self.model.parameters(), chosen)
        scheduler = self._chosen(parser.lr_schedulers, schedulers[0]) if schedulers else None
        made = None if scheduler is None else instantiate_class(optimizer, scheduler)
        method = partial(self.configure_optimizers, optimizer=optimizer, lr_scheduler=made)
        update_wrapper(method, self.configure_optimizers)
        self.model.configure_optimizers = MethodType(method, self.model)

    def _chosen(self, registered: Mapping[str, tuple[Any, str]], key: str) -> dict[str, Any] | None:
        """The class and the arguments that were given under a key; None if there are none."""
        given = self._get(self.config_init, key)
        if given is None:
            return None
        kind = registered[key][0]
        told: dict[str, Any] = given.as_dict() if isinstance(given, Namespace) else dict(given)
        return told if isinstance(kind, tuple) else with_class_path(kind, told)

    def _run(self, name: str) -> None:
        """Call the Trainer's method, `before_...` and `after_...` of it around."""
        options = {key: self.config_init[name][key] for key in self._options[name]}
        options["model"] = self.model
        if self.datamodule is not None:
            options["datamodule"] = self.datamodule
        for prefix in ("before_", "", "after_"):
            method = getattr(self, prefix + name, None)
            if prefix == "":
                (method or getattr(self.trainer, name))(**options)
            elif method is not None:
                method()


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) else [value]
