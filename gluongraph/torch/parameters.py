"""Which Parameter holds the values of a tensor of PyTorch's: for optimizers, which name tensors."""

from __future__ import annotations

import weakref
from typing import Any

from gluongraph.gluon.parameter import Parameter

# By the id of the tensor; the weak reference tells whether it is still the same one. (Tensors compare elementwise, so
# that WeakKeyDictionary cannot hold them.)
_KNOWN: dict[int, tuple[weakref.ref[Any], weakref.ref[Parameter]]] = {}


def remember(tensor: Any, parameter: Parameter) -> None:
    """The parameter holds the values of this tensor from now on."""
    key = id(tensor)
    _KNOWN[key] = (weakref.ref(tensor, lambda _: _KNOWN.pop(key, None)), weakref.ref(parameter))


def parameter_of(tensor: Any) -> Parameter | None:
    """Return the parameter that was made of this tensor by the last `from_torch`; None if there is none."""
    found = _KNOWN.get(id(tensor))
    return found[1]() if found is not None and found[0]() is tensor else None
