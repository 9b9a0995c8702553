"""Rows of stored values: what `row_sparse_pull` copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.eager.row_sparse import Rows
from gluongraph.errors import IndexRangeError, with_user_location
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array


def row_numbers(name: str, targets: Sequence[NDArray], given: Sequence[NDArray], count: int) -> list[Array]:
    """Return for each target the numbers of the rows that it is to receive, each once and upwards. One array of numbers
    is for all targets. `name` is that of the stored value, which has `count` rows.

    Raises:
        AssertionError: another number of arrays than targets.
        IndexRangeError: a row that does not exist.
    """
    if len(given) not in (1, len(targets)):
        message = f"{name} has {len(targets)} arrays in out= and {len(given)} in row_ids="
        raise AssertionError(with_user_location(message, help="one array of row numbers for all, or one for each"))
    found = [np.unique(each.storage.array).astype(np.int64) for each in given]
    for rows in found:
        if len(rows) and not 0 <= rows[0] <= rows[-1] < count:
            wrong = rows[0] if rows[0] < 0 else rows[-1]
            raise IndexRangeError(with_user_location(f"{name} has rows 0 to {count - 1}, and row_ids= names {wrong}"))
    return found * len(targets) if len(found) == 1 else found


def copy_rows(stored: Array, rows: Array, target: Any) -> None:
    """Copy these rows to an array: one by rows holds these alone afterwards; others keep the rest of theirs."""
    if target.stype == "row_sparse":
        target.receive(Rows(rows, stored[rows], stored.shape))
    else:
        target.storage.write(stored[rows], rows)


def need_rows(out: Any, row_ids: Any) -> None:
    """Raise AssertionError unless both are given."""
    for name, value in (("out", out), ("row_ids", row_ids)):
        if value is None:
            help = "store.row_sparse_pull('w', out=array, row_ids=nd.array([3, 1]))"
            raise AssertionError(with_user_location(f"row_sparse_pull needs {name}=", help=help))


def same_numbers(keys: Any, row_ids: Any) -> Any:
    """`row_ids` for each key: a single array is for all of them."""
    return [row_ids] * len(keys) if isinstance(keys, (list, tuple)) and isinstance(row_ids, NDArray) else row_ids
