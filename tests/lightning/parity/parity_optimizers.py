"""Compared runs: optimizers, schedules, manual optimization, and what training_step may return."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from parity_loops import Batches, fit
from parity_models import FEATURES, linear, loader, trainer
from parity_recording import MODULE_HOOKS, logger, recorded, told
from parity_table import case
from torch.nn import functional

Result = dict[str, Any]
schedules = torch.optim.lr_scheduler


def optimized(L: ModuleType, configure: Any, train: Any = None, val: Any = None, **how: Any) -> Result:
    """Train with what `configure(module)` gives, and tell the rates and momenta before each batch."""
    rates: list[Any] = []

    Linear: Any = linear(L)

    class Model(Linear):
        def configure_optimizers(self) -> Any:
            return configure(self)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            groups = [group for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
            rates.append([float(group["lr"]) for group in groups])

    result = fit(L, loader(4) if train is None else train, val, Model, **{"max_epochs": 3} | how)
    return result | {"rates": rates}


def sgd(module: Any, **how: Any) -> Any:
    return torch.optim.SGD(module.parameters(), **{"lr": 0.1} | how)


# -- the forms of configure_optimizers


@case
def optimizer_in_a_list(L: ModuleType) -> Result:
    return optimized(L, lambda module: [sgd(module, momentum=0.9, nesterov=True)])


@case
def optimizer_in_a_dict(L: ModuleType) -> Result:
    return optimized(L, lambda module: {"optimizer": torch.optim.Adam(module.parameters(), 0.01)})


@case
def optimizer_and_schedule_in_lists(L: ModuleType) -> Result:
    def configure(module: Any) -> Any:
        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        return [optimizer], [schedules.StepLR(optimizer, 1, gamma=0.5)]

    return optimized(L, configure)


@case
def optimizer_of_groups(L: ModuleType) -> Result:
    def configure(module: Any) -> Any:
        groups = [{"params": [module.layer.weight], "weight_decay": 0.1}, {"params": [module.layer.bias], "lr": 0.3}]
        return torch.optim.SGD(groups, lr=0.1)

    return optimized(L, configure)


@case
def optimizers_of_each_kind(L: ModuleType) -> Result:
    kinds = {"RMSprop": {}, "Adagrad": {}, "NAdam": {}, "Adamax": {}, "RAdam": {}, "Adadelta": {}}
    made = {
        name: optimized(L, lambda m, name=name, how=how: getattr(torch.optim, name)(m.parameters(), lr=0.02, **how))
        for name, how in kinds.items()
    }
    return {name: result["weights"] for name, result in made.items()}


class Signs(torch.optim.Optimizer):
    """An optimizer of a user's, with tensors and numbers as its state."""

    def __init__(self, params: Any, lr: float = 0.02, betas: tuple[float, float] = (0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p))
                state["count"] = state.get("count", 0) + 1
                p.sub_(torch.sign(first * mean + (1 - first) * p.grad), alpha=rate / state["count"])
                mean.mul_(second).add_(p.grad, alpha=1 - second)
        return loss


@case
def optimizers_without_a_formula(L: ModuleType) -> Result:
    """Steps are eager, since `backward` is overridden: PyTorch's own optimizers make the updates."""
    kinds = {
        "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, history_size=3),
        "searching": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
        "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
        "Signs": Signs,
    }

    def made(kind: Any, **how: Any) -> Result:
        Linear: Any = linear(L)

        class Model(Linear):
            calls = 0

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                self.calls += 1
                return super().training_step(batch, batch_idx)

            def backward(self, loss: Any) -> None:
                loss.backward()

            def configure_optimizers(self) -> Any:
                optimizer = kind(self.parameters())
                schedule = schedules.StepLR(optimizer, 2, 0.5)
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        model = Model()
        runner = trainer(L, max_epochs=2, **how)
        runner.fit(model, loader(4))
        return {"calls": model.calls, **told(runner, model)}

    hows: dict[str, dict[str, Any]] = {
        "plain": {},
        "windows": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.2},
        "bf16": {"precision": "bf16-mixed"},
    }
    return {f"{name}, {how}": made(kinds[name], **hows[how]) for name in kinds for how in hows}


@case
def no_optimizer(L: ModuleType) -> Result:
    return optimized(L, lambda module: None)


@case
def frozen_weight(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(FEATURES, FEATURES)
            self.first.weight.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.layer(self.first(x))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05)

    return fit(L, module=Model, max_epochs=2)


