"""Checkpoints of a Trainer: folders of safetensors and JSON, written atomically; loading one executes nothing.

A checkpoint has what `TrainStep.save` writes, and under "lightning" what loops, callbacks, schedulers and loaders
go on from. Arrays that users add in on_save_checkpoint are kept in a file of their own.
"""

from __future__ import annotations

import errno
import inspect
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph import checkpoint as state
from gluongraph.checkpoint import collective
from gluongraph.checkpoint import ranks as by_rank
from gluongraph.checkpoint.part import REST, WEIGHTS, misfit
from gluongraph.errors import FormatError, warn, with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning import optimizer_states
from gluongraph.lightning.batch import as_array, to_user
from gluongraph.lightning.engine import unused_gradients
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.hparams import WHOLE, Hyperparameters, _is_plain
from gluongraph.lightning.loggers.hparams import load_hparams_from_yaml
from gluongraph.lightning.metric_objects import metrics_of
from gluongraph.lightning.metric_states import metric_states, put_metric_states
from gluongraph.lightning.scheduler_states import load_scheduler, scheduler_state
from gluongraph.ndarray import NDArray
from gluongraph.runtime import checkpoint as disk
from gluongraph.runtime.checkpoint import Content
from gluongraph.storage import Array
from gluongraph.tracing.ema import AVERAGE

KEY = "lightning"  # of what is the loops', in trainer.json
LEFT_OUT = "hyper_parameters_left_out"  # the names of those that JSON has no form for
USER = "user"  # the group of arrays that users have added
DATA_HYPERPARAMETERS, DATA_NAME = "datamodule_hyper_parameters", "datamodule_hparams_name"  # Lightning's names
ARRAY = "array:"  # what stands for such an array in JSON


# -- paths


def exists(path: Any) -> bool:
    """Is there a checkpoint of that name?"""
    return (Path(path) / disk.MANIFEST).is_file()


def remove(path: Any) -> None:
    """Remove a checkpoint, or a link to one."""
    place = Path(path)
    if place.is_symlink():
        place.unlink()
    elif exists(place):
        gone = place.with_name(f".tmp-{place.name}-gone-{os.getpid()}")
        os.rename(place, gone)  # a part of it is never taken for a checkpoint
        shutil.rmtree(gone)


def newest(paths: Iterable[Any]) -> str | None:
    """The checkpoint that was written last; None if there is none."""
    found = [Path(path) for path in paths if exists(path)]
    return str(max(found, key=lambda p: (p / disk.MANIFEST).stat().st_mtime_ns)) if found else None


def selected(trainer: Any, fn: str, ckpt_path: Any, given: bool) -> str | None:
    """The path of the checkpoint that a call begins with: "best", "last", a path, or None.

    Raises:
        MisconfigurationException: "best" where no callback has saved one.
        FileNotFoundError, FormatError: there is none of that name, or it is a file.
    """
    if ckpt_path is None and fn != "fit" and not given and trainer.checkpoint_callback is not None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if not best or trainer.fast_dev_run:
            return None
        warn(f"`.{fn}(ckpt_path=None)` without a model: the weights of the best checkpoint, {best}, are used")
        return str(best)
    if ckpt_path is None:
        return None
    if ckpt_path == "best":
        return _best(trainer, fn)
    if ckpt_path == "last":
        found = _last(trainer)
        if found is None:
            warn(f'`.{fn}(ckpt_path="last")`: there is no checkpoint yet; it begins anew')
        return found
    if ckpt_path in ("hpc", "registry"):
        raise misconfigured(f"ckpt_path={ckpt_path!r}: there is no such thing here", help='a path, "best" or "last"')
    if not isinstance(ckpt_path, (str, os.PathLike)):
        message = f"`.{fn}(ckpt_path={ckpt_path!r})`: it is the path of a checkpoint"
        raise TypeError(with_user_location(message, help='"run/epoch=2-step=300.ckpt", "best", "last" or None'))
    path = str(os.fspath(ckpt_path))
    _check_folder(path)
    if not exists(path):
        message = with_user_location(f"there is no checkpoint {path}", help=_beside(path))
        raise FileNotFoundError(errno.ENOENT, message, path)
    return path


