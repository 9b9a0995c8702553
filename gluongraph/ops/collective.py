"""Collectives: ops whose sources lie on several devices."""

from __future__ import annotations

from functools import reduce

import numpy as np

from gluongraph.ir.graph import Node, Op
from gluongraph.ops.checks import NUMBERS, alike
from gluongraph.ops.samples import Array, elementwise


def _sum(*arrays: Array) -> Array:
    return reduce(np.add, arrays)


# Elementwise, as the devices of one process share their memory: the sum is then part of the kernel that reads it.
ALLREDUCE = Op(
    "allreduce",
    kind="elementwise",
    traits=frozenset({"once"}),
    infer=alike("allreduce", NUMBERS),
    numpy=_sum,
    grad=lambda g, y, *x: (g,) * len(x),
    lower=lambda e, i, *x: reduce(lambda so_far, each: e.binary("add", so_far, each(*i)), x[1:], x[0](*i)),
    samples=elementwise(3, dtypes=("f64", "i32")),
    doc="The sum of one array per device, in the order of devices, which every device receives.",
)


def allreduce(*sources: Node) -> Node:
    """The sum of one array per device; of a single one, that array."""
    return sources[0] if len(sources) == 1 else ALLREDUCE(*sources)


def allreduce_arrays(*arrays: Array) -> Array:
    """The same of numpy arrays, as an array of its own."""
    return arrays[0].copy() if len(arrays) == 1 else _sum(*arrays)
