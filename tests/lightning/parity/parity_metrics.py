"""Compared runs: objects of torchmetrics, called and logged in steps and hooks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torchmetrics
from parity_logging import logged
from parity_models import FEATURES, loader
from parity_table import case
from torch.nn import functional
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision

Result = dict[str, Any]
CLASSES = 3


def classes(batches: int = 4, size: int = 5, rest: int = 0, seed: int = 0) -> Any:
    """A loader of vectors, and of the place of the largest of their first elements."""
    x = loader(batches, size, rest, seed).dataset.tensors[0]
    data = torch.utils.data.TensorDataset(x, x[:, :CLASSES].argmax(1))
    return torch.utils.data.DataLoader(data, batch_size=size)


def classifier(L: ModuleType, metrics: dict[str, Any], **methods: Any) -> type:
    """The class of a linear classifier with these metrics as attributes, and these methods: `measure(self, logits, y)`
    is called in training_step."""

    def begin(self: Any) -> None:
        L.LightningModule.__init__(self)
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(FEATURES, CLASSES)
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def configure_optimizers(self: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.2)

    own = {"__init__": begin, "training_step": training_step, "configure_optimizers": configure_optimizers}
    return type("Classifier", (L.LightningModule,), own | {"measure": nothing} | methods)


def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
    logits = self.layer(batch[0])
    self.measure(logits, batch[1])
    return functional.cross_entropy(logits, batch[1])


def nothing(self: Any, logits: Any, y: Any) -> None:
    """Measure nothing."""


def accuracy(**how: Any) -> Any:
    return MulticlassAccuracy(CLASSES, **how)


def collection(**how: Any) -> Any:
    return torchmetrics.MetricCollection(
        {"f1": MulticlassF1Score(CLASSES), "precision": MulticlassPrecision(CLASSES), "accuracy": accuracy()}, **how
    )


def metric_logged(L: ModuleType, how: dict[str, Any], called: str = "forward", **trainer: Any) -> Result:
    def measure(self: Any, logits: Any, y: Any) -> None:
        getattr(self.metric, called)(logits, y)
        self.log("accuracy", self.metric, **how)

    model = classifier(L, {"metric": accuracy()}, measure=measure)
    return logged(L, model, classes(), **trainer)


@case
def metric_of_steps(L: ModuleType) -> Result:
    return metric_logged(L, {})


@case
def metric_of_epochs(L: ModuleType) -> Result:
    return metric_logged(L, {"on_step": False, "on_epoch": True})


@case
def metric_of_both(L: ModuleType) -> Result:
    return metric_logged(L, {"on_step": True, "on_epoch": True, "prog_bar": True})


@case
def metric_that_is_updated_only(L: ModuleType) -> Result:
    return metric_logged(L, {"on_step": True, "on_epoch": True}, "update")


@case
def metric_of_accumulated_steps(L: ModuleType) -> Result:
    return metric_logged(L, {"on_step": True, "on_epoch": True}, accumulate_grad_batches=2)


@case
def metric_of_the_batch(L: ModuleType) -> Result:
    """What a metric gives for a batch is logged as any value: the epoch's is the mean."""

    def measure(self: Any, logits: Any, y: Any) -> None:
        self.log("accuracy", self.metric(logits, y), on_step=True, on_epoch=True)

    model = classifier(L, {"metric": accuracy()}, measure=measure)
    return logged(L, model, classes(rest=2))


@case
def metric_collections(L: ModuleType) -> Result:
    def measure(self: Any, logits: Any, y: Any) -> None:
        self.log_dict(self.values(logits, y), on_step=True, on_epoch=True)
        self.objects.update(logits, y)
        self.log_dict(self.objects, on_step=False, on_epoch=True)

    model = classifier(
        L, {"values": collection(prefix="batch_"), "objects": collection(postfix="_object")}, measure=measure
    )
    return logged(L, model, classes(rest=2))


@case
def metric_collection_by_name(L: ModuleType) -> Result:
    def measure(self: Any, logits: Any, y: Any) -> None:
        values = self.metrics(logits, y)
        self.log("one", values["f1"])
        self.log_dict({f"of_{name}": value for name, value in values.items()})

    model = classifier(L, {"metrics": collection()}, measure=measure)
    return logged(L, model, classes())


