"""Stochastic weight averaging: resuming, and what is refused. What it computes is compared with Lightning's in
tests/lightning/parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gluongraph.lightning as L
from gluongraph import gluon, nd
from gluongraph.lightning.callbacks import StochasticWeightAveraging

torch = pytest.importorskip("torch")
QUIET = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def batches() -> Any:
    data = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)


def fitted(epochs: int, path: Any = None, save: Any = None) -> dict[str, Any]:
    """The state after a training of 6 epochs, of which it does the first, or the rest after a checkpoint."""
    module = Model()
    callback = StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=3)
    trainer = L.Trainer(max_epochs=6, callbacks=[callback, Stop(epochs, save)], **QUIET)
    trainer.fit(module, batches(), ckpt_path=path)
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


class Stop(L.Callback):
    """Ends the training after some epochs, and saves."""

    def __init__(self, epochs: int, path: Any):
        self.epochs, self.path = epochs, path

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch + 1 == self.epochs and self.path is not None:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_resumed_training_averages_the_same(epochs: int, tmp_path: Path) -> None:
    """Before the first average, and between two of them."""
    whole = fitted(6)
    fitted(epochs, save=tmp_path / "saved.ckpt")
    resumed = fitted(6, path=tmp_path / "saved.ckpt")
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


def test_a_training_that_stops_early_keeps_its_weights(tmp_path: Path) -> None:
    stopped = fitted(3, save=tmp_path / "a.ckpt")
    module = Model()
    L.Trainer(max_epochs=6, callbacks=[Stop(3, tmp_path / "b.ckpt")], **QUIET).fit(module, batches())
    assert not np.array_equal(stopped["net.0.weight"], module.state_dict()["net.0.weight"])  # the rates are others
    saved = Model.load_from_checkpoint(tmp_path / "a.ckpt")
    np.testing.assert_array_equal(stopped["net.0.weight"], saved.state_dict()["net.0.weight"])


class OfBlocks(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = gluon.nn.Dense(1, in_units=2)
        self.net.initialize()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.net.collect_params(), "sgd")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"swa_lrs": 0.0}, "swa_lrs=0.0"),
        ({"swa_lrs": []}, r"swa_lrs=\[\]"),
        ({"swa_lrs": 0.1, "swa_epoch_start": 0}, "swa_epoch_start=0"),
        ({"swa_lrs": 0.1, "swa_epoch_start": 1.5}, "swa_epoch_start=1.5"),
        ({"swa_lrs": 0.1, "annealing_strategy": "cosine"}, "annealing_strategy='cosine'"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(L.MisconfigurationException, match=message):
        StochasticWeightAveraging(**arguments)


def test_what_cannot_be_averaged() -> None:
    with pytest.raises(L.MisconfigurationException, match="of Gluon's layers"):
        L.Trainer(max_epochs=1, callbacks=[StochasticWeightAveraging(0.1)], **QUIET).fit(
            OfBlocks(), [(nd.ones((2, 2)),)]
        )
    with pytest.raises(L.MisconfigurationException, match="epochs that have no end"):
        L.Trainer(max_epochs=-1, max_steps=3, callbacks=[StochasticWeightAveraging(0.1)], **QUIET).fit(
            Model(), batches()
        )
