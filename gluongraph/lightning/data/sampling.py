"""Which samples a rank reads, and in which order: samplers by rank, shuffling off, seeds of worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from gluongraph import gluon
from gluongraph.errors import with_user_location
from gluongraph.gluon.data.dataloader import parts_of
from gluongraph.gluon.data.sampler import State, restore, state_of
from gluongraph.gluon.data.split import check_part
from gluongraph.lightning.data.array_loader import ArrayLoader
from gluongraph.lightning.data.loaders import (
    dataset_of,
    is_gluon_loader,
    is_torch_loader,
    length,
    num_samples,
    torch_data,
)
from gluongraph.lightning.data.replaced import sampler_of, with_sampler
from gluongraph.lightning.utilities.rank_zero import rank_zero_warn
from gluongraph.lightning.utilities.seed import seed_worker


class PartOfSampler(gluon.data.Sampler):
    """Every `parts`-th index of another sampler, from number `part` on.

    With `pad` the first ones are given again where the parts are not equal. The other sampler decides the order, which
    must be the same on all ranks. It serves loaders of PyTorch's as well.

    >>> from gluongraph.lightning.data.sampling import PartOfSampler
    >>> list(PartOfSampler([4, 3, 2, 1, 0], 2, 1)), list(PartOfSampler([4, 3, 2, 1, 0], 2, 1, pad=False))
    ([3, 1, 4], [3, 1])

    Raises:
        ValueError: no such part.
        TypeError: the sampler has no length.
    """

    def __init__(self, sampler: Any, parts: int, part: int, pad: bool = True):
        check_part(self, parts, part)
        if length(sampler) is None:
            help = "give it __len__, or say Trainer(use_distributed_sampler=False)"
            raise TypeError(with_user_location(f"{type(sampler).__name__} has no length, and has no parts", help=help))
        self.sampler, self.parts, self.part, self.pad = sampler, parts, part, pad

    def __iter__(self) -> Iterator[Any]:
        order = list(self.sampler)
        if self.pad and order:
            order += [order[i % len(order)] for i in range(-len(order) % self.parts)]
        return iter(order[self.part :: self.parts])

    def __len__(self) -> int:
        samples = len(self.sampler)
        return -(-samples // self.parts) if self.pad else len(range(self.part, samples, self.parts))

    def set_epoch(self, epoch: int) -> None:
        """Tell the other sampler, if it wants to know."""
        if callable(method := getattr(self.sampler, "set_epoch", None)):
            method(epoch)

    def state_dict(self) -> State:
        return state_of(self.sampler)

    def load_state_dict(self, state: State) -> None:
        restore(self.sampler, state)


def by_rank(loader: Any, parts: int, part: int, shuffle: bool, pad: bool = True) -> Any:
    """The loader that reads rank `part`'s samples of `parts` ranks; other kinds of loaders as they are.

    Loaders of PyTorch's and Gluon's get a DistributedSampler of their framework in place of a random or sequential
    sampler, shuffled where `shuffle` says so, from PL_GLOBAL_SEED. Of other samplers every `parts`-th index is read, of
    an ArrayLoader every `parts`-th sample of its own order. A sampler by rank that is there already is left alone. For
    predictions `pad` is False: nothing is read twice, and a last batch that is not full is kept.

    >>> from gluongraph import gluon
    >>> from gluongraph.lightning.data.sampling import by_rank
    >>> loader = gluon.data.DataLoader(list(range(5)), batch_size=2)
    >>> [batch.tolist() for batch in by_rank(loader, 2, 1, shuffle=False)]
    [[1, 3], [0]]

    Raises:
        TypeError: a batch sampler that shows no sampler, or a sampler without a length.
    """
    if parts == 1:
        return loader
    if isinstance(loader, ArrayLoader):
        made = loader if loader._parts > 1 else loader.part(parts, part, pad)
        if made.seed is None:  # one of numpy's would be another on every rank
            made.seed = _seed()
        return made
    if not (is_gluon_loader(loader) or is_torch_loader(loader)) or _is_iterable_dataset(loader) or _is_by_rank(loader):
        return loader
    sampler = sampler_of(loader)
    if pad and _is_plain(sampler):
        return with_sampler(loader, _distributed(loader, parts, part, shuffle, _seed()))
    if sampler is None:
        return with_sampler(loader, None)  # says why
    return with_sampler(loader, PartOfSampler(sampler, parts, part, pad), whole=not pad)


def _seed() -> int:
    """The seed of orders that all ranks share: that of `seed_everything`."""
    return int(os.environ.get("PL_GLOBAL_SEED") or 0)


def _distributed(loader: Any, parts: int, part: int, shuffle: bool, seed: int) -> Any:
    dataset = dataset_of(loader)
    if is_torch_loader(loader):
        return torch_data().DistributedSampler(dataset, parts, part, shuffle=shuffle, seed=seed)
    return gluon.data.DistributedSampler(len(dataset), parts, part, shuffle=shuffle, seed=seed)


def _is_plain(sampler: Any) -> bool:
    data = torch_data()
    kinds: tuple[Any, ...] = (gluon.data.RandomSampler, gluon.data.SequentialSampler)
    return isinstance(sampler, kinds if data is None else (*kinds, data.RandomSampler, data.SequentialSampler))


def _is_by_rank(loader: Any) -> bool:
    data = torch_data()
    kinds: tuple[Any, ...] = (gluon.data.DistributedSampler, gluon.data.SplitSampler, PartOfSampler)
    return isinstance(sampler_of(loader), kinds if data is None else (*kinds, data.DistributedSampler))


def _is_iterable_dataset(loader: Any) -> bool:
    data = torch_data()
    return data is not None and isinstance(dataset_of(loader), data.IterableDataset)


def is_shuffled(loader: Any) -> bool:
    """Does it read the samples in a random order?

    >>> from gluongraph import gluon
    >>> from gluongraph.lightning.data.sampling import is_shuffled
    >>> is_shuffled(gluon.data.DataLoader([1, 2], batch_size=1, shuffle=True))
    True
    """
    if isinstance(loader, ArrayLoader):
        return loader.shuffle
    if not (is_gluon_loader(loader) or is_torch_loader(loader)) or _is_iterable_dataset(loader):
        return False
    data = torch_data()
    kinds: tuple[Any, ...] = (gluon.data.RandomSampler,)
    return isinstance(sampler_of(loader), kinds if data is None else (*kinds, data.RandomSampler))


def order_of(loader: Any) -> str:
    """The class of sampler that decides the order: "RandomSampler", "DistributedSampler", or "" of one whose order is
    fixed on any number of ranks. With another number of ranks it may be another class, which draws other orders.

    >>> from gluongraph import gluon
    >>> from gluongraph.lightning.data.sampling import order_of
    >>> order_of(gluon.data.DataLoader([1, 2], batch_size=1, shuffle=True))
    'RandomSampler'
    """
    if isinstance(loader, ArrayLoader) or not (is_gluon_loader(loader) or is_torch_loader(loader)):
        return ""
    if _is_iterable_dataset(loader):
        return ""
    sampler = sampler_of(loader)
    by_rank = type(sampler).__name__ == "DistributedSampler"
    by_rank = by_rank and (is_gluon_loader(loader) or bool(getattr(sampler, "shuffle", False)))
    return type(sampler).__name__ if by_rank or is_shuffled(loader) else ""


def without_shuffling(loader: Any, name: str) -> Any:
    """The loader that reads its samples in their order, as overfitting on some batches needs; `name` is "train".

    Warns where that is a change. Loaders whose order nobody but they knows are left as they are.

    >>> from gluongraph.lightning.data import ArrayLoader
    >>> from gluongraph.lightning.data.sampling import without_shuffling
    >>> without_shuffling(ArrayLoader([1, 2, 3]), "train").shuffle
    False
    """
    if isinstance(loader, ArrayLoader):
        made = loader.part(loader._parts, loader._part, loader._pad)
        made.shuffle = False
        changed = loader.shuffle
    elif (is_gluon_loader(loader) or is_torch_loader(loader)) and not _is_iterable_dataset(loader):
        if changed := not _is_sequential(sampler_of(loader)):
            kind = torch_data() if is_torch_loader(loader) else gluon.data
            of = dataset_of(loader) if is_torch_loader(loader) else num_samples(loader)
            made = with_sampler(loader, kind.SequentialSampler(of))
    else:
        changed = False
    if not changed:
        return loader
    rank_zero_warn(f"overfit_batches trains on the same batches in every epoch: {name} is read without shuffling")
    return made


def _is_sequential(sampler: Any) -> bool:
    data = torch_data()
    kinds: tuple[Any, ...] = (gluon.data.SequentialSampler,)
    return isinstance(sampler, kinds if data is None else (*kinds, data.SequentialSampler))


def batch_indices(loader: Any) -> Iterator[list[int] | None]:
    """The numbers of the samples in each batch, without end; None for batches of a loader whose order another pass
    over its sampler would not tell: a random one, one of an iterable data set, or an unknown loader.

    >>> from gluongraph import gluon
    >>> from gluongraph.lightning.data.sampling import batch_indices
    >>> found = batch_indices(gluon.data.DataLoader([5, 6, 7], batch_size=2))
    >>> next(found), next(found), next(found)
    ([0, 1], [2], None)
    """
    known = (is_gluon_loader(loader) or is_torch_loader(loader)) and not _is_iterable_dataset(loader)
    if known and _is_in_order(sampler_of(loader)):
        batches = loader.batch_sampler if is_torch_loader(loader) else parts_of(loader)[1]
        for batch in batches or ([index] for index in loader.sampler):
            yield [int(index) for index in batch]
    while True:
        yield None


def _is_in_order(sampler: Any) -> bool:
    """Does each pass over a sampler of single samples give the same numbers?"""
    if isinstance(sampler, PartOfSampler):
        return _is_in_order(sampler.sampler)
    data = torch_data()
    by_rank = (gluon.data.DistributedSampler, *(() if data is None else (data.DistributedSampler,)))
    if isinstance(sampler, by_rank):
        return not getattr(sampler, "shuffle", True)
    return _is_sequential(sampler) or isinstance(sampler, (list, tuple, range))


def seed_workers(loader: Any, rank: int) -> None:
    """After `seed_everything(workers=True)`: let worker processes of a loader of PyTorch's draw what follows from the
    seed, the worker and the rank, unless the loader has a `worker_init_fn` of its own. Gluon's workers do so anyway.
    """
    if int(os.environ.get("PL_SEED_WORKERS") or 0) and is_torch_loader(loader) and loader.worker_init_fn is None:
        loader.worker_init_fn = partial(seed_worker, rank=rank)
