"""Predictions of all ranks in the order of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.lightning.batch import flatten, to_user, unflatten
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.ranks import Ranks
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array


def gathered(batches: Sequence[Any], ranks: Ranks, torch: bool) -> list[Any]:
    """The predictions of all ranks, in batches as large as a rank's: sample i is one of rank i mod the number of ranks.
    All ranks call this.

    Raises:
        MisconfigurationException: a prediction that is not made of arrays with the samples along their first axis.
        Disagreement: the ranks have predictions of different structure.
    """
    flat = [flatten(batch) for batch in batches]
    structures = {structure for _, structure in flat}
    ranks.agree(f"predictions of the structure {sorted(map(str, structures))}")
    if len(structures) != 1 or any(not a.shape for arrays, _ in flat for a in arrays):
        message = "predict_step gives what is not the same arrays for each batch, with the samples along the first axis"
        raise misconfigured(message, help="return_predictions=False, and keep results in on_predict_batch_end")
    size = max(len(arrays[0]) for arrays, _ in flat)
    columns = [_in_order([_host(arrays[i]) for arrays, _ in flat], ranks) for i in range(len(flat[0][0]))]
    count = len(columns[0])
    parts = [[column[at : at + size] for column in columns] for at in range(0, count, size)]
    structure = structures.pop()
    return [to_user(unflatten(structure, iter([NDArray(a) for a in arrays])), torch) for arrays in parts]


def _host(array: Any) -> Array:
    return array.asnumpy() if isinstance(array, NDArray) else np.asarray(array)


def _in_order(arrays: Sequence[Array], ranks: Ranks) -> Array:
    """The samples of all ranks, one of each in turn."""
    parts = ranks.gather_unequal(np.concatenate(arrays))
    made = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for rank, part in enumerate(parts):
        made[rank :: len(parts)][: len(part)] = part
    return made
