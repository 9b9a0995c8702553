"""The step functions of a module whose layers are PyTorch's: each is exported for each structure of its batch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.eager.tape import STATE
from gluongraph.errors import warn
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.host.progress import task
from gluongraph.lightning.batch import Structure, unflatten
from gluongraph.lightning.engine.host_values import draws_refused, elements_as_tensors
from gluongraph.lightning.engine.module_changes import ModuleChanges
from gluongraph.lightning.engine.moving_numbers import MovingNumbers
from gluongraph.lightning.engine.steps import Traced, arguments
from gluongraph.lightning.engine.traced_effects import Effects, own_attributes, unchanged
from gluongraph.lightning.metric_objects import recorded, refuse_in_result
from gluongraph.lightning.read_attributes import ReadAttributes, noting
from gluongraph.lightning.recording import Recorder, recording
from gluongraph.ndarray import NDArray
from gluongraph.torch import export
from gluongraph.torch.export import Exported, ExportError
from gluongraph.torch.module_block import ModuleBlock
from gluongraph.torch.program import Program

PREFIX = "module."  # what the names of the module's parameters begin with in an exported step
VARIANTS = 8  # of one step function for one type of batch, as attributes that it reads change
EAGER = "L.Trainer(..., eager=True)"  # the way out where a step cannot be traced: PyTorch computes it
MANY = 10  # traces of it, of which a warning says why
Types = tuple[tuple[str, tuple[int, ...]], ...]  # dtypes and shapes of a batch
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Variant:
    """A step function as it was exported, and the attributes that it has read; it holds while they are unchanged."""

    number: int
    program: Program
    recorder: Recorder
    reads: ReadAttributes


class TorchSteps(ModuleBlock):
    """The parameters and buffers of a module, in its own memory, which with `stay` does not move, and the exported
    programs of its step functions."""

    torch = True

    def __init__(self, module: Any, stay: bool):
        super().__init__(module, share=True)
        self._programs: dict[Hashable, Variant] = {}  # by kind, structure and types of a batch, and `Variant.number`
        self._variants: dict[Hashable, list[Variant]] = {}
        self._exports: Counter[Hashable] = Counter()
        self._moving = MovingNumbers(module, self._numbers)
        self._hold([self._canonical[name] for name, _ in module.named_buffers(remove_duplicate=False)])
        self._changes = ModuleChanges(module, self._canonical, self._reg_params, self._trained, stay)

    @property
    def block(self) -> HybridBlock:
        """Itself."""
        return self

    def refresh(self, trains: bool = True) -> None:
        """Follow what hooks may have done to the module since the last batch, before one that `trains`, or not."""
        self._changes.follow(trains)
        self._moving.refresh()

    def take_over(self) -> None:
        """Take the values of tensors that have been replaced since the last batch."""
        self._changes.take_over()

    def run(self, kind: str, structure: Structure, arrays: Sequence[NDArray], dataloader_idx: int | None) -> Traced:
        """The module's `kind` on a batch of these arrays."""
        types = tuple((a.type.dtype, a.shape) for a in arrays)
        key = (kind, bool(STATE.training), structure, types, dataloader_idx)
        variant = self._variant(key, kind, structure, types, dataloader_idx)
        variant.reads.guard()
        result, values, given = self._run_program(variant.number, arrays)
        recorder = variant.recorder
        observed = tuple(recorder.observed)
        return Traced(result, tuple(recorder.logged), list(values), recorder.calls, observed, list(given))

    def _variant(self, key: Hashable, kind: str, structure: Structure, types: Types, loader: int | None) -> Variant:
        """The program that holds now; it is exported anew where attributes that it reads have changed."""
        variants = self._variants.setdefault(key, [])
        for each in variants:
            if each.reads.unchanged:
                return each
        changed = [attribute for each in variants for attribute in each.reads.changed()]
        self._moving.add(changed)
        self._warn_of_many(key, kind, changed)
        made = self._export(kind, structure, types, loader)
        self._programs[made.number] = made
        variants.append(made)
        if len(variants) > VARIANTS:
            del self._programs[variants.pop(0).number]
        return made

    def _warn_of_many(self, key: Hashable, kind: str, changed: Sequence[tuple[Any, str]]) -> None:
        """Say why a step function is traced again and again: it looks as if the training stood still."""
        self._exports[key] += 1
        if self._exports[key] == MANY:
            names = ", ".join(sorted({f"self.{name}" if part is self._module else name for part, name in changed}))
            warn(
                f"{kind} is traced and compiled for the {MANY}th time, since it reads what changes: {names}."
                " What changes with each batch is to be a float that it computes with; or use Trainer(..., eager=True)"
            )

    def _program(self, key: Hashable) -> Program:
        return self._programs[key].program

    def _export(
        self,
        kind: str,
        structure: Structure,
        types: Types,
        dataloader_idx: int | None,
    ) -> Variant:
        """A step function as a program, with what it logs, and the calls of torchmetrics' objects in it.

        Raises:
            ExportError: torch.export cannot trace it, with the line and the way out.
        """
        torch = export.torch()
        recorder, reads, effects = Recorder(kind), ReadAttributes(), Effects()
        step = _step_module(self._module, kind, structure, dataloader_idx, recorder, effects)
        examples = tuple(torch.zeros(shape, dtype=getattr(torch, DTYPES[dtype].long)) for dtype, shape in types)
        moving = self._moving.of(kind)
        try:
            exported = self._exported(step, examples, recorder, reads, moving)
        except ExportError:
            if not moving:
                raise
            self._moving.keep_constant(kind)
            return self._export(kind, structure, types, dataloader_idx)
        effects.check(kind)
        names = {PREFIX + name: own for name, own in self._canonical.items()} | {PREFIX + n: n for n in moving}
        return Variant(next(_NUMBERS), Program(exported, names), recorder, reads)

    def _exported(
        self, step: Any, examples: tuple[Any, ...], recorder: Recorder, reads: ReadAttributes, moving: Sequence[str]
    ) -> Exported:
        """The program of torch.export; `reads` gets what it has read, `moving` are the numbers that are inputs."""
        module, training = self._module, bool(STATE.training)
        # Of layers that predict all are put into that mode for the trace, whatever hooks have said of single ones.
        own = own_attributes() if training and module.training else own_attributes() | {"training"}
        with (
            task(0, f"tracing {self._what}.{recorder.fx}"),
            export.mode(module, training),
            self._moving.as_buffers(moving, reads),
            noting(reads, module.modules(), export.torch().nn.Module, own),
            unchanged(module),
            draws_refused(export.torch(), module, recorder.fx),
            elements_as_tensors(export.torch()),
            recorded(module, recorder),
        ):
            reads.note(self._changes, "parts", self._changes.parts)
            try:
                return export.export(step, examples, {}, None, otherwise=EAGER)
            except ExportError as error:
                if recorder.refused is not None and error.__cause__ is recorder.refused:
                    raise recorder.refused from None
                raise


def _step_module(
    module: Any, kind: str, structure: Structure, dataloader_idx: int | None, recorder: Recorder, effects: Effects
) -> Any:
    """A torch.nn.Module whose forward is the step function on the arrays of a batch; it says what that leaves behind in
    `effects`."""
    nn = export.torch().nn

    class Step(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *leaves: Any) -> Any:
            recorder.clear()
            batch = unflatten(structure, iter(leaves))
            with effects.found(module), recording(recorder):
                result = getattr(module, kind)(*arguments(module, kind, batch, dataloader_idx))
            refuse_in_result(result, kind)
            effects.see(result)
            values = [value if hasattr(value, "shape") else float(value) for value in _tensors(recorder.outputs)]
            return result, values, [each.detach() for each in recorder.calls.tensors]

    Step.__name__ = Step.__qualname__ = f"{type(module).__name__}.{kind}"
    return Step()


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Logged values as tensors of one element."""
    torch = export.torch()
    return [v.detach() if isinstance(v, torch.Tensor) else torch.tensor(float(v)) for v in values]
