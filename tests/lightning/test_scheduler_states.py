"""Schedulers that go on from a checkpoint have the rates of those that were not interrupted."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph.lightning as L
from gluongraph.errors import FormatError
from gluongraph.lightning.data import ArrayLoader

torch = pytest.importorskip("torch")
S = torch.optim.lr_scheduler
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of schedulers that are read before a step
BATCHES, EPOCHS = 5, 2


class Own(S.LRScheduler):
    """A scheduler of a user's, whose state is a tensor and a dict by numbers."""

    def __init__(self, optimizer: Any):
        self.factor, self.seen = torch.tensor(1.0), {}
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.factor = self.factor * 0.9
        self.seen[len(self.seen)] = True
        return [float(self.factor) * 0.9 ** len(self.seen) for _ in self.optimizer.param_groups]


class Decay:
    """A function with a state, which PyTorch saves."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, epoch: int) -> float:
        self.factor *= 0.9
        return self.factor


def warmup(optimizer: Any) -> Any:
    parts = [S.LinearLR(optimizer, 0.1, 1.0, 3), S.MultiStepLR(optimizer, [2, 4], 0.5)]
    return S.SequentialLR(optimizer, parts, [3])


CASES: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda o: S.MultiStepLR(o, [3, 5, 5], 0.5),
    "SequentialLR": warmup,
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ExponentialLR(o, 0.9), S.MultiStepLR(o, [4], 0.5)], o),
    "several of several": lambda o: S.ChainedScheduler([warmup(o), S.StepLR(o, 3, 0.5)], o),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 2, 2),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=2, mode="triangular2", cycle_momentum=False),
    "LambdaLR": lambda o: S.LambdaLR(o, lambda epoch: 0.9**epoch),
    "LambdaLR of an object": lambda o: S.LambdaLR(o, Decay()),
    "OneCycleLR": lambda o: S.OneCycleLR(o, 0.1, total_steps=12),
    "a scheduler of one's own": Own,
}


class Rates(L.Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def rates(make: Callable[[Any], Any], folder: pathlib.Path | None = None, path: Any = None) -> list[float]:
    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
            return [optimizer], [{"scheduler": make(optimizer), "interval": "step"}]

    seen = Rates()
    saving = [L.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)] if folder else []
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=EPOCHS, callbacks=[seen, *saving], enable_checkpointing=bool(folder), **quiet)
    trainer.fit(Model(), ArrayLoader(np.ones((2 * BATCHES, 2), np.float32), batch_size=2), ckpt_path=path)
    return seen.seen


@pytest.mark.parametrize("case", CASES)
def test_rates_after_a_checkpoint(case: str, tmp_path: pathlib.Path) -> None:
    whole = rates(CASES[case], tmp_path)
    assert len(set(whole)) > 2
    for step in (1, 4, 5, 7):
        assert rates(CASES[case], path=tmp_path / f"step={step}.ckpt") == whole[step:], f"after {step} steps"


def test_another_number_of_schedulers(tmp_path: pathlib.Path) -> None:
    def longer(optimizer: Any) -> Any:
        return S.SequentialLR(optimizer, [S.ConstantLR(optimizer) for _ in range(3)], [2, 4])

    rates(warmup, tmp_path)
    with pytest.raises(FormatError, match="a scheduler of 2 ones; here SequentialLR has 3"):
        rates(longer, path=tmp_path / "step=4.ckpt")
