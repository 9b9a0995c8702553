"""The graph of one mode of a step: the traced program with gradients, accumulation, updates and guards."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from gluongraph.dtypes import is_float
from gluongraph.eager.tape import Leaf
from gluongraph.errors import MXNetError, TraceError, with_user_location
from gluongraph.ir.graph import Graph
from gluongraph.ndarray import NDArray
from gluongraph.ops.autodiff import differentiate
from gluongraph.tracing import loss_scaling
from gluongraph.tracing.accumulation import GradientAccumulator
from gluongraph.tracing.anomaly import Guard, watching
from gluongraph.tracing.ema import AveragedWeights
from gluongraph.tracing.grad_norm import NORM, clipped, measured
from gluongraph.tracing.low_precision_copies import copied
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR, Draws, ScalarTable
from gluongraph.tracing.padding.masking import LENGTH
from gluongraph.tracing.padding.rewrite import Masked
from gluongraph.tracing.precision import PRECISIONS, Precision
from gluongraph.tracing.sharding import gathered
from gluongraph.tracing.tracer import Traced, is_rng
from gluongraph.tracing.trainer import Trainer

Cast = Callable[[Graph], Graph]


def check_clip_norm(value: Any) -> None:
    """Refuse what is no bound of a norm.

    Raises:
        ValueError: neither None nor a positive number.
    """
    if value is not None and not (isinstance(value, Real) and 0 < float(value) < math.inf):
        raise ValueError(with_user_location(f"clip_norm is a positive number, not {value!r}"))


def check_norm_type(value: Any) -> None:
    """Refuse what is no p of a p-norm.

    Raises:
        ValueError: no number above 0, of which inf is one.
    """
    if not (isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0):
        message = f"norm_type is the p of a p-norm, a number above 0, not {value!r}"
        raise ValueError(with_user_location(message, help='2.0, 1.0, or float("inf") for the largest element'))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `mx.compile`. `cast` is the pass that the precision needs, if any.

    >>> Options(clip_norm=1.0).clip_norm
    1.0
    """

    keep_grads: bool = False
    precision: Precision = PRECISIONS["32"]
    cast: Cast | None = None
    clip_norm: float | None = None
    grad_norm: bool = False
    norm_type: float = 2.0
    error_if_nonfinite: bool = False
    ema: float | None = None
    micro_batches: int = 0  # of all ranks together, in which gradients are computed; 0: each rank's batch as a whole
    detect_anomaly: bool = False
    target: str = "cpu"
    remat: str | None = None
    memory_budget: int | str | None = None
    activations: str | None = None
    steps_per_call: int | None = None  # the most batches that a call takes, stacked; None: one, as it is

    def of_all_ranks(self) -> str:
        """What ranks that train together must have in common, line by line.

        >>> print(Options(clip_norm=1.0).of_all_ranks().splitlines()[1])
        clip_norm: a number
        """
        common = {
            "precision": self.precision.name,
            "clip_norm": None if self.clip_norm is None else "a number",  # which one is compared at each call
            "grad_norm": self.grad_norm,
            "norm_type": self.norm_type,
            "error_if_nonfinite": self.error_if_nonfinite,
            "keep_grads": self.keep_grads,
            "ema": self.ema,
            "deterministic": self.micro_batches or False,
            "detect_anomaly": self.detect_anomaly,
        }
        return "\n".join(f"{name}: {value}" for name, value in common.items())


@dataclass(frozen=True)
class Mode:
    """What a call of the step computes: are layers in training mode, and how are gradients used?"""

    name: str
    training: bool = False
    gradients: bool = False
    updates: bool = False
    sums: bool = False  # are gradients summed over contexts?
    adds: bool = False  # are gradients added to the accumulators?

    @property
    def traces(self) -> bool:
        """Is the program run? Otherwise gradients come from the accumulators."""
        return self.training or not self.gradients


