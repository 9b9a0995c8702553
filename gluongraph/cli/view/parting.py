"""Where a compiled graph parts from its meaning in numpy: passes, kernels one by one, the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gluongraph.codegen.targets import target
from gluongraph.compiler.lower import Compiled, compile_graph, lower
from gluongraph.compiler.pipeline import stages
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.entry_point import program_of
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Launch, Plan
from gluongraph.runtime import loader
from gluongraph.runtime.table import CPU, Table
from gluongraph.storage import Array, aligned_empty
from gluongraph.tracing.optimizer_updates import SCALAR
from gluongraph.tracing.tracer import is_rng

_COARSER = {"bf16": 32.0, "f16": 16.0}  # than float32's: how much larger errors may be
_FLOATS = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # a rounding error
_SLACK = 64.0  # of an error of rounding, how much larger one may be that many operations add up
_NODES = 64  # of a wrong kernel that are compiled one by one


@dataclass(frozen=True)
class Found:
    """One comparison: of a pass, a kernel or a result, the largest error, and whether it is too large.

    An array that `cancels` is nothing but rounding errors: what it should be is as good as 0.
    """

    what: str
    name: str
    error: float
    parts: bool
    cancels: bool = False
    told: str = ""


def parting(graph: Graph, values: Mapping[str, Array], tolerance: float) -> list[Found]:
    """All comparisons, in the order in which things are made."""
    meant = _results(interpreter.run(graph, values))
    shaken = _results(interpreter.run(graph, {k: _shaken(v, _step_of(graph)) for k, v in values.items()}))
    judge = Judge(tolerance, {name: distance(shaken[name], value) for name, value in meant.items()})
    found = list(_passes(graph, values, meant, judge))
    compiled = lower(graph, {name: _role(graph, name) for name in graph.inputs})
    if compiled.artefact is not None and not compiled.artefact.gpu:
        found += _kernels(compiled, values, tolerance)
    given = {name: np.array(array) for name, array in values.items()}
    made = _results(compile_graph(graph, "replay")(given))
    found += (judge("result", name, name, made[name], value) for name, value in meant.items())
    return found


def _results(both: tuple[Mapping[str, Any], Mapping[str, Any]]) -> dict[str, Array]:
    outputs, updates = both
    return {**outputs, **{f"new {name}": np.array(value) for name, value in updates.items()}}


def _role(graph: Graph, name: str) -> str:
    if name in graph.updates:
        return "state"
    return "scalar" if name.startswith(SCALAR) or is_rng(name) else "input"


@dataclass(frozen=True)
class Judge:
    """Which differences are errors: those beyond the tolerance that rounding of the inputs does not explain.

    `noise` is how far each array moves when the inputs move by a rounding error. A sum whose terms cancel, as the
    gradient of a bias before a normalization, is nothing but that.
    """

    tolerance: float
    noise: Mapping[str, float]

    def __call__(self, what: str, name: str, key: str, made: Array, meant: Array) -> Found:
        apart, largest = distance(made, meant), _largest(meant)
        coarser = _COARSER.get(dtype_name(np.asarray(meant).dtype), 1.0)
        large, explained = apart > self.tolerance * coarser * largest, apart <= _SLACK * self.noise[key]
        return Found(what, name, apart / (largest or 1.0), large and not explained, large and explained)


def distance(made: Array, meant: Array) -> float:
    """The largest difference; infinite where only one side is finite."""
    a, b = (np.asarray(x).reshape(-1).astype(np.float64) for x in (made, meant))
    with np.errstate(invalid="ignore"):
        apart = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        difference = np.abs(a[apart] - b[apart]).max(initial=0.0)
    return float(difference) if np.isfinite(difference) else float("inf")


def _largest(array: Array) -> float:
    values = np.asarray(array).reshape(-1).astype(np.float64)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _shaken(array: Array, by: float) -> Array:
    """Floats moved by so much of themselves, up or down."""
    array = np.asarray(array)
    if dtype_name(array.dtype) not in _FLOATS:
        return array
    signs = np.random.default_rng(0).choice((-by, by), array.shape)
    return np.asarray((array * (1 + signs)).astype(array.dtype))


def _step_of(graph: Graph) -> float:
    """The rounding error of the coarsest floats of a graph."""
    return max((_FLOATS.get(t.dtype, 0.0) for n in graph.nodes() for t in n.types), default=0.0)


# -- passes


def _passes(graph: Graph, values: Mapping[str, Array], meant: Mapping[str, Array], judge: Judge) -> Iterator[Found]:
    """The graph after each pass, in numpy, against the one that was traced."""
    before = graph
    for name, after in stages(graph, target()):
        if after is not before and after != before:
            made = _results(interpreter.run(after, values))
            yield max((judge("pass", name, k, made[k], v) for k, v in meant.items()), key=lambda f: (f.parts, f.error))
        before = after


# -- kernels


def _kernels(compiled: Compiled, values: Mapping[str, Array], tolerance: float) -> Iterator[Found]:
    """Each launch on the memory of the step: what it writes against what its graph means for what it reads."""
    plan, module = compiled.plan, compiled.module()
    memory, positions = _memory(plan, values), plan.positions
    table = Table(program_of(plan).args, CPU, 0)
    for name, position in positions.items():
        table.put(position, memory[name])
    for i, launch in enumerate(plan.launches):
        body = launch.group.body
        inputs = list(body.inputs.values())
        reads = [memory[b.name].reshape(n.shape).copy() for b, n in zip(launch.reads, inputs, strict=True)]
        loader.function(module, launch.kernel)(*(table.tensor(positions[b.name]) for b in launch.arguments))
        env = dict(zip(inputs, reads, strict=True))
        outputs = list(body.outputs.values())
        meant = interpreter.evaluate(outputs, env)
        judge = Judge(tolerance, _noise(launch.group.body, env, meant))
        for (key, value), buffer in zip(zip(body.outputs, meant, strict=True), launch.writes, strict=True):
            found = judge("kernel", f"{i} {launch.kernel} {buffer.name}", key, memory[buffer.name], value)
            yield replace(found, told=_blame(launch, env, tolerance)) if found.parts else found


def _noise(body: Graph, env: Mapping[Node, Array], meant: Sequence[Array]) -> dict[str, float]:
    """How far the results of a kernel move when what it reads moves by a rounding error."""
    by = _step_of(body)
    shaken = interpreter.evaluate(list(body.outputs.values()), {n: _shaken(array, by) for n, array in env.items()})
    return {key: distance(a, b) for key, a, b in zip(body.outputs, shaken, meant, strict=True)}


def _memory(plan: Plan, values: Mapping[str, Array]) -> dict[str, Array]:
    """An array for each buffer; those in scratch and among the scalars lie where the plan says."""
    sizes = {"scratch": plan.scratch_bytes, "scalar": plan.scalar_bytes}
    arenas = {space: aligned_empty((nbytes,), np.uint8) for space, nbytes in sizes.items()}
    given = {b.name: name for name, b in plan.inputs.items()}
    found: dict[str, Array] = {}
    for name, b in plan.buffers.items():
        dtype = numpy_dtype(b.type.dtype)
        if b.space in arenas:
            at = b.offset or 0
            found[name] = arenas[b.space][at : at + b.type.nbytes].view(dtype)
        else:
            found[name] = aligned_empty((b.type.size,), dtype)
        if name in given:
            found[name][:] = values[given[name]].reshape(-1)
        elif b.space == "const":
            found[name][:] = np.frombuffer(plan.constants[name], dtype)
    return found


def _blame(launch: Launch, env: Mapping[Node, Array], tolerance: float) -> str:
    """The first operation of a kernel that is wrong when it is compiled with no more than what it needs."""
    body = launch.group.body
    nodes = [n for n in body.nodes() if n.src and not isinstance(n.type, tuple)][:_NODES]
    values = {name: env[n] for name, n in body.inputs.items()}
    whence = f", {launch.origin}" if launch.origin else ""
    for n in nodes:
        alone = Graph(body.inputs, {"y": n})
        (meant,) = interpreter.evaluate([n], env)
        made, _ = compile_graph(alone, "alone")(values)
        if Judge(tolerance, _noise(alone, env, [meant]))("node", "y", "y", made["y"], meant).parts:
            return f"first in {n!r}{whence}"
    return f"in {launch.label}, though each of its operations alone is right{whence}"
