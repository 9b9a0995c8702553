"""Collectives: ops whose sources lie on several devices or ranks.

`allreduce` says what a program means: the sum over the devices of this process, and over all ranks. The pass
`distribute` turns it into what is executed: a sum over devices, which is elementwise since they share their memory, and
`all_reduce` between ranks. The collectives between ranks work on flat memory: their operands lie one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, dtype_name
from gluongraph.host import services
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops.checks import NUMBERS, equal_types, misfit, need
from gluongraph.ops.control import get_tuple_elements
from gluongraph.ops.samples import Array, each, elementwise
from gluongraph.storage import aligned

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")  # between ranks, on flat memory
SHARD = "shard:"  # the names of inputs that hold this rank's part of parameters in flat memory


def communicator() -> Any:
    """The communicator of this process, which the store of several workers registers."""
    return services.get("communicator")()


# -- the sum over devices and ranks


def _allreduce_type(*types: TensorType, ranks: int = 1, bucket: int = 0) -> TensorType:
    found = equal_types("allreduce", *types)
    need("allreduce", NUMBERS, found)
    return found


def _sum(*arrays: Array, ranks: int = 1, bucket: int = 0) -> Array:
    total: Array = reduce(np.add, arrays)
    if ranks > 1:
        total = total.copy()
        communicator().allreduce(total)
    return total


# Elementwise, as the devices of one process share their memory: the sum is then part of the kernel that reads it.
ALLREDUCE = Op(
    "allreduce",
    kind="elementwise",
    traits=frozenset({"once"}),
    infer=_allreduce_type,
    numpy=_sum,
    grad=lambda g, y, *x, ranks=1, bucket=0: (allreduce(g, ranks=ranks),) * len(x),
    lower=lambda e, i, *x: reduce(lambda so_far, each: e.binary("add", so_far, each(*i)), x[1:], x[0](*i)),
    samples=elementwise(3, dtypes=("f64", "i32")),
    doc="The sum of one array per device, in the order of devices, and over all ranks; every device receives it.",
)


def allreduce(*sources: Node, ranks: int = 1, bucket: int = 0) -> Node:
    """The sum of one array per device, of all `ranks`; of a single one, that array. Sums over ranks may be communicated
    together, in buckets of so many bytes; 0: in one."""
    if ranks == 1:
        return sources[0] if len(sources) == 1 else ALLREDUCE(*sources)
    return ALLREDUCE(*sources, ranks=ranks, **({"bucket": bucket} if bucket else {}))


def allreduce_arrays(*arrays: Array) -> Array:
    """The sum of numpy arrays of several devices, as an array of its own."""
    return arrays[0].copy() if len(arrays) == 1 else _sum(*arrays)


# -- flat memory


def flat_offsets(types: Sequence[TensorType]) -> tuple[list[int], int]:
    """Return the offsets in bytes of arrays that lie one after another, each aligned as buffers are; and their end."""
    offsets, end = [], 0
    for ty in types:
        offsets.append(end)
        end += aligned(ty.nbytes)
    return offsets, end


def shard_size(types: Sequence[TensorType], ranks: int) -> int:
    """Return the number of elements of one of `ranks` equal parts of arrays that lie one after another. The parts are
    aligned, so the last one may be longer than what is left for it."""
    return aligned(-(-flat_offsets(types)[1] // ranks)) // DTYPES[types[0].dtype].nbytes


def _flat(arrays: Sequence[Array], types: Sequence[TensorType], elements: int) -> Array:
    """Return arrays in flat memory of so many elements, zeros between them."""
    whole = np.zeros(elements, arrays[0].dtype)
    for array, at in zip(arrays, flat_offsets(types)[0], strict=True):
        start = at // array.itemsize
        whole[start : start + array.size] = array.reshape(-1)
    return whole


def _types_of(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(array.shape, dtype_name(array.dtype)) for array in arrays]


def _one_dtype(op: str, types: Sequence[TensorType]) -> str:
    need(op, NUMBERS, *types)
    if len({t.dtype for t in types}) != 1:
        raise misfit(op, "operands in flat memory have one dtype", *types)
    return types[0].dtype


# -- all_reduce


def _all_reduce_type(*types: TensorType, ranks: int, bucket: int = 0) -> tuple[TensorType, ...]:
    _one_dtype("all_reduce", types)
    return types


def _all_reduce(*arrays: Array, ranks: int, bucket: int = 0) -> tuple[Array, ...]:
    copies = tuple(np.array(array) for array in arrays)
    if ranks > 1:
        for copy in copies:
            communicator().allreduce(copy)
    return copies


ALL_REDUCE = Op(
    "all_reduce",
    kind="collective",
    traits=frozenset({"once"}),
    infer=_all_reduce_type,
    numpy=_all_reduce,
    pattern="collective",
    samples=each((((3, 33), (7,)), {"ranks": 1}), (((5,),), {"ranks": 1})),
    doc="The sums of arrays over all ranks, in place of the arrays; with a `bucket` size while other kernels run.",
)


def all_reduce(*sources: Node, ranks: int, bucket: int = 0) -> tuple[Node, ...]:
    """The sum of each source over all ranks; `bucket` as in `allreduce`."""
    attrs = {"bucket": bucket} if bucket else {}
    return get_tuple_elements(ALL_REDUCE(*sources, ranks=ranks, **attrs))


# -- reduce_scatter


def _reduce_scatter_type(*types: TensorType, ranks: int, bucket: int = 0) -> tuple[TensorType, ...]:
    return (TensorType((shard_size(types, ranks),), _one_dtype("reduce_scatter", types)),)


def _reduce_scatter(*arrays: Array, ranks: int, bucket: int = 0) -> tuple[Array, ...]:
    types = _types_of(arrays)
    size = shard_size(types, ranks)
    whole, shard = _flat(arrays, types, size * ranks), np.empty(size, arrays[0].dtype)
    if ranks > 1:
        communicator().reduce_scatter(whole, shard)
        return (shard,)
    return (whole,)


REDUCE_SCATTER = Op(
    "reduce_scatter",
    kind="collective",
    traits=frozenset({"once"}),
    infer=_reduce_scatter_type,
    numpy=_reduce_scatter,
    pattern="collective",
    samples=each((((3, 33), (7,)), {"ranks": 1}), (((5,),), {"ranks": 1})),
    doc="This rank's part of the sums over all ranks of arrays in flat memory.",
)


def reduce_scatter(*sources: Node, ranks: int, bucket: int = 0) -> Node:
    """This rank's shard of the sums of all sources over all ranks: elements rank*S to (rank+1)*S of the sources in flat
    memory, S = `shard_size`."""
    attrs = {"bucket": bucket} if bucket else {}
    return get_tuple_elements(REDUCE_SCATTER(*sources, ranks=ranks, **attrs))[0]


# -- all_gather


def _all_gather_type(x: TensorType, ranks: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[TensorType, ...]:
    types = tuple(TensorType(shape, x.dtype) for shape in shapes)
    if x.shape != (shard_size(types, ranks),):
        raise misfit("all_gather", f"{ranks} shards of {shard_size(types, ranks)} elements make {shapes}", x)
    return types


def _all_gather(x: Array, ranks: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[Array, ...]:
    whole = np.empty(x.size * ranks, x.dtype)
    if ranks > 1:
        communicator().allgather(np.ascontiguousarray(x), whole)
    else:
        whole[:] = x
    dtype = _types_of([x])[0].dtype
    types = [TensorType(shape, dtype) for shape in shapes]
    found = []
    for ty, at in zip(types, flat_offsets(types)[0], strict=True):
        start = at // x.itemsize
        found.append(whole[start : start + ty.size].reshape(ty.shape))
    return tuple(found)


ALL_GATHER = Op(
    "all_gather",
    kind="collective",
    traits=frozenset({"once"}),
    infer=_all_gather_type,
    numpy=_all_gather,
    pattern="collective",
    samples=each((((32,),), {"ranks": 1, "shapes": ((3, 5), (7,))}), dtypes=("f32",)),
    doc="The shards of all ranks, one after another, as arrays of these shapes in flat memory.",
)


def all_gather(shard: Node, *, ranks: int, shapes: Sequence[tuple[int, ...]]) -> tuple[Node, ...]:
    """The arrays of which every rank has one shard, as `reduce_scatter` makes them."""
    return get_tuple_elements(ALL_GATHER(shard, ranks=ranks, shapes=tuple(shapes)))
