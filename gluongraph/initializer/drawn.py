"""Initializers by random numbers, drawn from mx.random on the array's device: `mx.random.seed` repeats them."""

from __future__ import annotations

import math

import numpy as np

from gluongraph import random
from gluongraph.errors import with_user_location
from gluongraph.initializer.base import Initializer, register
from gluongraph.ndarray import NDArray
from gluongraph.ranges import NOT_NEGATIVE, check_range


@register
class Uniform(Initializer):
    """U(-scale, scale).

    Raises:
        ValueError: `scale` is negative or not finite.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2, 3))
    >>> init.Uniform(scale=0.5)("weight", w)
    >>> bool((abs(w.asnumpy()) <= 0.5).all())
    True
    """

    def __init__(self, scale: float = 0.07):
        check_range(self, "scale", scale, NOT_NEGATIVE)
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: str, arr: NDArray) -> None:
        random.uniform(-self.scale, self.scale, out=arr)


@register
class Normal(Initializer):
    """N(0, sigma²).

    Raises:
        ValueError: `sigma` is negative or not finite.

    >>> from gluongraph import init, nd
    >>> w = nd.ones((2, 3))
    >>> init.Normal(sigma=0)("weight", w)
    >>> abs(w.asnumpy()).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, sigma: float = 0.01):
        check_range(self, "sigma", sigma, NOT_NEGATIVE)
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: str, arr: NDArray) -> None:
        random.normal(0.0, self.sigma, out=arr)


@register
class Xavier(Initializer):
    """U(-s, s) or N(0, s²), s = sqrt(magnitude / factor): the factor is fan-in, fan-out or their mean.

    fan_in = shape[1] * prod(shape[2:]), fan_out = shape[0] * prod(shape[2:]).

    Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".

    Raises:
        ValueError: an unknown `rnd_type` or `factor_type`; a negative `magnitude`; a parameter of fewer than two axes.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2, 6))
    >>> init.Xavier(factor_type="in", magnitude=6)("weight", w)  # s = sqrt(6 / 6)
    >>> bool((abs(w.asnumpy()) <= 1).all())
    True
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3):
        check_range(self, "magnitude", magnitude, NOT_NEGATIVE)
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        if rnd_type not in ("uniform", "gaussian"):
            raise ValueError(
                with_user_location(f"{type(self).__name__}: rnd_type is 'uniform' or 'gaussian', not {rnd_type!r}")
            )
        if factor_type not in ("avg", "in", "out"):
            raise ValueError(
                with_user_location(f"{type(self).__name__}: factor_type is 'avg', 'in' or 'out', not {factor_type!r}")
            )
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
            random.uniform(-scale, scale, out=arr)
        else:
            random.normal(0.0, scale, out=arr)


@register
class MSRAPrelu(Xavier):
    """He initialization for a PReLU of this slope: Xavier, gaussian, magnitude 2 / (1 + slope²).

    He et al. 2015, "Delving deep into rectifiers". Errors are those of Xavier.

    >>> from gluongraph import init
    >>> init.MSRAPrelu(factor_type="in", slope=0).magnitude
    2.0
    """

    def __init__(self, factor_type: str = "avg", slope: float = 0.25):
        check_range(self, "slope", slope)
        super().__init__("gaussian", factor_type, 2.0 / (1.0 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


@register
class Orthogonal(Initializer):
    """scale times a matrix with orthonormal rows or columns: a singular factor of a random (shape[0], rest) matrix.

    Raises:
        ValueError: an unknown `rand_type`; a `scale` that is not finite.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2, 3))
    >>> init.Orthogonal(scale=1)("weight", w)
    >>> (w.asnumpy() @ w.asnumpy().T).round().astype(int).tolist()
    [[1, 0], [0, 1]]
    """

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform"):
        check_range(self, "scale", scale)
        super().__init__(scale=scale, rand_type=rand_type)
        if rand_type not in ("uniform", "normal"):
            raise ValueError(
                with_user_location(f"{type(self).__name__}: rand_type is 'uniform' or 'normal', not {rand_type!r}")
            )
        self.scale, self.rand_type = scale, rand_type

    def _init_weight(self, name: str, arr: NDArray) -> None:
        rows, columns = arr.shape[0], math.prod(arr.shape[1:])
        if self.rand_type == "uniform":
            drawn = random.uniform(-1.0, 1.0, shape=(rows, columns), ctx=arr.context)
        else:
            drawn = random.normal(0.0, 1.0, shape=(rows, columns), ctx=arr.context)
        u, _, v = np.linalg.svd(drawn.asnumpy().astype(np.float64), full_matrices=False)
        arr[:] = (self.scale * (u if u.shape == (rows, columns) else v)).reshape(arr.shape).astype(np.float32)
