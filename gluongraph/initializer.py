"""First values of parameters: mx.init. Random ones are drawn from mx.random, so `mx.random.seed` repeats them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from gluongraph import random
from gluongraph.ndarray import NDArray

_Class = TypeVar("_Class", bound="type[Initializer]")
_REGISTRY: dict[str, type[Initializer]] = {}
_ALIASES = {"zeros": "zero", "ones": "one"}


class InitDesc(str):
    """The name of the array that is initialized, with what else is known of it."""

    attrs: dict[str, str]
    global_init: Initializer | None

    def __new__(
        cls, name: str, attrs: dict[str, str] | None = None, global_init: Initializer | None = None
    ) -> InitDesc:
        made = super().__new__(cls, name)
        made.attrs, made.global_init = attrs or {}, global_init
        return made


def register(cls: _Class) -> _Class:
    """Class decorator: makes an initializer known by its name in lower case."""
    _REGISTRY[cls.__name__.lower()] = cls
    return cls


def create(init: Any, **kwargs: Any) -> Initializer:
    """An initializer from a name ('xavier', 'zeros'), or the initializer itself.

    Raises:
        ValueError: no initializer has that name.
    """
    if isinstance(init, Initializer):
        return init
    if isinstance(init, type) and issubclass(init, Initializer):
        return init(**kwargs)
    key = str(init).lower()
    found = _REGISTRY.get(_ALIASES.get(key, key))
    if found is None:
        names = sorted({*_REGISTRY, *_ALIASES})
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no initializer is called {init!r}; {hint}There are: {', '.join(names)}")
    return found(**kwargs)


class Initializer:
    """Base class: a subclass writes `arr` in `_init_weight(name, arr)`.

    Gluon hands each parameter to the initializer chosen for it. Called by itself, `init(name, arr)` goes by the end of
    the name, as MXNet does: bias and beta 0, gamma 1, running means 0, running variances 1, else the rule.
    """

    def __init__(self, **kwargs: Any):
        self._kwargs = kwargs

    def __call__(self, desc: str, arr: NDArray) -> None:
        if desc.endswith(("bias", "beta", "mean", "min")):
            arr[:] = 0.0
        elif desc.endswith(("gamma", "var", "max")):
            arr[:] = 1.0
        elif desc.endswith("weight"):
            self._init_weight(desc, arr)
        else:
            raise ValueError(
                f"the name {desc!r} does not say what it is (weight, bias, gamma, beta, ...); give the parameter "
                "an initializer of its own"
            )

    def _init_weight(self, name: str, arr: NDArray) -> None:
        raise NotImplementedError(f"{type(self).__name__} says its rule in _init_weight(name, arr)")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Initializer) and self._kwargs == other._kwargs

    def __hash__(self) -> int:
        return hash((type(self), repr(sorted(self._kwargs.items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._kwargs.items())})"


@register
class Zero(Initializer):
    """All 0."""

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 0.0


@register
class One(Initializer):
    """All 1."""

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 1.0


@register
class Constant(Initializer):
    """All `value`, a number or an array of the parameter's shape."""

    def __init__(self, value: Any = 0.0):
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = self.value


@register
class Uniform(Initializer):
    """U(-scale, scale)."""

    def __init__(self, scale: float = 0.07):
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = random.uniform(-self.scale, self.scale, shape=arr.shape)


@register
class Normal(Initializer):
    """N(0, sigma²)."""

    def __init__(self, sigma: float = 0.01):
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = random.normal(0.0, self.sigma, shape=arr.shape)


@register
class Xavier(Initializer):
    """U(-s, s) or N(0, s²), s = sqrt(magnitude / factor): the factor is fan-in, fan-out or their mean.

    fan_in = shape[1] * prod(shape[2:]), fan_out = shape[0] * prod(shape[2:]).

    Raises:
        ValueError: an unknown `rnd_type` or `factor_type`; a parameter of fewer than two axes.
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3):
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        if rnd_type not in ("uniform", "gaussian"):
            raise ValueError(f"rnd_type is 'uniform' or 'gaussian', not {rnd_type!r}")
        if factor_type not in ("avg", "in", "out"):
            raise ValueError(f"factor_type is 'avg', 'in' or 'out', not {factor_type!r}")
        self.rnd_type, self.factor_type, self.magnitude = rnd_type, factor_type, magnitude

    def _init_weight(self, name: str, arr: NDArray) -> None:
        if len(arr.shape) < 2:
            raise ValueError(
                f"Xavier needs a weight of at least 2 axes, and {name} has shape {arr.shape}; "
                "give it another initializer"
            )
        window = math.prod(arr.shape[2:])
        fan_out, fan_in = arr.shape[0] * window, arr.shape[1] * window
        factor = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}[self.factor_type]
        scale = math.sqrt(self.magnitude / factor)
        if self.rnd_type == "uniform":
            arr[:] = random.uniform(-scale, scale, shape=arr.shape)
        else:
            arr[:] = random.normal(0.0, scale, shape=arr.shape)


@register
class MSRAPrelu(Xavier):
    """He initialization for a PReLU of this slope: Xavier, gaussian, magnitude 2 / (1 + slope²)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25):
        super().__init__("gaussian", factor_type, 2.0 / (1.0 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


@register
class Orthogonal(Initializer):
    """scale times a matrix with orthonormal rows or columns: a singular factor of a random (shape[0], rest) matrix."""

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform"):
        super().__init__(scale=scale, rand_type=rand_type)
        if rand_type not in ("uniform", "normal"):
            raise ValueError(f"rand_type is 'uniform' or 'normal', not {rand_type!r}")
        self.scale, self.rand_type = scale, rand_type

    def _init_weight(self, name: str, arr: NDArray) -> None:
        rows, columns = arr.shape[0], math.prod(arr.shape[1:])
        if self.rand_type == "uniform":
            drawn = random.uniform(-1.0, 1.0, shape=(rows, columns))
        else:
            drawn = random.normal(0.0, 1.0, shape=(rows, columns))
        u, _, v = np.linalg.svd(drawn.asnumpy().astype(np.float64), full_matrices=False)
        arr[:] = (self.scale * (u if u.shape == (rows, columns) else v)).reshape(arr.shape).astype(np.float32)


@register
class Mixed(Initializer):
    """The initializer of the first pattern that matches the parameter's name."""

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]):
        super().__init__(patterns=tuple(patterns), initializers=tuple(initializers))
        if len(patterns) != len(initializers):
            raise AssertionError(f"{len(patterns)} patterns do not fit {len(initializers)} initializers")
        self._table = [(re.compile(p), create(i)) for p, i in zip(patterns, initializers, strict=True)]

    def __call__(self, desc: str, arr: NDArray) -> None:
        self._chosen(desc)(desc, arr)

    def _init_weight(self, name: str, arr: NDArray) -> None:
        self._chosen(name)._init_weight(name, arr)

    def _chosen(self, name: str) -> Initializer:
        for pattern, init in self._table:
            if pattern.match(name):
                return init
        raise ValueError(f"no pattern matches {name!r}; end the list with '.*'")
