"""Kernel selection: which rule of the target emits each kernel, and its workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gluongraph import ops
from gluongraph.errors import CompileError, with_user_location
from gluongraph.ir.graph import Graph, Node, topological
from gluongraph.ir.plan import Candidate, Group, Plan

Offer = Callable[[Group], Candidate | None]
Nest = Callable[[Graph, Mapping[str, str]], Plan]


@dataclass(frozen=True)
class Selection:
    """A graph of fused nodes; the group and the selected candidate of each; `offer(group)`, the target's candidate for
    any other group."""

    graph: Graph
    kernels: dict[Node, tuple[Group, Candidate]]
    offer: Offer


def select(graph: Graph, offer: Offer, nest: Nest) -> Selection:
    """Select the target's candidate for every group; groups that no rule claims are split into single operations.

    `nest(graph, roles)` plans the body of a scan, which is a program of its own.
    """
    kernels: dict[Node, tuple[Group, Candidate]] = {}
    new: dict[Node, Node] = {}
    origins = dict(graph.origins)
    split_results: dict[Node, tuple[Node, ...]] = {}  # split group -> its results
    for n in graph.nodes():
        if n.op.name == "get_tuple_element" and n.src[0] in split_results:
            made = split_results[n.src[0]][n.attrs["index"]]
        else:
            made = n.on(tuple(new[s] for s in n.src if s in new))
        if n.op.name == "fused":
            group = group_of(made, nest)
            if group.pattern == "collective":  # the runtime calls the communicator, there is no kernel
                kernels[made] = group, Candidate("communicator")
            elif (chosen := offer(group)) is not None:
                kernels[made] = group, chosen
            else:
                split_results[n] = _split(made, offer, kernels)
        new[n] = made
        if n in graph.origins:
            origins.setdefault(made, graph.origins[n])
    outputs = {k: new[n] for k, n in graph.outputs.items()}
    updates = {k: new[n] for k, n in graph.updates.items()}
    return Selection(graph.with_results(outputs, updates, origins), kernels, offer)


def group_of(n: Node, nest: Nest | None = None) -> Group:
    """Return the group of a fused node."""
    group = Group(n.attrs["body"], n.attrs["pattern"])
    if group.pattern == "scan" and nest is not None:
        return replace(group, inner=nest(*one_iteration(group.scan)))
    return group


def one_iteration(scan: Node) -> tuple[Graph, dict[str, str]]:
    """Return a scan's body as a program: carries are state that each iteration updates, slices and constants inputs."""
    body: Graph = scan.attrs["body"]
    carries = [f"c{i}" for i in range(scan.attrs["carries"])]
    ys = {name: n for name, n in body.outputs.items() if name not in carries}
    graph = Graph(body.inputs, ys, {name: body.outputs[name] for name in carries}, body.origins)
    return graph, {name: "state" if name in carries else "input" for name in body.inputs}


def _computing(body: Graph) -> list[Node]:
    return [
        n for n in body.nodes() if n.op.kind != "leaf" and n.op.name not in ("expand", "reshape", "get_tuple_element")
    ]


def _split(n: Node, offer: Offer, kernels: dict[Node, tuple[Group, Candidate]]) -> tuple[Node, ...]:
    """Split n into one fused node per operation of its body; return its results."""
    body: Graph = n.attrs["body"]
    if len(_computing(body)) <= 1:
        raise CompileError(
            with_user_location(
                f"no kernel rule of this target takes {describe(group_of(n))}",
                help="give the op a `lower` rule, or the target a rule that claims it",
            )
        )
    made: dict[Node, Node] = dict(zip(body.inputs.values(), n.src, strict=True))
    for m in topological(body.outputs.values()):
        if m not in made:
            sources = tuple(made[s] for s in m.src)
            made[m] = (
                m.on(sources) if m.op.name in ("reshape", "get_tuple_element") else _single(m, sources, offer, kernels)
            )
    return tuple(made[m] for m in body.outputs.values())


def _single(m: Node, sources: tuple[Node, ...], offer: Offer, kernels: dict[Node, tuple[Group, Candidate]]) -> Node:
    """Return m as a kernel of its own on sources in memory: its result, or the fused node if it has several."""
    inputs = {f"x{i}": ops.input(f"x{i}", s.ty) for i, s in enumerate(sources)}
    inner = m.on(tuple(inputs.values()))
    several = isinstance(inner.type, tuple)
    results = [ops.get_tuple_element(inner, index=i) for i in range(len(inner.types))] if several else [inner]
    pattern = "loop" if m.op.kind in ("elementwise", "movement", "leaf", "random") else "opaque"
    fused = ops.fused(*sources, body=Graph(inputs, {f"y{i}": r for i, r in enumerate(results)}), pattern=pattern)
    group = group_of(fused)
    kernels[fused] = group, claimed(group, offer)
    return fused if several else ops.get_tuple_element(fused, index=0)


def claimed(group: Group, offer: Offer) -> Candidate:
    """Return the candidate for a group of a single operation, or of a copy.

    Raises:
        CompileError: no rule of the target claims it.
    """
    candidate = offer(group)
    if candidate is None:
        raise CompileError(with_user_location(f"no kernel rule of this target takes {describe(group)}"))
    return candidate


def describe(group: Group) -> str:
    """Return a short description of a group, for messages."""
    names = ", ".join(dict.fromkeys(n.op.name for n in _computing(group.body)))
    types = ", ".join(map(str, group.inputs))
    return f"{group.pattern} group of {names or 'a copy'} on {types}"
