"""Attributes that hooks change between batches: a compiled step follows them, as a step that runs in Python does."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph.lightning as L
from gluongraph import gluon, nd
from gluongraph.errors import MXNetError, ShapeError, UnsupportedError
from gluongraph.lightning.read_attributes import ReadAttributes, UserCode

torch = pytest.importorskip("torch")
EPOCHS, SAMPLES, BATCH = 3, 12, 4
QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
}


@dataclasses.dataclass
class Settings:
    weight: float = 0.0


class Model(L.LightningModule):
    """Its loss has a penalty, whose weight a case computes; `exports` counts how often training_step was traced."""

    default = 0.0

    def __init__(self, case: Case, penalty: float = 0.0):
        super().__init__()
        self.save_hyperparameters("penalty")
        nn = torch.nn
        self.first, self.norm, self.drop = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.0)
        self.last, self.act = nn.Linear(4, 3), torch.tanh
        self.register_buffer("buffer", torch.tensor(0.0))
        self.weight, self.flag, self.listed, self.plain = 0.0, False, [0.0, 0.0], torch.zeros(())
        self.settings, self.space = Settings(), types.SimpleNamespace(weight=0.0)
        self.traced = Counted()
        vars(self)["case"] = case

    def on_train_epoch_start(self) -> None:
        self.case.at_epoch(self, self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.case.at_batch(self)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.traced.count += 1
        x, y = batch
        hidden = self.act(self.drop(self.norm(self.first(x))))
        loss = torch.nn.functional.cross_entropy(self.last(hidden), y)
        loss = loss + self.case.weight(self) * self.first.weight.pow(2).sum()
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("checked", torch.tensor(100.0 if self.trainer.sanity_checking else 1.0) * batch[0].mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Counted:
    """A count that tracing may change: in an object, of which a trace reads nothing."""

    count = 0


def _nothing(module: Any, *_: Any) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Case:
    """What hooks change, and the weight of the penalty as training_step reads it."""

    at_epoch: Callable[[Any, int], Any] = _nothing
    at_batch: Callable[[Any], Any] = _nothing
    weight: Callable[[Any], Any] = lambda module: 0.0


def _set(**values: Callable[[Any], Any]) -> Callable[..., None]:
    """A hook that sets attributes."""

    def hook(module: Any, *_: Any) -> None:
        for name, value in values.items():
            setattr(module, name, value(module))

    return hook


CASES = {
    "a float": Case(_set(weight=lambda m: 0.1 * m.current_epoch), weight=lambda m: m.weight),
    "a float of each batch": Case(
        at_batch=_set(weight=lambda m: 0.01 * m.global_step), weight=lambda m: m.weight * (1 - m.weight)
    ),
    "a float that is branched on": Case(
        at_batch=_set(weight=lambda m: 0.1 * (m.global_step // 3)), weight=lambda m: 0.2 if m.weight > 0.05 else 0.1
    ),
    "a float that becomes None": Case(
        _set(weight=lambda m: (0.1, 0.2, 0.3, None)[m.current_epoch]),
        weight=lambda m: 0.5 if m.weight is None else m.weight,
    ),
    "a default of the class": Case(_set(default=lambda m: 0.1 * m.current_epoch), weight=lambda m: m.default),
    "a flag": Case(_set(flag=lambda m: m.current_epoch % 2 == 1), weight=lambda m: 0.2 if m.flag else 0.0),
    "an entry of a list": Case(lambda m, e: m.listed.__setitem__(1, 0.1 * e), weight=lambda m: m.listed[1]),
    "a hyperparameter": Case(lambda m, e: m.hparams.update(penalty=0.1 * e), weight=lambda m: m.hparams.penalty),
    "a dataclass": Case(lambda m, e: setattr(m.settings, "weight", 0.1 * e), weight=lambda m: m.settings.weight),
    "a namespace": Case(lambda m, e: setattr(m.space, "weight", 0.1 * e), weight=lambda m: m.space.weight),
    "a tensor in place": Case(lambda m, e: m.plain.add_(0.1), weight=lambda m: m.plain),
    "another tensor": Case(_set(plain=lambda m: torch.tensor(0.1 * m.current_epoch)), weight=lambda m: m.plain),
    "another buffer": Case(at_batch=_set(buffer=lambda m: m.buffer * 0.5 + 0.1), weight=lambda m: m.buffer),
    "other memory of a parameter": Case(at_batch=lambda m: setattr(m.last.weight, "data", m.last.weight.data * 0.9)),
    "other memory of a buffer": Case(
        at_batch=lambda m: setattr(m.buffer, "data", m.buffer.data * 0.5 + 0.1), weight=lambda m: m.buffer
    ),
    "the epoch": Case(weight=lambda m: 0.1 * m.current_epoch),
    "the trainer's epoch": Case(weight=lambda m: 0.1 if m.trainer.current_epoch > 1 else 0.0),
    "a function": Case(_set(act=lambda m: torch.relu if m.current_epoch else torch.tanh)),
    "a layer that predicts": Case(lambda m, e: m.norm.train(e != 1)),
    "a layer's setting": Case(lambda m, e: setattr(m.norm, "momentum", 0.1 / (e + 1))),
    "another layer": Case(lambda m, e: setattr(m, "drop", torch.nn.Dropout(0.0) if e % 2 else torch.nn.Tanh())),
    "frozen parameters": Case(lambda m, e: m.first.requires_grad_(e != 1)),
}


def batches() -> Any:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, 5, generator=rng), torch.randint(0, 3, (SAMPLES,), generator=rng)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)


def fitted(case: Case, epochs: int = EPOCHS, **how: Any) -> tuple[Model, dict[str, float]]:
    torch.manual_seed(1)
    module = Model(case)
    trainer = L.Trainer(max_epochs=epochs, **QUIET, **how)
    trainer.fit(module, batches(), batches())
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("name", CASES)
def test_follows(name: str) -> None:
    epochs = 4 if "None" in name else EPOCHS
    compiled, metrics = fitted(CASES[name], epochs)
    eager, expected = fitted(CASES[name], epochs, eager=True)
    assert metrics == pytest.approx(expected, rel=1e-5)
    for key, tensor in eager.state_dict().items():
        np.testing.assert_allclose(compiled.state_dict()[key], tensor, rtol=2e-5, atol=1e-6, err_msg=key)
    assert compiled.traced.count < eager.traced.count


def test_a_float_that_moves_is_traced_twice() -> None:
    """As a constant, and once it has changed as an input."""
    module, _ = fitted(CASES["a float of each batch"])
    assert module.traced.count == 2
    assert type(module.weight) is float and module.weight == pytest.approx(0.01 * (EPOCHS * SAMPLES / BATCH - 1))


def test_a_float_that_moves_is_as_exact_as_the_weights() -> None:
    case = CASES["a float of each batch"]
    (compiled, _), (eager, _) = (fitted(case, precision="64-true", eager=eager) for eager in (False, True))
    for key, tensor in eager.state_dict().items():
        np.testing.assert_allclose(compiled.state_dict()[key], tensor, rtol=1e-12, atol=1e-13, err_msg=key)


def test_what_changes_with_each_batch_is_warned_of() -> None:
    counting = Case(at_batch=_set(count=lambda m: m.global_step), weight=lambda m: 0.1 if m.count % 2 else 0.0)
    with pytest.warns(UserWarning, match=r"training_step is traced and compiled for the 10th time.*self\.count"):
        compiled, _ = fitted(counting, epochs=4)
    eager, _ = fitted(counting, epochs=4, eager=True)
    np.testing.assert_allclose(compiled.first.weight.detach(), eager.first.weight.detach(), rtol=2e-5, atol=1e-6)


def test_what_alternates_is_traced_once_for_each() -> None:
    assert fitted(CASES["a flag"], epochs=6)[0].traced.count == 2


@pytest.mark.parametrize("name", ["global_step", "trainer.global_step", "trainer.is_last_batch"])
def test_numbers_of_each_batch_are_refused(name: str) -> None:
    def weight(module: Any) -> Any:
        owner, _, attribute = name.rpartition(".")
        return 0.1 if getattr(getattr(module, owner) if owner else module, attribute) > 2 else 0.0

    with pytest.raises(UnsupportedError, match=f"value of {name.rpartition('.')[2]}") as error:
        fitted(Case(weight=weight))
    assert "eager=True" in str(error.value) and "test_read_attributes.py" in str(error.value)


def test_numbers_that_a_step_sets_are_warned_of() -> None:
    def weight(module: Any) -> float:
        module.weight += 1.0
        return 0.0

    with pytest.warns(UserWarning, match=r"training_step sets self\.weight"):
        module, _ = fitted(Case(weight=weight))
    assert module.weight == 0.0


def test_a_buffer_of_another_shape_is_refused() -> None:
    longer = Case(_set(buffer=lambda m: torch.zeros(m.current_epoch + 1)), weight=lambda m: m.buffer.sum())
    with pytest.raises(ShapeError, match=r"self\.buffer has been replaced"):
        fitted(longer)


def test_other_memory_of_another_shape_is_refused() -> None:
    longer = Case(lambda m, e: setattr(m.buffer, "data", torch.zeros(e + 1)), weight=lambda m: m.buffer.sum())
    with pytest.raises(ShapeError, match=r"self\.buffer has been replaced"):
        fitted(longer)


class Following(L.LightningModule):
    """A layer whose `follower` gets other memory in one of its hooks."""

    def __init__(self, hook: str = "on_train_batch_end") -> None:
        super().__init__()
        self.layer, self.follower = torch.nn.Linear(5, 1), torch.nn.Linear(5, 1)
        self.follower.requires_grad_(False)
        setattr(self, hook, lambda *args, **how: self.follow())

    def follow(self) -> None:
        for own, followed in zip(self.follower.parameters(), self.layer.parameters(), strict=True):
            own.data = 0.5 * own.data + 0.5 * followed.data

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.layer(batch[0]) - self.follower(batch[0]).detach() + 1).pow(2).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("followed", self.follower(batch[0]).sum())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layer.parameters(), lr=0.05)


class Averages(L.Callback):
    """Averages of weights that stand in for them in validations, as they are often written."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self.averages = {name: p.data.clone() for name, p in module.named_parameters()}

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        for name, parameter in module.named_parameters():
            self.averages[name] = 0.5 * self.averages[name] + 0.5 * parameter.data

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        self.kept = {name: p.data for name, p in module.named_parameters()}
        for name, parameter in module.named_parameters():
            parameter.data = self.averages[name]

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        for name, parameter in module.named_parameters():
            parameter.data = self.kept[name]


