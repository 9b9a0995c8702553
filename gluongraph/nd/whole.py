"""Functions of `nd` that look at values, or change arrays: they run in eager mode, and raise in a trace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.context import Context, cpu
from gluongraph.errors import MXNetError, pluralize, with_user_location
from gluongraph.host import params_file
from gluongraph.host.file_names import check_name
from gluongraph.nd.function import into
from gluongraph.ndarray import NDArray


def histogram(
    a: NDArray, bins: int | NDArray = 10, range: tuple[float, float] | None = None
) -> tuple[NDArray, NDArray]:
    """How many elements fall into each bin, and the edges of the bins: equal ones over `range`, or those given."""
    edges: Any = bins.asnumpy() if isinstance(bins, NDArray) else bins
    counts, edges = np.histogram(a.asnumpy(), edges, range)
    return NDArray(counts.astype(np.int64), a.context), NDArray(edges.astype(a.dtype), a.context)


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """1 in `out` at the index of each row, 0 elsewhere."""
    out[:] = indices.one_hot(out.shape[1])
    return out


def fill_element_0index(lhs: NDArray, mhs: NDArray, rhs: NDArray) -> NDArray:
    """lhs with lhs[i, rhs[i]] = mhs[i] for every row i"""
    made = lhs.asnumpy()
    made[np.arange(len(made)), rhs.asnumpy().astype(np.int64)] = mhs.asnumpy()
    return NDArray(made, lhs.context)


def reset_arrays(*arrays: NDArray, num_arrays: int = 0) -> None:
    """Set all arrays to 0."""
    for each in arrays:
        each[:] = 0


def Custom(
    *data: Any, op_type: str, out: Any = None, name: str | None = None, ctx: Context | None = None, **kwargs: Any
) -> Any:
    """An operator in Python, registered as `op_type` by `mx.operator.register`: its result, or a list of them.

    `data` are its inputs and auxiliary states in order; they may be given by name as well. Other keyword arguments go
    to the CustomOpProp as texts.

    Raises:
        MXNetError: no operator of that name, or other inputs than it has.
        HostCallError: in a function that is being compiled.
    """
    from gluongraph import operator  # which stands on nd

    made = operator.call(data, op_type, kwargs)
    result = made[0] if len(made) == 1 else made
    return result if out is None else into(out, result)


# -- files


def save(fname: str, data: NDArray | Sequence[NDArray] | dict[str, NDArray]) -> None:
    """Write an array, a list of arrays or a dict of them in MXNet's format, which MXNet reads too.

    Of a name that ends in .safetensors it is that format, and a dict: its arrays have names.

    Raises:
        ArgumentError: the name of the file is empty.
        TypeError: data is something else.
    """
    check_name("nd.save", fname, "nd.save('arrays.params', arrays)")
    if isinstance(data, NDArray):
        data = [data]
    if isinstance(data, dict):
        names, arrays = list(data), list(data.values())
    elif isinstance(data, (list, tuple)):
        names, arrays = [], list(data)
    else:
        raise TypeError(f"save: an NDArray, or a list or dict of them; not a {type(data).__name__}")
    if not all(isinstance(a, NDArray) for a in arrays):
        raise TypeError("save: what is saved are NDArrays")
    from gluongraph.nd import files  # which stands on nd

    values = [a.asnumpy() for a in arrays]
    if not os.fspath(fname).endswith(".safetensors"):
        params_file.write(fname, values, names)
    elif isinstance(data, dict):
        files.save(fname, dict(zip(names, values, strict=True)))
    else:
        message = f"save: the arrays of a .safetensors file have names, and {fname} is to hold a list"
        raise TypeError(
            with_user_location(message, help="give a dict, or write MXNet's format: a name that ends in .params")
        )


def load(fname: str) -> list[NDArray] | dict[str, NDArray]:
    """Read what `save`, or MXNet's, wrote: a dict if the arrays have names, else a list. Also safetensors, as a dict.

    Raises:
        ArgumentError: the name of the file is empty.
        MXNetError: it is no such file.
    """
    check_name("nd.load", fname, "nd.load('arrays.params')")
    with open(fname, "rb") as file:
        if params_file.is_params(head := file.read(params_file.HEAD)):
            return load_frombuffer(head + file.read(), fname)
    from gluongraph.nd import files  # which stands on nd

    return {name: NDArray(a, cpu()) for name, a in files.load(fname).items()}


def load_frombuffer(buf: bytes, what: str = "the buffer") -> list[NDArray] | dict[str, NDArray]:
    """`load` from bytes in memory."""
    if not isinstance(buf, (bytes, bytearray)):
        raise TypeError(f"load_frombuffer: bytes, not a {type(buf).__name__}")
    arrays, names = params_file.parse(bytes(buf), what)
    made = [NDArray(a, cpu()) for a in arrays]
    if names and len(names) != len(made):
        raise MXNetError(f"{what}: {pluralize(len(made), 'array')} and {pluralize(len(names), 'name')}")
    return dict(zip(names, made, strict=True)) if names else made
