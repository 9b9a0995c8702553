"""What all optimizers share: rates, multipliers, counting; and the form in which one states its formula.

An optimizer is a formula on one parameter, written once as graph (`rule`). What changes between steps enters it as
scalars (`scalars`), computed on the host in float64; what would change the graph itself is its `structure`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import located
from gluongraph.ir import Node, TensorType
from gluongraph.lr_scheduler import LRScheduler
from gluongraph.ndarray import NDArray, invoke
from gluongraph.optimizer.multipliers import Multipliers
from gluongraph.tape import STATE

Index = int | str
_Class = TypeVar("_Class", bound="type[Optimizer]")
_REGISTRY: dict[str, type[Optimizer]] = {}


class Optimizer:
    """Base class. A subclass says its state, the numbers of one update, and the formula:

    * `states(weight)`: name and type of each state array, all zero in the beginning;
    * `scalars(index)`: the numbers of this update, e.g. `lr` (scheduled, times lr_mult, bias-corrected), `wd`;
    * `rule(w, g, state, s)`: the new weight and the new state, as nodes; no Python branch on a scalar;
    * `structure()`: all that `rule` branches on.

    A class written for MXNet, which overrides `create_state` and `update` instead, works in an eager Trainer.

    `learning_rate` given together with an `lr_scheduler` becomes the scheduler's `base_lr`; without either, the rate is
    the class's `default_rate`. `clip_gradient` of None, 0 or less is off.
    """

    default_rate: ClassVar[float] = 0.01
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd"})  # scalars that may differ between parameters

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Index, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | Callable[[int], float] | None = None,
        sym: object = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Index, Any] | None = None,
    ):
        if sym is not None:
            raise ValueError("there are no symbols (sym) here; set lr_mult and wd_mult of the parameters")
        if isinstance(lr_scheduler, LRScheduler) and learning_rate is not None:
            lr_scheduler.base_lr = learning_rate
        default = getattr(lr_scheduler, "base_lr", self.default_rate)  # any f(num_update) may be a scheduler
        self.lr = default if learning_rate is None else learning_rate
        self.lr_scheduler = lr_scheduler
        self.rescale_grad = rescale_grad
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.idx2name: dict[Index, str] = dict(param_idx2name or {})
        self.param_dict: dict[Index, Any] = dict(param_dict or {})
        self.lr_mult: dict[Index, float] = {}
        self.wd_mult: dict[Index, float] = {}
        self.set_wd_mult({})
        self.begin_num_update = self.num_update = self._clock = begin_num_update
        self._late: dict[Index, int] = {}  # t of a parameter is the clock less this
        self._together: object = None  # the tuple of indices last counted, if it holds every index there is
        self._least_late = 0
        self._edits = 0

    # -- what a subclass says

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        """Name and type of each state array of a weight of this type."""
        return {}

    def scalars(self, index: Index) -> dict[str, float]:
        """The numbers of the update of parameter `index` that has just been counted."""
        return {"lr": self.rate(index), "wd": self.decay(index), **self._common()}

    def rule(self, w: Node, g: Node, state: Mapping[str, Node], s: Mapping[str, Node]) -> tuple[Node, dict[str, Node]]:
        """The new weight and the new state, from the old weight, its gradient, the old state and the scalars."""
        raise NotImplementedError(f"{type(self).__name__} says its formula in rule(w, g, state, s)")

    def structure(self) -> tuple[Any, ...]:
        """What `rule` depends on besides its arguments; equal structures build equal graphs."""
        return (type(self), self.clips)

    # -- helpers of the formulas

    @property
    def clips(self) -> bool:
        """Is the gradient clipped? None, zero and negative thresholds are all off."""
        return self.clip_gradient is not None and self.clip_gradient > 0

    def _common(self) -> dict[str, float]:
        if self.clips:
            return {"rescale": self.rescale_grad, "clip": float(self.clip_gradient or 0.0)}
        return {"rescale": self.rescale_grad}

    def clip(self, x: Node, s: Mapping[str, Node]) -> Node:
        """C(x): x held within ±clip_gradient, elementwise; x itself where clipping is off."""
        return ops.maximum(ops.minimum(x, s["clip"]), -s["clip"]) if self.clips else x

    # -- rates, multipliers

    @property
    def learning_rate(self) -> float:
        """The scheduler's rate for the last update, or `lr`; no multiplier of a parameter in it."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Set the rate.

        Raises:
            UserWarning: a scheduler decides the rate.
        """
        if self.lr_scheduler is not None:
            raise UserWarning("the learning rate is decided by lr_scheduler; change its base_lr, or do without it")
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Index, float]) -> None:
        """Factors on the rate by parameter name or index; a Parameter's own lr_mult goes first."""
        self.lr_mult = dict(args_lr_mult)
        Multipliers.edits += 1

    def set_wd_mult(self, args_wd_mult: Mapping[Index, float]) -> None:
        """Factors on the decay. Where names are known, what is neither weight nor gamma decays only if named here."""
        named: dict[Index, float] = {n: 0.0 for n in self.idx2name.values() if not n.endswith(("_weight", "_gamma"))}
        self.wd_mult = {**named, **args_wd_mult}
        Multipliers.edits += 1

    def multipliers(self, index: Index) -> tuple[float, float]:
        """(lr_mult, wd_mult) of a parameter: its own, or those set by index, or by name."""
        if (parameter := self.param_dict.get(index)) is not None:
            return parameter.lr_mult, parameter.wd_mult
        name = self.idx2name.get(index, index)
        return (
            self.lr_mult.get(index, self.lr_mult.get(name, 1.0)),
            self.wd_mult.get(index, self.wd_mult.get(name, 1.0)),
        )

    def rate(self, index: Index) -> float:
        """The learning rate of parameter `index` for this update."""
        return self.learning_rate * self.multipliers(index)[0]

    def decay(self, index: Index) -> float:
        """The weight decay of parameter `index`."""
        return self.wd * self.multipliers(index)[1]

    # -- counting

    def count(self, indices: tuple[Index, ...]) -> None:
        """Begin one update of these parameters: t of each, and num_update, go on by one.

        Called with the same tuple again and again, as a training loop does, this takes constant time.
        """
        if indices is not self._together:
            self._regroup(indices)
        self._clock += 1
        self.num_update = max(self.num_update, self._clock - self._least_late)

    def _regroup(self, indices: tuple[Index, ...]) -> None:
        known = len(self._late)
        for i in indices:
            self._late.setdefault(i, self._clock - self.begin_num_update)
        stay = self._late.keys() - set(indices)
        for i in stay:
            self._late[i] += 1
        if stay or known != len(self._late):
            self._edits += 1
        self._together = None if stay else indices
        self._least_late = min((self._late[i] for i in indices), default=0)

    def t(self, index: Index) -> int:
        """The number of this parameter's last update; of one never updated, the number that its first will have."""
        late = self._late.get(index)
        return self.begin_num_update + 1 if late is None else self._clock - late

    @property
    def edits(self) -> tuple[int, int]:
        """Changes whenever the scalars of two parameters may have come apart or together."""
        return (self._edits, Multipliers.edits)

    def alike(self, index: Index) -> tuple[float, float, int]:
        """Parameters with equal keys have equal scalars, now and after every further joint update."""
        return (*self.multipliers(index), self._late.get(index, self._clock - self.begin_num_update))

    def counts(self) -> dict[Index, int]:
        """t of every parameter updated so far."""
        return {i: self._clock - late for i, late in self._late.items()}

    def restore_counts(self, counts: Mapping[Index, int], num_update: int) -> None:
        """Set what `counts()` and `num_update` gave when they were saved."""
        self._clock = max(counts.values(), default=self.begin_num_update)
        self._late = {i: self._clock - n for i, n in counts.items()}
        self._together, self.num_update = None, num_update
        self._edits += 1

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Within: an error takes back what has been counted since."""
        before, number, scale = self.counts(), self.num_update, self.rescale_grad
        try:
            yield
        except BaseException:
            self.restore_counts(before, number)
            self.rescale_grad = scale
            raise

    # -- one parameter at a time, as MXNet's Updater and optimizers written for it do

    @property
    def has_formula(self) -> bool:
        """Is there a `rule`? A class written for MXNet overrides `update` instead, and cannot be compiled."""
        return type(self).rule is not Optimizer.rule

    def create_state(self, index: Index, weight: NDArray) -> Any:
        """The first state of a parameter: None, an array of zeros, or a tuple of them."""
        made = tuple(NDArray(np.zeros(t.shape, numpy_dtype(t.dtype))) for t in self.states(weight.type).values())
        return made[0] if len(made) == 1 else made or None

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> Any:
        """`create_state`."""
        return self.create_state(index, weight)

    def update(self, index: Index, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Count, and overwrite one weight and its state."""
        self._update_count(index)
        states = () if state is None else state if isinstance(state, tuple) else (state,)
        numbers = self.scalars(index)
        given = [NDArray(np.array(v, np.float32)) for v in numbers.values()]
        how = {"optimizer": self, "structure": self.structure(), "keys": tuple(numbers)}
        recording, STATE.recording = STATE.recording, False
        try:
            new = invoke(_updated, weight, grad, *states, *given, **how)
        finally:
            STATE.recording = recording
        for array, value in zip((weight, *states), new, strict=True):
            array.storage.write(value.storage.array)

    def update_multi_precision(self, index: Index, weight: NDArray, grad: NDArray, state: Any) -> None:
        """`update`."""
        self.update(index, weight, grad, state)

    def _update_count(self, index: Index) -> None:
        self.count((index,))

    def _get_lr(self, index: Index) -> float:
        return self.rate(index)

    def _get_wd(self, index: Index) -> float:
        return self.decay(index)

    # -- registry

    @staticmethod
    def register(cls: _Class) -> _Class:
        """Class decorator: makes the optimizer known by its name in lower case."""
        _REGISTRY[cls.__name__.lower()] = cls
        return cls

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Optimizer:
        """The optimizer of that name; see `create`."""
        return create(name, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learning_rate={self.learning_rate}, wd={self.wd})"


