"""Objects of torchmetrics in compiled steps: what cannot be is refused, states are saved, ranks compute together."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest
from nets import QUIET
from ranks import needs_mpi, run_ranks

import gluongraph.lightning as L
from gluongraph.errors import MXNetError
from gluongraph.lightning.errors import MisconfigurationException

torch = pytest.importorskip("torch")
torchmetrics = pytest.importorskip("torchmetrics")
classification = pytest.importorskip("torchmetrics.classification")

pytestmark = pytest.mark.filterwarnings("ignore:an epoch has", "ignore:The folder of checkpoints")


class Model(L.LightningModule):
    """A classifier with metrics of counts, of lists and of several names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 3)
        self.accuracy = classification.MulticlassAccuracy(3)
        self.auroc = classification.MulticlassAUROC(3, thresholds=None)
        self.metrics = torchmetrics.MetricCollection(
            {"f1": classification.MulticlassF1Score(3), "recall": classification.MulticlassRecall(3)}, prefix="train_"
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0])
        self.measure(logits, batch[1])
        return torch.nn.functional.cross_entropy(logits, batch[1])

    def measure(self, logits: Any, y: Any) -> None:
        self.accuracy(logits, y)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.auroc.update(logits, y)
        self.log("auroc", self.auroc, on_step=False, on_epoch=True)
        self.metrics.update(logits, y)
        self.log_dict(self.metrics, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def samples(count: int = 48) -> Any:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))


def loader(size: int = 8) -> Any:
    return torch.utils.data.DataLoader(samples(), batch_size=size)


def fit(model: Any, ckpt_path: Any = None, **how: Any) -> Any:
    trainer = L.Trainer(**{**QUIET, "max_epochs": 2, **how})
    trainer.fit(model, loader(), ckpt_path=ckpt_path)
    return trainer


def numbers(trainer: Any) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_the_epoch_is_that_of_all_batches(steps_per_call: int) -> None:
    """Also where several steps are one call."""
    got = numbers(fit(Model(), steps_per_call=steps_per_call, max_epochs=4))
    expected = numbers(fit(Model(), eager=True, max_epochs=4))
    assert got == pytest.approx(expected, abs=1e-6) and 0.5 < got["train_f1"] < 1


@pytest.mark.filterwarnings("ignore:the checkpoint has states of callbacks")
def test_a_resumed_epoch_is_whole(tmp_path: pathlib.Path) -> None:
    whole = fit(Model())
    saving = L.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=9, save_top_k=-1)
    fit(Model(), callbacks=[saving], enable_checkpointing=True)
    resumed = fit(model := Model(), tmp_path / "step=9.ckpt")
    assert numbers(resumed) == numbers(whole)
    assert model.auroc.preds == [] and not model.accuracy.update_called  # forgotten when the epoch has ended


def test_metrics_of_another_epoch_are_forgotten() -> None:
    model = Model()
    trainer = fit(model, max_epochs=1)
    first = numbers(trainer)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader())
    assert numbers(trainer) == numbers(fit(Model())) != first


def test_several_metrics_take_one_array_of_the_program() -> None:
    model = Model()
    trainer = fit(model, max_epochs=1)
    (variant,) = trainer.engines.steps._programs.values()
    calls = variant.recorder.calls
    assert len(calls.calls) == 3 and len(calls.tensors) == 2


class Computing(Model):
    """Does something with what a metric gives for a batch."""

    use = staticmethod(lambda value: value + 1)

    def measure(self, logits: Any, y: Any) -> None:
        self.log("value", self.use(self.accuracy(logits, y)))


@pytest.mark.parametrize(
    "use",
    [
        lambda value: value + 1,
        lambda value: value.item(),
        lambda value: float(value),
        lambda value: value if value > 0.5 else 0.0,
        lambda value: torch.as_tensor(value),
        lambda value: f"{value}",
        lambda value: list(value),
    ],
)
def test_the_value_of_a_batch_can_only_be_logged(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Computing, "use", staticmethod(use))
    with pytest.raises(MXNetError, match="asks for the value of MulticlassAccuracy") as error:
        fit(Computing())
    assert "help: self.log(name, value); torchmetrics.functional" in str(error.value)
    assert "test_metric_objects.py" in str(error.value)


