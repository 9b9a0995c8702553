"""A loader like another one that reads the same dataset in another order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from gluongraph import gluon
from gluongraph.errors import with_user_location
from gluongraph.gluon.data.dataloader import parts_of, with_batch_sampler
from gluongraph.lightning.data.loaders import is_torch_loader, torch_data

_HELP = (
    "keep the sampler in the attribute `sampler` of the batch sampler; or make batches by rank in it, and say "
    "Trainer(use_distributed_sampler=False)"
)


def sampler_of(loader: Any) -> Any:
    """The sampler of single samples of a loader of PyTorch's or Gluon's; None where its batch sampler hides it."""
    if not is_torch_loader(loader):
        return _inner(parts_of(loader)[1])
    plain = loader.batch_sampler is None or type(loader.batch_sampler) is torch_data().BatchSampler
    return loader.sampler if plain else _inner(loader.batch_sampler)


def with_sampler(loader: Any, sampler: Any, whole: bool = False) -> Any:
    """The loader with another sampler of single samples; with `whole` a last batch that is not full is kept.

    The loader itself is left as it is. Worker processes of a gluon loader serve both.

    Raises:
        TypeError: its batch sampler shows no sampler that could be replaced.
    """
    if is_torch_loader(loader):
        return _of_torch(loader, sampler, whole)
    batch_sampler = _with_inner(loader, parts_of(loader)[1], sampler)
    if whole and isinstance(batch_sampler, gluon.data.BatchSampler):
        batch_sampler._last_batch = "keep"
    return with_batch_sampler(loader, batch_sampler)


def with_indices(loader: Any, wrap: Callable[[Any], Any]) -> Any:
    """The loader of PyTorch's that reads what `wrap` makes of its batch sampler, or of its sampler if that is all."""
    made = _copied(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    made.__dict__[name] = wrap(getattr(loader, name))
    return made


def _of_torch(loader: Any, sampler: Any, whole: bool) -> Any:
    made, batch_sampler = _copied(loader), loader.batch_sampler
    if batch_sampler is None or type(batch_sampler) is torch_data().BatchSampler:
        made.__dict__["sampler"] = sampler
    if batch_sampler is not None:
        made.__dict__["batch_sampler"] = batch_sampler = _with_inner(loader, batch_sampler, sampler)
        if whole and hasattr(batch_sampler, "drop_last"):
            batch_sampler.drop_last = False
    return made


def _copied(loader: Any) -> Any:
    """A copy without the workers. The attributes are set in its dictionary, as PyTorch refuses to set these again."""
    made = copy.copy(loader)
    made.__dict__["_iterator"] = None
    return made


def _inner(batch_sampler: Any) -> Any:
    name = _place(batch_sampler)
    return None if name is None else getattr(batch_sampler, name)


def _place(batch_sampler: Any) -> str | None:
    """The attribute in which a batch sampler has its sampler."""
    return next((name for name in ("sampler", "_sampler") if hasattr(batch_sampler, name)), None)


def _with_inner(loader: Any, batch_sampler: Any, sampler: Any) -> Any:
    name = _place(batch_sampler)
    if name is None:
        kind = type(batch_sampler).__name__
        message = f"the batch sampler of a {type(loader).__name__}, {kind}, shows no sampler that could be replaced"
        raise TypeError(with_user_location(message, help=_HELP))
    made = copy.copy(batch_sampler)
    setattr(made, name, sampler)
    if isinstance(made, gluon.data.BatchSampler):
        made._left = []
    return made
