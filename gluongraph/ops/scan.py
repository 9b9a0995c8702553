"""The structured loop: a body graph applied in each iteration to slices of arrays, with carried values.

    c, y[t] = body(c, x[t], k)        for t = 0 .. length - 1, or backwards with `reverse`

The body's inputs are c0.., x0.., k0.., its outputs c0.., y0..; the node gives the last carries and then the stacked ys.
The gradient is a scan in the other direction over the initial carries of the iterations. It reads what the body
outputs instead of recomputing it, and defers products: the sum over t of a[t]ᵀ b[t] is one GEMM of stacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import numpy as np

from gluongraph.dtypes import is_float
from gluongraph.ir.composite import substitute
from gluongraph.ir.graph import Graph, Node, Op, TensorType
from gluongraph.ops import constants, elementwise, movement, reduce
from gluongraph.ops.checks import misfit
from gluongraph.ops.constants import is_zero
from gluongraph.ops.control import apply_body, check_arguments, gradients_of
from gluongraph.ops.loops import Nodes, fresh, in_body, loop, over
from gluongraph.ops.matmul import matmul
from gluongraph.ops.samples import array

Step = Callable[[Nodes, Nodes], tuple[Sequence[Node], Sequence[Node]]]


def scan(
    step: Step, init: Sequence[Node], xs: Sequence[Node] = (), length: int | None = None, reverse: bool = False
) -> tuple[Nodes, Nodes]:
    """The last carries, and the stacked ys, of `carries, ys = step(carries, x[t])` for every t along axis 0 of xs.

    Whatever else `step` reads is loop-invariant, random draws too. The gradient reads values that are among the ys, and
    recomputes all other values of an iteration.

    Raises:
        ShapeError: arrays of different lengths, or carries whose type changes.
    """
    if length is None:
        if not xs or not xs[0].ty.rank:
            raise misfit("scan", "the number of iterations is not known", help="give xs or length=")
        length = xs[0].shape[0]
    _check_lengths([x.ty for x in xs], length)
    carries = [fresh(c.ty) for c in init]
    slices = [fresh(TensorType(x.shape[1:], x.dtype)) for x in xs]
    after, ys = step(tuple(carries), tuple(slices))
    start, stacks = dict(zip(carries, init, strict=True)), dict(zip(slices, xs, strict=True))
    return loop(start, stacks, {}, after, ys, length, reverse)


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
        raise misfit("scan", f"needs one iteration or more, not {length}", *xs)
    if any(not x.rank or x.shape[0] != length for x in xs):
        raise misfit("scan", f"what is scanned has {length} elements along axis 0", *xs)


def run(
    body: Callable[..., tuple[Any, ...]], *args: Any, length: int, carries: int, xs: int, reverse: bool
) -> tuple[Any, ...]:
    """Run the loop in numpy; `body(*carries, *slices, *constants)` returns the outputs of the body."""
    state, stacks, consts = args[:carries], args[carries : carries + xs], args[carries + xs :]
    outputs = []
    for t in range(length - 1, -1, -1) if reverse else range(length):
        found = body(*state, *(x[t] for x in stacks), *consts)
        state = found[:carries]
        outputs.append(found[carries:])
    columns = zip(*(reversed(outputs) if reverse else outputs), strict=True)
    return (*state, *map(np.stack, columns))


def _scan(*args: Any, body: Graph, **how: Any) -> tuple[Any, ...]:
    return run(partial(apply_body, body=body), *args, **how)


def _scan_grad(
    gs: Nodes, ys: Nodes, *args: Node, body: Graph, length: int, carries: int, xs: int, reverse: bool
) -> tuple[Node | None, ...]:
    """A scan that carries the gradients of the carries, and those sums over iterations that cannot be deferred."""
    iteration = _Iteration(gs, ys, args, body, length, carries, xs, reverse)
    found = iteration.gradients()
    sliced = [k for k in found if carries <= k < carries + xs]
    constant = [k for k in found if k >= carries + xs]
    later = _Later(length, {*iteration.stacks, *(found[k] for k in sliced)})
    totals = {k: later.sum(found[k]) for k in sorted(constant, key=lambda k: found[k].op.name != "matmul")}

    running = {k: fresh(iteration.leaves[k].ty) for k in constant if totals[k] is None}
    moving = [k for k in range(carries) if is_float(iteration.leaves[k].dtype)]
    start = {head: gs[k] for k in moving if (head := iteration.heads[k]) is not None}
    start |= {total: constants.zeros(total.ty) for total in running.values()}
    after = [found.get(k) or constants.zeros(iteration.leaves[k].ty) for k in moving] + [
        s + found[k] for k, s in running.items()
    ]
    columns = list(dict.fromkeys([*(found[k] for k in sliced), *later.leaves]))
    iteration.add_beginnings(in_body((*after, *columns), {*iteration.stacks, *start}))
    columns = [n for n in columns if n not in iteration.stacks]
    consts = {iteration.leaves[k]: args[k] for k in range(carries + xs, len(args))}
    finals, stacked = loop(start, iteration.stacks, consts, after, columns, length, not reverse)

    stacks = iteration.stacks | dict(zip(columns, stacked, strict=True))
    whole = {leaf: stacks[n] for n, leaf in later.leaves.items()}
    grads = dict(zip([*moving, *running], finals, strict=True)) | {k: stacks[found[k]] for k in sliced}
    grads |= {k: over(total, whole) for k, total in totals.items() if total is not None}
    return tuple(grads.get(k) for k in range(len(args)))


class _Iteration:
    """An iteration to be differentiated: its body on new leaves; `stacks`: value -> its values of all iterations."""

    def __init__(
        self, gs: Nodes, ys: Nodes, args: Nodes, body: Graph, length: int, carries: int, xs: int, reverse: bool
    ):
        self.ys, self.args, self.body = ys, args, body
        self.length, self.carries, self.xs, self.reverse = length, carries, xs, reverse
        self.leaves = self._leaves()
        self.results = substitute(body, self.leaves)
        handed_out = zip(self.results[carries:], ys[carries:], strict=True)
        self.stacks = {n: y for n, y in handed_out if n.src or n in self.leaves[:carries]}
        self.stacks |= {self.leaves[k]: args[k] for k in range(carries, carries + xs)}
        silent = [k >= carries and is_zero(g) for k, g in enumerate(gs)]
        self.heads = [None if no else fresh(n.ty) for no, n in zip(silent, self.results, strict=True)]
        heads = zip(self.heads[carries:], gs[carries:], strict=True)
        self.stacks |= {head: g for head, g in heads if head is not None}

    def _leaves(self) -> Nodes:
        return tuple(fresh(n.ty) for n in self.body.inputs.values())

    def gradients(self) -> dict[int, Node]:
        """Return the gradients of the arguments that have one, by position."""
        wrt = [k for k, leaf in enumerate(self.leaves) if is_float(leaf.dtype)]
        known = zip(wrt, gradients_of(self.results, self.heads, [self.leaves[k] for k in wrt]), strict=True)
        return {k: g for k, g in known if g is not None}

    def add_beginnings(self, read: Container[Node]) -> None:
        """Stack the initial carries of iterations that are read: ys shifted by one iteration, or of a second loop."""
        wanted = [k for k in range(self.carries) if self.leaves[k] in read and self.leaves[k] not in self.stacks]
        outputs = self.results[self.carries :]
        for k in wanted:
            if self.results[k] in outputs:  # the body outputs this carry unchanged
                y, first = self.ys[self.carries + outputs.index(self.results[k])], movement.expand_dims(self.args[k], 0)
                rest = movement.part(y, 0, 1, self.length) if self.reverse else movement.part(y, 0, 0, self.length - 1)
                self.stacks[self.leaves[k]] = (
                    movement.concat(rest, first) if self.reverse else movement.concat(first, rest)
                )
        if kept := [k for k in wanted if self.leaves[k] not in self.stacks]:
            self.stacks |= dict(zip((self.leaves[k] for k in kept), self._saved(kept), strict=True))

    def _saved(self, kept: Sequence[int]) -> Nodes:
        """Return the initial carries of all iterations, by running the loop forward again."""
        leaves, cuts = self._leaves(), (0, self.carries, self.carries + self.xs, len(self.args))
        start, stacks, consts = (
            dict(zip(leaves[a:b], self.args[a:b], strict=True)) for a, b in itertools.pairwise(cuts)
        )
        after = substitute(self.body, leaves)[: self.carries]
        return loop(start, stacks, consts, after, [leaves[k] for k in kept], self.length, self.reverse)[1]


class _Later:
    """Sums over all iterations, computed once after the loop from stacks of the iterations' values.

    `leaves` stand for the stacks, by the value that is stacked; the stacks of those in `known` exist anyway.
    """

    def __init__(self, length: int, known: Container[Node]):
        self.length, self.known = length, known
        self.leaves: dict[Node, Node] = {}

    def sum(self, g: Node) -> Node | None:
        """Return the sum of g over all iterations; None if it must be accumulated in the loop."""
        if g.op.name == "matmul" and g.ty.rank == 2 and g.attrs["ta"] and not g.attrs["tb"]:
            a, b = (self._stack(s) for s in g.src)
            return g.op(movement.reshape(a, (-1, a.shape[-1])), movement.reshape(b, (-1, b.shape[-1])), **g.attrs)
        if g.op.name == "sum" and (g.src[0] in self.known or g.src[0] in self.leaves):
            total = reduce.sum(self._stack(g.src[0]), axis=(0, *(a + 1 for a in g.attrs["axes"])))
            return movement.reshape(total, g.shape)
        if g.op.name in ("reshape", "transpose") and (inner := self.sum(g.src[0])) is not None:
            return g.on((inner,))
        return None

    def _stack(self, n: Node) -> Node:
        if n not in self.leaves:
            self.leaves[n] = fresh(TensorType((self.length, *n.shape), n.dtype))
        return self.leaves[n]


def _samples(rng: np.random.Generator) -> Any:
    """h = tanh(h w + x) with a counter beside it, in both directions; y is h itself, or h times the counter."""
    for dtype, reverse, plain in (("f32", False, True), ("f64", True, True), ("f64", False, False)):
        leaves = {
            "c0": constants.input("c0", TensorType((2, 3), dtype)),
            "c1": constants.input("c1", TensorType((), "i32")),
            "x0": constants.input("x0", TensorType((2, 3), dtype)),
            "k0": constants.input("k0", TensorType((3, 3), dtype)),
        }
        h, number, x, w = leaves.values()
        new = elementwise.tanh(matmul(h, w) + x)
        outputs = {"c0": new, "c1": number + 1, "y0": new if plain else new * h * elementwise.cast(number, dtype)}
        arrays = (array(rng, (2, 3), dtype), np.asarray(1, np.int32), array(rng, (5, 2, 3), dtype))
        attrs = {"body": Graph(leaves, outputs), "length": 5, "carries": 2, "xs": 1, "reverse": reverse}
        yield (*arrays, array(rng, (3, 3), dtype)), attrs


SCAN = Op(
    "scan",
    kind="control",
    pattern="scan",
    infer=_scan_type,
    numpy=_scan,
    grad=_scan_grad,
    samples=_samples,
    doc="A body graph applied in each iteration: the last carries, and the stacked ys.",
)
