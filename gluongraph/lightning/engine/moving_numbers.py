"""Numbers of a module that hooks change between batches, as the weight of a loss: inputs of the compiled step.

What a traced step reads of Python is a constant of the program, and the program is made anew when it has changed: for
each batch, where a hook anneals a number. So an attribute that holds a float and has changed once becomes an array of
shape () that the program reads, and hooks go on setting the attribute. Where a step cannot be traced so, since it
branches on the number or gives it to what takes no tensor, it stays a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph.lightning.read_attributes import ReadAttributes, UserCode
from gluongraph.ndarray import NDArray
from gluongraph.torch import export


class _Attribute:
    """An attribute of a part of a module."""

    def __init__(self, part: Any, name: str):
        self.part, self.name = part, name

    @property
    def value(self) -> Any:
        """What it holds now."""
        return vars(self.part).get(self.name)

    @property
    def is_number(self) -> bool:
        """Does it hold a number?"""
        return type(self.value) in (int, float)


class MovingNumbers:
    """The attributes of a module that are inputs of its programs: `arrays` has their values, by name."""

    def __init__(self, module: Any, arrays: dict[str, NDArray]):
        self._module, self._arrays = module, arrays
        doubles = any(p.dtype == export.torch().float64 for p in module.parameters())
        self._dtype = "float64" if doubles else "float32"
        self._attributes: dict[str, _Attribute] = {}
        self._calls = UserCode.calls
        self._constant: set[tuple[str, str]] = set()  # step function, name: those that it cannot be traced with

    def add(self, changed: Iterable[tuple[Any, str]]) -> None:
        """Take those that hold floats of the attributes that have changed."""
        paths = {id(part): path for path, part in self._module.named_modules()}
        for part, attribute in changed:
            name = f"{paths.get(id(part), '')}.{attribute}".lstrip(".")
            if id(part) not in paths or name in self._arrays or hasattr(type(part), attribute):
                continue  # a default of the class would hide the buffer
            if type(vars(part).get(attribute)) is float:
                self._attributes[name] = _Attribute(part, attribute)
                self._arrays[name] = NDArray(np.array(vars(part)[attribute], self._dtype))

    def of(self, kind: str) -> list[str]:
        """The names of those that a step function reads as inputs."""
        found = (name for name, attribute in self._attributes.items() if attribute.is_number)
        return [name for name in found if (kind, name) not in self._constant]

    def keep_constant(self, kind: str) -> None:
        """Let them be constants of this step function, which cannot be traced with them as inputs."""
        self._constant |= {(kind, name) for name in self._attributes}

    @contextmanager
    def as_buffers(self, names: Iterable[str], reads: ReadAttributes) -> Iterator[None]:
        """Within: these are buffers of their parts. The trace holds as long as they hold numbers."""
        torch = export.torch()
        dtype = getattr(torch, self._dtype)
        held = {name: attribute for name, attribute in self._attributes.items() if name in set(names)}
        before = {name: attribute.value for name, attribute in held.items()}
        for name, attribute in held.items():
            del vars(attribute.part)[attribute.name]
            attribute.part._buffers[attribute.name] = torch.tensor(float(before[name]), dtype=dtype)
        try:
            yield
        finally:
            for name, attribute in held.items():
                del attribute.part._buffers[attribute.name]
                vars(attribute.part)[attribute.name] = before[name]
                reads.note(attribute, "is_number", True)

    def refresh(self) -> None:
        """Write what the attributes hold now into the arrays."""
        if self._calls == UserCode.calls:
            return
        self._calls = UserCode.calls
        for name, attribute in self._attributes.items():
            if attribute.is_number:
                self._arrays[name].storage.array[...] = attribute.value
