"""The walk over two traces of a program that rewrites it for padded arrays.

The program is traced for the padded extents, and for others. The graphs are walked side by side, so that what
depends on the lengths shows itself: extents, and numbers such as the 1/n of a mean. For each pair of nodes a rule says
where the padding of the result lies, and masks a source with the neutral element where the op would mix padding with
valid elements. Every valid element of every value then equals that of a program for the exact extents, and so do its
gradients, which are derived from the rewritten graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from gluongraph import ops
from gluongraph.eager.function import leaf
from gluongraph.errors import Origin
from gluongraph.ir.composite import inline, results_of
from gluongraph.ir.graph import Node, Op, TensorType, recording_origins
from gluongraph.tracing.padding.layout import (
    Axis,
    Extents,
    Factor,
    Layout,
    Refusal,
    fixed,
    is_fixed,
    joined,
    shown,
    sizes,
)
from gluongraph.tracing.padding.numbers import number_of
from gluongraph.tracing.padding.table import REFUSED, RULES, Rule

LENGTH = "length:"  # inputs of the graph: the valid lengths, i32


class Value(NamedTuple):
    """A rewritten value, and where its padding lies."""

    node: Node
    layout: Layout


def length_input(name: str) -> Node:
    """The input with the valid length of a free axis."""
    return leaf(LENGTH + name, TensorType((), "i32"))


def _check_same(a: Node, b: Node) -> None:
    if a.op is not b.op or len(a.src) != len(b.src):
        raise Refusal(f"for another length the program computes {b.op.name} here, not {a.op.name}")


def _same(origin: Origin | None) -> Origin | None:
    return origin


def kept(a: Node, *xs: Value) -> Node:
    """The same operation on rewritten sources."""
    return a.on(tuple(x.node for x in xs))


class Masking:
    """A walk over two traces of one program, or over the bodies of a loop in them."""

    def __init__(self, extents: Extents, inputs: Mapping[str, Layout], least: dict[str, int] | None = None):
        self.extents, self.inputs = extents, inputs
        self.least: dict[str, int] = {} if least is None else least
        self.at: Node | None = None  # the node that is being rewritten
        self._known: dict[tuple[Node, Node], tuple[Value, ...]] = {}
        self._third: Node | None = None  # the node that is being rewritten, in the third trace

    @property
    def third(self) -> Node:
        """The node that is being rewritten, in the third trace."""
        assert self._third is not None
        return self._third

    def of(self, a: Node, b: Node) -> tuple[Value, ...]:
        """The rewritten results of a node that has been visited."""
        return self._known[a, b]

    def walk(
        self,
        traces: Iterable[tuple[Node, Node, Node]],
        origins: Mapping[Node, Origin] | None = None,
        made: dict[Node, Origin] | None = None,
    ) -> None:
        """Rewrite these nodes, each given in all traces, and all that they are computed from, sources first."""
        stack = list(traces)[::-1]
        while stack:
            a, b, c = stack[-1]
            if (a, b) in self._known:
                stack.pop()
                continue
            _check_same(a, b)
            _check_same(a, c)
            sources = [] if a is b else zip(a.src, b.src, c.src, strict=True)
            waiting = [each for each in sources if each[:2] not in self._known]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if origins is None or made is None:
                self._known[a, b] = self.rewritten(a, b, c)
                continue
            self.at = a
            origin = origins.get(a)
            with recording_origins(partial(_same, origin)) as new:
                self._known[a, b] = self.rewritten(a, b, c)
            for node, where in new.items():
                made.setdefault(node, where)

    def rewritten(self, a: Node, b: Node, c: Node) -> tuple[Value, ...]:
        """The results of a node on rewritten sources."""
        if a is b:  # it depends on no length
            if a is not c:
                raise Refusal("it is the same for some lengths, and another for others")
            nodes = results_of(a) if isinstance(a.type, tuple) else (a,)
            return tuple(Value(n, tuple(map(fixed, n.shape))) for n in nodes)
        if a.op.name == "get_tuple_element":
            return (self._known[a.src[0], b.src[0]][a.attrs["index"]],)
        rule = self.rule(a.op)
        for name, value in a.attrs.items():
            if name not in rule.varies and b.attrs.get(name) != value:
                raise Refusal(f"its {name} depends on a length: {value} and {b.attrs.get(name)}")
        sources = [self._known[pair] for pair in zip(a.src, b.src, strict=True)]
        self._third = c
        found = rule.function(self, a, b, *(s[0] for s in sources))
        values = (found,) if isinstance(found, Value) else tuple(found)
        for value, wanted, other, third in zip(values, a.types, b.types, c.types, strict=True):
            shapes = sizes(value.layout), self.extents.third_shape(value.layout, third.shape)
            if shapes != ((wanted.shape, other.shape), third.shape):
                raise Refusal("its result follows the lengths in a way that is not known")
        return values

    def rule(self, op: Op) -> Rule:
        """The rule of an op.

        Raises:
            Refusal: there is none.
        """
        if (found := RULES.get(op.name)) is not None:
            return found
        if op.name in REFUSED:
            raise Refusal(REFUSED[op.name])
        if op.kind == "elementwise":
            return Rule(Masking.elementwise)
        if op.body is not None:
            return Rule(Masking.inlined, frozenset({"shape"}))
        if op.kind == "random":
            return Rule(Masking.uniform, frozenset({"shape"}))
        raise Refusal("there is no rule for it")

    def elementwise(self, a: Node, b: Node, *xs: Value) -> Value:
        """Padding lies where it does in the sources."""
        return Value(kept(a, *xs), joined([x.layout for x in xs]))

    def uniform(self, a: Node, b: Node, *xs: Value) -> Value:
        """Elements that do not depend on their place: padding may lie anywhere."""
        return Value(kept(a, *xs), tuple(self.extents.axis(*each) for each in zip(a.shape, b.shape, strict=True)))

    def inlined(self, a: Node, b: Node, *xs: Value) -> tuple[Value, ...]:
        """A composite or call by its body; whole, if the body needs no mask."""
        bodies = inline(a), inline(b), inline(self.third)
        self.walk(zip(*bodies, strict=True))
        values = [self._known[pair][0] for pair in zip(*bodies[:2], strict=True)]
        whole = a.on(tuple(x.node for x in xs))
        if all(v.node is n for v, n in zip(values, inline(whole), strict=True)):
            nodes = results_of(whole)
            return tuple(Value(n, v.layout) for n, v in zip(nodes, values, strict=True))
        return tuple(values)

    # -- lengths and masks

    def length(self, f: Factor) -> Node:
        """How many elements of a free factor are valid: i32, of shape ()."""
        n = length_input(f.name)
        return n + f.offset if f.offset else n

    def need(self, f: Factor, count: int) -> None:
        """Note that so many elements of a free factor must be valid."""
        self.least[f.name] = max(self.least.get(f.name, 0), count - f.offset)

    def single(self, axis: Axis, what: str) -> Factor:
        """The free factor that an axis is.

        Raises:
            Refusal: it is a product.
        """
        axis = self.extents.named(axis)
        if len(axis) != 1:
            raise Refusal(f"{what} of {shown(axis)} elements")
        return axis[0]

    def leading(self, axis: Axis, what: str) -> Axis:
        """The axis, whose valid elements come first.

        Raises:
            Refusal: they do not: a free factor is behind another.
        """
        axis = self.extents.named(axis)
        if not is_fixed(axis[1:]):
            raise Refusal(f"{what} of {shown(axis)} elements")
        return axis

    def count(self, axes: Iterable[Axis]) -> Node:
        """How many elements along these axes are valid: f32, of shape ()."""
        total: Node = ops.const(1.0)
        for axis in axes:
            for f in self.extents.named(axis):
                total = total * (ops.cast(self.length(f), "f32") if f.name else float(f.size))
        return total

    def valid(self, axis: Axis) -> Node | None:
        """Which elements along an axis are valid: bools of shape (size,); None if all are."""
        axis = self.extents.named(axis)
        (total,), _ = sizes((axis,))
        index, inner, found = ops.iota((total,)), total, None
        for k, f in enumerate(axis):
            inner //= f.size
            if not f.name:
                continue
            at = ops.floordiv(index, inner) if inner > 1 else index
            at = ops.mod(at, f.size) if k else at
            here = ops.less(at, self.length(f))
            found = here if found is None else ops.logical_and(found, here)
        return found

    def mask(self, layout: Layout, axes: Sequence[int] | None = None) -> Node | None:
        """Which elements are valid along these axes, by default all: of size 1 along the others; None if all are."""
        found: Node | None = None
        for number, axis in enumerate(layout):
            if (axes is None or number in axes) and (vector := self.valid(axis)) is not None:
                line = ops.reshape(vector, tuple(-1 if k == number else 1 for k in range(len(layout))))
                found = line if found is None else ops.logical_and(found, line)
        return found

    def filled(self, x: Value, axes: Sequence[int] | None, neutral: float | int) -> Node:
        """The value with the neutral element in place of the padding along these axes, by default all."""
        mask = self.mask(x.layout, axes)
        return x.node if mask is None else ops.where(ops.broadcast_to(mask, x.node.shape), x.node, neutral)

    def number(self, values: tuple[float | int, float | int, float | int], dtype: str) -> Node:
        """A number that depends on the lengths, given what it is in each trace."""
        lengths = {name: length_input(name) for name in self.extents.padded}
        return number_of(values, dtype, self.extents, lengths)
