"""What hooks have done to a module of PyTorch's between batches: frozen parameters, tensors and layers replaced."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.gluon.parameter import Parameter
from gluongraph.lightning.read_attributes import UserCode


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
    """A tensor of the module whose memory is a parameter's: the dict of the part that holds it, its name there, that
    memory, and the parameter, if it is one that may be trained."""

    held: dict[str, Any]
    name: str
    tensor: Any
    storage: Any  # a SharedStorage
    parameter: Parameter | None
    trained: bool

    def take_over(self, own: str, stay: bool) -> None:
        """Where the tensor has been replaced, or its `data` has, take the values, and put the shared one back. `own` is
        its name; with `stay` the memory is that before."""
        now, tensor = self.held.get(self.name), self.tensor
        if now is None or (now is tensor and not self.storage.parted):
            return
        self._check(own, now)
        self.storage.rejoin(now, stay or not self.storage.parted)
        if now is not tensor:
            tensor.requires_grad = now.requires_grad
            self.held[self.name] = tensor

    def _check(self, own: str, now: Any) -> None:
        """Have its values place in the shared memory?

        Raises:
            ShapeError: they have another shape.
        """
        shape = self.storage.form.shape
        if tuple(now.shape) != shape:
            shapes = f"shape {tuple(now.shape)}, not {shape}"
            message = f"self.{own} has been replaced by a tensor of {shapes}, and the compiled step has its memory"
            help = "make it as large as it will be, and write into it; or L.Trainer(..., eager=True)"
            raise ShapeError(with_user_location(message, help=help))

    def follow_requires_grad(self) -> None:
        """Train the parameter, or do not, where that has changed."""
        if self.parameter is not None and self.tensor.requires_grad is not self.trained:
            self.trained = bool(self.tensor.requires_grad)
            self.parameter.grad_req = "write" if self.trained else "null"


class ModuleChanges:
    """Lets parameters follow the module that they are of: `parameters` have the memory of its tensors, those named in
    `trained` may be trained. `parts` is another object when layers have been replaced. With `stay` the memory of
    parameters does not move: ranks divide it."""

    def __init__(self, module: Any, parameters: Mapping[str, Parameter], trained: Collection[str], stay: bool):
        self._module, self._stay = module, stay
        self._shared = dict(_places(module, parameters, trained))
        self._calls, self.parts = UserCode.calls, Parts(module)

    def follow(self) -> None:
        """Train the parameters that are to be trained now, and take over the values of tensors that have been replaced.

        Raises:
            ShapeError: a tensor has been replaced by one of another shape.
            MXNetError: parameters have been added.
        """
        if self._calls == UserCode.calls:
            return
        self._calls = UserCode.calls
        if not self.parts.unchanged:
            self.parts = Parts(self._module)
            self._check_added()
        self.take_over()
        for shared in self._shared.values():
            shared.follow_requires_grad()

    def take_over(self) -> None:
        """Take over the values of tensors that have been replaced.

        Raises:
            ShapeError: a tensor has been replaced by one of another shape.
        """
        for name, shared in self._shared.items():
            shared.take_over(name, self._stay)

    def _check_added(self) -> None:
        known = {id(shared.tensor) for shared in self._shared.values()}
        if added := [name for name, p in self._module.named_parameters() if id(p) not in known]:
            what = type(self._module).__name__
            message = f"parameters were added to {what} after the training began: {', '.join(added[:5])}"
            help = "make all layers in __init__ or setup, and freeze those that come later"
            raise MXNetError(with_user_location(message, help=f"{help}; or L.Trainer(..., eager=True)"))


def _places(
    module: Any, parameters: Mapping[str, Parameter], trained: Collection[str]
) -> Iterator[tuple[str, _Shared]]:
    """Each tensor of the module that is the memory of a parameter, by its name."""
    for path, part in module.named_modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                own = f"{path}.{name}".lstrip(".")
                if tensor is not None and own in parameters:
                    storage = parameters[own].data().storage
                    parameter = parameters[own] if own in trained else None
                    yield own, _Shared(held, name, tensor, storage, parameter, bool(tensor.requires_grad))
