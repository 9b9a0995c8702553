"""Loops: Scan, for every kind of recurrent layer too."""

from __future__ import annotations

from gluongraph.ir.graph import Node
from gluongraph.onnx.export.rules.terms import Body, Made, Several, Term
from gluongraph.onnx.export.rules.view import View, rule


@rule("get_tuple_element")
def item(view: View, n: Node) -> Made | None:
    """One of the outputs of the operator that its source is; the writer picks it."""
    return n.src[0]


@rule("scan")
def scan(view: View, n: Node) -> Made | None:
    """Scan: carries, then slices; what is the same in every turn the body reads from around it."""
    body, carries, slices = n.attrs["body"], n.attrs["carries"], n.attrs["xs"]
    leaves = list(body.inputs.values())
    read = {each.attrs["index"] for each in view.users.get(n, ()) if each.op.name == "get_tuple_element"}
    stacked = [k for k in range(carries, len(n.types)) if k in read]
    results = list(body.outputs.values())
    kept = (*results[:carries], *(results[k] for k in stacked))
    count = carries + slices
    outer = dict(zip(leaves[count:], n.src[count:], strict=True))
    attrs: dict[str, object] = {"body": Body(body, outer, kept), "num_scan_inputs": slices}
    if n.attrs["reverse"]:
        attrs["scan_input_directions"] = (1,) * slices
        attrs |= {"scan_output_directions": (1,) * len(stacked)} if stacked else {}
    if not slices:
        raise view.refused(n, "a loop that reads no array turn by turn; Scan needs one")
    places = {k: carries + place for place, k in enumerate(stacked)} | {k: k for k in range(carries)}
    outputs = tuple(places.get(k) for k in range(len(n.types)))
    return Several(Term("Scan", n.src[:count], attrs), outputs)
