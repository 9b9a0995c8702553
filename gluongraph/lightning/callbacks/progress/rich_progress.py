"""The progress bar of rich."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.progress.progress_bar import ProgressBar


@dataclass
class RichProgressBarTheme:
    """Styles of the parts of a `RichProgressBar`, as rich writes them, and how metrics are written.

    >>> RichProgressBarTheme(progress_bar="green", metrics_format=".4f").metrics_format
    '.4f'
    """

    description: str = ""
    progress_bar: str = "#6206E0"
    progress_bar_finished: str = "#6206E0"
    progress_bar_pulse: str = "#6206E0"
    batch_progress: str = ""
    time: str = "dim"
    processing_speed: str = "dim underline"
    metrics: str = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ".3f"


def require_rich(asker: str) -> None:
    """Raise where rich is not installed.

    Raises:
        ModuleNotFoundError: it is not.
    """
    if find_spec("rich") is None:
        raise ModuleNotFoundError(with_user_location(f"{asker} needs rich", help="pip install rich"))


class RichProgressBar(ProgressBar):
    """A bar for the training and one for each validation, drawn with rich where that is installed.

    It is drawn `refresh_rate` times a second, but at most ten times, and after the last batch of each epoch; 0 hides
    it. `leave` keeps the bar of each epoch, `console_kwargs` are given to rich's console.

    >>> import pytest
    >>> _ = pytest.importorskip("rich")
    >>> RichProgressBar(theme=RichProgressBarTheme(progress_bar="green")).is_enabled
    True

    Raises:
        ModuleNotFoundError: rich is not installed.
    """

    _draws_by_time = True

    def __init__(
        self,
        refresh_rate: int = 100,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
    ):
        require_rich("RichProgressBar")
        super().__init__()
        self._refresh_rate, self._leave, self._enabled = refresh_rate, leave, True
        self.theme, self._console_kwargs = theme or RichProgressBarTheme(), console_kwargs or {}
        self.draws_every = max(ProgressBar.draws_every, 1 / refresh_rate) if refresh_rate > 0 else math.inf
        self.progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "progress": None, "_tasks": {}, "_trainer": None}  # threads wait for locks of rich's

    @property
    def refresh_rate(self) -> float:
        """How often it is drawn in a second, at most."""
        return self._refresh_rate

    @property
    def is_enabled(self) -> bool:
        """Is it shown?"""
        return self._enabled and self._refresh_rate > 0

    def disable(self) -> None:
        """Hide it."""
        self._enabled = False

    def enable(self) -> None:
        """Show it."""
        self._enabled = True

    def configure_columns(self, trainer: Any) -> list[Any]:
        """The parts of a line, before the metrics. Override to change them."""
        import_whole("rich.progress")
        from rich.progress import BarColumn, TextColumn

        theme = self.theme
        bar = BarColumn(
            complete_style=theme.progress_bar,
            finished_style=theme.progress_bar_finished,
            pulse_style=theme.progress_bar_pulse,
        )
        parts = ((_batches, theme.batch_progress), (_times, theme.time), (_speed, theme.processing_speed))
        texts = [_column(render, style) for render, style in parts]
        return [TextColumn("[progress.description]{task.description}"), bar, *texts]

    def _start(self, trainer: Any) -> None:
        if self.is_disabled or self.progress is not None:
            return
        import_whole("rich.console")
        from rich.console import Console

        import_whole("rich.progress")
        from rich.progress import Progress

        columns = [*self.configure_columns(trainer), _column(self._metrics_of, self.theme.metrics)]
        self.progress = Progress(*columns, auto_refresh=False, console=Console(**self._console_kwargs))
        self.progress.start()

    def _stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
        self.progress, self._tasks = None, {}

    def _show(self, name: str, total: float, description: str) -> None:
        """Begin a bar, or begin it anew."""
        if self.progress is None:
            return
        self._hide(name)
        text = f"[{self.theme.description}]{description}" if self.theme.description else description
        self._tasks[name] = self.progress.add_task(text, total=total if math.isfinite(total) else None)
        self.progress.refresh()

    def _hide(self, name: str) -> None:
        if name in self._tasks:
            self.progress.remove_task(self._tasks.pop(name))

    def _advance(self, name: str, done: int) -> None:
        if name in self._tasks:
            task = self.progress._tasks[self._tasks[name]]
            if self._is_due(done, task.total):
                if name == "train":
                    self._metrics = self.get_metrics(self.trainer, None)
                self.progress.update(self._tasks[name], completed=done)
                self.progress.refresh()

    def _metrics_of(self, task: Any) -> str:
        if task.id != self._tasks.get("train"):
            return ""
        parts = (f"{name}: {_written(value, self.theme.metrics_format)}" for name, value in self._metrics.items())
        return self.theme.metrics_text_delimiter.join(parts)

    def _refresh_metrics(self) -> None:
        if self.progress is not None and "train" in self._tasks:
            self._metrics = self.get_metrics(self.trainer, None)
            self.progress.refresh()

    # -- training

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the bar of the validation that is tried before a training."""
        self._start(trainer)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """Hide it."""
        self._hide("val")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to draw."""
        self._start(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        if self._leave and "train" in self._tasks:
            self._stop()
            self._start(trainer)
        last = "" if trainer.max_epochs in (None, -1) else f"/{trainer.max_epochs - 1}"
        self._show("train", self._begin_epoch(), f"Epoch {trainer.current_epoch}{last}".ljust(10))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Draw, where that is due."""
        self._advance("train", batch_idx + 1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Show the metrics of the epoch."""
        self._refresh_metrics()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self._stop()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the terminal as it was."""
        self._stop()

    # -- validation, test, prediction

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to draw."""
        self._start(trainer)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A bar for each loader."""
        if self.is_enabled and self.has_dataloader_changed(dataloader_idx):
            name = self.sanity_check_description if trainer.sanity_checking else self.validation_description
            self._show("val", self.total_val_batches_current_dataloader, name)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw, where that is due."""
        self._advance("val", batch_idx + 1)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Hide the bar within a training, and show the metrics."""
        self.reset_dataloader_idx_tracker()
        if trainer.state.fn == "fit" and self.progress is not None:
            self._hide("val")
            self._refresh_metrics()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to draw."""
        self._start(trainer)

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A bar for each loader."""
        if self.is_enabled and self.has_dataloader_changed(dataloader_idx):
            self._show("test", self.total_test_batches_current_dataloader, self.test_description)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw, where that is due."""
        self._advance("test", batch_idx + 1)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """The test ends."""
        self.reset_dataloader_idx_tracker()

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to draw."""
        self._start(trainer)

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A bar for each loader."""
        if self.is_enabled and self.has_dataloader_changed(dataloader_idx):
            self._show("predict", self.total_predict_batches_current_dataloader, self.predict_description)

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw, where that is due."""
        self._advance("predict", batch_idx + 1)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """The predictions end."""
        self.reset_dataloader_idx_tracker()

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bar."""
        if self.progress is not None:
            self.progress.console.print(sep.join(map(str, args)), markup=False, highlight=False)
        elif self.is_enabled:
            print(*args, sep=sep, **kwargs)


def _column(render: Callable[[Any], str], style: str) -> Any:
    """A column of text that a function makes of a task."""
    import_whole("rich.progress")
    from rich.progress import ProgressColumn

    import_whole("rich.text")
    from rich.text import Text

    class Column(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(render(task), style=style)

    return Column()


def _batches(task: Any) -> str:
    return f"{int(task.completed)}/{'--' if task.total is None else int(task.total)}"


def _times(task: Any) -> str:
    elapsed = task.finished_time if task.finished else task.elapsed
    texts = ["-:--:--" if t is None else str(timedelta(seconds=int(t))) for t in (elapsed, task.time_remaining)]
    return " • ".join(texts)


def _speed(task: Any) -> str:
    return f"{task.speed or 0:.2f}it/s"


def _written(value: Any, form: str) -> str:
    if isinstance(value, str | int):
        return str(value)
    try:
        return format(float(value), form)
    except (TypeError, ValueError):
        return str(value)
