"""A net, a loss and an optimizer as a module: `trainer.fit((net, loss, optimizer), loader)`."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.module import LightningModule
from gluongraph.lightning.optimizers import is_optimizer
from gluongraph.optimizer import create


class PlainModule(LightningModule):
    """A net that is trained on the loss of its predictions; batches are (inputs, targets). `optimizer` may be the name
    of one of `mx.optimizer`; None where nothing is trained.

    Logs "train_loss", "val_loss" and "test_loss"; predicts for inputs, or for the inputs of a batch with targets.
    """

    def __init__(self, net: Any, loss: Any, optimizer: Any = None):
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
        """The optimizer.

        Raises:
            MisconfigurationException: there is none.
        """
        if self._optimizer is None:
            message = "a net and a loss are given, and no optimizer"
            raise misconfigured(message, help="trainer.fit((net, loss, optimizer), loader)")
        return create(self._optimizer) if isinstance(self._optimizer, str) else self._optimizer


def module_of(given: Any) -> Any:
    """A module as it is; (net, loss, optimizer), or (net, loss) where nothing is trained, as a module. Of a module that
    torch.compile was given, the module: its steps are compiled here.

    Raises:
        TypeError: it is neither.
    """
    given = getattr(given, "_orig_mod", given)
    if isinstance(given, LightningModule):
        return given
    if isinstance(given, (tuple, list)):
        if len(given) in (2, 3) and all(map(callable, given[:2])) and _fits(*given[2:]):
            return PlainModule(*given)
        kinds = ", ".join(type(each).__name__ for each in given)
        message = f"a model is a LightningModule or (net, loss, optimizer), not ({kinds})"
        help = "the optimizer is one of torch.optim or mx.optimizer, the name of one, or a gluon.Trainer"
        raise TypeError(with_user_location(message, help=help))
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    help = "derive it from gluongraph.lightning.LightningModule, or give (net, loss, optimizer)"
    if kind.startswith("lightning.") or "lightning.pytorch" in [
        c.__module__.rpartition(".")[0] for c in type(given).__mro__
    ]:
        help = "import gluongraph.lightning as L, in place of lightning.pytorch"
    raise TypeError(with_user_location(f"a model is a LightningModule, not {kind}", help=help))


def _fits(optimizer: Any = None) -> bool:
    """Is it an optimizer, its name, or none?"""
    return optimizer is None or isinstance(optimizer, str) or is_optimizer(optimizer)
