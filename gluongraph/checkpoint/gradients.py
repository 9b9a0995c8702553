"""Gradients in a checkpoint: sums of grad_req="add" and of `accumulate`, and residuals of compression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gluongraph.checkpoint.part import REST, Groups, Part, Put, Training, misfit
from gluongraph.eager.tape import Leaf
from gluongraph.runtime.checkpoint import Content
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import WINDOW
from gluongraph.tracing.compressed_exchange import RESIDUAL
from gluongraph.tracing.optimizer_updates import GRAD


def _spread(training: Training, saved: Mapping[str, Array], here: Sequence[str]) -> dict[str, Array]:
    """What each replica here gets: its own; what was on contexts that are no longer there is added to the first."""
    given = {key: saved[key] for key in here if key in saved}
    for key in (key for key in saved if key not in here):
        first = training.owner(key)
        given[first] = given[first] + saved[key]
    return given


def _of(prefix: str, content: Content) -> dict[str, Array]:
    arrays = content.groups[REST]
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def _summing(training: Training) -> Iterator[tuple[str, Leaf]]:
    """The gradients that are added to, by the names of their replicas in files."""
    adding = {key for key, p in training.parameters.items() if p.grad_req == "add"}
    for key, array in training.replicas().items():
        if training.owner(key) in adding and array._leaf is not None:
            yield key, array._leaf


def _take_gradients(training: Training, groups: Groups) -> Any:
    leaves = dict(_summing(training))
    groups[REST] |= {GRAD + key: leaf.grad.storage.array for key, leaf in leaves.items()}
    return {"fresh": [key for key, leaf in leaves.items() if leaf.fresh]} if leaves else None


def _put_gradients(training: Training, content: Content, told: Any) -> Put:
    saved = _of(GRAD, content)
    for key in saved:
        parameter = training.parameters[training.owner(key)]
        if parameter.grad_req != "add":
            raise misfit(f"gradients of {key} were added up; here its grad_req is {parameter.grad_req!r}")

    def put() -> None:
        leaves = dict(_summing(training))
        given = _spread(training, saved, list(leaves))
        for array in training.replicas().values():
            array._fresh_grad = False  # what a backward before the load has left
        for key, leaf in leaves.items():
            leaf.grad.storage.write(given.get(key, 0))
            leaf.fresh, leaf.spent = told is not None and key in told["fresh"], False

    return put


def _take_residuals(training: Training, groups: Groups) -> Any:
    trainer = training.trainer
    residuals = trainer.residual_arrays(trainer.names)
    for name, array in residuals.items():
        groups[REST][RESIDUAL + training.key(name.removeprefix(RESIDUAL))] = array.storage.array
    return {"rank": trainer.communicator.rank} if residuals and trainer.communicator.size > 1 else None


def _put_residuals(training: Training, content: Content, told: Any) -> Put:
    """The residuals of a rank are for that rank; others begin with 0, or they would be applied several times."""
    saved, trainer = _of(RESIDUAL, content), training.trainer

    def put() -> None:
        if told is not None and told["rank"] != trainer.communicator.rank:
            saved.clear()
        arrays = trainer.residual_arrays(trainer.names)
        here = {training.key(name.removeprefix(RESIDUAL)): array for name, array in arrays.items()}
        given = _spread(training, saved, list(here)) if here else {}
        for key, array in here.items():
            array.storage.write(given.get(key, 0))

    return put


def _take_window(training: Training, groups: Groups) -> Any:
    accumulator = training.step.accumulator
    if not accumulator.batches:
        return None
    groups[REST] |= {WINDOW + training.key(name): sum.storage.array for name, sum in accumulator.live.items()}
    names = [training.key(name) for name in accumulator.names]
    return {"batches": accumulator.batches, "samples": accumulator.samples, "names": names}


def _put_window(training: Training, content: Content, told: Any) -> Put:
    saved, accumulator = _of(WINDOW, content), training.step.accumulator

    def put() -> None:
        accumulator.clear()
        if told is None:
            return
        trainer = training.trainer
        names = {training.key(name): name for names in trainer.exchange.replicas.values() for name in names}
        given = _spread(training, saved, list(names)) if saved else {}
        for key, array in accumulator.inputs(trainer, [names[key] for key in given]).items():
            array.storage.write(given[training.key(key.removeprefix(WINDOW))])
        here = dict.fromkeys(key if key in names else training.owner(key) for key in told["names"])
        accumulator.resume([names[key] for key in here], told["batches"], told["samples"])

    return put


GRADIENTS = Part(_take_gradients, _put_gradients)
WINDOWS = Part(_take_window, _put_window)
RESIDUALS = Part(_take_residuals, _put_residuals)
