"""The staged engine: gradients and update are compiled, and the hooks between them see and may change the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.batch import flatten, to_user
from gluongraph.lightning.engine.fused import FusedEngine
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import GradientAccumulator


class StagedEngine(FusedEngine):
    """Trains by a call that adds gradients to accumulators and one that updates by these.

    Where the layers are PyTorch's, the `grad` of parameters is the memory of the accumulators; else gradients are
    copied to `Parameter.grad()` and back. Clipping is that of `configure_gradient_clipping`, not of the compiled step.
    """

    name = "staged"

    def __init__(self, trainer: Any, module: Any, steps: Any, gluon_trainer: Any, store: Any, torch: bool):
        options = {**trainer.compile_options(), "clip_norm": None, "steps_per_call": None}
        super().__init__(steps, gluon_trainer, store, options, module, trainer.optimizers)
        self.trainer, self.module, self.torch = trainer, module, torch
        self.optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self._updated = False  # has optimizer_step made the update?

    def train(self, batch: Any, batch_idx: int, accumulates: bool) -> Any:
        """One batch with its hooks, and the update where it ends a window."""
        made: list[Any] = [None]

        def closure() -> Any:
            made[0] = self._gradients(batch, batch_idx)
            if made[0] is not None and not accumulates:
                self._before_update()
            return None if made[0] is None else to_user(made[0][0], self.torch)

        if accumulates:
            closure()
            return made[0]
        skipped, self._updated = self.skipped, False
        trainer, optimizer = self.trainer, self.optimizers[0]
        trainer.hooks.call_module("optimizer_step", trainer.current_epoch, batch_idx, optimizer, closure)
        trainer.engines.count(not self._updated, self.skipped > skipped)
        return made[0]

    def _gradients(self, batch: Any, batch_idx: int) -> Any:
        """Forward and backward of a batch: its gradients are added to those of the window."""
        trainer, hooks = self.trainer, self.trainer.hooks
        if batch_idx % trainer.accumulate_grad_batches == 0:  # not by what was called: a window may be gone on with
            hooks.call("on_before_zero_grad", self.optimizer)
            zeroing = _ZeroGrad(self.optimizer, self.step.accumulator)
            hooks.call_module("optimizer_zero_grad", trainer.current_epoch, batch_idx, zeroing)
        arrays, structure = flatten(batch)
        made = super().train(arrays, structure, True)
        if made is None:
            return None
        if batch_idx % trainer.accumulate_grad_batches:  # else the next run clears them before it adds its own
            trainer.counters.begun = False
        if hooks.anybody("on_before_backward"):
            hooks.call("on_before_backward", to_user(made[0], self.torch))
        if hooks.anybody("on_after_backward") and self.step.accumulator.samples:
            window = trainer.window_length(batch_idx)
            self._scale(1 / window)
            with self._visible():
                hooks.call("on_after_backward")
            self._scale(window)
        return made

    def _scale(self, factor: float) -> None:
        """Multiply the gradients of the window, which are sums, as hooks see means."""
        if factor != 1:
            for gradient in self.sums().values():
                gradient *= factor

    def _before_update(self) -> None:
        """The hooks that see the gradients of the window, which are their mean now, and clip them."""
        trainer, accumulator = self.trainer, self.step.accumulator
        if trainer.lightning_remainder:
            self.divide_by(trainer.accumulate_grad_batches)
        if not accumulator.samples:
            return  # all batches of the window were left out, and there is no update
        self._scale(1 / accumulator.samples)
        accumulator.samples = 1
        with self._visible():
            trainer.hooks.call("on_before_optimizer_step", self.optimizer)
            trainer.hooks.call_module(
                "configure_gradient_clipping",
                self.optimizer,
                gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any] | None, how: Mapping[str, Any]) -> Any:
        """What `optimizer.step` does: the closure, and the update."""
        loss = closure() if closure is not None else None
        if self.step.accumulator.batches:
            self.apply()
            self._updated = True
        return loss

    def sums(self) -> dict[str, Array]:
        """The gradients of the window, by the names of parameters."""
        live = self.step.accumulator.live
        return {name: array.storage.array for name, array in live.items()}

    def _visible(self) -> Any:
        """Within: the gradients of the window are those that parameters show."""
        if self.torch:
            import_whole("gluongraph.lightning.engine.gradients")
            from gluongraph.lightning.engine.gradients import shown_in_tensors

            return shown_in_tensors(self.module, self.steps, self.sums())
        import_whole("gluongraph.lightning.engine.gradients")
        from gluongraph.lightning.engine.gradients import shown_in_parameters

        return shown_in_parameters(self.step.trainer, self.sums())


class _ZeroGrad:
    """The optimizer as `optimizer_zero_grad` gets it."""

    def __init__(self, optimizer: Any, accumulator: GradientAccumulator):
        self._optimizer, self._accumulator = optimizer, accumulator

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Empty the accumulators, unless the update of the window before has: `optimizer_step` may make none."""
        if self._accumulator.batches:
            self._accumulator.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
