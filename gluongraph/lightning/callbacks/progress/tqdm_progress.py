"""The progress bar of tqdm."""

from __future__ import annotations

import math
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gluongraph.lightning.callbacks.progress.progress_bar import ProgressBar

if TYPE_CHECKING or find_spec("ipywidgets") is None:
    from tqdm import tqdm as _tqdm
else:
    from tqdm.auto import tqdm as _tqdm

_PADDED = 5  # letters of a number
_INTO_A_FILE = 1.0  # seconds between two drawings where nobody watches


class Tqdm(_tqdm):  # type: ignore[type-arg]
    """A bar whose numbers have the same width all the time.

    >>> Tqdm.format_num(0.5), Tqdm.format_num(3)
    ('0.500', '3')
    """

    @staticmethod
    def format_num(n: float | str) -> str:
        """A number as text; one with a point has at least five letters."""
        text = n if isinstance(n, str) else str(_tqdm.format_num(n))
        if not isinstance(n, float | str) or "e" in text:
            return text
        if "." not in text and len(text) < _PADDED:
            try:
                float(text)
            except ValueError:
                return text
            text += "."
        return text + "0" * (_PADDED - len(text))


class TQDMProgressBar(ProgressBar):
    """A line for the training with the metrics that are logged with prog_bar=True, and one for each validation.

    It is drawn after multiples of `refresh_rate` batches, at most ten times a second, where the output is no terminal
    once a second, and after the last batch of each epoch; 0 hides it. `process_position` is the first line, `leave`
    keeps the line of each epoch.

    >>> bar = TQDMProgressBar(refresh_rate=10)
    >>> bar.is_enabled, TQDMProgressBar(refresh_rate=0).is_enabled
    (True, False)
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
    _draws_by_time = True

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False):
        super().__init__()
        least = int(os.environ.get("TQDM_MINITERS", 0))
        self._refresh_rate = max(refresh_rate, least) if refresh_rate > 0 else refresh_rate
        self._each = max(self._refresh_rate, 1)
        self._process_position, self._leave, self._enabled = process_position, leave, True
        self._bars: dict[str, Tqdm] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_bars": {}, "_trainer": None}  # neither can be pickled

    @property
    def refresh_rate(self) -> int:
        """The number of batches after whose multiples it is drawn.

        >>> TQDMProgressBar(refresh_rate=10).refresh_rate
        10
        """
        return self._refresh_rate

    @property
    def process_position(self) -> int:
        """The line of the terminal that it begins in.

        >>> TQDMProgressBar().process_position
        0
        """
        return self._process_position

    @property
    def is_enabled(self) -> bool:
        """Is it shown?"""
        return self._enabled and self._refresh_rate > 0

    def disable(self) -> None:
        """Hide it.

        >>> bar = TQDMProgressBar()
        >>> bar.disable()
        >>> bar.is_disabled
        True
        """
        self._enabled = False

    def enable(self) -> None:
        """Show it."""
        self._enabled = True

    # -- the bars, which may be overridden

    def _new(self, description: str, beside: int = 0, leave: bool = True, **more: Any) -> Tqdm:
        return Tqdm(
            desc=description,
            position=2 * self.process_position + beside,
            disable=self.is_disabled,
            leave=leave,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=self.BAR_FORMAT,
            **more,
        )

    def init_sanity_tqdm(self) -> Tqdm:
        """The bar of the validation that is tried before a training."""
        return self._new(self.sanity_check_description, leave=False)

    def init_train_tqdm(self) -> Tqdm:
        """The bar of the training."""
        return self._new(self.train_description, smoothing=0)

    def init_predict_tqdm(self) -> Tqdm:
        """The bar of predictions."""
        return self._new(self.predict_description, smoothing=0)

    def init_validation_tqdm(self) -> Tqdm:
        """The bar of a validation, below that of the training if there is one."""
        below = self.trainer.state.fn != "validate"
        return self._new(self.validation_description, beside=int(below), leave=not below)

    def init_test_tqdm(self) -> Tqdm:
        """The bar of a test."""
        return self._new(self.test_description)

    def _bar(self, name: str) -> Tqdm:
        if name not in self._bars:
            raise TypeError(f"{type(self).__name__}: there is no bar of the {name} now")
        return self._bars[name]

    @property
    def train_progress_bar(self) -> Tqdm:
        """The bar of the training; TypeError where there is none yet."""
        return self._bar("train")

    @train_progress_bar.setter
    def train_progress_bar(self, bar: Tqdm) -> None:
        self._bars["train"] = bar

    @property
    def val_progress_bar(self) -> Tqdm:
        """The bar of the validation; TypeError where there is none yet."""
        return self._bar("val")

    @val_progress_bar.setter
    def val_progress_bar(self, bar: Tqdm) -> None:
        self._bars["val"] = bar

    @property
    def test_progress_bar(self) -> Tqdm:
        """The bar of the test; TypeError where there is none yet."""
        return self._bar("test")

    @test_progress_bar.setter
    def test_progress_bar(self, bar: Tqdm) -> None:
        self._bars["test"] = bar

    @property
    def predict_progress_bar(self) -> Tqdm:
        """The bar of the predictions; TypeError where there is none yet."""
        return self._bar("predict")

    @predict_progress_bar.setter
    def predict_progress_bar(self, bar: Tqdm) -> None:
        self._bars["predict"] = bar

    # -- training

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remember the Trainer; hide the bar on all ranks but the first."""
        super().setup(trainer, pl_module, stage)
        self.draws_every = ProgressBar.draws_every if sys.stdout.isatty() else _INTO_A_FILE

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the bar of the validation that is tried."""
        self.val_progress_bar = self.init_sanity_tqdm()

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """Close it."""
        self.val_progress_bar.close()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the bar of the training."""
        self.train_progress_bar = self.init_train_tqdm()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        if self._leave and trainer.current_epoch:
            self.train_progress_bar = self.init_train_tqdm()
        _restart(self.train_progress_bar, self._begin_epoch(), f"Epoch {trainer.current_epoch}")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Draw it, where that is due."""
        bar = self._bars["train"]
        if self._is_due(batch_idx + 1, bar.total):
            bar.n = batch_idx + 1
            bar.set_postfix(self.get_metrics(trainer, pl_module))  # draws, too

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Show the metrics of the epoch."""
        bar = self.train_progress_bar
        if not bar.disable:
            bar.set_postfix(self.get_metrics(trainer, pl_module))
        if self._leave:
            bar.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar."""
        self.train_progress_bar.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close all bars, so that the message stands below them."""
        for bar in self._bars.values():
            bar.close()

    # -- validation, test, prediction

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the bar of the validation."""
        if not trainer.sanity_checking:
            self.val_progress_bar = self.init_validation_tqdm()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin anew for another loader."""
        if self.has_dataloader_changed(dataloader_idx):
            name = self.sanity_check_description if trainer.sanity_checking else self.validation_description
            total = self.total_val_batches_current_dataloader
            _restart(self.val_progress_bar, total, f"{name} DataLoader {dataloader_idx}")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw it, where that is due."""
        self._advance(self.val_progress_bar, batch_idx + 1)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar, and show the metrics in that of the training."""
        self.val_progress_bar.close()
        self.reset_dataloader_idx_tracker()
        if "train" in self._bars and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the bar of the test."""
        self.test_progress_bar = self.init_test_tqdm()

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin anew for another loader."""
        if self.has_dataloader_changed(dataloader_idx):
            total, name = self.total_test_batches_current_dataloader, self.test_description
            _restart(self.test_progress_bar, total, f"{name} DataLoader {dataloader_idx}")

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw it, where that is due."""
        self._advance(self.test_progress_bar, batch_idx + 1)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar."""
        self.test_progress_bar.close()
        self.reset_dataloader_idx_tracker()

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the bar of the predictions."""
        self.predict_progress_bar = self.init_predict_tqdm()

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin anew for another loader."""
        if self.has_dataloader_changed(dataloader_idx):
            total, name = self.total_predict_batches_current_dataloader, self.predict_description
            _restart(self.predict_progress_bar, total, f"{name} DataLoader {dataloader_idx}")

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw it, where that is due."""
        self._advance(self.predict_progress_bar, batch_idx + 1)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar."""
        self.predict_progress_bar.close()
        self.reset_dataloader_idx_tracker()

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bar."""
        shown = next((bar for bar in self._bars.values() if not bar.disable), None)
        if shown is not None:
            shown.write(sep.join(map(str, args)), **kwargs)
        elif self.is_enabled:
            print(*args, sep=sep, **kwargs)

    def _advance(self, bar: Tqdm, done: int) -> None:
        if self._is_due(done, bar.total) and not bar.disable:
            bar.n = done
            bar.refresh()


def _restart(bar: Tqdm, total: float, description: str) -> None:
    """Begin anew with so many batches; where nobody knows how many, tqdm wants None."""
    bar.total = total if math.isfinite(total) else None
    bar.initial = 0
    bar.set_description(description, refresh=False)
    bar.reset()  # draws it
