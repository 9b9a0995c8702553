"""Graph -> Plan: the order in which kernels run, and the buffer of each value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gluongraph import ops
from gluongraph.errors import VerifyError
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import INDEX_FLAG, Buffer, Candidate, Group, Launch, Plan, fresh
from gluongraph.passes.schedule_inplace import VIEWS, may_overwrite, root
from gluongraph.passes.schedule_order import Jobs, order_of, placed_in_place
from gluongraph.passes.select import Selection, claimed
from gluongraph.storage import aligned


def schedule(selection: Selection, roles: Mapping[str, str]) -> Plan:
    """Return the plan: an order of low peak memory; updates in place where legal, and results in place of operands
    whose last reader their kernel is.

    `roles` says for each graph input in which space it is: "state", "scalar" or "input".
    """
    return _Scheduler(selection, roles).run()


@dataclass
class _Step:
    """One kernel that is to be ordered."""

    rank: int
    fused: Node
    items: list[Node] = field(default_factory=list)
    waits: set[Node] = field(default_factory=set)  # fused nodes that must come first


class _Scheduler:
    def __init__(self, selection: Selection, roles: Mapping[str, str]):
        self.graph, self.kernels, self.roles = selection.graph, selection.kernels, roles
        self.offer = selection.offer
        nodes = self.graph.nodes()
        self.steps = {n: _Step(i, n) for i, n in enumerate(nodes) if n.op.name == "fused"}
        for n in nodes:
            if n.op.name == "get_tuple_element":
                self.steps[n.src[0]].items.append(n)
        for step in self.steps.values():
            step.waits.update(_producers(step.fused.src))
        self.readers = self._readers()
        self.flag = self._flag()
        self._communicate_after_flag()
        self.inplace = self._updates_in_place()
        self.buffers: dict[Node, Buffer] = {}
        self.names = set(self.graph.inputs)  # of buffers

    def _readers(self) -> dict[Node, list[Node]]:
        """Return for each value in memory (an input or a kernel's result) the kernels that read it."""
        readers: dict[Node, list[Node]] = {}
        for fused in self.steps:
            for s in dict.fromkeys(map(root, fused.src)):
                readers.setdefault(s, []).append(fused)
        return readers

    def _flag(self) -> Node | None:
        """Return the kernel that counts indices out of range: kernels that write state come after it."""
        counted = self.graph.outputs.get(INDEX_FLAG)
        return None if counted is None else root(counted).src[0]

    def _communicate_after_flag(self) -> None:
        """Let collectives wait for the count of indices out of range: a rank that refuses its batch tells the others
        before the first of them."""
        if self.flag is not None:
            early = self._before_flag()
            for fused, step in self.steps.items():
                if self.kernels[fused][0].pattern == "collective" and fused not in early:
                    step.waits.add(self.flag)

    def _updates_in_place(self) -> dict[Node, str]:
        """Return for each new value the input that it may overwrite directly, and add the write-after-read edges."""
        writable: dict[Node, str] = {}
        followers: dict[Node, list[Node]] = {fused: [] for fused in self.steps}
        for fused, step in self.steps.items():
            for first in step.waits:
                followers[first].append(fused)
        early = self._before_flag()
        for name, new in self.graph.updates.items():
            item, target = root(new), self.graph.inputs[name]
            if item.op.name != "get_tuple_element" or item in writable or item.ty.dtype != target.dtype:
                continue
            writer = item.src[0]
            if writer in early:
                continue
            readers = [r for r in self.readers.get(target, ()) if r is not writer]
            if readers and not _all_after(writer, followers).isdisjoint(readers):
                continue
            if target in map(root, writer.src) and not may_overwrite(writer, item, target):
                continue
            self.steps[writer].waits.update(readers)
            for reader in readers:
                followers[reader].append(writer)
            if self.flag is not None and self.flag is not writer:
                self.steps[writer].waits.add(self.flag)
                followers[self.flag].append(writer)
            writable[item] = name
        return writable

    def _before_flag(self) -> set[Node]:
        """Return the flag's kernel and those that it depends on: new values that they compute are stored elsewhere, and
        copied to the state at the end."""
        before: set[Node] = set()
        stack = [] if self.flag is None else [self.flag]
        while stack:
            fused = stack.pop()
            if fused not in before:
                before.add(fused)
                stack.extend(self.steps[fused].waits)
        return before

    def run(self) -> Plan:
        inputs = {name: self._bind(n, Buffer(name, n.ty, self.roles[name])) for name, n in self.graph.inputs.items()}
        constants: dict[str, bytes] = {}
        for n in self.graph.nodes():
            if n.op.name == "literal":
                name = fresh(f"const{len(constants)}", self.names)
                constants[name] = n.attrs["data"]
                self._bind(n, Buffer(name, n.ty, "const"))
        direct_outputs = self._place_results(inputs)
        launches = [self._launch(step) for step in self._ordered(direct_outputs)]
        outputs, extra = self._finish_outputs(direct_outputs)
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
        """Return the same memory with another shape."""
        return buffer if buffer.type == type else replace(buffer, type=type)

    def _place_results(self, inputs: Mapping[str, Buffer]) -> set[str]:
        """Assign a buffer to every result of a kernel. Return the outputs that kernels store directly."""
        direct_outputs: set[str] = set()
        for item, name in self.inplace.items():
            self._bind(item, replace(inputs[name], type=item.ty))
        for name, n in self.graph.outputs.items():
            item = root(n)
            if item.op.name != "get_tuple_element":
                raise VerifyError(f"output {name!r} is no kernel's result; fuse must copy it")
            if item not in self.buffers:
                self._bind(item, Buffer(fresh(name, self.names), item.ty, "output"))
                direct_outputs.add(name)
        rest = [item for step in self.steps.values() for item in step.items if item not in self.buffers]
        for number, item in enumerate(rest):
            self._bind(item, Buffer(fresh(f"v{number}", self.names), item.ty, "scratch"))
        return direct_outputs

    def _ordered(self, direct_outputs: set[str]) -> list[_Step]:
        """Return the steps in their order; results that are stored in place of an operand are bound to its buffer."""
        steps, jobs = list(self.steps.values()), Jobs()
        values = [v for v, buffer in self.buffers.items() if buffer.space == "scratch"]
        number = {v: i for i, v in enumerate(values)}
        rank = {step.fused: i for i, step in enumerate(steps)}
        flat = self._flat_values()
        jobs.size = [aligned(v.ty.nbytes) for v in values]
        jobs.kept = {number[v] for v in self._copied_at_last(direct_outputs) if v in number}
        jobs.overlapping = {i for i, step in enumerate(steps) if self._overlaps(step)}
        for step in steps:
            read = dict.fromkeys(map(root, step.fused.src))
            jobs.waits.append({rank[w] for w in step.waits})
            jobs.makes.append(tuple(number[i] for i in step.items if i in number))
            jobs.reads.append(tuple(number[s] for s in read if s in number))
            jobs.workspace.append(self.kernels[step.fused][1].workspace)
            for item in (i for i in step.items if i in number):
                fitting = (s for s in read if s in number and _same_size(s, item) and not self._is_kept(s, step, flat))
                jobs.over[number[item]] = tuple(number[s] for s in fitting if may_overwrite(step.fused, item, s))
        order = order_of(jobs)
        if order is None:
            raise VerifyError("the kernels wait for each other in a circle")
        for v, operand in placed_in_place(jobs, order).items():
            self._bind(values[v], self._view(self.buffers[values[operand]], values[v].ty))
        return [steps[job] for job in order]

    def _overlaps(self, step: _Step) -> bool:
        collective = self.kernels[step.fused][0].collective
        return collective is not None and collective.attrs.get("bucket", 0) > 0

    def _flat_values(self) -> set[Node]:
        """Return the values that lie in the flat memory of a collective."""
        found: set[Node] = set()
        for fused, step in self.steps.items():
            if (collective := self.kernels[fused][0].collective) is not None:
                found |= set(step.items if collective.op.name == "all_gather" else map(root, fused.src))
                found |= set(step.items if collective.op.name == "all_reduce" else ())
        return found

    def _is_kept(self, value: Node, step: _Step, flat: set[Node]) -> bool:
        """May nothing else take the memory of a value? What takes a place in flat memory could be an operand of another
        collective, whose operands lie one after another elsewhere."""
        return value in flat and self.kernels[step.fused][0].collective is None

    def _copied_at_last(self, direct_outputs: set[str]) -> list[Node]:
        """Return the values that are copied after all kernels have run."""
        outputs = [root(n) for name, n in self.graph.outputs.items() if name not in direct_outputs]
        updates = [root(n) for name, n in self.graph.updates.items() if self.inplace.get(root(n)) != name]
        return outputs + updates

    def _launch(self, step: _Step) -> Launch:
        fused = step.fused
        group, candidate = self.kernels[fused]
        reads = tuple(self._view(self.buffers[root(s)], s.ty) for s in fused.src)
        results = {item.attrs["index"]: self.buffers[item] for item in step.items}
        writes = tuple(
            results.get(i) or Buffer(fresh("unused", self.names), t, "scratch") for i, t in enumerate(group.outputs)
        )
        pairs = tuple((j, i) for j, w in enumerate(writes) for i, r in enumerate(reads) if r.name == w.name)
        origin = self.graph.origins.get(fused)
        return Launch("", replace(group, inplace=pairs), candidate, reads, writes, None, origin, label(group))

    def _finish_outputs(self, direct_outputs: set[str]) -> tuple[dict[str, Buffer], list[Launch]]:
        """Give each output a buffer of its own: further outputs of the same value, and values in the state, are
        copied."""
        outputs, copies = {}, []
        for name, n in self.graph.outputs.items():
            buffer = self._view(self.buffers[root(n)], n.ty)
            outputs[name] = buffer
            if name not in direct_outputs:
                outputs[name] = Buffer(fresh(name, self.names), n.ty, "output")
                copies.append(self._copy(buffer, outputs[name]))
        return outputs, copies

    def _finish_updates(self, inputs: Mapping[str, Buffer]) -> tuple[dict[str, Buffer], list[Launch]]:
        """Return the updates, and the copies, at the end, of new values that could not be stored in place."""
        copies = []
        for name, new in self.graph.updates.items():
            item = root(new)
            if self.inplace.get(item) == name:
                continue
            copies.append(self._copy(self._view(self.buffers[item], inputs[name].type), inputs[name]))
        return {name: inputs[name] for name in self.graph.updates}, copies

    def _copy(self, source: Buffer, target: Buffer) -> Launch:
        x = ops.input("x0", source.type)
        group = Group(Graph({"x0": x}, {"y0": x}), "loop")
        return Launch("", group, claimed(group, self.offer), (source,), (target,), None, None, "copy")


def _producers(values: Iterable[Node]) -> Iterator[Node]:
    """Iterate over the kernels that must run before: those whose results these values are views of, and those that
    `depends_on` names."""
    stack = list(values)
    while stack:
        n = stack.pop()
        if n.op.name == "get_tuple_element":
            yield n.src[0]
        elif n.op.name in VIEWS:
            stack.extend(n.src)


def _all_after(fused: Node, followers: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """Return the kernels that depend on this one, directly or transitively; few if it updates a weight."""
    after: set[Node] = set()
    stack = [fused]
    while stack:
        for n in followers[stack.pop()]:
            if n not in after:
                after.add(n)
                stack.append(n)
    return after


def _same_size(old: Node, new: Node) -> bool:
    return old.dtype == new.dtype and old.ty.nbytes == new.ty.nbytes


def label(group: Group) -> str:
    """Return the ops of a group as a short label: 'matmul add relu'."""
    names = [n.op.name for n in group.body.nodes() if n.op.kind != "leaf" and n.op.name not in ("expand", "reshape")]
    counted = list(dict.fromkeys(names)) or ["copy"]
    return " ".join(counted[:6]) + (" ..." if len(counted) > 6 else "")


def _name_kernels(launches: list[Launch]) -> tuple[Launch, ...]:
    """Name the kernels k0, k1, ... by first use; launches with equal groups and candidates share a kernel."""
    names: dict[tuple[Group, Candidate], str] = {}
    return tuple(
        replace(launch, kernel=names.setdefault((launch.group, launch.candidate), f"k{len(names)}"))
        for launch in launches
    )
