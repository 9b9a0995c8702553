"""Moves reshapes below elementwise work, which then has the shape of the reshapes' operands.

Layers reshape their inputs to matrices, and the results back. Elementwise work between two layers, such as an
activation, would then have another shape than the matmul before it, and be a kernel of its own. Connected elementwise
nodes are moved all together or not at all: else values that one half reads from the other would be stored.
"""

from __future__ import annotations

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, made_from, value

Shape = tuple[int, ...]


def sink_reshapes(graph: Graph) -> Graph:
    """f(reshape(x), reshape(y)) -> reshape(f(x, y)), unless a reduction reads it: a row-wise kernel fuses elementwise
    work of the shape of its rows."""
    while (moved := _once(graph)) is not graph:
        graph = moved
    return graph


def _once(graph: Graph) -> Graph:
    users = graph.users()
    shapes: dict[Node, Shape] = {}
    for together in _components(graph):
        shape = _shape_before(together)
        if shape is not None and not any(u.op.kind == "reduce" for n in together for u in users[n]):
            shapes |= dict.fromkeys(together, shape)
    new: dict[Node, Node] = {}
    origins = dict(graph.origins)
    known: set[Node] = set(graph.inputs.values())
    for n in graph.nodes():
        src = tuple(new[s] for s in n.src)
        if n in shapes:
            made = ops.reshape(n.on(tuple(_brought(s, shapes[n]) for s in src)), shape=n.shape)
        elif n.op.name == "reshape" and n.src[0] in shapes:
            made = _brought(src[0], n.shape)
        else:
            made = in_bodies(n.on(src), sink_reshapes)
        if (origin := origins.get(n)) is not None:
            for each in made_from(made, known):
                origins.setdefault(each, origin)
        new[n] = made
        known.add(made)
    outputs = {k: new[n] for k, n in graph.outputs.items()}
    updates = {k: new[n] for k, n in graph.updates.items()}
    return graph.with_results(outputs, updates, origins)


def _components(graph: Graph) -> list[list[Node]]:
    """Return the connected components of elementwise nodes."""
    home: dict[Node, list[Node]] = {}
    for n in graph.nodes():
        if n.op.kind != "elementwise":
            continue
        home[n] = [n]
        for s in n.src:
            if s in home and home[s] is not home[n]:
                small, large = sorted((home[s], home[n]), key=len)
                large.extend(small)
                home |= dict.fromkeys(small, large)
    return list({id(each): each for each in home.values()}.values())


def _shape_before(together: list[Node]) -> Shape | None:
    """Return the common shape of the operands before they were reshaped, if all operands are available in it without a
    copy; else None."""
    inside = set(together)
    outer = {s: None for n in together for s in n.src if s not in inside}
    found = {s.src[0].shape for s in outer if s.op.name == "reshape" and value(s) is None}
    if len(found) != 1:
        return None
    (shape,) = found
    return shape if all(_has(s, shape) for s in outer) else None


def _has(s: Node, shape: Shape) -> bool:
    """Is s available in that shape without a copy?"""
    return value(s) is not None or (s.op.name == "reshape" and s.src[0].shape == shape) or _along_last(s, shape)


def _along_last(s: Node, shape: Shape) -> bool:
    """Is s a broadcast of trailing axes, such as a bias, which are the trailing axes of `shape` as well?"""
    if s.op.name != "expand":
        return False
    kept = _without_ones(s.src[0].shape)
    end = len(s.shape) - len(kept), len(shape) - len(kept)
    return min(end) >= 0 and s.shape[end[0] :] == shape[end[1] :] == kept


def _without_ones(shape: Shape) -> Shape:
    """Return the shape without its leading axes of size 1."""
    first = next((a for a, d in enumerate(shape) if d != 1), len(shape))
    return shape[first:]


def _brought(s: Node, shape: Shape) -> Node:
    """Return s in that shape."""
    if s.shape == shape:
        return s
    if (number := value(s)) is not None:
        return ops.const(number, dtype=s.dtype, shape=shape)
    if s.op.name == "expand" and _along_last(s, shape):
        kept = _without_ones(s.src[0].shape)
        narrow = (1,) * (len(shape) - len(kept)) + kept
        return ops.expand(_brought(s.src[0], narrow), shape=shape)
    inner = s.src[0] if s.op.name == "reshape" else s
    return inner if inner.shape == shape else ops.reshape(inner, shape=shape)
