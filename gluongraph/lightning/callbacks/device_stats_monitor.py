"""Logs how busy the processors are, and how much memory is used."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.looking import logs, until_multiple
from gluongraph.lightning.errors import misconfigured


class DeviceStatsMonitor(Callback):
    """Log, around batches that are logged, "DeviceStatsMonitor.on_train_batch_end/cpu_percent" and the like: the use of
    all processors since the last look (`cpu_percent`), of memory and swap (`cpu_vm_percent`, `cpu_swap_percent`), and
    the memory and processor time of this process (`process_rss_bytes`, `process_cpu_percent`, of one core).

    The numbers are those of Linux's /proc; where there is none, of this process alone. `cpu_stats=False` logs nothing.

    >>> import gluongraph.lightning as L
    >>> monitor = DeviceStatsMonitor()
    >>> sorted(stats().keys() & {"process_cpu_percent", "process_rss_bytes"})
    ['process_cpu_percent', 'process_rss_bytes']

    Raises:
        MisconfigurationException: later, a Trainer without loggers.
    """

    def __init__(self, cpu_stats: bool | None = None):
        self._cpu_stats = cpu_stats
        self._before: dict[str, float] = {}

    def idle_batches(self, trainer: Any) -> float:
        """Those before the next one that is logged."""
        if self._cpu_stats is False:
            return math.inf
        return until_multiple(trainer.counters.logged_steps, trainer.log_every_n_steps)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a Trainer without loggers, and begin to count."""
        if stage == "fit" and not trainer.loggers:
            message = "DeviceStatsMonitor with a Trainer that has no logger"
            raise misconfigured(message, help="Trainer(logger=True), or leave it out")
        self._before = _counted()

    def _log(self, trainer: Any, moment: str) -> None:
        if self._cpu_stats is False or not trainer.is_global_zero or not logs(trainer):
            return
        now = _counted()
        found, self._before = stats(self._before, now), now
        for logger in trainer.loggers:
            prefix = f"{type(self).__qualname__}.{moment}{logger.group_separator}"
            row = {prefix + name: value for name, value in found.items()}
            logger.log_metrics(row, step=trainer.counters.logged_steps)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Log, where the batch is logged."""
        self._log(trainer, "on_train_batch_start")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log, where the batch is logged."""
        self._log(trainer, "on_train_batch_end")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log, where the step before it is logged."""
        if not trainer.sanity_checking:
            self._log(trainer, "on_validation_batch_end")

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log each batch whose number is a multiple of that of steps that are logged."""
        if trainer.log_every_n_steps and (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self._log(trainer, "on_test_batch_end")


def stats(before: dict[str, float] | None = None, now: dict[str, float] | None = None) -> dict[str, float]:
    """Memory in use now, and the use of processors between two counts; by default since this process began.

    >>> stats()["process_rss_bytes"] > 0
    True
    """
    now = _counted() if now is None else now
    spent = {name: value - (before or {}).get(name, 0.0) for name, value in now.items()}
    found = _memory()
    if spent.get("all", 0.0) > 0:
        found["cpu_percent"] = 100 * (1 - spent["idle"] / spent["all"])
    found["process_cpu_percent"] = 100 * spent["process"] / max(spent["wall"], 1e-9) if before else 0.0
    return found


def _counted() -> dict[str, float]:
    """Time that has been spent so far: of all processors, of this process, and by the clock."""
    found = {"process": time.process_time(), "wall": time.perf_counter()}
    if lines := _read("/proc/stat"):
        ticks = [float(tick) for tick in lines[0].split()[1:9]]  # later ones are part of the first
        found |= {"all": sum(ticks), "idle": ticks[3] + ticks[4]}  # idle, and waiting for disks
    return found


def _memory() -> dict[str, float]:
    rows = (line.split(":", 1) for line in _read("/proc/meminfo") if ":" in line)
    kib = {name: float(rest.split()[0]) for name, rest in rows if rest.split()}
    found = {"process_rss_bytes": _resident()}
    for name, free, total in (("vm", "MemAvailable", "MemTotal"), ("swap", "SwapFree", "SwapTotal")):
        if total in kib and free in kib:
            found[f"cpu_{name}_percent"] = 100 * (1 - kib[free] / kib[total]) if kib[total] else 0.0
    return found


def _resident() -> float:
    """The memory of this process in bytes; where there is no /proc, the most that it has had."""
    if lines := _read("/proc/self/statm"):
        return float(lines[0].split()[1]) * os.sysconf("SC_PAGESIZE")
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