@case
def metric_of_each_class(L: ModuleType) -> Result:
    wrapped = torchmetrics.ClasswiseWrapper(MulticlassAccuracy(CLASSES, average=None))

    def measure(self: Any, logits: Any, y: Any) -> None:
        self.log_dict(self.metric(logits, y), on_step=False, on_epoch=True)

    model = classifier(L, {"metric": wrapped}, measure=measure)
    return logged(L, model, classes())


@case
def metric_computed_in_hooks(L: ModuleType) -> Result:
    def measure(self: Any, logits: Any, y: Any) -> None:
        self.metric.update(logits, y)
        self.mean.update(logits.mean(), weight=2.0)

    def on_train_epoch_end(self: Any) -> None:
        self.log("accuracy", self.metric.compute())
        self.log("mean", self.mean)
        self.metric.reset()

    model = classifier(
        L,
        {"metric": accuracy(), "mean": torchmetrics.MeanMetric()},
        measure=measure,
        on_train_epoch_end=on_train_epoch_end,
    )
    return logged(L, model, classes(rest=2))


@case
def metric_that_keeps_all_samples(L: ModuleType) -> Result:
    """Its state is a list of the predictions of all batches."""

    def measure(self: Any, logits: Any, y: Any) -> None:
        self.metric(logits[:, 0], y == 0)
        self.log("auroc", self.metric, on_step=True, on_epoch=True)

    model = classifier(L, {"metric": BinaryAUROC(thresholds=None)}, measure=measure)
    return logged(L, model, classes(rest=2))


@case
def metric_of_a_metric(L: ModuleType) -> Result:
    def measure(self: Any, logits: Any, y: Any) -> None:
        self.mean.update(self.metric(logits, y))
        self.log("mean", self.mean, on_step=False, on_epoch=True)

    model = classifier(L, {"metric": accuracy(), "mean": torchmetrics.MeanMetric()}, measure=measure)
    return logged(L, model, classes(rest=2))


@case
def metric_with_gradient_hooks(L: ModuleType) -> Result:
    def measure(self: Any, logits: Any, y: Any) -> None:
        self.metric(logits, y)
        self.log("accuracy", self.metric, on_step=True, on_epoch=True)

    def on_after_backward(self: Any) -> None:
        pass

    model = classifier(L, {"metric": accuracy()}, measure=measure, on_after_backward=on_after_backward)
    return logged(L, model, classes())


@case
def metric_with_manual_optimization(L: ModuleType) -> Result:
    def by_hand(self: Any, batch: Any, batch_idx: int) -> None:
        loss = training_step(self, batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def measure(self: Any, logits: Any, y: Any) -> None:
        self.metric(logits, y)
        self.log("accuracy", self.metric, on_step=True, on_epoch=True)
        self.metrics.update(logits, y)
        self.log_dict(self.metrics, on_step=False, on_epoch=True)

    model = classifier(
        L,
        {"metric": accuracy(), "metrics": collection(prefix="train_")},
        automatic_optimization=False,
        training_step=by_hand,
        measure=measure,
    )
    return logged(L, model, classes())


@case
def metric_of_validation(L: ModuleType) -> Result:
    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        logits = self.layer(batch[0])
        self.val_metric(logits, batch[1])
        self.log("accuracy", self.val_metric)
        self.metrics.update(logits, batch[1])
        self.log_dict(self.metrics)

    model = classifier(
        L, {"val_metric": accuracy(), "metrics": collection(prefix="val_")}, validation_step=validation_step
    )
    return logged(L, model, classes(), classes(2, seed=1, rest=1), num_sanity_val_steps=2)


@case
def metric_of_several_loaders(L: ModuleType) -> Result:
    metrics = torch.nn.ModuleList([accuracy(), accuracy()])

    def validation_step(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        metric = self.val_metrics[dataloader_idx]
        metric.update(self.layer(batch[0]), batch[1])
        self.log("accuracy", metric)

    model = classifier(L, {"val_metrics": metrics}, validation_step=validation_step)
    return logged(L, model, classes(), [classes(2, seed=1), classes(3, seed=2)])
