"""A net, a loss and an optimizer as a module: `trainer.fit((net, loss, optimizer), loader)`."""

from __future__ import annotations

from typing import Any

from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.module import LightningModule
from gluongraph.lightning.optimizers import is_optimizer


class PlainModule(LightningModule):
    """A net that is trained on the loss of its predictions; batches are (inputs, targets).

    Logs "train_loss", "val_loss" and "test_loss"; predicts for inputs, or for the inputs of a batch with targets.
    """

    def __init__(self, net: Any, loss: Any, optimizer: Any):
        super().__init__()
        self.net, self.loss, self._optimizer = net, loss, optimizer

    def forward(self, x: Any) -> Any:
        """The net's prediction."""
        return self.net(x)

    def _loss(self, batch: Any) -> Any:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise misconfigured("a batch is (inputs, targets) where a net and a loss are trained")
        x, y = batch
        return self.loss(self.net(x), y).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The mean loss."""
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs the mean loss."""
        self.log("val_loss", self._loss(batch), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Logs the mean loss."""
        self.log("test_loss", self._loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The prediction."""
        return self.net(batch[0] if isinstance(batch, (tuple, list)) else batch)

    def configure_optimizers(self) -> Any:
        """The optimizer."""
        return self._optimizer


def module_of(given: Any) -> Any:
    """A module as it is; a triple of net, loss and optimizer as a module.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(given, LightningModule):
        return given
    if isinstance(given, (tuple, list)) and len(given) == 3 and is_optimizer(given[2]):
        return PlainModule(*given)
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    help = "derive it from gluongraph.lightning.LightningModule, or give (net, loss, optimizer)"
    if kind.startswith("lightning.") or "lightning.pytorch" in [
        c.__module__.rpartition(".")[0] for c in type(given).__mro__
    ]:
        help = "import gluongraph.lightning as L, in place of lightning.pytorch"
    from gluongraph.errors import with_user_location

    raise TypeError(with_user_location(f"a model is a LightningModule, not {kind}", help=help))
