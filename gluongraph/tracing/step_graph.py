"""What a mode of a step makes of a traced program: gradients, what they are added to, updates, what may be left out."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gluongraph.dtypes import is_float
from gluongraph.eager.tape import Leaf
from gluongraph.errors import MXNetError, TraceError, located
from gluongraph.ir.graph import Graph
from gluongraph.ndarray import NDArray
from gluongraph.ops.autodiff import differentiate
from gluongraph.tracing import loss_scaling
from gluongraph.tracing.accumulation import GradientAccumulator
from gluongraph.tracing.anomaly import Guard, watching
from gluongraph.tracing.ema import AveragedWeights
from gluongraph.tracing.grad_norm import clipped, measured
from gluongraph.tracing.low_precision_copies import copied
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR, Draws, ScalarTable
from gluongraph.tracing.precision import PRECISIONS, Precision
from gluongraph.tracing.tracer import Traced, is_rng
from gluongraph.tracing.trainer import Trainer

Cast = Callable[[Graph], Graph]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `mx.compile` was asked for. `cast` is the pass that the precision needs, if any.

    >>> Options(clip_norm=1.0).clip_norm
    1.0
    """

    keep_grads: bool = False
    precision: Precision = PRECISIONS["32"]
    cast: Cast | None = None
    clip_norm: float | None = None
    grad_norm: bool = False
    ema: float | None = None
    detect_anomaly: bool = False
    target: str = "cpu"
    remat: str | None = None
    memory_budget: int | str | None = None
    activations: str | None = None


@dataclass(frozen=True)
class Call:
    """A mode: are layers in training mode, and what is done with gradients."""

    name: str
    training: bool = False
    gradients: bool = False
    updates: bool = False
    sums: bool = False  # over contexts
    adds: bool = False  # to the window of the step

    @property
    def traces(self) -> bool:
        """Does it run the program? Otherwise gradients come from the window."""
        return self.training or not self.gradients


CALLS = {
    call.name: call
    for call in (
        Call("step", training=True, gradients=True, updates=True),
        Call("backward", training=True, gradients=True),
        Call("grads", training=True, gradients=True, sums=True),
        Call("accumulate", training=True, gradients=True, adds=True),
        Call("apply", gradients=True, updates=True),
        Call("evaluate"),
        Call("predict"),
    )
}


class States(NamedTuple):
    """Arrays that belong to weights, and the names of the weights that had some before; None: nobody asks."""

    arrays: dict[str, NDArray]
    had: set[str] | None


@dataclass
class Made:
    """A graph in the making, and the arrays that its inputs are."""

    graph: Graph
    state: dict[str, NDArray]
    draws: Draws
    names: tuple[str, ...] = ()  # the replicas that there are gradients of
    table: ScalarTable | None = None  # of the updates
    masked: bool = False  # does nothing change where a gradient is not finite?
    guard: Guard | None = None
    added: dict[str, NDArray] = field(default_factory=dict)  # replicas with grad_req "add" -> what is added to
    low: str | None = None  # the dtype of copies of weights among the state
    spends: list[Leaf] = field(default_factory=list)  # of replicas whose gradient no memory has seen in the end
    forward: tuple[str, ...] = ()  # outputs and updates that no gradient goes into, where there are gradients
    states: list[States] = field(default_factory=list)  # what is to lie beside the weights in memory

    @property
    def held(self) -> dict[str, NDArray]:
        """The arrays that the graph reads, by the names of inputs."""
        return {name: array for name, array in self.state.items() if name in self.graph.inputs}

    @property
    def roles(self) -> dict[str, str]:
        """The space of each input, see plan.SPACES."""
        return {name: self._role(name) for name in self.graph.inputs}

    def _role(self, name: str) -> str:
        if name.startswith(SCALAR) or is_rng(name):
            return "scalar"
        return "state" if name in self.state else "input"


def forward(traced: Traced, options: Options) -> Made:
    """The program as it is."""
    graph = traced.graph if options.cast is None else options.cast(traced.graph)
    return Made(graph, dict(traced.captured), traced.draws)


def backward(traced: Traced, trainer: Trainer, options: Options, call: Call, window: GradientAccumulator) -> Made:
    """The program, the gradients of what it reads of the trainer's parameters, and what those are added to."""
    names = _trained(trainer, traced)
    _check_loss(traced, trainer, names)
    made = Made(traced.graph, dict(traced.captured), traced.draws, names)
    scale = None
    if scaled := options.precision.scaled:
        made.state |= trainer.scaler.state
        made.graph, scale = loss_scaling.scaled(made.graph)
    made.graph = differentiate(made.graph, traced.first, names, scale)
    if options.cast is not None:
        made.graph = options.cast(made.graph)
    if scaled:
        made.masked = True
        made.graph = loss_scaling.unscaled(made.graph)
    alike = not made.masked and not options.detect_anomaly  # are updates of the program what they were?
    made.forward = (*traced.graph.outputs, *(traced.graph.updates if alike else ()))
    if options.detect_anomaly:  # gradients of a scaled loss may overflow
        grads = () if scaled else tuple(name for name in made.graph.outputs if name.startswith(GRAD))
        made.graph = watching(made.graph, (traced.first, *grads))
    if call.sums:
        made.graph = trainer.exchange.sums(made.graph)
        return made
    made.added = _added(trainer, names)
    made.graph = trainer.exchange.accumulating(made.graph, made.added)
    made.state |= {GRAD + name: grad for name, grad in made.added.items()}
    if call.adds:
        summed = [name for name in names if name not in made.added]
        made.state |= window.inputs(trainer, summed)
        made.graph = window.adding(made.graph, summed)
        made.spends = _spent(trainer, names, made.graph, made.added)
    return made


