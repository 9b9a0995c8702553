"""The eager engine: steps run in the framework of the module's layers, for manual optimization and `eager=True`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from gluongraph import autograd
from gluongraph.gluon.torch_trainer import take_states
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.batch import to_framework
from gluongraph.lightning.engine.steps import loss_of
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.optimizers import LightningOptimizer, OwnUpdates
from gluongraph.storage import Array
from gluongraph.tracing.ema import AveragedWeights

if TYPE_CHECKING:
    from gluongraph.lightning.engine.averaging import RankAverage


def call_step(trainer: Any, module: Any, kind: str, batch: Any, batch_idx: int, loader: int | None) -> Any:
    """The result of a step function, called as Python."""
    names = list(inspect.signature(getattr(module, kind)).parameters.values())
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in names)
    count = len(names) if not takes_all else 3
    args = (to_framework(batch, trainer.is_torch), batch_idx, loader or 0)[: min(count, 3)]
    before, module._current_fx = module._current_fx, kind
    try:
        with _casting(trainer):
            return getattr(module, kind)(*args)
    finally:
        module._current_fx = before


def _casting(trainer: Any) -> Any:
    """Within, PyTorch computes in bfloat16 what the mixed precisions compute so: on a CPU "16-mixed" does, too."""
    if not trainer.is_torch or not trainer.precision.endswith("-mixed"):
        return nullcontext()
    from gluongraph.torch.export import torch

    return torch().autocast("cpu", dtype=torch().bfloat16, cache_enabled=False)


def evaluate_eagerly(
    trainer: Any, module: Any, kind: str, batch: Any, batch_idx: int, loader: int | None, store: Any, torch: bool
) -> Any:
    """The result of a step function of validation, test or prediction, without gradients."""
    if torch:
        from gluongraph.torch.export import torch as package

        context: Any = package().no_grad()
    else:
        context = autograd.predict_mode()
    with context:
        return call_step(trainer, module, kind, batch, batch_idx, loader)


def _rank_average(module: Any, ranks: Any) -> RankAverage:
    """What averages the gradients of a module of PyTorch's; all ranks begin with the weights of the first one."""
    import_whole("gluongraph.lightning.engine.averaging")
    from gluongraph.lightning.engine.averaging import RankAverage

    made = RankAverage(module, ranks)
    made.begin()
    return made


