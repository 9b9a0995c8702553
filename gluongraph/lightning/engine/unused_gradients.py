"""Gradients of eager steps that no update has used yet, as a checkpoint holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gluongraph.checkpoint.ranks import MEAN
from gluongraph.storage import Array

PREFIX = f"{MEAN}grad:"  # each rank has its own, and updates are made by their mean
SPARSE = "sparse:"  # those of rows, as of Embedding(sparse=True)


def taken(module: Any, block: Any, torch: bool) -> dict[str, Array]:
    """The gradients of a module, by the names of arrays in a checkpoint; of tensors only those that have some."""
    if not torch:
        return {name: gradient.asnumpy() for name, gradient in _of_blocks(block)}
    from gluongraph.torch.tensors import to_numpy

    found: dict[str, Array] = {}
    for name, parameter in module.named_parameters():
        if (gradient := parameter.grad) is not None:
            kind = SPARSE if gradient.is_sparse else ""
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            found[PREFIX + kind + name] = np.array(to_numpy(dense.detach().cpu()), copy=True)
    return found


def put(module: Any, block: Any, torch: bool, arrays: Mapping[str, Array]) -> None:
    """Make the gradients of a module those of a checkpoint; tensors that had none have none."""
    if not torch:
        for name, gradient in _of_blocks(block):
            if name in arrays:
                gradient[:] = arrays[name]
        return
    from gluongraph.torch.tensors import to_torch

    for name, parameter in module.named_parameters():
        parameter.grad = None
        for kind in ("", SPARSE):
            if (saved := arrays.get(PREFIX + kind + name)) is not None:
                gradient = to_torch(np.array(saved, copy=True)).reshape(parameter.shape)
                parameter.grad = gradient.to_sparse(1) if kind else gradient


def _of_blocks(block: Any) -> Iterator[tuple[str, Any]]:
    """The gradients of a block that each backward writes anew; a checkpoint of any step has those that are added to."""
    for name, parameter in block._collect_params_with_prefix().items():
        if parameter.grad_req == "write":
            for number, gradient in enumerate(parameter.list_grad()):
                yield f"{PREFIX}{name}@{number}", gradient
