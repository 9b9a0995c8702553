"""Steps of schedulers at their intervals."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import warn
from gluongraph.lightning.errors import misconfigured


def step_schedulers(trainer: Any, interval: str, number: int, plateau: bool) -> None:
    """Step the schedulers of an interval, "step" or "epoch", of which this is the number, counted from 1.

    Those that look at a metric (`plateau`) are stepped after a validation, the others before. A schedule does not
    advance with updates that were skipped for a gradient that is not finite.
    """
    configs = trainer.lr_scheduler_configs
    if not configs or not trainer.lightning_module.automatic_optimization:
        return
    if interval == "step" and trainer.engines.skipped_last:
        return
    for config in configs:
        if config.reduce_on_plateau != plateau or config.interval != interval or number % config.frequency:
            continue
        metric = None
        if config.reduce_on_plateau:
            metric = trainer.callback_metrics.get(config.monitor)
            if metric is None:
                _missing(trainer, config)
                continue
        trainer.hooks.call_module("lr_scheduler_step", config.scheduler, metric)


def _missing(trainer: Any, config: Any) -> None:
    """The metric that a scheduler looks at has not been logged."""
    known = ", ".join(trainer.callback_metrics) or "none"
    message = f"ReduceLROnPlateau looks at {config.monitor!r}, which is not logged; there are {known}"
    if config.strict:
        raise misconfigured(message, help='log it, or name another as "monitor"; "strict": False goes on without')
    warn(f"{message}: the rate stays as it is")
