"""The compiled engine: forward, backward and update of a batch, with what it logs, are one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph.lightning.batch import Structure, batch_size_of, size_of, to_user
from gluongraph.lightning.engine.steps import Steps, loss_of
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.metric_objects import MetricCalls
from gluongraph.lightning.metrics import Accumulator, Observed, Store
from gluongraph.lightning.optimizers import LightningOptimizer
from gluongraph.ndarray import NDArray
from gluongraph.step import TrainStep
from gluongraph.step.compile import compile as compile_step
from gluongraph.tracing.ema import AveragedWeights
from gluongraph.tracing.tracer import guard


class NoLoss(Exception):
    """training_step gave None: the batch is left out."""


@dataclass(frozen=True)
class _Logs:
    """What a program logs: its accumulator, and the calls of torchmetrics' objects with what is logged of them."""

    accumulator: Accumulator | None
    calls: MetricCalls
    observed: tuple[Observed, ...]


class StepFunction:
    """A step function of a module as a function of arrays, for `mx.compile`. It gives its result, and the arrays that
    objects of torchmetrics take; in a training the loss before these.

    What it logs goes to accumulators, which are state of the program. `structure` is that of the batch.
    """

    def __init__(self, steps: Steps, kind: str, store: Store, dataloader_idx: int | None = None):
        self.steps, self.kind, self.store, self.dataloader_idx = steps, kind, store, dataloader_idx
        self.structure: Structure = None
        self._logs: dict[tuple[Structure, tuple[Any, ...]], _Logs] = {}
        self.__name__ = kind

    def __call__(self, *arrays: NDArray) -> Any:
        structure = guard(self, "structure")
        traced = self.steps.run(self.kind, structure, arrays, self.dataloader_idx)
        accumulator = None
        if traced.logged:
            accumulator = self.store.accumulator(traced.logged)
            accumulator.record(traced.values, batch_size_of(arrays))
        self._logs[structure, tuple([a.shape for a in arrays])] = _Logs(accumulator, traced.calls, traced.observed)
        if self.kind != "training_step":
            return traced.result, traced.arguments
        if (loss := loss_of(traced.result)) is None:
            raise NoLoss
        return loss, traced.result, traced.arguments

    def note(self, shapes: Sequence[tuple[int, ...]], structure: Structure, *arguments: Sequence[Any]) -> None:
        """The program has run on arrays of these shapes, and their values have been accumulated: make the calls of
        torchmetrics' objects, once for each of the `arguments`."""
        logs = self._logs.get((structure, tuple(shapes)))
        if logs is None:
            return
        if logs.accumulator is not None:
            self.store.note(logs.accumulator)
        if logs.calls.calls or logs.observed:
            for each in arguments:
                results = logs.calls.make([to_user(array, True) for array in each])
                self.store.observe(logs.observed, results, size_of(shapes))


class FusedEngine:
    """Trains by one compiled call for each batch, or for several of them.

    `options` are those of `mx.compile`, `optimizers` those of the module, which `self.optimizers()` gives.
    """

    name = "fused"

    def __init__(
        self, steps: Steps, trainer: Any, store: Store, options: dict[str, Any], module: Any, optimizers: Sequence[Any]
    ):
        self.steps, self.store = steps, store
        self.optimizers = [LightningOptimizer(each, self.optimizer_step, module) for each in optimizers]
        self.function = StepFunction(steps, "training_step", store)
        self.step: TrainStep = compile_step(self.function, trainer=trainer, **options)
        self.step.net = steps.block
        self._members = trainer.optimizer.members
        self._bounds = [member.clip_gradient for member in self._members]

    @property
    def averages(self) -> AveragedWeights | None:
        """The running averages of the weights, which are part of the step."""
        return self.step.averages

    @property
    def skipped(self) -> int:
        """How many batches were left out because a gradient was not finite."""
        return self.step.skipped

    def train(self, arrays: Sequence[Any], structure: Structure, accumulate: bool) -> tuple[Any, Any] | None:
        """One batch: its gradients are added to those since the last update, or with those it is one. Gives loss and
        result; None where training_step leaves the batch out."""
        function = self.function
        self.steps.refresh()
        if structure != function.structure:
            function.structure = structure
        try:
            made = self.step.accumulate(*arrays) if accumulate else self.step.single(*arrays)
        except NoLoss:
            return None
        loss, result, arguments = made
        function.note([a.shape for a in arrays], structure, arguments)
        return loss, result

    def clip(self, norm: float | None, value: float | None) -> None:
        """Bound the norm of all gradients, or each element, from the next update on. Bounds of elements that the
        optimizer had of itself are its own again without."""
        self.step.clip_norm = norm
        for member, own in zip(self._members, self._bounds, strict=True):
            member.clip_gradient = own if value is None else value

    def divide_by(self, batches: int) -> None:
        """Have the update divide the gradients that have been added by that many batches, not by their own number."""
        accumulator = self.step.accumulator
        if accumulator.batches:
            accumulator.samples *= batches / accumulator.batches

    def optimizer_step(self, optimizer: Any, closure: Any, how: Any) -> Any:
        """What `self.optimizers().step()` does in a hook.

        Raises:
            MisconfigurationException: updates are part of the compiled step.
        """
        message = f"{type(optimizer).__name__}.step() in a hook, with automatic optimization"
        help = "self.automatic_optimization = False; or override optimizer_step, which may make several updates or none"
        raise misconfigured(message, help=help)

    def apply(self) -> None:
        """The update by the gradients that have been accumulated."""
        self.steps.take_over()  # hooks that see gradients may have given parameters other memory
        if self.step.accumulator.batches:
            self.step.apply()

    def train_many(self, stacks: Sequence[Any], structure: Structure, count: int) -> None:
        """One update for each of several batches, all of one type, by one call. Each array is a stack of theirs."""
        function = self.function
        self.steps.refresh()
        if structure != function.structure:
            function.structure = structure
        _, _, arguments = self.step(*stacks)
        shapes = [stack.shape[1:] for stack in stacks]
        function.note(shapes, structure, *([each[i] for each in arguments] for i in range(count)))


class EvaluationEngine:
    """Runs validation, test and prediction steps as compiled programs, one for each loader and structure."""

    def __init__(self, steps: Steps, options: dict[str, Any]):
        self.steps, self.options = steps, options
        self._known: dict[tuple[Any, ...], tuple[StepFunction, TrainStep]] = {}

    def run(self, kind: str, arrays: Sequence[Any], structure: Structure, loader: int | None, store: Store) -> Any:
        """The result of a step function for a batch."""
        key = (kind, structure, loader, id(store))
        if key not in self._known:
            function = StepFunction(self.steps, kind, store, loader)
            function.structure = structure
            step = compile_step(function, **self.options)
            self._known[key] = function, step
        function, step = self._known[key]
        self.steps.refresh(trains=False)
        result, arguments = step.predict(*arrays)
        function.note([a.shape for a in arrays], structure, arguments)
        return result
