"""Progress bars."""

from __future__ import annotations

from gluongraph.lightning.callbacks.progress.progress_bar import ProgressBar, get_standard_metrics
from gluongraph.lightning.callbacks.progress.rich_progress import RichProgressBar, RichProgressBarTheme
from gluongraph.lightning.callbacks.progress.tqdm_progress import TQDMProgressBar

__all__ = ["ProgressBar", "RichProgressBar", "RichProgressBarTheme", "TQDMProgressBar", "get_standard_metrics"]
