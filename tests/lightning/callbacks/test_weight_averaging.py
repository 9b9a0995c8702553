"""Averages of the weights: against their formula, in validations, at the end, and after a checkpoint."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_fit import Linear, Loader, quiet

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint, WeightAveraging


class Watch(Callback):
    """The weights after each step, and those of the validation."""

    def __init__(self) -> None:
        self.after: list[Any] = []
        self.validated: Any = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.after.append(pl_module.weight)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not trainer.sanity_checking:
            self.validated = pl_module.weight


def average(weights: list[Any], decay: float, every: int = 1, start: int = 0) -> Any:
    found = None
    for step, weight in enumerate(weights):
        if step % every == 0 and step >= start:
            found = weight if found is None else decay * found + (1 - decay) * weight
    return found


CASES: list[tuple[Callable[[], WeightAveraging], Callable[[list[Any]], Any]]] = [
    (lambda: EMAWeightAveraging(decay=0.9), lambda w: average(w, 0.9)),
    (lambda: EMAWeightAveraging(decay=0.5, update_every_n_steps=3), lambda w: average(w, 0.5, every=3)),
    (lambda: EMAWeightAveraging(decay=0.5, update_starting_at_step=5), lambda w: average(w, 0.5, start=5)),
    (WeightAveraging, lambda w: np.mean(w, 0)),
]


class Staged(Linear):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Nothing: it has the staged mode chosen."""


@pytest.mark.parametrize("mode", ["fused", "staged", "eager"])
@pytest.mark.parametrize(("make", "formula"), CASES)
def test_averages(tmp_path: pathlib.Path, make: Any, formula: Any, mode: str) -> None:
    watch, module = Watch(), Staged() if mode == "staged" else Linear()
    trainer = quiet(tmp_path, callbacks=[watch, make()], eager=mode == "eager")
    trainer.fit(module, Loader(8), Loader(1))
    assert trainer.engines.mode == mode
    wanted = formula(watch.after)
    np.testing.assert_allclose(module.weight, wanted, rtol=1e-5)
    np.testing.assert_allclose(watch.validated, wanted, rtol=1e-5)
    assert np.abs(watch.after[-1] - wanted).max() > 1e-3


def test_it_is_what_pytorch_averages(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

    watch, module = Watch(), Linear()
    quiet(tmp_path, callbacks=[watch, EMAWeightAveraging(decay=0.75)]).fit(module, Loader(8))
    theirs = torch.nn.Linear(4, 1, bias=False)
    averaged = AveragedModel(theirs, avg_fn=get_ema_avg_fn(0.75))
    for weight in watch.after:
        with torch.no_grad():
            theirs.weight.copy_(torch.tensor(weight))
        averaged.update_parameters(theirs)
    np.testing.assert_allclose(module.weight, averaged.module.weight.detach().numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:the checkpoint has states of callbacks")
@pytest.mark.parametrize("eager", [False, True])
def test_a_training_that_goes_on(tmp_path: pathlib.Path, eager: bool) -> None:
    """From a checkpoint in the middle the averages are those of a training that was never cut."""
    loader, how = Loader(6), {"eager": eager}
    whole = Linear()
    quiet(tmp_path / "a", max_epochs=2, callbacks=[EMAWeightAveraging(decay=0.9)], **how).fit(whole, loader)
    saving = ModelCheckpoint(dirpath=tmp_path / "c", save_top_k=-1)
    first = quiet(tmp_path / "b", enable_checkpointing=True, callbacks=[EMAWeightAveraging(decay=0.9), saving], **how)
    first.fit(Linear(), loader)
    second, callback = Linear(), EMAWeightAveraging(decay=0.9)
    later = quiet(tmp_path / "d", max_epochs=2, callbacks=[callback], **how)
    later.fit(second, loader, ckpt_path=saving.best_model_path)
    assert callback.state_dict() == {"latest_update_step": 12, "updates": 12}
    np.testing.assert_array_equal(second.weight, whole.weight)


def test_weights_come_back_after_an_error(tmp_path: pathlib.Path) -> None:
    class Fails(Linear):
        def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
            if not self.trainer.sanity_checking:
                raise RuntimeError("here")

    watch, module = Watch(), Fails()
    with pytest.raises(RuntimeError, match="here"):
        quiet(tmp_path, callbacks=[watch, EMAWeightAveraging(decay=0.9)]).fit(module, Loader(4), Loader(1))
    np.testing.assert_array_equal(module.weight, watch.after[-1])


def test_which_batches_it_looks_at(tmp_path: pathlib.Path) -> None:
    seen: list[float] = []

    class Ask(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            seen.append(callback.idle_batches(trainer))

    callback = EMAWeightAveraging(decay=0.9)
    quiet(tmp_path, callbacks=[callback, Ask()]).fit(Linear(), Loader(4))
    assert seen == [0, float("inf"), float("inf"), float("inf")]
    seen.clear()
    callback = EMAWeightAveraging(decay=0.9, update_every_n_steps=2)
    quiet(tmp_path, callbacks=[callback, Ask()]).fit(Linear(), Loader(4))
    assert seen == [0, 0, 0, 0]


def test_what_is_refused(tmp_path: pathlib.Path) -> None:
    refused: list[dict[str, Any]] = [{"decay": 1.0}, {"decay": -0.1}, {"update_every_n_steps": 0}]
    for more in (*refused, {"avg_fn": max}, {"cycle": 1}):
        with pytest.raises(MisconfigurationException, match="EMAWeightAveraging"):
            EMAWeightAveraging(**more)


def test_functions_that_are_no_average(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(MisconfigurationException, match="no decay average"):
        quiet(tmp_path, callbacks=[WeightAveraging(avg_fn=lambda a, w, n: a + w)]).fit(Linear(), Loader(3))


def test_averages_at_ends_of_epochs(tmp_path: pathlib.Path) -> None:
    """They follow the weights of then, beside updates or in place of them."""

    class AtEpochs(WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return epoch_idx is not None and epoch_idx != 1

    watch, module = Watch(), Linear()
    quiet(tmp_path, max_epochs=3, callbacks=[watch, AtEpochs()]).fit(module, Loader(2), Loader(1))
    np.testing.assert_allclose(module.weight, (watch.after[1] + watch.after[5]) / 2, rtol=1e-6)
    np.testing.assert_allclose(watch.validated, watch.after[1], rtol=1e-6)


def test_a_checkpoint_is_used_with_the_averages(tmp_path: pathlib.Path) -> None:
    """Those of the monitored validation, except by a training that goes on (`test_a_training_that_goes_on`)."""
    watch, saving = Watch(), ModelCheckpoint(dirpath=tmp_path / "c", monitor="val_loss", save_top_k=-1)
    trainer = quiet(tmp_path, enable_checkpointing=True, callbacks=[watch, EMAWeightAveraging(decay=0.9), saving])
    trainer.fit(Linear(), Loader(6), Loader(1))
    averaged = average(watch.after, 0.9)
    loaded, tested = Linear.load_from_checkpoint(saving.best_model_path), Linear()
    np.testing.assert_allclose(loaded.weight, averaged, rtol=1e-5)
    (found,) = quiet(tmp_path).validate(tested, Loader(1), ckpt_path=saving.best_model_path, verbose=False)
    np.testing.assert_array_equal(tested.weight, loaded.weight)
    np.testing.assert_allclose(found["val_loss"], saving.best_model_score, rtol=1e-6)
