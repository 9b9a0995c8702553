"""Logs how fast a training is: batches, samples and operations per second, and how much of the machine that uses."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gluongraph.errors import CompileError, warn
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.looking import until_multiple
from gluongraph.lightning.errors import misconfigured

_STAGES = {"train": "train", "validation": "validate", "test": "test", "predict": "predict"}


@dataclass(frozen=True)
class Mark:
    """What has been done up to a moment, in all."""

    time: float
    batches: int
    samples: int
    lengths: int | None = None
    flops: float | None = None


class Throughput:
    """Rates over the last `window_size` batches, from totals at moments.

    >>> throughput = Throughput(window_size=10)
    >>> throughput.update(time=1.0, batches=1, samples=8)
    >>> throughput.update(time=3.0, batches=5, samples=40)
    >>> {name: float(value) for name, value in throughput.compute().items()}
    {'time': 3.0, 'batches': 5.0, 'samples': 40.0, 'device/batches_per_sec': 2.0, 'device/samples_per_sec': 16.0}

    Raises:
        MisconfigurationException: a window that is no number from 2; totals that become smaller.
    """

    def __init__(
        self, available_flops: float | None = None, world_size: int = 1, window_size: int = 100, separator: str = "/"
    ):
        if window_size < 2 or world_size < 1:
            message = f"Throughput(world_size={world_size}, window_size={window_size})"
            raise misconfigured(message, help="a window has two batches or more, a training one rank or more")
        self.available_flops, self.world_size = available_flops, world_size
        self.window_size, self.separator = window_size, separator
        self._marks: deque[Mark] = deque()

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Note the totals at a moment: seconds, batches, samples, items in them, and operations on this device."""
        if self._marks and (time < self._marks[-1].time or batches < self._marks[-1].batches):
            raise misconfigured("Throughput.update: time or batches have become smaller", help="reset() begins anew")
        self._marks.append(Mark(time, batches, samples, lengths, flops))
        while len(self._marks) > 2 and batches - self._marks[1].batches >= self.window_size - 1:
            self._marks.popleft()

    def compute(self) -> dict[str, float]:
        """The totals, and the rates of this device ("device/...") and, of several ranks, of all of them."""
        if not self._marks:
            return {}
        first, last, at = self._marks[0], self._marks[-1], self.separator
        found: dict[str, float] = {"time": last.time, "batches": last.batches, "samples": last.samples}
        if last.lengths is not None:
            found["lengths"] = last.lengths
        if (seconds := last.time - first.time) <= 0:
            return found
        rates: dict[str, float] = {
            "batches_per_sec": (last.batches - first.batches) / seconds,
            "samples_per_sec": (last.samples - first.samples) / seconds,
        }
        if last.lengths is not None and first.lengths is not None:
            rates["items_per_sec"] = (last.lengths - first.lengths) / seconds
        if last.flops is not None and first.flops is not None:
            rates["flops_per_sec"] = (last.flops - first.flops) / seconds
        found |= {f"device{at}{name}": rate for name, rate in rates.items()}
        if self.world_size > 1:
            found |= {name: rate * self.world_size for name, rate in rates.items()}
        if self.available_flops and "flops_per_sec" in rates:
            found[f"device{at}mfu"] = rates["flops_per_sec"] / self.available_flops
        return found

    def reset(self) -> None:
        """Begin anew."""
        self._marks.clear()


