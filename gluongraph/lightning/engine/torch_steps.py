"""The step functions of a module whose layers are PyTorch's: each is exported for each structure of its batch."""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.eager.tape import STATE
from gluongraph.errors import MXNetError, ShapeError, warn, with_user_location
from gluongraph.gluon.block import HybridBlock
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.trace_guards import PLAIN
from gluongraph.host.progress import task
from gluongraph.lightning.batch import Structure, unflatten
from gluongraph.lightning.engine.moving_numbers import MovingNumbers
from gluongraph.lightning.engine.steps import Traced, arguments
from gluongraph.lightning.metric_objects import recorded, refuse_in_result
from gluongraph.lightning.read_attributes import ReadAttributes, UserCode, noting
from gluongraph.lightning.recording import Recorder, recording
from gluongraph.ndarray import NDArray
from gluongraph.torch import export
from gluongraph.torch.export import Exported, ExportError
from gluongraph.torch.module_block import ModuleBlock
from gluongraph.torch.program import Program

PREFIX = "module."  # what the names of the module's parameters begin with in an exported step
VARIANTS = 8  # of one step function for one type of batch, as attributes that it reads change
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Variant:
    """A step function as it was exported, and the attributes that it has read; it holds while they are unchanged."""

    number: int
    program: Program
    recorder: Recorder
    reads: ReadAttributes


class Parts:
    """A module with those within it, of which hooks may replace some."""

    def __init__(self, module: Any):
        self._before = [(part._modules, list(part._modules.values())) for part in module.modules()]

    @property
    def unchanged(self) -> bool:
        """Are they the same?"""
        return all(
            len(now) == len(before) and all(map(operator.is_, now.values(), before)) for now, before in self._before
        )


@dataclass
class _Shared:
    """A tensor of the module whose memory is a parameter's: the dict of the part that holds it, its name there, and the
    parameter, if it is one that may be trained."""

    held: dict[str, Any]
    name: str
    tensor: Any
    parameter: Parameter | None
    trained: bool


@dataclass
class Effects:
    """What a step function does besides computing: the attributes in which it keeps arrays, and sets numbers."""

    kept: Sequence[str] = ()
    numbers: Sequence[str] = ()