def _check_folder(path: str) -> None:
    """Raise FormatError for a file, which is what Lightning writes."""
    if os.path.isfile(path):
        message = f"{path} is a file, and a checkpoint is a folder; a file of Lightning's is a pickle, and is not read"
        help = 'its weights alone: model.load_state_dict(torch.load(path, weights_only=True)["state_dict"])'
        raise FormatError(with_user_location(message, help=help))


def _best(trainer: Any, fn: str) -> str:
    if trainer.fast_dev_run:
        raise misconfigured('ckpt_path="best", with fast_dev_run, which saves no checkpoints')
    callbacks = trainer.checkpoint_callbacks
    if not callbacks:
        raise misconfigured(
            f'`.{fn}(ckpt_path="best")` without a ModelCheckpoint', help="callbacks=[ModelCheckpoint()]"
        )
    best = getattr(callbacks[0], "best_model_path", "")
    if not best:
        message = f'`.{fn}(ckpt_path="best")`: {type(callbacks[0]).__name__} has saved none yet'
        raise misconfigured(message, help="call fit before")
    return str(best)


def _last(trainer: Any) -> str | None:
    found: list[Any] = []
    for callback in trainer.checkpoint_callbacks:
        found += list(getattr(callback, "_find_last_checkpoints", lambda _: ())(trainer))
    return newest(found)


def _beside(path: str) -> str:
    folder = Path(path).parent
    names = sorted(each.name for each in folder.iterdir() if exists(each)) if folder.is_dir() else []
    return f"there are {', '.join(names[:5])}" if names else f"no checkpoint lies in {folder}"


# -- saving


def save(trainer: Any, path: Any, weights_only: bool) -> None:
    """Write the state of a Trainer; all ranks call this."""
    engines, step = trainer.engines, trainer.step or _step_to_save(trainer)
    place = Path(os.fspath(path))
    engines.steps.take_over()
    if engines.mode == "eager" and engines.engine is not None:
        engines.engine.push_states()
    step.kept_elsewhere = tuple(
        a for acc in trainer.metric_log.stores["train"].accumulators.values() for a in acc.arrays
    )
    told, arrays = _told(trainer, weights_only)
    own: dict[str, Array] = {}
    if not weights_only and _keeps_states(trainer):
        told[optimizer_states.KEY] = optimizer_states.taken(trainer.optimizers, own)
    content = state.taken(step, {KEY: told}, None)
    more = {name: group for name, group in ((USER, arrays), (optimizer_states.GROUP, own)) if group}
    if engines.mode == "eager" and engines.engine is not None and not weights_only:
        more[REST] = {**content.groups[REST], **engines.engine.unused_gradients()}
    if more:
        content = replace(content, groups={**content.groups, **more})
    communicator = step.trainer.communicator
    if communicator.size == 1:
        disk.write_alone(place, content)
        return
    trainer.ranks.agree(f"save_checkpoint after {trainer.global_step} updates")
    whole = collective.gathered(step, content)
    collective.on_rank_0(communicator, lambda: str(disk.write_alone(place, whole)))


def _keeps_states(trainer: Any) -> bool:
    """Have optimizers of PyTorch's states that the gluon.Trainer does not hold?"""
    engines = trainer.engines
    return engines.mode == "eager" and engines.engine is not None and engines.engine.keeps_states


def _step_to_save(trainer: Any) -> Any:
    """A step that was never called, for a Trainer whose engine has none: its weights and states are what is saved."""
    from gluongraph.step.compile import compile as compile_step

    if trainer.gluon_trainer is None:
        raise misconfigured("save_checkpoint where nothing is trained: there are no optimizers")
    step = compile_step(lambda *arrays: arrays[0], trainer=trainer.gluon_trainer)
    step.net = trainer.engines.steps.block
    step.averages = getattr(trainer.engines.engine, "averages", None)
    return step


