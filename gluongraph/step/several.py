"""Several steps by one call: batches that are stacked along a new first axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import random
from gluongraph.dtypes import dtype_name
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.trainer import Trainer
from gluongraph.ir.graph import TensorType
from gluongraph.nd import NDArray
from gluongraph.step.batch import as_array
from gluongraph.step.elastic import is_elastic
from gluongraph.step.rows import Rows
from gluongraph.step.specialization import Specialization
from gluongraph.storage import Array
from gluongraph.tracing.batch_split import is_shared_out
from gluongraph.tracing.grad_norm import NORM

if TYPE_CHECKING:
    from gluongraph.step.train_step import TrainStep


def steps_per_call_of(given: Any) -> int | None:
    """Return the largest number of batches in a call; None if a call takes one batch, not a stack.

    Raises:
        ValueError: it is no number from 1 on.
    """
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        message = f"steps_per_call is how many batches a call takes, stacked: 1, 2, ... or None; not {given!r}"
        raise ValueError(with_user_location(message))
    return given


class Stack:
    """The arrays of a call: `count` batches along the first axis of each of them.

    Lists, as `split_and_load` returns them, are lists of stacks, one for each context.
    """

    def __init__(self, given: Sequence[Any], most: int):
        """Raises ShapeError: they are not stacks of one number of batches, at most `most`."""
        self.given = given
        self.arrays = [_converted(i, each) for i, each in enumerate(given)]
        self.in_shares = any(isinstance(each, list) for each in self.arrays)
        self.count = _count(self.arrays, most)

    def batch(self, number: int) -> list[Any]:
        """Return the arguments of a call on one of the batches."""
        return [
            [NDArray(part[number, ...], given.context) for part, given in zip(each, self.given[i], strict=True)]
            if isinstance(each, list)
            else _one(each, number)
            for i, each in enumerate(self.arrays)
        ]


def _one(stack: Array, number: int) -> Any:
    """A batch of a stack. One of float64 is an NDArray: of an array of numpy's a step would make float32."""
    return NDArray(stack[number, ...]) if stack.dtype == np.float64 else stack[number, ...]


def _converted(number: int, given: Any) -> Any:
    return [as_array(number, part) for part in given] if is_shared_out(given) else as_array(number, given)


def _count(arrays: Sequence[Any], most: int) -> int:
    """Return the number of batches in a stack."""
    parts = [(i, part) for i, each in enumerate(arrays) for part in (each if isinstance(each, list) else [each])]
    if not parts:
        message = f"steps_per_call={most}, and a call without arrays: nothing says how many steps it is"
        raise ShapeError(with_user_location(message, help="leave steps_per_call out"))
    count = len(parts[0][1]) if parts[0][1].shape else 0
    for number, part in parts:
        if wrong := _refusal(part, most, count, parts[0][0]):
            type = TensorType(part.shape, dtype_name(part.dtype))
            message = f"steps_per_call={most}: argument {number} of the step is {type}, {wrong}"
            help = "numpy.stack([x0, x1, ...]) stacks batches; without steps_per_call a step takes them one by one"
            raise ShapeError(with_user_location(message, help=help))
    return count


def _refusal(part: Array, most: int, count: int, first: int) -> str:
    """Return why an array is no stack of `count` batches, at most `most`, as argument `first` is; empty if it is."""
    if not part.shape:
        return f"not a stack of batches: {_shown(most)} if it is one batch"
    if len(part) > most:
        one = f"{_shown(most, *part.shape)} if it is one batch"
        return f"{len(part)} batches where a call takes up to {most}: {_shown(most, *part.shape[1:])}, or {one}"
    return "" if len(part) == count else f"not {_shown(count, *part.shape[1:])}: argument {first} has {count} batches"


def _shown(*shape: int) -> str:
    return f"[{','.join(map(str, shape))}]"


def call(step: TrainStep, given: Sequence[Any], batch_size: float | None, most: int) -> Any:
    """Return the stacked results of one step on each batch of a stack.

    Raises:
        Exception: whatever a step raises; it names the batch, and everything is as after the steps on those before it.
    """
    with step._reports:
        stack = Stack(given, most)
        apart = stack.in_shares or is_elastic() or step.dynamic is not None  # batches are padded one by one
        specialization = None if apart else _found(step, stack.batch(0))
    if specialization is None or specialization.rows is None:
        return _one_by_one(step, stack, batch_size)
    size = batch_size if batch_size is not None else specialization.samples
    return specialization.answer(Several(step, specialization, specialization.rows, stack, size).run(), given)


def _found(step: TrainStep, batch: Sequence[Any]) -> Specialization | None:
    """Return the compiled graph that is a whole step on this batch; None if there is more to a step."""
    try:
        trainer = step._ready(batch)
        if len(trainer.contexts) > 1 or not _is_one_graph(step, trainer):
            return None
        return step._specializations.find("step", batch)[0]
    except ShapeError as error:
        types = ", ".join(str(TensorType(array.shape, dtype_name(array.dtype))) for array in batch)
        error.args = (f"{error}\n  note: with steps_per_call a step gets one batch of each stack, here {types}",)
        raise


