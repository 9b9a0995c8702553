"""Modules of PyTorch's, recognized without an import of PyTorch, and what to do with them."""

from __future__ import annotations

FROM_TORCH = "mx.from_torch(model, (example,)) makes a net of a torch.nn.Module"


def is_torch_module(given: object) -> bool:
    """Is it a torch.nn.Module?

    >>> from gluongraph.host.torch_module import is_torch_module
    >>> is_torch_module(3)
    False
    """
    return any((c.__module__, c.__name__) == ("torch.nn.modules.module", "Module") for c in type(given).__mro__)
