"""Saves checkpoints: the best by a metric, the last, every so many epochs, steps or minutes."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import re
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gluongraph.errors import warn
from gluongraph.lightning import checkpoints
from gluongraph.lightning.callbacks.checkpoint import Checkpoint
from gluongraph.lightning.callbacks.checkpoint_names import filled
from gluongraph.lightning.callbacks.looking import Pace, until_multiple
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.loggers.hparams import dumped
from gluongraph.lightning.utilities.rank_zero import rank_zero_info, rank_zero_warn

log = logging.getLogger(__name__)

Score = np.float64 | None
# What a checkpoint that is being written is to hold already, and what is as before where it could not be written.
_RANKING = (
    *("current_score", "best_k_models", "kth_best_model_path", "kth_value", "best_model_score", "best_model_path"),
    *("last_model_path", "_last_global_step_saved", "_last_checkpoint_saved"),
)


class ModelCheckpoint(Checkpoint):
    """Save checkpoints into `dirpath`, by default the folder "checkpoints" in that of the first logger.

    One is saved after each epoch of training or its validation; or every `every_n_train_steps` updates, every
    `every_n_epochs` epochs or each `train_time_interval`, of which one may be given. The best `save_top_k` by `monitor`
    stay (-1: all; 0: none), the least with mode "min"; without a `monitor`, the newest. `save_last` keeps "last.ckpt"
    besides: a copy, or with "link" a link. `save_on_exception` saves when the training ends by an exception.

    `filename` is as "{epoch}-{val_loss:.2f}", which becomes "epoch=0-val_loss=0.32.ckpt", or without
    `auto_insert_metric_name` "0-0.32.ckpt"; its default is "{epoch}-{step}". Where that is there already, a version is
    added, "-v1", unless `enable_version_counter` is false. `save_weights_only`: without the state of the optimizer.
    `save_on_train_epoch_end`: after epochs, or after validations; by default after epochs where there is one validation
    in each.

    A checkpoint is a folder that exists only when it is whole. Where it cannot be written, `best_model_path` and all
    else are as before, and nothing has been removed for it.

    >>> checkpoint = ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val_loss:.2f}", save_top_k=2)
    >>> checkpoint.format_checkpoint_name({"epoch": 0, "val_loss": 0.321})
    'epoch=0-val_loss=0.32.ckpt'
    >>> import gluongraph.lightning as L
    >>> ModelCheckpoint(monitor="val_loss", mode="least")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    MisconfigurationException: ModelCheckpoint(mode='least')

    Raises:
        MisconfigurationException: arguments that contradict each other; later, no such metric as `monitor`.
        OSError: later, a checkpoint cannot be written.
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ):
        self.monitor, self.mode, self.verbose = monitor, mode, verbose
        self.save_last, self.save_top_k, self.save_on_exception = save_last, save_top_k, save_on_exception
        self.save_weights_only, self.auto_insert_metric_name = save_weights_only, auto_insert_metric_name
        self.dirpath = os.path.realpath(os.path.expanduser(dirpath)) if dirpath else None
        self.filename = filename
        none = every_n_train_steps is None and every_n_epochs is None and train_time_interval is None
        self._every_n_epochs = 1 if none else every_n_epochs or 0
        self._every_n_train_steps = every_n_train_steps or 0
        self._train_time_interval = train_time_interval
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self._enable_version_counter = enable_version_counter
        self._check()
        self.current_score: Score = None
        self.best_k_models: dict[str, np.float64] = {}
        self.kth_best_model_path = self.best_model_path = self.last_model_path = ""
        self.kth_value = np.float64(math.inf if mode == "min" else -math.inf)
        self.best_model_score: Score = None
        self._last_global_step_saved = 0  # where no step has been done there is nothing to save
        self._last_checkpoint_saved = ""
        self._last_time_checked: float | None = None
        self._deferred = False  # has a save been put off until the next validation?
        self._warned = False  # of a metric that is not there
        self._validated = False  # has there been a validation in this training?
        self._pace = Pace()

    def _check(self) -> None:
        if self.mode not in ("min", "max"):
            raise misconfigured(f"ModelCheckpoint(mode={self.mode!r})", help="mode is 'min' or 'max'")
        if self.save_top_k < -1:
            raise misconfigured(f"ModelCheckpoint(save_top_k={self.save_top_k})", help="-1: all, 0: none, or a number")
        for name in ("every_n_train_steps", "every_n_epochs"):
            if getattr(self, f"_{name}") < 0:
                raise misconfigured(f"ModelCheckpoint({name}={getattr(self, f'_{name}')})", help="0 is never")
        given = [name for name in ("every_n_train_steps", "every_n_epochs") if getattr(self, f"_{name}") >= 1]
        given += ["train_time_interval"] * (self._train_time_interval is not None)
        if len(given) > 1:
            message = f"ModelCheckpoint: {' and '.join(given)} cannot both be given"
            raise misconfigured(message, help="one ModelCheckpoint for each")
        if self.monitor is None and self.save_top_k not in (-1, 0, 1):
            message = f"ModelCheckpoint(save_top_k={self.save_top_k}) without a monitor: which are the best?"
            raise misconfigured(message, help="monitor='val_loss', or save_top_k=-1, 0 or 1")

    # -- what it is, and what it keeps

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint: class, metric, mode and intervals."""
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self._every_n_train_steps,
            every_n_epochs=self._every_n_epochs,
            train_time_interval=self._train_time_interval,
        )

    @property
    def every_n_epochs(self) -> int:
        """After how many epochs it saves; 0 is never.

        >>> ModelCheckpoint().every_n_epochs, ModelCheckpoint(every_n_train_steps=10).every_n_epochs
        (1, 0)
        """
        return self._every_n_epochs

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints that it has kept and their scores."""
        return {
            "monitor": self.monitor,
            "best_model_score": _plain(self.best_model_score),
            "best_model_path": self.best_model_path,
            "current_score": _plain(self.current_score),
            "dirpath": self.dirpath,
            "best_k_models": {path: float(score) for path, score in self.best_k_models.items()},
            "kth_best_model_path": self.kth_best_model_path,
            "kth_value": float(self.kth_value),
            "last_model_path": self.last_model_path,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` has given; only from `best_model_path` where `dirpath` is another one."""
        before = state_dict.get("dirpath", self.dirpath)
        if before == self.dirpath:
            self.best_model_score = _score(state_dict["best_model_score"])
            self.kth_best_model_path = state_dict.get("kth_best_model_path", self.kth_best_model_path)
            self.kth_value = np.float64(state_dict.get("kth_value", self.kth_value))
            kept = state_dict.get("best_k_models", self.best_k_models)
            self.best_k_models = {path: np.float64(score) for path, score in kept.items()}
            self.last_model_path = state_dict.get("last_model_path", self.last_model_path)
        else:
            warn(
                f"ModelCheckpoint: dirpath was {before!r} and is {self.dirpath!r} now. Of the checkpoints from before,"
                " only best_model_path is known."
            )
        self.best_model_path = state_dict["best_model_path"]

    def idle_batches(self, trainer: Any) -> float:
        """All where it saves after epochs; else those until the next step or time at which it saves."""
        if not trainer.lightning_module.automatic_optimization:  # a batch may be several steps
            return 0.0 if self._every_n_train_steps or self._train_time_interval is not None else math.inf
        if self._train_time_interval is not None:
            if trainer.world_size > 1 or self._last_time_checked is None:  # all ranks decide together
                return 0.0
            now = time.monotonic()
            left = self._last_time_checked + self._train_time_interval.total_seconds() - now
            return self._pace.until(now + left / 2, trainer.counters.batches_seen)
        return until_multiple(trainer.global_step, self._every_n_train_steps)

    # -- when it saves

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Decide where checkpoints go."""
        self.dirpath = trainer.broadcast(self._folder(trainer))
        folder = Path(self.dirpath or "")
        if trainer.is_global_zero and stage == "fit" and self.save_top_k != 0 and folder.is_dir():
            with contextlib.suppress(OSError, StopIteration):
                next(folder.iterdir())
                rank_zero_warn(f"The folder of checkpoints {self.dirpath} is not empty.")

    def _folder(self, trainer: Any) -> str:
        if self.dirpath is not None:
            return self.dirpath
        if not trainer.loggers:
            return os.path.join(trainer.default_root_dir, "checkpoints")
        logger = trainer.loggers[0]
        save_dir = trainer.default_root_dir if logger.save_dir is None else logger.save_dir
        version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
        return os.path.join(save_dir, str(logger.name), version, "checkpoints")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count time."""
        self._last_time_checked = time.monotonic()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save where the number of steps or the time says so."""
        by_step = self._every_n_train_steps >= 1 and trainer.global_step % self._every_n_train_steps == 0
        if not (by_step or self._time_has_come(trainer)) or self._should_skip_saving_checkpoint(trainer):
            return
        candidates = self._monitor_candidates(trainer)
        if self.monitor is not None and (self.monitor not in candidates or self._validation_follows(trainer)):
            self._deferred = True  # the metric comes from the validation, or it does so again in a moment
        else:
            self._save_topk_checkpoint(trainer, candidates)
            self._save_last_checkpoint(trainer, candidates)

    def _time_has_come(self, trainer: Any) -> bool:
        if self._train_time_interval is None:
            return False
        now, last = time.monotonic(), self._last_time_checked
        come = last is not None and now - last >= self._train_time_interval.total_seconds()
        if trainer.world_size > 1:
            come = trainer.broadcast(str(int(come))) == "1"
        if come:
            self._last_time_checked = now
        return come

    def _validation_follows(self, trainer: Any) -> bool:
        """Is this the last batch of an epoch, whose validation gives the metric anew before the checkpoint is due?"""
        if self._should_save_on_train_epoch_end(trainer) or not trainer.is_last_batch:
            return False
        every = trainer.check_val_every_n_epoch
        return _total(trainer.num_val_batches) > 0 and (every is None or (trainer.current_epoch + 1) % every == 0)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save, where that is done after epochs."""
        if not self._should_skip_saving_checkpoint(trainer) and self._should_save_on_train_epoch_end(trainer):
            self._save_of_epoch(trainer, self._monitor_candidates(trainer))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save, where that is done after validations, or was put off until this one."""
        if not trainer.sanity_checking:
            self._validated = True
        if self._should_skip_saving_checkpoint(trainer) or self._should_save_on_train_epoch_end(trainer):
            return
        candidates = self._monitor_candidates(trainer)
        if self._deferred:
            self._save_topk_checkpoint(trainer, candidates)
            self._save_last_checkpoint(trainer, candidates)
            self._deferred = False
        else:
            self._save_of_epoch(trainer, candidates)

    def _save_of_epoch(self, trainer: Any, candidates: dict[str, Any]) -> None:
        if self._every_n_epochs >= 1 and (trainer.current_epoch + 1) % self._every_n_epochs == 0:
            self._save_topk_checkpoint(trainer, candidates)
        linked = self.save_last == "link" and self._last_checkpoint_saved
        if self._last_global_step_saved == trainer.global_step or linked:
            self._save_last_checkpoint(trainer, candidates)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last checkpoint where none has been saved in the training."""
        if self.save_last and not self._last_checkpoint_saved:
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save, where that was asked for."""
        tried = bool(trainer.fast_dev_run) or trainer.sanity_checking
        if not self.save_on_exception or tried or self._last_global_step_saved == trainer.global_step:
            return
        candidates = self._monitor_candidates(trainer)
        path = self.format_checkpoint_name(candidates)
        self._save_checkpoint(trainer, path)
        self._save_last_checkpoint(trainer, candidates)
        rank_zero_info(f"A checkpoint was saved to {path} after {type(exception).__name__}: {exception}")

    def to_yaml(self, filepath: Any = None) -> None:
        """Write the paths of the best checkpoints and their scores, by default to `best_k_models.yaml` beside them.

        Raises:
            MisconfigurationException: no path is given, and no checkpoint has been written.
        """
        if filepath is None and not self.dirpath:
            raise misconfigured("to_yaml() before a fit: there is no folder of checkpoints", help="to_yaml(path)")
        path = os.path.join(str(self.dirpath), "best_k_models.yaml") if filepath is None else os.fspath(filepath)
        with open(path, "w", encoding="utf-8") as file:
            file.write(dumped({name: float(score) for name, score in self.best_k_models.items()}))

    def _should_skip_saving_checkpoint(self, trainer: Any) -> bool:
        tried = bool(trainer.fast_dev_run) or trainer.state.fn != "fit" or trainer.sanity_checking
        return tried or self._last_global_step_saved == trainer.global_step

    def _should_save_on_train_epoch_end(self, trainer: Any) -> bool:
        if self._save_on_train_epoch_end is not None:
            return self._save_on_train_epoch_end
        if trainer.check_val_every_n_epoch != 1 or trainer.val_check_seconds is not None:
            return False
        return _total(trainer.num_val_batches) == 0 or trainer.val_check_interval == 1.0

    # -- what it saves

    def _monitor_candidates(self, trainer: Any) -> dict[str, Any]:
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        for name, counted in (("epoch", trainer.current_epoch), ("step", trainer.global_step)):
            found[name] = int(found.get(name, counted))
        return found

    def _save_topk_checkpoint(self, trainer: Any, candidates: dict[str, Any]) -> None:
        if self.save_top_k == 0:
            return
        if self.monitor is None:
            self._save_none_monitor_checkpoint(trainer, candidates)
            return
        if self.monitor not in candidates:
            message = f"ModelCheckpoint(monitor={self.monitor!r}): there is no such metric"
            help = f"self.log({self.monitor!r}, value), or one of {', '.join(map(repr, candidates))}"
            if self._validated:
                raise misconfigured(message, help=help)
            if not self._warned:
                rank_zero_warn(f"{message}; {help}. Nothing was saved.")
            self._warned = True
        self._save_monitor_checkpoint(trainer, candidates)

    def _save_monitor_checkpoint(self, trainer: Any, candidates: dict[str, Any]) -> None:
        current = candidates.get(self.monitor or "")
        if self.check_monitor_top_k(trainer, current):
            with self._undone_on_error():
                removed = self._rank(trainer, np.float64(current), candidates)
                self._save_checkpoint(trainer, self._newest)
            if removed and self._should_remove_checkpoint(trainer, removed, self._newest):
                self._remove_checkpoint(trainer, removed)
        elif self.verbose:
            at = f"Epoch {candidates['epoch']}, global step {candidates['step']}"
            rank_zero_info(f"{at}: {self.monitor!r} was not in the top {self.save_top_k}")

    def check_monitor_top_k(self, trainer: Any, current: Any = None) -> bool:
        """Is a value of the metric one of the best `save_top_k` so far? All ranks agree on it."""
        if current is None:
            return False
        if self.save_top_k == -1 or len(self.best_k_models) < self.save_top_k:
            return True
        better = operator.lt if self.mode == "min" else operator.gt
        among = bool(better(float(current), self.best_k_models[self.kth_best_model_path]))
        return trainer.reduce(float(among), "min") > 0 if trainer.world_size > 1 else among

    def _rank(self, trainer: Any, current: np.float64, candidates: dict[str, Any]) -> str | None:
        """Put a checkpoint to come among the best; gives that which it replaces."""
        kept, removed = dict(self.best_k_models), None
        most = len(kept) + 1 if self.save_top_k == -1 else self.save_top_k
        if len(kept) == most and most > 0:
            removed = self.kth_best_model_path
            del kept[removed]
        if np.isnan(current):  # never better than a number
            current = np.float64(math.inf if self.mode == "min" else -math.inf)
        self._newest = self._unused_name(trainer, candidates, removed)
        self.current_score = kept[self._newest] = current
        best, worst = (min, max) if self.mode == "min" else (max, min)
        if len(kept) == most:
            self.kth_best_model_path = worst(kept, key=lambda path: kept[path])
            self.kth_value = kept[self.kth_best_model_path]
        self.best_k_models, self.best_model_path = kept, best(kept, key=lambda path: kept[path])
        self.best_model_score = kept[self.best_model_path]
        if self.verbose:
            at = f"Epoch {candidates['epoch']}, global step {candidates['step']}"
            best_so_far = f"{self.monitor!r} is {current:0.5f} (best {self.best_model_score:0.5f})"
            rank_zero_info(f"{at}: {best_so_far}, saving {self._newest!r} as top {most}")
        return removed

    def _save_none_monitor_checkpoint(self, trainer: Any, candidates: dict[str, Any]) -> None:
        path, previous = self._unused_name(trainer, candidates, self.best_model_path), self.best_model_path
        with self._undone_on_error():
            self.best_model_path = path
            self._save_checkpoint(trainer, path)
        if self.save_top_k == 1 and previous and self._should_remove_checkpoint(trainer, previous, path):
            self._remove_checkpoint(trainer, previous)

    def _save_last_checkpoint(self, trainer: Any, candidates: dict[str, Any]) -> None:
        if not self.save_last:
            return
        path = self._unused_name(trainer, candidates, self.last_model_path, self.CHECKPOINT_NAME_LAST)
        previous = self.last_model_path
        with self._undone_on_error():
            self.last_model_path = path
            if self.save_last == "link" and self._last_checkpoint_saved and self.save_top_k != 0:
                self._link_checkpoint(trainer, self._last_checkpoint_saved, path)
            else:
                self._save_checkpoint(trainer, path)
        if previous and self._should_remove_checkpoint(trainer, previous, path):
            self._remove_checkpoint(trainer, previous)

    @contextlib.contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """Within: what is decided before a checkpoint is written, since it is part of it. After an error or an
        interrupt all is as before."""
        before = {name: getattr(self, name) for name in _RANKING}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        trainer.save_checkpoint(filepath, self.save_weights_only)
        self._last_global_step_saved, self._last_checkpoint_saved = trainer.global_step, filepath
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(weakref.proxy(self))

    @staticmethod
    def _link_checkpoint(trainer: Any, filepath: str, linkpath: str) -> None:
        if trainer.is_global_zero and os.path.abspath(filepath) != os.path.abspath(linkpath):
            if os.path.isdir(linkpath) and not os.path.islink(linkpath):
                checkpoints.remove(linkpath)
            draft = f"{linkpath}.tmp-{os.getpid()}"
            os.symlink(os.path.relpath(filepath, os.path.dirname(linkpath)), draft)
            os.replace(draft, linkpath)
        trainer.barrier()

    # -- names and files

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """The path of a checkpoint with these metrics.

        >>> ModelCheckpoint(filename="{epoch}-{val_loss:.2f}").format_checkpoint_name({"epoch": 2, "val_loss": 0.123})
        'epoch=2-val_loss=0.12.ckpt'
        >>> ModelCheckpoint().format_checkpoint_name({"epoch": 2, "step": 30}, ver=1)
        'epoch=2-step=30-v1.ckpt'
        """
        pattern = filename or self.filename or "{epoch}" + self.CHECKPOINT_JOIN_CHAR + "{step}"
        name = filled(pattern, metrics, self.auto_insert_metric_name, self.CHECKPOINT_EQUALS_CHAR)
        parts = [*([] if prefix is None else [prefix]), name, *([] if ver is None else [f"v{ver}"])]
        name = self.CHECKPOINT_JOIN_CHAR.join(parts) + self.FILE_EXTENSION
        return os.path.join(self.dirpath, name) if self.dirpath else name

    def _unused_name(self, trainer: Any, candidates: dict[str, Any], own: str | None, name: str | None = None) -> str:
        """The path of a checkpoint, with a version where another one than `own` is there."""
        path = self.format_checkpoint_name(candidates, name)
        if self._enable_version_counter:
            for version in count(self.STARTING_VERSION):
                if path == own or not self.file_exists(path, trainer):
                    break
                path = self.format_checkpoint_name(candidates, name, ver=version)
        return path

    def file_exists(self, filepath: str, trainer: Any) -> bool:
        """Is there a checkpoint of this path? As rank 0 sees it."""
        there = trainer.is_global_zero and os.path.lexists(filepath)
        return trainer.reduce(float(there), "max") > 0 if trainer.world_size > 1 else there

    def _should_remove_checkpoint(self, trainer: Any, previous: str, current: str) -> bool:
        """Not one that was written over, that lies elsewhere, or that the training has gone on from."""
        if previous == current:
            return False
        place, resumed = Path(previous).absolute(), trainer.ckpt_path
        if resumed is not None and place == Path(resumed).absolute():
            return False
        return Path(self.dirpath or "").absolute() in place.parents

    def _remove_checkpoint(self, trainer: Any, filepath: str) -> None:
        if trainer.is_global_zero:
            checkpoints.remove(filepath)

    def _find_last_checkpoints(self, trainer: Any) -> set[str]:
        """The last checkpoints of earlier trainings in this folder."""
        folder = Path(self._folder(trainer))
        name = re.sub(r"\\\{.*?\\\}", ".*", re.escape(self.CHECKPOINT_NAME_LAST))
        last = re.compile(rf"{name}({self.CHECKPOINT_JOIN_CHAR}v\d+)?{re.escape(self.FILE_EXTENSION)}")
        return {str(path) for path in folder.iterdir() if last.fullmatch(path.name)} if folder.is_dir() else set()


def _plain(score: Score) -> float | None:
    return None if score is None else float(score)


def _score(value: float | None) -> Score:
    return None if value is None else np.float64(value)


def _total(batches: Any) -> float:
    """The number of batches of all loaders."""
    return float(sum(batches)) if isinstance(batches, list) else float(batches)
