"""Several loaders of a training, and those of its validation: a run that goes on reads what is left of each."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon
from gluongraph.lightning.data import ArrayLoader, CombinedLoader
from gluongraph.lightning.data.combined import flatten

torch = pytest.importorskip("torch")
data = torch.utils.data
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def rows(count: int) -> tuple[Any, Any]:
    x = np.random.RandomState(count).rand(count, 3).astype(np.float32)
    return x, x.sum(1)


def arrays(count: int = 14, **how: Any) -> Any:
    return ArrayLoader(*rows(count), batch_size=4, shuffle=True, **how)


def of_gluon(count: int = 14) -> Any:
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*rows(count)), batch_size=4, shuffle=True)


def tensors(count: int = 14, **how: Any) -> Any:
    return data.DataLoader(data.TensorDataset(*map(torch.from_numpy, rows(count))), batch_size=4, shuffle=True, **how)


def with_generator(count: int = 14, seed: int = 7, **how: Any) -> Any:
    return tensors(count, generator=torch.Generator().manual_seed(seed), **how)


class Noisy(data.Dataset):
    """Samples that are changed at random when they are read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        x = torch.full((3,), float(i)) + torch.rand(3) + float(np.random.rand())
        return x, x.sum()


def noisy() -> Any:
    return data.DataLoader(Noisy(), batch_size=4, shuffle=True)


def parts(batch: Any) -> list[Any]:
    """The (x, y) in a batch of one loader or of several, some of which may have ended."""
    if batch is None:
        return []
    if isinstance(batch, dict):
        return [part for each in batch.values() for part in parts(each)]
    if isinstance(batch, (list, tuple)) and not hasattr(batch[0], "shape"):
        return [part for each in batch for part in parts(each)]
    return [batch]


class OfTorch(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

    def loss(self, batch: Any) -> Any:
        return sum(((self.net(x)[:, 0] - y) ** 2).mean() for x, y in parts(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.01)

    def weights(self) -> list[Any]:
        return [p.detach().tolist() for p in self.parameters()]


class OfGluon(OfTorch):
    def __init__(self) -> None:
        L.LightningModule.__init__(self)
        mx.random.seed(0)
        self.net = gluon.nn.HybridSequential()
        self.net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.Dropout(0.5), gluon.nn.Dense(1, in_units=4))
        self.net.initialize(mx.init.Xavier())

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.collect_params(), "adam", {"learning_rate": 0.01})

    def weights(self) -> list[Any]:
        return [p.data().asnumpy().tolist() for p in self.collect_params().values()]


class Watching(L.Callback):
    """What is read and computed, and checkpoints at some moments: of each how much had been seen."""

    def __init__(self, folder: pathlib.Path, moments: tuple[str, ...] = ()):
        self.folder, self.moments = folder, moments
        self.seen: list[Any] = []
        self.saved: dict[str, int] = {}

    def look(self, trainer: Any, batch: Any) -> None:
        if not trainer.sanity_checking:
            read = [np.asarray(x).tolist() for x, _ in parts(batch)]
            self.seen.append([trainer.state.stage, trainer.global_step, read])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.look(trainer, batch)
        self.save(trainer, f"batch {trainer.global_step}")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.look(trainer, batch)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.seen.append(float(trainer.callback_metrics.get("val_loss", 0)))
            self.save(trainer, f"validation {trainer.global_step}")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.save(trainer, f"epoch {trainer.current_epoch}")

    def save(self, trainer: Any, moment: str) -> None:
        if moment in self.moments:
            trainer.save_checkpoint(self.folder / f"{moment}.ckpt")
            self.saved[moment] = len(self.seen)


