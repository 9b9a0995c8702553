"""Mixed precision by MXNet's names (mx.contrib.amp): products in 16 bits, and losses scaled so that gradients survive.

`init` makes the products of layers (Dense, convolutions) read their inputs in 16 bits and give float32; weights, and
all that lies between the products, stay float32. `init_trainer` watches the gradients of a trainer: where one is not
finite, the step changes no weight, and the loss is scaled by half from then on.

    amp.init()
    ...
    amp.init_trainer(trainer)
    with autograd.record():
        loss = loss_fn(net(x), y)
        with amp.scale_loss(loss, trainer) as scaled:
            autograd.backward(scaled)
    trainer.step(batch_size)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph import nd, ops
from gluongraph.dtypes import dtype_name
from gluongraph.eager import nan_check
from gluongraph.errors import with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops import images as mximages
from gluongraph.mxops import layers as mxlayers
from gluongraph.nd.function import TUNING, function
from gluongraph.tracing.keep_float32 import float32, keep_float32
from gluongraph.tracing.loss_scaling import LossScale
from gluongraph.tracing.trainer import Trainer

__all__ = [
    "float32",
    "init",
    "init_trainer",
    "keep_float32",
    "list_lp16_ops",
    "scale_loss",
    "unscale",
]

_PRODUCTS: dict[str, Callable[..., Any]] = {
    "Convolution": mximages.Convolution,
    "Deconvolution": mximages.Deconvolution,
    "FullyConnected": mxlayers.FullyConnected,
}
_target: str | None = None  # what init was called with
_amp_initialized = False  # MXNet's name of whether there has been a call of `init`


def list_lp16_ops(target_dtype: str = "float16") -> list[str]:
    """The operators that `init` makes read 16 bits."""
    return list(_PRODUCTS)


def init(target_dtype: Any = "float16") -> None:
    """From now on products are computed in float16 or bfloat16. Networks that were hybridized before keep their code.

    Raises:
        ValueError: another type; or a second call with another type than the first one.
    """
    global _target, _amp_initialized
    name = dtype_name(target_dtype)
    if name not in ("f16", "bf16"):
        raise ValueError(f"amp.init: target_dtype is float16 or bfloat16, not {target_dtype!r}")
    if _target not in (None, name):
        raise ValueError(f"amp.init has been called with another type before, {_target}")
    if _target is None:
        _target, _amp_initialized = name, True
        for op, build in _PRODUCTS.items():
            setattr(nd, op, function(_low(build, name), op, TUNING))


def _low(build: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    def low(data: Any, *args: Any, **kwargs: Any) -> Any:
        def cast(x: Any) -> Any:
            return ops.cast(x, dtype) if isinstance(x, Node) and x.dtype == "f32" else x

        made = build(cast(data), *map(cast, args), **{k: cast(v) for k, v in kwargs.items()})
        return ops.cast(made, data.dtype)

    low.__doc__ = build.__doc__
    return low


def init_trainer(trainer: Trainer) -> None:
    """Let the trainer watch for gradients that are not finite. A second call does nothing.

    Raises:
        AssertionError: `init` has not been called.
        TypeError: it is no Trainer.
    """
    if _target is None:
        raise AssertionError("amp.init_trainer: call amp.init() before, at the beginning of the program")
    if not isinstance(getattr(trainer, "scaler", None), LossScale):
        raise TypeError(f"amp.init_trainer takes a gluon.Trainer, not a {type(trainer).__name__}")
    trainer.skips = True


def _check(trainer: Trainer, call: str) -> None:
    if not trainer.skips:
        raise AttributeError(
            with_user_location(f"amp.{call}: the trainer has no loss scaler", help="call amp.init_trainer first")
        )


@contextmanager
def scale_loss(loss: Any, trainer: Trainer) -> Iterator[Any]:
    """The loss (or list of losses) times the scale, to go back from; the trainer's next step divides by it again.

    Within, detect_anomaly lets gradients overflow: the trainer looks for that.

    Raises:
        AttributeError: init_trainer has not been called on the trainer.
    """
    _check(trainer, "scale_loss")
    scale = trainer.scaled_by = trainer.scaler.loss_scale
    with nan_check.suspended():
        yield [each * scale for each in loss] if isinstance(loss, (list, tuple)) else loss * scale


def unscale(trainer: Trainer) -> None:
    """Divide the gradients by the scale now, so that they can be clipped before the step.

    Raises:
        AttributeError: init_trainer has not been called on the trainer.
    """
    _check(trainer, "unscale")
    for parameter in trainer.params:
        if parameter.grad_req != "null":
            for grad in parameter.list_grad():
                grad.storage.write(grad.storage.array / np.asarray(trainer.scaled_by, grad.dtype))
    trainer.scaled_by = 1.0
