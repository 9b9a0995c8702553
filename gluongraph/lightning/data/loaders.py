"""What a loader is, how many batches it has, and how a pass over it begins."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gluongraph import gluon
from gluongraph.errors import with_user_location
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.io.base import DataIter
from gluongraph.lightning.errors import misconfigured
from gluongraph.ndarray import NDArray
from gluongraph.ranges import check_count

Limit = int | float | None


def torch_data() -> Any:
    """The package torch.utils.data; None where PyTorch is not loaded, so that nothing can be one of its objects."""
    return sys.modules.get("torch.utils.data") if is_torch_loaded() else None


def is_torch_loader(loader: Any) -> bool:
    """Is it a torch.utils.data.DataLoader?"""
    return (data := torch_data()) is not None and isinstance(loader, data.DataLoader)


def is_gluon_loader(loader: Any) -> bool:
    """Is it a gluon.data.DataLoader?"""
    return isinstance(loader, gluon.data.DataLoader)


def is_stateful(thing: Any) -> bool:
    """Does it say where it is, by state_dict and load_state_dict?"""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def is_array(value: Any) -> bool:
    """Is it an array of numpy's, an NDArray or a tensor?"""
    if isinstance(value, (np.ndarray, np.generic, NDArray)):
        return True
    return is_torch_loaded() and isinstance(value, sys.modules["torch"].Tensor)


def length(loader: Any) -> int | None:
    """How many batches a pass has; None where the loader does not know.

    >>> from gluongraph.lightning.data.loaders import length
    >>> length([1, 2, 3]), length(iter([1, 2, 3]))
    (3, None)
    """
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def num_batches(loader: Any, limit: Limit, name: str) -> int | float:
    """How many batches of a pass are taken: a whole number, or infinity where neither loader nor limit say it.

    `limit` is a number of batches (int), a share of them (float from 0 to 1, rounded down), or None for all; `name` is
    that of the loader, as "train", of which `limit_train_batches` is the argument.

    >>> from gluongraph.lightning.data.loaders import num_batches
    >>> num_batches(range(10), 3, "train"), num_batches(range(10), 0.25, "train"), num_batches(iter([]), 1.0, "train")
    (3, 2, inf)

    Raises:
        MisconfigurationException: no batches; a share of less than one batch; a share of an unknown number.
    """
    limit = 1.0 if limit is None else limit
    argument = f"limit_{name}_batches={limit!r}"
    _check_limit(limit, argument)
    if limit == 0:
        return 0
    batches = length(loader)
    if batches == 0:
        raise misconfigured(f"the loader for {name} is empty: {_described(loader)}", help=_why_empty(loader))
    if isinstance(limit, int):
        return limit if batches is None else min(batches, limit)
    if batches is None:
        if limit != 1.0:
            message = f"{argument} is a share of the batches of {_described(loader)}, whose number is not known"
            raise misconfigured(message, help="give a whole number of batches, or a loader with __len__")
        return math.inf
    taken = int(batches * limit)
    if taken == 0:
        message = f"{argument} of {batches} batches is less than one"
        raise misconfigured(message, help=f"limit_{name}_batches={1 / batches:.2g} or more, or a number of batches")
    return taken


def _check_limit(limit: int | float, argument: str) -> None:
    share = isinstance(limit, float)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit <= (1 if share else math.inf):
        raise misconfigured(f"{argument} is neither a number of batches nor a share", help="5 batches, or 0.1 of them")


def _described(loader: Any) -> str:
    name = type(getattr(loader, "iterables", loader)).__name__  # of CombinedLoader what it was made from
    dataset = getattr(loader, "dataset", None)
    return name if dataset is None else f"{name} of {type(dataset).__name__}"