def test_memory_that_is_put_back_has_what_it_had() -> None:
    found: list[dict[str, Any]] = []
    for eager in (True, False):
        torch.manual_seed(1)
        module, trainer = Model(Case()), L.Trainer(max_epochs=3, eager=eager, callbacks=[Averages()], **QUIET)
        trainer.fit(module, batches(), batches())
        found.append(module.state_dict())
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_batch_end",
        "on_train_epoch_end",
        "on_validation_start",
        "on_after_backward",
        "on_before_optimizer_step",
    ],
)
def test_weights_of_other_memory_are_those_that_are_saved(hook: str, tmp_path: pathlib.Path) -> None:
    found: list[dict[str, Any]] = []
    for eager in (True, False):
        torch.manual_seed(1)
        module, trainer = Following(hook), L.Trainer(max_epochs=2, eager=eager, default_root_dir=tmp_path, **QUIET)
        trainer.fit(module, batches(), batches())
        trainer.save_checkpoint(tmp_path / f"{eager}.ckpt")
        saved = Following.load_from_checkpoint(tmp_path / f"{eager}.ckpt").state_dict()
        found += [{**module.state_dict(), "followed": trainer.callback_metrics["followed"]}, saved]
    for each in found[1:]:
        for name, value in each.items():
            np.testing.assert_allclose(value, found[0][name], rtol=1e-5, atol=1e-6, err_msg=name)


