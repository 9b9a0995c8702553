"""Checkpoints within a window of batches: what is kept between batches, and what an epoch began with, goes on."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon
from gluongraph.lightning.data import ArrayLoader

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:an epoch has", "ignore:SWALR", "ignore:To get the last learning rate")
BATCHES, EPOCHS = 6, 3


class OfTorch(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        self.register_buffer("average", torch.zeros(1, 3))

    def loss(self, net: Any, batch: Any) -> Any:
        x, y = batch
        return ((net(x)[:, 0] - y) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(self.net, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), 0.05)

    def weights(self) -> list[Any]:
        return [p.detach().tolist() for p in (*self.parameters(), *self.buffers())]


class Staged(OfTorch):
    def on_after_backward(self) -> None:
        pass


class Kept(OfTorch):
    """Its hooks decide how long gradients are kept."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class Manual(OfTorch):
    """One of its optimizers accumulates, over the end of an epoch too."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.register_buffer("batches", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(self.loss(self.net, batch))
        first.step()
        self.manual_backward(self.loss(self.other, batch) / 4)
        self.batches += 1
        if self.batches % 4 == 0:
            second.step()
            second.zero_grad()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), 0.05), torch.optim.SGD(self.other.parameters(), 0.1)


class Averaging(OfTorch):
    """Its own hook follows the weights after each batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.average += 0.5 * (self.net.weight.detach() - self.average)


class OfGluon(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        mx.random.seed(0)
        self.net = gluon.nn.Dense(1, in_units=3)
        self.net.initialize()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return ((self.net(x)[:, 0] - y) ** 2).mean()

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.collect_params(), "adam", {"learning_rate": 0.05})

    def weights(self) -> list[Any]:
        return [p.data().asnumpy().tolist() for p in self.collect_params().values()]