class ThroughputMonitor(Callback):
    """Log, at steps that are logged, "train/device/batches_per_sec", "samples_per_sec" and "flops_per_sec"; with
    `length_fn` "items_per_sec" (as tokens); of several ranks, without "device/" the sums over all of them.

    The operations are those of the compiled step (`trainer.step_flops`), or `flops_per_batch` of the module. "mfu" is
    their share of the highest rate that was measured on this machine, "roofline" that of the time which its bandwidth
    and arithmetic allow for the step; the first use measures them, in two seconds (`roofline=False`: neither).

    `batch_size_fn` gives the number of samples of a batch, by default the first extent of its first array. Batches that
    are not looked at count like the last one that is.

    >>> monitor = ThroughputMonitor(length_fn=lambda batch: batch[0].size, window_size=50)

    Raises:
        MisconfigurationException: a window that is no number from 2.
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int] | None = None,
        length_fn: Callable[[Any], int] | None = None,
        roofline: bool = True,
        **kwargs: Any,
    ):
        self.batch_size_fn, self.length_fn, self.roofline = batch_size_fn or first_extent, length_fn, roofline
        Throughput(**kwargs)  # refuses at once what it would refuse later
        self.kwargs = kwargs
        self.available_flops: float | None = None
        self._machine: Any = None
        self._stages: dict[str, _Stage] = {}

    def idle_batches(self, trainer: Any) -> float:
        """Those before the next step that is logged; none before the first mark."""
        stage = self._stages.get("train")
        if not trainer.is_global_zero:
            return math.inf
        if stage is None or not stage.batches:
            return 0.0
        return until_multiple(trainer.counters.logged_steps, trainer.log_every_n_steps)

    def _begin(self, trainer: Any, name: str) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            self._stages[name] = _Stage(Throughput(self.available_flops, trainer.world_size, **self.kwargs))

    def _note(self, trainer: Any, name: str, batch: Any, batches: int) -> None:
        """So many batches of a stage have been done in all."""
        stage = self._stages.get(name)
        if stage is None or trainer.sanity_checking or batches <= stage.batches:
            return
        new = batches - stage.batches
        stage.batches = batches
        stage.samples += new * self.batch_size_fn(batch)
        stage.lengths += new * self.length_fn(batch) if self.length_fn is not None else 0
        flops = self._flops(trainer) if name == "train" else None
        stage.throughput.update(
            time=time.perf_counter() - stage.began - stage.paused,
            batches=batches,
            samples=stage.samples,
            lengths=None if self.length_fn is None else stage.lengths,
            flops=None if flops is None else flops * batches,
        )

    def _flops(self, trainer: Any) -> float | None:
        """The operations of a batch."""
        own = getattr(trainer.lightning_module, "flops_per_batch", None)
        found = trainer.step_flops if own is None else own
        return None if found is None else float(found)

    def _log(self, trainer: Any, name: str, step: int) -> None:
        stage = self._stages[name]
        if name == "train" and self.roofline and self._machine is None and trainer.step_flops:
            self._measure(trainer, stage)
        found = stage.throughput.compute()
        at = stage.throughput.separator
        share = self._share(trainer, found.get(f"device{at}batches_per_sec", 0.0)) if name == "train" else None
        if share is not None:
            found[f"device{at}roofline"] = share
        if found:
            row = {f"{_STAGES[name]}{at}{key}": value for key, value in found.items()}
            for logger in trainer.loggers:
                logger.log_metrics({**row, "epoch": trainer.current_epoch}, step=step)

    def _measure(self, trainer: Any, stage: _Stage) -> None:
        """Measure the machine, outside of the time that counts."""
        from gluongraph.compiler import machine_peaks

        began = time.perf_counter()
        try:
            self._machine = machine_peaks.machine()
        except CompileError as wrong:
            warn(f"ThroughputMonitor: no share of the machine is logged: {wrong}")
            self.roofline = False
            return
        finally:
            stage.paused += time.perf_counter() - began
        self.available_flops = stage.throughput.available_flops = max(self._machine.flops.values())

    def _share(self, trainer: Any, rate: float) -> float | None:
        """The time that the machine's bandwidth and arithmetic allow for a step, of that which a batch takes."""
        flops, nbytes = trainer.step_flops, trainer.step_bytes
        if self._machine is None or self.available_flops is None or not flops or not nbytes or not rate:
            return None
        least = max(flops / self.available_flops, nbytes / self._machine.bandwidth(int(nbytes)))
        return float(least * rate)

    # -- training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._begin(trainer, "train")
        if stage := self._stages.get("train"):
            stage.before = trainer.counters.batches_seen

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note what has been done, and log it where that is due."""
        stage = self._stages.get("train")
        if stage is None:
            return
        steps, every = trainer.counters.logged_steps, trainer.log_every_n_steps
        due = every > 0 and (steps + 1) % every == 0 and trainer.counters.window == 0
        if due or not stage.batches:
            self._note(trainer, "train", batch, trainer.counters.batches_seen - stage.before)
        if due:
            self._log(trainer, "train", steps)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count; the time of the training stands still."""
        self._begin(trainer, "validation")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note what has been done, and log it where that is due."""
        self._of_evaluation(trainer, "validation", batch)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The time of the training goes on."""
        stage, training = self._stages.get("validation"), self._stages.get("train")
        if stage is not None and training is not None and not trainer.sanity_checking:
            training.paused += time.perf_counter() - stage.began

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._begin(trainer, "test")

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note what has been done, and log it where that is due."""
        self._of_evaluation(trainer, "test", batch)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._begin(trainer, "predict")

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note what has been done, and log it where that is due."""
        self._of_evaluation(trainer, "predict", batch)

    def _of_evaluation(self, trainer: Any, name: str, batch: Any) -> None:
        if (stage := self._stages.get(name)) is None or trainer.sanity_checking:
            return
        self._note(trainer, name, batch, stage.batches + 1)
        if trainer.log_every_n_steps > 0 and stage.batches % trainer.log_every_n_steps == 0:
            self._log(trainer, name, stage.batches)


@dataclass
class _Stage:
    """What has been counted in a stage."""

    throughput: Throughput
    batches: int = 0
    samples: int = 0
    lengths: int = 0
    before: int = 0  # batches of the training that it goes on from
    paused: float = 0.0  # seconds that do not count

    def __post_init__(self) -> None:
        self.began = time.perf_counter()


def first_extent(batch: Any) -> int:
    """The first extent of the first array in a batch; 1 where there is none.

    >>> import numpy as np
    >>> first_extent({"x": [np.zeros((8, 3)), np.zeros(8)]}), first_extent("text")
    (8, 1)
    """
    if shape := getattr(batch, "shape", None):
        return int(shape[0])
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((first_extent(part) for part in parts), 1)
