"""`mx.nd.sparse`: gradients by rows, which `Embedding(sparse_grad=True)` has, are all of it; arrays are dense."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import MissingError, with_user_location
from gluongraph.nd.row_sparse_array import RowSparseNDArray as RowSparseNDArray
from gluongraph.ndarray import NDArray

_HELP = "arrays are dense; gradients by rows come from gluon.nn.Embedding(sparse_grad=True), or attach_grad(stype=...)"


def check_storage(what: str, stype: str | None) -> None:
    """Raise NotImplementedError unless the storage type is the dense one."""
    if stype not in (None, "default"):
        raise NotImplementedError(with_user_location(f"{what}: storage {stype!r} does not exist", help=_HELP))


def cast_storage(data: NDArray, stype: str) -> NDArray:
    """The array as it is, or a gradient by rows as a dense array. Raises NotImplementedError for other storage."""
    return data.tostype(stype)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise MissingError(with_user_location(f"nd.sparse.{name} does not exist", help=_HELP))
