"""One call of the steps of a trainer at a time, whichever threads call them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Locked(Protocol):
    """What has the lock of its steps. The thread that holds it may call again."""

    step_lock: threading.RLock


S = TypeVar("S", bound=Locked)


def serialized(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """The method, one call at a time: other threads wait.

    Kernels run without Python's lock, in memory that belongs to the step: what lies between them, the scalars, the
    addresses of inputs and results. Two calls at once would write over each other's, and into what is freed. Weights,
    states, counts and the scale of gradients belong to the trainer, so that all of its steps share one lock.
    """

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.step_lock:
            return method(self, *args, **kwargs)

    return call
