"""The step functions of a module as one block: what is common to Gluon's and PyTorch's modules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.lightning.batch import Structure
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.metric_objects import MetricCalls
from gluongraph.lightning.metrics import Logged, Observed
from gluongraph.lightning.read_attributes import TracedNumber
from gluongraph.ndarray import NDArray

TRAINS_NOTHING = "training_step gave a loss that depends on no parameter that is trained"


@dataclass
class Traced:
    """What a traced step function gives: its result, the values that it logs (then numbers of samples that it computes
    for them, see `Accumulator.record`), and the calls of torchmetrics' objects
    that are to be made on `arguments`, with what is logged of them."""

    result: Any
    logged: tuple[Logged, ...] = ()
    values: list[NDArray] = field(default_factory=list)
    calls: MetricCalls = field(default_factory=MetricCalls)
    observed: tuple[Observed, ...] = ()
    arguments: list[NDArray] = field(default_factory=list)


class Steps(Protocol):
    """A block with the parameters of a module, which runs the module's step functions on traced arrays."""

    torch: bool  # are the module's layers PyTorch's?

    @property
    def block(self) -> HybridBlock:
        """The block."""

    def refresh(self, trains: bool = True) -> None:
        """Follow what hooks may have done to the module since the last batch, before one that `trains`, or not."""

    def take_over(self) -> None:
        """Take the values of tensors that have been replaced: the parameters are to be read, or updated."""

    def run(self, kind: str, structure: Structure, arrays: Sequence[NDArray], dataloader_idx: int | None) -> Traced:
        """The module's `kind`, as "training_step", on a batch."""


def arguments(module: Any, kind: str, batch: Any, dataloader_idx: int | None) -> tuple[Any, ...]:
    """The arguments of a step function: the batch, and as many of batch_idx and dataloader_idx as it takes.

    Raises:
        MisconfigurationException: there are several loaders, and it does not take `dataloader_idx`.
    """
    names = list(inspect.signature(getattr(module, kind)).parameters.values())
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in names)
    count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in names)
    if dataloader_idx is not None and not takes_all and count < 3 and "dataloader_idx" not in {p.name for p in names}:
        message = f"there are several loaders, and {type(module).__name__}.{kind} does not take dataloader_idx"
        raise misconfigured(message, help=f"def {kind}(self, batch, batch_idx, dataloader_idx=0)")
    given = (batch, TracedNumber("batch_idx"), 0 if dataloader_idx is None else dataloader_idx)
    return given if takes_all else given[: min(count, 3)]


def loss_of(result: Any, kind: str = "training_step") -> Any:
    """The loss in what training_step gave; None where the batch is to be left out.

    Raises:
        MisconfigurationException: it is neither an array of one element, nor a dict with "loss", nor None.
    """
    loss = result.get("loss") if isinstance(result, dict) else result
    if isinstance(result, dict) and "loss" not in result:
        message = f"{kind} gave a dict without the key 'loss': {', '.join(map(str, result)) or 'nothing'}"
        raise misconfigured(message, help='return {"loss": loss, ...}')
    if loss is not None and not hasattr(loss, "shape"):
        message = f"{kind} gave {type(loss).__name__}; it gives the loss"
        raise misconfigured(message, help='return loss, or {"loss": loss, ...}, or None to leave the batch out')
    if loss is not None and math.prod(loss.shape) != 1:
        shape = tuple(int(extent) for extent in loss.shape)
        message = f"{kind} gave a loss of shape {shape}: the gradients are those of one number"
        raise misconfigured(message, help="return loss.mean()")
    return loss