def test_the_value_of_a_batch_is_no_result() -> None:
    class Returning(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.net(batch[0])
            value = self.accuracy(logits, batch[1])
            return {"loss": torch.nn.functional.cross_entropy(logits, batch[1]), "accuracy": value}

    with pytest.raises(MXNetError, match="training_step gives the value of MulticlassAccuracy"):
        fit(Returning())


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (lambda m, z, y: m.log("a", m.hidden[0]), "is no attribute of Odd"),
        (lambda m, z, y: m.log("a", m.metrics), "a collection of metrics was given"),
        (lambda m, z, y: m.log("a", m.each(z, y)), "gives an array of shape (3,)"),
        (lambda m, z, y: (m.each.update(z, y), m.log("a", m.each, on_epoch=True)), "gives an array of shape (3,)"),
        (lambda m, z, y: m.log_dict(m.accuracy(z, y)), "gives one value, no dict"),
        (lambda m, z, y: m.log("a", m.named(z, y)), "gives a dict: multiclassaccuracy_0"),
        (lambda m, z, y: (m.log("a", m.accuracy), m.log("a", m.auroc)), "self.log('a', ...) is called twice"),
    ],
)
def test_what_is_no_number_is_refused(log: Any, message: str) -> None:
    class Odd(Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [classification.MulticlassAccuracy(3)]
            self.each = classification.MulticlassAccuracy(3, average=None)
            self.named = torchmetrics.ClasswiseWrapper(classification.MulticlassAccuracy(3, average=None))

        def measure(self, logits: Any, y: Any) -> None:
            log(self, logits, y)

    with pytest.raises((MisconfigurationException, MXNetError)) as error:
        fit(Odd())
    assert message in str(error.value) and "help: " in str(error.value)


def test_metrics_are_those_of_before_where_the_step_cannot_be_traced() -> None:
    """An error leaves the methods of the objects as they were."""
    model = Computing()
    with pytest.raises(MXNetError):
        fit(model)
    assert float(model.accuracy(torch.eye(3), torch.arange(3))) == 1 and "forward" not in vars(model.accuracy)


RANKS = """
import sys
sys.path[:0] = {paths!r}
from test_metric_objects import *

def run(devices, root):
    class Seen(Model):
        def __init__(self):
            super().__init__()
            self.val_accuracy = classification.MulticlassAccuracy(3)

        def validation_step(self, batch, batch_idx):
            self.val_accuracy.update(self.net(batch[0]), batch[1])
            self.log("val_accuracy", self.val_accuracy)

    how = {{**QUIET, "max_epochs": 2, "devices": devices, "default_root_dir": root, "enable_checkpointing": True}}
    saving = L.callbacks.ModelCheckpoint(root, "{{step}}", every_n_train_steps=9, save_top_k=-1)
    for path in (None, root + "/step=9.ckpt"):
        trainer = L.Trainer(**how, callbacks=[saving])
        trainer.fit(Seen(), loader(8 // devices), loader(8 // devices), ckpt_path=path)
        told = {{name: round(value, 5) for name, value in numbers(trainer).items() if "step" not in name}}
        print(f"{{told}}\\n", end="", flush=True)
"""


@needs_mpi
def test_ranks_compute_of_all_batches(tmp_path: pathlib.Path) -> None:
    """In a resumed epoch too; the metrics of a single process are the same."""
    program = RANKS.format(paths=sys.path)
    alone = f"{program}\nrun(1, {str(tmp_path / 'one')!r})"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, resumed = done.stdout.splitlines()
    assert first == resumed and "auroc" in first and "val_accuracy" in first
    two = f"{program}\nrun(2, {str(tmp_path / 'two')!r})"
    assert run_ranks(2, two, timeout=200) == [done.stdout, done.stdout]
