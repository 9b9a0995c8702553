"""The kernel rule of an op that has a kernel of its own: a function that emits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm.tir import Buf, Kernel
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group

# Emits the kernel of a node; the buffers are those of its sources.
Write = Callable[[Kernel, Node, Sequence[Buf], Bindings, Cpu], None]


def op_rule(
    op: str, write: Write, dtypes: tuple[str, ...] = (), workspace: Callable[[Node], int] = lambda n: 0
) -> Rule[Cpu]:
    """Return the rule, named after the op, for groups that consist of that op alone (of these dtypes);
    `workspace(node)` returns bytes.

    A composite that the rule claims is not inlined.
    """

    def takes(n: Node, cpu: Cpu) -> bool:
        return n.op.name == op and (not dtypes or n.dtype in dtypes)

    def claim(group: Group, cpu: Cpu) -> Candidate | None:
        outputs = list(group.body.outputs.values())
        if len(outputs) != 1 or any(s.op.name != "input" for s in outputs[0].src):
            return None
        if not takes(outputs[0], cpu) or any(t.size == 0 for t in (*group.inputs, *group.outputs)):
            return None
        return Candidate(op, workspace(outputs[0]))

    def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
        (n,), memory = group.body.outputs.values(), bindings.by_node(group)
        write(k, n, [memory[s] for s in n.src], bindings, cpu)

    return Rule(op, claim, emit, takes_composite=takes)