def _updated(
    w: Node, g: Node, *rest: Node, optimizer: Optimizer, structure: tuple[Any, ...], keys: tuple[str, ...]
) -> tuple[Node, ...]:
    """The formula as a builder: new weight, new states. `structure` is there to tell builders apart."""
    names = tuple(optimizer.states(w.ty))
    state = dict(zip(names, rest, strict=False))
    scalars = {k: ops.cast(n, w.dtype) for k, n in zip(keys, rest[len(names) :], strict=True)}
    new, states = optimizer.rule(w, g, state, scalars)
    return (new, *(states[name] for name in names))


def register(cls: _Class) -> _Class:
    """Class decorator: makes an optimizer known by its name in lower case."""
    return Optimizer.register(cls)


def create(name: str | Optimizer, **kwargs: Any) -> Optimizer:
    """An optimizer by name (in any case), with its arguments: create('sgd', learning_rate=0.1).

    Raises:
        ValueError: no optimizer has that name.
        TypeError: the optimizer takes no such argument.
    """
    if isinstance(name, Optimizer):
        return name
    found = _REGISTRY.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        near = difflib.get_close_matches(str(name).lower(), _REGISTRY, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no optimizer is called {name!r}; {hint}There are: {', '.join(sorted(_REGISTRY))}")
    try:
        return found(**kwargs)
    except TypeError:
        if not (unknown := [key for key in kwargs if key not in _arguments(found)]):
            raise
        raise TypeError(_no_such_argument(found, unknown[0])) from None


# What other libraries call the same thing.
_ELSEWHERE = {"lr": "learning_rate", "weight_decay": "wd", "eps": "epsilon", "scheduler": "lr_scheduler"}


def _arguments(cls: type[Optimizer]) -> list[str]:
    """The keywords of a class, those that it hands on to its bases among them."""
    found: list[str] = []
    for base in cls.__mro__:
        if (init := base.__dict__.get("__init__")) is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(found))


def _no_such_argument(cls: type[Optimizer], key: str) -> str:
    known = _arguments(cls)
    near = [_ELSEWHERE[key]] if _ELSEWHERE.get(key) in known else difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return located(f"{cls.__name__} takes no argument {key!r}; {hint}There are: {', '.join(sorted(known))}")
