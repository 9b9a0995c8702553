"""RowSparseNDArray: a gradient of which few rows are other than 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph.context import Context
from gluongraph.eager.array import DEFAULT
from gluongraph.eager.row_sparse import Rows, joined
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array, Storage, untouched_zeros


class _Noted(Storage):
    """Memory of which the rows that are not 0 are noted; None where they have to be looked for."""

    __slots__ = ("rows",)

    def __init__(self, array: Array):
        super().__init__(array)
        self.rows: Array | None = np.zeros(0, np.int64)

    def write(self, value: Any, key: Any = ...) -> None:
        """array[key] = value"""
        super().write(value, key)
        self.rows = None


class RowSparseNDArray(NDArray):
    """A gradient that touches few rows of a large array, as that of `Embedding(sparse_grad=True)`.

    It lies in memory of the whole array's size, of which only touched rows are written; `indices` and `data` are those
    rows. All operations on arrays see the whole array.

    >>> from gluongraph import autograd, nd
    >>> w = nd.ones((5, 2))
    >>> w.attach_grad(stype="row_sparse")
    >>> with autograd.record():
    ...     y = nd.Embedding(nd.array([3, 1, 3]), w, input_dim=5, output_dim=2).sum()
    >>> y.backward()
    >>> w.grad.indices.asnumpy().tolist(), w.grad.data.asnumpy().tolist()
    ([1, 3], [[1.0, 1.0], [2.0, 2.0]])
    """

    def __init__(self, array: Array, ctx: Context = DEFAULT):
        super().__init__(array, ctx)
        self._storage: _Noted = _Noted(array)

    @property
    def rows(self) -> Array:
        """The numbers of the rows that are touched, upwards; after a write of another kind, of those that are not 0."""
        noted = self._storage
        if noted.rows is None:
            odd = (noted.array != 0).reshape(len(noted.array), -1).any(axis=1)
            noted.rows = np.flatnonzero(odd).astype(np.int64)
        return noted.rows

    def receive(self, g: Rows | Array, more: bool = False) -> None:
        """Become this gradient, or with `more` the sum with it. By rows, only those and the old ones are written."""
        array = self._storage.array
        if not isinstance(g, Rows):
            self._storage.write(array + g if more else g)
            return
        old, (rows, sums) = self.rows, g.summed()
        if more:
            array[rows] += sums
            self._storage.rows = np.union1d(old, rows)
        else:
            array[old] = 0
            array[rows] = sums
            self._storage.rows = rows

    def clear(self) -> None:
        """Become 0."""
        self._storage.array[self.rows] = 0
        self._storage.rows = np.zeros(0, np.int64)

    def forget(self) -> None:
        """Note that something else (a compiled step) has written the memory."""
        self._storage.rows = None

    def by_rows(self) -> Rows:
        """The touched rows and what they hold."""
        return Rows(self.rows, self._storage.array[self.rows], self.shape)

    # -- as in MXNet

    @property
    def stype(self) -> str:
        return "row_sparse"

    @property
    def indices(self) -> NDArray:
        """The numbers of the rows that are touched, upwards."""
        return NDArray(self.rows.copy(), self._ctx)

    @property
    def data(self) -> NDArray:
        """The rows that are touched."""
        return NDArray(self._storage.array[self.rows], self._ctx)

    def tostype(self, stype: str) -> NDArray:
        """Itself, or as "default" a plain copy.

        Raises:
            MXNetError: another storage type.
        """
        if stype == "row_sparse":
            return self
        if stype != "default":
            raise MXNetError(with_user_location(f"tostype({stype!r}): there are 'default' and 'row_sparse'"))
        return NDArray(self.asnumpy(), self._ctx)


def gradient_like(array: NDArray, stype: str | None) -> NDArray:
    """A gradient of zeros for an array, of storage "default" or "row_sparse".

    Raises:
        MXNetError: another storage type, or rows of what has no axes.
    """
    zeros = untouched_zeros(array.shape, array.storage.form.dtype)
    if stype in (None, "default"):
        return NDArray(zeros, array.context)
    if stype != "row_sparse" or not zeros.ndim:
        what = f"a gradient of storage {stype!r} for {array.type}"
        raise MXNetError(
            with_user_location(what, help="there are 'default', and 'row_sparse' for arrays that have rows")
        )
    return RowSparseNDArray(zeros, array.context)


def share_rows(gradients: Sequence[NDArray], gathered: Callable[[Rows], Rows]) -> None:
    """Make all of these gradients their sum, and that over all workers, whose rows `gathered` gives."""
    by_rows = [g for g in gradients if isinstance(g, RowSparseNDArray)]
    total = gathered(joined([g.by_rows() for g in by_rows]))
    for g in by_rows:
        g.receive(total)