class TorchSteps(ModuleBlock):
    """The parameters and buffers of a module, in its own memory, and the exported programs of its step functions."""

    torch = True

    def __init__(self, module: Any):
        super().__init__(module, share=True)
        self._programs: dict[Hashable, Variant] = {}  # by kind, structure and types of a batch, and `Variant.number`
        self._variants: dict[Hashable, list[Variant]] = {}
        self._parts = Parts(module)
        self._moving = MovingNumbers(module, self._numbers)
        self._hold([self._canonical[name] for name, _ in module.named_buffers(remove_duplicate=False)])
        self._shared = dict(self._places())
        self._calls = UserCode.calls

    @property
    def block(self) -> HybridBlock:
        """Itself."""
        return self

    def _places(self) -> Iterator[tuple[str, _Shared]]:
        """Each tensor of the module, by its name here."""
        for path, part in self._module.named_modules():
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    own = f"{path}.{name}".lstrip(".")
                    if tensor is not None and own in self._reg_params:
                        parameter = self._reg_params[own] if own in self._trained else None
                        yield own, _Shared(held, name, tensor, parameter, bool(tensor.requires_grad))

    def refresh(self) -> None:
        """Follow what hooks may have done to the module since the last batch: parameters that are to be trained or not,
        and tensors that have been replaced, whose values the shared ones take over."""
        if self._calls == UserCode.calls:
            return
        self._calls = UserCode.calls
        self._check_parts()
        self._moving.refresh()
        for own, shared in self._shared.items():
            tensor = shared.tensor
            if (now := shared.held.get(shared.name)) is not tensor and now is not None:
                if now.shape != tensor.shape:
                    raise _other_shape_error(own, tensor, now)
                tensor.detach().copy_(now.detach())
                tensor.requires_grad = now.requires_grad
                shared.held[shared.name] = tensor
            if shared.parameter is not None and tensor.requires_grad is not shared.trained:
                shared.trained = bool(tensor.requires_grad)
                shared.parameter.grad_req = "write" if shared.trained else "null"

    def _check_parts(self) -> None:
        """Refuse parameters that hooks have added: the compiled step has no memory for them."""
        if self._parts.unchanged:
            return
        self._parts = Parts(self._module)
        known = {id(shared.tensor) for shared in self._shared.values()}
        if added := [name for name, p in self._module.named_parameters() if id(p) not in known]:
            message = f"parameters were added to {self._what} after the training began: {', '.join(added[:5])}"
            help = (
                "make all layers in __init__ or setup, and freeze those that come later; or L.Trainer(..., eager=True)"
            )
            raise MXNetError(with_user_location(message, help=help))

    def run(self, kind: str, structure: Structure, arrays: Sequence[NDArray], dataloader_idx: int | None) -> Traced:
        """The module's `kind` on a batch of these arrays."""
        types = tuple((a.type.dtype, a.shape) for a in arrays)
        key = (kind, bool(STATE.training), structure, types, dataloader_idx)
        variants = self._variants.setdefault(key, [])
        variant = next((each for each in variants if each.reads.unchanged), None)
        if variant is None:
            for each in variants:
                self._moving.add(each.reads.changed())
            variant = self._export(kind, structure, types, dataloader_idx)
            self._programs[variant.number] = variant
            variants.append(variant)
            if len(variants) > VARIANTS:
                del self._programs[variants.pop(0).number]
        variant.reads.guard()
        result, values, given = self._run_program(variant.number, arrays)
        recorder = variant.recorder
        observed = tuple(recorder.observed)
        return Traced(result, tuple(recorder.logged), list(values), recorder.calls, observed, list(given))

    def _program(self, key: Hashable) -> Program:
        return self._programs[key].program

    def _export(
        self,
        kind: str,
        structure: Structure,
        types: tuple[tuple[str, tuple[int, ...]], ...],
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
        if effects.kept:
            raise _kept_error(kind, effects.kept[0])
        _warn_of_numbers(kind, effects.numbers)
        names = {PREFIX + name: own for name, own in self._canonical.items()} | {PREFIX + n: n for n in moving}
        return Variant(next(_NUMBERS), Program(exported, names), recorder, reads)

    def _exported(
        self, step: Any, examples: tuple[Any, ...], recorder: Recorder, reads: ReadAttributes, moving: Sequence[str]
    ) -> Exported:
        """The program of torch.export; `reads` gets what it has read, `moving` are the numbers that are inputs."""
        module = self._module
        with (
            task(0, f"tracing {self._what}.{recorder.fx}"),
            export.mode(module, bool(STATE.training)),
            self._moving.as_buffers(moving, reads),
            noting(reads, module.modules(), export.torch().nn.Module, _own_attributes()),
            _unchanged(module),
            recorded(module, recorder),
        ):
            reads.note(self, "_parts", self._parts)
            return export.export(step, examples, {}, None)


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
            before, numbers = _tensors_kept(module), _numbers(module)
            with recording(recorder):
                result = getattr(module, kind)(*arguments(module, kind, batch, dataloader_idx))
            refuse_in_result(result, kind)
            kept = [name for name, held in _tensors_kept(module).items() if held - before.get(name, set())]
            changed = [f"self.{name}" for name, n in _numbers(module).items() if numbers.get(name, n) != n]
            effects.kept, effects.numbers = kept, changed
            values = [value if hasattr(value, "shape") else float(value) for value in _tensors(recorder.values)]
            return result, values, [each.detach() for each in recorder.calls.tensors]

    Step.__name__ = Step.__qualname__ = f"{type(module).__name__}.{kind}"
    return Step()


@functools.cache
def _own_attributes() -> frozenset[str]:
    """The attributes that torch.nn.Module and LightningModule keep for themselves: parts, parameters, hooks."""
    module = export.torch().nn.Module
    return frozenset((*vars(module()), *vars(module))) - {"training"} | {"_trainer", "_current_fx"}


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Logged values as tensors of one element."""
    torch = export.torch()
    return [v.detach() if isinstance(v, torch.Tensor) else torch.tensor(float(v)) for v in values]


def _tensors_kept(module: Any) -> dict[str, set[int]]:
    """The tensors in plain attributes of a module and of those within it, by the attribute's name."""
    tensor = export.torch().Tensor

    def held(value: Any) -> set[int]:
        if isinstance(value, tensor):
            return {id(value)}
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return {each for part in parts for each in held(part)}

    own = ("_parameters", "_buffers", "_modules")
    return {
        f"{path}.{name}".lstrip("."): held(value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own
    }


def _kept_error(kind: str, name: str) -> ExportError:
    """The error of a step function that keeps arrays, which have no values while it is traced, in an attribute."""
    message = f"{kind} keeps arrays in self.{name}, and is compiled: they have no values while it is traced"
    help = f"return them in a dict, and take them from `outputs` in {_batch_end(kind)}; or L.Trainer(..., eager=True)"
    return ExportError(with_user_location(message, help=help))


def _other_shape_error(name: str, tensor: Any, now: Any) -> ShapeError:
    """The error of a tensor of a module that a hook has replaced by one of another shape."""
    shapes = f"shape {tuple(now.shape)}, not {tuple(tensor.shape)}"
    message = f"self.{name} has been replaced by a tensor of {shapes}, and the compiled step has its memory"
    help = "make it as large as it will be, and write into it; or L.Trainer(..., eager=True)"
    return ShapeError(with_user_location(message, help=help))


def _numbers(module: Any) -> dict[str, Any]:
    """The numbers, flags and texts in attributes of a module and of those within it, by name."""
    own = _own_attributes()
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own and type(value) in PLAIN
    }


def _warn_of_numbers(kind: str, numbers: Sequence[str]) -> None:
    """Warn of numbers that a step function sets: it is run when it is traced, not for each batch."""
    if numbers:
        warn(
            f"{kind} sets {', '.join(numbers)}, which a compiled step does not do: its Python runs while it is traced."
            f" Do that in {_batch_end(kind)}, or use L.Trainer(..., eager=True)"
        )


def _batch_end(kind: str) -> str:
    """The hook after each batch of a step function."""
    return f"on_{kind.removesuffix('_step').replace('training', 'train')}_batch_end"


@contextmanager
def _unchanged(module: Any) -> Iterator[None]:
    """Within, a step function is traced: attributes that it sets, and lists that it fills, are put back."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    filled = {id(v): (v, list(v)) for _, attributes in before for v in attributes.values() if type(v) is list}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export, about attributes that are set
        try:
            yield
        finally:
            for part, attributes in before:
                for name in vars(part).keys() - attributes.keys():
                    del vars(part)[name]
                vars(part).update(attributes)
            for value, content in filled.values():
                value[:] = content
