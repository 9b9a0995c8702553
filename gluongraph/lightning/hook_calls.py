"""Calls the hooks of callbacks and of the module, in order; those that nobody overrides cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.foreign import idle_batches
from gluongraph.lightning.hooks import DataHooks, ModelHooks, overrides
from gluongraph.lightning.read_attributes import UserCode

BASES = (ModelHooks, DataHooks)


class HookCalls:
    """The hooks of a run: first those of callbacks in their order, then the module's.

    While a hook runs, `module._current_fx` has its name, by which `self.log` knows where it is.
    """

    def __init__(self, trainer: Any, module: Any, callbacks: Sequence[Callback], base: type):
        self._trainer, self._module, self._base = trainer, module, base
        self._callbacks = list(callbacks)
        self._known: dict[tuple[str, bool | None], list[Callable[..., Any]]] = {}
        self._users: dict[str, bool] = {}  # name of a hook -> has a callback of the user's one?

    def overridden(self, name: str) -> bool:
        """Does the module override a hook?"""
        return overrides(self._module, name, (*BASES, self._base))

    def anybody(self, name: str) -> bool:
        """Does the module or a callback override a hook?"""
        return bool(self._of(name, None)) or self.overridden(name)

    def _of(self, name: str, monitoring: bool | None) -> list[Callable[..., Any]]:
        """The hooks of that name of callbacks: all of them, or those that monitor metrics or do not."""
        if (name, monitoring) not in self._known:
            callbacks = [c for c in self._callbacks if overrides(c, name, Callback)]
            self._users[name] = any(not type(c).__module__.startswith("gluongraph.") for c in callbacks)
            found = [c for c in callbacks if monitoring is None or is_monitoring(c) == monitoring]
            self._known[name, monitoring] = [partial(getattr(c, name), self._trainer, self._module) for c in found]
        return self._known[name, monitoring]

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a hook of all callbacks, then of the module; gives what the module's gives."""
        self.call_callbacks(name, *args, **kwargs)
        return self.call_module(name, *args, **kwargs)

    def call_callbacks(self, name: str, *args: Any, monitoring: bool | None = None, **kwargs: Any) -> None:
        """Call a hook of callbacks."""
        hooks = self._of(name, monitoring)
        if hooks:
            module = self._module
            before, module._current_fx = module._current_fx, name
            try:
                for hook in hooks:
                    hook(*args, **kwargs)
            finally:
                module._current_fx = before
                UserCode.calls += self._users[name]

    def call_module(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a hook of the module; one that it does not override is not called for nothing."""
        module = self._module
        before, module._current_fx = module._current_fx, name
        try:
            return getattr(module, name)(*args, **kwargs)
        finally:
            module._current_fx = before
            UserCode.calls += 1

    def idle_batches(self) -> float:
        """For how many batches no callback needs to be called."""
        return min((idle_batches(c, self._trainer) for c in self._callbacks), default=float("inf"))


def is_monitoring(callback: Any) -> bool:
    """Does it look at metrics at the end of an epoch, and so comes after the module?"""
    import_whole("gluongraph.lightning.callbacks")
    from gluongraph.lightning.callbacks import Checkpoint, EarlyStopping

    return isinstance(callback, (Checkpoint, EarlyStopping))
