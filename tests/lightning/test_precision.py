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


@pytest.mark.filterwarnings("ignore:SGD keeps a weight", "ignore:an epoch has")
@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("precision", ["16-mixed", "16-true", "bf16-true"])
@pytest.mark.parametrize("hook", ["on_after_backward", "on_before_optimizer_step"])
def test_hooks_see_gradients(hook: str, precision: str, batches: int) -> None:
    """Of 16 bits, too; and where all batches of a window are left out since the loss was scaled too much."""
    torch = pytest.importorskip("torch")

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Linear(6, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[0]).mean() * 100

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    def halve(self: Any, *args: Any) -> None:
        weight = self.net.weight
        assert weight.grad.dtype == weight.dtype
        weight.grad /= 2

    def fitted(kind: Any) -> tuple[L.Trainer, Any]:
        model = kind()
        trainer = L.Trainer(max_epochs=2, precision=precision, accumulate_grad_batches=batches, **QUIET)
        trainer.fit(model, loader(96, 8))
        return trainer, model.net

    trainer, net = fitted(type("Seeing", (Model,), {hook: halve}))
    plain, other = fitted(Model)
    assert (trainer.engines.mode, plain.engines.mode) == ("staged", "fused")
    assert trainer.counters.steps_applied == plain.counters.steps_applied
    assert torch.allclose(net.bias, other.bias, rtol=1e-2)  # whose gradient the hook has left as it was
    assert not torch.allclose(net.weight, other.weight, rtol=1e-2)


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
