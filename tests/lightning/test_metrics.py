"""Logged values: reductions, names, resets, and their synchronization over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import QUIET, GluonModel, loader

import gluongraph.lightning as L
from gluongraph.lightning.metrics import REDUCTIONS, Logged, Store, reduction_of

VALUES, WEIGHTS = [3.0, -1.0, 2.0], [4, 4, 2]
EXPECTED = {"mean": np.average(VALUES, weights=WEIGHTS), "sum": 4.0, "max": 3.0, "min": -1.0}


@pytest.mark.parametrize("reduce_fx", REDUCTIONS)
def test_reductions_in_python(reduce_fx: str) -> None:
    store = Store(training=True)
    logged = Logged("training_step", "a", on_step=True, reduce_fx=reduce_fx)
    for value, weight in zip(VALUES, WEIGHTS, strict=True):
        store.log(logged, value, weight)
    found = store.metrics(on_step=False)
    assert found["callback"] == {"a": pytest.approx(EXPECTED[reduce_fx]), "a_epoch": pytest.approx(EXPECTED[reduce_fx])}
    assert store.metrics(on_step=True)["log"] == {"a_step": 2.0}
    again = Store(training=True)
    again.load(store.state({}), {})
    assert again.metrics(False) == found and again.metrics(True) == store.metrics(True)
    store.reset()
    assert not store.metrics(False)["log"] and not store.metrics(True)["log"]


@pytest.mark.parametrize("reduce_fx", REDUCTIONS)
def test_reductions_in_the_compiled_step(reduce_fx: str) -> None:
    seen: list[float] = []

    class Logs(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("first", batch[0][0, 0], on_step=True, on_epoch=True, reduce_fx=reduce_fx)
            return super().training_step(batch, batch_idx)

    batches = loader(20, 8)
    rows = [(float(x[0, 0]), len(x)) for x, _ in batches]
    seen = [value for value, _ in rows]
    expected = {
        "mean": np.average(seen, weights=[n for _, n in rows]),
        "sum": np.sum(seen),
        "max": max(seen),
        "min": min(seen),
    }[reduce_fx]
    trainer = L.Trainer(max_epochs=2, **QUIET)
    trainer.fit(Logs(), batches)
    assert float(trainer.callback_metrics["first"]) == pytest.approx(expected, abs=1e-6)
    assert float(trainer.callback_metrics["first_step"]) == pytest.approx(seen[-1], abs=1e-6)


def test_values_of_all_ranks_are_one_vector() -> None:
    stores = [Store(training=False), Store(training=False)]
    for rank, store in enumerate(stores):
        for number, reduce_fx in enumerate(REDUCTIONS):
            logged = Logged("validation_step", reduce_fx, reduce_fx=reduce_fx, sync_dist=True)
            store.log(logged, 1.0 + rank + 10 * number, 3 if rank else 1)
    sent: list[tuple[str, list[float]]] = []
    stores[0].synchronize(lambda values, op: sent.append((op, values)) or values, lambda _: None)
    both: dict[int, list[float]] = {}

    def reduce(values: list[float], op: str) -> list[float]:
        both[len(both)] = values
        mine = sent[len(both) - 1]
        assert mine[0] == op and len(mine[1]) == len(values)
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
        return [float(v) for v in combine(mine[1], values)]

    stores[1].synchronize(reduce, lambda _: None)
    assert len(sent) == 3  # sums and means, maxima, minima
    assert stores[1].metrics(False)["log"] == {"mean": 1.75, "sum": 23.0, "max": 22.0, "min": 31.0}


def test_names_of_loaders_and_of_steps() -> None:
    logged = Logged("validation_step", "acc", on_step=True, dataloader_idx=1)
    assert logged.forked_name(True) == "acc_step/dataloader_idx_1"
    assert logged.forked_name(False) == "acc_epoch/dataloader_idx_1"
    assert Logged("validation_step", "acc", dataloader_idx=1, add_dataloader_idx=False).full_name == "acc"
    assert [reduction_of(f) for f in (np.mean, sum, max, "MIN")] == ["mean", "sum", "max", "min"]
    with pytest.raises(L.MisconfigurationException, match="reduce_fx"):
        reduction_of(np.median)


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_end", "on_fit_end"])
def test_there_are_hooks_that_cannot_log(hook: str) -> None:
    def log(self: Any) -> None:
        self.log("a", 1.0)

    model = type("Logs", (GluonModel,), {hook: log})()
    with pytest.raises(L.MisconfigurationException, match="nothing to reduce over"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, loader())


def test_log_twice_with_different_arguments() -> None:
    class Twice(GluonModel):
        def on_train_epoch_end(self) -> None:
            self.log("a", 1.0)
            self.log("a", 1.0, prog_bar=True)

    with pytest.raises(L.MisconfigurationException, match="different arguments"):
        L.Trainer(max_epochs=1, **QUIET).fit(Twice(), loader())


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (lambda model: model.log(3, 1.0), r"self.log\(3, ...\): the name is a text"),
        (lambda model: model.log_dict([1.0]), "list is neither a dict nor a collection of metrics"),
    ],
)
def test_what_is_no_name_and_no_dict(log: Any, said: str) -> None:
    model = type("Logs", (GluonModel,), {"on_train_epoch_end": log})()
    with pytest.raises(L.MisconfigurationException, match=said):
        L.Trainer(max_epochs=1, **QUIET).fit(model, loader())
