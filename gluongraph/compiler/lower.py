"""From a traced program to a running step: every stage of the compiler, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import debug
from gluongraph.codegen.cache import measurements, plans
from gluongraph.codegen.cache.artifacts import LIBRARY, Artefact
from gluongraph.codegen.rule import Target
from gluongraph.codegen.targets import runs_here
from gluongraph.codegen.targets import target as find_target
from gluongraph.compiler.interpreted import Interpreted, has_collectives
from gluongraph.compiler.memory_options import ALL_KEPT, MemoryOptions
from gluongraph.errors import CompileError, MXNetError, pluralize, with_user_location
from gluongraph.host import process, services
from gluongraph.host.interrupts import import_whole, in_one_line
from gluongraph.host.progress import quiet, task
from gluongraph.ir import printer
from gluongraph.ir.entry_point import REPEATED
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.serialize import described
from gluongraph.ops import index_checks
from gluongraph.runtime import loader
from gluongraph.runtime.device import DeviceExecutor
from gluongraph.runtime.executor import Executor, Refuse

if TYPE_CHECKING:
    from gluongraph.compiler.memory_report import Footprint
    from gluongraph.compiler.memory_search import Choice
    from gluongraph.compiler.tuning import Tuning
    from gluongraph.ir.plan import Plan


def cast_to(graph: Graph, low: str, on: Target) -> Graph:
    """Return the graph, to which updates are not yet added, after the pass `amp`."""
    import_whole("gluongraph.compiler.run_passes")
    from gluongraph.compiler.run_passes import run
    from gluongraph.passes.pipeline import Context

    def has_kernel(n: Node) -> bool:
        from gluongraph.codegen.rules import has_composite_kernel  # only called for composites: most graphs have none

        return has_composite_kernel(on)(n)

    return run(graph, Context(low=low, has_kernel=has_kernel), "amp", "amp", quiet=True)


@dataclass(frozen=True, eq=False)
class Request:
    """A graph, and all options of its compilation; see `lower`. `measured`: the tuning records at that time.
    `common` is no option: it does not change the code, only what ranks compare."""

    graph: Graph
    roles: Mapping[str, str]
    forward: Collection[str]
    on: Target
    memory_options: MemoryOptions
    common: str = ""
    measured: measurements.Table = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", measurements.table(self.on).copy())

    @cached_property
    def checked(self) -> Graph:
        """The graph with an additional output that counts indices out of range, if it checks any."""
        return index_checks.flagged(self.graph)

    @cached_property
    def choice(self) -> Choice:
        """The plan, and the graph of kernels from which it was created."""
        import_whole("gluongraph.compiler.pipeline")  # networkx cannot be imported again after an interrupt
        from gluongraph.compiler.pipeline import choice

        with task(0, "planning"):
            return choice(self.checked, self.roles, self.forward, self.on, self.memory_options, self.measured)

    @cached_property
    def key(self) -> str:
        """The key of the artefact in the plan cache; '' if debug settings need the passes to run."""
        if debug.settings() != debug.Settings():
            return ""
        results = (*self.checked.outputs, *self.checked.updates)
        recomputable = [name in self.forward for name in results]
        options = f"{self.memory_options} {recomputable} {self.measured.digest}"
        return plans.key(self.checked, self.roles, options, self.on)

    def find(self) -> Artefact | None:
        """Return the artefact from the cache; None if it is not there."""
        return plans.find(self.key, self.checked, gpu=self.on.gpu) if self.key else None


@dataclass(frozen=True)
class Compiled:
    """A graph after all stages: the request, the artefact, the plan.

    If the artefact was in the plan cache, the plan is created when it is first used.
    """

    request: Request
    artefact: Artefact | None  # None if the graph is interpreted
    tuning: Tuning | None = None  # the outcome of tuning, if it was requested

    @property
    def traced(self) -> Graph:
        """The graph as traced."""
        return self.request.graph

    @property
    def text(self) -> str:
        """What ranks that run this compare, line by line."""
        return "\n".join(filter(None, (self.request.common, described(self.traced))))

    @property
    def plan(self) -> Plan:
        """Kernels, order, memory."""
        return self.request.choice.plan

    @property
    def footprint(self) -> Footprint:
        """The memory of the plan."""
        return self.request.choice.footprint

    def executor(self, state: Mapping[str, np.ndarray[Any, Any]]) -> Executor | DeviceExecutor | Interpreted:
        """Return an executor of the artefact on these state arrays; under GG_BACKEND=reference and GG_CHECK=nan one
        that interprets the graph."""
        if self.artefact is None:
            check = bool(debug.settings().check)
            return Interpreted(self.traced, self.request.roles, state, check, lambda: self.text)
        module, program = self.module(), self.artefact.program
        entry = [loader.function(module, name) for name in program.segments]
        refuse: Refuse = partial(index_checks.raise_error, self.traced)
        text = self.text if program.steps else ""
        if self.artefact.gpu:
            return DeviceExecutor(entry, program, state, refuse=refuse, text=text)
        return Executor(entry, program, state, refuse, text, loader.optional_function(module, REPEATED))

    def module(self) -> Any:
        """Return the artefact's code, loaded."""
        artefact = self.artefact
        if artefact is None:
            raise CompileError("there is no compiled code: GG_BACKEND or GG_CHECK has graphs interpreted")
        if artefact.module is not None:
            return artefact.module
        what = str(artefact.path or "compiled code")
        return loader.load_code(artefact.files[LIBRARY], what, artefact.gpu, artefact.binaries)


