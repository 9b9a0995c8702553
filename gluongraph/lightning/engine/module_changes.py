"""What hooks have done to a module of PyTorch's between batches: frozen parameters, tensors and layers replaced."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gluongraph.errors import MXNetError, ShapeError, warn, with_user_location
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
class _Place:
    """Where a module holds a tensor: the dict of the part that has it, its name there, and from the module on."""

    held: dict[str, Any]
    name: str
    path: str

    @property
    def tensor(self) -> Any:
        """What is there now."""
        return self.held.get(self.name)


@dataclass
class _Shared:
    """A tensor of the module whose memory is a parameter's: where the module holds it, that memory, and the parameter,
    if it is one that may be trained. `first` is the tensor that was there when the training began, which optimizers
    have."""

    places: list[_Place]
    first: Any
    tensor: Any
    storage: Any  # a SharedStorage
    parameter: Parameter | None
    trained: bool
    warned: bool = False

    def take_over(self, own: str, stay: bool) -> None:
        """Where the tensor has been replaced, or its `data` has, take the values, and be the memory of what is there
        now. `own` is its name; with `stay` that memory is the one before."""
        now, tensor = self.places[0].tensor, self.tensor
        if len(self.places) > 1:
            self._check_tied(now)
        if now is None or (now is tensor and not self.storage.parted):
            return
        self._check(own, now)
        if now is tensor:
            self.storage.rejoin(now, stay)
        else:  # the one before keeps its values: hooks put it back, as those do that validate averages of weights
            self.storage.follow(now, stay)
            self.tensor = now

    def _check_tied(self, now: Any) -> None:
        """Do all layers that share the tensor still do so?

        Raises:
            MXNetError: one of them has another one.
        """
        if apart := [place.path for place in self.places if place.tensor is not now]:
            first = self.places[0].path
            message = f"self.{first} and self.{apart[0]} were one tensor, and a hook has replaced it in one of them"
            raise MXNetError(with_user_location(message, help="replace it in both; or L.Trainer(..., eager=True)"))

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

    def follow_requires_grad(self, own: str, trains: bool) -> None:
        """Train the parameter, or do not, where that has changed. A tensor that optimizers do not have is not trained,
        which is warned of before a batch that `trains`."""
        if self.parameter is None:
            return
        trained = self.tensor.requires_grad and self.tensor is self.first
        if trained is not self.trained:
            self.trained = trained
            self.parameter.grad_req = "write" if trained else "null"
        if trains and self.tensor is not self.first and self.tensor.requires_grad and not self.warned:
            self.warned = True
            warn(
                f"self.{own} has been replaced by another parameter, which is not trained: the optimizer has the one"
                f" before, as in PyTorch. Write into it: self.{own}.data = values"
            )


class ModuleChanges:
    """Lets parameters follow the module that they are of: `parameters` have the memory of its tensors, which have their
    names in `canonical`, since layers may share one; those named in `trained` may be trained. `parts` is another object
    when layers have been replaced. With `stay` the memory of parameters does not move: ranks divide it."""

    def __init__(
        self,
        module: Any,
        canonical: Mapping[str, str],
        parameters: Mapping[str, Parameter],
        trained: Collection[str],
        stay: bool,
    ):
        self._module, self._stay = module, stay
        self._shared = _shared(module, canonical, parameters, trained)
        self._calls, self.parts = UserCode.calls, Parts(module)

    def follow(self, trains: bool) -> None:
        """Train the parameters that are to be trained now, and take over the values of tensors that have been replaced,
        before a batch that `trains`, or not.

        Raises:
            ShapeError: a tensor has been replaced by one of another shape.
            MXNetError: parameters have been added; one that layers share has been replaced in one of them.
        """
        if self._calls == UserCode.calls:
            return
        self._calls = UserCode.calls
        if not self.parts.unchanged:
            self.parts = Parts(self._module)
            self._check_added()
        self.take_over()
        for name, shared in self._shared.items():
            shared.follow_requires_grad(name, trains)

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


def _shared(
    module: Any, canonical: Mapping[str, str], parameters: Mapping[str, Parameter], trained: Collection[str]
) -> dict[str, _Shared]:
    """Each tensor of the module that is the memory of a parameter, by its name."""
    found: dict[str, _Shared] = {}
    for place in _places(module):
        own = canonical.get(place.path)
        if own is None or own not in parameters:
            continue
        if own in found:
            found[own].places.append(place)
            continue
        tensor, parameter = place.tensor, parameters[own]
        requires_grad = bool(tensor.requires_grad)
        of = parameter if own in trained else None
        found[own] = _Shared([place], tensor, tensor, parameter.data().storage, of, requires_grad)
    return found


def _places(module: Any) -> Iterator[_Place]:
    """Where the module holds tensors."""
    for path, part in module.named_modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield _Place(held, name, f"{path}.{name}".lstrip("."))
