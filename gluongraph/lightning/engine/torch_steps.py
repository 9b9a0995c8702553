"""The step functions of a module whose layers are PyTorch's: each is exported for each structure of its batch."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.eager.tape import STATE
from gluongraph.errors import with_user_location
from gluongraph.gluon.block import HybridBlock
from gluongraph.host.progress import task
from gluongraph.lightning.batch import Structure, unflatten
from gluongraph.lightning.engine.steps import Traced, arguments
from gluongraph.lightning.metric_objects import recorded, refuse_in_result
from gluongraph.lightning.recording import Recorder, recording
from gluongraph.ndarray import NDArray
from gluongraph.torch import export
from gluongraph.torch.module_block import ModuleBlock
from gluongraph.torch.program import Program

PREFIX = "module."  # what the names of the module's parameters begin with in an exported step


class TorchSteps(ModuleBlock):
    """The parameters and buffers of a module, in its own memory, and the exported programs of its step functions."""

    torch = True

    def __init__(self, module: Any):
        super().__init__(module, share=True)
        self._programs: dict[Hashable, tuple[Program, Recorder]] = {}
        self._hold([self._canonical[name] for name, _ in module.named_buffers(remove_duplicate=False)])

    @property
    def block(self) -> HybridBlock:
        """Itself."""
        return self

    def run(self, kind: str, structure: Structure, arrays: Sequence[NDArray], dataloader_idx: int | None) -> Traced:
        """The module's `kind` on a batch of these arrays."""
        types = tuple((a.type.dtype, a.shape) for a in arrays)
        key = (kind, bool(STATE.training), structure, types, dataloader_idx)
        if key not in self._programs:
            self._programs[key] = self._export(kind, structure, types, dataloader_idx)
        result, values, given = self._run_program(key, arrays)
        recorder = self._programs[key][1]
        observed = tuple(recorder.observed)
        return Traced(result, tuple(recorder.logged), list(values), recorder.calls, observed, list(given))

    def _program(self, key: Hashable) -> Program:
        return self._programs[key][0]

    def _export(
        self,
        kind: str,
        structure: Structure,
        types: tuple[tuple[str, tuple[int, ...]], ...],
        dataloader_idx: int | None,
    ) -> tuple[Program, Recorder]:
        """A step function as a program, with what it logs, and the calls of torchmetrics' objects in it.

        Raises:
            ExportError: torch.export cannot trace it, with the line and the way out.
        """
        torch = export.torch()
        recorder, kept = Recorder(kind), list[str]()
        step = _step_module(self._module, kind, structure, dataloader_idx, recorder, kept)
        examples = tuple(torch.zeros(shape, dtype=getattr(torch, DTYPES[dtype].long)) for dtype, shape in types)
        training = bool(STATE.training)
        with (
            task(0, f"tracing {self._what}.{kind}"),
            export.mode(self._module, training),
            _unchanged(self._module),
            recorded(self._module, recorder),
        ):
            exported = export.export(step, examples, {}, None)
        if kept:
            raise _kept_error(kind, kept[0])
        names = {PREFIX + name: own for name, own in self._canonical.items()}
        return Program(exported, names), recorder


def _step_module(
    module: Any, kind: str, structure: Structure, dataloader_idx: int | None, recorder: Recorder, kept: list[str]
) -> Any:
    """A torch.nn.Module whose forward is the step function on the arrays of a batch. `kept` gets the names of
    attributes in which it keeps arrays."""
    nn = export.torch().nn

    class Step(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *leaves: Any) -> Any:
            recorder.clear()
            batch = unflatten(structure, iter(leaves))
            before = _tensors_kept(module)
            with recording(recorder):
                result = getattr(module, kind)(*arguments(module, kind, batch, dataloader_idx))
            refuse_in_result(result, kind)
            kept.extend(name for name, held in _tensors_kept(module).items() if held - before.get(name, set()))
            values = [value if hasattr(value, "shape") else float(value) for value in _tensors(recorder.values)]
            return result, values, [each.detach() for each in recorder.calls.tensors]

    Step.__name__ = Step.__qualname__ = f"{type(module).__name__}.{kind}"
    return Step()


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


def _kept_error(kind: str, name: str) -> export.ExportError:
    """The error of a step function that keeps arrays, which have no values while it is traced, in an attribute."""
    message = f"{kind} keeps arrays in self.{name}, and is compiled: they have no values while it is traced"
    hook = f"on_{kind.removesuffix('_step').replace('training', 'train')}_batch_end"
    help = f"return them in a dict, and take them from `outputs` in {hook}; or L.Trainer(..., eager=True)"
    return export.ExportError(with_user_location(message, help=help))


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
