"""The names of precision: what parameters are kept in, and that nets learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from nets import QUIET, GluonModel, loader, same, weights

import gluongraph as mx
import gluongraph.lightning as L

KEPT = {  # name -> what parameters are kept in
    **dict.fromkeys((32, "32", "32-true", 16, "16", "16-mixed", "bf16", "bf16-mixed"), "float32"),
    **dict.fromkeys((64, "64", "64-true"), "float64"),
    "16-true": "float16",
    "bf16-true": "bfloat16",
}
ALIASES = [(32, "32", "32-true"), (16, "16", "16-mixed"), ("bf16", "bf16-mixed"), (64, "64", "64-true")]


def fit(model: Any, precision: Any, epochs: int = 8) -> L.Trainer:
    mx.random.seed(1)
    trainer = L.Trainer(max_epochs=epochs, precision=precision, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what 16 bits lose, which tests/step/test_precision.py looks at
        trainer.fit(model, loader(96, 8))
    return trainer


@pytest.mark.parametrize("precision", KEPT, ids=repr)
def test_gluon(precision: Any) -> None:
    model = GluonModel()
    start = float(fit(GluonModel(), precision, 1).callback_metrics["train_loss_epoch"])
    trainer = fit(model, precision)
    assert float(trainer.callback_metrics["train_loss_epoch"]) < start - 0.05
    layer = model.net[0]
    assert {np.dtype(p.data().dtype).name for p in (layer.weight, layer.bias)} == {KEPT[precision]}


@pytest.mark.parametrize("precision", KEPT, ids=repr)
def test_torch(precision: Any) -> None:
    torch = pytest.importorskip("torch")

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1].long())
            self.log("loss", loss, on_epoch=True, on_step=False)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    model = Model()
    start = float(fit(Model(), precision, 1).callback_metrics["loss"])
    loss = fit(model, precision).callback_metrics["loss"]
    assert float(loss) < start - 0.05
    assert loss.dtype is (torch.float64 if KEPT[precision] == "float64" else torch.float32)
    assert {str(p.dtype) for p in model.parameters()} == {f"torch.{KEPT[precision]}"}


@pytest.mark.parametrize("precision", [None, *KEPT], ids=repr)
def test_the_name_that_the_trainer_tells(precision: Any) -> None:
    """As Lightning's, which trains with bfloat16 where a CPU is asked for float16, and says so."""
    lightning = pytest.importorskip("lightning.pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = lightning.Trainer(accelerator="cpu", devices=1, precision=precision, **QUIET).precision
    name = L.Trainer(precision=precision, **QUIET).precision
    assert name == ("16-mixed" if precision in (16, "16", "16-mixed") else expected)
    assert L.Trainer(precision=name, **QUIET).precision == name


@pytest.mark.parametrize("names", ALIASES, ids=lambda names: names[-1])
def test_names_of_the_same_precision(names: tuple[Any, ...]) -> None:
    models = [GluonModel() for _ in names]
    for model, name in zip(models, names, strict=True):
        fit(model, name, 1)
    assert all(same(weights(models[0]), weights(model)) for model in models[1:])
