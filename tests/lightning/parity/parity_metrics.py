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


def classifier(L: ModuleType, **metrics: Any) -> type:
    """The class of a linear classifier with these metrics as attributes; `self.logits(batch)` and `self.loss(...)`."""

    class Classifier(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(FEATURES, CLASSES)
            for name, metric in metrics.items():
                setattr(self, name, metric)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.layer(batch[0])
            self.measure(logits, batch[1])
            return functional.cross_entropy(logits, batch[1])

        def measure(self, logits: Any, y: Any) -> None:
            """What a case does with its metrics."""

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    return Classifier


def accuracy(**how: Any) -> Any:
    return MulticlassAccuracy(CLASSES, **how)


def collection(**how: Any) -> Any:
    return torchmetrics.MetricCollection(
        {"f1": MulticlassF1Score(CLASSES), "precision": MulticlassPrecision(CLASSES), "accuracy": accuracy()}, **how
    )


def metric_logged(L: ModuleType, how: dict[str, Any], called: str = "forward", **trainer: Any) -> Result:
    class Model(classifier(L, metric=accuracy())):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            getattr(self.metric, called)(logits, y)
            self.log("accuracy", self.metric, **how)

    return logged(L, Model, classes(), **trainer)


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

    class Model(classifier(L, metric=accuracy())):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.log("accuracy", self.metric(logits, y), on_step=True, on_epoch=True)

    return logged(L, Model, classes(rest=2))


@case
def metric_collections(L: ModuleType) -> Result:
    class Model(classifier(L, values=collection(prefix="batch_"), objects=collection(postfix="_object"))):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.log_dict(self.values(logits, y), on_step=True, on_epoch=True)
            self.objects.update(logits, y)
            self.log_dict(self.objects, on_step=False, on_epoch=True)

    return logged(L, Model, classes(rest=2))


@case
def metric_collection_by_name(L: ModuleType) -> Result:
    class Model(classifier(L, metrics=collection())):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            values = self.metrics(logits, y)
            self.log("one", values["f1"])
            self.log_dict({f"of_{name}": value for name, value in values.items()})

    return logged(L, Model, classes())


@case
def metric_of_each_class(L: ModuleType) -> Result:
    wrapped = torchmetrics.ClasswiseWrapper(MulticlassAccuracy(CLASSES, average=None))

    class Model(classifier(L, metric=wrapped)):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.log_dict(self.metric(logits, y), on_step=False, on_epoch=True)

    return logged(L, Model, classes())


@case
def metric_computed_in_hooks(L: ModuleType) -> Result:
    class Model(classifier(L, metric=accuracy(), mean=torchmetrics.MeanMetric())):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.metric.update(logits, y)
            self.mean.update(logits.mean(), weight=2.0)

        def on_train_epoch_end(self) -> None:
            self.log("accuracy", self.metric.compute())
            self.log("mean", self.mean)
            self.metric.reset()

    return logged(L, Model, classes(rest=2))


@case
def metric_that_keeps_all_samples(L: ModuleType) -> Result:
    """Its state is a list of the predictions of all batches."""

    class Model(classifier(L, metric=BinaryAUROC(thresholds=None))):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.metric(logits[:, 0], y == 0)
            self.log("auroc", self.metric, on_step=True, on_epoch=True)

    return logged(L, Model, classes(rest=2))


@case
def metric_of_a_metric(L: ModuleType) -> Result:
    class Model(classifier(L, metric=accuracy(), mean=torchmetrics.MeanMetric())):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.mean.update(self.metric(logits, y))
            self.log("mean", self.mean, on_step=False, on_epoch=True)

    return logged(L, Model, classes(rest=2))


@case
def metric_with_gradient_hooks(L: ModuleType) -> Result:
    class Model(classifier(L, metric=accuracy())):  # type: ignore[misc]
        def measure(self, logits: Any, y: Any) -> None:
            self.metric(logits, y)
            self.log("accuracy", self.metric, on_step=True, on_epoch=True)

        def on_after_backward(self) -> None:
            pass

    return logged(L, Model, classes())


@case
def metric_with_manual_optimization(L: ModuleType) -> Result:
    class Model(classifier(L, metric=accuracy(), metrics=collection(prefix="train_"))):  # type: ignore[misc]
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def measure(self, logits: Any, y: Any) -> None:
            self.metric(logits, y)
            self.log("accuracy", self.metric, on_step=True, on_epoch=True)
            self.metrics.update(logits, y)
            self.log_dict(self.metrics, on_step=False, on_epoch=True)

    return logged(L, Model, classes())


@case
def metric_of_validation(L: ModuleType) -> Result:
    class Model(classifier(L, val_metric=accuracy(), metrics=collection(prefix="val_"))):  # type: ignore[misc]
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            logits = self.layer(batch[0])
            self.val_metric(logits, batch[1])
            self.log("accuracy", self.val_metric)
            self.metrics.update(logits, batch[1])
            self.log_dict(self.metrics)

    return logged(L, Model, classes(), classes(2, seed=1, rest=1), num_sanity_val_steps=2)


@case
def metric_of_several_loaders(L: ModuleType) -> Result:
    metrics = torch.nn.ModuleList([accuracy(), accuracy()])

    class Model(classifier(L, val_metrics=metrics)):  # type: ignore[misc]
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            metric = self.val_metrics[dataloader_idx]
            metric.update(self.layer(batch[0]), batch[1])
            self.log("accuracy", metric)

    return logged(L, Model, classes(), [classes(2, seed=1), classes(3, seed=2)])
