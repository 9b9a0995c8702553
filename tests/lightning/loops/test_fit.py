"""Epochs and batches: what is joined into one call, counters, stopping, errors in the middle."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from nets import QUIET, GluonModel, data, loader, same, weights

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph.errors import NotFiniteError


def fit(model: Any = None, batches: Any = None, **how: Any) -> tuple[Any, Any]:
    model = GluonModel() if model is None else model
    mx.random.seed(1)
    trainer = L.Trainer(**{"max_epochs": 2, **QUIET, **how})
    trainer.fit(model, loader(96, 8, shuffle=True) if batches is None else batches)
    return trainer, model


class Staged(GluonModel):
    def on_before_optimizer_step(self, optimizer: Any) -> None: ...


class Manual(GluonModel):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class ManualByClosure(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        def closure() -> Any:
            loss = GluonModel.training_step(self, batch, batch_idx)
            self.manual_backward(loss)
            return loss

        self.optimizers().step(closure=closure)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(
    ("kind", "how", "mode"),
    [
        *((GluonModel, {}, "fused"), (Staged, {}, "staged"), (GluonModel, {"eager": True}, "eager")),
        *((Manual, {}, "eager"), (ManualByClosure, {}, "eager")),
    ],
)
def test_error_if_nonfinite_ends_the_fit_before_the_update(
    kind: type[GluonModel], how: dict[str, Any], mode: str, clip: float | None
) -> None:
    x, y = data(40)
    x[35, 2] = np.nan
    batches = L.ArrayLoader(x, y, batch_size=8)
    clips = {} if issubclass(kind, Manual) else {"gradient_clip_val": clip}
    model, trainer = kind(), L.Trainer(max_epochs=2, error_if_nonfinite=True, **clips, **QUIET, **how)
    with pytest.raises(NotFiniteError):
        trainer.fit(model, batches)
    trained = [p for p in model.collect_params().values() if mode == "fused" or p.grad_req != "null"]
    assert trainer.engines.mode == mode and trainer.global_step == 4
    assert all(np.isfinite(p.data().asnumpy()).all() for p in trained)


def test_the_loop_tells_where_it_is() -> None:
    """What scripts read of Lightning's loops, as there within an epoch."""
    seen = []

    class Reads(L.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            loop = trainer.fit_loop
            seen.append((loop.batch_idx, loop.total_batch_idx, loop.global_step, loop.epoch_loop.batch_idx))

    trainer, _ = fit(max_steps=7, max_epochs=3, callbacks=[Reads()], steps_per_call=1)
    length = trainer.num_training_batches
    assert seen == [(i % length, i, i + 1, i % length) for i in range(7)]
    loop = trainer.fit_loop
    assert (loop.max_batches, loop.max_steps, loop.min_steps, loop.min_epochs) == (length, 7, None, 0)
    assert trainer.val_check_batch == length and trainer.strategy.world_size == 1


@pytest.mark.parametrize("norm_type", [1, "inf", 3.0])
@pytest.mark.parametrize(("kind", "how"), [(Staged, {}), (GluonModel, {"eager": True})])
def test_norms_of_the_modes(kind: type[GluonModel], how: dict[str, Any], norm_type: float | str) -> None:
    clips: dict[str, Any] = {"gradient_clip_val": 0.01, "gradient_clip_norm_type": norm_type}
    _, fused = fit(**clips)
    _, other = fit(kind(), **clips, **how)
    _, by_two = fit(gradient_clip_val=0.01)
    for weight, of_mode in zip(weights(fused), weights(other), strict=True):
        np.testing.assert_allclose(of_mode, weight, rtol=1e-4, atol=1e-6)
    assert not same(weights(fused), weights(by_two))


@pytest.mark.parametrize("how", [{}, {"precision": "16-mixed"}, {"max_steps": 17}, {"detect_anomaly": True}])
def test_joined_steps_have_the_bits_of_single_ones(how: dict[str, Any]) -> None:
    calls: list[int] = []

    class Counted(GluonModel):
        def on_train_start(self) -> None:
            engine = self.trainer.engines.engine
            many = engine.train_many
            engine.train_many = lambda stacks, structure, n: calls.append(n) or many(stacks, structure, n)

    single, one = fit(steps_per_call=1, **how)
    joined, other = fit(Counted(), steps_per_call=4, **how)
    assert max(calls) == 4 and same(weights(one), weights(other))
    assert dict(single.callback_metrics) == dict(joined.callback_metrics)
    assert single.counters == joined.counters


def as_arrays(size: int) -> Any:
    return L.ArrayLoader(*data(99), batch_size=size, seed=2)


def as_shuffled_arrays(size: int) -> Any:
    return L.ArrayLoader(*data(99), batch_size=size, shuffle=True, seed=2)


def as_a_list(size: int) -> Any:
    return list(as_arrays(size))


def as_ndarrays(size: int) -> Any:
    return [[mx.nd.array(part) for part in batch] for batch in as_arrays(size)]


def as_tensors(size: int) -> Any:
    torch = pytest.importorskip("torch")
    return [[torch.from_numpy(part) for part in batch] for batch in as_arrays(size)]


@pytest.mark.parametrize("size", [8, 9, 50])  # the last batch is smaller, or not
@pytest.mark.parametrize("batches", [as_arrays, as_shuffled_arrays, as_a_list, as_ndarrays, as_tensors])
def test_joined_batches_of_all_kinds_have_the_bits_of_single_ones(batches: Any, size: int) -> None:
    (single, one), (joined, other) = (fit(batches=batches(size), steps_per_call=count) for count in (1, 4))
    assert same(weights(one), weights(other)) and single.counters == joined.counters
    assert dict(single.callback_metrics) == dict(joined.callback_metrics)


def test_batches_without_arrays() -> None:
    class Drawing(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(mx.nd.ones((8, 6))).square().mean()

    trainer, _ = fit(Drawing(), batches=[7] * 30, max_epochs=1)
    assert trainer.global_step == 30


class Reusing:
    """A loader that writes each batch over one that it gave before."""

    def __init__(self, memory: int, tensors: bool):
        self.memory, self.tensors = memory, tensors

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Any:
        buffers = [[part.copy() for part in batch] for batch in as_a_list(8)[: self.memory]]
        for number, batch in enumerate(as_a_list(8)[:12]):
            for buffer, part in zip(held := buffers[number % self.memory], batch, strict=True):
                buffer[:] = part
            yield [importlib.import_module("torch").from_numpy(each) for each in held] if self.tensors else held


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("memory", [1, 2, 5, 12])
def test_batches_that_are_written_over_those_before(memory: int, tensors: bool) -> None:
    if tensors:
        pytest.importorskip("torch")
    _, one = fit(batches=as_a_list(8)[:12], steps_per_call=1)
    trainer, other = fit(batches=Reusing(memory, tensors), steps_per_call=6)
    assert same(weights(one), weights(other)) and trainer.global_step == 24
    assert (trainer.engines.joins > 1) == (memory == 12)


def test_steps_are_not_joined_where_somebody_looks() -> None:
    seen: list[int] = []

    class Each(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch_idx)
            assert np.isfinite(outputs["loss"].asscalar())

    fit(steps_per_call=4, callbacks=[Each()], max_epochs=1)
    assert seen == list(range(12))


def test_each_hook_of_a_third_batch_is_called() -> None:
    """A callback that needs each third batch only lets two steps be one call."""
    seen: list[int] = []

    class Third(L.Callback):
        def idle_batches(self, trainer: Any) -> float:
            return 2 - (trainer.counters.batches_seen % 3)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch_idx)

    fit(steps_per_call=8, callbacks=[Third()], max_epochs=1)
    assert {2, 5, 8, 11} <= set(seen) and len(seen) < 12


def test_a_last_batch_that_is_smaller() -> None:
    trainer, _ = fit(batches=loader(20, 8), max_epochs=3, steps_per_call=4)
    assert trainer.global_step == 9 and trainer.num_training_batches == 3


def test_batches_of_an_unknown_number() -> None:
    x, y = np.ones((4, 6), np.float32), np.zeros(4, np.float32)

    class Stream:
        def __iter__(self) -> Any:
            return iter([(x, y)] * 5)

    trainer, _ = fit(batches=Stream(), accumulate_grad_batches=2)
    assert trainer.num_training_batches == float("inf") and trainer.global_step == 6  # 2, 2 and 1 batches


class Ones(L.LightningModule):
    """A weight that each update makes less by the mean of gradients, each of which is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
        self.net.initialize(mx.init.Zero())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return mx.gluon.Trainer(self.collect_params(), "sgd", {"learning_rate": 1.0})


class StagedOnes(Ones):
    def on_before_optimizer_step(self, optimizer: Any) -> None: ...


def ones(count: int) -> list[Any]:
    return [(np.ones((1, 1), np.float32),)] * count


@pytest.mark.parametrize("how", [{}, {"steps_per_call": 4}, {"eager": True}])
@pytest.mark.parametrize("kind", [Ones, StagedOnes])
def test_the_last_window_is_a_mean_over_its_own_batches(kind: type[Ones], how: dict[str, Any]) -> None:
    """5 batches, 2 to an update: the last update is as large as if its batch stood alone, or half as large."""
    how = {**how, "max_epochs": 1, "accumulate_grad_batches": 2}
    trainer, model = fit(kind(), ones(5), **how)
    assert trainer.global_step == 3 and model.net.weight.data().asscalar() == -3.0
    trainer, model = fit(kind(), ones(5), lightning_remainder=True, **how)
    assert trainer.global_step == 3 and model.net.weight.data().asscalar() == -2.5


@pytest.mark.parametrize("remainder", [False, True])
def test_steps_are_not_joined_where_gradients_are_accumulated_later(remainder: bool) -> None:
    later = L.callbacks.GradientAccumulationScheduler({2: 4})
    how = {"max_epochs": 3, "callbacks": [later], "steps_per_call": 4, "lightning_remainder": remainder}
    trainer, model = fit(Ones(), ones(18), **how)
    assert trainer.global_step == 18 + 18 + 5
    assert model.net.weight.data().asscalar() == -(18 + 18 + 4 + (0.5 if remainder else 1.0))


@pytest.mark.parametrize("steps_per_call", [1, 4, None])
@pytest.mark.parametrize(
    ("interval", "how", "expected"),
    [
        ("5 steps", {}, [5, 10, 17, 22]),
        (" 5 steps ", {"check_val_every_n_epoch": None}, [5, 10, 15, 20]),
        ("5 batches", {}, [5, 10, 17, 22]),
        ("1 step", {"limit_train_batches": 2}, [1, 2, 3, 4]),
        ("3 steps", {"accumulate_grad_batches": 2}, [3, 6, 9, 12]),
        ("3 steps", {"accumulate_grad_batches": 5}, [3, 6]),
        ("4 steps", {"accumulate_grad_batches": 3, "check_val_every_n_epoch": None}, [4, 8]),
    ],
)
def test_validation_after_steps(
    interval: str, how: dict[str, Any], expected: list[int], steps_per_call: int | None
) -> None:
    """Each of two epochs has 12 batches."""
    seen: list[int] = []

    class Looks(L.Callback):
        def on_validation_end(self, trainer: Any, module: Any) -> None:
            seen.append(trainer.global_step)

    trainer = L.Trainer(
        max_epochs=2,
        num_sanity_val_steps=0,
        callbacks=[Looks()],
        val_check_interval=interval,
        steps_per_call=steps_per_call,
        **QUIET,
        **how,
    )
    trainer.fit(GluonModel(), loader(96, 8), loader(8, 8))
    assert seen == expected


def test_validation_after_steps_of_two_optimizers() -> None:
    """A batch may be two steps: a multiple that it passes counts."""
    seen: list[int] = []

    class Twice(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            super().training_step(batch, batch_idx)

        def on_validation_end(self) -> None:
            seen.append(self.trainer.global_step)

    trainer = L.Trainer(max_epochs=1, num_sanity_val_steps=0, val_check_interval="3 steps", **QUIET)
    trainer.fit(Twice(), loader(48, 8), loader(8, 8))
    assert seen == [4, 6, 10, 12]


def test_an_interval_of_more_steps_than_there_are() -> None:
    trainer = L.Trainer(max_epochs=1, val_check_interval="4 steps", accumulate_grad_batches=2, **QUIET)
    with pytest.raises(L.MisconfigurationException, match=r'"4 steps", and an epoch has 3 steps'):
        trainer.fit(GluonModel(), loader(48, 8), loader(8, 8))


def test_an_error_in_the_middle() -> None:
    seen: list[str] = []

    class Fails(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                raise ValueError("stop here")

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            seen.append(str(exception))

    trainer = L.Trainer(max_epochs=1, callbacks=[Fails()], **QUIET)
    with pytest.raises(ValueError, match="stop here"):
        trainer.fit(GluonModel(), loader())
    assert seen == ["stop here"] and trainer.interrupted and trainer.global_step == 4


def test_an_interrupt_ends_with_an_exit_code() -> None:
    class Interrupts(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        L.Trainer(max_epochs=1, callbacks=[Interrupts()], **QUIET).fit(GluonModel(), loader())


def test_a_schedule_does_not_advance_with_a_skipped_update() -> None:
    torch = pytest.importorskip("torch")

    class Overflows(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return 0.1 * self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [
                {"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step"}
            ]

    batches = [torch.ones(4, 2), torch.full((4, 2), float("inf")), torch.ones(4, 2)]
    trainer, model = fit(Overflows(), [(b,) for b in batches], max_epochs=1, precision="16-mixed")
    assert (trainer.counters.steps_applied, trainer.counters.steps_skipped) == (2, 1)
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.25
    assert torch.isfinite(model.layer.weight).all()


class Rows(L.loggers.Logger):
    name, version = "rows", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(dict(metrics))


@pytest.mark.parametrize(
    ("how", "skipped", "last"),
    [
        ({}, 1, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ({"steps_per_call": 3, "log_every_n_steps": 6}, 1, [5.0]),
        ({"accumulate_grad_batches": 2}, 0, [1.0, 3.0, 5.0]),  # the window has another batch
    ],
)
def test_a_batch_whose_update_is_skipped_is_logged(how: dict[str, Any], skipped: int, last: list[float]) -> None:
    """Its loss is finite, and the gradient of that, which is scaled, is not."""
    torch = pytest.importorskip("torch")

    class Overflows(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = (self.weight * x).sum() + y.mean()
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("largest", y.mean(), on_step=False, on_epoch=True, reduce_fx="max")
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    steep = [1.0, 1.0, 1e35, 1.0, 1.0, 1.0]
    batches = [(torch.full((2,), each), torch.full((2,), float(i))) for i, each in enumerate(steep)]
    rows = Rows()
    settings: dict[str, Any] = {"max_epochs": 1, "precision": "16-mixed", "logger": rows, "log_every_n_steps": 1}
    trainer, _ = fit(Overflows(), batches, **settings | how)
    assert trainer.counters.steps_skipped == skipped
    assert trainer.callback_metrics["loss_epoch"] == 2.5
    assert trainer.callback_metrics["largest"] == 5.0
    assert [row["loss_step"] for row in rows.rows if "loss_step" in row] == last


def test_what_can_be_read_once_is_read_once() -> None:
    batches = list(loader())
    trainer, model = L.Trainer(max_epochs=1, **QUIET), GluonModel()
    trainer.fit(model, iter(batches))
    assert trainer.global_step == len(batches)
    assert trainer.validate(model, iter(batches), verbose=False)[0]["val_loss"] > 0
    with pytest.raises(L.MisconfigurationException, match="can be read once"):
        L.Trainer(max_epochs=2, **QUIET).fit(model, iter(batches))
