"""Seeds, messages of rank 0, and what else Lightning has under this name."""

from gluongraph.lightning.absent import says_what_instead
from gluongraph.lightning.data.combined import CombinedLoader
from gluongraph.lightning.errors import MisconfigurationException
from gluongraph.lightning.utilities.devices import move_data_to_device
from gluongraph.lightning.utilities.grads import grad_norm
from gluongraph.lightning.utilities.logo import cli_lightning_logo
from gluongraph.lightning.utilities.parsing import AttributeDict
from gluongraph.lightning.utilities.rank_zero import (
    rank_zero_debug,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)
from gluongraph.lightning.utilities.seed import isolate_rng, seed_everything
from gluongraph.lightning.utilities.throughput import measure_flops

__all__ = [
    "AttributeDict",
    "CombinedLoader",
    "MisconfigurationException",
    "cli_lightning_logo",
    "grad_norm",
    "isolate_rng",
    "measure_flops",
    "move_data_to_device",
    "rank_zero_debug",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "seed_everything",
]

__getattr__ = says_what_instead(__name__, {})
