"""RichModelSummary, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.callbacks.model_summary import RichModelSummary

__all__ = ["RichModelSummary"]
