"""Gradients of eager steps that no update has used yet, as a checkpoint holds them.

Those of compiled steps are sums over the batches of a window (`checkpoint.gradients`); these are parts of its mean, and
divided by the length of the window already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gluongraph.checkpoint.part import REST
from gluongraph.checkpoint.ranks import MEAN
from gluongraph.runtime.checkpoint import Content
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import WINDOW

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


def for_mode(content: Content, eager: bool, torch: bool, batches: int, length: int) -> Content:
    """The content of a checkpoint whose window of `batches` out of `length` goes on eagerly, or compiled, whichever it
    was."""
    rest = content.groups[REST]
    own = {name: array for name, array in rest.items() if name.startswith(PREFIX)}
    if not batches or bool(own) is eager:  # nothing is to be gone on from, or what the mode takes
        return content
    if eager:
        end = "" if torch else "@0"
        made = {
            f"{PREFIX}{name.removeprefix(WINDOW)}{end}": array / length
            for name, array in rest.items()
            if name.startswith(WINDOW)
        }
        told = None
    else:
        sums = {name.removeprefix(PREFIX).removeprefix(SPARSE).partition("@")[0]: array for name, array in own.items()}
        made = {WINDOW + name: array * array.dtype.type(length) for name, array in sums.items()}
        told = {"batches": batches, "samples": float(batches), "names": list(sums)}
    others = {name: array for name, array in rest.items() if not name.startswith((PREFIX, WINDOW))}
    about = {**content.about, "parts": {**content.about["parts"], "window": told}}
    return replace(content, groups={**content.groups, REST: {**others, **made}}, about=about)


def for_ranks(content: Content, before: int, now: int) -> Content:
    """The content of a checkpoint that `before` ranks have saved, for `now` ranks. Compiled steps count one batch for
    each rank, and a batch of the loop is one of all ranks: those of the window so far get the weight of later ones."""
    window = content.about["parts"].get("window")
    if before == now or window is None:
        return content
    factor = now / before
    rest = content.groups[REST]
    sums = {name: array * array.dtype.type(factor) for name, array in rest.items() if name.startswith(WINDOW)}
    parts = {**content.about["parts"], "window": {**window, "samples": window["samples"] * factor}}
    groups = {**content.groups, REST: {**rest, **sums}}
    return replace(content, groups=groups, about={**content.about, "parts": parts})


def _of_blocks(block: Any) -> Iterator[tuple[str, Any]]:
    """The gradients of a block that each backward writes anew; a checkpoint of any step has those that are added to."""
    for name, parameter in block._collect_params_with_prefix().items():
        if parameter.grad_req == "write":
            for number, gradient in enumerate(parameter.list_grad()):
                yield f"{PREFIX}{name}@{number}", gradient