MODES_BY_NAME = {
    mode.name: mode
    for mode in (
        Mode("step", training=True, gradients=True, updates=True),
        Mode("backward", training=True, gradients=True),
        Mode("grads", training=True, gradients=True, sums=True),
        Mode("accumulate", training=True, gradients=True, adds=True),
        Mode("apply", gradients=True, updates=True),
        Mode("evaluate"),
        Mode("predict"),
    )
}


class States(NamedTuple):
    """Arrays that belong to weights, and the names of the weights that already had some; None if irrelevant."""

    arrays: dict[str, NDArray]
    had: set[str] | None


@dataclass
class StepGraph:
    """The graph of a mode while it is built, and the arrays bound to its inputs."""

    graph: Graph
    state: dict[str, NDArray]
    draws: Draws
    names: tuple[str, ...] = ()  # the replicas with gradients
    table: ScalarTable | None = None  # the scalars of the updates
    masked: bool = False  # are updates skipped if a gradient is not finite?
    guard: Guard | None = None
    added: dict[str, NDArray] = field(default_factory=dict)  # replicas with grad_req "add" -> their gradient arrays
    low: str | None = None  # the dtype of copies of weights among the state
    spends: list[Leaf] = field(default_factory=list)  # leaves of replicas whose gradients are not stored
    forward: tuple[str, ...] = ()  # outputs and updates that do not depend on gradients, if there are gradients
    padding: Masked | None = None  # of a program for padded arrays
    states: list[States] = field(default_factory=list)  # arrays to be moved into arenas with the weights

    @property
    def held(self) -> dict[str, NDArray]:
        """The arrays that the graph reads, by the names of inputs."""
        return {name: array for name, array in self.state.items() if name in self.graph.inputs}

    @property
    def roles(self) -> dict[str, str]:
        """The space of each input (plan.SPACES)."""
        return {name: self._role(name) for name in self.graph.inputs}

    def _role(self, name: str) -> str:
        if name.startswith((SCALAR, LENGTH)) or is_rng(name):
            return "scalar"
        return "state" if name in self.state else "input"


def forward(traced: Traced, options: Options) -> StepGraph:
    """Return the graph of the program without gradients."""
    graph = traced.graph if options.cast is None else options.cast(traced.graph)
    return StepGraph(graph, dict(traced.captured), traced.draws)


def backward(
    traced: Traced, trainer: Trainer, options: Options, mode: Mode, accumulator: GradientAccumulator
) -> StepGraph:
    """Return the graph of the program with the gradients of the trainer's parameters that it reads, accumulated where
    the mode or grad_req says so."""
    names = _trained(trainer, traced)
    _check_loss(traced, trainer, names)
    step_graph = StepGraph(traced.graph, dict(traced.captured), traced.draws, names)
    scale = None
    if scaled := options.precision.scaled:
        step_graph.state |= trainer.scaler.state
        step_graph.graph, scale = loss_scaling.scaled(step_graph.graph)
    step_graph.graph = differentiate(step_graph.graph, traced.first, names, scale)
    if options.cast is not None:
        step_graph.graph = options.cast(step_graph.graph)
    if scaled:
        step_graph.masked = True
        step_graph.graph = loss_scaling.unscaled(step_graph.graph, trainer.exchange.ranks)
    # A flag of the gradients decides about all updates, those of statistics too, so they are no part of the forward.
    flagged = step_graph.masked or options.detect_anomaly or options.error_if_nonfinite
    step_graph.forward = (*traced.graph.outputs, *(() if flagged else traced.graph.updates))
    if options.detect_anomaly or (options.error_if_nonfinite and mode.updates):
        grads = (name for name in step_graph.graph.outputs if name.startswith(GRAD))
        watched = () if scaled else tuple(grads)  # gradients of a scaled loss may overflow
        step_graph.graph = watching(step_graph.graph, (traced.first, *watched))
    if mode.sums:
        step_graph.graph = trainer.exchange.sums(step_graph.graph)
        return step_graph
    step_graph.added = _added(trainer, names)
    step_graph.graph = trainer.exchange.accumulating(step_graph.graph, step_graph.added)
    step_graph.state |= {GRAD + name: grad for name, grad in step_graph.added.items()}
    if mode.adds:
        summed = [name for name in names if name not in step_graph.added]
        step_graph.state |= accumulator.inputs(trainer, summed)
        step_graph.graph = accumulator.adding(step_graph.graph, summed)
        step_graph.spends = _spent(trainer, names, step_graph.graph, step_graph.added)
    return step_graph


