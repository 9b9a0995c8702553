"""A logger that writes TensorBoard's event files."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.loggers.event_file import ScalarWriter
from gluongraph.lightning.loggers.hparams import plain, save_hparams_to_yaml
from gluongraph.lightning.loggers.logger import FolderLogger, params_of, rank_zero_experiment
from gluongraph.lightning.utilities.rank_zero import rank_zero_only, rank_zero_warn


def is_available() -> bool:
    """Is TensorBoard or tensorboardX installed, so that whoever trains here may look at event files?

    >>> is_available() in (True, False)
    True
    """
    return find_spec("tensorboard") is not None or find_spec("tensorboardX") is not None


class TensorBoardLogger(FolderLogger):
    """Write metrics into an event file in save_dir/name/version_N, and hyperparameters into hparams.yaml beside it.

    `experiment` is the SummaryWriter of PyTorch, where a program has imported that and TensorBoard is installed, else
    that of tensorboardX, else one that writes scalars alone. `kwargs` are its arguments. `sub_dir` is a folder within
    that of the run, `prefix` stands before all names. With `default_hp_metric` hyperparameters come with the metric
    "hp_metric", -1, by which TensorBoard shows them; `log_graph=True` writes the graph of a torch module that has an
    `example_input_array`.

    >>> import tempfile
    >>> logger = TensorBoardLogger(tempfile.mkdtemp(), name="digits")
    >>> logger.log_hyperparams({"lr": 0.1})
    >>> logger.log_metrics({"loss": 0.5}, step=3)
    >>> logger.finalize("success")
    >>> sorted(name.split(".")[0] for name in os.listdir(logger.log_dir))
    ['events', 'hparams']
    """

    NAME_HPARAMS_FILE = "hparams.yaml"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(save_dir, name, version, prefix)
        self._sub_dir = None if sub_dir is None else os.fspath(sub_dir)
        self._log_graph, self._default_hp_metric, self._kwargs = log_graph, default_hp_metric, kwargs
        self.hparams: dict[str, Any] = {}
        self._experiment: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_experiment": None}  # a writer has a file and a thread

    @property
    def sub_dir(self) -> str | None:
        """The folder within that of the run; None: that of the run itself."""
        return self._sub_dir

    @property
    def log_dir(self) -> str:
        """The folder of this run."""
        whole = os.path.join(super().log_dir, self._sub_dir) if self._sub_dir is not None else super().log_dir
        return os.path.expanduser(os.path.expandvars(whole))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The SummaryWriter, by which more than metrics can be logged: `logger.experiment.add_histogram(...)`."""
        if self._experiment is None:
            self._experiment = _writer()(self.log_dir, **self._kwargs)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write metrics; a dictionary of numbers as several curves in one picture."""
        for name, value in self._numbers(metrics).items():
            if isinstance(value, dict):
                self.experiment.add_scalars(name, value, step)
                continue
            try:
                self.experiment.add_scalar(name, float(value), step)
            except (TypeError, ValueError):
                message = f"TensorBoardLogger: the metric {name!r} is {value!r}"
                raise misconfigured(message, help="a number or a dictionary of them, or logger.experiment") from None

    @rank_zero_only
    def log_hyperparams(
        self,
        params: dict[str, Any] | Namespace,
        metrics: Any = None,
        step: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Keep hyperparameters, and write them with `metrics`, a number or numbers by name."""
        given = params_of(params)
        self.hparams.update(given)
        if metrics is None:
            metrics = {"hp_metric": -1} if self._default_hp_metric else {}
        elif not isinstance(metrics, dict):
            metrics = {"hp_metric": metrics}
        if not metrics:
            return
        self.log_metrics(metrics, step)
        writer = self.experiment
        if isinstance(writer, ScalarWriter):
            return  # TensorBoard's table of hyperparameters is no scalar; hparams.yaml has them
        summary = import_whole(f"{type(writer).__module__.rpartition('.')[0]}.summary", hidden=_hidden())
        for part in summary.hparams(flat(given), metrics):
            writer._get_file_writer().add_summary(part, step)

    @rank_zero_only
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Write the graph of a torch module, where that was asked for."""
        if not self._log_graph:
            return
        given = getattr(model, "example_input_array", None) if input_array is None else input_array
        if given is None or not hasattr(model, "state_dict") or isinstance(self.experiment, ScalarWriter):
            rank_zero_warn("log_graph=True: there is a graph of a torch module with an example_input_array only.")
        else:
            self.experiment.add_graph(model, given)

    @rank_zero_only
    def save(self) -> None:
        """Write what has been logged, and hyperparameters once."""
        self.experiment.flush()
        path = Path(self.log_dir, self.NAME_HPARAMS_FILE)
        if path.parent.is_dir() and not path.is_file():
            save_hparams_to_yaml(path, self.hparams)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write all and close the file."""
        if self._experiment is not None:
            self.experiment.flush()
            self.experiment.close()
            if status == "success":
                self.save()


def _hidden() -> tuple[str, ...]:
    """tensorboardX imports PyTorch where that is installed; a program that has not done so does not need it."""
    return () if is_torch_loaded() else ("torch",)


def _writer() -> Any:
    """The class of the writer."""
    if is_torch_loaded() and find_spec("tensorboard") is not None:
        return import_whole("torch.utils.tensorboard").SummaryWriter
    if find_spec("tensorboardX") is not None:
        return import_whole("tensorboardX", hidden=_hidden()).SummaryWriter
    return ScalarWriter


def flat(params: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Hyperparameters within dictionaries as "outer/inner", and what is neither number nor text as text.

    >>> flat({"net": {"layers": [64, 10]}, "lr": 0.1, "parts": [{"size": 3}]})
    {'net/layers': '[64, 10]', 'lr': 0.1, 'parts/0/size': 3}
    """
    found: dict[str, Any] = {}
    for name, value in params.items():
        whole, value = f"{before}{name}", plain(value)
        if isinstance(value, dict):
            found |= flat(value, f"{whole}/")
        elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            for number, part in enumerate(value):
                found |= flat(part, f"{whole}/{number}/")
        else:
            found[whole] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
