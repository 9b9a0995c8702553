"""Data modules and callbacks that are derived from Lightning's own classes."""

from __future__ import annotations

from typing import Any

import pytest

import gluongraph.lightning as L
from gluongraph.lightning.foreign import is_callback

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(pl.LightningDataModule):
    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(self.hparams.count, 3)), 4)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls = [*state_dict["calls"], "loaded"]

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {stage}")


class Count(pl.Callback):
    def __init__(self) -> None:
        self.epochs = 0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


def test_they_take_part(tmp_path: Any) -> None:
    data, count = Data(), Count()
    trainer = L.Trainer(max_epochs=2, callbacks=[count], enable_checkpointing=False, **QUIET)
    trainer.fit(Model(), data)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    assert trainer.global_step == 4 and count.epochs == 2
    assert data.calls == ["prepare_data", "setup fit", "teardown fit"]
    assert trainer.engines.mode == "fused"  # hooks of Lightning's class, which do nothing, are nobody's
    again, data = Count(), Data()
    resumed = L.Trainer(max_epochs=3, callbacks=[again], enable_checkpointing=False, **QUIET)
    resumed.fit(Model(), datamodule=data, ckpt_path=tmp_path / "saved.ckpt")
    assert resumed.global_step == 6 and again.epochs == 3 and "loaded" in data.calls


def test_lightnings_own_callbacks_are_named() -> None:
    stopping = pl.callbacks.EarlyStopping("loss")
    assert not is_callback(stopping) and is_callback(Count())
    with pytest.raises(L.MisconfigurationException, match=r"(?s)EarlyStopping of Lightning.*gluongraph.*EarlyStopping"):
        L.Trainer(max_epochs=1, callbacks=[stopping], **QUIET)


def test_its_loggers_are_loggers(tmp_path: Any) -> None:
    logger = pl.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer = L.Trainer(
        max_epochs=1, log_every_n_steps=1, **(QUIET | {"logger": logger, "enable_checkpointing": False})
    )

    class Logs(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    trainer.fit(Logs(), Data())
    rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3 and "loss" in rows[0]
