"""Checkpoints of several ranks: one is written, which tells what ranks have each for itself, and any number reads it.

Ranks have equal weights and states. Running statistics, sums of gradients that have not been used, and generators of
random numbers may differ; `extra` may, too. Rank 0 writes its own, and for each other rank what that has otherwise:
arrays under "rank<number>:", the rest under "ranks" beside the parts.

The same number of ranks goes on with exactly what each had. Another number takes the mean of running statistics, and
rank 0 alone the sums of what was added up, as if all samples had been its own. Of arrays whose names begin with `MEAN`
each rank takes the mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.checkpoint.part import REST, WEIGHTS, misfit
from gluongraph.checkpoint.weights import REPLICA
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.host.json_text import parse
from gluongraph.runtime.checkpoint import Content
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import WINDOW
from gluongraph.tracing.compressed_exchange import RESIDUAL
from gluongraph.tracing.ema import AVERAGE
from gluongraph.tracing.optimizer_updates import GRAD

RANKS = "ranks"
MEAN = "mean:"  # begins the names of arrays of which another number of ranks takes the mean, each the same
_SUMS = (GRAD, WINDOW, RESIDUAL)
_OWN_PARTS = ("gradients", "window", "residuals", "random")
Arrays = dict[str, Array]  # "<group>/<name>" -> array


# -- to be written


def gathered(content: Content, statistics: Collection[str], communicator: Communicator) -> Content:
    """Return the content of rank 0 with what other ranks have otherwise. All ranks call this; only on rank 0 the result
    is complete. `statistics` are the names of weights that ranks may have otherwise."""
    own = _own_arrays(content, statistics)
    rows = {name: [dtype_name(a.dtype), a.shape, _digest(a)] for name, a in own.items()}
    parts = {name: content.about["parts"].get(name) for name in _OWN_PARTS}
    text = json.dumps({"arrays": rows, "parts": parts, "extra": content.about["extra"]})
    told = [parse(each) for each in communicator.exchange(text)]
    apart = {
        name for each in told for name in _different(each["arrays"], told[0]["arrays"]) if name.startswith(WEIGHTS)
    }
    means = {name: _mean(own[name], communicator) for name in sorted(apart)}  # all ranks have the same weights
    groups = {group: dict(arrays) for group, arrays in content.groups.items()}
    about = []
    for rank, each in enumerate(told):
        names = sorted(apart | _different(each["arrays"], told[0]["arrays"]))
        for name in names:
            groups[REST][_key(rank, name)] = _sent(own.get(name), each["arrays"][name], rank, communicator)
        about.append({"arrays": names, **_otherwise(each, told[0])})
    groups[WEIGHTS] |= {name.removeprefix(f"{WEIGHTS}/"): mean for name, mean in means.items()}
    return Content(content.step, groups, {**content.about, RANKS: about}, content.metrics, content.writer)


def _own_arrays(content: Content, statistics: Collection[str]) -> Arrays:
    """The arrays that ranks may have otherwise."""
    found = {f"{WEIGHTS}/{name}": content.groups[WEIGHTS][name] for name in statistics}
    rest = content.groups[REST].items()
    return found | {f"{REST}/{name}": array for name, array in rest if not name.startswith(AVERAGE)}


def _different(rows: Mapping[str, Any], first: Mapping[str, Any]) -> set[str]:
    """The names of arrays that rank 0 has otherwise, or not at all."""
    return {name for name, row in rows.items() if first.get(name) != row}


def _otherwise(told: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """What of a rank's parts and extra is not as that of rank 0, and which arrays of rank 0 it lacks."""
    parts = {name: part for name, part in told["parts"].items() if part != first["parts"][name]}
    extra = {} if told["extra"] == first["extra"] else {"extra": told["extra"]}
    return {"parts": parts, "without": sorted(first["arrays"].keys() - told["arrays"].keys()), **extra}


def _mean(array: Array, communicator: Communicator) -> Array:
    """The mean over ranks; of integers rank 0's."""
    if array.dtype.kind in "biu":
        return array
    total = array.astype(np.float64)
    communicator.allreduce(total)
    return (total / communicator.size).astype(array.dtype)


def _sent(own: Array | None, row: Any, rank: int, communicator: Communicator) -> Array:
    """The array of that rank, on all ranks."""
    dtype, shape, _ = row
    array = np.empty(shape, numpy_dtype(dtype))
    if rank == communicator.rank and own is not None:
        array[...] = own
    communicator.broadcast(array, rank)
    return array


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _key(rank: int, name: str) -> str:
    return f"rank{rank}:{name}"


# -- that was read


