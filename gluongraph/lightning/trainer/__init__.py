"""The Trainer, and what it is doing."""

from gluongraph.lightning.absent import says_what_instead
from gluongraph.lightning.trainer.trainer import Trainer
from gluongraph.lightning.utilities.seed import seed_everything

__all__ = ["Trainer", "seed_everything"]

__getattr__ = says_what_instead(__name__, {})