class EagerEngine:
    """Trains by calling training_step as it is: gradients are the framework's, updates the optimizer's own.

    With manual optimization training_step makes the updates; else they are made here, as Lightning makes them. On
    several ranks PyTorch's gradients are averaged after each backward; those of Gluon's trainers by their stores.
    """

    name = "eager"
    skipped = 0

    def __init__(self, trainer: Any, module: Any, steps: Any, gluon_trainer: Any, store: Any, torch: bool):
        self.trainer, self.module, self.steps, self.torch = trainer, module, steps, torch
        self.gluon_trainer, self.store = gluon_trainer, store
        self.optimizers = [LightningOptimizer(each, self._step, module) for each in trainer.optimizers]
        self.averages = None if trainer.ema is None else AveragedWeights(trainer.ema)
        self._average: RankAverage | None = None
        self._updated = False  # has optimizer_step made an update?
        if trainer.world_size > 1:
            if trainer.sharding:
                message = f"{type(module).__name__} trains eagerly, and strategy={trainer.sharding!r} divides its state"
                raise misconfigured(message, help='strategy="ddp"; compiled steps can divide it')
            if torch:
                self._average = _rank_average(module, trainer.ranks)

    def train(self, batch: Any, batch_idx: int, accumulates: bool) -> Any:
        """One batch, and with automatic optimization the update where it ends a window."""
        if not self.module.automatic_optimization:
            result = self._call(batch, batch_idx)
            loss = result.get("loss") if isinstance(result, dict) else result
            return None if result is None else (loss, result)
        made: list[Any] = [None]

        def closure() -> Any:
            with self._with_gradients():
                made[0] = self._gradients(batch, batch_idx, accumulates)
            if made[0] is None:
                return None
            loss, window = made[0][0], self.trainer.window_length(batch_idx)
            return (loss.detach() if self.torch else loss) / window

        if accumulates:
            closure()
        elif not self.optimizers:
            closure()
            self.trainer.engines.count(True)  # max_steps holds for a training that updates nothing, too
        else:
            hooks, trainer = self.trainer.hooks, self.trainer
            optimizer, self._updated = self.optimizers[0], False
            hooks.call_module("optimizer_step", trainer.current_epoch, batch_idx, optimizer, closure)
            trainer.engines.count(not self._updated)  # `optimizer_step` may make several updates, or none
        return made[0]

    def _with_gradients(self) -> Any:
        """Within, gradients are computed: optimizers of PyTorch's may call the closure where they are not."""
        if not self.torch:
            return nullcontext()
        from gluongraph.torch.export import torch

        return torch().enable_grad()

    def _call(self, batch: Any, batch_idx: int) -> Any:
        if self._average is not None:
            self._average.share_buffers()
        recording: Any = nullcontext() if self.torch else autograd.record()
        with recording:
            return call_step(self.trainer, self.module, "training_step", batch, batch_idx, None)

    def _gradients(self, batch: Any, batch_idx: int, accumulates: bool) -> Any:
        """Forward, backward and the hooks around them."""
        trainer, hooks = self.trainer, self.trainer.hooks
        result = self._call(batch, batch_idx)
        loss = loss_of(result)
        every = trainer.accumulate_grad_batches
        optimizer = self.optimizers[0] if self.optimizers else None
        if optimizer is not None and batch_idx % every == 0:
            hooks.call("on_before_zero_grad", optimizer)
            if self.torch or hooks.overridden("optimizer_zero_grad"):
                hooks.call_module("optimizer_zero_grad", trainer.current_epoch, batch_idx, optimizer)
        if loss is None:
            return None
        hooks.call("on_before_backward", loss)
        self._backward(loss, trainer.window_length(batch_idx), batch_idx % every == 0)
        if batch_idx % every:  # else the next run clears them before it adds its own
            trainer.counters.begun = False
        if self._average is not None and not accumulates:
            self._average.average()
        hooks.call("on_after_backward")
        if optimizer is not None and not accumulates:
            hooks.call("on_before_optimizer_step", optimizer)
            self._check_norm(optimizer)
            hooks.call_module(
                "configure_gradient_clipping",
                optimizer,
                gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )
        return loss, result

    def _backward(self, loss: Any, window: int, begins: bool) -> None:
        """The backward pass of a batch, whose gradients are added to those before unless it begins a window."""
        backward = partial(self.trainer.hooks.call_module, "backward")
        if window == 1 or self.torch:
            backward(loss if window == 1 else loss / window)
            return
        with autograd.record():
            scaled = loss / window
        written = [p for p in self.module.collect_params().values() if p.grad_req == "write"]  # over those before
        gradients = [] if begins else [gradient for p in written for gradient in p.list_grad()]
        before = [gradient.copy() for gradient in gradients]
        backward(scaled)
        for gradient, sum in zip(gradients, before, strict=True):
            gradient += sum

    def _check_norm(self, optimizer: Any) -> None:
        if self.trainer.error_if_nonfinite:
            import_whole("gluongraph.lightning.clipping")
            from gluongraph.lightning.clipping import check_norm

            check_norm(self.trainer, optimizer)

    def _checking(self, optimizer: Any, closure: Any) -> Any:
        """The closure of a step in manual optimization, which makes the gradients that are to be looked at; without one
        they are there."""
        if not callable(closure):
            self._check_norm(optimizer)
            return closure

        def checked() -> Any:
            made = closure()
            self._check_norm(optimizer)
            return made

        return checked

    def _step(self, optimizer: Any, closure: Callable[[], Any] | None, how: Mapping[str, Any]) -> Any:
        """What the step of an optimizer does, in manual optimization too."""
        manual = not self.module.automatic_optimization
        if manual:
            self.trainer.hooks.call("on_before_optimizer_step", optimizer)
            closure = self._checking(optimizer, closure)
        made, self._updated = self._own_step(optimizer, closure, how), True
        self.trainer.counters.begun = False
        if manual:
            self.trainer.engines.count(False)
        return made

    def _own_step(self, optimizer: Any, closure: Callable[[], Any] | None, how: Mapping[str, Any]) -> Any:
        if self.torch:
            return optimizer.step(closure=closure, **how)
        loss = closure() if closure is not None and callable(closure) else None
        size = 1 if closure is None or callable(closure) else closure
        if not hasattr(optimizer, "step"):  # one of mx.optimizer, for all parameters
            if optimizer is not self.gluon_trainer.optimizer:
                message = "several optimizers of mx.optimizer, which do not know their parameters"
                raise misconfigured(message, help="give a gluon.Trainer for each")
            optimizer = self.gluon_trainer
        optimizer.step(size * self.trainer.world_size)  # stores sum over the ranks, and the loop averages
        return loss

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """`manual_backward`."""
        hooks = self.trainer.hooks
        hooks.call("on_before_backward", loss)
        hooks.call_module("backward", loss, *args, **kwargs)
        if self._average is not None:
            self._average.average()
        hooks.call("on_after_backward")

    def unused_gradients(self) -> dict[str, Array]:
        """The gradients that later updates go on from, by the names of arrays in a checkpoint: of a window that has not
        ended, and all where training_step or an `optimizer_zero_grad` of the user's decides how long they are kept.
        """
        trainer = self.trainer
        kept = self.torch and not self.module.automatic_optimization
        if not (kept or trainer.counters.window or trainer.hooks.overridden("optimizer_zero_grad")):
            return {}
        import_whole("gluongraph.lightning.engine.unused_gradients")
        from gluongraph.lightning.engine import unused_gradients

        return unused_gradients.taken(self.module, self.steps.block, self.torch)

    def put_gradients(self, arrays: Mapping[str, Array]) -> None:
        """Go on from the gradients that a checkpoint has."""
        import_whole("gluongraph.lightning.engine.unused_gradients")
        from gluongraph.lightning.engine import unused_gradients

        unused_gradients.put(self.module, self.steps.block, self.torch, arrays)

    # -- checkpoints: the optimizers' own states are those of the trainer that is saved, where it knows what they mean

    @property
    def keeps_states(self) -> bool:
        """Are the states of PyTorch's optimizers theirs alone, since the trainer does not know what they mean?"""
        return self.gluon_trainer is not None and isinstance(self.gluon_trainer.optimizer, OwnUpdates)

    def push_states(self) -> None:
        """Give the states of PyTorch's optimizers to the trainer that a checkpoint is taken from."""
        if self.keeps_states:
            self.gluon_trainer.optimizer.num_update = self.trainer.global_step
        elif self.torch and self.gluon_trainer is not None:
            take_states(self.gluon_trainer)

    def pull_states(self) -> None:
        """Take the states of PyTorch's optimizers from the trainer that a checkpoint was put into."""
        if self.torch and self.gluon_trainer is not None and not self.keeps_states:
            told = self.gluon_trainer.torch_state_dict()
            for each, state in zip(self.trainer.optimizers, told if isinstance(told, list) else [told], strict=True):
                each.load_state_dict(state)
