"""Graph -> Plan: in which order the kernels run, and which buffer each value lies in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gluongraph import ops
from gluongraph.errors import VerifyError
from gluongraph.ir import Graph, Node, TensorType
from gluongraph.passes.select import Selection
from gluongraph.plan import Buffer, Candidate, Group, Launch, Plan, fresh


def schedule(selection: Selection, roles: Mapping[str, str]) -> Plan:
    """Order by what is ready and frees most memory, ties by the graph's own order; updates go in place where legal.

    `roles` says for each graph input in which space it lives: "state", "scalar" or "input".
    """
    return _Scheduler(selection, roles).run()


@dataclass
class _Step:
    """One kernel waiting to be ordered."""

    rank: int
    fused: Node
    items: list[Node] = field(default_factory=list)
    waits: set[Node] = field(default_factory=set)  # fused nodes that must come first


class _Scheduler:
    def __init__(self, selection: Selection, roles: Mapping[str, str]):
        self.graph, self.kernels, self.roles = selection.graph, selection.kernels, roles
        nodes = self.graph.nodes()
        self.steps = {n: _Step(i, n) for i, n in enumerate(nodes) if n.op.name == "fused"}
        for n in nodes:
            if n.op.name == "item":
                self.steps[n.src[0]].items.append(n)
        for step in self.steps.values():
            for s in step.fused.src:
                if (producer := _root(s)).op.name == "item":
                    step.waits.add(producer.src[0])
        self.readers = self._readers()
        self.inplace = self._updates_in_place()
        self.buffers: dict[Node, Buffer] = {}
        self.names = set(self.graph.inputs)  # of buffers

    def _readers(self) -> dict[Node, list[Node]]:
        """Value in memory (an input or an item) -> the kernels that read it."""
        readers: dict[Node, list[Node]] = {}
        for fused in self.steps:
            for s in dict.fromkeys(map(_root, fused.src)):
                readers.setdefault(s, []).append(fused)
        return readers

    def _updates_in_place(self) -> dict[Node, str]:
        """New value -> the input it may overwrite directly. Adds the write-after-read edges to the steps."""
        found: dict[Node, str] = {}
        for name, new in self.graph.updates.items():
            item, target = _root(new), self.graph.inputs[name]
            if item.op.name != "item" or item in found or item.ty.dtype != target.dtype:
                continue
            writer = item.src[0]
            readers = [r for r in self.readers.get(target, ()) if r is not writer]
            if any(self._needs(r, writer) for r in readers):
                continue
            if target in map(_root, writer.src) and not _overwrites_safely(writer, item, target):
                continue
            self.steps[writer].waits.update(readers)
            found[item] = name
        return found

    def _needs(self, fused: Node, other: Node) -> bool:
        """Does `fused` wait, directly or not, for `other`?"""
        seen, stack = set(), [fused]
        while stack:
            for n in self.steps[stack.pop()].waits:
                if n is other:
                    return True
                if n not in seen:
                    seen.add(n)
                    stack.append(n)
        return False

    def run(self) -> Plan:
        inputs = {name: self._bind(n, Buffer(name, n.ty, self.roles[name])) for name, n in self.graph.inputs.items()}
        constants: dict[str, bytes] = {}
        for n in self.graph.nodes():
            if n.op.name == "literal":
                name = fresh(f"const{len(constants)}", self.names)
                constants[name] = n.attrs["data"]
                self._bind(n, Buffer(name, n.ty, "const"))
        claimed = self._place_results(inputs)
        launches = [self._launch(step) for step in self._ordered()]
        outputs, extra = self._finish_outputs(claimed)
        updates, copies = self._finish_updates(inputs)
        return Plan(
            launches=_name_kernels(launches + extra + copies),
            inputs=inputs,
            outputs=outputs,
            updates=updates,
            constants=constants,
        )

    def _bind(self, n: Node, buffer: Buffer) -> Buffer:
        self.buffers[n] = buffer
        return buffer

    def _view(self, buffer: Buffer, type: TensorType) -> Buffer:
        """The same memory under another shape."""
        return buffer if buffer.type == type else replace(buffer, type=type)

    def _place_results(self, inputs: Mapping[str, Buffer]) -> set[str]:
        """A buffer for every result of a kernel. Gives the outputs that are written where they belong at once."""
        claimed: set[str] = set()
        for item, name in self.inplace.items():
            self._bind(item, replace(inputs[name], type=item.ty))
        for name, n in self.graph.outputs.items():
            item = _root(n)
            if item.op.name != "item":
                raise VerifyError(f"output {name!r} is no kernel's result; fuse must copy it")
            if item not in self.buffers:
                self._bind(item, Buffer(fresh(name, self.names), item.ty, "output"))
                claimed.add(name)
        rest = [item for step in self.steps.values() for item in step.items if item not in self.buffers]
        for number, item in enumerate(rest):
            self._bind(item, Buffer(fresh(f"v{number}", self.names), item.ty, "scratch"))
        return claimed

    def _ordered(self) -> list[_Step]:
        """Kahn's order; among the ready the one that grows live memory least, then the graph's order."""
        missing = {n: set(step.waits) for n, step in self.steps.items()}
        followers: dict[Node, list[Node]] = {n: [] for n in self.steps}
        for n, waits in missing.items():
            for w in waits:
                followers[w].append(n)
        unread = {v: len(r) for v, r in self.readers.items()}
        ready = {n for n, waits in missing.items() if not waits}
        order: list[_Step] = []
        while ready:
            best = min(ready, key=lambda n: (self._growth(n, unread), self.steps[n].rank))
            ready.remove(best)
            order.append(self.steps[best])
            for s in dict.fromkeys(map(_root, best.src)):
                unread[s] -= 1
            for f in followers[best]:
                missing[f].discard(best)
                if not missing[f]:
                    ready.add(f)
        if len(order) != len(self.steps):
            raise VerifyError("the kernels wait for each other in a circle")
        return order

    def _growth(self, fused: Node, unread: Mapping[Node, int]) -> int:
        """Bytes of scratch that running this kernel now adds, less those it frees."""
        made = sum(i.ty.nbytes for i in self.steps[fused].items if self.buffers[i].space == "scratch")
        freed = sum(
            s.ty.nbytes
            for s in dict.fromkeys(map(_root, fused.src))
            if unread[s] == 1 and s in self.buffers and self.buffers[s].space == "scratch"
        )
        return made - freed

    def _launch(self, step: _Step) -> Launch:
        fused = step.fused
        group, candidate = self.kernels[fused]
        reads = tuple(self._view(self.buffers[_root(s)], s.ty) for s in fused.src)
        results = {item.attrs["index"]: self.buffers[item] for item in step.items}
        writes = tuple(
            results.get(i) or Buffer(fresh("unused", self.names), t, "scratch") for i, t in enumerate(group.outputs)
        )
        pairs = tuple(
            (j, i) for j, w in enumerate(writes) for i, r in enumerate(reads) if r.name == w.name and w.space == "state"
        )
        origin = self.graph.origins.get(fused)
        return Launch("", replace(group, inplace=pairs), candidate, reads, writes, None, origin, label(group))

    def _finish_outputs(self, claimed: set[str]) -> tuple[dict[str, Buffer], list[Launch]]:
        """Each output in memory of its own: a value's second name, and what lies in the state, are copied."""
        outputs, copies = {}, []
        for name, n in self.graph.outputs.items():
            buffer = self._view(self.buffers[_root(n)], n.ty)
            outputs[name] = buffer
            if name not in claimed:
                outputs[name] = Buffer(fresh(name, self.names), n.ty, "output")
                copies.append(_copy(buffer, outputs[name]))
        return outputs, copies

    def _finish_updates(self, inputs: Mapping[str, Buffer]) -> tuple[dict[str, Buffer], list[Launch]]:
        """Copies, at the end, of new values that could not be written in place."""
        copies = []
        for name, new in self.graph.updates.items():
            item = _root(new)
            if self.inplace.get(item) == name:
                continue
            copies.append(_copy(self._view(self.buffers[item], inputs[name].type), inputs[name]))
        return {name: inputs[name] for name in self.graph.updates}, copies


