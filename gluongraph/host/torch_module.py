"""Modules of PyTorch's, recognized without an import of PyTorch, and what to do with them."""

from __future__ import annotations

import sys

FROM_TORCH = "mx.from_torch(model, (example,)) makes a net of a torch.nn.Module"


def is_torch_module(given: object) -> bool:
    """Is it a torch.nn.Module?

    >>> from gluongraph.host.torch_module import is_torch_module
    >>> is_torch_module(3)
    False
    """
    return any((c.__module__, c.__name__) == ("torch.nn.modules.module", "Module") for c in type(given).__mro__)


def is_torch_loaded() -> bool:
    """Has this process imported PyTorch? Nothing can be one of its objects otherwise.

    >>> from gluongraph.host.torch_module import is_torch_loaded
    >>> isinstance(is_torch_loaded(), bool)
    True
    """
    return sys.modules.get("torch") is not None  # None stands there while `import_whole` hides it