def check(
    tmp_path: pathlib.Path, make: Callable[[], Any], loaders: Callable[[], tuple[Any, ...]], *at: str, **how: Any
) -> None:
    """Train, and go on from checkpoints of these moments: in each case all is as it was."""

    def train(start: int, path: Any = None, moments: tuple[str, ...] = ()) -> tuple[Any, Watching]:
        module, watching = make(), Watching(tmp_path, moments)
        L.seed_everything(start, verbose=False)
        trainer = L.Trainer(max_epochs=2, callbacks=[watching], **{**QUIET, **how})
        trainer.fit(module, *loaders(), ckpt_path=path)
        return module.weights(), watching

    weights, whole = train(1, moments=at)
    assert set(whole.saved) == set(at)
    for i, (moment, count) in enumerate(whole.saved.items()):
        again, rest = train(50 + i, tmp_path / f"{moment}.ckpt")
        assert rest.seen == whole.seen[count:], moment
        assert again == weights, moment


TOGETHER: dict[str, tuple[type, Callable[[], Any]]] = {
    "a list": (OfTorch, lambda: [tensors(14), with_generator(6)]),
    "a dictionary": (OfTorch, lambda: {"a": noisy(), "b": (tensors(6), with_generator(22))}),
    "a list, gluon": (OfGluon, lambda: [arrays(14), of_gluon(6), arrays(6, seed=3)]),
    "min_size": (OfTorch, lambda: CombinedLoader({"a": with_generator(20), "b": noisy()}, "min_size")),
    "max_size": (OfTorch, lambda: CombinedLoader({"a": with_generator(14), "b": noisy()}, "max_size")),
    "max_size_cycle": (OfTorch, lambda: CombinedLoader([with_generator(14), noisy()], "max_size_cycle")),
    "sequential": (OfTorch, lambda: CombinedLoader([with_generator(9), noisy()], "sequential")),
    "sequential, gluon": (OfGluon, lambda: CombinedLoader([arrays(9), of_gluon(9)], "sequential")),
    "max_size, gluon": (OfGluon, lambda: CombinedLoader([arrays(14), of_gluon(6)], "max_size")),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_several_loaders_of_a_training(case: str, tmp_path: pathlib.Path) -> None:
    kind, loaders = TOGETHER[case]
    assert len(flatten(loaders() if not isinstance(loaders(), CombinedLoader) else loaders().iterables)) > 1
    check(tmp_path, kind, lambda: (loaders(),), "batch 2", "epoch 0")


def sharing() -> tuple[Any, Any]:
    """One generator in the loaders of training and validation."""
    generator = torch.Generator().manual_seed(5)
    return tensors(generator=generator), tensors(9, generator=generator)


STAYING = {"num_workers": 1, "persistent_workers": True}
VALIDATED: dict[str, tuple[type, Callable[[], Any]]] = {
    "a generator": (OfTorch, lambda: (tensors(), with_generator(9))),
    "two generators": (OfTorch, lambda: (tensors(), [with_generator(9), with_generator(6, 3)])),
    "one generator in both": (OfTorch, sharing),
    "combined": (
        OfTorch,
        lambda: (tensors(), CombinedLoader([with_generator(9), with_generator(6)], "max_size_cycle")),
    ),
    "workers that stay": (OfTorch, lambda: (tensors(), with_generator(9, **STAYING))),
    "arrays": (OfGluon, lambda: (arrays(), arrays(9))),
    "of gluon": (OfGluon, lambda: (of_gluon(), of_gluon(9))),
    "one loader for both": (OfGluon, lambda: (loader := arrays(), loader)),
    "one loader for both, of gluon": (OfGluon, lambda: (loader := of_gluon(), loader)),
    "one loader for both, of torch": (OfTorch, lambda: (loader := with_generator(), loader)),
}


@pytest.mark.parametrize("case", VALIDATED)
def test_loaders_of_the_validation(case: str, tmp_path: pathlib.Path) -> None:
    kind, loaders = VALIDATED[case]
    check(tmp_path, kind, loaders, "validation 2", "batch 3", "epoch 0", val_check_interval=2)


@pytest.mark.parametrize("case", ["a generator", "arrays", "of gluon", "one loader for both"])
def test_loaders_of_the_validation_that_are_not_read_to_their_end(case: str, tmp_path: pathlib.Path) -> None:
    kind, loaders = VALIDATED[case]
    check(tmp_path, kind, loaders, "validation 2", "batch 5", val_check_interval=2, limit_val_batches=2)