def _told(trainer: Any, weights_only: bool) -> tuple[dict[str, Any], dict[str, Array]]:
    """What is saved beside weights and states: JSON, and the arrays that users have added."""
    module, data = trainer.lightning_module, trainer.datamodule
    checkpoint: dict[str, Any] = {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "module": type(module).__qualname__,
        "hparams_name": _name_of_hyperparameters(module),
        "hyper_parameters": {name: value for name, value in module.hparams.items() if _is_plain(value)},
        LEFT_OUT: [name for name, value in module.hparams.items() if not _is_plain(value)],
    }
    if not weights_only:
        checkpoint |= {
            "loops": {
                "counters": trainer.counters.state(),
                "loader": trainer.data.state() if trainer.data else None,
                "at_last_batch": trainer.fit_loop.at_last_batch,
                "ranks": trainer.world_size,
                "window_length": trainer.window_length(max(0, trainer.counters.batch_idx)),
            },
            "callbacks": {c.state_key: told for c in trainer.callbacks if (told := c.state_dict())},
            "lr_schedulers": [scheduler_state(c.scheduler) for c in trainer.lr_scheduler_configs],
            "metrics": {
                "train": trainer.metric_log.stores["train"].state(metrics_of(module)),
                "kept": trainer.metric_log.kept,
                "objects": metric_states(module) if trainer.is_torch else {},
            },
        }
        trainer.hooks.call_callbacks("on_save_checkpoint", checkpoint)
    module.on_save_checkpoint(checkpoint)
    if data is not None:
        checkpoint["datamodule"] = data.state_dict()
        kept = {name: value for name, value in data.hparams.items() if _is_plain(value)}
        if kept:
            checkpoint[DATA_HYPERPARAMETERS], checkpoint[DATA_NAME] = kept, _name_of_hyperparameters(data)
        if hasattr(data, "on_save_checkpoint"):  # Lightning's data modules have state_dict alone
            data.on_save_checkpoint(checkpoint)
    arrays: dict[str, Array] = {}
    return _without_arrays(checkpoint, arrays, ""), arrays


def _name_of_hyperparameters(owner: Any) -> str | None:
    """The argument of __init__ that all hyperparameters of a module or data module are, else "kwargs"."""
    return owner.__dict__.get("_hparams_name", WHOLE) if owner.hparams else None


