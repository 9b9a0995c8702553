"""The factors by which one parameter's learning rate and weight decay differ from the optimizer's."""

from __future__ import annotations

from typing import ClassVar

from gluongraph.optimizer.arguments import check_number


class Multipliers:
    """`lr_mult` and `wd_mult` of one parameter; `Multipliers.edits` counts every change of any of them.

    Whoever has grouped parameters by their factors looks at the one counter to know that the grouping still holds.

    >>> from gluongraph.optimizer.multipliers import Multipliers
    >>> factors = Multipliers(lr_mult=2.0)
    >>> factors.wd_mult = 0.0
    >>> factors.lr_mult, factors.wd_mult
    (2.0, 0.0)
    """

    edits: ClassVar[int] = 0

    def __init__(self, lr_mult: float = 1.0, wd_mult: float = 1.0):
        check_number(self, "lr_mult", lr_mult)
        check_number(self, "wd_mult", wd_mult)
        self._lr_mult, self._wd_mult = lr_mult, wd_mult

    @property
    def lr_mult(self) -> float:
        """Factor on the learning rate, read live at each update."""
        return self._lr_mult

    @lr_mult.setter
    def lr_mult(self, value: float) -> None:
        check_number(self, "lr_mult", value)
        self._lr_mult = value
        Multipliers.edits += 1

    @property
    def wd_mult(self) -> float:
        """Factor on the weight decay, read live at each update."""
        return self._wd_mult

    @wd_mult.setter
    def wd_mult(self, value: float) -> None:
        check_number(self, "wd_mult", value)
        self._wd_mult = value
        Multipliers.edits += 1
