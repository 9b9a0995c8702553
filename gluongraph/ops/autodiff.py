"""Reverse-mode differentiation of graphs, used by eager `backward` and by `compile` alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gluongraph.dtypes import is_float, is_integer
from gluongraph.errors import MXNetError, Origin, VerifyError
from gluongraph.ir.composite import inline
from gluongraph.ir.graph import OPS, Graph, Node, TensorType, recording_origins
from gluongraph.ops import elementwise
from gluongraph.ops.builders import broadcast_to

BACKWARD = "backward"
# Ops besides movement through which integers have gradients: their derivatives by integers are integers. Gradients that
# come back through a cast to floats are cut off, as in MXNet.
INTEGRAL = frozenset(
    {
        *("cast", "neg", "abs", "relu", "add", "sub", "mul", "pow", "maximum", "minimum", "where", "matmul"),
        *("sum", "prod", "max", "min", "cumsum", "take", "gather", "gather_grad", "scatter_add"),
    }
)
K = TypeVar("K")


def gradients(
    outputs: Sequence[Node],
    grads: Sequence[Node | None],
    wrt: Sequence[Node],
    *,
    origins: MutableMapping[Node, Origin] | None = None,
) -> list[Node | None]:
    """d sum_i <grads[i], outputs[i]> / d wrt: one node for each entry of `wrt`, None if the gradient is zero.

    Nodes in `wrt` may depend on one another: each gets its total derivative. Integers have one if they are in `wrt`, or
    are computed from such by what is `INTEGRAL`: a cast of floats to integers has none. `origins` tells where the
    forward nodes came from; the gradient nodes are noted there too, with " backward" behind the scope.
    """
    cotangents: dict[Node, Node] = {}
    of_integers = any(is_integer(x.dtype) for x in wrt)
    for y, g in zip(outputs, grads, strict=True):
        if g is None or not (is_float(y.dtype) or (of_integers and is_integer(y.dtype))):
            continue
        if g.type != y.type:
            raise MXNetError(f"backward: the gradient {g.ty} does not fit its head {y.ty}")
        cotangents[y] = elementwise.add(cotangents[y], g) if y in cotangents else g
    return _walk(cotangents, wrt, frozenset(), origins)


def differentiate(graph: Graph, loss: str, wrt: Sequence[str], scale: Node | None = None) -> Graph:
    """The graph with the outputs "grad:<name>" added: gradients of the sum of the output `loss`, times `scale`.

    It is zeros for inputs that the loss depends on without a gradient, such as x in floor(x); inputs that the loss does
    not depend on, or through `detach` only, get no such output.

    Raises:
        MXNetError: `loss` or a name in `wrt` does not exist or is not of a float type.
    """
    for kind, table, names in (("output", graph.outputs, (loss,)), ("input", graph.inputs, tuple(wrt))):
        for name in names:
            if name not in table:
                raise MXNetError(f"differentiate: no {kind} {name!r}; there are {', '.join(table) or 'none'}")
            if not is_float(table[name].dtype):
                raise MXNetError(f"differentiate: {kind} {name!r} is {table[name].ty}; only float types have gradients")
    y = graph.outputs[loss]
    origins = dict(graph.origins)
    start = ones(y.ty) if scale is None else broadcast_to(elementwise.cast(scale, y.dtype), y.shape)
    found = gradients([y], [start], [graph.inputs[name] for name in wrt], origins=origins)
    known = depended_on([y]) if None in found else frozenset()
    added: dict[str, Node] = {}
    for name, g in zip(wrt, found, strict=True):
        if g is not None:
            added[f"grad:{name}"] = g
        elif (x := graph.inputs[name]) in known:
            added[f"grad:{name}"] = zeros(x.ty)
    return Graph(graph.inputs, {**graph.outputs, **added}, graph.updates, origins)


def depended_on(results: Iterable[Node]) -> frozenset[Node]:
    """Return the results and all nodes that they are computed from, except through `detach`.

    These nodes were recorded: the gradient by one of them is zero if none flows to it.
    """
    seen: set[Node] = set()
    stack = list(results)
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            if not n.attrs.get("detached"):
                stack.extend(n.src)
    return frozenset(seen)


def ones(type: TensorType) -> Node:
    """A splat of 1: the gradient of a sum."""
    return _splat(1.0, type)


def zeros(type: TensorType) -> Node:
    """A splat of 0: the gradient where none flows."""
    return _splat(0.0 if is_float(type.dtype) else 0, type)


def _splat(value: float | int, type: TensorType) -> Node:
    return OPS["const"](value=value, dtype=type.dtype, shape=type.shape)


def _walk(
    cotangents: Mapping[Node, Node],
    wrt: Sequence[Node],
    boundary: frozenset[Node],
    origins: MutableMapping[Node, Origin] | None,
) -> list[Node | None]:
    """Propagate cotangents back to `wrt`; sources of nodes in `boundary` are not visited."""
    whole: dict[Node, Node] = dict(cotangents)  # of nodes with one result
    parts: dict[Node, dict[int, Node]] = {}  # of nodes with several
    between = _active(whole, wrt, boundary)
    integers = _integers(between, wrt)
    for n in reversed(between):
        if n in boundary or not n.src:
            continue
        with _noting(n, origins):
            if n.op.name == "get_tuple_element":
                if n in whole:
                    _add(parts.setdefault(n.src[0], {}), n.attrs["index"], whole[n])
                continue
            known = parts.get(n, {}) if isinstance(n.type, tuple) else {0: whole[n]} if n in whole else {}
            if not known:
                continue
            if n in whole and not is_float(n.dtype) and n not in integers:
                continue
            for x, gx in zip(n.src, _pull(n, known, integers), strict=True):
                if gx is None or isinstance(x.type, tuple) or not (is_float(x.dtype) or x in integers):
                    continue
                if gx.type != x.type:
                    raise VerifyError(f"{n.op.name}: its gradient rule gives {gx.ty} for a source {x.ty}")
                _add(whole, x, gx)
    return [whole.get(n) for n in wrt]


def _add(table: dict[K, Node], key: K, g: Node) -> None:
    table[key] = elementwise.add(table[key], g) if key in table else g


def _integers(between: Sequence[Node], wrt: Sequence[Node]) -> frozenset[Node]:
    """Return the integer nodes between `wrt` and the results that have gradients, sources first."""
    found = {x for x in wrt if is_integer(x.dtype)}
    for n in between if found else ():
        if not isinstance(n.type, tuple) and is_integer(n.dtype) and not found.isdisjoint(n.src) and _is_integral(n):
            found.add(n)
    return frozenset(found)


def _is_integral(n: Node) -> bool:
    return n.op.kind == "movement" or n.op.name in INTEGRAL


def _pull(n: Node, known: Mapping[int, Node], integers: frozenset[Node]) -> Sequence[Node | None]:
    """Cotangents of the sources of `n` from those of its results (`known`, by index)."""
    if n.op.grad is not None:
        if not isinstance(n.type, tuple):
            return n.op.grad(known[0], n, *n.src, **n.attrs)
        gs = tuple(known[i] if i in known else zeros(t) for i, t in enumerate(n.type))
        ys = tuple(OPS["get_tuple_element"](n, index=i) for i in range(len(n.type)))
        return n.op.grad(gs, ys, *n.src, **n.attrs)
    if n.op.body is not None:  # a composite without a rule of its own: through its body, and no further than that
        results = inline(n)
        cotangents: dict[Node, Node] = {}
        for i, g in known.items():
            _add(cotangents, results[i], g)
        wrt = tuple(x for x in n.src if isinstance(x.type, tuple) or is_float(x.dtype) or x in integers)
        at = dict(zip(wrt, _walk(cotangents, wrt, frozenset(n.src), None), strict=True))
        return tuple(at.pop(x, None) for x in n.src)  # a source that occurs twice has received its total gradient once
    return (None,) * len(n.src)


def _active(results: Iterable[Node], wrt: Sequence[Node], boundary: frozenset[Node]) -> list[Node]:
    """Return the nodes between `wrt` and the results, sources first."""
    targets = set(wrt)
    order: dict[Node, bool] = {}  # node -> does it depend on wrt
    stack = [(n, False) for n in results]
    while stack:
        n, ready = stack.pop()
        if ready:
            order[n] = n in targets or (n not in boundary and any(order[s] for s in n.src))
        elif n not in order:
            stack.append((n, True))
            if n not in boundary:
                stack.extend((s, False) for s in reversed(n.src) if s not in order)
    return [n for n, active in order.items() if active]


@contextmanager
def _noting(n: Node, origins: MutableMapping[Node, Origin] | None) -> Iterator[None]:
    """Within the context, new nodes have the origin of `n`, marked as backward."""
    origin = None if origins is None else origins.get(n)
    if origins is None or origin is None:
        yield
        return
    scope = origin.scope if origin.scope.endswith(BACKWARD) else f"{origin.scope} {BACKWARD}".strip()
    behind = Origin(origin.file, origin.line, scope)
    with recording_origins(lambda: behind) as made:
        yield
    for node, where in made.items():
        origins.setdefault(node, where)
