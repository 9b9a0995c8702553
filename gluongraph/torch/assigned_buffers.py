"""Buffers to which a module assigns while it computes, as `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def written(module: Any) -> Iterator[None]:
    """Within, torch.export traces the module: what it assigns to its buffers is written into them when it has computed.
    torch.export sees what is written into a buffer, and forgets a tensor that takes its place."""
    before: list[tuple[dict[str, Any], str, Any]] = []

    def note(*_: Any) -> None:
        before[:] = [(m._buffers, n, held) for m in module.modules() for n, held in m._buffers.items()]

    def write(*_: Any) -> None:
        assigned: list[tuple[dict[str, Any], str, Any, Any]] = []
        for buffers, name, held in before:
            now = buffers.get(name)
            if held is not None and now is not None and now is not held:
                assigned.append((buffers, name, held, now.detach().clone()))  # as it is before any is written
        for buffers, name, held, value in assigned:
            if value.shape != held.shape:
                shapes = f"shape {tuple(value.shape)}, and it has shape {tuple(held.shape)}"
                raise ValueError(f"the buffer {name!r} is assigned a tensor of {shapes}")
            held.copy_(value)
            buffers[name] = held

    hooks = [module.register_forward_pre_hook(note), module.register_forward_hook(write)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