def _without_arrays(value: Any, arrays: dict[str, Array], name: str) -> Any:
    """A value for JSON, in which names stand for arrays."""
    if isinstance(value, Mapping):
        return {str(key): _without_arrays(each, arrays, f"{name}/{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(each, arrays, f"{name}/{i}") for i, each in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    array = as_array(value)
    if array is None:
        return str(value) if isinstance(value, os.PathLike) else value
    host = array.asnumpy() if isinstance(array, NDArray) else array
    arrays[name] = np.ascontiguousarray(host).copy()
    return ARRAY + name


# -- loading


def read(path: str) -> Content:
    """A checkpoint.

    Raises:
        FileNotFoundError, FormatError: there is none, it is damaged, or `Trainer.save_checkpoint` has not written it.
    """
    _check_folder(path)
    content = disk.load(Path(path))
    if KEY not in content.about.get("extra", {}):
        message = f"{path} is no checkpoint of a Trainer: it has no state of its loops"
        raise FormatError(with_user_location(message, help="step.load(dir) reads those that step.save has written"))
    return content


def of_rank(content: Content, ranks: Any) -> Content:
    """What this rank goes on from: of as many ranks as have saved what each had, its logged values and generators too.

    Raises:
        FormatError: it does not fit together.
    """
    try:
        return by_rank.of_rank(content, ranks.rank, ranks.size)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise misfit(f"the checkpoint is not as save_checkpoint writes it: {error!r}") from None


def told_by(content: Content, torch: bool = False) -> dict[str, Any]:
    """What a checkpoint holds beside weights and states, with the arrays that users have added."""
    arrays = content.groups.get(USER, {})

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: whole(each) for key, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        if isinstance(value, str) and value.startswith(ARRAY) and value.removeprefix(ARRAY) in arrays:
            return to_user(NDArray(arrays[value.removeprefix(ARRAY)].copy()), torch)
        return value

    return whole(content.about["extra"][KEY])  # type: ignore[no-any-return]


def begin_loading(trainer: Any, content: Content) -> None:
    """Before optimizers are configured: the module's hook and its weights, then data module and callbacks.

    Raises:
        MisconfigurationException: for a fit, the checkpoint has weights only.
    """
    checkpoint = told_by(content, trainer.is_torch)
    fits = trainer.state.fn == "fit"
    if fits and "loops" not in checkpoint:
        message = "the checkpoint has weights only, and no state that a fit could go on from"
        raise misconfigured(message, help="load_from_checkpoint takes the weights")
    trainer.lightning_module.on_load_checkpoint(checkpoint)
    weights = content.groups[WEIGHTS] if fits else weights_to_use(content)
    put_weights(trainer.engines.steps.block, weights, trainer.lightning_module.strict_loading)
    if trainer.datamodule is not None:
        if hasattr(trainer.datamodule, "on_load_checkpoint"):
            trainer.datamodule.on_load_checkpoint(checkpoint)
        trainer.datamodule.load_state_dict(checkpoint.get("datamodule", {}))
    if fits:
        _warn_of_missing_callbacks(trainer, checkpoint["callbacks"])
    trainer.hooks.call_callbacks("on_load_checkpoint", checkpoint)
    states = checkpoint.get("callbacks", {})  # none of weights alone
    saving = trainer.checkpoint_callbacks  # which save nothing in an evaluation, and know of their own checkpoints
    for callback in trainer.callbacks:
        if callback.state_key in states and (fits or callback not in saving):
            callback.load_state_dict(states[callback.state_key])


def _warn_of_missing_callbacks(trainer: Any, states: Mapping[str, Any]) -> None:
    """Warn of states in a checkpoint that belong to no callback of the Trainer."""
    here = {callback.state_key for callback in trainer.callbacks}
    if missing := [key for key in states if key not in here]:
        warn(
            f"the checkpoint has states of callbacks that this Trainer has not: {', '.join(missing)}. They are lost;"
            " Trainer(callbacks=[...]) with the same callbacks and arguments goes on with them"
        )


def load_training(trainer: Any, content: Content) -> None:
    """Go on from a checkpoint, this rank's: states, counters, schedulers, loaders, logged values."""
    checkpoint = told_by(content, trainer.is_torch)
    engines, step = trainer.engines, trainer.step or _step_to_save(trainer)
    own = checkpoint.get(optimizer_states.KEY)
    optimizer_states.check(own, trainer.optimizers, _keeps_states(trainer))
    loops, eager = checkpoint["loops"], engines.mode == "eager"
    length = loops.get("window_length", trainer.accumulate_grad_batches)
    content = unused_gradients.for_ranks(content, loops.get("ranks", trainer.world_size), trainer.world_size)
    content = unused_gradients.for_mode(content, eager, trainer.is_torch, loops["counters"]["window"], length)
    state.put_all(*state.ready(step, content))
    if eager:
        engines.engine.pull_states()
        engines.engine.put_gradients(content.groups[REST])
    if own is not None:
        optimizer_states.put(trainer.optimizers, own, content.groups.get(optimizer_states.GROUP, {}))
    trainer.counters.load(checkpoint["loops"]["counters"])
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch > trainer.max_epochs:
        message = f"the checkpoint is of epoch {trainer.current_epoch}, and max_epochs={trainer.max_epochs}"
        raise misconfigured(message, help="max_epochs counts from the beginning of the training")
    trainer.data.load(checkpoint["loops"]["loader"])
    for config, told in zip(trainer.lr_scheduler_configs, checkpoint["lr_schedulers"], strict=False):
        load_scheduler(config.scheduler, told)
    ended = checkpoint["loops"]["counters"]["due"] == "epoch_end"  # whose values are no part of the next epoch
    trainer.fit_loop.plateau_due = ended and checkpoint["loops"].get("at_last_batch", False)
    module = trainer.lightning_module
    trainer.metric_log.stores["train"].load([] if ended else checkpoint["metrics"]["train"], metrics_of(module))
    put_metric_states(module, {} if ended else checkpoint["metrics"].get("objects", {}), trainer.global_rank)
    trainer.metric_log.kept = checkpoint["metrics"]["kept"]


def weights_to_use(content: Content) -> dict[str, Array]:
    """The weights of a checkpoint for all but going on with the training: averages, where it keeps them, since metrics
    are those of averages, and they are the weights when the training ends."""
    weights, rest = dict(content.groups[WEIGHTS]), content.groups[REST]
    for name, array in rest.items():
        key = name.removeprefix(AVERAGE)
        if name.startswith(AVERAGE) and key in weights:
            weights[key] = array.astype(weights[key].dtype)
    return weights


def put_weights(block: Any, saved: Mapping[str, Array], strict: bool) -> None:
    """Write weights of a checkpoint into the parameters of a block.

    Raises:
        FormatError: with `strict`, names are missing, or there are others; or a shape is another one. Nothing has been
            changed then.
    """
    own = block._collect_params_with_prefix()
    missing, others = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if strict and (missing or others):
        found = [
            f"{what} {', '.join(names[:5])}" for what, names in (("missing:", missing), ("unknown:", others)) if names
        ]
        help = "strict=False takes what is there"
        raise FormatError(
            with_user_location(f"the weights of the checkpoint are others: {'; '.join(found)}", help=help)
        )
    for name in own.keys() & saved.keys():
        shape = own[name].shape
        if shape is not None and all(n > 0 for n in shape) and tuple(shape) != saved[name].shape:
            message = f"{name} has shape {saved[name].shape} in the checkpoint, and {tuple(shape)} in the module"
            raise FormatError(with_user_location(message, help="make the module as the saved one was"))
    for name in own.keys() & saved.keys():
        if not own[name].ready:
            own[name].shape = saved[name].shape
        own[name].set_data(saved[name])
        own[name].finish_deferred_init()


def module_from_checkpoint(cls: Any, path: Any, file: Any, strict: bool, kwargs: Mapping[str, Any]) -> Any:
    """See `LightningModule.load_from_checkpoint`."""
    import_whole("gluongraph.lightning.engine.engines")
    from gluongraph.lightning.engine.engines import steps_of

    import_whole("gluongraph.lightning.module")
    from gluongraph.lightning.module import _is_torch

    content = read(os.fspath(path))
    told = told_by(content)
    saved = told["hyper_parameters"] if file is None else load_hparams_from_yaml(file)
    module = _made(cls, saved, told.get("hparams_name"), kwargs)
    _warn_of_defaults(cls, [name for name in told.get(LEFT_OUT, ()) if name not in {**saved, **kwargs}])
    module.on_load_checkpoint(told)
    module.configure_model()
    put_weights(steps_of(module, _is_torch(module)).block, weights_to_use(content), strict)
    module.__dict__["_hparams"] = Hyperparameters({**saved, **module.hparams})
    return module


def _warn_of_defaults(cls: Any, names: list[str]) -> None:
    """Warn of hyperparameters that a checkpoint does not hold and that have their defaults now."""
    takes = inspect.signature(cls.__init__).parameters
    if missing := [name for name in names if name in takes]:
        warn(
            f"the checkpoint does not hold {', '.join(missing)}, which JSON has no form for; {cls.__name__} has its"
            f" defaults: load_from_checkpoint(path, {missing[0]}=...) gives another"
        )


def data_module_from_checkpoint(cls: Any, path: Any, file: Any, kwargs: Mapping[str, Any]) -> Any:
    """See `LightningDataModule.load_from_checkpoint`."""
    told = told_by(read(os.fspath(path)))
    saved = told.get(DATA_HYPERPARAMETERS, {}) if file is None else load_hparams_from_yaml(file)
    data = _made(cls, saved, told.get(DATA_NAME), kwargs)
    data.load_state_dict(told.get("datamodule", {}))
    return data


def _made(cls: Any, saved: Mapping[str, Any], name: str | None, kwargs: Mapping[str, Any]) -> Any:
    """An object of the class, made with `kwargs` and the saved hyperparameters that its __init__ takes, or with all of
    them as the argument of this name.

    Raises:
        TypeError: `__init__` needs others.
    """
    takes = inspect.signature(cls.__init__).parameters.values()
    names = {p.name for p in takes if p.kind is not p.VAR_KEYWORD}
    if name in names and name not in kwargs:
        own = {key: value for key, value in kwargs.items() if key in names}
        found = {**own, name: Hyperparameters({**saved, **kwargs})}
    else:
        found = {**saved, **kwargs}
    if not any(p.kind is p.VAR_KEYWORD for p in takes):
        found = {key: value for key, value in found.items() if key in names or key in kwargs}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in list(takes)[1:] if p.kind in named and p.default is p.empty and p.name not in found]
    if needed:
        message = f"{cls.__name__}.__init__ needs {', '.join(needed)}, which the checkpoint does not hold"
        help = f"load_from_checkpoint(path, {needed[0]}=...): save_hyperparameters keeps what JSON holds"
        raise TypeError(with_user_location(message, help=help))
    return cls(**found)
