"""Names of checkpoints are Lightning's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import ModelCheckpoint
from gluongraph.lightning.callbacks.checkpoint_names import filled

PARTS = (
    *("{epoch}", "{step}", "{epoch:02d}", "{step:06d}", "{val_loss}", "{val_loss:.2f}", "{val/acc:.3f}", "{acc:02.0f}"),
    *("{epoch_test}", "{epoch_test:.1f}", "{missing}", "{missing:.2f}", "{missing:d}", "{val.loss:.1e}", "{a-b}"),
    *("net", "{epoch}{epoch}", "x{val_loss:8.3f}", "{step}_{step_2}"),
)
METRICS = {"val_loss": 0.3219, "val/acc": 0.98765, "acc": 1.12, "epoch_test": 7.5, "val.loss": 123.4, "a-b": 1e-7}


@pytest.mark.parametrize("named", [True, False])
def test_names_of_random_patterns(original: Any, named: bool) -> None:
    import torch

    rng = random.Random(0)
    values = {**METRICS, "step_2": 3.0}
    for _ in range(300):
        pattern = "-".join(rng.choice(PARTS) for _ in range(rng.randint(1, 4)))
        version, prefix = rng.choice([None, 1, 12]), rng.choice([None, "p"])
        counted = {"epoch": rng.randint(0, 300), "step": rng.randint(0, 10**7)}
        theirs = original.callbacks.ModelCheckpoint(filename=pattern, auto_insert_metric_name=named)
        tensors = {name: torch.tensor(value) for name, value in {**values, **counted}.items()}
        exact = {name: float(tensors[name]) for name in values}
        ours = ModelCheckpoint(filename=pattern, auto_insert_metric_name=named)
        wanted = theirs.format_checkpoint_name(tensors, ver=version, prefix=prefix)
        assert ours.format_checkpoint_name({**exact, **counted}, ver=version, prefix=prefix) == wanted, pattern


def test_the_default_name() -> None:
    assert ModelCheckpoint().format_checkpoint_name({"epoch": 3, "step": 40}) == "epoch=3-step=40.ckpt"


def test_names_are_looked_up_and_nothing_else() -> None:
    """A pattern reaches no attribute of what it writes."""
    assert filled("{epoch.__class__}-{0}-{__import__}", {"epoch": 1}) == "epoch.__class__=0-0=0-__import__=0"


@pytest.mark.parametrize("pattern", ["{val_loss:d}", "{epoch:s}", "{val_loss:q}"])
def test_a_format_that_does_not_fit(pattern: str) -> None:
    with pytest.raises(MisconfigurationException, match="cannot be written"):
        filled(pattern, {"val_loss": 0.5, "epoch": 3})
