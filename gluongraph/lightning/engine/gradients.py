"""Gradients of a compiled step, shown where hooks look for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph.storage import Array


@contextmanager
def shown_in_tensors(module: Any, steps: Any, gradients: Mapping[str, Array]) -> Iterator[None]:
    """Within and after: `grad` of PyTorch's parameters is the memory of these gradients, or of 16-bit parameters, whose
    gradients are float32, a copy in their dtype. What a hook writes into that, or puts in its place, is copied back."""
    from gluongraph.torch.tensors import to_numpy, to_torch

    tensors = dict(module.named_parameters(remove_duplicate=False))
    given = {}
    for name, gradient in gradients.items():
        tensor = tensors[name]
        tensor.grad = to_torch(gradient).reshape(tensor.shape).to(tensor.dtype)
        given[name] = (tensor.grad, tensor.grad._version)
    yield
    for name, gradient in gradients.items():
        if (now := tensors[name].grad) is None:
            gradient[...] = 0
            continue
        if now is given[name][0] and now._version == given[name][1]:
            continue  # a copy back of what is as it was would round it
        shown = to_numpy(now)
        if not np.shares_memory(shown, gradient):
            gradient[...] = shown.reshape(gradient.shape)


@contextmanager
def shown_in_parameters(trainer: Any, gradients: Mapping[str, Array]) -> Iterator[None]:
    """Within: `Parameter.grad()` has these gradients; what is there afterwards is copied back."""
    leaves = {name: trainer.replica(name)._leaf for name in gradients}
    for name, gradient in gradients.items():
        leaves[name].grad.storage.write(gradient)
        leaves[name].spent = False
    yield
    for name, gradient in gradients.items():
        gradient[...] = leaves[name].grad.asnumpy()
