"""The base of all callbacks: every hook, state for checkpoints, and how often it looks at batches."""

from __future__ import annotations

import math
from typing import Any

from gluongraph.lightning.hooks import overrides

# What is called within or around a batch of training. A callback that has none of them lets several steps be one call.
BATCH_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step"),
)


class Callback:
    """Something that is done at certain moments of a training: override the hooks of those moments.

    Hooks are called in the order of `Trainer(callbacks=[...])`, before those of the module; callbacks that save
    checkpoints come last. Their names and arguments are those of Lightning 2.6.

    A callback that looks at batches is called after each of them, and then each of them is a call of the compiled step.
    `idle_batches` says that some need not be looked at.

    >>> class Count(Callback):
    ...     def __init__(self):
    ...         self.epochs = 0
    ...
    ...     def on_train_epoch_end(self, trainer, pl_module):
    ...         self.epochs += 1
    ...
    ...     def state_dict(self):
    ...         return {"epochs": self.epochs}
    ...
    ...     def load_state_dict(self, state_dict):
    ...         self.epochs = state_dict["epochs"]
    >>> Count().state_key, Count().idle_batches(None)
    ('Count', inf)
    """

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint. Callbacks of one class with different arguments need different ones.

        >>> Callback().state_key
        'Callback'
        """
        return type(self).__qualname__

    def _generate_state_key(self, **kwargs: Any) -> str:
        """The name of the class and these arguments."""
        return f"{type(self).__qualname__}{kwargs!r}"

    def idle_batches(self, trainer: Any) -> float:
        """For how many of the next batches of training the hooks of a batch need not be called.

        0: the next batch; `math.inf`: never, which is said where none of these hooks is overridden. The answer holds
        until a hook of this callback is called again. It may differ between ranks.

        >>> class Each(Callback):
        ...     def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): ...
        >>> Each().idle_batches(None), Callback().idle_batches(None)
        (0.0, inf)
        """
        return 0.0 if any(overrides(self, name, Callback) for name in BATCH_HOOKS) else math.inf

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback: numbers, texts, None, and lists and dictionaries of them.

        >>> Callback().state_dict()
        {}
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` has given."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint will hold."""

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint holds."""

    # -- around everything

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called when "fit", "validate", "test" or "predict" begins."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called when "fit", "validate", "test" or "predict" ends."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Called when an exception or an interrupt ends the training."""

    # -- training

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Called when `fit` begins."""

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Called when `fit` ends."""

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before the batches of validation that are tried before the training."""

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after the batches of validation that are tried before the training."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before the first epoch."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after the last epoch."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after an epoch and its validation."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Called before a batch of training."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after a batch of training; `outputs["loss"]` is read when it is asked for."""

    # -- between gradients and updates: these hooks make the training a staged one

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Called before gradients are set to zero."""

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Called before the gradients of a loss are computed."""

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Called after the gradients have been computed."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Called before an update, with gradients that are not clipped yet."""

    # -- validation

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before a validation."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after a validation."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before the first batch of a validation."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after the last batch of a validation."""

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch of a validation."""

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch of a validation."""

    # -- test

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before a test."""

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after a test."""

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before the first batch of a test."""

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after the last batch of a test."""

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch of a test."""

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch of a test."""

    # -- prediction

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before predictions."""

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after predictions."""

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Called before the first batch of predictions."""

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called after the last batch of predictions."""

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch of predictions."""

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch of predictions."""
