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
from gluongraph.passes.bucket import bucket
from gluongraph.passes.cse import cse
from gluongraph.passes.distribute import distribute
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


def _not_in_blocks(n: Node, source_is_blocked: bool) -> int:
    return 0


def _no_kernel(group: Group) -> Candidate | None:
    return None


def _no_target(body: Graph, roles: Mapping[str, str]) -> Plan:
    raise CompileError("a scan is planned for a target; the context of the passes has none")


@dataclass(frozen=True)
class Recompute:
    """Recomputation of the forward: the policy of each segment (`passes.remat`), and the 16-bit dtype `low` in which
    saved values are stored, if any."""

    forward: Forward
    policies: Sequence[int]
    low: str | None = None

    def changes(self) -> bool:
        """Is anything recomputed, or stored in 16 bits?"""
        return any(self.policies) or self.low is not None


@dataclass(frozen=True)
class Context:
    """What passes need to know of the target and of the compilation; the defaults are for neither."""

    has_kernel: Keep = _no_composite  # does the target have a kernel for a composite?
    lanes: Lanes = _not_in_blocks  # how many images a convolution or a pooling wants interleaved; see `layout`
    low: str | None = None  # the 16-bit dtype of contractions' operands, for `amp`
    recompute: Recompute | None = None  # recomputation of the forward, for `remat`
    offer: Offer = _no_kernel  # the target's candidate for a group
    nest: Nest = _no_target  # plans the body of a scan
    roles: Mapping[str, str] = field(default_factory=dict)  # of the inputs: "input", "state" or "scalar"


def _always(context: Context) -> bool:
    return True


@dataclass(frozen=True)
class Pass(Generic[Before, After]):
    """A pass: `run(graph, context)`, only if `when(context)`. A `required` pass cannot be skipped."""

    name: str
    run: Callable[[Before, Context], After]
    when: Callable[[Context], bool] = _always
    required: bool = False


def _amp(graph: Graph, context: Context) -> Graph:
    return amp(graph, context.low, context.has_kernel) if context.low is not None else graph


def _remat(graph: Graph, context: Context) -> Graph:
    if (recompute := context.recompute) is None:
        return graph
    return remat(graph, recompute.forward, recompute.policies, recompute.low)


# `amp` runs before the updates are added, so the optimizer's arithmetic stays float32. `remat` and later passes run
# once for each plan that the memory search evaluates.
PIPELINE: tuple[Pass[Graph, Graph], ...] = (
    Pass("amp", _amp, when=lambda c: c.low is not None),  # first: it handles composites before they are inlined
    Pass("shapes", lambda g, c: shapes(g)),  # checks every node's type, which later passes rely on
    # Before all passes that take `allreduce` as elementwise work.
    Pass("distribute", lambda g, c: distribute(g), required=True),
    # Composites without a kernel are inlined only now, since differentiation handles them as a whole.
    Pass("inline", lambda g, c: inline(g, keep=c.has_kernel), required=True),
    # After differentiation: results of loops that were only for gradients are read, or dead.
    Pass("scan_dce", lambda g, c: scan_dce(g)),
    Pass("fold", lambda g, c: fold(g)),  # before simplify, whose rules recognize constants
    Pass("simplify", lambda g, c: simplify(g)),
    Pass("sink_reshapes", lambda g, c: sink_reshapes(g)),  # after simplify, which canonicalizes movement
    Pass("cse", lambda g, c: cse(g)),  # after simplify, which gives equal values one canonical form
    Pass("layout", lambda g, c: layout(g, lanes=c.lanes)),  # after all passes that expect NCHW convolutions
    Pass("bucket", lambda g, c: bucket(g)),  # after all passes that simplify gradients: equal ones are one by then
    # It decides by what will be stored, and no later pass merges its copies with the originals.
    Pass("remat", _remat, when=lambda c: c.recompute is not None and c.recompute.changes()),
    Pass("fuse", lambda g, c: fuse(g), required=True),  # last: its nodes are kernels
)
# A graph of kernels -> Selection -> Plan -> Plan with offsets.
PLANNING: tuple[Pass[Any, Any], ...] = (
    Pass("select", lambda g, c: select(g, c.offer, c.nest), required=True),
    Pass("schedule", lambda s, c: schedule(s, c.roles), required=True),
    Pass("assign_memory", lambda p, c: assign_memory(p), required=True),
)
RENAMED = {"prune": "scan_dce", "reshapes": "sink_reshapes", "memory": "assign_memory"}  # former name -> name


def passes(first: str, last: str) -> tuple[Pass[Graph, Graph], ...]:
    """Return a part of the pipeline, from `first` to `last` inclusive."""
    names = [each.name for each in PIPELINE]
    return PIPELINE[names.index(first) : names.index(last) + 1]
