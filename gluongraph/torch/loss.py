"""A loss of PyTorch's, as a module or a function, for compiled steps and eager programs."""

from __future__ import annotations

from typing import Any

from gluongraph.dtypes import DTYPES, is_integer
from gluongraph.errors import with_user_location
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.ndarray import NDArray
from gluongraph.torch import export
from gluongraph.torch.block import TorchBlock
from gluongraph.torch.export import ExportError, torch

Key = tuple[tuple[str, tuple[int, ...]], ...]


class Loss:
    """A loss module or function of PyTorch's: called with predictions and targets, traced once for each of their types.

    Integer targets are int64, as PyTorch's losses want them. A mean over the batch is one number: a step that updates
    by it does not divide by the batch's size again, as PyTorch does not. `mx.compile` makes one of what it is given as
    `loss`; functions that are not PyTorch's own are wrapped by hand.

    Raises:
        ExportError: the module has parameters: they belong to the net.

    >>> import torch
    >>> import gluongraph as mx
    >>> from gluongraph import nd
    >>> loss = mx.torch.Loss(torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    >>> round(float(loss(nd.ones((2, 4)), nd.array([0, 3], dtype="int64")).asscalar()), 4)
    1.3863
    """

    def __init__(self, what: Any):
        self._module = export.as_module(what)
        self.__name__ = type(self._module).__name__
        if names := [name for name, _ in self._module.named_parameters()]:
            message = f"the loss {self.__name__} has parameters: {', '.join(names[:5])}"
            help = "compute the loss in the forward of the module that is trained"
            raise ExportError(with_user_location(message, help=help))
        self._blocks: dict[Key, TorchBlock] = {}

    def __call__(self, *arrays: NDArray) -> Any:
        given = [a.astype("int64", copy=False) if is_integer(a.type.dtype) else a for a in arrays]
        key = tuple((a.type.dtype, a.shape) for a in given)
        if key not in self._blocks:
            with export.mode(self._module, False):
                examples = tuple(torch().zeros(s, dtype=getattr(torch(), DTYPES[d].long)) for d, s in key)
                self._blocks[key] = TorchBlock(self._module, examples, {}, None, train=False, share=False)
        return self._blocks[key](*given)

    def __repr__(self) -> str:
        return f"Loss({self._module})"


def is_torch(what: Any) -> bool:
    """Is it a module, or a function of PyTorch's own? Asked without importing torch."""
    if not is_torch_loaded():
        return False
    return isinstance(what, torch().nn.Module) or str(getattr(what, "__module__", "")).startswith("torch.")
