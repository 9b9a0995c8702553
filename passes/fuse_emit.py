"""Replaces each group of `fuse` by a `fused` node whose body is a graph of its own."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node
from gluongraph.ops.constants import is_zero
from gluongraph.passes.fuse_groups import FusionGroup, FusionGroups, Inlined, adds_rows


class Bodies:
    """Writes the groups down. `order` has the nodes, sources first; `keepers` says which groups store the old values of
    inputs that they overwrite."""

    def __init__(
        self,
        graph: Graph,
        order: list[Node],
        drafts: FusionGroups,
        inlined: Inlined,
        keepers: dict[FusionGroup, list[Node]],
    ):
        self.graph, self.order, self.drafts, self.inlined, self.keepers = graph, order, drafts, inlined, keepers
        self.kept: dict[Node, Node] = {}  # input -> where its old value has been stored
        self.rank = {n: i for i, n in enumerate(order)}
        self.new: dict[Node, Node] = {n: n for n in order if n.op.name in ("input", "literal")}
        self.origins: dict[Node, Origin] = {}
        self.needed = self._needed()

    def _needed(self) -> set[Node]:
        """Computed nodes whose values leave their group."""
        needed = set(self.inlined.behind(self.graph.results))
        for n in self.order:
            if n in self.inlined:
                continue
            home = self.drafts.find(n)
            for s in n.src:
                moved = home is not None and home.is_whole  # what it moves lies in its results alone
                copied = s in self.inlined and n is _anchor(n) and not moved  # into memory, by a kernel of its own
                needed.update(root for root in self.inlined.behind([s]) if copied or self.drafts.find(root) is not home)
        return needed

    def build(self) -> Graph:
        """The graph of fused nodes."""
        for draft in sorted(self.drafts.live(), key=lambda d: (d.deps.bit_count(), d.id)):
            nodes = sorted(draft.nodes, key=self.rank.__getitem__)
            if draft.pattern == "depends_on":
                self.new[nodes[0]] = nodes[0].on(tuple(map(self.stored, nodes[0].src)))
                continue
            self._emit(nodes, draft.pattern, self.keepers.get(draft, []))
        taken: set[Node] = set()
        updates = {k: self._result(n, taken) for k, n in self.graph.updates.items()}
        outputs = {k: self._result(n, set(taken)) for k, n in self.graph.outputs.items()}
        return self.graph.with_results(outputs, updates, self.origins)

    def _result(self, n: Node, taken: set[Node]) -> Node:
        """n stored in memory that nobody else claims: inputs, constants and results with two owners are copied."""
        if n in self.kept and self.kept[n] not in taken:
            taken.add(self.kept[n])
            return self.kept[n]
        stored = root = self.stored(n)
        while root.op.name in ("reshape", "depends_on"):
            root = root.src[0]
        if root.op.name != "get_tuple_element" or root in taken:
            x = ops.input("x0", stored.ty)
            copy = ops.fused(stored, body=Graph({"x0": x}, {"y0": x}), pattern="loop")
            stored = root = ops.get_tuple_element(copy, index=0)
        taken.add(root)
        return stored

    def _emit(self, nodes: list[Node], pattern: str, keep: list[Node]) -> None:
        """One fused node for these and the inputs to keep; `self.new` and `self.kept` learn where its results are."""
        body = _Body(self, nodes)
        outputs = [n for n in nodes if n in self.needed and not isinstance(n.type, tuple)]
        if pattern == "scan":  # its carries live in its results, wanted or not
            outputs = [ops.get_tuple_element(nodes[0], index=i) for i in range(len(nodes[0].types))]
        fused = body.finish([*outputs, *keep], pattern)
        self.kept |= {n: ops.get_tuple_element(fused, index=i) for i, n in enumerate(keep, len(outputs))}
        origin = next((o for n in reversed(nodes) if (o := self.graph.origins.get(n)) is not None), None)
        for i, n in enumerate(outputs):
            made = self.new[n] = ops.get_tuple_element(fused, index=i)
            if origin is not None:
                self.origins.setdefault(made, origin)
        if origin is not None:
            self.origins.setdefault(fused, origin)

    def stored(self, n: Node) -> Node:
        """n as a value in memory: what a kernel reads."""
        if (made := self.new.get(n)) is not None:
            return made
        if n.op.name == "reshape":
            made = n.on((self.stored(n.src[0]),))
        elif n.op.name == "stop_gradient":
            made = self.stored(n.src[0])
        else:  # a constant or a broadcast that somebody wants in memory
            fused = _Body(self, []).finish([n], "loop")
            made = ops.get_tuple_element(fused, index=0)
        self.new[n] = made
        return made


class _Body:
    """The body graph of one group."""

    def __init__(self, builder: Bodies, nodes: list[Node]):
        self.builder, self.inside = builder, set(nodes)
        self.inputs: dict[Node, Node] = {}  # stored value -> body input
        self.made: dict[Node, Node] = {}
        for n in nodes:
            self.made[n] = n.on(tuple(self._source(s, n) for s in n.src))

    def _source(self, s: Node, n: Node) -> Node:
        """What n reads for s."""
        if n is _anchor(n) and not (adds_rows(n) and is_zero(s)):
            return self._operand(s)
        return self._read(s)

    def _operand(self, s: Node) -> Node:
        """A source of a contraction and the like: read from memory as it lies there."""
        if s in self.inside:
            return self.made[s]
        if s in self.builder.inlined.views or (s.op.name == "reshape" and self._from_inside(s)):
            return s.on(tuple(map(self._operand, s.src)))
        return self._input(self.builder.stored(s))

    def _read(self, s: Node) -> Node:
        """A source of pointwise work: inlined where that is free."""
        if s in self.inside:
            return self.made[s]
        if s not in self.builder.inlined:
            return self._input(self.builder.stored(s))
        if (made := self.made.get(s)) is None:
            if s.op.name == "stop_gradient":
                made = self._read(s.src[0])
            elif s.op.name == "reshape" and not self._from_inside(s):
                made = self._input(self.builder.stored(s))
            else:
                made = s.on(tuple(self._read(x) for x in s.src))
            self.made[s] = made
        return made

    def _from_inside(self, s: Node) -> bool:
        """Is s made in this kernel, or from nothing?"""
        roots = self.builder.inlined.behind([s])
        return not roots or any(root in self.inside for root in roots)

    def _input(self, stored: Node) -> Node:
        if (made := self.inputs.get(stored)) is None:
            made = self.inputs[stored] = ops.input(f"x{len(self.inputs)}", stored.ty)
        return made

    def finish(self, outputs: list[Node], pattern: str) -> Node:
        """The fused node on the outer values that the body reads."""
        for n in outputs:
            if n.op.name == "get_tuple_element" and n.src[0] in self.inside:
                self.made.setdefault(n, n.on((self.made[n.src[0]],)))
        results = {f"y{i}": self.made[n] if n in self.made else self._read(n) for i, n in enumerate(outputs)}
        graph = Graph({n.attrs["name"]: n for n in self.inputs.values()}, results)
        return ops.fused(*self.inputs, body=graph, pattern=pattern)


def _anchor(n: Node) -> Node | None:
    """n if it reads whole arrays in an order of its own."""
    plain = (
        n.op.kind in ("elementwise", "random", "reduce", "movement")
        or "gathers" in n.op.traits
        or n.op.name == "get_tuple_element"
    )
    return None if plain and n.op.name not in ("concat", "cumsum") else n
