"""The structured loop: a body graph applied turn after turn, over slices of arrays, with values carried along.

    c, y[t] = body(c, x[t], k)        for t = 0 .. length - 1, or backwards with `reverse`

The body's inputs are c0.., x0.., k0.., its outputs c0.., y0..; the node gives the last carries and then the stacked ys.
The gradient is a scan in the other direction over the carries that the turns began with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir import Graph, Node, Op, TensorType, topological
from gluongraph.ops.build import misfit
from gluongraph.ops.composite import substitute
from gluongraph.ops.control import apply_body, check_arguments, gradients_of
from gluongraph.ops.leaf import INPUT, LITERAL, is_zero
from gluongraph.ops.samples import array

Nodes = tuple[Node, ...]
Step = Callable[[Nodes, Nodes], tuple[Sequence[Node], Sequence[Node]]]
_SERIAL = count()


def scan(
    step: Step, init: Sequence[Node], xs: Sequence[Node] = (), length: int | None = None, reverse: bool = False
) -> tuple[Nodes, Nodes]:
    """The last carries, and the stacked ys, of `carries, ys = step(carries, x[t])` for every t along axis 0 of xs.

    Whatever else `step` reads stays the same in every turn, random draws too.

    Raises:
        ShapeError: arrays of different lengths, or carries whose type changes.
    """
    if length is None:
        if not xs or not xs[0].ty.rank:
            raise misfit("scan", "the number of turns is not known", help="give xs or length=")
        length = xs[0].shape[0]
    _check_lengths([x.ty for x in xs], length)
    carries = [_fresh(c.ty) for c in init]
    slices = [_fresh(TensorType(x.shape[1:], x.dtype)) for x in xs]
    after, ys = step(tuple(carries), tuple(slices))
    start, stacks = dict(zip(carries, init, strict=True)), dict(zip(slices, xs, strict=True))
    return _loop(start, stacks, {}, after, ys, length, reverse)


def _fresh(type: TensorType) -> Node:
    """A leaf that is no other."""
    return ops.input(f"scan.{next(_SERIAL)}", type)


def _loop(
    start: Mapping[Node, Node],
    stacks: Mapping[Node, Node],
    consts: Mapping[Node, Node],
    after: Sequence[Node],
    ys: Sequence[Node],
    length: int,
    reverse: bool,
) -> tuple[Nodes, Nodes]:
    """A scan whose body is written on leaves: the tables say what each leaf begins with, is sliced from, or is.

    Values that do not depend on the leaves come in as constants; leaves that nobody reads are left out.
    """
    results = (*after, *ys)
    read = set(topological(results))
    stacks = {leaf: x for leaf, x in stacks.items() if leaf in read}
    consts = {leaf: k for leaf, k in consts.items() if leaf in read}
    consts |= {n: n for n in _outer(results, {*start, *stacks, *consts})}
    tables = {"c": start, "x": stacks, "k": consts}
    leaves = {leaf: ops.input(f"{letter}{i}", leaf.ty) for letter, t in tables.items() for i, leaf in enumerate(t)}
    outputs = {f"c{i}": n for i, n in enumerate(after)} | {f"y{i}": n for i, n in enumerate(ys)}
    body = _renamed(outputs, leaves)
    made = SCAN(
        *(n for table in tables.values() for n in table.values()),
        body=body,
        length=length,
        carries=len(start),
        xs=len(stacks),
        reverse=reverse,
    )
    found = ops.items(made)
    return found[: len(start)], found[len(start) :]


def _outer(results: Iterable[Node], leaves: set[Node]) -> list[Node]:
    """The values that are read by what depends on the leaves (or are results) and come from outside the loop."""
    order = topological(results)
    inside: set[Node] = set()
    outside: set[Node] = set()
    for n in order:
        if n in leaves or any(s in inside for s in n.src):
            inside.add(n)
        elif n.op in (INPUT, LITERAL) or any(s in outside for s in n.src):
            outside.add(n)
    crossing = dict.fromkeys(s for n in order if n in inside and n not in leaves for s in n.src if s in outside)
    return list(crossing | dict.fromkeys(n for n in results if n in outside))


def _renamed(outputs: Mapping[str, Node], leaves: Mapping[Node, Node]) -> Graph:
    """The body: the outputs with input leaves in place of `leaves`, whose sources are not looked at."""
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


# -- the op


def _scan_type(
    *args: TensorType, body: Graph, length: int, carries: int, xs: int, reverse: bool
) -> tuple[TensorType, ...]:
    stacked = args[carries : carries + xs]
    _check_lengths(stacked, length)
    slices = (TensorType(x.shape[1:], x.dtype) for x in stacked)
    check_arguments("scan", (*args[:carries], *slices, *args[carries + xs :]), body)
    results = tuple(n.ty for n in body.outputs.values())
    if results[:carries] != args[:carries]:
        raise misfit("scan", "the body changes the type of a carry", *args[:carries], *results[:carries])
    return (*args[:carries], *(TensorType((length, *y.shape), y.dtype) for y in results[carries:]))


def _check_lengths(xs: Sequence[TensorType], length: int) -> None:
    if length < 1:
        raise misfit("scan", f"needs one turn or more, not {length}", *xs)
    if any(not x.rank or x.shape[0] != length for x in xs):
        raise misfit("scan", f"what is scanned has {length} elements along axis 0", *xs)


def _scan(*args: Any, body: Graph, length: int, carries: int, xs: int, reverse: bool) -> tuple[Any, ...]:
    state, stacks, consts = args[:carries], args[carries : carries + xs], args[carries + xs :]
    turns = []
    for t in range(length - 1, -1, -1) if reverse else range(length):
        found = apply_body(*state, *(x[t] for x in stacks), *consts, body=body)
        state = found[:carries]
        turns.append(found[carries:])
    columns = zip(*(reversed(turns) if reverse else turns), strict=True)
    return (*state, *map(np.stack, columns))


def _scan_grad(
    gs: Nodes, ys: Nodes, *args: Node, body: Graph, length: int, carries: int, xs: int, reverse: bool
) -> tuple[Node | None, ...]:
    """Carries backwards the gradients of the carries, and the sums of the gradients of what stays the same."""
    leaves = tuple(_fresh(n.ty) for n in body.inputs.values())
    results = substitute(body, leaves)
    heads = [
        None if k >= carries and is_zero(g) else _fresh(n.ty) for k, (g, n) in enumerate(zip(gs, results, strict=True))
    ]
    wrt = [k for k, leaf in enumerate(leaves) if is_float(leaf.dtype)]
    known = zip(wrt, gradients_of(results, heads, [leaves[k] for k in wrt]), strict=True)
    found = {k: g for k, g in known if g is not None}

    carried = [k for k in wrt if k < carries]
    sliced = [k for k in found if carries <= k < carries + xs]
    summed = {k: _fresh(leaves[k].ty) for k in found if k >= carries + xs}
    start = {head: gs[k] for k in carried if (head := heads[k]) is not None}
    start |= {total: ops.zeros(total.ty) for total in summed.values()}
    after = [found.get(k) or ops.zeros(leaves[k].ty) for k in carried] + [s + found[k] for k, s in summed.items()]
    columns = [found[k] for k in sliced]

    read = set(topological((*after, *columns)))
    wanted = [k for k in range(carries) if leaves[k] in read]
    began = _beginnings(wanted, ys, args, body, length, carries, xs, reverse)
    stacks = {leaves[k]: x for k, x in began.items()}
    stacks |= {leaves[k]: args[k] for k in range(carries, carries + xs)}
    stacks |= {head: g for head, g in zip(heads[carries:], gs[carries:], strict=True) if head is not None}
    consts = {leaves[k]: args[k] for k in range(carries + xs, len(args))}
    finals, stacked = _loop(start, stacks, consts, after, columns, length, not reverse)
    grads = dict(zip([*carried, *summed, *sliced], (*finals, *stacked), strict=True))
    return tuple(grads.get(k) for k in range(len(args)))


def _beginnings(
    wanted: Sequence[int], ys: Nodes, args: Nodes, body: Graph, length: int, carries: int, xs: int, reverse: bool
) -> dict[int, Node]:
    """The carries that each turn began with, stacked: ys shifted by a turn, or from a forward scan that keeps them."""
    results = tuple(body.outputs.values())
    found: dict[int, Node] = {}
    for k in wanted:
        if results[k] in results[carries:]:  # the body hands this carry out as it is
            y = ys[carries + results[carries:].index(results[k])]
            first = ops.expand_dims(args[k], 0)
            rest = ops.part(y, 0, 1, length) if reverse else ops.part(y, 0, 0, length - 1)
            found[k] = ops.concat(rest, first) if reverse else ops.concat(first, rest)
    if kept := [k for k in wanted if k not in found]:
        leaves = tuple(_fresh(n.ty) for n in body.inputs.values())
        start, stacks, consts = (
            dict(zip(leaves[a:b], args[a:b], strict=True))
            for a, b in ((0, carries), (carries, carries + xs), (carries + xs, len(args)))
        )
        after = substitute(body, leaves)[:carries]
        _, saved = _loop(start, stacks, consts, after, [leaves[k] for k in kept], length, reverse)
        found.update(zip(kept, saved, strict=True))
    return found


def _samples(rng: np.random.Generator) -> Any:
    """h = tanh(h w + x) with a counter beside it, in both directions; y is h itself, or h times the counter."""
    for dtype, reverse, plain in (("f32", False, True), ("f64", True, True), ("f64", False, False)):
        leaves = {
            "c0": ops.input("c0", TensorType((2, 3), dtype)),
            "c1": ops.input("c1", TensorType((), "i32")),
            "x0": ops.input("x0", TensorType((2, 3), dtype)),
            "k0": ops.input("k0", TensorType((3, 3), dtype)),
        }
        h, turn, x, w = leaves.values()
        new = ops.tanh(ops.matmul(h, w) + x)
        outputs = {"c0": new, "c1": turn + 1, "y0": new if plain else new * h * ops.cast(turn, dtype)}
        arrays = (array(rng, (2, 3), dtype), np.asarray(1, np.int32), array(rng, (5, 2, 3), dtype))
        attrs = {"body": Graph(leaves, outputs), "length": 5, "carries": 2, "xs": 1, "reverse": reverse}
        yield (*arrays, array(rng, (3, 3), dtype)), attrs


SCAN = Op(
    "scan",
    kind="control",
    infer=_scan_type,
    numpy=_scan,
    grad=_scan_grad,
    samples=_samples,
    doc="A body graph applied turn after turn: the last carries, and the stacked ys.",
)
