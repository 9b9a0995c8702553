"""A graph as boxes and lines between them, few enough to be looked at: operations, kernels, or layers of them.

The forward pass runs down, the backward pass up beside it: a box stands as deep as the longest way from the inputs to
it, one of the backward pass as high as the longest way from it to the end. What is kept for a gradient is then a line
from left to right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.tracing.optimizer_updates import SCALAR

PHASES = ("forward", "backward", "update")
MOST = 100  # boxes; where there were more, operations are put together by layer, then by what layers' names begin with
BACKWARD = " backward"  # how the scope of a gradient ends
_PASSING = ("get_tuple_element", "depends_on")  # operations that hand on their first source


@dataclass(frozen=True)
class Box:
    """Some operations of a graph: their layer, how many there are of each, and the row in which they stand."""

    name: str
    phase: str
    ops: tuple[tuple[str, int], ...]
    row: int

    @property
    def title(self) -> str:
        """What is written in it."""
        names = " ".join(name if count == 1 else f"{count} {name}" for name, count in self.ops)
        return f"{self.name}: {names}" if self.name else names


@dataclass(frozen=True)
class Drawing:
    """The boxes, sources first, and lines from one to another, by their numbers."""

    boxes: tuple[Box, ...]
    lines: tuple[tuple[int, int], ...]


def drawing(graph: Graph) -> Drawing:
    """The boxes of a graph; parameters, constants and scalars are left out."""
    phases = phases_of(graph)
    nodes = [n for n in graph.nodes() if n.op.kind != "leaf" and n.op.name not in _PASSING]
    shown = [n for n in nodes if n.op.name == "fused"] or nodes  # views alone are left beside kernels
    layers = {n: _layer(graph.origins.get(n)) for n in shown}
    reads = _sources(shown)
    made = _together(reads, {n: i for i, n in enumerate(shown)})
    while len(made) > MOST:
        made = _together(reads, {n: (layers[n], phases[n]) for n in shown})
        shorter = {n: layer.rpartition("_")[0] for n, layer in layers.items()}
        if len(made) <= MOST or shorter == layers:
            break
        layers = shorter
    return _placed(made, reads, phases, layers)


def phases_of(graph: Graph) -> dict[Node, str]:
    """Which part of a step each node is: what results need, what makes gradients, what depends on the optimizer."""
    nodes = graph.nodes()
    updating: set[Node] = set()
    spreading = {n for name, n in graph.inputs.items() if name.startswith(SCALAR)}
    for n in nodes:
        if n.op.name == "get_tuple_element" and n.src[0] in updating:
            updating.add(n)
        elif not spreading.isdisjoint(n.src):
            updating.add(n)
            if n.op.name != "fused":  # a kernel may make a gradient beside an update
                spreading.add(n)
    needed = {n for name, n in graph.outputs.items() if name.startswith("out") or name == INDEX_FLAG} or set(
        graph.outputs.values()
    )
    needed |= {n for n in graph.updates.values() if n not in updating}  # running statistics
    for n in reversed(nodes):
        if n in needed:
            needed.update(n.src)
    return {n: "forward" if n in needed else "update" if n in updating else "backward" for n in nodes}


def _layer(origin: Origin | None) -> str:
    return origin.scope.removesuffix(BACKWARD) if origin is not None else ""


def _sources(shown: Sequence[Node]) -> dict[Node, list[Node]]:
    """What each of these nodes reads of them, behind those that only hand on."""
    known = set(shown)

    def behind(n: Node) -> Node:
        while n not in known and n.src:
            n = n.src[0]
        return n

    return {n: [s for s in map(behind, n.src) if s in known] for n in shown}


def _together(reads: Mapping[Node, Sequence[Node]], keys: Mapping[Node, object]) -> list[list[Node]]:
    """Nodes of one key in a box, as far as no two boxes then wait for each other: else in another one."""
    boxes: list[list[Node]] = []
    place: dict[Node, int] = {}
    newest: dict[object, int] = {}
    after: list[set[int]] = []  # of each box those that read it

    def leads(start: int, ends: set[int]) -> bool:
        stack, seen = [start], {start}
        while stack:
            for i in after[stack.pop()] - seen:
                if i in ends:
                    return True
                seen.add(i)
                stack.append(i)
        return False

    for n, read in reads.items():
        sources = {place[s] for s in read}
        home = newest.get(keys[n])
        if home is None or leads(home, sources - {home}):
            home = newest[keys[n]] = len(boxes)
            boxes.append([])
            after.append(set())
        boxes[home].append(n)
        place[n] = home
        for source in sources - {home}:
            after[source].add(home)
    return boxes


def _placed(
    made: list[list[Node]],
    reads: Mapping[Node, Sequence[Node]],
    phases: Mapping[Node, str],
    layers: Mapping[Node, str],
) -> Drawing:
    """Boxes in rows, numbered so that sources come first."""
    place = {n: i for i, nodes in enumerate(made) for n in nodes}
    web = nx.DiGraph()
    web.add_nodes_from(range(len(made)))
    for n, i in place.items():
        web.add_edges_from((place[s], i) for s in reads[n] if place[s] != i)
    parts = {phase: [i for i, nodes in enumerate(made) if phases[nodes[0]] == phase] for phase in PHASES}
    rows: dict[int, int] = {}
    for phase in ("forward", "backward"):
        part = web.subgraph(parts[phase])
        for row, found in enumerate(nx.topological_generations(part if phase == "forward" else part.reverse())):
            rows.update(dict.fromkeys(found, row))
    order = list(nx.lexicographical_topological_sort(web))
    for i in order:  # an update stands beside its gradient
        if i not in rows:
            rows[i] = max((rows[j] for j in web.predecessors(i)), default=0)
    number = {i: at for at, i in enumerate(order)}
    boxes = [
        Box(layers[made[i][0]], phases[made[i][0]], tuple(sorted(Counter(map(_named, made[i])).items())), rows[i])
        for i in order
    ]
    return Drawing(tuple(boxes), tuple(sorted((number[i], number[j]) for i, j in web.edges)))


def _named(n: Node) -> str:
    """What an operation is called: a kernel by its pattern and how much is in it."""
    if n.op.name != "fused":
        return n.op.name
    inside = [each for each in n.attrs["body"].nodes() if each.op.kind != "leaf"]
    return f"{n.attrs['pattern']}({inside[0].op.name})" if len(inside) == 1 else f"{n.attrs['pattern']}({len(inside)})"
