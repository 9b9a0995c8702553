"""Optimizers of torch.optim taken over by a Trainer: their parameter groups, live, and their states, both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gluongraph import optimizer as optimizers
from gluongraph.errors import MXNetError, pluralize, with_user_location
from gluongraph.gluon.parameter import Parameter
from gluongraph.optimizer import Optimizer, ParameterGroups
from gluongraph.optimizer.counting import Index
from gluongraph.optimizer.torch.base import TorchRule
from gluongraph.torch import optimizer_states
from gluongraph.torch.live_states import LiveStates, Snapshot
from gluongraph.torch.parameters import parameter_of

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer

# Classes of torch.optim -> rules; the names are the same. Lion is not PyTorch's.
RULES: Mapping[str, Callable[[], TorchRule]] = {
    name: getattr(optimizers.torch, name) for name in optimizers.torch.__all__ if name != "Lion"
}
_INSTEAD = {
    "LBFGS": "it evaluates the loss several times in a step, by a closure, and a Trainer updates from gradients once",
}


class TorchOptimizers:
    """Optimizers of torch.optim as one optimizer here: `rule` has a member for each parameter group, in order, and
    updates `parameters`. Before each update the options of the groups are read, so that schedulers of torch work.

    Raises:
        MXNetError: an optimizer of a class that is not known, or that has parameters that `from_torch` has not made.
        ValueError: an option has a value that is out of its range.
    """

    def __init__(self, given: Any, params: Sequence[Parameter] | None, multi_precision: bool = False):
        self.optimizers: tuple[Any, ...] = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        self._rules = [_rule_of(each) for each in self.optimizers]
        self._groups: list[tuple[Any, int]] = []
        self.tensors: list[Any] = []
        self.parameters: list[Parameter] = []
        self._trained: list[bool] = []  # does each tensor have requires_grad?
        self._read: list[tuple[Any, ...]] = []
        self._sizes = self._count_groups()
        members, group_of = self._taken(params)
        self.rule = ParameterGroups(members, group_of, multi_precision=multi_precision, source=self)
        self._taken_states = Snapshot(each.state for each in self.optimizers)  # which the Trainer begins with
        self._live: list[LiveStates] = []  # the `state` of each optimizer, from the first update on

    def _count_groups(self) -> list[list[int]]:
        return [[len(group["params"]) for group in each.param_groups] for each in self.optimizers]

    def _taken(self, params: Sequence[Parameter] | None) -> tuple[list[TorchRule], dict[Index, int]]:
        """The members for the groups that have none yet, and the groups of their parameters, by index."""
        groups = [(each, n) for each in self.optimizers for n in range(len(each.param_groups))][len(self._groups) :]
        rules = dict(zip(map(id, self.optimizers), self._rules, strict=True))
        sizes = [len(each.param_groups[number]["params"]) for each, number in groups]
        tensors = [p for each, number in groups for p in each.param_groups[number]["params"]]
        first = len(self.tensors)
        found = [_parameter(tensor, first + number) for number, tensor in enumerate(tensors)]
        _check_held([*self.parameters, *found], params)
        members = [rules[id(each)]() for each, _ in groups]
        owners = [len(self._groups) + number for number, size in enumerate(sizes) for _ in range(size)]
        self._write(groups, members, read := [() for _ in members])
        self._groups += groups
        self._read += read
        self.tensors += tensors
        self.parameters += found
        self._trained += [tensor.requires_grad for tensor in tensors]
        return members, {first + place: owner for place, owner in enumerate(owners)}

    # -- parameters that are frozen and added

    def follow_requires_grad(self) -> None:
        """Train the parameters no more whose tensors have been frozen since the last update, and those again that are
        frozen no more."""
        now = [tensor.requires_grad for tensor in self.tensors]
        if now != self._trained:
            for parameter, trained, before in zip(self.parameters, now, self._trained, strict=True):
                if trained != before:
                    parameter.grad_req = "write" if trained else "null"
            self._trained = now

    @property
    def has_grown(self) -> bool:
        """Have parameter groups been added since they were taken over?"""
        return sum(len(each.param_groups) for each in self.optimizers) != len(self._groups)

    def grow(self) -> list[Parameter]:
        """Take over the groups that `add_param_group` has added; gives their parameters.

        Raises:
            MXNetError: parameters of a module that `from_torch` has not taken; parameters were added or removed in
                another way. Nothing is changed.
        """
        sizes = self._count_groups()
        *before, last = self._sizes
        if sizes[:-1] != before or sizes[-1][: len(last)] != last:
            raise self._changed_error()
        known = len(self.parameters)
        members, group_of = self._taken(None)
        for member in members:
            member.clip_gradient = self.rule.members[0].clip_gradient
        self._sizes = sizes
        self.rule.extend(members, group_of)
        return self.parameters[known:]

    @staticmethod
    def _changed_error() -> MXNetError:
        message = "the parameters in the groups of the optimizer of torch were changed after the Trainer was made"
        return MXNetError(with_user_location(message, help="add them by add_param_group, to the last optimizer"))

    # -- options, as `optimizer.groups.Source` has it

    def pull(self, members: Sequence[Optimizer]) -> None:
        """Write the options of now into the members.

        Raises:
            MXNetError: parameters were added or removed in another way than by `add_param_group`.
            ValueError: an option has a value that is out of its range.
        """
        sizes = self._count_groups()
        known = zip(sizes, self._sizes, strict=True)
        if sizes != self._sizes and any(now[: len(before)] != before for now, before in known):
            raise self._changed_error()
        self._write(self._groups, members, self._read)

    @staticmethod
    def _write(groups: Sequence[tuple[Any, int]], members: Sequence[Optimizer], read: list[tuple[Any, ...]]) -> None:
        """Write the options of groups into their members, where they are not those of `read`, which they become."""
        for place, ((each, number), member) in enumerate(zip(groups, members, strict=True)):
            assert isinstance(member, TorchRule)
            group, names = each.param_groups[number], (*member.options, *member.flags)
            values = tuple(_plain(group.get(name, member.option(name))) for name in names)
            if values != read[place]:
                for name, value in zip(names, values, strict=True):
                    member.set_option(name, value)
                read[place] = values
            # What optimizer.step() does; a scheduler of torch warns where it has not been called.
            each._opt_called = True

    def push(self, members: Sequence[Optimizer]) -> None:
        """Write into the groups what has been set in the members: by `set_learning_rate`, or a checkpoint."""
        for (each, number), member in zip(self._groups, members, strict=True):
            assert isinstance(member, TorchRule)
            group = each.param_groups[number]
            for name in (*member.options, *member.flags):
                if name not in group or _plain(group[name]) == (value := member.option(name)):
                    continue
                if hasattr(group[name], "fill_"):
                    group[name].fill_(value)
                else:
                    group[name] = value

    # -- states

    def load_states(self, trainer: Trainer, told: Sequence[Mapping[Any, Any]]) -> None:
        """Go on from the states of the optimizers, by number of the parameter as in state_dict(), in order.

        Raises:
            FormatError: they are not those of these parameters and options; nothing is changed.
        """
        found: dict[int, Mapping[str, Any]] = {}
        first = 0
        for sizes, states in zip(self._sizes, told, strict=True):
            found |= {first + number: state for number, state in states.items()}
            first += sum(sizes)
        optimizer_states.load(trainer, found)

    def states_of_now(self) -> list[dict[int, Mapping[str, Any]]]:
        """The states that the optimizers hold, by number of the parameter."""
        tensors = iter(self.tensors)
        kept = [[each.state.get(next(tensors)) for _ in range(sum(sizes))] for each, sizes in self._by_optimizer()]
        return [{number: state for number, state in enumerate(states) if state} for states in kept]

    def follow_states(self, trainer: Trainer) -> None:
        """Go on from what has been done to the `state` of the optimizers since the last update: it was cleared, loaded,
        or written into. From now on it gives the trainer's.

        Raises:
            FormatError: what it holds are no states of these optimizers; the trainer is as before.
        """
        live = self._live
        if live and all(map(_is_untouched, self.optimizers, live)):
            return
        states = [each.state for each in self.optimizers]
        if live:
            changed = any(state is not own or own.changed for state, own in zip(states, live, strict=True))
        else:
            changed = not self._taken_states.is_of(states)
        told = self.states_of_now() if changed else None
        self._tell_states(trainer)
        if told is not None:
            self.load_states(trainer, told)

    def _tell_states(self, trainer: Trainer) -> None:
        """Let the `state` of the optimizers give the trainer's of the time when somebody looks."""
        if not self._live:
            self._live = [LiveStates(partial(self._of_trainer, trainer, n)) for n in range(len(self.optimizers))]
        for each, own in zip(self.optimizers, self._live, strict=True):
            own.forget()
            each.state = own

    @property
    def tells_states(self) -> bool:
        """Does the `state` of the optimizers give the trainer's, since it makes their updates?"""
        return bool(self._live)

    def _of_trainer(self, trainer: Trainer, number: int) -> dict[Any, dict[str, Any]]:
        """The trainer's states of the tensors of one optimizer."""
        first = sum(map(sum, self._sizes[:number]))
        states = optimizer_states.taken(trainer)
        return {self.tensors[i]: states[i] for i in range(first, first + sum(self._sizes[number])) if i in states}

    def _by_optimizer(self) -> list[tuple[Any, list[int]]]:
        return list(zip(self.optimizers, self._sizes, strict=True))

    def state_dicts(self, trainer: Trainer) -> list[dict[str, Any]]:
        """What `state_dict()` of each optimizer would give, had it made the trainer's updates."""
        states, made, first = optimizer_states.taken(trainer), list[dict[str, Any]](), 0
        for each, sizes in self._by_optimizer():
            own = {number: states[first + number] for number in range(sum(sizes)) if first + number in states}
            made.append({"state": own, "param_groups": each.state_dict()["param_groups"]})
            first += sum(sizes)
        return made

    def load_state_dicts(self, trainer: Trainer, told: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what `state_dict()` of each optimizer gave: options, which its own groups take over, and states.

        Raises:
            FormatError: they are not those of these parameters and options; the trainer is as before.
        """
        if len(told) != len(self.optimizers):
            message = f"{pluralize(len(told), 'state dictionary')} for {pluralize(len(self.optimizers), 'optimizer')}"
            raise ValueError(with_user_location(message, help="a list, in the order in which they were given"))
        for each, state_dict in zip(self.optimizers, told, strict=True):
            each.load_state_dict({**state_dict, "state": {}})
        if self.tells_states:
            self._tell_states(trainer)
        else:
            self._taken_states = Snapshot(each.state for each in self.optimizers)
        self.load_states(trainer, [state_dict["state"] for state_dict in told])


def state_dict_of(trainer: Trainer) -> dict[str, Any]:
    """What `state_dict()` of an optimizer of torch would give that has the trainer's parameters, in order, and a group
    for each member of its optimizer.

    Raises:
        MXNetError: the trainer's optimizer is not one of mx.optimizer.torch.
    """
    rule = trainer.optimizer
    for member in rule.members:
        if not isinstance(member, TorchRule):
            message = f"{type(member).__name__} is not an optimizer of PyTorch's, and its states mean something else"
            raise MXNetError(
                with_user_location(message, help='mx.optimizer.torch has those: Trainer(params, "torch.adam")')
            )
    numbers = {
        id(member): [i for i in range(len(trainer.params)) if rule.member(i) is member] for member in rule.members
    }
    order = [i for numbered in numbers.values() for i in numbered]
    states, groups, first = optimizer_states.taken(trainer), list[dict[str, Any]](), 0
    for member in rule.members:
        size = len(numbers[id(member)])
        groups.append({**_options(member), "params": list(range(first, first + size))})
        first += size
    return {"state": {place: states[i] for place, i in enumerate(order) if i in states}, "param_groups": groups}


def _options(member: Optimizer) -> dict[str, Any]:
    """The options of a group with this member's, and torch's defaults of those that are not its own (foreach, ...)."""
    assert isinstance(member, TorchRule)
    own = {name: member.option(name) for name in (*member.options, *member.flags)}
    own["lr"] = member.learning_rate
    torch = optimizer_states.torch()
    cls = getattr(torch.optim, type(member).__name__, None)
    defaults = {} if cls is None else cls([torch.zeros(1, 1)]).defaults
    return {**defaults, **{name: value for name, value in own.items() if name in defaults or not defaults}}


def why_unknown(given: Any) -> str | None:
    """Why this optimizer cannot be taken over, with its name; None where its formula is known."""
    cls = type(given)
    if cls.__module__.startswith("torch.optim") and cls.__name__ in RULES:
        return None
    return f"{cls.__module__}.{cls.__qualname__}: {_INSTEAD.get(cls.__name__, 'its formula is not known here')}"


def _rule_of(given: Any) -> Callable[[], TorchRule]:
    if (why := why_unknown(given)) is None:
        return RULES[type(given).__name__]
    message = f"the Trainer cannot take over {why}"
    known = ", ".join(sorted(RULES))
    help = f"of torch.optim there are {known}; state another one's formula as rule() of an mx.optimizer.Optimizer"
    raise MXNetError(with_user_location(message, help=help))


def _is_untouched(optimizer: Any, own: LiveStates) -> bool:
    return optimizer.state is own and not own.has_been_read


def _parameter(tensor: Any, number: int) -> Parameter:
    if (found := parameter_of(tensor)) is None:
        message = f"tensor {number} of the optimizer, of shape {tuple(tensor.shape)}, belongs to no net here"
        raise MXNetError(with_user_location(message, help="call mx.from_torch(model, ...) before, and keep its result"))
    return found


def _check_held(found: Sequence[Parameter], params: Sequence[Parameter] | None) -> None:
    known = found if params is None else params
    if strange := [p.name for p in found if p not in known]:
        message = f"the optimizer of torch updates {', '.join(strange)}, and the parameters given do not hold that"
        raise ValueError(with_user_location(message, help="give the net that was made of the optimizer's module"))
    if len(set(found)) != len(found):
        raise ValueError(with_user_location("two tensors of the optimizer are one parameter of the net"))


def _plain(value: Any) -> Any:
    """A number in place of a tensor of one element, which may change in place."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return float(value) if hasattr(value, "fill_") else value
