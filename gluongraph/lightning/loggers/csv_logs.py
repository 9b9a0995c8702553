"""A logger that writes CSV."""

from __future__ import annotations

import csv
import io
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from gluongraph.host import disk
from gluongraph.lightning.loggers.hparams import save_hparams_to_yaml
from gluongraph.lightning.loggers.logger import FolderLogger, params_of, rank_zero_experiment
from gluongraph.lightning.utilities.rank_zero import rank_zero_only, rank_zero_warn


class ExperimentWriter:
    """Writes metrics.csv and hparams.yaml into a folder; an old metrics.csv there is removed.

    A row has the metrics of one call and "step"; a column is there for each name that has ever been logged, in the
    order of the alphabet. When a new one comes, the file is written anew.

    >>> import pathlib, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> writer = ExperimentWriter(folder)
    >>> writer.log_metrics({"loss": 0.5}, step=0)
    >>> writer.save()
    >>> writer.log_metrics({"acc": 0.25}, step=1)
    >>> writer.save()
    >>> print((pathlib.Path(folder) / "metrics.csv").read_text().replace("\\r", ""), end="")
    acc,loss,step
    ,0.5,0
    0.25,,1
    """

    NAME_HPARAMS_FILE = "hparams.yaml"
    NAME_METRICS_FILE = "metrics.csv"

    def __init__(self, log_dir: str):
        self.metrics: list[dict[str, Any]] = []  # rows that are not written yet
        self.metrics_keys: list[str] = []
        self.hparams: dict[str, Any] = {}
        self.log_dir = log_dir
        self.metrics_file_path = os.path.join(log_dir, self.NAME_METRICS_FILE)
        if os.path.isdir(log_dir) and os.listdir(log_dir):
            rank_zero_warn(f"The folder {log_dir} is not empty: its {self.NAME_METRICS_FILE} will be written anew.")
            Path(self.metrics_file_path).unlink(missing_ok=True)
        os.makedirs(log_dir, exist_ok=True)

    def log_metrics(self, metrics_dict: dict[str, Any], step: int | None = None) -> None:
        """Take a row; without a `step` its number among those that are not written yet."""
        row = {name: value.item() if hasattr(value, "item") else value for name, value in metrics_dict.items()}
        row["step"] = len(self.metrics) if step is None else step
        self.metrics.append(row)

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Write hyperparameters, with those of before."""
        self.hparams.update(params)
        save_hparams_to_yaml(os.path.join(self.log_dir, self.NAME_HPARAMS_FILE), self.hparams)

    def save(self) -> None:
        """Write the rows. After an error those that are not written are still there."""
        if not self.metrics:
            return
        new = set().union(*self.metrics) - set(self.metrics_keys)
        keys = sorted([*self.metrics_keys, *new])
        there = os.path.isfile(self.metrics_file_path)
        if new and there:
            with open(self.metrics_file_path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            text = _table(keys, [*rows, *self.metrics], head=True)
            disk.whole(Path(self.metrics_file_path), lambda file: file.write(text.encode()))
        else:
            text = _table(keys, self.metrics, head=not there)
            with open(self.metrics_file_path, "a", newline="", encoding="utf-8") as file:
                file.write(text)
        self.metrics_keys, self.metrics = keys, []


def _table(keys: list[str], rows: list[dict[str, Any]], head: bool) -> str:
    made = io.StringIO(newline="")
    writer = csv.DictWriter(made, fieldnames=keys)
    if head:
        writer.writeheader()
    writer.writerows(rows)
    return made.getvalue()


class CSVLogger(FolderLogger):
    """Write metrics into save_dir/name/version_N/metrics.csv, and hyperparameters into hparams.yaml beside it.

    A `prefix` stands before all names. Rows are written when the Trainer says so, and after each step whose number is
    one less than a multiple of `flush_logs_every_n_steps`.

    >>> import pathlib, tempfile
    >>> logger = CSVLogger(tempfile.mkdtemp(), name="digits")
    >>> logger.log_hyperparams({"lr": 0.1})
    >>> logger.log_metrics({"loss": 0.5}, step=0)
    >>> logger.save()
    >>> sorted(path.name for path in pathlib.Path(logger.log_dir).iterdir()), logger.version
    (['hparams.yaml', 'metrics.csv'], 0)
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ):
        super().__init__(save_dir, name, version, prefix)
        self._flush_logs_every_n_steps = flush_logs_every_n_steps
        self._experiment: ExperimentWriter | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """What writes the files."""
        if self._experiment is None:
            self._experiment = ExperimentWriter(self.log_dir)
        return self._experiment

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Write hyperparameters."""
        self.experiment.log_hparams(params_of(params))

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Take a row of metrics."""
        step = len(self.experiment.metrics) if step is None else step
        self.experiment.log_metrics(self._numbers(metrics), step)
        if (step + 1) % self._flush_logs_every_n_steps == 0:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the rows."""
        self.experiment.save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the rows, where any have come."""
        if self._experiment is not None:
            self.save()
