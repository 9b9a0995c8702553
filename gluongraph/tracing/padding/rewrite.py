"""The program of padded arrays: a traced program in which padding counts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gluongraph.errors import MXNetError, Origin, with_user_location
from gluongraph.ir.graph import Graph, Node
from gluongraph.tracing.padding import control, index, leaves, movement, products, reductions
from gluongraph.tracing.padding.layout import Extents, Layout, Refusal, is_fixed
from gluongraph.tracing.padding.masking import Masking, Value, length_input

RULES_IN = (control, index, leaves, movement, products, reductions)  # imported, they fill the table


class PaddingError(MXNetError):
    """A program that cannot be computed on padded arrays."""


@dataclass(frozen=True)
class Masked:
    """A program for padded arrays.

    `graph` has the inputs "length:<name>" for the valid lengths that it reads; `layouts` say where the padding of each
    output lies; `least` are the smallest lengths that it is exact for, `compared` those of the second trace.
    """

    graph: Graph
    layouts: Mapping[str, Layout]
    least: Mapping[str, int]
    compared: Mapping[str, int]


def mask_padding(
    graph: Graph, other: Graph, third: Graph, inputs: Mapping[str, Layout], extents: Extents, masked: str = ""
) -> Masked:
    """The program for arrays whose free axes are padded, given its traces for all of the extents.

    `inputs` are the layouts of the inputs with free axes. The output `masked` is 0 where it is padding.

    Raises:
        PaddingError: an op cannot be computed on padded arrays, or the traces are of different programs.
    """
    masking = Masking(extents, inputs)
    origins: dict[Node, Origin] = {}
    results, others, thirds = map(_results, (graph, other, third))
    try:
        if not results.keys() == others.keys() == thirds.keys():
            raise Refusal("for another length the program returns or updates other arrays")
        masking.walk(zip(*(each.values() for each in (results, others, thirds)), strict=True), graph.origins, origins)
    except Refusal as refusal:
        raise refused(refusal, masking.at, graph.origins) from None
    found = {name: masking.of(n, others[name])[0] for name, n in results.items()}
    for name in graph.updates:
        if not all(map(is_fixed, found[f"update {name}"].layout)):
            message = f"the array {name!r} is updated by values of which there are as many as a length that varies"
            raise PaddingError(with_user_location(message, help=WAY_OUT))
    outputs = {name: found[name].node for name in graph.outputs}
    layouts = {name: tuple(map(extents.named, found[name].layout)) for name in graph.outputs}
    if masked:
        outputs[masked] = masking.filled(Value(outputs[masked], layouts[masked]), None, 0)
    updates = {name: found[f"update {name}"].node for name in graph.updates}
    compared = {name: min(n, extents.third[name]) for name, n in extents.other.items()}
    new = Graph(graph.inputs, outputs, updates, {**origins, **graph.origins})
    read = {n for n in new.nodes() if n.op.name == "input"}
    lengths = {n.attrs["name"]: n for n in map(length_input, extents.padded) if n in read}
    inputs_read = {**graph.inputs, **lengths}
    live = {*new.nodes(), *inputs_read.values()}
    kept = {n: origin for n, origin in new.origins.items() if n in live}
    return Masked(Graph(inputs_read, outputs, updates, kept), layouts, masking.least, compared)


def _results(graph: Graph) -> dict[str, Node]:
    return {**graph.outputs, **{f"update {name}": n for name, n in graph.updates.items()}}


WAY_OUT = 'name the axis in sizes={...: "exact"}, or leave dynamic out: then each length is compiled for itself'


def refused(refusal: Refusal, at: Node | None, origins: Mapping[Node, Origin]) -> PaddingError:
    """The error for a program that cannot be computed on padded arrays."""
    if at is None:
        return PaddingError(with_user_location(f"dynamic: {refusal}", help=WAY_OUT))
    origin = origins.get(at)
    line = f"\n  at {origin.file}:{origin.line}" if origin is not None and origin.file else ""
    scope = f" in {origin.scope}" if origin is not None and line and origin.scope else ""
    types = ", ".join(str(t) for s in at.src for t in s.types)
    message = f"dynamic: {at.op.name}({types}) cannot be computed on padded arrays: {refusal}{line}{scope}"
    return PaddingError(f"{message}\n  help: {WAY_OUT}")
