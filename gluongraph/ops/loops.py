"""The builder of structured loops: what depends on the iteration becomes the body, the rest is computed before it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import count

from gluongraph.ir.composite import substitute
from gluongraph.ir.graph import OPS, Graph, Node, TensorType
from gluongraph.ops import constants, control
from gluongraph.ops.constants import INPUT, LITERAL

Nodes = tuple[Node, ...]
_SERIAL = count()


def fresh(type: TensorType) -> Node:
    """Return a new leaf."""
    return constants.input(f"scan.{next(_SERIAL)}", type)


def loop(
    start: Mapping[Node, Node],
    stacks: Mapping[Node, Node],
    consts: Mapping[Node, Node],
    after: Sequence[Node],
    ys: Sequence[Node],
    length: int,
    reverse: bool,
) -> tuple[Nodes, Nodes]:
    """A scan whose body is written on leaves: the tables say what each leaf starts from, is sliced from, or equals.

    Loop-invariant values are computed before the loop; unused leaves are left out.
    """
    results = (*after, *ys)
    varying = {*start, *stacks}
    read = in_body(results, varying)
    stacks = {leaf: x for leaf, x in stacks.items() if leaf in read}
    same = {n: over(n, consts) for n in _unvarying(read, results, varying)}
    tables = {"c": start, "x": stacks, "k": same}
    leaves = {
        leaf: constants.input(f"{letter}{i}", leaf.ty) for letter, t in tables.items() for i, leaf in enumerate(t)
    }
    outputs = {f"c{i}": n for i, n in enumerate(after)} | {f"y{i}": n for i, n in enumerate(ys)}
    body = _renamed(outputs, leaves)
    made = OPS["scan"](
        *(n for table in tables.values() for n in table.values()),
        body=body,
        length=length,
        carries=len(start),
        xs=len(stacks),
        reverse=reverse,
    )
    found = control.get_tuple_elements(made)
    return found[: len(start)], found[len(start) :]


def in_body(results: Iterable[Node], leaves: Container[Node]) -> dict[Node, None]:
    """Return the nodes that the results depend on, sources first, without those of which `leaves` are made."""
    order: dict[Node, None] = {}
    stack = [(n, False) for n in reversed(tuple(results))]
    while stack:
        n, ready = stack.pop()
        if ready or n in leaves:
            order[n] = None
        elif n not in order:
            stack.append((n, True))
            stack.extend((s, False) for s in reversed(n.src) if s not in order)
    return order


def _unvarying(order: Iterable[Node], results: Sequence[Node], varying: Container[Node]) -> list[Node]:
    """Return the loop-invariant values that varying nodes read, or that are results. Broadcasts stay in the body."""
    inside: set[Node] = set()
    outside: set[Node] = set()
    for n in order:
        if n in varying or any(s in inside for s in n.src):
            inside.add(n)
        elif n.op in (INPUT, LITERAL) or any(s in outside for s in n.src):
            outside.add(n)
    crossing = dict.fromkeys(
        _unexpanded(s) for n in order if n in inside and n not in varying for s in n.src if s in outside
    )
    return list(crossing | dict.fromkeys(n for n in results if n in outside))


def _unexpanded(n: Node) -> Node:
    while n.op.name == "expand" or (n.op.name == "reshape" and n.ty.rank > n.src[0].ty.rank):
        n = n.src[0]
    return n


def over(n: Node, consts: Mapping[Node, Node]) -> Node:
    """Substitute values for leaves in n."""
    if n in consts or not consts:
        return consts.get(n, n)
    return substitute(Graph({str(i): leaf for i, leaf in enumerate(consts)}, {"": n}), tuple(consts.values()))[0]


def _renamed(outputs: Mapping[str, Node], leaves: Mapping[Node, Node]) -> Graph:
    """Return the body: the outputs with inputs in place of `leaves`."""
    made = dict(leaves)
    stack = list(outputs.values())
    while stack:
        n = stack[-1]
        if n in made:
            stack.pop()
        elif waiting := [s for s in n.src if s not in made]:
            stack.extend(waiting)
        else:
            made[n] = n.on(tuple(made[s] for s in n.src))
    inputs = {n.attrs["name"]: n for n in leaves.values()}
    return Graph(inputs, {name: made[n] for name, n in outputs.items()})