def of_window(trainer: Trainer, window: GradientAccumulator) -> Made:
    """The gradients that have been added up: in the window, and in the arrays of parameters with grad_req "add"."""
    added = _added(trainer, window.names)
    weights = {name: trainer.replica(name) for name in window.names}
    state = weights | window.inputs(trainer, [name for name in window.names if name not in added])
    state |= {GRAD + name: grad for name, grad in added.items()}
    return Made(window.gradients(weights, added), state, {}, window.names, added=added)


def add_updates(
    made: Made, trainer: Trainer, options: Options, averages: AveragedWeights | None, window: GradientAccumulator
) -> None:
    """Put the updates of the parameters at the end of a graph with gradients."""
    clip = clipped if options.clip_norm is not None else measured if options.grad_norm else None
    updating = trainer.exchange.update(
        made.graph,
        trainer.optimizer,
        trainer.contexts[0],
        draws=made.draws,
        keep_grads=options.keep_grads,
        clip=clip,
    )
    made.graph, made.table = updating.graph, updating.table
    made.draws = made.table.draws
    made.spends = _spent(trainer, made.names, made.graph, made.added)
    had = set(trainer.states)
    states = trainer.state_arrays(updating.owners)
    made.state |= states | trainer.residual_arrays(made.names)
    if averages is not None:
        made.state |= averages.inputs(trainer, updating.owners)
        made.graph = averages.following(made.graph)
    made.graph = window.emptied(made.graph)
    made.states.append(States(states, had))


def graph_of(
    call: Call,
    traced: Traced,
    trainer: Trainer | None,
    options: Options,
    averages: AveragedWeights | None,
    window: GradientAccumulator,
) -> Made:
    """The graph of a mode, and what it works on."""
    if not call.gradients:
        made = forward(traced, options)
        _keep_copies(made, trainer, options)
        return made
    if trainer is None:
        raise MXNetError(located("gradients need a trainer", help="mx.compile(net, loss, trainer)"))
    made = backward(traced, trainer, options, call, window) if call.traces else of_window(trainer, window)
    if call.updates:
        add_updates(made, trainer, options, averages, window)
    if made.masked:
        made.graph = loss_scaling.skipping(made.graph)
    _keep_copies(made, trainer, options)
    if options.detect_anomaly:
        made.guard = Guard(made.graph)
        made.graph = made.guard.graph
    return made


def _keep_copies(made: Made, trainer: Trainer | None, options: Options) -> None:
    """Weights that are rounded to 16 bit as copies, which the updates write too."""
    if (low := options.precision.low) is not None:
        made.graph, copies = copied(made.graph, made.state, low)
        made.low, made.state = low, made.state | copies
        if trainer is not None:
            made.states.append(States(copies, None))


def _trained(trainer: Trainer, traced: Traced) -> tuple[str, ...]:
    """Replicas of the trainer's parameters that the trace read and that want a gradient, in trainer order."""
    wanted = (p.key for p in trainer.params if p.grad_req != "null")
    return tuple(r for name in wanted for r in trainer.exchange.replicas[name] if r in traced.captured)


def _check_loss(traced: Traced, trainer: Trainer, params: Sequence[str]) -> None:
    """Refuse what has no gradient that could train anything."""
    loss = traced.graph.outputs[traced.first]
    if not is_float(loss.dtype):
        raise TraceError(located(f"the loss is {loss.ty}; only floats have gradients", help="return the loss first"))
    if not params and any(p.grad_req != "null" for p in trainer.params):
        raise TraceError(
            located(
                "the traced function reads no parameter of the trainer",
                help="make the trainer with the collect_params() of the net that is compiled",
            )
        )


def _added(trainer: Trainer, names: Sequence[str]) -> dict[str, NDArray]:
    """The gradients that are added to, of the replicas whose parameter says so."""
    indices, found = trainer.exchange.indices, {}
    for name in names:
        grad = trainer.replica(name).grad
        if trainer.params[indices[name]].grad_req == "add" and grad is not None:
            found[name] = grad
    return found


def _spent(trainer: Trainer, names: Sequence[str], graph: Graph, kept: Container[str]) -> list[Leaf]:
    """The gradient sides of replicas whose gradients a graph with updates neither gives back nor adds to memory."""
    lost = [name for name in names if name not in kept and GRAD + name not in graph.outputs]
    return [leaf for name in lost if (leaf := trainer.replica(name)._leaf) is not None]
