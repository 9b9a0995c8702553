"""Compared runs: layers that are unfrozen later, numbers that hooks change, predictions that are written."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from parity_models import trainer
from parity_table import case
from torch import nn
from torch.nn import functional

Result = dict[str, Any]
EPOCHS, SAMPLES, BATCH = 4, 24, 8


def callbacks(L: Any) -> Any:
    return importlib.import_module(f"{L.__name__}.callbacks")


def batches(shuffle: bool = False) -> Any:
    rng = torch.Generator().manual_seed(3)
    data = torch.randn(SAMPLES, 6, generator=rng), torch.randint(0, 3, (SAMPLES,), generator=rng)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=BATCH, shuffle=shuffle)


def model(L: Any) -> Any:
    """A backbone with BatchNorm, and a head. The layer before BatchNorm has no bias, whose gradient would be 0 but for
    rounding."""

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.backbone = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5))
            self.head = nn.Linear(5, 3)
            self.rates: list[list[float]] = []

        def forward(self, x: Any) -> Any:
            return self.head(self.backbone(x))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = functional.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("checked", functional.cross_entropy(self(batch[0]), batch[1]))

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self(batch[0])

        def on_train_epoch_end(self) -> None:
            self.rates.append([float(group["lr"]) for group in self.trainer.optimizers[0].param_groups])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.9)

    return Model


def told(module: Any, used: Any) -> Result:
    """What a training has left."""
    return {
        "weights": {name: tensor.tolist() for name, tensor in module.state_dict().items()},
        "metrics": {name: float(value) for name, value in used.callback_metrics.items()},
        "rates": module.rates,
        "trained": [name for name, p in module.named_parameters() if p.requires_grad],
    }


def fitted(L: Any, *used: Any, module: Any = None, **how: Any) -> Result:
    module = model(L)() if module is None else module
    made = trainer(L, max_epochs=EPOCHS, callbacks=list(used), **how)
    made.fit(module, batches(), batches())
    return told(module, made)


def milestones(L: Any, train_bn: bool) -> Any:
    Base: Any = callbacks(L).BaseFinetuning

    class Milestones(Base):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.backbone, train_bn=train_bn)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.backbone[-2:], optimizer, train_bn=train_bn)
            elif epoch == 2:
                self.unfreeze_and_add_param_group(pl_module.backbone[:-2], optimizer, lr=0.02, train_bn=True)

    return Milestones()


@case
def layers_unfrozen_at_milestones(L: Any) -> Result:
    return fitted(L, milestones(L, train_bn=False))


@case
def layers_unfrozen_but_for_batch_norm(L: Any) -> Result:
    return fitted(L, milestones(L, train_bn=True))


@case
def layers_unfrozen_under_clipping(L: Any) -> Result:
    """Clipping by value is part of the rule of each group, also of those that come later."""
    return fitted(L, milestones(L, train_bn=False), gradient_clip_val=0.01, gradient_clip_algorithm="value")


@case
def backbone_unfrozen_with_a_rate_that_grows(L: Any) -> Result:
    return fitted(L, callbacks(L).BackboneFinetuning(1, lambda epoch: 4.0, verbose=False))


@case
def backbone_unfrozen_with_a_rate_of_its_own(L: Any) -> Result:
    return fitted(L, callbacks(L).BackboneFinetuning(2, backbone_initial_lr=0.03, should_align=False))


@case
def a_module_without_a_backbone(L: Any) -> Result:
    Base: Any = model(L)

    class Other(Base):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.backbone = self.backbone, None

    try:
        fitted(L, callbacks(L).BackboneFinetuning(), module=Other())
    except Exception as error:
        return {"error": type(error).__name__}
    return {}


def averaged(L: Any, schedule: Any = None, **how: Any) -> Result:
    """Weights and rates. (Lightning computes statistics in a further epoch, which validates and logs.)"""

    Base: Any = model(L)

    class Scheduled(Base):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return ([optimizer], [schedule(optimizer)]) if schedule else optimizer

    result = fitted(L, callbacks(L).StochasticWeightAveraging(**how), module=Scheduled())
    return {"weights": result["weights"], "rates": result["rates"][:EPOCHS]}


@case
def weights_averaged_over_the_last_epochs(L: Any) -> Result:
    return averaged(L, swa_lrs=0.02, swa_epoch_start=2, annealing_epochs=2)


@case
def weights_averaged_from_a_share_of_the_epochs(L: Any) -> Result:
    return averaged(L, swa_lrs=[0.03], swa_epoch_start=0.5, annealing_epochs=3, annealing_strategy="linear")


@case
def weights_averaged_in_place_of_a_schedule(L: Any) -> Result:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    return averaged(L, schedule=schedule, swa_lrs=0.05, swa_epoch_start=3, annealing_epochs=1)


@case
def weights_averaged_by_a_function(L: Any) -> Result:
    return averaged(
        L, swa_lrs=0.05, swa_epoch_start=1, avg_fn=lambda average, weight, n: 0.75 * average + 0.25 * weight
    )


def found_rate(L: Any, mode: str, **how: Any) -> Result:
    """Rates and losses of the sweep, and what is left of it."""

    Base: Any = model(L)

    class Rated(Base):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    module, used = Rated(), trainer(L, max_epochs=14)  # the sweep of Lightning ends with them
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    tuner = importlib.import_module(f"{L.__name__}.tuner").Tuner(used)
    found = tuner.lr_find(module, batches(), mode=mode, **how)
    kept = all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    result = {"results": found.results, "suggested": found.suggestion(), "lr": module.lr, "kept": kept}
    used.fit(module, batches())
    return result | {"weights": {name: tensor.tolist() for name, tensor in module.state_dict().items()}}


@case
def a_rate_found_exponentially(L: Any) -> Result:
    return found_rate(L, "exponential", num_training=30, min_lr=1e-4)


@case
def a_rate_found_linearly(L: Any) -> Result:
    return found_rate(L, "linear", num_training=25, min_lr=1e-3, max_lr=0.5)


@case
def a_rate_looked_for_until_the_loss_grows(L: Any) -> Result:
    return found_rate(L, "exponential", num_training=40, min_lr=1e-3, max_lr=1e3, early_stop_threshold=1.5)


def changing(L: Any, change: Any, **hooks: Any) -> Result:
    """A training whose hook `change(module)`, before each epoch, decides the weight of a penalty or the mode of a
    layer."""

    Base: Any = model(L)

    class Changing(Base):
        penalty, per_batch = 0.0, False

        def on_train_epoch_start(self) -> None:
            change(self)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.per_batch:
                self.penalty = 0.01 * self.global_step

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) + self.penalty * self.head.weight.pow(2).sum()

    return fitted(L, module=Changing())


@case
def a_penalty_of_each_epoch(L: Any) -> Result:
    return changing(L, lambda module: setattr(module, "penalty", 0.1 * module.current_epoch))


@case
def a_penalty_of_each_batch(L: Any) -> Result:
    return changing(L, lambda module: setattr(module, "per_batch", True))


@case
def batch_norm_that_predicts_from_an_epoch_on(L: Any) -> Result:
    return changing(L, lambda module: module.backbone[1].train(module.current_epoch < 2))


@case
def a_dropout_that_is_turned_off(L: Any) -> Result:
    def change(module: Any) -> None:
        module.backbone[2] = nn.Dropout(0.0) if module.current_epoch else nn.Identity()

    return changing(L, change)


@case
def predictions_written(L: Any) -> Result:
    written: list[Any] = []

    Base: Any = callbacks(L).BasePredictionWriter

    class Writer(Base):
        def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *where: Any) -> None:
            indices, _, batch_idx, dataloader_idx = where
            written.append([list(prediction.shape), indices, batch_idx, dataloader_idx])

        def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            written.append([[list(p.shape) for p in predictions], batch_indices])

    results = []
    for interval in ("batch", "epoch", "batch_and_epoch"):
        for keeps in (True, False):
            made = trainer(L, callbacks=[Writer(interval)])
            found = made.predict(model(L)(), batches(), return_predictions=keeps)
            results.append(None if found is None else [p.tolist() for p in found])
    return {"written": written, "results": results}


@case
def strategies_as_objects(L: Any) -> Result:
    strategies = importlib.import_module(f"{L.__name__}.strategies")
    return fitted(L, strategy=strategies.SingleDeviceStrategy(device="cpu"))