def _root(n: Node) -> Node:
    """The value in memory that n is a view of."""
    while n.op.name == "reshape":
        n = n.src[0]
    return n


def _overwrites_safely(writer: Node, item: Node, target: Node) -> bool:
    """Does the kernel read the old value only at the place where it then writes the new one?"""
    if writer.attrs["pattern"] == "opaque":
        return _lies_over(writer, target)
    if writer.attrs["pattern"] not in ("loop", "gemm", "conv", "pool", "reduce", "rowwise"):
        return False
    body: Graph = writer.attrs["body"]
    result = list(body.outputs.values())[item.attrs["index"]]
    if writer.attrs["pattern"] != "loop" and result.op.kind not in ("elementwise", "leaf"):
        return False
    for x, s in zip(body.inputs.values(), writer.src, strict=True):
        if _root(s) is target and not (x.shape == result.shape and _read_pointwise(body, x)):
            return False
    return True


def _lies_over(writer: Node, target: Node) -> bool:
    """Is the kernel one op, whose result may lie over the target, which it reads nowhere else?"""
    body: Graph = writer.attrs["body"]
    results = list(body.outputs.values())
    over = results[0].op.over
    if len(results) > 1 or over is None or results[0].src[over].op.name != "input":
        return False
    read = [x for x, s in zip(body.inputs.values(), writer.src, strict=True) if _root(s) is target]
    return read == [results[0].src[over]] and len(body.users()[read[0]]) == 1


def _read_pointwise(body: Graph, x: Node) -> bool:
    return all(u.op.kind == "elementwise" for u in body.users()[x])


def _copy(source: Buffer, target: Buffer) -> Launch:
    x = ops.input("x0", source.type)
    group = Group(Graph({"x0": x}, {"y0": x}), "loop")
    return Launch("", group, Candidate("loop"), (source,), (target,), None, None, "copy")


def label(group: Group) -> str:
    """The ops of a group in a few words: 'matmul add relu'."""
    names = [n.op.name for n in group.body.nodes() if n.op.kind != "leaf" and n.op.name not in ("expand", "reshape")]
    counted = list(dict.fromkeys(names)) or ["copy"]
    return " ".join(counted[:6]) + (" ..." if len(counted) > 6 else "")


def _name_kernels(launches: list[Launch]) -> tuple[Launch, ...]:
    """Equal groups on equal candidates are one kernel: k0, k1, ... by first use."""
    names: dict[tuple[Group, Candidate], str] = {}
    return tuple(
        replace(launch, kernel=names.setdefault((launch.group, launch.candidate), f"k{len(names)}"))
        for launch in launches
    )
