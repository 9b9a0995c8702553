"""Gradient clipping of the staged and the eager mode, on the gradients that parameters show; and their norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.errors import NotFiniteError, with_user_location
from gluongraph.gluon.trainer import Trainer as GluonTrainer


def clip(trainer: Any, optimizer: Any, value: float | None, algorithm: str) -> None:
    """Clip in place: so that the norm of all gradients together is at most `value`, or each element."""
    if not value:
        return
    if trainer.is_torch:
        from gluongraph.torch.export import torch

        utils = torch().nn.utils
        if algorithm == "value":
            utils.clip_grad_value_(_tensors(optimizer), value)
        else:
            utils.clip_grad_norm_(_tensors(optimizer), value, norm_type=trainer.gradient_clip_norm_type)
        return
    gradients = _gradients(trainer, optimizer)
    if algorithm == "value":
        for gradient in gradients:
            gradient[:] = gradient.clip(-value, value)
        return
    if (norm := _norm(gradients, trainer.gradient_clip_norm_type)) > value:
        for gradient in gradients:
            gradient[:] = gradient * (value / (norm + 1e-6))


def check_norm(trainer: Any, optimizer: Any) -> None:
    """Check the norm of all gradients before the update, for `error_if_nonfinite`.

    Raises:
        NotFiniteError: it is not finite.
    """
    if trainer.is_torch:
        from gluongraph.torch.export import torch

        made = [p.grad for p in _tensors(optimizer) if p.grad is not None]
        norm = float(torch().nn.utils.get_total_norm(made, trainer.gradient_clip_norm_type))
    else:
        norm = _norm(_gradients(trainer, optimizer), trainer.gradient_clip_norm_type)
    if not np.isfinite(norm):
        message = f"error_if_nonfinite: the norm of all gradients is {norm}"
        help = "torch.autograd.detect_anomaly() or autograd.detect_anomaly() finds the op"
        raise NotFiniteError(with_user_location(message, help=help))


def _tensors(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer of PyTorch's."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _gradients(trainer: Any, optimizer: Any) -> list[Any]:
    """The gradients of a gluon.Trainer's parameters."""
    owner = optimizer if isinstance(optimizer, GluonTrainer) else trainer.gluon_trainer
    return [p.list_grad()[0] for p in owner.params if p.grad_req != "null"]


def _norm(gradients: list[Any], norm_type: float) -> float:
    """The p-norm of all elements together."""
    each = [np.linalg.norm(g.asnumpy().astype(np.float64).reshape(-1), norm_type) for g in gradients]
    return float(np.linalg.norm(each, norm_type))
