"""The passes, first to last: from the traced graph to the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gluongraph.errors import CompileError
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Candidate, Group, Plan
from gluongraph.passes.amp import amp
from gluongraph.passes.assign_memory import assign_memory
from gluongraph.passes.cse import cse
from gluongraph.passes.fold import fold
from gluongraph.passes.fuse import fuse
from gluongraph.passes.inline import Keep, inline
from gluongraph.passes.layout import Lanes, layout
from gluongraph.passes.remat import remat
from gluongraph.passes.remat_segments import Forward
from gluongraph.passes.scan_dce import scan_dce
from gluongraph.passes.schedule import schedule
from gluongraph.passes.select import Nest, Offer, select
from gluongraph.passes.shapes import shapes
from gluongraph.passes.simplify import simplify
from gluongraph.passes.sink_reshapes import sink_reshapes

Before = TypeVar("Before")
After = TypeVar("After")


def _no_composite(n: Node) -> bool:
    return False


def _not_in_blocks(n: Node, met: bool) -> int:
    return 0


def _no_kernel(group: Group) -> Candidate | None:
    return None


def _no_target(body: Graph, roles: Mapping[str, str]) -> Plan:
    raise CompileError("a scan is planned for a target; the context of the passes has none")


@dataclass(frozen=True)
class Recompute:
    """What of the forward is computed again: `how[k]` of segment k. What is kept is narrowed to `low`, if given."""

    forward: Forward
    how: Sequence[int]
    low: str | None = None

    def changes(self) -> bool:
        """Is anything recomputed, or narrowed?"""
        return any(self.how) or self.low is not None


@dataclass(frozen=True)
class Context:
    """What passes ask of the target, and of who compiles. By default nothing is known of either."""

    has_kernel: Keep = _no_composite  # of a composite: does the target take it whole?
    lanes: Lanes = _not_in_blocks  # how many images a convolution or a pooling wants side by side; see `layout`
    low: str | None = None  # the 16-bit dtype of contractions' operands, for `amp`
    recompute: Recompute | None = None  # what of the forward is computed again, for `remat`
    offer: Offer = _no_kernel  # the target's candidate for a group
    nest: Nest = _no_target  # plans the body of a scan
    roles: Mapping[str, str] = field(default_factory=dict)  # of the inputs: "input", "state" or "scalar"


def _always(context: Context) -> bool:
    return True


@dataclass(frozen=True)
class Pass(Generic[Before, After]):
    """One step of the way: `run` it `when` the context asks for it. Without one that is `required` there is no code."""

    name: str
    run: Callable[[Before, Context], After]
    when: Callable[[Context], bool] = _always
    required: bool = False


def _amp(graph: Graph, context: Context) -> Graph:
    return amp(graph, context.low, context.has_kernel) if context.low is not None else graph


def _remat(graph: Graph, context: Context) -> Graph:
    if (asked := context.recompute) is None:
        return graph
    return remat(graph, asked.forward, asked.how, asked.low)


# `amp` runs before the updates are added: it leaves float32 what the optimizer computes. `remat` and what comes after
# it run once for each plan that is weighed.
PIPELINE: tuple[Pass[Graph, Graph], ...] = (
    Pass("amp", _amp, when=lambda c: c.low is not None),  # first: it takes composites whole
    Pass("shapes", lambda g, c: shapes(g)),  # every rule is checked again, so that nothing below guesses a shape
    # Composites that no kernel takes become primitives, now that differentiation has seen them whole.
    Pass("inline", lambda g, c: inline(g, keep=c.has_kernel), required=True),
    # Differentiation is over: what loops hand out for gradients alone is read, or never will be.
    Pass("scan_dce", lambda g, c: scan_dce(g)),
    Pass("fold", lambda g, c: fold(g)),  # before simplify, which then meets fewer constants in disguise
    Pass("simplify", lambda g, c: simplify(g)),
    Pass("sink_reshapes", lambda g, c: sink_reshapes(g)),  # after simplify, which has brought movement to one form
    Pass("cse", lambda g, c: cse(g)),  # after simplify, which brings equal things to one form
    Pass("layout", lambda g, c: layout(g, lanes=c.lanes)),  # after all that looks for convolutions by their own shapes
    # It weighs what will be stored, and nothing after it takes a copy for the original.
    Pass("remat", _remat, when=lambda c: c.recompute is not None and c.recompute.changes()),
    Pass("fuse", lambda g, c: fuse(g), required=True),  # last: after it a node is a kernel
)
# A graph of kernels -> Selection -> Plan -> Plan with offsets.
PLANNING: tuple[Pass[Any, Any], ...] = (
    Pass("select", lambda g, c: select(g, c.offer, c.nest), required=True),
    Pass("schedule", lambda s, c: schedule(s, c.roles), required=True),
    Pass("assign_memory", lambda p, c: assign_memory(p), required=True),
)
RENAMED = {"prune": "scan_dce", "reshapes": "sink_reshapes", "memory": "assign_memory"}  # names of before -> of now


def passes(first: str, last: str) -> tuple[Pass[Graph, Graph], ...]:
    """A part of the pipeline, both ends included."""
    names = [each.name for each in PIPELINE]
    return PIPELINE[names.index(first) : names.index(last) + 1]
