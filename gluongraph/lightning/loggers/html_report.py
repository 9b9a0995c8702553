"""A logger that writes a page with the curves of a run, to be opened in any browser and sent to anybody."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from gluongraph.host import disk
from gluongraph.lightning.loggers.hparams import plain
from gluongraph.lightning.loggers.logger import FolderLogger, params_of, rank_zero_experiment
from gluongraph.lightning.loggers.series import Series
from gluongraph.lightning.loggers.tensorboard import flat
from gluongraph.lightning.utilities.rank_zero import rank_zero_only

_LEAST_SHARE = 20  # times as long as writing takes, it is not written again


class Report:
    """The state of a run, and the page that shows it."""

    FILE = "report.html"

    def __init__(self, log_dir: str, title: str, seconds: float):
        self.log_dir, self.title, self._every = log_dir, title, seconds
        self.series: dict[str, Series] = {}
        self.hparams: dict[str, Any] = {}
        self.best: dict[str, Any] = {}
        self.status = "running"
        self._began, self._clock = time.time(), time.monotonic()
        self._next = self._clock  # when it may be written again
        self._changed = True
        os.makedirs(log_dir, exist_ok=True)

    @property
    def path(self) -> Path:
        """The file of the page."""
        return Path(self.log_dir, self.FILE)

    def add(self, metrics: Mapping[str, Any], step: int) -> None:
        """Take the metrics of a step."""
        self._changed, self.status = True, "running"
        epoch, seconds = metrics.get("epoch"), time.monotonic() - self._clock
        for name, value in metrics.items():
            if isinstance(value, dict):
                self.add({f"{name}/{key}": part for key, part in value.items()} | {"epoch": epoch}, step)
            elif name != "epoch" and isinstance(value, int | float):
                self.series.setdefault(name, Series()).add(step, epoch, seconds, float(value))

    def note(self, **changes: Any) -> None:
        """Set attributes: hparams, best, status."""
        vars(self).update(changes)
        self._changed = True

    def write(self, now: bool = False) -> None:
        """Write the page: at once, or if the last time is long enough ago. What was there is replaced as a whole.

        Raises:
            OSError: it cannot be written.
        """
        began = time.monotonic()
        if not self._changed or not (now or began >= self._next):
            return
        disk.whole(self.path, lambda file: file.write(self.page().encode()))
        self._changed = False
        ended = time.monotonic()
        self._next = ended + max(self._every, _LEAST_SHARE * (ended - began))

    def data(self) -> dict[str, Any]:
        """What the page shows."""
        return {
            "title": self.title,
            "status": self.status,
            "began": self._began,
            "seconds": round(time.monotonic() - self._clock, 3),
            "reload": max(2.0, self._every),
            "hparams": {name: value if isinstance(value, str) else json.dumps(value) for name, value in self._rows()},
            "best": self.best,
            "series": {name: series.data() for name, series in sorted(self.series.items())},
        }

    def _rows(self) -> list[tuple[str, Any]]:
        return sorted(flat(plain(self.hparams)).items())

    def page(self) -> str:
        """The whole file."""
        data = json.dumps(self.data(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<title>{escape(self.title)} · gluongraph</title><style>{_resource('report.css')}</style></head><body>\n"
            f"{_resource('report.html')}"
            f'<script type="application/json" id="data">{data}</script>\n<script>{_resource("report.js")}</script>\n'
            "</body></html>\n"
        )


class HTMLLogger(FolderLogger):
    """Write save_dir/name/version_N/report.html: the curves of all metrics, hyperparameters, and how far the run is.

    The page holds all that it needs and fetches nothing. It is replaced as a whole, every `save_every_seconds` at most
    and when the run ends, and loads itself anew until then. Values can be read off by pointing at a curve; scales can
    be logarithmic, curves smoothed, and drawn over steps, epochs or time. A curve has at most a thousand points; where
    there are more values each point is the mean of several, with their least and largest shaded.

    >>> import tempfile
    >>> logger = HTMLLogger(tempfile.mkdtemp(), name="digits")
    >>> logger.log_hyperparams({"lr": 0.1})
    >>> logger.log_metrics({"train_loss": 0.5, "epoch": 0}, step=3)
    >>> logger.finalize("success")
    >>> "train_loss" in (logger.experiment.path).read_text(encoding="utf-8")
    True
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        save_every_seconds: float = 5.0,
        title: str | None = None,
    ):
        super().__init__(save_dir, name, version, prefix)
        self._every, self._title = save_every_seconds, title
        self._experiment: Report | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Report:
        """What writes the page; `experiment.path` is where it is."""
        if self._experiment is None:
            title = self._title or " · ".join(part for part in (self.name, os.path.basename(self.log_dir)) if part)
            self._experiment = Report(self.log_dir, title, self._every)
        return self._experiment

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Show hyperparameters."""
        report = self.experiment
        report.note(hparams={**report.hparams, **params_of(params)})

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Show metrics of a step, later ones without a step one further than the last."""
        report = self.experiment
        if step is None:
            step = max((each.buckets[-1].step + 1 for each in report.series.values() if each.buckets), default=0)
        numbers = self._numbers(metrics)
        if self._prefix and "epoch" in metrics:
            numbers["epoch"] = numbers.pop(f"{self._prefix}{self.LOGGER_JOIN_CHAR}epoch")
        report.add(numbers, step)
        report.write()

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Show the best checkpoint."""
        path, score = checkpoint_callback.best_model_path, checkpoint_callback.best_model_score
        monitor = getattr(checkpoint_callback, "monitor", None)
        if path:
            known = {} if score is None or monitor is None else {"monitor": monitor, "score": f"{float(score):.6g}"}
            self.experiment.note(best={"name": os.path.basename(path), **known})

    @rank_zero_only
    def save(self) -> None:
        """Write the page, where the last time is long enough ago."""
        if self._experiment is not None:
            self._experiment.write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the page, which says how the run has ended."""
        if self._experiment is not None:
            self._experiment.note(status=status)
            self._experiment.write(now=True)


def _resource(name: str) -> str:
    return (resources.files("gluongraph.lightning.loggers") / name).read_text(encoding="utf-8")
