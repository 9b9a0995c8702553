"""What all optimizers share: rates, multipliers, counting; and the form in which one states its formula.

An optimizer is a formula on one parameter, written once as graph (`rule`). What changes between steps enters it as
scalars (`scalars`), computed on the host in float64; what would change the graph itself is its `structure`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from gluongraph import autograd, ops, random
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import FormatError, MXNetError, pluralize, warn, with_user_location
from gluongraph.formulas import number
from gluongraph.ir.graph import Node, TensorType
from gluongraph.lr_scheduler import LRScheduler
from gluongraph.ndarray import NDArray, invoke, zeros
from gluongraph.optimizer.arguments import check_number, check_update, checked, numbers_in
from gluongraph.optimizer.compact import bits_of, compacted, stored
from gluongraph.optimizer.counting import Counts, Index
from gluongraph.optimizer.multipliers import Multipliers

Nodes = Mapping[str, Node]
Updated = tuple[Node, dict[str, Node]]  # the new weight and the new state
MASTER = "master"  # the state that a float32 master weight is
HALVES = ("f16", "bf16")
_Class = TypeVar("_Class", bound="type[Optimizer]")


class Optimizer:
    """Base class. A subclass says its state, the numbers of one update, and the formula:

    * `states(weight)`: name and type of each state array, zero in the beginning; those in `copies` begin as the weight;
    * `scalars(index)`: the numbers of this update, e.g. `lr` (scheduled, times lr_mult, bias-corrected), `wd`; those
      that may differ between parameters are in `per_parameter`. With `gluongraph.formulas` in place of `float` and
      `math` they can be exported as formulas;
    * `rule(w, g, state, s)`: the new weight and the new state, as nodes; no Python branch on a scalar. It computes in
      float32, or float64 for such weights, whatever the dtype of weight and state;
    * `noise`: names of arrays of normal random numbers, shaped as the weight, that `rule` finds in `s`;
    * `varying`: the scalars that change from one update to the next while no setting and no schedule does; by default
      None, any may. Steps of one call compute the others once;
    * `structure()`: all that `rule` branches on;
    * `carried`: attributes that hold numbers of the last update, which a checkpoint must keep.

    A class written for MXNet overrides `create_state` and `update` instead: its `update` runs as it is, in an eager
    Trainer and after a compiled step.

    `learning_rate` given together with an `lr_scheduler` becomes the scheduler's `base_lr`; without either, the rate is
    the class's `default_rate`. `clip_gradient` of None, 0 or less is off. With `multi_precision` a float16 or bfloat16
    weight has a float32 master weight among its states, on which the formula works; the weight is that one rounded,
    and what is written into it by hand is lost at the next update, as in MXNet.

    >>> from gluongraph import nd, ops, optimizer
    >>> class Signs(optimizer.Optimizer):
    ...     def rule(self, w, g, state, s):
    ...         return w - s["lr"] * ops.sign(g), {}
    >>> weight = nd.array([1.0, 1.0])
    >>> optimizer.get_updater(Signs(learning_rate=0.5))(0, nd.array([3.0, -7.0]), weight)
    >>> weight.asnumpy().tolist()
    [0.5, 1.5]
    """

    default_rate: ClassVar[float] = 0.01
    per_parameter: ClassVar[frozenset[str]] = frozenset({"lr", "wd"})
    varying: ClassVar[frozenset[str] | None] = None  # a subclass says its own: it may override anything
    copies: ClassVar[frozenset[str]] = frozenset()
    noise: ClassVar[tuple[str, ...]] = ()
    carried: ClassVar[tuple[str, ...]] = ()
    master_last: ClassVar[bool] = False  # create_state_multi_precision gives (state, master), not (master, state)
    _is_elementwise: ClassVar[bool | None] = None  # None: the formula tells
    opt_registry: ClassVar[dict[str, type[Optimizer]]] = {}
    state_form: str | None = None  # one of `compact.FORMS`: how float32 states are kept

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.varying = vars(cls).get("varying")
        if (init := vars(cls).get("__init__")) is not None:
            type.__setattr__(cls, "__init__", checked(init))
            cls.numbers = {**cls.numbers, **numbers_in(init)}

    @checked
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
        if not (lr_scheduler is None or callable(lr_scheduler)):
            message = (
                f"{type(self).__name__}: lr_scheduler is a function of the number of updates, not {lr_scheduler!r}"
            )
            raise TypeError(with_user_location(message, help="mx.lr_scheduler.CosineScheduler(...), for one"))
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
        self.begin_num_update = begin_num_update
        self._index_update_count = Counts(begin_num_update)

    numbers: ClassVar[dict[str, bool]] = {"lr": False, **numbers_in(__init__)}  # settings -> may they be None?

    if not TYPE_CHECKING:  # a checker is to go on knowing which settings there are

        def __setattr__(self, name: str, value: Any) -> None:
            """Settings may change between steps; one that is to be a number is refused here, not by a later step."""
            same = type(value) is float and value == self.__dict__.get(name)  # as at most steps
            if name in self.numbers and not same:
                check_number(self, name, value, self.numbers[name])
            object.__setattr__(self, name, value)

    # -- what a subclass says

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        """Name and type of each state array of a weight of this type.

        >>> from gluongraph.ir.graph import TensorType
        >>> from gluongraph.optimizer import Adam
        >>> list(Adam().states(TensorType((2,), "f32")))
        ['mean', 'var']
        """
        return {}

    def scalars(self, index: Index) -> dict[str, float]:
        """The numbers of the update of parameter `index` that has just been counted.

        >>> from gluongraph.optimizer import Optimizer
        >>> Optimizer(learning_rate=0.5, wd=0.25).scalars(0)
        {'lr': 0.5, 'wd': 0.25, 'rescale': 1.0}
        """
        return {"lr": self.rate(index), "wd": self.decay(index), **self._common()}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        """The new weight and the new state, from the old weight, its gradient, the old state and the scalars."""
        raise NotImplementedError(f"{type(self).__name__} says its formula in rule(w, g, state, s)")

    def structure(self) -> tuple[Any, ...]:
        """What `rule` depends on besides its arguments; equal structures build equal graphs."""
        return (type(self), self.clips, self.multi_precision, self.lazy, self.state_form)

    @property
    def lazy(self) -> bool:
        """Are rows that a row-sparse gradient does not touch left alone? Only where the formula works row by row."""
        return False

    @property
    def draws(self) -> int:
        """How many random arrays an update of one parameter takes, at most."""
        return len(self.noise) + (0 if self.state_form is None else len(self.states(TensorType((1, 1), "f32"))))

    def is_constant(self, scalar: str) -> bool:
        """Is this number of an update the same at every update, until somebody changes a setting?

        >>> from gluongraph import optimizer
        >>> optimizer.SGD().is_constant("lr"), optimizer.Adam().is_constant("lr")
        (True, False)
        """
        return self.lr_scheduler is None and self.varying is not None and scalar not in self.varying

    # -- parameters whose settings differ by more than factors

    @property
    def members(self) -> tuple[Optimizer, ...]:
        """The optimizers at work: this one; of `ParameterGroups` those of the groups."""
        return (self,)

    def member(self, index: Index) -> Optimizer:
        """The optimizer whose formula updates parameter `index`: this one; in `ParameterGroups` that of its group."""
        return self

    def may_differ(self, scalar: str) -> bool:
        """Can this number of an update be another one for another parameter?"""
        return scalar in self.per_parameter

    def settings(self) -> dict[str, Any]:
        """The public attributes that are plain numbers or texts, by name.

        >>> from gluongraph.optimizer import SGD
        >>> SGD(learning_rate=0.5, momentum=0.25).settings()["momentum"]
        0.25
        """
        values = {k: v.item() if isinstance(v, np.generic) else v for k, v in vars(self).items()}
        plain = (bool, int, float, str)
        return {k: v for k, v in values.items() if not k.startswith("_") and (v is None or isinstance(v, plain))}

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Write these attributes as they are: what `settings` gave."""
        vars(self).update(settings)

    # -- helpers of the formulas

    @property
    def clips(self) -> bool:
        """Is the gradient clipped? None, zero and negative thresholds are all off."""
        return self.clip_gradient is not None and self.clip_gradient > 0

    def _common(self) -> dict[str, float]:
        if not self.clips:
            return {"rescale": self.rescale_grad}
        bound = number(self.clip_gradient or 0.0)
        return {"rescale": self.rescale_grad, "clip": bound, "clip_low": -bound}

    def clip(self, x: Node, s: Nodes) -> Node:
        """C(x): x held within ±clip_gradient, elementwise; x itself where clipping is off.

        >>> from gluongraph import nd
        >>> from gluongraph.optimizer import SGD, get_updater
        >>> weight = nd.array([0.0, 0.0])
        >>> get_updater(SGD(learning_rate=1.0, clip_gradient=0.5))(0, nd.array([3.0, -0.25]), weight)
        >>> weight.asnumpy().tolist()
        [-0.5, 0.25]
        """
        return ops.maximum(ops.minimum(x, s["clip"]), s["clip_low"]) if self.clips else x

    def inverse_rate(self, index: Index) -> float:
        """1 / the learning rate, for a formula that divides by it.

        >>> from gluongraph.optimizer import Optimizer
        >>> Optimizer(learning_rate=0.25).inverse_rate(0)
        4.0

        Raises:
            ZeroDivisionError: the rate is 0.
        """
        if (rate := self.rate(index)) == 0:
            message = f"{type(self).__name__} divides by the learning rate, which is 0 for parameter {index!r}"
            raise ZeroDivisionError(with_user_location(message, help="grad_req='null' keeps a parameter as it is"))
        return 1.0 / rate

    # -- rates, multipliers

    @property
    def learning_rate(self) -> float:
        """The scheduler's rate for the last update, or `lr`; no multiplier of a parameter in it.

        >>> from gluongraph.lr_scheduler import FactorScheduler
        >>> from gluongraph.optimizer import SGD
        >>> sgd = SGD(learning_rate=1.0, lr_scheduler=FactorScheduler(step=1, factor=0.5))
        >>> sgd.learning_rate
        1.0
        """
        if self.lr_scheduler is None:
            return self.lr
        rate = self.lr_scheduler(self.num_update)
        check_number(self, "what lr_scheduler gives", rate)
        return rate

    def set_learning_rate(self, lr: float) -> None:
        """Set the rate.

        >>> from gluongraph.optimizer import SGD
        >>> sgd = SGD(learning_rate=0.5)
        >>> sgd.set_learning_rate(0.25)
        >>> sgd.learning_rate
        0.25

        Raises:
            UserWarning: a scheduler decides the rate.
            TypeError: it is no number.
            ValueError: it is negative or not finite.
        """
        if self.lr_scheduler is not None:
            raise UserWarning("the learning rate is decided by lr_scheduler; change its base_lr, or do without it")
        check_number(self, "learning_rate", lr)
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Index, float]) -> None:
        """Factors on the rate by parameter name or index; a Parameter's own lr_mult goes first.

        >>> from gluongraph.optimizer import SGD
        >>> sgd = SGD(learning_rate=0.5, param_idx2name={0: "fc_weight", 1: "fc_bias"})
        >>> sgd.set_lr_mult({"fc_bias": 2.0})
        >>> sgd.rate(0), sgd.rate(1)
        (0.5, 1.0)

        Raises:
            TypeError: a factor is no number.
            ValueError: a factor is not finite.
        """
        for key, value in args_lr_mult.items():
            check_number(self, f"lr_mult of {key!r}", value)
        self.lr_mult = dict(args_lr_mult)
        Multipliers.edits += 1

    def set_wd_mult(self, args_wd_mult: Mapping[Index, float]) -> None:
        """Factors on the decay. Where names are known, what is neither weight nor gamma decays only if named here.

        >>> from gluongraph.optimizer import SGD
        >>> sgd = SGD(wd=0.5, param_idx2name={0: "fc_weight", 1: "fc_bias"})
        >>> sgd.decay(0), sgd.decay(1)
        (0.5, 0.0)
        >>> sgd.set_wd_mult({"fc_weight": 0.5, "fc_bias": 1.0})
        >>> sgd.decay(0), sgd.decay(1)
        (0.25, 0.5)

        Raises:
            TypeError: a factor is no number.
            ValueError: a factor is not finite.
        """
        for key, value in args_wd_mult.items():
            check_number(self, f"wd_mult of {key!r}", value)
        named: dict[Index, float] = {n: 0.0 for n in self.idx2name.values() if not self._decays(n)}
        self.wd_mult = {**named, **args_wd_mult}
        Multipliers.edits += 1

    def _decays(self, name: str) -> bool:
        return name.endswith(("_weight", "_gamma"))

    def set_lr_scale(self, args_lrscale: object) -> None:
        """Gone since MXNet 0.9: set_lr_mult.

        Raises:
            DeprecationWarning: always.
        """
        raise DeprecationWarning("set_lr_scale is no more; use set_lr_mult, or the lr_mult of a parameter")

    def multipliers(self, index: Index) -> tuple[float, float]:
        """(lr_mult, wd_mult) of a parameter: its own, or those set by index, or by name.

        >>> from gluongraph.optimizer import Optimizer
        >>> sgd = Optimizer(param_idx2name={0: "fc_weight"})
        >>> sgd.set_lr_mult({"fc_weight": 2.0})
        >>> sgd.multipliers(0)
        (2.0, 1.0)
        """
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

    @property
    def num_update(self) -> int:
        """The largest number of updates that any parameter has seen; what a scheduler is asked with."""
        return self._index_update_count.largest

    @num_update.setter
    def num_update(self, number: int) -> None:
        self._index_update_count.largest = number

    def count(self, indices: tuple[Index, ...]) -> None:
        """Begin one update of these parameters: t of each, and num_update, go on by one."""
        self._index_update_count.count(indices)

    def t(self, index: Index) -> int:
        """The number of this parameter's last update; of one never updated, the number that its first will have.

        >>> from gluongraph.optimizer import Optimizer
        >>> rule = Optimizer()
        >>> rule.count((0,))
        >>> rule.count((0,))
        >>> rule.t(0), rule.t(1)
        (2, 1)
        """
        return self._index_update_count.get(index, self.begin_num_update + 1)

    @property
    def edits(self) -> tuple[int, int]:
        """Changes whenever the scalars of two parameters may have come apart or together."""
        return (self._index_update_count.edits, Multipliers.edits)

    def alike(self, index: Index) -> tuple[Any, ...]:
        """Parameters with equal keys have equal scalars, now and after every further joint update."""
        return (*self.multipliers(index), self._index_update_count.get(index, self.begin_num_update))

    def counts(self) -> dict[Index, int]:
        """t of every parameter updated so far.

        >>> from gluongraph.optimizer import Optimizer
        >>> sgd = Optimizer()
        >>> sgd.count((0, 1))
        >>> sgd.count((0,))
        >>> sgd.counts(), sgd.num_update
        ({0: 2, 1: 1}, 2)
        """
        return dict(self._index_update_count)

    def restore_counts(self, counts: Mapping[Index, int], num_update: int) -> None:
        """Set what `counts()` and `num_update` gave when they were saved."""
        self._index_update_count.restore(counts, num_update)

    def progress(self) -> dict[str, Any]:
        """How far the training is, as JSON takes it: rate, counts, carried numbers.

        >>> from gluongraph.optimizer import SGD
        >>> SGD(learning_rate=0.5).progress()
        {'optimizer': 'SGD', 'lr': 0.5, 'num_update': 0, 'counts': [], 'carried': {}}
        """
        counts = [[index, t] for index, t in self.counts().items()]
        return {
            "optimizer": type(self).__name__,
            "lr": self.lr,
            "num_update": self.num_update,
            "counts": counts,
            "carried": {name: getattr(self, name) for name in self.carried},
        }

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Go on from what `progress` told.

        >>> from gluongraph.optimizer import SGD
        >>> before, after = SGD(learning_rate=0.5), SGD()
        >>> before.count((0, 1))
        >>> after.resume(before.progress())
        >>> after.lr, after.counts()
        (0.5, {0: 1, 1: 1})

        Raises:
            FormatError: it tells of another optimizer; nothing is changed.
        """
        if progress["optimizer"] != type(self).__name__:
            raise FormatError(f"this is the progress of {progress['optimizer']}, not of {type(self).__name__}")
        self.lr = progress["lr"]
        self.restore_counts(dict(progress["counts"]), progress["num_update"])
        vars(self).update({name: progress["carried"][name] for name in self.carried})

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Within: an error rolls back what has been counted since."""
        rollback = self.checkpoint()
        try:
            yield
        except BaseException:
            rollback()
            raise

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Within: what is counted counts for now only, to see what an update would be like."""
        rollback = self.checkpoint()
        try:
            yield
        finally:
            rollback()

    def checkpoint(self) -> Callable[[], None]:
        """A function that restores the update counts to their present values. Both take constant time."""
        counts = self._index_update_count.snapshot()
        numbers = {name: getattr(self, name) for name in ("rescale_grad", *self.carried)}

        def rollback() -> None:
            self._index_update_count.rollback(counts)
            vars(self).update(numbers)

        return rollback

    # -- all of an update, with master weights

    @property
    def has_formula(self) -> bool:
        """Is there a `rule`, and no `update` or `create_state` written over it? Only then can it be compiled."""
        order = type(self).__mro__
        rule = next(i for i, c in enumerate(order) if "rule" in vars(c))
        own = next(i for i, c in enumerate(order) if vars(c).keys() & _WRITTEN_FOR_MXNET)
        return order[rule] is not Optimizer and rule <= own

    def has_master(self, weight: TensorType) -> bool:
        """Is there a float32 master weight behind a weight of this type?"""
        return self.multi_precision and weight.dtype in HALVES

    def state_types(self, weight: TensorType) -> dict[str, TensorType]:
        """All arrays kept for a weight of this type: `states`, and the master weight where there is one."""
        if not self.has_master(weight):
            return compacted(self.states(weight), self.state_form, self.copies)
        master = TensorType(weight.shape, "f32")
        return {**compacted(self.states(master), self.state_form, self.copies), MASTER: master}

    def new_states(self, weight: NDArray) -> dict[str, NDArray]:
        """The arrays of `state_types` as they are before the first update."""
        self._warn_of_halves(weight)
        return {k: self._new_state(k, t, weight) for k, t in self.state_types(weight.type).items()}

    def _new_state(self, name: str, type: TensorType, weight: NDArray) -> NDArray:
        if self.starts_at_zero(name):
            return zeros(type, weight.context)
        return weight.detach().astype(type.dtype)

    def starts_at_zero(self, name: str) -> bool:
        """Is this state zeros before the first update, and no copy of the weight?"""
        return name not in self.copies and name != MASTER

    def _warn_of_halves(self, weight: NDArray) -> None:
        if weight.type.dtype in HALVES and not self.multi_precision:
            warn(
                f"{type(self).__name__} keeps a weight and its states in {weight.type.dtype}, where small updates are "
                "lost; multi_precision=True updates a float32 copy of the weight"
            )

    def updated(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        """`rule` on weight and states of any dtype, with the arrays of `state_types`."""
        if MASTER not in state:
            return self._widely(w, g, state, s)
        inner = {k: n for k, n in state.items() if k != MASTER}
        master, new = self._widely(state[MASTER], g, inner, s)
        return ops.cast(master, w.dtype), {**new, MASTER: master}

    def _widely(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        """`rule` in float32 or wider, its results rounded to the dtypes of what they replace."""
        dtype = computed_in(w.dtype)
        wide = {k: ops.cast(n, dtype) for k, n in state.items()}
        made = self.rule(ops.cast(w, dtype), ops.cast(g, dtype), wide, s)
        check_update(self, made, state)
        new, states = made
        return ops.cast(new, w.dtype), {k: stored(states[k], n, k, s) for k, n in state.items()}

    # -- one parameter at a time, as MXNet's Updater and optimizers written for it do

    def create_state(self, index: Index, weight: NDArray) -> Any:
        """The first state of a parameter: None, an array, or a tuple of them in the order of `states`.

        >>> from gluongraph import nd
        >>> from gluongraph.optimizer import SGD
        >>> SGD(momentum=0.5).create_state(0, nd.ones((2,))).asnumpy().tolist()
        [0.0, 0.0]
        """
        made = tuple(self._new_state(k, t, weight) for k, t in self.states(weight.type).items())
        return made[0] if len(made) == 1 else made or None

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> Any:
        """`create_state`; with a master weight, the pair (master, state of the master).

        >>> from gluongraph import nd
        >>> from gluongraph.optimizer import SGD
        >>> weight = nd.ones((2,), dtype="float16")
        >>> state, master = SGD(momentum=0.5, multi_precision=True).create_state_multi_precision(0, weight)
        >>> master.dtype.__name__, master.asnumpy().tolist()
        ('float32', [1.0, 1.0])
        """
        self._warn_of_halves(weight)
        if not self.has_master(weight.type):
            return self.create_state(index, weight)
        master = weight.detach().astype("float32")
        state = self.create_state(index, master)
        return (state, master) if self.master_last else (master, state)

    def fits(self, state: Any, weight: TensorType) -> bool:
        """Is the state such as `create_state_multi_precision` makes now? What it makes depends on `structure()`.

        >>> from gluongraph import nd
        >>> from gluongraph.ir.graph import TensorType
        >>> from gluongraph.optimizer import SGD
        >>> SGD(momentum=0.5).fits(nd.zeros((2,)), TensorType((2,), "f32")), SGD().fits(None, TensorType((2,), "f32"))
        (True, True)
        """
        master = TensorType(weight.shape, "f32") if self.has_master(weight) else None
        types = list(self.states(master or weight).values())
        if master is not None:
            types.insert(len(types) if self.master_last else 0, master)
        return [array.type for array in arrays_of(state)] == types

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Count, and overwrite one weight and its state; or one after the other, given lists. An error leaves that
        weight and its state as they were.

        >>> from gluongraph import nd
        >>> from gluongraph.optimizer import SGD
        >>> sgd, weight = SGD(learning_rate=0.5), nd.array([1.0])
        >>> sgd.update(0, weight, nd.array([2.0]), sgd.create_state(0, weight))
        >>> weight.asnumpy().tolist()
        [0.0]

        Raises:
            MXNetError: the state is not as `create_state` makes it, for other settings perhaps.
        """
        if isinstance(index, (list, tuple)):
            self._each(self.update, index, weight, grad, state)
            return
        states, names = arrays_of(state), tuple(self.states(weight.type))
        if len(states) != len(names):
            message = f"{type(self).__name__} keeps {' and '.join(names) or 'nothing'} of parameter {index!r}, "
            message += f"and the state given has {pluralize(len(states), 'array')}"
            raise MXNetError(
                with_user_location(message, help="create_state(index, weight) makes the state for these settings")
            )
        drawn_on = {"rng": (weight.context, self.draws)} if self.draws else {}
        with autograd.pause(), self.undone_on_error(), random.undone_on_error(drawn_on):
            self._update_count(index)
            numbers = self.scalars(index)
            wide = numpy_dtype(computed_in(weight.type.dtype))
            given = [NDArray(np.array(v, wide), weight.context) for v in numbers.values()]
            if self.draws:
                drawn = np.array(random.take(self.draws, weight.context), np.uint32)
                given.append(NDArray(drawn, weight.context))
            how = {"structure": self.structure(), "states": names, "keys": tuple(numbers)}
            new = invoke(updated_by, weight, grad, *states, *given, optimizer=weakref.ref(self), **how)
        for array, value in zip((weight, *states), new, strict=True):
            array.storage.write(value.storage.array)

    def _each(self, update: Callable[..., None], *lists: Sequence[Any]) -> None:
        """`update` of each element of the lists."""
        if len({len(each) for each in lists}) > 1:
            sizes = ", ".join(str(len(each)) for each in lists)
            message = f"{type(self).__name__}.update: lists of {sizes} indices, weights, gradients and states"
            raise MXNetError(with_user_location(message, help="one of each for every weight"))
        for each in zip(*lists, strict=True):
            update(*each)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """`update`; with a master weight, of that one, which is then rounded into the weight.

        >>> from gluongraph import nd
        >>> from gluongraph.optimizer import SGD
        >>> sgd, weight = SGD(learning_rate=0.5, multi_precision=True), nd.ones((1,), dtype="float16")
        >>> state = sgd.create_state_multi_precision(0, weight)
        >>> sgd.update_multi_precision(0, weight, nd.ones((1,), dtype="float16"), state)
        >>> weight.asnumpy().tolist()
        [0.5]
        """
        if isinstance(index, (list, tuple)):
            self._each(self.update_multi_precision, index, weight, grad, state)
            return
        if not self.has_master(weight.type):
            self.update(index, weight, grad, state)
            return
        master, inner = state[::-1] if self.master_last else state
        self.update(index, master, grad.detach().astype("float32"), inner)
        weight.storage.write(master.storage.array)

    def _update_count(self, index: Index | Sequence[Index]) -> None:
        self.count((index,) if isinstance(index, (int, str)) else tuple(index))

    def _get_lr(self, index: Index) -> float:
        return self.rate(index)

    def _get_wd(self, index: Index) -> float:
        return self.decay(index)

    def _get_lrs(self, indices: Sequence[Index]) -> list[float]:
        return [self._get_lr(i) for i in indices]

    def _get_wds(self, indices: Sequence[Index]) -> list[float]:
        return [self._get_wd(i) for i in indices]

    # -- registry

    @staticmethod
    def register(cls: _Class) -> _Class:
        """Class decorator: makes the optimizer known by its name in lower case."""
        Optimizer.opt_registry[cls.__name__.lower()] = cls
        return cls

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Optimizer:
        """The optimizer of that name; see `create`.

        >>> from gluongraph.optimizer import Optimizer
        >>> Optimizer.create_optimizer("sgd", learning_rate=0.5)
        SGD(learning_rate=0.5, wd=0.0)
        """
        from gluongraph.optimizer.registry import create

        return create(name, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learning_rate={self.learning_rate}, wd={self.wd})"


