"""Batches that are done, passed over without being read: where reading them would draw nothing at random."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluongraph import gluon
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning.data.loaders import is_torch_loader, torch_data
from gluongraph.lightning.data.persistent import adopt_workers, has_workers
from gluongraph.lightning.data.replaced import with_indices
from gluongraph.ndarray import NDArray


class _Rest:
    """What a sampler gives from number `done` on. It is passed over when the first one is asked for, or `start` is
    called: not when the pass begins, as loaders draw a seed in between."""

    def __init__(self, sampler: Any, done: int):
        self._sampler, self._done = sampler, done
        self._order: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self._order = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        self.start()
        return next(self._order)

    def __len__(self) -> int:
        return len(self._sampler)

    def start(self) -> None:
        """Pass over what is done."""
        for _ in range(self._done):
            next(self._order, None)
        self._done = 0


def begin_after(loader: Any, done: int) -> Iterator[Any]:
    """A pass over a loader of PyTorch's of which so many batches are passed over unread; `can_skip` says whether."""
    rests: list[_Rest] = []

    def rest(sampler: Any) -> _Rest:
        rests.append(_Rest(sampler, done))
        return rests[0]

    iterator: Iterator[Any] = iter(with_indices(loader, rest))
    rests[0].start()
    adopt_workers(loader, iterator)
    return iterator


def can_skip(loader: Any) -> bool:
    """May batches of this loader be left unread? Then the pass is one over a copy, which starts workers of its own."""
    return only_orders(loader) and not has_workers(loader)


def only_orders(loader: Any) -> bool:
    """Is it certain that all that this loader draws is its order?

    That is so where the dataset is made of arrays, tensors or lists, and PyTorch's own function makes the batches.
    """
    if not is_torch_loader(loader):
        return False
    utils = torch_data()
    collates = (utils.default_collate, sys.modules["torch.utils.data._utils.collate"].default_convert)
    return loader.collate_fn in collates and draws_nothing(loader.dataset)


def draws_nothing(dataset: Any) -> bool:
    """Is it certain that this dataset draws no random numbers?

    >>> from gluongraph.lightning.data.skipping import draws_nothing
    >>> draws_nothing([1, 2, 3]), draws_nothing(object())
    (True, False)
    """
    kind, data = type(dataset), torch_data()
    if kind in (list, tuple, range, np.ndarray, NDArray, gluon.data.ArrayDataset):
        return kind is not gluon.data.ArrayDataset or all(draws_nothing(each) for each in dataset._data)
    if data is None:
        return False
    if kind is data.Subset:
        return draws_nothing(dataset.dataset)
    if kind is data.ConcatDataset:
        return all(draws_nothing(each) for each in dataset.datasets)
    return kind is data.TensorDataset or (is_torch_loaded() and kind is sys.modules["torch"].Tensor)
