"""The Protocol of a Trainer for the graph of a step; `gluon.Trainer` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gluongraph.context import Context
from gluongraph.ndarray import NDArray
from gluongraph.optimizer import Optimizer
from gluongraph.tracing.gradient_exchange import Exchange
from gluongraph.tracing.loss_scaling import LossScale


class Trained(Protocol):
    """A parameter."""

    @property
    def key(self) -> str:
        """Its name, numbered if several parameters have the same."""

    @property
    def grad_req(self) -> str:
        """ "write", "add" or "null"."""

    def list_data(self) -> list[NDArray]:
        """Its replicas, one for each context."""

    def list_grad(self) -> list[NDArray]:
        """Their gradients."""


class Trainer(Protocol):
    """The parameters, the optimizer with its states, and the exchange of gradients between replicas."""

    scaler: LossScale  # of amp.scale_loss, and of compiled steps with precision="16-mixed"
    skips: bool  # whether a step with gradients that are not finite changes nothing
    scaled_by: float  # the divisor of the gradients
    states: dict[str, Any]

    @property
    def params(self) -> Sequence[Trained]:
        """The parameters, in index order."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their keys."""

    @property
    def contexts(self) -> Sequence[Context]:
        """Where the parameters are."""

    @property
    def optimizer(self) -> Optimizer:
        """The current optimizer."""

    @property
    def exchange(self) -> Exchange:
        """The exchange of gradients between replicas."""

    def replica(self, name: str) -> NDArray:
        """Return the array of an input: "dense0_weight", or on a further context "dense0_weight@cpu(1)"."""

    def state_arrays(self, names: Iterable[str]) -> dict[str, NDArray]:
        """Return the optimizer's states of these replicas, "<replica>/<state>" -> array."""

    def residual_arrays(self, names: Iterable[str]) -> dict[str, NDArray]:
        """Return the residuals of gradient compression of these replicas, "residual:<replica>" -> array."""