_WRITTEN_FOR_MXNET = {
    *("create_state", "create_state_multi_precision", "update", "update_multi_precision"),
}


def arrays_of(state: Any) -> list[NDArray]:
    """The arrays of a state: None, an array, or a tuple of states.

    >>> from gluongraph import nd
    >>> from gluongraph.optimizer.base import arrays_of
    >>> a, b = nd.ones((1,)), nd.ones((2,))
    >>> [array.shape for array in arrays_of((a, (b, None)))]
    [(1,), (2,)]
    """
    if isinstance(state, (tuple, list)):
        return [array for part in state for array in arrays_of(part)]
    return [] if state is None else [state]


def computed_in(dtype: str) -> str:
    """The dtype in which a weight of `dtype` is updated.

    >>> from gluongraph.optimizer.base import computed_in
    >>> computed_in("bf16"), computed_in("f64")
    ('f32', 'f64')
    """
    return "f64" if dtype == "f64" else "f32"


def noise_of(optimizer: Optimizer, weight: TensorType, rng: Node, draw: int) -> dict[str, Node]:
    """The random arrays that an update reads, drawn from number `draw` on.

    >>> from gluongraph import nd
    >>> from gluongraph.ir.graph import TensorType
    >>> from gluongraph.ndarray import invoke
    >>> from gluongraph.optimizer import SGLD
    >>> from gluongraph.optimizer.base import noise_of
    >>> draw = lambda rng: noise_of(SGLD(), TensorType((3,), "f32"), rng, 0)["normal"]
    >>> invoke(draw, nd.zeros((4,), dtype="uint32")).shape
    (3,)
    """
    dtype = computed_in(weight.dtype)
    drawn = {name: ops.normal(rng, weight.shape, draw + i, dtype) for i, name in enumerate(optimizer.noise)}
    if optimizer.state_form is None:
        return drawn
    return drawn | bits_of(optimizer.state_types(weight), rng, draw + len(drawn))


