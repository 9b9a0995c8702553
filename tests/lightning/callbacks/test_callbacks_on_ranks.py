"""Callbacks and loggers on two ranks: all decide alike, one writes, and averages are those of one rank."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from ranks import needs_mpi, run_ranks

HERE = str(pathlib.Path(__file__).parent)
PROGRAM = f"""
import math, os, pathlib, sys, warnings
from datetime import timedelta
warnings.simplefilter("ignore")
sys.path.insert(0, {HERE!r})
import numpy as np
from small_fit import Linear, Loader, quiet
from gluongraph.lightning.callbacks import *
from gluongraph.lightning.loggers import *

class Odd(Linear):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self):
        bad = self.trainer.global_rank == 1 and self.trainer.current_epoch == 2
        self.log("own", math.nan if bad else 1.0 / (1 + self.trainer.current_epoch))
"""
STOPPING = """
folder = pathlib.Path(FOLDER)
saving = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last="link")
timed = ModelCheckpoint(dirpath=folder / "timed", train_time_interval=timedelta(seconds=0), save_top_k=1)
loggers = [CSVLogger(folder), TensorBoardLogger(folder, version=0), HTMLLogger(folder, version=0)]
others = [Timer("00:01:00:00"), LearningRateMonitor("step"), ThroughputMonitor(roofline=False), DeviceStatsMonitor()]
trainer = quiet(folder, devices=2, max_epochs=9, enable_checkpointing=True, logger=loggers,
                callbacks=[saving, timed, EarlyStopping("own"), *others])
trainer.fit(Odd(), Loader(6), Loader(2))
names = [os.path.basename(path) for path in (saving.best_model_path, saving.last_model_path, timed.best_model_path)]
print(trainer.current_epoch, names, sorted(map(os.path.basename, saving.best_k_models)))
"""
AVERAGES = """
model = Linear()
trainer = quiet(FOLDER, devices=DEVICES, strategy=STRATEGY, callbacks=[EMAWeightAveraging(decay=0.75)])
trainer.fit(model, Loader(6), Loader(2))
print(np.round(model.weight, 5).tolist(), round(float(trainer.callback_metrics["val_loss"]), 5))
"""


@needs_mpi
def test_all_ranks_decide_alike(tmp_path: pathlib.Path) -> None:
    """A metric that is NaN on one rank stops both; one of them writes."""
    first, second = run_ranks(2, PROGRAM + STOPPING.replace("FOLDER", repr(str(tmp_path))), timeout=300)
    assert first == second and first.startswith("3 ["), first
    run = tmp_path / "lightning_logs" / "version_0"
    names = {path.name.split(".")[0] for path in run.iterdir()}
    assert names == {"checkpoints", "events", "hparams", "metrics", "report"}
    assert [path.name for path in run.parent.iterdir()] == ["version_0"]
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"last.ckpt", "epoch=1-step=12.ckpt", "epoch=2-step=18.ckpt"}
    assert [path.name for path in (tmp_path / "timed").iterdir()] == ["epoch=2-step=18.ckpt"]


@needs_mpi
@pytest.mark.parametrize("strategy", ["ddp", "deepspeed_stage_2"])
def test_averages_are_those_of_one_rank(tmp_path: pathlib.Path, strategy: str) -> None:
    """Both ranks have the same batches, so that the mean of their gradients is that of one."""

    def program(devices: int, strategy: str) -> str:
        text = PROGRAM + AVERAGES.replace("FOLDER", repr(str(tmp_path))).replace("DEVICES", str(devices))
        return text.replace("STRATEGY", repr(strategy))

    alone = subprocess.run([sys.executable, "-c", program(1, "auto")], capture_output=True, text=True, check=True)
    assert run_ranks(2, program(2, strategy), timeout=300) == [alone.stdout, alone.stdout]
