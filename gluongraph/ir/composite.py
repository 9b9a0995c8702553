"""Composites: ops with a body over primitives, from which their type and semantics follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.errors import VerifyError
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType, Types, attr_key, node

_BODIES: dict[Any, Graph] = {}
_LIMIT = 4096  # bodies in the cache; one is built in about a millisecond


def results_of(made: Any) -> tuple[Node, ...]:
    """Return the result of a body as a tuple of nodes with one result each."""
    if isinstance(made, tuple | list):
        return tuple(made)
    if isinstance(made.type, tuple):
        return tuple(OPS["get_tuple_element"](made, index=i) for i in range(len(made.type)))
    return (made,)


def body_graph(body: Callable[..., Any], types: tuple[TensorType, ...], attrs: Any) -> Graph:
    """Return the graph of a body on inputs x0, x1, ... of these types, with outputs y0, y1, ...; cached."""
    key = (body, types, tuple((k, attr_key(v)) for k, v in attrs.items()))
    if (graph := _BODIES.get(key)) is None:
        inputs = {f"x{i}": node(OPS["input"], (), {"name": f"x{i}"}, type=t) for i, t in enumerate(types)}
        results = results_of(body(*inputs.values(), **attrs))
        graph = Graph(inputs, {f"y{i}": r for i, r in enumerate(results)})
        if len(_BODIES) >= _LIMIT:
            _BODIES.clear()
        _BODIES[key] = graph
    return graph


def typed_by(body: Callable[..., Any]) -> Callable[..., Types]:
    """Return the type inference that follows from a body."""

    def infer(*types: TensorType, **attrs: Any) -> Types:
        found = tuple(n.ty for n in body_graph(body, types, attrs).outputs.values())
        return found if len(found) > 1 else found[0]

    return infer


def body_of(n: Node) -> Graph:
    """Return the body of a composite, or the body graph of a call."""
    if n.op.body is not None:
        return body_graph(n.op.body, tuple(s.ty for s in n.src), n.attrs)
    body = n.attrs.get("body")
    if n.op.name != "call" or not isinstance(body, Graph):
        raise VerifyError(f"{n!r} has no body that could stand in its place")
    return body


def inline(n: Node) -> tuple[Node, ...]:
    """Inline a composite or call by one level: return its results as nodes over its sources."""
    if n.op.body is not None:
        return results_of(n.op.body(*n.src, **n.attrs))
    return substitute(body_of(n), n.src)


def substitute(body: Graph, values: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the outputs of a body with `values` in place of its inputs, in order."""
    made = dict(zip(body.inputs.values(), values, strict=True))
    for n in body.nodes():
        if n not in made:
            made[n] = n.on(tuple(made[s] for s in n.src))
    return tuple(made[n] for n in body.outputs.values())


def composite(name: str, body: Callable[..., Any], **facts: Any) -> Op:
    """Create an op that is defined by its body; `facts` are arguments of Op."""
    return Op(name, kind="composite", **{"infer": typed_by(body), "body": body, **facts})
