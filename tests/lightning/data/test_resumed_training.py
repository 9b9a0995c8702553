"""A training that goes on from a checkpoint within an epoch ends with the bits of one that was not interrupted."""

from __future__ import annotations

import multiprocessing
import pathlib
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon
from gluongraph.lightning.data import ArrayLoader

pytestmark = pytest.mark.filterwarnings("ignore:an epoch has", "ignore:The folder of checkpoints")
SAMPLES, EPOCHS, EVERY = 22, 2, 4


def seed(number: int) -> None:
    L.utilities.seed_everything(number, verbose=False)


class Seeing(L.Callback):
    """What a training has read and drawn."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        numbers = [random.random(), np.random.rand(), float(mx.random.uniform().asscalar())]
        self.seen.append([trainer.current_epoch, batch_idx, np.asarray(x).tolist(), float(outputs["loss"]), numbers])


class OfGluon(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = gluon.nn.HybridSequential()
        self.net.add(
            gluon.nn.Dense(8, activation="relu", in_units=3), gluon.nn.Dropout(0.5), gluon.nn.Dense(1, in_units=8)
        )
        self.net.initialize(mx.init.Xavier())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return ((self.net(x)[:, 0] - y) ** 2).mean()

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.collect_params(), "adam", {"learning_rate": 0.01})

    def weights(self) -> list[Any]:
        return [p.data().asnumpy().tolist() for p in self.collect_params().values()]


def of_torch(validated: bool = False) -> Any:
    torch = pytest.importorskip("torch")

    class OfTorch(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return ((self.net(x)[:, 0] - y) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.01)

        def weights(self) -> list[Any]:
            return [p.detach().tolist() for p in self.parameters()]

    class Validated(OfTorch):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    return Validated() if validated else OfTorch()


def rows() -> tuple[Any, Any]:
    x = np.random.RandomState(0).rand(SAMPLES, 3).astype(np.float32)
    return x, x.sum(1)


class Changed:
    """Samples with noise, which every generator draws."""

    def __init__(self, torch: Any = None):
        self.x, self.y = rows()
        self.torch = torch

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        noise = np.float32(np.random.rand() + random.random())
        x = self.x[i] * noise
        return (x, self.y[i]) if self.torch is None else (self.torch.from_numpy(x) + self.torch.rand(3), self.y[i])


def torch_loader(workers: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.DataLoader(Changed(torch), batch_size=4, shuffle=True, num_workers=workers)


def staying_workers() -> Any:
    """Of a training and of its validation: each draws a seed when it is started, and in no later epoch."""
    data = pytest.importorskip("torch").utils.data
    dataset = data.TensorDataset(*map(sys.modules["torch"].from_numpy, rows()))
    how = {"batch_size": 4, "num_workers": 1, "persistent_workers": True}
    return data.DataLoader(dataset, shuffle=True, **how), data.DataLoader(dataset, **how)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "gluon": (OfGluon, lambda: gluon.data.DataLoader(Changed(), batch_size=4, shuffle=True)),
    "arrays": (OfGluon, lambda: ArrayLoader(*rows(), batch_size=4, shuffle=True)),
    "torch, processes": (of_torch, lambda: torch_loader(2)),
    "torch": (of_torch, lambda: torch_loader(0)),
    "torch, processes that stay": (partial(of_torch, validated=True), staying_workers),
}


def train(case: str, folder: pathlib.Path, start: int, path: Any = None) -> tuple[Any, list[Any]]:
    make, loader = CASES[case]
    seed(start)
    module, seeing = make(), Seeing()
    saving = L.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=EVERY)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        callbacks=[seeing, saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    made = loader()
    trainer.fit(module, *(made if isinstance(made, tuple) else (made,)), ckpt_path=path)
    assert not multiprocessing.active_children(), "workers end with the training"
    return module.weights(), seeing.seen


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_the_same(case: str, tmp_path: pathlib.Path) -> None:
    weights, seen = train(case, tmp_path / "whole", 1)
    assert len(seen) == EPOCHS * 6
    found = sorted((tmp_path / "whole").glob("step=*"), key=lambda path: int(path.stem.partition("=")[2]))
    assert [path.stem for path in found] == ["step=4", "step=8", "step=12"]
    for path, done in zip(found[:2], (EVERY, 2 * EVERY), strict=True):
        again, rest = train(case, tmp_path / "whole", 50 + done, path)
        assert rest == seen[done:]
        assert again == weights