def _why_empty(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    samples = None if dataset is None else length(dataset)
    if samples:
        return f"it has {samples} samples, and drop_last leaves out a batch that is not full: a smaller batch_size"
    return "give a loader with at least one batch, or None"


def check_loader(loader: Any, name: str, passes: bool = True) -> None:
    """Raise unless it is a loader: iterable, batch by batch, and with `passes` more than once.

    `name` is what the message calls it, as "train_dataloaders".

    >>> from gluongraph.lightning.data.loaders import check_loader
    >>> check_loader([1, 2], "train_dataloaders")
    >>> check_loader(3, "train_dataloaders")
    Traceback (most recent call last):
    TypeError: train_dataloaders: int is no loader...

    Raises:
        TypeError: an array, a dataset, or another object that is no loader.
        MisconfigurationException: an iterator that can be read once only.
    """
    if (advice := _not_a_loader(loader)) is not None:
        kind = type(loader).__name__
        raise TypeError(with_user_location(f"{name}: {kind} is no loader", help=advice))
    if passes and _once_only(loader):
        message = f"{name}: {type(loader).__name__} can be read once, and every epoch reads it anew"
        help = "give the function itself where it is a generator, or an object whose __iter__ begins again, or a list"
        raise misconfigured(message, help=help)


def _not_a_loader(loader: Any) -> str | None:
    """What to give instead; None: it is one."""
    data = torch_data()
    if is_array(loader):
        return "L.data.ArrayLoader(x, y, batch_size=32) makes batches of arrays"
    if data is not None and isinstance(loader, data.Dataset) and not isinstance(loader, data.IterableDataset):
        return "wrap it: torch.utils.data.DataLoader(dataset, batch_size=32)"
    if isinstance(loader, gluon.data.Dataset):
        return "wrap it: gluon.data.DataLoader(dataset, batch_size=32)"
    if _is_generator_function(loader) or (not isinstance(loader, (str, bytes)) and hasattr(loader, "__iter__")):
        return None
    if not isinstance(loader, (str, bytes, type)) and hasattr(loader, "__getitem__") and length(loader) is not None:
        return "it looks like a dataset; wrap it: gluon.data.DataLoader(dataset, batch_size=32)"
    return "give a DataLoader, an object with __iter__ that gives batches, or a list or dictionary of these"


def _is_generator_function(loader: Any) -> bool:
    return inspect.isgeneratorfunction(loader) and not any(
        p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        for p in inspect.signature(loader).parameters.values()
    )


def _once_only(loader: Any) -> bool:
    return isinstance(loader, Iterator) and not isinstance(loader, DataIter) and not callable(_reset_of(loader))


def _reset_of(loader: Any) -> Any:
    return getattr(loader, "reset", None)


def begin(loader: Any, resumed: bool = False) -> Iterator[Any]:
    """The batches of the next pass. Iterators of mx.io are reset first, unless they go on within a pass: `resumed`.

    >>> from gluongraph.lightning.data.loaders import begin
    >>> def batches():
    ...     yield from (1, 2)
    >>> list(begin(batches)), list(begin(batches))
    ([1, 2], [1, 2])
    """
    if _is_generator_function(loader):
        made: Iterator[Any] = loader()
        return made
    if isinstance(loader, Iterator) and callable(reset := _reset_of(loader)) and not resumed:
        reset()
    return iter(loader)


def is_batch(value: Any) -> bool:
    """Is it a tuple, list or dictionary with an array in it, and so no collection of loaders?"""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return isinstance(value, (tuple, list)) and any(is_array(each) or is_batch(each) for each in value)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader and its samplers the number of the epoch that begins, from which some derive their order; of a
    combined loader each.

    >>> from gluongraph.lightning.data import ArrayLoader
    >>> from gluongraph.lightning.data.loaders import set_epoch
    >>> loader = ArrayLoader([1, 2, 3], shuffle=True)
    >>> set_epoch(loader, 4)
    >>> loader.epoch
    4
    """
    check_count("set_epoch", "epoch", epoch, 0)
    told: list[int] = []
    for part in getattr(loader, "flattened", ()):  # a CombinedLoader's
        set_epoch(part, epoch)
    for thing in (loader, *samplers(loader)):
        if id(thing) not in told and callable(method := getattr(thing, "set_epoch", None)):
            method(epoch)
            told.append(id(thing))


def samplers(loader: Any) -> list[Any]:
    """The batch sampler and the sampler of a loader, where it has them."""
    if is_gluon_loader(loader):
        _, batch_sampler = gluon.data.dataloader.parts_of(loader)
        return [batch_sampler, getattr(batch_sampler, "_sampler", None)]
    batch_sampler = getattr(loader, "batch_sampler", None)
    return [batch_sampler, getattr(batch_sampler, "sampler", None), getattr(loader, "sampler", None)]


def dataset_of(loader: Any) -> Any:
    """The dataset of a loader; None where it has none."""
    if is_gluon_loader(loader):
        return gluon.data.dataloader.parts_of(loader)[0]
    return getattr(loader, "dataset", None)


def num_samples(loader: Any) -> int | None:
    """How many samples the loader's dataset has; None where that is not known."""
    if (dataset := dataset_of(loader)) is not None:
        return length(dataset)
    given = getattr(loader, "num_samples", None)  # an ArrayLoader's
    return given if isinstance(given, int) else None
