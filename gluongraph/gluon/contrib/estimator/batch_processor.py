"""What an Estimator does with one batch; subclasses do it otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gluongraph import autograd
from gluongraph.gluon.utils import split_and_load
from gluongraph.ndarray import NDArray

if TYPE_CHECKING:
    from gluongraph.gluon.contrib.estimator.estimator import Estimator

Parts = list[NDArray]  # one for each context


class BatchProcessor:
    """Forward, loss and backward of a batch (data, label), a part of it on each context of the estimator."""

    def _get_data_and_label(self, batch: Any, ctx: Any, batch_axis: int = 0) -> tuple[Parts, Parts]:
        return split_and_load(batch[0], ctx, batch_axis), split_and_load(batch[1], ctx, batch_axis)

    def evaluate_batch(
        self, estimator: Estimator, val_batch: Any, batch_axis: int = 0
    ) -> tuple[Parts, Parts, Parts, Parts]:
        """Data, labels, predictions and losses of a batch, by the validation's net and loss."""
        data, label = self._get_data_and_label(val_batch, estimator.context, batch_axis)
        pred = [estimator.val_net(x) for x in data]
        return data, label, pred, [estimator.val_loss(p, y) for p, y in zip(pred, label, strict=True)]

    def fit_batch(
        self, estimator: Estimator, train_batch: Any, batch_axis: int = 0
    ) -> tuple[Parts, Parts, Parts, Parts]:
        """Data, labels, predictions and losses of a batch, whose gradients are then in the parameters."""
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(p, y) for p, y in zip(pred, label, strict=True)]
        for each in loss:
            each.backward()
        return data, label, pred, loss
