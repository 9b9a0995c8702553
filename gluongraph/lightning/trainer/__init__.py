"""The Trainer, and what it is doing."""

from gluongraph.lightning.trainer.trainer import Trainer
from gluongraph.lightning.utilities.seed import seed_everything

__all__ = ["Trainer", "seed_everything"]
