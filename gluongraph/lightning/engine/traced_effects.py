"""What a step function of a PyTorch module leaves behind when it is traced: arrays and numbers that it keeps."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gluongraph.errors import warn, with_user_location
from gluongraph.gluon.trace_guards import PLAIN
from gluongraph.lightning.engine.steps import TRAINS_NOTHING
from gluongraph.lightning.errors import misconfigured
from gluongraph.torch import export
from gluongraph.torch.export import ExportError


@dataclass
class Effects:
    """What a step function does besides computing: the attributes in which it keeps arrays, and sets numbers; and does
    its loss depend on parameters?"""

    kept: list[str] = field(default_factory=list)
    numbers: Sequence[str] = ()
    trains: bool = True

    @contextmanager
    def found(self, module: Any) -> Iterator[None]:
        """Within, the step function runs."""
        tensors, numbers, empty = _tensors_kept(module), _numbers(module), _empty_buffers(module)
        yield
        self.kept = [name for name, held in _tensors_kept(module).items() if held - tensors.get(name, set())]
        self.kept += sorted(empty - _empty_buffers(module))
        self.numbers = [f"self.{name}" for name, n in _numbers(module).items() if numbers.get(name, n) != n]

    def see(self, result: Any) -> None:
        """Note whether what it gave depends on parameters that are trained."""
        loss = result.get("loss") if isinstance(result, dict) else result
        self.trains = not isinstance(loss, export.torch().Tensor) or bool(loss.requires_grad)

    def check(self, kind: str) -> None:
        """Warn of numbers that the step function `kind` sets: it is run when it is traced, not for each batch.

        Raises:
            ExportError: it keeps arrays, which have no values while it is traced.
            MisconfigurationException: there is nothing that its loss trains.
        """
        if kind == "training_step" and not self.trains:
            help = "leave out .detach() and torch.no_grad() on the way to it; or let parameters require gradients"
            raise misconfigured(TRAINS_NOTHING, help=help)
        hook = f"on_{kind.removesuffix('_step').replace('training', 'train')}_batch_end"
        if self.kept:
            where = f"self.{self.kept[0]}, and is compiled: they have no values while it is traced"
            help = f"return them in a dict, and take them from `outputs` in {hook}; or L.Trainer(..., eager=True)"
            raise ExportError(with_user_location(f"{kind} keeps arrays in {where}", help=help))
        if self.numbers:
            warn(
                f"{kind} sets {', '.join(self.numbers)}, which a compiled step does not do: its Python runs while it is"
                f" traced. Do that in {hook}, or use L.Trainer(..., eager=True)"
            )


@functools.cache
def own_attributes() -> frozenset[str]:
    """The attributes that torch.nn.Module and LightningModule keep for themselves: parts, parameters, hooks."""
    module = export.torch().nn.Module
    return frozenset((*vars(module()), *vars(module))) - {"training"} | {"_trainer", "_current_fx"}


def _tensors_kept(module: Any) -> dict[str, set[int]]:
    """The tensors in plain attributes of a module and of those within it, by the attribute's name; without parameters,
    of which layers keep lists: nn.LSTM makes its list anew for each trace."""
    tensor = export.torch().Tensor
    parameters = {id(each) for each in module.parameters()}

    def held(value: Any) -> set[int]:
        if isinstance(value, tensor):
            return {id(value)} - parameters
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return {each for part in parts for each in held(part)}

    own = {"_parameters", "_buffers", "_modules"}
    return {
        f"{path}.{name}".lstrip("."): held(value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own | computed_weights(part)
    }


def computed_weights(part: Any) -> set[str]:
    """The attributes of a layer that hooks of `torch.nn.utils` compute before each forward: the weights of weight_norm,
    spectral_norm and prune."""
    hooks = [each for each in part._forward_pre_hooks.values() if type(each).__module__.startswith("torch.nn.utils.")]
    names = (getattr(each, "name", getattr(each, "_tensor_name", None)) for each in hooks)
    return {name for name in names if isinstance(name, str)}


def _empty_buffers(module: Any) -> set[str]:
    """The buffers that are None, by name."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, part in module.named_modules()
        for name, held in part._buffers.items()
        if held is None
    }


def _numbers(module: Any) -> dict[str, Any]:
    """The numbers, flags and texts in attributes of a module and of those within it, by name."""
    own = own_attributes()
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own and type(value) in PLAIN
    }


@contextmanager
def unchanged(module: Any) -> Iterator[None]:
    """Within, a step function is traced: attributes and buffers that it sets, and lists that it fills, are put back."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
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
            for held, content in buffers:
                held.update(content)
            for value, elements in filled.values():
                value[:] = elements
