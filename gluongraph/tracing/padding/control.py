"""Rules of control. In a loop over a padded axis, iterations of padding change no carry."""

from __future__ import annotations

from collections.abc import Sequence

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node, TensorType, topological
from gluongraph.tracing.padding.layout import Axis, Layout, Refusal, is_fixed, joined
from gluongraph.tracing.padding.masking import LENGTH, Masking, Value, kept
from gluongraph.tracing.padding.table import rule


@rule("depends_on")
def _depends_on(m: Masking, a: Node, b: Node, x: Value, *first: Value) -> Value:
    return Value(kept(a, x, *first), x.layout)


@rule("call", varies=("body",))
def _call(m: Masking, a: Node, b: Node, *xs: Value) -> tuple[Value, ...]:
    return m.inlined(a, b, *xs)


_ROUNDS = 8  # a carry that begins without padding takes on that of what is added to it


@rule("scan", varies=("body", "length"))
def _scan(m: Masking, a: Node, b: Node, *args: Value) -> tuple[Value, ...]:
    carries, xs = a.attrs["carries"], a.attrs["xs"]
    along = _scanned(m, a, b, args[carries : carries + xs])
    layouts = [
        *(x.layout for x in args[:carries]),
        *(x.layout[1:] for x in args[carries : carries + xs]),
        *(x.layout for x in args[carries + xs :]),
    ]
    body = a.attrs["body"]
    results = _results(m, (body, b.attrs["body"], m.third.attrs["body"]), layouts, carries)
    outputs = [r.node for r in results]
    inputs, added = list(body.inputs.items()), []
    if not is_fixed(along):
        added.append(_mask_steps(m, along, inputs, outputs, carries, xs))
    lengths = [n for n in topological(outputs) if n.op.name == "input" and n.attrs["name"].startswith(LENGTH)]
    inputs += [(n.attrs["name"], n) for n in lengths]
    new = Graph(dict(inputs), dict(zip(body.outputs, outputs, strict=True)))
    sources = [*(x.node for x in args[: carries + xs]), *added, *(x.node for x in args[carries + xs :]), *lengths]
    made = ops.get_tuple_elements(a.op(*sources, **{**a.attrs, "body": new, "xs": xs + len(added)}))
    found = [r.layout for r in results[:carries]] + [(along, *r.layout) for r in results[carries:]]
    return tuple(Value(n, layout) for n, layout in zip(made, found, strict=True))


def _scanned(m: Masking, a: Node, b: Node, xs: Sequence[Value]) -> Axis:
    """The axis that is scanned."""
    (axis,) = joined([(m.extents.axis(a.attrs["length"], b.attrs["length"]),), *((x.layout[0],) for x in xs)])
    return axis if is_fixed(axis) else (m.single(axis, "it is a loop over an axis"),)


def _results(m: Masking, bodies: tuple[Graph, Graph, Graph], layouts: list[Layout], carries: int) -> list[Value]:
    """What a body gives, with carries of the same layout as those that it gets."""
    for _ in range(_ROUNDS):
        inner = Masking(m.extents, dict(zip(bodies[0].inputs, layouts, strict=True)), m.least)
        outputs = list(zip(*(body.outputs.values() for body in bodies), strict=True))
        inner.walk(outputs)
        results = [inner.of(a, b)[0] for a, b, _ in outputs]
        carried = [joined([r.layout, old]) for r, old in zip(results[:carries], layouts[:carries], strict=True)]
        if carried == layouts[:carries]:
            return results
        layouts = [*carried, *layouts[carries:]]
    raise Refusal("the extents of what it carries vary")


def _mask_steps(
    m: Masking, along: Axis, inputs: list[tuple[str, Node]], outputs: list[Node], carries: int, xs: int
) -> Node:
    """Keep the carries as they are in iterations that are padding. Gives what says which are not, to be scanned."""
    valid = m.valid(along)
    assert valid is not None
    here = ops.input(f"x{xs}", TensorType((), "bool"))
    masked = [
        ops.where(ops.broadcast_to(here, made.shape), made, old)
        for made, (_, old) in zip(outputs[:carries], inputs[:carries], strict=True)
    ]
    same = dict(zip(outputs[:carries], masked, strict=True))
    outputs[carries:] = [same.get(made, made) for made in outputs[carries:]]  # one value: the gradient reads it
    outputs[:carries] = masked
    inputs.insert(carries + xs, (here.attrs["name"], here))
    return valid