def accumulated_gradients(trainer: Trainer, accumulator: GradientAccumulator) -> StepGraph:
    """Return the graph of accumulated gradients: those of the accumulator, and of parameters with grad_req "add"."""
    added = _added(trainer, accumulator.names)
    weights = {name: trainer.replica(name) for name in accumulator.names}
    state = weights | accumulator.inputs(trainer, [name for name in accumulator.names if name not in added])
    state |= {GRAD + name: grad for name, grad in added.items()}
    return StepGraph(accumulator.gradients(weights, added), state, {}, accumulator.names, added=added)


def add_updates(
    step_graph: StepGraph,
    trainer: Trainer,
    options: Options,
    averages: AveragedWeights | None,
    accumulator: GradientAccumulator,
) -> None:
    """Append the updates of the parameters to a graph with gradients."""
    exchange = replace(trainer.exchange, reduced=options.micro_batches > 0)
    shards = exchange.ranks if exchange.sharding is not None else 1  # among which gradients are divided
    is_measured = options.grad_norm or options.error_if_nonfinite
    norm = clipped if options.clip_norm is not None else measured if is_measured else None
    clip = None if norm is None else partial(norm, ranks=shards, norm_type=options.norm_type)
    updating = exchange.update(
        step_graph.graph,
        trainer.optimizer,
        trainer.contexts[0],
        draws=step_graph.draws,
        keep_grads=options.keep_grads,
        clip=clip,
    )
    step_graph.graph, step_graph.table = updating.graph, updating.table
    step_graph.draws = step_graph.table.draws
    step_graph.spends = _spent(trainer, step_graph.names, step_graph.graph, step_graph.added)
    had = set(trainer.states)
    states = trainer.state_arrays(updating.owners)
    step_graph.state |= states | trainer.residual_arrays(step_graph.names)
    if exchange.sharding is not None:
        step_graph.state |= {bucket.name: trainer.replica(bucket.name) for bucket in exchange.sharding.buckets}
    if averages is not None:
        _check_averages(trainer)
        step_graph.state |= averages.inputs(trainer, step_graph.names if exchange.sharding else updating.owners)
        step_graph.graph = averages.following(step_graph.graph)
    step_graph.graph = accumulator.emptied(step_graph.graph)
    step_graph.states.append(States(states, had))


def _check_averages(trainer: Trainer) -> None:
    """Raise where no rank has what averages are of."""
    if (sharding := trainer.exchange.sharding) is None:
        return
    if sharding.gathers:
        message = 'ema= with strategy="fsdp": averages are of whole parameters, which no rank keeps'
        raise MXNetError(with_user_location(message, help='strategy="zero2" keeps them'))
    if any(trainer.optimizer.has_master(bucket.types[0]) for bucket in sharding.buckets):
        message = "ema= with multi_precision and sharded state: no rank keeps the whole master weights to average"
        raise MXNetError(with_user_location(message, help="leave strategy or multi_precision out"))


