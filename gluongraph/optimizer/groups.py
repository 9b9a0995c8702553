"""ParameterGroups: several optimizers as one, each for parameters of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.counting import Index

# What is of the training, not of a group: it is told to each member before that computes anything.
_SHARED = (
    *("rescale_grad", "begin_num_update", "multi_precision", "state_form"),
    *("param_dict", "idx2name", "lr_mult", "wd_mult", "_index_update_count"),
)


class Source(Protocol):
    """Where the settings of the members are kept by others, who may change them between steps."""

    def pull(self, members: Sequence[Optimizer]) -> None:
        """Write the settings of now into the members."""

    def push(self, members: Sequence[Optimizer]) -> None:
        """Take over what has been written into the members."""


class ParameterGroups(Optimizer):
    """Updates each parameter by the optimizer of its group: `members[group_of[index]]`.

    The members may be of different classes and have settings of their own: rates, schedules, decays, clipping. Updates
    are counted here, for all of them; `multi_precision` is that of all. `learning_rate` is the rate of the first group,
    `set_learning_rate` sets that of all. Parameters that `group_of` does not name belong to the first group.

    >>> from gluongraph import gluon, optimizer
    >>> params = [gluon.Parameter(name, shape=(2, 2), init="ones") for name in ("weight", "bias")]
    >>> for p in params:
    ...     p.initialize()
    >>> sgd, adam = optimizer.SGD(learning_rate=0.5), optimizer.Adam(learning_rate=0.25)
    >>> trainer = gluon.Trainer(params, optimizer.ParameterGroups([sgd, adam], {0: 0, 1: 1}))
    >>> trainer.optimizer
    ParameterGroups([SGD(learning_rate=0.5, wd=0.0), Adam(learning_rate=0.25, wd=0.0)])

    Raises:
        ValueError: there are no members, or a parameter belongs to none of them.
        MXNetError: a member keeps numbers between updates, as LARS does.
    """

    def __init__(
        self,
        members: Sequence[Optimizer],
        group_of: Mapping[Index, int],
        multi_precision: bool = False,
        source: Source | None = None,
    ):
        _check_members(members, group_of)
        self._members: tuple[Optimizer, ...] = ()
        super().__init__(multi_precision=multi_precision)
        self._members, self._group_of, self._source = tuple(members), dict(group_of), source
        self._share()

    def __copy__(self) -> ParameterGroups:
        """Another one with copies of the members, whose settings are its own."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), _members=tuple(map(copy.copy, self._members)), _source=None)
        return made

    def extend(self, members: Sequence[Optimizer], group_of: Mapping[Index, int]) -> None:
        """Add optimizers for further parameters; `group_of` counts the groups from the first there has been.

        Raises:
            ValueError, MXNetError: as when it is made; nothing is changed.
        """
        _check_members([*self._members, *members], group_of)
        self._members = (*self._members, *members)
        self._group_of |= group_of
        self._share()

    def _share(self) -> None:
        told = {name: getattr(self, name) for name in _SHARED}
        for member in self._members:
            vars(member).update(told)

    def _pull(self) -> None:
        if self._source is not None:
            self._source.pull(self._members)
        self._share()

    def _push(self) -> None:
        if self._source is not None:
            self._source.push(self._members)

    # -- the members

    @property
    def members(self) -> tuple[Optimizer, ...]:
        self._share()
        return self._members

    def member(self, index: Index) -> Optimizer:
        self._share()
        return self._members[self._group_of.get(index, 0)]

    def scalars(self, index: Index) -> dict[str, float]:
        return self.member(index).scalars(index)

    def alike(self, index: Index) -> tuple[Any, ...]:
        return (self._group_of.get(index, 0), *super().alike(index), *self.member(index).alike(index))

    def may_differ(self, scalar: str) -> bool:
        return True

    def structure(self) -> tuple[Any, ...]:
        self._pull()  # every update begins with this question
        return (type(self), tuple(m.structure() for m in self._members), tuple(self._group_of.items()))

    @property
    def has_formula(self) -> bool:
        return all(member.has_formula for member in self._members)

    @property
    def lazy(self) -> bool:
        return all(member.lazy for member in self._members)

    @property
    def draws(self) -> int:
        return max(member.draws for member in self.members)

    # -- rates and settings

    @property
    def lr(self) -> float:
        """The first group's; what is written is that of all."""
        return self._members[0].lr

    @lr.setter
    def lr(self, rate: float) -> None:
        for member in self._members:
            member.lr = rate

    @property
    def learning_rate(self) -> float:
        self._pull()
        return self._members[0].learning_rate

    def set_learning_rate(self, lr: float) -> None:
        for member in self._members:
            member.set_learning_rate(lr)
        self._push()

    def rate(self, index: Index) -> float:
        return self.member(index).rate(index)

    def decay(self, index: Index) -> float:
        return self.member(index).decay(index)

    def settings(self) -> dict[str, Any]:
        """Those of all members: of the first under their names, of the others as "lr:1"."""
        self._pull()
        return {
            _numbered(name, number): value
            for number, member in enumerate(self._members)
            for name, value in member.settings().items()
            if name not in _SHARED
        }

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        for number, member in enumerate(self._members):
            own = {name: settings[key] for name in vars(member) if (key := _numbered(name, number)) in settings}
            vars(member).update(own)
        self._push()

    def progress(self) -> dict[str, Any]:
        self._pull()
        return {**super().progress(), "rates": [member.lr for member in self._members]}

    def resume(self, progress: Mapping[str, Any]) -> None:
        super().resume(progress)
        for member, rate in zip(self._members, progress.get("rates", ()), strict=False):
            member.lr = rate
        self._push()

    # -- one parameter at a time

    def create_state_multi_precision(self, index: Index, weight: Any) -> Any:
        return self.member(index).create_state_multi_precision(index, weight)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if isinstance(index, (list, tuple)):
            self._each(self.update_multi_precision, index, weight, grad, state)
            return
        self._pull()
        self.member(index).update_multi_precision(index, weight, grad, state)

    def __repr__(self) -> str:
        self._pull()
        return f"ParameterGroups([{', '.join(map(repr, self._members))}])"


def _numbered(name: str, number: int) -> str:
    return f"{name}:{number}" if number else name


def _check_members(members: Sequence[Optimizer], group_of: Mapping[Index, int]) -> None:
    if not members:
        raise ValueError(with_user_location("ParameterGroups of no optimizers"))
    if wrong := [index for index, number in group_of.items() if not 0 <= number < len(members)]:
        message = f"parameter {wrong[0]!r} belongs to group {group_of[wrong[0]]}, and there are {len(members)}"
        raise ValueError(with_user_location(message, help="groups are counted from 0"))
    for member in members:
        if member.carried or len(member.members) != 1 or member.members[0] is not member:
            name = type(member).__name__
            message = f"{name} keeps numbers between updates of all parameters, and cannot be one of several optimizers"
            raise MXNetError(with_user_location(message, help="give it a Trainer of its own"))