def broadcast(content: Content | None, communicator: Communicator) -> Content:
    """Return the content that rank 0 has read, on all ranks."""
    text = ""
    if content is not None:
        types = {g: {n: [dtype_name(a.dtype), a.shape] for n, a in each.items()} for g, each in content.groups.items()}
        text = json.dumps({"step": content.step, "about": content.about, "groups": types})
    told = parse(communicator.exchange(text)[0])
    groups: dict[str, Arrays] = {}
    for group, rows in told["groups"].items():
        groups[group] = {}
        for name, (dtype, shape) in rows.items():
            array = np.empty(shape, numpy_dtype(dtype)) if content is None else np.array(content.groups[group][name])
            communicator.broadcast(array)
            groups[group][name] = array
    return Content(told["step"], groups, told["about"])


def of_rank(content: Content, rank: int, size: int) -> Content:
    """Return what one of `size` ranks goes on from.

    Raises:
        FormatError: what it tells of ranks does not fit together; or what a strange structure leads to.
    """
    told: list[Any] = content.about.get(RANKS, [{"arrays": [], "parts": {}, "without": []}])
    if len(told) == size:
        return _saved_by(content, told, rank)
    saved = [_saved_by(content, told, number) for number in range(len(told))]
    return _of_another(saved, content.groups[WEIGHTS], rank)


def _saved_by(content: Content, told: Sequence[Any], rank: int) -> Content:
    """The content as that rank had it."""
    own, rest = told[rank], content.groups[REST]
    common = {_key(number, name) for number, each in enumerate(told) for name in each["arrays"]}
    groups = {group: dict(arrays) for group, arrays in content.groups.items()}
    groups[REST] = {name: array for name, array in rest.items() if name not in common}
    for name in own["without"]:
        del groups[REST][name.removeprefix(f"{REST}/")]
    for name in own["arrays"]:
        group, _, key = name.partition("/")
        groups[group][key] = rest[_key(rank, name)]
    parts = {name: part for name, part in {**content.about["parts"], **own["parts"]}.items() if part is not None}
    about = {"parts": parts, "extra": own.get("extra", content.about["extra"])}
    return Content(content.step, groups, about, content.metrics, content.writer)


def _of_another(saved: Sequence[Content], weights: Mapping[str, Array], rank: int) -> Content:
    """The content for a rank of another number of ranks than those that have saved; `weights` are their means."""
    first = saved[0]
    rest = {n: a for n, a in first.groups[REST].items() if not n.startswith((*_SUMS, REPLICA))}
    names = dict.fromkeys(n for each in saved for n in each.groups[REST] if n.startswith(_SUMS))
    rest |= {name: _total(name, saved, rank) for name in names}
    means = dict.fromkeys(n for each in saved for n in each.groups[REST] if n.startswith(MEAN))
    for name in means:
        total = _total(name, saved, 0)
        rest[name] = (total / len(saved)).astype(total.dtype)
    parts = dict(first.about["parts"])
    for name, merge in _MERGED.items():
        told = [each.about["parts"].get(name) for each in saved]
        if any(part is not None for part in told):
            parts[name] = merge(told, rank)
    groups = {**first.groups, WEIGHTS: weights, REST: rest}
    return Content(first.step, groups, {**first.about, "parts": parts}, first.metrics)


def _total(name: str, saved: Sequence[Content], rank: int) -> Array:
    """What was added up by all, which is rank 0's now."""
    arrays = [each.groups[REST][name] for each in saved if name in each.groups[REST]]
    if any(a.shape != arrays[0].shape or a.dtype != arrays[0].dtype for a in arrays):
        raise misfit(f"{name} is of several types in the checkpoint")
    total = np.zeros_like(arrays[0])
    for array in arrays if rank == 0 else ():
        total += array
    return total


def _random_of(told: Sequence[Any], rank: int) -> Any:
    """Of a rank that has not saved: gluongraph's generators; numpy's and Python's where all ranks had the same."""
    if rank < len(told):
        return told[rank]
    return told[0] if all(each == told[0] for each in told) else {"gluongraph": told[0]["gluongraph"]}


def _window_of(told: Sequence[Any], rank: int) -> Any:
    """`samples` of all ranks become those of one update by their mean."""
    some = [each for each in told if each is not None]
    names = list(dict.fromkeys(name for each in some for name in each["names"]))
    samples = sum(each["samples"] for each in some) / len(told)
    return {"batches": max(each["batches"] for each in some), "samples": samples, "names": names}


def _gradients_of(told: Sequence[Any], rank: int) -> Any:
    return {"fresh": list(dict.fromkeys(key for each in told if each is not None for key in each["fresh"]))}


_MERGED: dict[str, Callable[[Sequence[Any], int], Any]] = {
    "gradients": _gradients_of,
    "window": _window_of,
    "residuals": lambda told, rank: {"rank": rank},
    "random": _random_of,
}
