"""A Trainer that calls callbacks and trains nothing, for ours and for Lightning's own."""

from __future__ import annotations

import os
import pathlib
import shutil
from types import SimpleNamespace
from typing import Any

from gluongraph.lightning.loops.counters import Counters
from gluongraph.runtime.checkpoint import MANIFEST


class Pretend:
    """What callbacks ask of a Trainer. `original`: of Lightning's, whose metrics are tensors and checkpoints files."""

    def __init__(self, folder: pathlib.Path, original: bool = False, **more: Any):
        self.original, self.folder = original, folder
        self.counters = Counters()
        self.state = SimpleNamespace(fn="fit", stage="train")
        self.loggers: list[Any] = []
        self.default_root_dir = str(folder)
        self.metrics: dict[str, float] = {}
        self.fast_dev_run: Any = False
        self.sanity_checking = self.should_stop = False
        self.check_val_every_n_epoch: int | None = 1
        self.val_check_interval: float = 1.0
        self.val_check_seconds: float | None = None
        self.num_val_batches: list[int] = [2]
        self.enable_validation = True
        self.log_every_n_steps, self.num_training_batches = 2, 4
        self.world_size, self.global_rank, self.is_global_zero = 1, 0, True
        self.ckpt_path: str | None = None
        self.lightning_module = SimpleNamespace(automatic_optimization=True)
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        self.max_epochs, self.max_steps = 10, -1
        self.metric_log = SimpleNamespace(kept={"callback": self.metrics})
        self.strategy = SimpleNamespace(
            broadcast=lambda value: value,
            barrier=lambda: None,
            reduce_boolean_decision=lambda value, all=True: value,
            remove_checkpoint=self.remove,
            root_device="cpu",
        )
        self.fails = False
        progress = SimpleNamespace(is_last_batch=False)
        self.fit_loop = SimpleNamespace(
            epoch_loop=SimpleNamespace(batch_progress=progress, val_loop=SimpleNamespace(_has_run=False))
        )
        vars(self).update(more)

    @property
    def current_epoch(self) -> int:
        return self.counters.epoch

    @property
    def global_step(self) -> int:
        return self.counters.global_step

    @property
    def is_last_batch(self) -> bool:
        return self.counters.is_last_batch

    @property
    def callback_metrics(self) -> dict[str, Any]:
        if not self.original:
            return dict(self.metrics)
        import torch

        return {name: torch.tensor(value) for name, value in self.metrics.items()}

    def broadcast(self, text: str) -> str:
        return text

    def barrier(self) -> None: ...

    def save_checkpoint(self, path: str, weights_only: bool = False) -> None:
        if self.fails:
            raise OSError("the disk is full")
        place = pathlib.Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if self.original:
            place.write_text(f"{self.global_step}")
            return
        self.remove(path)
        place.mkdir()
        (place / MANIFEST).write_text(f"{self.global_step}")

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)

    def step(self, last: bool = False) -> None:
        """A batch that is an update has been done."""
        self.counters.batch_idx += 1
        self.counters.batches_seen += 1
        self.counters.steps_applied += 1
        self.counters.is_last_batch = last
        self.fit_loop.epoch_loop.batch_progress.is_last_batch = last

    def end_epoch(self) -> None:
        """The next epoch begins."""
        self.counters.epoch += 1
        self.counters.batch_idx = -1
