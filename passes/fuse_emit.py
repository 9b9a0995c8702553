"""Replaces each group of `fuse` by a `fused` node whose body is a graph of its own."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node
from gluongraph.ops.constants import is_zero
from gluongraph.passes.fuse_groups import FusionGroup, FusionGroups, Inlined, adds_rows


class FusedGraphBuilder:
    """Builds the graph of fused nodes. `order` are the nodes, sources first; `preserved_inputs` says which groups also
    store the old values of inputs that they overwrite."""

    def __init__(
        self,
        graph: Graph,
        order: list[Node],
        groups: FusionGroups,
        inlined: Inlined,
        preserved_inputs: dict[FusionGroup, list[Node]],
    ):
        self.graph, self.order, self.groups, self.inlined, self.preserved_inputs = (
            graph,
            order,
            groups,
            inlined,
            preserved_inputs,
        )
        self.preserved_values: dict[Node, Node] = {}  # input -> where its old value has been stored
        self.rank = {n: i for i, n in enumerate(order)}
        self.new: dict[Node, Node] = {n: n for n in order if n.op.name in ("input", "literal")}
        self.origins: dict[Node, Origin] = {}
        self.needed = self._needed()

    def _needed(self) -> set[Node]:
        """Return the computed nodes whose values other groups, or the results, read."""
        needed = set(self.inlined.roots_of(self.graph.results))
        for n in self.order:
            if n in self.inlined:
                continue
            home = self.groups.find(n)
            for s in n.src:
                moved = home is not None and home.is_composite_kernel  # its movement only has effect on its own results
                copied = (
                    s in self.inlined and reads_whole_arrays(n) and not moved
                )  # into memory, by a kernel of its own
                needed.update(
                    root for root in self.inlined.roots_of([s]) if copied or self.groups.find(root) is not home
                )
        return needed

    def build(self) -> Graph:
        """Return the graph of fused nodes."""
        for group in sorted(self.groups.live(), key=lambda d: (d.deps.bit_count(), d.id)):
            nodes = sorted(group.nodes, key=self.rank.__getitem__)
            if group.pattern == "depends_on":
                self.new[nodes[0]] = nodes[0].on(tuple(map(self.stored, nodes[0].src)))
                continue
            self._emit(nodes, group.pattern, self.preserved_inputs.get(group, []))
        taken: set[Node] = set()
        updates = {k: self._result(n, taken) for k, n in self.graph.updates.items()}
        outputs = {k: self._result(n, set(taken)) for k, n in self.graph.outputs.items()}
        return self.graph.with_results(outputs, updates, self.origins)

    def _result(self, n: Node, taken: set[Node]) -> Node:
        """Return n stored in a buffer of its own: inputs, constants, and values that are several results are copied."""
        if n in self.preserved_values and self.preserved_values[n] not in taken:
            taken.add(self.preserved_values[n])
            return self.preserved_values[n]
        stored = root = self.stored(n)
        while root.op.name in ("reshape", "depends_on"):
            root = root.src[0]
        if root.op.name != "get_tuple_element" or root in taken:
            x = ops.input("x0", stored.ty)
            copy = ops.fused(stored, body=Graph({"x0": x}, {"y0": x}), pattern="loop")
            stored = root = ops.get_tuple_element(copy, index=0)
        taken.add(root)
        return stored

    def _emit(self, nodes: list[Node], pattern: str, preserved: list[Node]) -> None:
        """Add a fused node for these nodes and the inputs to preserve; note its results in `self.new` and
        `self.preserved_values`."""
        body = _Body(self, nodes)
        outputs = [n for n in nodes if n in self.needed and not isinstance(n.type, tuple)]
        if pattern in ("scan", "collective"):  # they write all their results, whether these are read or not
            outputs = [ops.get_tuple_element(nodes[0], index=i) for i in range(len(nodes[0].types))]
        fused = body.finish([*outputs, *preserved], pattern)
        self.preserved_values |= {
            n: ops.get_tuple_element(fused, index=i) for i, n in enumerate(preserved, len(outputs))
        }
        origin = next((o for n in reversed(nodes) if (o := self.graph.origins.get(n)) is not None), None)
        for i, n in enumerate(outputs):
            made = self.new[n] = ops.get_tuple_element(fused, index=i)
            if origin is not None:
                self.origins.setdefault(made, origin)
        if origin is not None:
            self.origins.setdefault(fused, origin)

    def stored(self, n: Node) -> Node:
        """Return n as a value in memory, as kernels read it."""
        if (made := self.new.get(n)) is not None:
            return made
        if n.op.name == "reshape":
            made = n.on((self.stored(n.src[0]),))
        elif n.op.name == "stop_gradient":
            made = self.stored(n.src[0])
        else:  # a constant or a broadcast that is needed in memory
            fused = _Body(self, []).finish([n], "loop")
            made = ops.get_tuple_element(fused, index=0)
        self.new[n] = made
        return made


class _Body:
    """The body graph of one group."""

    def __init__(self, builder: FusedGraphBuilder, nodes: list[Node]):
        self.builder, self.inside = builder, set(nodes)
        self.inputs: dict[Node, Node] = {}  # stored value -> body input
        self.made: dict[Node, Node] = {}
        for n in nodes:
            self.made[n] = n.on(tuple(self._source(s, n) for s in n.src))

    def _source(self, s: Node, n: Node) -> Node:
        """Return what n reads for s."""
        if n.op.kind == "collective":
            return self._input(self.builder.stored(s))
        if reads_whole_arrays(n) and not (adds_rows(n) and is_zero(s)):
            return self._operand(s)
        return self._read(s)

    def _operand(self, s: Node) -> Node:
        """Return a source of a contraction or similar op, which reads it from memory."""
        if s in self.inside:
            return self.made[s]
        if s in self.builder.inlined.views or (s.op.name == "reshape" and self._computed_inside(s)):
            return s.on(tuple(map(self._operand, s.src)))
        return self._input(self.builder.stored(s))

    def _read(self, s: Node) -> Node:
        """Return a source of elementwise work: inlined if that is free."""
        if s in self.inside:
            return self.made[s]
        if s not in self.builder.inlined:
            return self._input(self.builder.stored(s))
        if (made := self.made.get(s)) is None:
            if s.op.name == "stop_gradient":
                made = self._read(s.src[0])
            elif s.op.name == "reshape" and not self._computed_inside(s):
                made = self._input(self.builder.stored(s))
            else:
                made = s.on(tuple(self._read(x) for x in s.src))
            self.made[s] = made
        return made

    def _computed_inside(self, s: Node) -> bool:
        """Is s computed in this kernel, or a constant?"""
        roots = self.builder.inlined.roots_of([s])
        return not roots or any(root in self.inside for root in roots)

    def _input(self, stored: Node) -> Node:
        if (made := self.inputs.get(stored)) is None:
            made = self.inputs[stored] = ops.input(f"x{len(self.inputs)}", stored.ty)
        return made

    def finish(self, outputs: list[Node], pattern: str) -> Node:
        """Return the fused node on the outer values that the body reads."""
        for n in outputs:
            if n.op.name == "get_tuple_element" and n.src[0] in self.inside:
                self.made.setdefault(n, n.on((self.made[n.src[0]],)))
        results = {f"y{i}": self.made[n] if n in self.made else self._read(n) for i, n in enumerate(outputs)}
        graph = Graph({n.attrs["name"]: n for n in self.inputs.values()}, results)
        return ops.fused(*self.inputs, body=graph, pattern=pattern)


def reads_whole_arrays(n: Node) -> bool:
    """Does n read its operands as arrays in memory, not element by element?"""
    if n.op.name in ("concat", "cumsum"):
        return True
    by_element = n.op.kind in ("elementwise", "random", "reduce", "movement") or "gathers" in n.op.traits
    return not by_element and n.op.name != "get_tuple_element"