@case
def batch_normalization_and_shared_weights(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(FEATURES, FEATURES), torch.nn.Linear(FEATURES, FEATURES)
            self.second.weight = self.first.weight
            self.norm = torch.nn.BatchNorm1d(FEATURES)

        def forward(self, x: Any) -> Any:
            return self.layer(self.second(self.norm(self.first(x)).relu()))

    return fit(L, val=loader(2, seed=1), module=Model, max_epochs=2)


# -- schedules


def scheduled(L: ModuleType, config: Any, **how: Any) -> Result:
    """SGD and a schedule: `config(optimizer, module)` is what stands at "lr_scheduler"."""

    def configure(module: Any) -> Any:
        optimizer = sgd(module)
        return {"optimizer": optimizer, "lr_scheduler": config(optimizer, module)}

    return optimized(L, configure, **how)


@case
def schedule_of_epochs(L: ModuleType) -> Result:
    return scheduled(L, lambda optimizer, module: schedules.ExponentialLR(optimizer, 0.5))


@case
def schedule_of_each_second_epoch(L: ModuleType) -> Result:
    config = lambda o, module: {"scheduler": schedules.ExponentialLR(o, 0.5), "frequency": 2}  # noqa: E731
    return scheduled(L, config, max_epochs=5)


@case
def schedule_of_steps(L: ModuleType) -> Result:
    return scheduled(L, lambda o, module: {"scheduler": schedules.ExponentialLR(o, 0.9), "interval": "step"})


@case
def schedule_of_each_third_step(L: ModuleType) -> Result:
    return scheduled(
        L, lambda o, module: {"scheduler": schedules.ExponentialLR(o, 0.5), "interval": "step", "frequency": 3}
    )


@case
def schedule_of_accumulated_steps(L: ModuleType) -> Result:
    return scheduled(
        L,
        lambda o, module: {"scheduler": schedules.ExponentialLR(o, 0.5), "interval": "step"},
        train=loader(6),
        accumulate_grad_batches=2,
        max_epochs=2,
    )


@case
def schedule_of_estimated_steps(L: ModuleType) -> Result:
    def config(optimizer: Any, module: Any) -> Any:
        steps = module.trainer.estimated_stepping_batches
        return {"scheduler": schedules.OneCycleLR(optimizer, 0.3, total_steps=steps), "interval": "step"}

    return scheduled(L, config, train=loader(6), accumulate_grad_batches=2)


@case
def schedule_by_lambda(L: ModuleType) -> Result:
    return scheduled(L, lambda o, m: {"scheduler": schedules.LambdaLR(o, lambda n: 1 / (n + 1)), "interval": "step"})


def plateau(L: ModuleType, monitor: str, val: Any = None, **how: Any) -> Result:
    def configure(module: Any) -> Any:
        optimizer = sgd(module, lr=0.9)
        schedule = schedules.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": monitor, **how}}

    return optimized(L, configure, val=val, max_epochs=4)


@case
def schedule_by_validation(L: ModuleType) -> Result:
    return plateau(L, "val_loss", loader(2, seed=1))


@case
def schedule_by_training(L: ModuleType) -> Result:
    return plateau(L, "train_loss")


@case
def schedule_by_training_of_steps(L: ModuleType) -> Result:
    return plateau(L, "train_loss", interval="step")


@case
def schedule_of_the_modules_own(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def configure_optimizers(self) -> Any:
            optimizer = sgd(self)
            return [optimizer], [{"scheduler": schedules.StepLR(optimizer, 1, 0.5), "interval": "step"}]

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            if self.global_step % 2:
                scheduler.step()

    return fit(L, module=Model, max_epochs=2)


# -- what training_step returns


@case
def step_that_gives_nothing(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.log("seen", self.loss(batch))

    return fit(L, loader(3), module=Model, max_epochs=2)


@case
def step_that_gives_a_dict(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": self.loss(batch), "more": batch[0].sum()}

    return fit(L, module=Model)


@case
def step_without_a_batch_index(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any) -> Any:
            return self.loss(batch)

        def validation_step(self, batch: Any) -> None:
            self.log("val_loss", self.loss(batch))

    return fit(L, val=loader(1, seed=1), module=Model)


@case
def batches_as_dicts(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def loss(self, batch: Any) -> Any:
            return functional.l1_loss(self(batch["x"]), batch["more"]["y"])

    batches = Batches({"x": x, "more": {"y": y, "name": "n"}} for x, y in loader(3))
    return fit(L, batches, batches, Model, max_epochs=2)


@case
def gradients_seen_and_changed(L: ModuleType) -> Result:
    """Hooks that read the gradients, and one that changes them before the update."""
    norms: list[float] = []

    Linear: Any = linear(L)

    class Model(Linear):
        def on_after_backward(self) -> None:
            norms.append(float(self.layer.weight.grad.norm()))

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            for parameter in self.parameters():
                parameter.grad.mul_(0.5)

    return fit(L, module=Model, accumulate_grad_batches=2, gradient_clip_val=0.2, max_epochs=2) | {"norms": norms}


@case
def clipping_of_the_modules_own(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
        ) -> None:
            value = 0.4 if self.current_epoch == 0 else 0.1
            self.clip_gradients(optimizer, gradient_clip_val=value, gradient_clip_algorithm="norm")

    return fit(L, module=Model, max_epochs=2)


@case
def optimizer_step_that_makes_no_update(L: ModuleType) -> Result:
    """Gradients of a window that it leaves out are not those of the next one."""

    Linear: Any = linear(L)

    class Model(Linear):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            if batch_idx % 4 == 1:
                optimizer.step(closure=optimizer_closure)
            else:
                optimizer_closure()

    return fit(L, loader(8), None, Model, accumulate_grad_batches=2, max_epochs=2)


@case
def updates_left_out_by_optimizer_step(L: ModuleType) -> Result:
    """Each call of `optimizer_step` is counted, and advances schedules, whether it makes an update, none or two; here
    in eager steps and in those with hooks between gradients and update."""

    def made(eager: bool, updates: Any) -> Result:
        Linear: Any = linear(L)

        class Model(Linear):
            def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
                optimizer_closure()
                for _ in range(updates(batch_idx)):
                    optimizer.step()

            def configure_optimizers(self) -> Any:
                optimizer = sgd(self)
                return [optimizer], [{"scheduler": schedules.StepLR(optimizer, 1, 0.9), "interval": "step"}]

        if eager:
            Model.backward = lambda self, loss: loss.backward()
        return fit(L, loader(8), None, Model, max_epochs=1)

    made_by = {f"every second, {eager}": made(eager, lambda batch_idx: batch_idx % 2) for eager in (True, False)}
    return made_by | {"two": made(True, lambda batch_idx: 2)}


@case
def optimizer_step_of_the_modules_own(L: ModuleType) -> Result:
    """Warming up by hand, as many modules do it."""

    Linear: Any = linear(L)

    class Model(Linear):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer.step(closure=optimizer_closure)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)

    return fit(L, module=Model, max_epochs=2)


# -- manual optimization


@case
def manual(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log("train_loss", loss, prog_bar=True)

    return fit(L, val=loader(1, seed=1), module=Model, max_epochs=2)


@case
def manual_with_accumulation_clipping_and_schedule(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer = self.optimizers()
            loss = self.loss(batch)
            self.manual_backward(loss / 2)
            if (batch_idx + 1) % 2 == 0:
                self.clip_gradients(optimizer, gradient_clip_val=0.3, gradient_clip_algorithm="norm")
                optimizer.step()
                optimizer.zero_grad()
                self.lr_schedulers().step()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = sgd(self)
            return [optimizer], [schedules.ExponentialLR(optimizer, 0.7)]

    return fit(L, module=Model, max_epochs=2)


def two_optimizers(L: ModuleType, *callbacks: Any) -> Result:
    """A generator and a critic, in turn, within one step."""

    class Pair(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.generator, self.critic = torch.nn.Linear(FEATURES, FEATURES), torch.nn.Linear(FEATURES, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            x, _ = batch
            first, second = self.optimizers()
            self.toggle_optimizer(first)
            loss = functional.softplus(-self.critic(self.generator(x))).mean()
            self.log("g_loss", loss, prog_bar=True)
            self.manual_backward(loss)
            first.step()
            first.zero_grad()
            self.untoggle_optimizer(first)
            self.toggle_optimizer(second)
            real = functional.softplus(-self.critic(x)).mean()
            loss = (real + functional.softplus(self.critic(self.generator(x).detach())).mean()) / 2
            self.log("d_loss", loss, prog_bar=True)
            self.manual_backward(loss)
            second.step()
            second.zero_grad()
            self.untoggle_optimizer(second)

        def configure_optimizers(self) -> Any:
            make = torch.optim.Adam
            return [make(self.generator.parameters(), 0.02), make(self.critic.parameters(), 0.01)], []

    events: list[str] = []
    rows, model = logger(L), recorded(Pair, events, MODULE_HOOKS, "module")()
    runner = trainer(L, logger=rows, max_epochs=2, callbacks=list(callbacks))
    runner.fit(model, loader(3))
    return told(runner, model, rows, events)


@case
def manual_with_two_optimizers(L: ModuleType) -> Result:
    return two_optimizers(L)


@case
def manual_with_two_optimizers_and_averages(L: ModuleType) -> Result:
    """(Lightning's callback calls configure_model itself.)"""
    averages = importlib.import_module(f"{L.__name__}.callbacks").EMAWeightAveraging
    result = two_optimizers(L, averages(decay=0.7, update_every_n_steps=3))
    return {name: value for name, value in result.items() if name != "events"}
