"""Lazy updates: of a row-sparse gradient only its rows of the weight and its states are read and written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gluongraph import ops
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.constants import is_zero

Update = Callable[[Node, Node, Mapping[str, Node]], tuple[Node, Mapping[str, Node]]]


def row_gradient(g: Node) -> tuple[Node, Node] | None:
    """The numbers of rows, i32[n], and their values that a gradient is the sum of; None if it is no such sum.

    That is what the gradient of `embedding` and `take` is, the sum of several of them, and such a gradient as another
    type or times a single number.
    """
    if g.op.name == "scatter_add" and is_zero(g.src[0]):
        _, indices, values = g.src
        last, count = g.shape[0] - 1, math.prod(indices.shape)
        rows = ops.cast(ops.minimum(ops.maximum(indices, 0), last), "i32")
        return ops.reshape(rows, (count,)), ops.reshape(values, (count, *g.shape[1:]))
    if g.op.name == "cast" and (found := row_gradient(g.src[0])) is not None:
        return found[0], ops.cast(found[1], g.dtype)
    if g.op.name == "mul":
        for x, factor in (g.src, g.src[::-1]):
            if (number := _number(factor)) is not None and (found := row_gradient(x)) is not None:
                return found[0], found[1] * number
    if g.op.name in ("add", "allreduce"):
        parts = [row_gradient(s) for s in g.src]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            rows, values = (ops.concat(*each) for each in zip(*known, strict=True))
            return _of_all(rows, values, g.attrs.get("ranks", 1))
    return None


def _of_all(rows: Node, values: Node, ranks: int) -> tuple[Node, Node]:
    """The rows of all ranks, who have equally many: one after another, in the order of ranks.

    Each rank gives a multiple of 32 rows, so that its part of flat memory is aligned; the first row is repeated, with
    values of 0.
    """
    if ranks == 1:
        return rows, values
    count, width = rows.shape[0], math.prod(values.shape[1:])
    more = -count % 32
    if more:
        rows = ops.concat(rows, ops.expand(ops.slice(rows, (0,), (1,)), (more,)))
        values = ops.concat(values, ops.zeros(TensorType((more, *values.shape[1:]), values.dtype)))
    count += more
    (rows,) = ops.all_gather(rows, ranks=ranks, shapes=((ranks * count,),))
    (flat,) = ops.all_gather(ops.reshape(values, (count * width,)), ranks=ranks, shapes=((ranks * count * width,),))
    return rows, ops.reshape(flat, (ranks * count, *values.shape[1:]))


def _number(n: Node) -> Node | None:
    """The single number that is repeated in n, if it is one."""
    while n.op.name in ("expand", "reshape"):
        n = n.src[0]
    if n.op.name == "const":
        return ops.const(n.attrs["value"], n.dtype)
    return ops.reshape(n, ()) if n.ty.size == 1 else None


def update_rows(w: Node, g: Node, state: Mapping[str, Node], update: Update) -> tuple[Node, dict[str, Node]]:
    """`update(w, g, state)` for the rows that the gradient touches; the others stay as they are.

    Of a gradient that is not known by rows, those with an element other than 0 count as touched.
    """
    if (found := row_gradient(g)) is None:
        return _masked(w, g, state, update)
    rows, values = found
    first = ops.first_of(rows, size=w.shape[0])
    # The place where a row is named first gets the sum of all its values. Others compute something that nobody writes.
    total = ops.scatter_add(ops.zeros(TensorType(values.shape, values.dtype)), first, values)
    targets = ops.where(ops.equal(first, ops.iota(first.shape, 0)), rows, -1)
    new, states = update(ops.take(w, rows), total, {key: ops.take(old, rows) for key, old in state.items()})
    return ops.put_rows(w, targets, new), {key: ops.put_rows(old, targets, states[key]) for key, old in state.items()}


def _masked(w: Node, g: Node, state: Mapping[str, Node], update: Update) -> tuple[Node, dict[str, Node]]:
    odd = ops.reshape(ops.cast(ops.not_equal(g, 0), "i32"), (g.shape[0], -1))
    touched = ops.greater(ops.max(odd, 1), 0)
    new, states = update(w, g, state)
    return _where(touched, new, w), {key: _where(touched, states[key], old) for key, old in state.items()}


def _where(touched: Node, new: Node, old: Node) -> Node:
    """The new rows where touched, else the old ones."""
    return ops.where(ops.reshape(touched, (old.shape[0], *(1,) * (old.ty.rank - 1))), new, old)