def _clamp(trainer: Any, module: Any, optimizer: Any) -> None:
    module.layer.weight.data = module.layer.weight.data.clamp(-0.1, 0.1)


def test_weights_that_hooks_replace_before_an_update_are_updated() -> None:
    weights = []
    for eager in (True, False):
        torch.manual_seed(1)
        module = Following()
        clamp = L.callbacks.LambdaCallback(on_before_optimizer_step=_clamp)
        L.Trainer(max_epochs=2, eager=eager, callbacks=[clamp], **QUIET).fit(module, batches())
        weights.append(module.layer.weight.detach())
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-5, atol=1e-6)


def test_parameters_that_are_added_are_refused() -> None:
    def grow(module: Any, epoch: int) -> None:
        if epoch:
            module.last = torch.nn.Linear(4, 3)

    with pytest.raises(MXNetError, match=r"added to Model after the training began: last\.weight, last\.bias"):
        fitted(Case(grow))


class OfBlocks(L.LightningModule):
    """The same of Gluon's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.weight = gluon.nn.Dense(1, in_units=2), 0.0
        self.net.initialize()
        self.net.weight.set_data(nd.ones((1, 2)))

    def on_train_epoch_start(self) -> None:
        self.weight = 0.1 * self.current_epoch

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.net(batch[0]) ** 2).mean() + self.weight * (self.net.weight.data() ** 2).sum()

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.1})


def test_blocks() -> None:
    weights = []
    for eager in (False, True):
        module = OfBlocks()
        L.Trainer(max_epochs=EPOCHS, eager=eager, **QUIET).fit(module, [(nd.ones((4, 2)),)] * 2)
        weights.append(module.net.weight.data().asnumpy())
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)


def test_reads_of_what_is_never_equal() -> None:
    """A number that is none is as before while it is the same one."""
    part, reads = types.SimpleNamespace(number=math.nan), ReadAttributes()
    reads.note(part, "number", part.number)
    UserCode.calls += 1
    assert reads.unchanged
    del part.number
    UserCode.calls += 1
    assert not reads.unchanged and [name for _, name in reads.changed()] == ["number"]
