"""The graph of an entry point, from an untrusted file: validated before it is compiled, so that it stays data.

Reading a graph types every node by its op's rule. What is left is checked here: updates fit what they are written
over, nothing in it claims to be a kernel already, and the entry says of each input what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gluongraph.errors import FormatError, VerifyError
from gluongraph.ir import serialize
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.verify import verify

ROLES = {"state", "scalar", "input"}
OF_PASSES = {"fused"}  # what passes alone make: its pattern promises what a kernel rule then relies on


def graph_of(told: Mapping[str, Any], text: str) -> Graph:
    """The graph in a text, for an entry point that is told of so.

    Raises:
        FormatError: it is no graph, or none that a program was traced to.
    """
    graph = serialize.loads(text)
    try:
        verify(graph)
    except VerifyError as error:
        raise FormatError(f"the graph of {told['id']} is not sound: {error}") from None
    if made := [n for n in _all_nodes(graph) if n.op.name in OF_PASSES]:
        raise FormatError(f"the graph of {told['id']} holds {made[0]!r}, which passes alone make")
    roles = told["roles"]
    if roles.keys() != graph.inputs.keys() or not {*roles.values()} <= ROLES:
        raise FormatError(f"the entry {told['id']} does not say of each input of its graph what it is")
    if strange := [name for name in graph.updates if roles[name] != "state"]:
        raise FormatError(f"the graph of {told['id']} writes over {strange[0]!r}, which is no state")
    return graph


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Those of bodies too."""
    seen, waiting = {graph}, [graph]
    while waiting:
        for n in waiting.pop().nodes():
            yield n
            bodies = {v for v in n.attrs.values() if isinstance(v, Graph)} - seen
            seen |= bodies
            waiting += bodies