def updated_by(
    w: Node,
    g: Node,
    *rest: Node,
    optimizer: weakref.ref[Optimizer],
    structure: tuple[Any, ...],
    states: tuple[str, ...],
    keys: tuple[str, ...],
) -> tuple[Node, ...]:
    """The formula as a builder: new weight and new states, from weight, gradient, these states, scalars by their keys,
    and the generator's state where there is noise. `structure` is there to tell builders apart. The optimizer is
    referred to weakly: it has the weights, and what eager mode makes of builders outlives it.

    >>> import weakref
    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> from gluongraph.optimizer import SGD
    >>> from gluongraph.optimizer.base import updated_by
    >>> sgd = SGD()
    >>> given = [nd.array(x) for x in ([1.0], [2.0], 0.5, 0.0, 1.0)]  # weight, gradient, lr, wd, rescale
    >>> how = {"structure": sgd.structure(), "states": (), "keys": ("lr", "wd", "rescale")}
    >>> invoke(updated_by, *given, optimizer=weakref.ref(sgd), **how)[0].asnumpy().tolist()
    [0.0]
    """
    rule = optimizer()
    assert rule is not None
    state, numbers = dict(zip(states, rest, strict=False)), rest[len(states) :]
    scalars = {k: ops.cast(n, computed_in(w.dtype)) for k, n in zip(keys, numbers, strict=False)}
    if rule.draws:
        scalars |= noise_of(rule, w.ty, numbers[-1], 0)
    new, made = rule.updated(w, g, state, scalars)
    return (new, *(made[name] for name in states))
