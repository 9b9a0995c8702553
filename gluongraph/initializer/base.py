"""What initializers share: which rule a name calls for, how they are found by name, and how they read as text."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from gluongraph.host.registry import Registry
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array

_Class = TypeVar("_Class", bound="type[Initializer]")

# (beginning of the name, its end, method): MXNet's rules. The first three are for plain texts, not for an InitDesc.
_OLD_RULES = (
    ("upsampling", "", "_init_bilinear"),
    ("stn_loc", "weight", "_init_zero"),
    ("stn_loc", "bias", "_init_loc_bias"),
)
_RULES = (
    ("", "weight", "_init_weight"),
    ("", "bias", "_init_bias"),
    ("", "gamma", "_init_gamma"),
    ("", "beta", "_init_beta"),
    ("", "min", "_init_zero"),
    ("", "max", "_init_one"),
    ("", "running_mean", "_init_zero"),
    ("", "running_var", "_init_one"),
    ("", "moving_mean", "_init_zero"),
    ("", "moving_var", "_init_one"),
    ("", "moving_inv_var", "_init_zero"),
    ("", "moving_avg", "_init_zero"),
    ("", "", "_init_default"),
)


class InitDesc(str):
    """The name of the array that is initialized; `attrs["__init__"]` is the initializer chosen for it, if one was.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2,))
    >>> init.Zero()(init.InitDesc("w", {"__init__": "ones"}), w)
    >>> w.asnumpy().tolist()
    [1.0, 1.0]
    """

    attrs: dict[str, Any]
    global_init: Initializer | None

    def __new__(
        cls, name: str, attrs: dict[str, Any] | None = None, global_init: Initializer | None = None
    ) -> InitDesc:
        made = super().__new__(cls, name)
        made.attrs, made.global_init = attrs or {}, global_init
        return made


class Initializer:
    """Base class: a subclass writes `arr` in `_init_weight(name, arr)`.

    `init(name, arr)` follows the initializer chosen in an InitDesc; otherwise it goes by the end of the name, as MXNet
    does: bias and beta 0, gamma 1, running means 0, running variances 1, weight by the rule. A subclass may override
    `_init_bias`, `_init_gamma`, `_init_beta` and `_init_default` as well.

    Raises (call):
        TypeError: the name is no text, or the array no NDArray.
        ValueError: the end of the name is none of those.

    >>> from gluongraph import init, nd
    >>> class Rising(init.Initializer):
    ...     def _init_weight(self, name, arr):
    ...         arr[:] = nd.arange(arr.size).reshape(arr.shape)
    >>> w = nd.zeros((2, 2))
    >>> Rising()("dense_weight", w)
    >>> w.asnumpy().tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """

    _verbose = False  # also of a subclass that does not call this __init__

    def __init__(self, **kwargs: Any):
        self._kwargs = kwargs

    def __call__(self, desc: str, arr: NDArray) -> None:
        if not isinstance(desc, str):
            raise TypeError(f"the first argument is the array's name (an InitDesc or a text), not {desc!r}")
        if not isinstance(arr, NDArray):
            raise TypeError(f"{desc}: the second argument is an NDArray, not {type(arr).__name__}")
        if isinstance(desc, InitDesc):
            if desc.global_init is None:
                desc.global_init = self
            if chosen := desc.attrs.get("__init__"):
                create(chosen)._init_weight(desc, arr)
                self._report(desc, chosen, arr)
                return
        rules = _RULES if isinstance(desc, InitDesc) else _OLD_RULES + _RULES
        method = next(m for begin, end, m in rules if desc.startswith(begin) and desc.endswith(end))
        getattr(self, method)(desc, arr)
        self._report(desc, method.removeprefix("_init_"), arr)

    def _init_weight(self, name: str, arr: NDArray) -> None:
        raise NotImplementedError(f"{type(self).__name__} says its rule in _init_weight(name, arr)")

    def _init_zero(self, name: str, arr: NDArray) -> None:
        arr[:] = 0.0

    def _init_one(self, name: str, arr: NDArray) -> None:
        arr[:] = 1.0

    _init_bias, _init_beta, _init_gamma = _init_zero, _init_zero, _init_one

    def _init_bilinear(self, name: str, arr: NDArray) -> None:
        arr[:] = upsampling(name, arr.shape)

    def _init_loc_bias(self, name: str, arr: NDArray) -> None:
        """The identity as an affine map of the plane, where a spatial transformer starts."""
        arr[:] = np.array([1, 0, 0, 0, 1, 0], np.float32)

    def _init_default(self, name: str, arr: NDArray) -> None:
        raise ValueError(
            f"the name {str(name)!r} does not say what it is (weight, bias, gamma, beta, ...); give the parameter "
            "an initializer of its own"
        )

    # -- as text

    def dumps(self) -> str:
        """JSON that `create` reads: '["xavier", {"rnd_type": "uniform", ...}]'.

        >>> from gluongraph import init
        >>> init.create("normal", sigma=0.5).dumps()
        '["normal", {"sigma": 0.5}]'
        """
        return json.dumps(_plain(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Initializer) and type(self) is type(other) and _plain(self) == _plain(other)

    def __hash__(self) -> int:
        return hash(repr(_plain(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._kwargs.items())})"

    # -- what is told

    def set_verbosity(self, verbose: bool = False, print_func: Callable[[NDArray], str] | None = None) -> Initializer:
        """Log each array that is initialized, with print_func(array): by default the root of its mean square.

        Returns the initializer itself.

        >>> from gluongraph import init
        >>> init.Normal(sigma=0.5).set_verbosity(True)
        Normal(sigma=0.5)
        """
        self._verbose, self._print_func = verbose, print_func or _root_mean_square
        return self

    def _report(self, desc: str, how: Any, arr: NDArray) -> None:
        if self._verbose:
            logging.info("Initialized %s as %s: %s", desc, how, self._print_func(arr))


def _root_mean_square(arr: NDArray) -> str:
    return str(float(np.sqrt(np.mean(np.square(arr.asnumpy(), dtype=np.float64)))))


def _plain(value: Any) -> Any:
    """A value as what JSON has: [name, arguments] for an initializer, lists for arrays."""
    if isinstance(value, Initializer):
        return [type(value).__name__.lower(), _plain(value._kwargs)]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, NDArray):
        value = value.asnumpy()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def upsampling(name: str, shape: tuple[int, ...]) -> Array:
    """The kernel of `Bilinear`, which says its formula.

    Raises:
        ValueError: the shape has not four axes.

    >>> (16 * upsampling("kernel", (1, 1, 4, 4))[0, 0, 0]).astype(int).tolist()
    [1, 3, 3, 1]
    """
    if len(shape) != 4:
        raise ValueError(f"Bilinear is for kernels (out, in, h, w), and {name} has shape {shape}")
    half = math.ceil(shape[3] / 2)
    centre = (2 * half - 1 - half % 2) / (2 * half)
    rows, columns = (1 - np.abs(np.arange(n) / half - centre) for n in shape[2:])
    return np.broadcast_to(np.outer(rows, columns), shape).astype(np.float32)


_INITIALIZERS = Registry(Initializer, "initializer")


def register(cls: _Class) -> _Class:
    """Class decorator: makes an initializer known by its name in lower case.

    Raises:
        AssertionError: the class is no subclass of Initializer.

    >>> from gluongraph import init
    >>> @init.register
    ... class Sevens(init.Initializer):
    ...     def _init_weight(self, name, arr):
    ...         arr[:] = 7.0
    >>> init.create("sevens")
    Sevens()
    """
    _INITIALIZERS.register(cls)
    return cls


def alias(*names: str) -> Callable[[_Class], _Class]:
    """Class decorator: makes an initializer known by further names.

    Raises:
        AssertionError: the class is no subclass of Initializer.

    >>> from gluongraph import init
    >>> @init.alias("all_eight")
    ... class Eights(init.Initializer):
    ...     def _init_weight(self, name, arr):
    ...         arr[:] = 8.0
    >>> init.create("all_eight")
    Eights()
    """
    return _INITIALIZERS.alias(*names)


def create(initializer: Any, *args: Any, **kwargs: Any) -> Initializer:
    """An initializer from a name ('xavier', 'zeros'), from what `dumps` wrote, or the initializer itself.

    Raises:
        AssertionError: no initializer has that name.

    >>> from gluongraph import init
    >>> init.create('["xavier", {"magnitude": 2}]')
    Xavier(rnd_type='uniform', factor_type='avg', magnitude=2)
    """
    return _INITIALIZERS.create(initializer, *args, **kwargs)
