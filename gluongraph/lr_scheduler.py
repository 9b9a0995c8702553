"""Learning rates as functions of the number of updates done: mx.lr_scheduler.

A built-in schedule is a pure function of `num_update` (the first update sees 1), so it may be asked in any order,
shared by trainers, and written into an artefact as a formula: so it uses `gluongraph.formulas` in place of math.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from gluongraph.formulas import cos, number


class LRScheduler:
    """Base class: warm-up to `base_lr`, then what a subclass's `rate` says.

    `linear` warm-up gives begin + (base_lr - begin) * n / warmup_steps while n < warmup_steps; `constant` gives begin.
    A schedule of one's own overrides `rate(num_update)`, or `__call__(num_update)` as in MXNet, which then does its
    own warm-up. It may be asked several times for one update, so its answer must depend on num_update alone.

    Raises:
        ValueError: a negative warm-up, one that begins above `base_lr`, or an unknown mode.
        AssertionError: `warmup_steps` is no integer.

    >>> from gluongraph.lr_scheduler import LRScheduler
    >>> class Halving(LRScheduler):
    ...     def rate(self, num_update):
    ...         return self.base_lr / 2**num_update
    >>> [Halving(base_lr=8.0, warmup_steps=2, warmup_begin_lr=2.0)(n) for n in range(4)]
    [2.0, 5.0, 2.0, 1.0]
    """

    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ):
        if not isinstance(warmup_steps, int):
            raise AssertionError(f"warmup_steps is a number of updates, not {warmup_steps!r}")
        if warmup_begin_lr > base_lr:
            raise ValueError(f"the warm-up begins at {warmup_begin_lr}, above the base rate {base_lr}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, it is {warmup_steps}")
        if warmup_mode not in ("linear", "constant"):
            raise ValueError(f"warmup_mode is 'linear' or 'constant', not {warmup_mode!r}")
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_begin_lr = warmup_begin_lr
        self.warmup_mode = warmup_mode

    @property
    def warmup_final_lr(self) -> float:
        """Where the warm-up ends: the base rate."""
        return self.base_lr

    def get_warmup_lr(self, num_update: int) -> float:
        """The rate during warm-up.

        >>> from gluongraph.lr_scheduler import FactorScheduler
        >>> FactorScheduler(step=10, base_lr=8.0, warmup_steps=4).get_warmup_lr(3)
        6.0
        """
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        return self.warmup_begin_lr + (self.base_lr - self.warmup_begin_lr) * num_update / self.warmup_steps

    def rate(self, num_update: int) -> float:
        """The rate after warm-up; subclasses say.

        >>> from gluongraph.lr_scheduler import FactorScheduler
        >>> FactorScheduler(step=3, factor=0.5, base_lr=8.0).rate(7)
        2.0
        """
        raise NotImplementedError("an LRScheduler says its rate in rate(num_update), or overrides __call__")

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        return self.rate(num_update)


class FactorScheduler(LRScheduler):
    """base_lr * factor ** floor((n - 1) / step), not below `stop_factor_lr`.

    Raises:
        ValueError: `step` is less than 1, or `factor` above 1.

    >>> from gluongraph.lr_scheduler import FactorScheduler
    >>> [FactorScheduler(step=3, factor=0.5, base_lr=1.0)(n) for n in range(9)]
    [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(
        self,
        step: int,
        factor: float = 1.0,
        stop_factor_lr: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ):
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if step < 1:
            raise ValueError(f"step is the number of updates between changes, at least 1, not {step}")
        _check_factor(factor)
        self.step, self.factor, self.stop_factor_lr = step, factor, stop_factor_lr

    def rate(self, num_update: int) -> float:
        changes = max(num_update - 1, 0) // self.step
        return max(self.base_lr * self.factor**changes, self.stop_factor_lr) if changes else self.base_lr


class MultiFactorScheduler(LRScheduler):
    """base_lr * factor ** (how many entries of `step` lie below n).

    Raises:
        AssertionError: `step` is no list or tuple, or is empty.
        ValueError: `step` does not increase from 1 on, or `factor` is above 1.

    >>> from gluongraph.lr_scheduler import MultiFactorScheduler
    >>> [round(MultiFactorScheduler([3, 6], 0.1, base_lr=1.0)(n), 3) for n in (3, 4, 6, 7)]
    [1.0, 0.1, 0.1, 0.01]
    """

    def __init__(
        self,
        step: Sequence[int],
        factor: float = 1.0,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ):
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not isinstance(step, (list, tuple)) or not step:
            raise AssertionError(f"step is a list of update numbers, not {step!r}")
        if step[0] < 1 or any(b <= a for a, b in itertools.pairwise(step)):
            raise ValueError(f"step is an increasing list of update numbers from 1 on, not {step!r}")
        _check_factor(factor)
        self.step, self.factor = tuple(step), factor

    def rate(self, num_update: int) -> float:
        return number(self.base_lr * self.factor ** sum(num_update > s for s in self.step))


class _Decay(LRScheduler, ABC):
    """From base_lr down to final_lr at `max_update`, along `shape`, which falls from 1 to 0."""

    def __init__(
        self,
        max_update: int,
        base_lr: float,
        final_lr: float,
        warmup_steps: int,
        warmup_begin_lr: float,
        warmup_mode: str,
    ):
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not isinstance(max_update, int):
            raise AssertionError(f"max_update is a number of updates, not {max_update!r}")
        if max_update < 1:
            raise ValueError(f"max_update must be at least 1, it is {max_update}")
        if warmup_steps >= max_update:
            raise ValueError(f"the warm-up of {warmup_steps} updates leaves nothing of max_update={max_update}")
        self.max_update, self.final_lr = max_update, final_lr

    @abstractmethod
    def shape(self, done: float) -> float:
        """How much of base_lr - final_lr is left when the share `done` of the way is gone."""

    def rate(self, num_update: int) -> float:
        done = min((num_update - self.warmup_steps) / (self.max_update - self.warmup_steps), 1.0)
        return self.final_lr + (self.base_lr - self.final_lr) * self.shape(done)


class PolyScheduler(_Decay):
    """final_lr + (base_lr - final_lr) * (1 - done) ** pwr, done = (n - warm-up) / (max_update - warm-up).

    Raises:
        AssertionError: `max_update` is no integer.
        ValueError: `max_update` is less than 1, or not above `warmup_steps`.

    >>> from gluongraph.lr_scheduler import PolyScheduler
    >>> [round(PolyScheduler(10, base_lr=1.0, final_lr=0.1)(n), 3) for n in (0, 5, 10, 12)]
    [1.0, 0.325, 0.1, 0.1]
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pwr: int = 2,
        final_lr: float = 0.0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ):
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        self.power = pwr

    def shape(self, done: float) -> float:
        return number((1.0 - done) ** self.power)


class CosineScheduler(_Decay):
    """final_lr + (base_lr - final_lr) * (1 + cos(pi * done)) / 2, done = (n - warm-up) / (max_update - warm-up).

    Raises:
        AssertionError: `max_update` is no integer.
        ValueError: `max_update` is less than 1, or not above `warmup_steps`.

    >>> from gluongraph.lr_scheduler import CosineScheduler
    >>> [round(CosineScheduler(10, base_lr=1.0, final_lr=0.1)(n), 3) for n in (0, 5, 10, 12)]
    [1.0, 0.55, 0.1, 0.1]
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        final_lr: float = 0.0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ):
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)

    def shape(self, done: float) -> float:
        return (1.0 + cos(math.pi * done)) / 2.0


def _check_factor(factor: float) -> None:
    if factor > 1.0:
        raise ValueError(f"factor {factor} would raise the rate; it must be at most 1")
