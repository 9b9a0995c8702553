"""The hooks that modules, callbacks and data modules may override, and which of them an object overrides."""

from __future__ import annotations

from typing import Any

# What runs between the gradients and the update. A compiled step has no such places: a module or callback that
# overrides one of these is trained in the staged mode.
GRADIENT_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
    "optimizer_zero_grad",
    "backward",
)
# Hooks of every batch. Several steps are one call only where nothing overrides these.
BATCH_HOOKS = ("on_train_batch_start", "on_train_batch_end")
PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # Lightning's names
# Where its classes are whose hooks do nothing, too.
_BASES = tuple(f"{package}.{part}" for package in PACKAGES for part in ("core.", "callbacks.callback"))
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def overrides(given: Any, name: str, base: type | tuple[type, ...]) -> bool:
    """Does an object have a method of its own in place of that of `base`, or of Lightning's class of that name?

    >>> class A:
    ...     def f(self): ...
    >>> class B(A):
    ...     def f(self): ...
    >>> overrides(B(), "f", A), overrides(A(), "f", A)
    (True, False)
    """
    if name in getattr(given, "__dict__", {}):
        return True
    own = getattr(type(given), name, None)
    bases = base if isinstance(base, tuple) else (base,)
    if own is None or any(own is getattr(each, name, None) for each in bases):
        return False
    return not str(getattr(own, "__module__", "")).startswith(_BASES)  # None, where code was given to exec


class DataHooks:
    """The hooks about data: of modules and data modules."""

    def prepare_data(self) -> None:
        """Download and prepare data; called on one rank of each host, and on no other."""

    def setup(self, stage: str) -> None:
        """Called at the beginning of "fit", "validate", "test" and "predict", on every rank."""

    def teardown(self, stage: str) -> None:
        """Called at the end of "fit", "validate", "test" and "predict"."""

    def train_dataloader(self) -> Any:
        """The loader of `fit`, where it is not given."""
        raise NotImplementedError

    def val_dataloader(self) -> Any:
        """The loader of `validate` and of the validation in `fit`; or a list of loaders."""
        raise NotImplementedError

    def test_dataloader(self) -> Any:
        """The loader of `test`; or a list of loaders."""
        raise NotImplementedError

    def predict_dataloader(self) -> Any:
        """The loader of `predict`; or a list of loaders."""
        raise NotImplementedError

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch as it is before it becomes arrays; gives the batch."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """The batch, where its arrays are to be; gives the batch."""
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch as the step gets it; gives the batch."""
        return batch


class ModelHooks:
    """The hooks of a module in the loops, none of which does anything by default."""

    def on_fit_start(self) -> None:
        """Called at the beginning of `fit`, before the sanity check."""

    def on_fit_end(self) -> None:
        """Called at the end of `fit`."""

    def on_train_start(self) -> None:
        """Called before the first epoch."""

    def on_train_end(self) -> None:
        """Called after the last epoch."""

    def on_train_epoch_start(self) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self) -> None:
        """Called after the last batch of an epoch, and the validation there."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Called before a batch; -1 leaves out the rest of the epoch."""
        return None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after a batch, with what `training_step` gave."""

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_end(self) -> None:
        """Called after a validation."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last batch of a validation."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before a batch of a validation."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a batch of a validation."""

    def on_validation_model_eval(self) -> None:
        """Put the module into prediction mode before a validation."""
        self._set_mode(False)

    def on_validation_model_train(self) -> None:
        """Put the module back into the mode of before."""
        self._set_mode(True)

    def on_validation_model_zero_grad(self) -> None:
        """Called where gradients are not needed any more, before a validation."""

    def on_test_start(self) -> None:
        """Called before a test."""

    def on_test_end(self) -> None:
        """Called after a test."""

    def on_test_epoch_start(self) -> None:
        """Called before the first batch of a test."""

    def on_test_epoch_end(self) -> None:
        """Called after the last batch of a test."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before a batch of a test."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a batch of a test."""

    def on_test_model_eval(self) -> None:
        """Put the module into prediction mode before a test."""
        self._set_mode(False)

    def on_test_model_train(self) -> None:
        """Put the module back into the mode of before."""
        self._set_mode(True)

    def on_predict_start(self) -> None:
        """Called before predictions."""

    def on_predict_end(self) -> None:
        """Called after predictions."""

    def on_predict_epoch_start(self) -> None:
        """Called before the first batch of predictions."""

    def on_predict_epoch_end(self) -> None:
        """Called after the last batch of predictions."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before a batch of predictions."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a batch of predictions."""

    def on_predict_model_eval(self) -> None:
        """Put the module into prediction mode."""
        self._set_mode(False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint will hold; may add to it what JSON holds, and arrays."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint holds."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Called before gradients are set to zero (staged mode)."""

    def on_before_backward(self, loss: Any) -> None:
        """Called before the gradients of a loss are computed (staged mode)."""

    def on_after_backward(self) -> None:
        """Called after the gradients have been computed (staged mode)."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Called before the update, with gradients in place, not clipped yet (staged mode)."""

    def configure_model(self) -> None:
        """Called once before the model is used; large models are made here."""

    def configure_callbacks(self) -> Any:
        """Callbacks of the module, which replace those of the Trainer of the same type."""
        return []

    def _set_mode(self, training: bool) -> None:
        """Put the module into a mode, where it has one."""