class Saving(L.callbacks.Checkpoint):
    """Saves after every batch, as no interval in updates does."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.batches = folder, 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        trainer.save_checkpoint(self.folder / f"{self.batches}.ckpt")


def averaging() -> Any:
    return L.callbacks.StochasticWeightAveraging(0.02, swa_epoch_start=1, annealing_epochs=2)


CASES: dict[str, tuple[type, dict[str, Any], Callable[[], list[Any]]]] = {
    "fused": (OfTorch, {"accumulate_grad_batches": 4}, list),
    "staged": (Staged, {"accumulate_grad_batches": 4}, list),
    "eager": (OfTorch, {"accumulate_grad_batches": 4, "eager": True}, list),
    "hooks that keep gradients": (Kept, {"eager": True}, list),
    "manual": (Manual, {}, list),
    "a hook of the module after a batch": (Averaging, {}, list),
    "gluon": (OfGluon, {"accumulate_grad_batches": 4}, list),
    "gluon, eager": (OfGluon, {"accumulate_grad_batches": 4, "eager": True}, list),
    "another window in each epoch": (
        OfTorch,
        {},
        lambda: [L.callbacks.GradientAccumulationScheduler({0: 2, 1: 4, 2: 1})],
    ),
    "a schedule that a callback has set": (OfTorch, {}, lambda: [averaging()]),
}


def fit(module: Any, callbacks: list[Any], path: Any = None, **how: Any) -> L.Trainer:
    x = np.random.RandomState(0).rand(4 * BATCHES, 3).astype(np.float32)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    if not any(isinstance(each, L.callbacks.Checkpoint) for each in callbacks):
        quiet["enable_checkpointing"] = False
    trainer = L.Trainer(max_epochs=EPOCHS, callbacks=callbacks, **quiet, **how)
    trainer.fit(module, ArrayLoader(x, x.sum(1), batch_size=4, shuffle=True, seed=1), ckpt_path=path)
    return trainer


def train(case: str, folder: pathlib.Path | None, path: Any = None, callbacks: Sequence[Any] = ()) -> Any:
    made, how, own = CASES[case]
    module = made()
    saving = [] if folder is None else [Saving(folder)]
    trainer = fit(module, [*own(), *callbacks, *saving], path, **how)
    return module.weights(), trainer.global_step


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_the_same(case: str, tmp_path: pathlib.Path) -> None:
    whole = train(case, tmp_path)
    for batches in (1, 2, 5, BATCHES, BATCHES + 3):
        assert train(case, None, tmp_path / f"{batches}.ckpt") == whole, f"after {batches} batches"


MODES = ("fused", "staged", "eager"), ("gluon", "gluon, eager")


@pytest.mark.parametrize(("begun", "gone_on"), [(a, b) for modes in MODES for a in modes for b in modes if a != b])
def test_a_window_goes_on_in_another_mode(begun: str, gone_on: str, tmp_path: pathlib.Path) -> None:
    whole, steps = train(begun, tmp_path)
    for batches in (2, 5, BATCHES + 1):  # of four, of the two that are left of an epoch, and of four in the next one
        weights, made = train(gone_on, None, tmp_path / f"{batches}.ckpt")
        assert made == steps
        for ours, wanted in zip(weights, whole, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-6)


class BreaksBefore(L.callbacks.Callback):
    """Raises an error before a batch is trained on."""

    def __init__(self, batches: int):
        self.left = batches

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left < 0:
            self.stop()

    def stop(self) -> None:
        raise ZeroDivisionError


class BreaksWithin(BreaksBefore):
    """Raises it where the gradients of a window begin anew, which only modes other than the fused one show."""

    def stop(self) -> None:
        """Not yet."""

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.left < 0:
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("case", "breaks"),
    [
        *((case, BreaksBefore) for case in ("fused", "staged", "eager", "gluon", "manual")),
        *((case, BreaksWithin) for case in ("staged", "eager")),
    ],
)
def test_a_batch_that_raised_an_error_is_trained_on(case: str, breaks: Any, tmp_path: pathlib.Path) -> None:
    """From the checkpoint of an exception a training goes on with the batch that it met."""
    whole = train(case, tmp_path)
    for batches in (0, 1, 4, BATCHES, 2 * BATCHES - 1):
        saving = L.callbacks.OnExceptionCheckpoint(tmp_path, f"{batches}-error")
        with pytest.raises(ZeroDivisionError):
            train(case, None, callbacks=[breaks(batches), saving])
        assert train(case, None, tmp_path / f"{batches}-error.ckpt") == whole, batches


class BreaksOnce:
    """A loader that raises an error while batches are read ahead."""

    def __init__(self, reads: int):
        self.left = reads

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[Any]:
        for number in range(40):
            self.left -= 1
            if self.left == 0:
                raise ZeroDivisionError
            x = np.random.RandomState(number).rand(4, 3).astype(np.float32)
            yield x, x.sum(1)


@pytest.mark.parametrize("reads", [1, 13, 40, 41, 60])
def test_batches_that_were_read_ahead_are_trained_on(reads: int, tmp_path: pathlib.Path) -> None:
    """Where several steps are one call, an error of the loader comes before the updates of the batches before it."""

    def fitted(reads: int, callbacks: Any = (), path: Any = None) -> Any:
        module = OfTorch()
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        quiet["enable_checkpointing"] = bool(callbacks)
        trainer = L.Trainer(max_epochs=2, callbacks=list(callbacks), steps_per_call=8, **quiet)
        trainer.fit(module, BreaksOnce(reads), ckpt_path=path)
        return module.weights(), trainer.global_step

    whole = fitted(1000)
    with pytest.raises(ZeroDivisionError):
        fitted(reads, [L.callbacks.OnExceptionCheckpoint(tmp_path, "error")])
    assert fitted(1000, path=tmp_path / "error.ckpt") == whole


class OnPlateau(OfTorch):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.net.parameters(), 0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}


class AtEpochs(L.callbacks.Callback):
    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.folder / f"epoch{trainer.current_epoch}.ckpt")


def test_a_schedule_on_plateaus_goes_on_from_the_end_of_an_epoch(tmp_path: pathlib.Path) -> None:
    def rate(callbacks: Any, path: Any = None) -> Any:
        module = OnPlateau()
        trainer = fit(module, callbacks, path)
        return module.weights(), trainer.optimizers[0].param_groups[0]["lr"]

    whole = rate([AtEpochs(tmp_path)])
    assert whole[1] < 0.05
    for epoch in range(EPOCHS):
        assert rate([], tmp_path / f"epoch{epoch}.ckpt") == whole


def test_a_window_without_gradients_kept_is_no_larger(tmp_path: pathlib.Path) -> None:
    """Gradients that the next batch begins anew are not saved."""
    from gluongraph.lightning import checkpoints

    train("eager", tmp_path)
    names = [set(checkpoints.read(str(tmp_path / f"{n}.ckpt")).groups["extra"]) for n in (1, 4)]
    assert {"mean:grad:net.weight", "mean:grad:net.bias"} <= names[0]
    assert not any(name.startswith("mean:grad") for name in names[1])


def test_gradients_of_rows(tmp_path: pathlib.Path) -> None:
    from gluongraph.lightning.engine import unused_gradients

    module = torch.nn.Embedding(5, 2, sparse=True)
    module(torch.tensor([1, 3])).sum().backward()
    saved = unused_gradients.taken(module, None, True)
    expected = module.weight.grad.to_dense()
    module.weight.grad = None
    unused_gradients.put(module, None, True, saved)
    assert module.weight.grad.is_sparse
    assert torch.equal(module.weight.grad.to_dense(), expected)
