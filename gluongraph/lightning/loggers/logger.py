"""The base of loggers: where metrics and hyperparameters of a run go."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.utilities.rank_zero import rank_zero_only


class Logger(ABC):
    """Takes the metrics and hyperparameters of a run.

    A logger of your own has a name, a version, `log_metrics` and `log_hyperparams`; decorate what writes with
    `rank_zero_only`.

    >>> class Printer(Logger):
    ...     name, version = "printer", 0
    ...
    ...     def log_metrics(self, metrics, step=None):
    ...         print(step, metrics)
    ...
    ...     def log_hyperparams(self, params, *args, **kwargs):
    ...         print(params)
    >>> Printer().log_metrics({"loss": 0.5}, step=3)
    3 {'loss': 0.5}
    """

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name of what is tried in several runs."""

    @property
    @abstractmethod
    def version(self) -> int | str | None:
        """The number or the name of this run."""

    @abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Take the metrics of a step."""

    @abstractmethod
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Take hyperparameters."""

    @property
    def save_dir(self) -> str | None:
        """The folder of all runs; None where nothing is saved here."""
        return None

    @property
    def root_dir(self) -> str | None:
        """The folder of all versions; None where nothing is saved here."""
        return None

    @property
    def log_dir(self) -> str | None:
        """The folder of this run; None where nothing is saved here."""
        return None

    @property
    def group_separator(self) -> str:
        """What stands between a group of metrics and a name in it."""
        return "/"

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Take the graph of a model. Does nothing by default."""
        return None

    def save(self) -> None:
        """Write what has been taken."""
        return None

    def finalize(self, status: str) -> None:
        """The run ends: "success", "failed" or "interrupted"."""
        self.save()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Called when a `ModelCheckpoint` has saved a checkpoint."""
        return None


class DummyExperiment:
    """Whatever is called or indexed of it does nothing."""

    def nop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self.nop

    def __getitem__(self, index: Any) -> DummyExperiment:
        return self

    def __setitem__(self, *args: Any) -> None:
        return None


class DummyLogger(Logger):
    """Stands for the loggers of a run that is only tried: what a module calls of it does nothing.

    >>> logger = DummyLogger()
    >>> logger.experiment.add_scalar("loss", 0.5, 3), logger.log_image("x", [])
    (None, None)
    """

    name, version = "", ""

    def __init__(self) -> None:
        super().__init__()
        self._experiment = DummyExperiment()

    @property
    def experiment(self) -> DummyExperiment:
        """What stands for the object of the service."""
        return self._experiment

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Take no metrics."""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Take no hyperparameters."""

    def __getitem__(self, index: int) -> DummyLogger:
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):  # by which copies and the like ask what it can do
            raise AttributeError(name)
        return self._experiment.nop


class FolderLogger(Logger):
    """A logger that has a folder for each run: save_dir/name/version_0, version_1, ...; a base of others.

    Without a `version` the next number that is not taken.
    """

    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
    ):
        check_name(type(self).__name__, save_dir, f"{type(self).__name__}('logs')", "folder")
        self._save_dir, self._name, self._version, self._prefix = os.fspath(save_dir), name or "", version, prefix

    @property
    def name(self) -> str:
        """The name of the folder of all versions; empty where they lie in `save_dir` itself."""
        return self._name

    @property
    def version(self) -> int | str:
        """The number or the name of this run."""
        if self._version is None:
            self._version = next_version(self.root_dir)
        return self._version

    @property
    def save_dir(self) -> str:
        """The folder that was given."""
        return self._save_dir

    @property
    def root_dir(self) -> str:
        """The folder of all versions."""
        return os.path.join(self._save_dir, self._name)

    @property
    def log_dir(self) -> str:
        """The folder of this run."""
        version = self.version if isinstance(self.version, str) else f"version_{self.version}"
        return os.path.join(self.root_dir, version)

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics under the prefix, as Python's numbers."""
        before = f"{self._prefix}{self.LOGGER_JOIN_CHAR}" if self._prefix else ""
        return {f"{before}{name}": _number(name, value) for name, value in metrics.items()}


def next_version(folder: str) -> int:
    """One more than the largest number of the folders version_N in a folder.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> next_version(str(folder))
    0
    >>> (folder / "version_7").mkdir()
    >>> next_version(str(folder))
    8
    """
    try:
        names = [entry.name for entry in Path(folder).iterdir() if entry.is_dir()]
    except OSError:
        return 0
    parts = [name.split("_")[1] for name in names if name.startswith("version_")]
    return max((int(part) for part in parts if part.isdigit()), default=-1) + 1


def params_of(given: Any) -> dict[str, Any]:
    """Hyperparameters as a dictionary: of a Namespace its attributes.

    >>> params_of(Namespace(lr=0.1)), params_of(None)
    ({'lr': 0.1}, {})

    Raises:
        TypeError: neither a dictionary nor a Namespace.
    """
    if given is None:
        return {}
    found = vars(given) if isinstance(given, Namespace) else given
    if not isinstance(found, Mapping):
        message = f"hyperparameters are a dictionary, not {type(given).__name__}"
        raise TypeError(with_user_location(message, help="logger.log_hyperparams({'lr': 0.1})"))
    return dict(found)


class Nothing:
    """What `experiment` is on ranks that log nothing: any method, item or attribute of it does nothing.

    >>> Nothing().add_image("x", None, step=3)
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def __getitem__(self, index: Any) -> Nothing:
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        pass


def rank_zero_experiment(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorator of `experiment`: on ranks other than the first it gives something that does nothing.

    >>> class Own(Logger):
    ...     name, version = "own", 0
    ...     def log_metrics(self, metrics, step=None): ...
    ...     def log_hyperparams(self, params, *args, **kwargs): ...
    ...     @property
    ...     @rank_zero_experiment
    ...     def experiment(self):
    ...         return "a client"
    >>> Own().experiment
    'a client'
    """

    @wraps(function)
    def experiment(self: Any) -> Any:
        return function(self) if rank_zero_only.rank == 0 else Nothing()

    return experiment


def _number(name: str, value: Any) -> Any:
    """A metric as a number; groups of numbers as they are.

    Raises:
        MisconfigurationException: it has not one element.
    """
    if isinstance(value, dict):
        return {key: _number(f"{name}/{key}", part) for key, part in value.items()}
    if not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (ValueError, RuntimeError) as wrong:
        message = f"the metric {name!r} is no number, but of shape {getattr(value, 'shape', '?')}"
        raise misconfigured(message, help="its mean, or log it by the logger's own `experiment`") from wrong
