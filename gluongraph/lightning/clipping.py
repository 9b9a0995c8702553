"""Gradient clipping of the staged and the eager mode, on the gradients that parameters show."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.gluon.trainer import Trainer as GluonTrainer


def clip(trainer: Any, optimizer: Any, value: float | None, algorithm: str) -> None:
    """Clip in place: so that the norm of all gradients together is at most `value`, or each element."""
    if not value:
        return
    if trainer.is_torch:
        from gluongraph.torch.export import torch

        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        utils = torch().nn.utils
        (utils.clip_grad_value_ if algorithm == "value" else utils.clip_grad_norm_)(parameters, value)
        return
    owner = optimizer if isinstance(optimizer, GluonTrainer) else trainer.gluon_trainer
    gradients = [p.list_grad()[0] for p in owner.params if p.grad_req != "null"]
    if algorithm == "value":
        for gradient in gradients:
            gradient[:] = gradient.clip(-value, value)
        return
    norm = float(np.sqrt(sum(float((g.asnumpy().astype(np.float64) ** 2).sum()) for g in gradients)))
    if norm > value:
        for gradient in gradients:
            gradient[:] = gradient * (value / (norm + 1e-6))
