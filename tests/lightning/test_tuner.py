"""What the search for a rate refuses, and that it leaves nothing behind. What it finds is compared with Lightning's in
tests/lightning/parity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph.lightning as L
from gluongraph import gluon, nd
from gluongraph.lightning.tuner import LRFinder, Tuner

QUIET = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}


class OfBlocks(L.LightningModule):
    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = gluon.nn.Dense(1, in_units=2)
        self.net.initialize()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.net(batch[0]) ** 2).mean()

    def configure_optimizers(self) -> Any:
        rate = self.hparams.learning_rate
        return gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": rate})


def batches() -> list[Any]:
    return [(nd.array(np.random.RandomState(i).randn(4, 2)),) for i in range(5)]


def test_blocks() -> None:
    module, trainer = OfBlocks(), L.Trainer(max_epochs=1, **QUIET)
    before = {name: p.data().asnumpy() for name, p in module.collect_params().items()}
    drawn = np.random.get_state()[1].copy()
    found = Tuner(trainer).lr_find(module, batches(), num_training=30, min_lr=1e-3)
    assert found is not None and found.suggestion() == module.hparams.learning_rate
    assert len(found.results["lr"]) == len(found.results["loss"]) == 30
    assert found.results["loss"][-1] < found.results["loss"][0]
    for name, p in module.collect_params().items():
        np.testing.assert_array_equal(p.data().asnumpy(), before[name])
    np.testing.assert_array_equal(np.random.get_state()[1], drawn)
    assert trainer.global_step == 0
    trainer.fit(module, batches())
    assert trainer.gluon_trainer.learning_rate == found.suggestion()


def test_what_is_refused() -> None:
    tuner, module = Tuner(L.Trainer(max_epochs=1, **QUIET)), OfBlocks()
    with pytest.raises(L.MisconfigurationException, match=r"mode='log'"):
        tuner.lr_find(module, batches(), mode="log")
    with pytest.raises(L.MisconfigurationException, match=r"(?s)have no 'rate'.*attr_name="):
        tuner.lr_find(module, batches(), attr_name="rate")
    del module.hparams["learning_rate"]
    with pytest.raises(L.MisconfigurationException, match="lr nor learning_rate"):
        tuner.lr_find(module, batches())
    with pytest.raises(NotImplementedError, match="scale_batch_size does not exist"):
        tuner.scale_batch_size(module)


def test_too_few_losses() -> None:
    finder = LRFinder("exponential", 1e-3, 1.0, 5, {"lr": [0.1] * 5, "loss": [1.0] * 5})
    with pytest.warns(UserWarning, match="no rate can be suggested from 0 losses"):
        assert finder.suggestion() is None


def test_losses_that_are_not_finite_are_left_out() -> None:
    losses = [9.0, float("nan"), 8.0, 4.0, 3.5, float("inf"), 3.0]
    rates = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert LRFinder("linear", 1.0, 7.0, 7, {"lr": rates, "loss": losses}).suggestion(0, 0) in (3.0, 4.0)