def graph_of(
    mode: Mode,
    traced: Traced,
    trainer: Trainer | None,
    options: Options,
    averages: AveragedWeights | None,
    accumulator: GradientAccumulator,
) -> StepGraph:
    """Return the graph of a mode, with the arrays bound to its inputs."""
    if not mode.gradients:
        step_graph = forward(traced, options)
        _gather(step_graph, trainer)
        _keep_copies(step_graph, trainer, options)
        return step_graph
    if trainer is None:
        raise MXNetError(with_user_location("gradients need a trainer", help="mx.compile(net, loss, trainer)"))
    step_graph = (
        backward(traced, trainer, options, mode, accumulator)
        if mode.traces
        else accumulated_gradients(trainer, accumulator)
    )
    if mode.updates:
        add_updates(step_graph, trainer, options, averages, accumulator)
    if step_graph.masked:
        observing = {name for name, array in traced.captured.items() if array._observes}
        step_graph.graph = loss_scaling.skipping(step_graph.graph, trainer.exchange.sharding, observing)
    _gather(step_graph, trainer)
    _keep_copies(step_graph, trainer, options)
    if options.detect_anomaly or (options.error_if_nonfinite and mode.updates):
        only = None if options.detect_anomaly else NORM
        step_graph.guard = Guard(step_graph.graph, trainer.exchange.ranks, trainer.exchange.sharding, only)
        step_graph.graph = step_graph.guard.graph
    return step_graph


def _gather(step_graph: StepGraph, trainer: Trainer | None) -> None:
    """Gather parameters of which this rank has a shard only, where they are read."""
    sharding = trainer.exchange.sharding if trainer is not None else None
    if trainer is None or sharding is None or not sharding.gathers:
        return
    results = {**step_graph.graph.outputs, **step_graph.graph.updates}
    forward, replicas = step_graph.forward or tuple(results), trainer.exchange.replicas
    step_graph.graph = gathered(step_graph.graph, sharding, forward, replicas)
    step_graph.state |= {bucket.name: trainer.replica(bucket.name) for bucket in sharding.buckets}


def _keep_copies(step_graph: StepGraph, trainer: Trainer | None, options: Options) -> None:
    """Replace weights that are rounded to 16 bits by copies, which the updates write too."""
    if (low := options.precision.low) is not None:
        step_graph.graph, copies = copied(step_graph.graph, step_graph.state, low)
        step_graph.low, step_graph.state = low, step_graph.state | copies
        if trainer is not None:
            step_graph.states.append(States(copies, None))


def _trained(trainer: Trainer, traced: Traced) -> tuple[str, ...]:
    """Return the replicas of the trainer's parameters that the trace read and whose grad_req is not "null", in trainer
    order."""
    wanted = (p.key for p in trainer.params if p.grad_req != "null")
    return tuple(r for name in wanted for r in trainer.exchange.replicas[name] if r in traced.captured)


def _check_loss(traced: Traced, trainer: Trainer, params: Sequence[str]) -> None:
    """Raise TraceError if the loss has no gradients, or depends on no parameter of the trainer."""
    loss = traced.graph.outputs[traced.first]
    if not is_float(loss.dtype):
        raise TraceError(
            with_user_location(f"the loss is {loss.ty}; only floats have gradients", help="return the loss first")
        )
    if not params and any(p.grad_req != "null" for p in trainer.params):
        raise TraceError(
            with_user_location(
                "the traced function reads no parameter of the trainer",
                help="make the trainer with the collect_params() of the net that is compiled",
            )
        )


def _added(trainer: Trainer, names: Sequence[str]) -> dict[str, NDArray]:
    """Return the gradient arrays of the replicas with grad_req "add"."""
    indices, found = trainer.exchange.indices, {}
    for name in names:
        grad = trainer.replica(name).grad
        if trainer.params[indices[name]].grad_req == "add" and grad is not None:
            found[name] = grad
    return found


def _spent(trainer: Trainer, names: Sequence[str], graph: Graph, kept: Container[str]) -> list[Leaf]:
    """Return the leaves of replicas whose gradients a graph with updates neither returns nor accumulates."""
    lost = [name for name in names if name not in kept and GRAD + name not in graph.outputs]
    return [leaf for name in lost if (leaf := trainer.replica(name)._leaf) is not None]