def interprets() -> bool:
    """Do graphs run in numpy, node by node, instead of being compiled?"""
    return any(debug.how())


@in_one_line("compilation")
def lower(
    graph: Graph,
    roles: Mapping[str, str],
    forward: Collection[str] = (),
    *,
    on: Target | None = None,
    memory_options: MemoryOptions = ALL_KEPT,
    tune: float = 0.0,
    progress: bool = True,
    common: str = "",
) -> Compiled:
    """Compile a graph. `roles` says for each input whether it is "state", "scalar" or "input" (see plan.SPACES).

    `forward` are the outputs and updates that do not depend on gradients; values that they need may be recomputed, as
    `memory_options` says. `tune`: seconds to spend first on measuring candidates for the kernels. `progress`: show the
    progress on a terminal. `common`: what ranks that run the graph must have in common besides it, line by line.
    """
    on = on or find_target()
    debug.next_graph()
    graph, tuning = overlapped(edited(graph), on), None
    request = Request(graph, roles, forward, on, memory_options, common)
    with quiet(not progress), task(0, "compiling"):
        if tune and runs_here(on) and not interprets():
            import_whole("gluongraph.compiler.tuning")
            from gluongraph.compiler.tuning import tune as measure

            tuning = measure(request.choice.plan, on, tune)
            request = Request(graph, roles, forward, on, memory_options, common) if tuning.changed else request
        artefact = request.find()
        if artefact is None:
            artefact = built(request.choice.plan, on)
            if request.key and artefact is not None:
                plans.remember(request.key, request.checked, artefact)
    process.give_back_freed_memory()  # of compilation, and of parameters and states that were moved into arenas
    return Compiled(request, artefact, tuning)


def is_known(graph: Graph, roles: Mapping[str, str]) -> bool:
    """Is the code of this graph in the cache?"""
    return Request(graph, roles, (), find_target(), ALL_KEPT).find() is not None


def built(plan: Plan, on: Target) -> Artefact | None:
    """Return the artefact of a plan; None if graphs are interpreted."""
    from gluongraph.codegen.build import build
    from gluongraph.codegen.rules import offer

    check_sizes(plan)
    now = debug.settings()
    if now.dump or now.log or now.debug:
        text = printer.show_plan(plan)
        debug.dump("plan.txt", text)
        debug.log(next(iter(now.log & {"memory", "plan", "schedule"}), "launch"), text)
    artefact = None if interprets() else build(plan, on)
    offer(on).save()
    made = 0 if artefact is None else artefact.compiled
    debug.log(
        "target", f"{on.name}: {pluralize(len(plan.launches), 'launch')}, {pluralize(made, 'kernel')} compiled now"
    )
    return artefact


def overlapped(graph: Graph, on: Target) -> Graph:
    """Return the graph with the bucket size of the target for sums over ranks: as traced, except for GPUs."""
    if not on.gpu or not has_collectives(graph):
        return graph
    import_whole("gluongraph.passes.bucket")
    from gluongraph.passes.bucket import with_size
    from gluongraph.runtime.communicator.overlap import gpu_bucket_size

    return with_size(graph, gpu_bucket_size())


LARGEST = 2**31 - 2**16  # elements of an array: indices have 32 bits, and some kernels compute a tile beyond the end


def check_sizes(plan: Plan) -> None:
    """Raise CompileError for an array with more elements than kernels can index."""
    found = {buffer.name: buffer.type for buffer in plan.buffers.values()}
    for launch in plan.kernels.values():  # a reshape computes positions, also of values that are not in memory
        reshaped = (n for n in launch.group.body.nodes() if n.op.name == "reshape")
        found |= {f"a reshape in {launch.kernel}": n.ty for n in reshaped if n.ty.size > LARGEST}
    for name, type in found.items():
        if type.size > LARGEST:
            message = f"{name} is {type}: arrays of compiled code have at most {LARGEST} elements"
            raise CompileError(with_user_location(message, help="make the batch smaller, or split the array"))


def edited(graph: Graph) -> Graph:
    """Return the graph; under GG_EDIT=file it is written to the file, and read back after the user has edited it."""
    if not (name := debug.settings().edit):
        return graph
    path = Path(name)
    try:
        path.write_text(printer.show(graph), encoding="utf-8")
    except OSError as wrong:
        raise MXNetError(f"GG_EDIT={name}: the file cannot be written ({wrong.strerror})") from wrong
    input(f"the graph is in {path}: edit it, then press Enter ")
    return printer.read(path.read_text(encoding="utf-8"))


def compile_graph(graph: Graph, name: str) -> Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, Any]]]:
    """Return a graph as a function: numpy arrays by input name -> (outputs, updates). Updates are written in place."""
    roles = {key: "state" if key in graph.updates else "input" for key in graph.inputs}
    compiled = lower(graph, roles)
    runner: Executor | DeviceExecutor | Interpreted | None = None

    def call(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        nonlocal runner
        state = {key: values[key] for key in graph.updates}
        if runner is None:
            runner = compiled.executor(state)
        elif state:
            runner.bind(state)
        results = runner([np.ascontiguousarray(values[key]) for key in runner.input_names])
        return dict(zip(runner.output_names, results, strict=True)), state

    call.__name__ = name
    return call


services.register("lower", lower)
services.register("is_known", is_known)
services.register("compile_graph", compile_graph)