def _is_one_graph(step: TrainStep, trainer: Trainer) -> bool:
    """Is a step one call of compiled code, without work for Python after it?"""
    return not (step.options.micro_batches or step.options.keep_grads or step._in_python(trainer))


def _one_by_one(step: TrainStep, stack: Stack, batch_size: float | None) -> Any:
    """Return the stacked results of as many calls."""
    made = []
    for number in range(stack.count):
        with _naming(number, stack.count):
            made.append(step._single(stack.batch(number), batch_size))
    return _stacked(made)


def _stacked(parts: Sequence[Any]) -> Any:
    """Return results of one structure as one of that structure, with arrays stacked along a new first axis."""
    first = parts[0]
    if isinstance(first, NDArray):
        return NDArray(np.stack([part.storage.array for part in parts]), first.context)
    if isinstance(first, dict):
        return {key: _stacked([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        items = [_stacked(each) for each in zip(*parts, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    return first


class Several:
    """Steps on the batches of a stack, run by one call into the compiled code.

    The scalars of all of them are written first, as if all succeeded. The code stops after a batch that cannot be used,
    or is left out for its gradients: counts and generators are then set to what they were before that batch.
    """

    def __init__(self, step: TrainStep, specialization: Specialization, rows: Rows, stack: Stack, batch_size: float):
        trainer = step.trainer
        assert trainer is not None and specialization.table is not None
        self.step, self.specialization, self.stack, self.rows = step, specialization, stack, rows
        self.optimizer, self.table = trainer.optimizer, specialization.table
        self.scale = trainer.scale_for(batch_size)
        self.others = step._others(self.scale) if specialization.others else {}
        self.inputs = [stack.arrays[i] for i in specialization.reads]
        rows.reserve(stack.count)
        self.results = rows.run.results(stack.count)

    def run(self) -> dict[str, Array]:
        """Run all steps; return the stacked results by name."""
        number = 0
        while number < self.stack.count:
            number = self._run_from(number)
        return self.results

    def _run_from(self, first: int) -> int:
        """Run the steps from `first` to the last, or to one that is left out; return the number of the next."""
        count, specialization = self.stack.count, self.specialization
        undo, undraw = self.optimizer.checkpoint(), random.checkpoint(specialization.draws)
        end, error = self._write_rows(first, count)
        done, left_out = first, False
        if end > first and (error is None or isinstance(error, Exception)):
            done, stopped = self._run_rows(first, end)
            left_out = stopped is None and specialization.is_left_out(self.rows.run.flags)
            error = stopped if stopped is not None or left_out else error
        if done > first:
            specialization.note_calls()
            if NORM in self.results:
                self.step.grad_norm = float(self.results[NORM][done - 1]) * self.scale
        if (kept := done - left_out) < count:
            undo()
            undraw()
            self._write_rows(first, kept)
        if error is not None:
            with _naming(done, count):
                raise error
        self.step.skipped += left_out
        return done

    def _write_rows(self, first: int, end: int) -> tuple[int, BaseException | None]:
        """Count the updates of these steps, draw what they draw, and write their scalars. Return the number of the
        first step that has none, and its error: a schedule may fail."""
        optimizer, table, rows = self.optimizer, self.table, self.rows
        number, error = first, None
        values: list[list[float]] = []  # of each step, or of all of them
        constant = table.is_constant(optimizer)
        try:
            if end > first:
                optimizer.rescale_grad = self.scale
            while number < end:
                optimizer.count(table.indices)
                if not (constant and values):
                    values.append(table.values(optimizer))
                number += 1
        except BaseException as failed:
            error = failed
        for i, column in enumerate(rows.columns if values else ()):
            column[first:number] = values[0][i] if constant else [each[i] for each in values]
        for name, column in rows.others.items():
            column[first:number] = self.others[name]
        for name, words in random.take_all_in_turn(self.specialization.draws, number - first).items():
            rows.rng[name][first:number] = words
        return number, error

    def _run_rows(self, first: int, end: int) -> tuple[int, BaseException | None]:
        """Run these steps, up to one that ends them; return the number of those done, with it if it has no error, and
        its error."""
        specialization, run = self.specialization, self.rows.run
        specialization.refresh()
        try:
            run(self.inputs, self.results, first, end)
        except BaseException as error:  # of the runtime; or an interrupt
            return first + run.made, error
        last = first + run.made - 1
        run.take_scalars(last)
        try:
            specialization.check_call([array[last, ...] for array in self.stack.arrays], run.flags)
        except BaseException as error:
            return last, error
        return last + 1, None


@contextmanager
def _naming(number: int, count: int) -> Iterator[None]:
    """Within: an error says which batch of a call it is about."""
    try:
        yield
    except Exception as error:
        if error.args and isinstance(error.args[0], str):
            before = "\n  note: the steps on the batches before it have been made" if number else ""
            error.args = (f"batch [{number}] of {count} in this call: {error.args[0]}{before}", *error.args[1:])
        raise
