"""Modules of PyTorch's, recognized without an import of PyTorch, and what to do with them."""

from __future__ import annotations

import sys
import traceback

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


def expects_tensors(error: TypeError) -> bool:
    """Was it raised by a function of PyTorch's that got an array of gluongraph's?

    >>> from gluongraph.host.torch_module import expects_tensors
    >>> expects_tensors(TypeError("unhashable type"))
    False
    """
    if not is_torch_loaded():
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    folder = str(sys.modules["torch"].__file__).removesuffix("__init__.py")
    within = bool(frames) and frames[-1].f_code.co_filename.startswith(folder)
    return within or "must be Tensor, not NDArray" in str(error)
