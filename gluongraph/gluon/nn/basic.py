"""Dense, Dropout, Embedding, and layers without parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import nd
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn.activations import Activation
from gluongraph.ranges import FRACTION, UNKNOWN, check_count, check_range


class Dense(HybridBlock):
    """activation(x Wᵀ + b), W of shape (units, in_units).

    With `flatten` all axes of x but the first are one, and the result has shape (N, units); without, the last axis is
    transformed and the others stay: (..., in_units) -> (..., units). An `in_units` of 0 is taken from the first x.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Dense(2, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.array([[1, 2, 3]])).asnumpy()
    array([[6., 6.]], dtype=float32)
    >>> layer
    Dense(3 -> 2, linear)

    Raises:
        ValueError: `units` is no whole number from 1 on.
        MXNetError: no activation is called `activation`.
    """

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_units: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_count(self, "units", units)
        check_count(self, "in_units", in_units, UNKNOWN)
        self._units, self._flatten = units, flatten
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=(units, in_units), init=weight_initializer, dtype=dtype, allow_deferred_init=True
            )
            self.bias = (
                self.params.get("bias", shape=(units,), init=bias_initializer, dtype=dtype, allow_deferred_init=True)
                if use_bias
                else None
            )
            self.act = Activation(activation, prefix=activation + "_") if activation is not None else None

    def infer_shape(self, x: Any, *args: Any) -> None:
        self.weight.shape = (self._units, math.prod(x.shape[1:]) if self._flatten else x.shape[-1])

    def forward(self, x: Any) -> Any:
        bias = None if self.bias is None else self.bias.data()
        y = nd.FullyConnected(
            x, self.weight.data(), bias, num_hidden=self._units, no_bias=bias is None, flatten=self._flatten
        )
        return y if self.act is None else self.act(y)

    def __repr__(self) -> str:
        shape = self.weight.shape
        given = shape[1] if shape is not None and shape[1] > 0 else None
        return f"{type(self).__name__}({given} -> {self._units}, {self.act if self.act is not None else 'linear'})"


class Dropout(HybridBlock):
    """In training, each element is 0 with probability `rate`, else divided by 1 - rate; along `axes` all alike.

    Outside of `autograd.record()` and `autograd.train_mode()` the result is x.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.Dropout(0.5)(nd.array([1, 2, 3])).asnumpy()
    array([1., 2., 3.], dtype=float32)

    Raises:
        ValueError: `rate` is not from 0 to 1.
    """

    def __init__(self, rate: float, axes: Sequence[int] = (), **kwargs: Any):
        check_range(self, "rate", rate, FRACTION)
        super().__init__(**kwargs)
        self._rate, self._axes = rate, tuple(axes)

    def forward(self, x: Any) -> Any:
        return nd.Dropout(x, p=self._rate, axes=self._axes) if self._rate > 0 else x

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p = {self._rate}, axes={self._axes})"


class Embedding(HybridBlock):
    """Row i of a (input_dim, output_dim) weight for each index i; indices out of range are clipped.

    Indices of shape (...) give (..., output_dim). With `sparse_grad` the weight's gradient is kept by rows, and SGD,
    Adam and AdaGrad update the rows that it touches.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import nn
    >>> layer = nn.Embedding(10, 3, weight_initializer=init.One())
    >>> layer.initialize()
    >>> layer(nd.array([[0, 9]])).asnumpy()
    array([[[1., 1., 1.],
            [1., 1., 1.]]], dtype=float32)

    Raises:
        ValueError: `input_dim` or `output_dim` is no whole number from 1 on.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        sparse_grad: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_count(self, "input_dim", input_dim)
        check_count(self, "output_dim", output_dim)
        self._input_dim, self._output_dim = input_dim, output_dim
        self.weight = self.params.get(
            "weight",
            shape=(input_dim, output_dim),
            init=weight_initializer,
            dtype=dtype,
            allow_deferred_init=True,
            grad_stype="row_sparse" if sparse_grad else "default",
        )

    def forward(self, x: Any) -> Any:
        return nd.Embedding(x, self.weight.data(), input_dim=self._input_dim, output_dim=self._output_dim)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._input_dim} -> {self._output_dim}, {self.weight.dtype.__name__})"


class Flatten(HybridBlock):
    """(N, ...) -> (N, product of the rest)

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.Flatten()(nd.zeros((2, 3, 4))).shape
    (2, 12)
    """

    def forward(self, x: Any) -> Any:
        return nd.Flatten(x)

    def __repr__(self) -> str:
        return type(self).__name__


class Identity(HybridBlock):
    """x

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.Identity()(nd.array([1, 2])).asnumpy()
    array([1., 2.], dtype=float32)
    """

    def forward(self, x: Any) -> Any:
        return x


class Lambda(Block):
    """A function, or the operator of `nd` with that name, as a block.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.Lambda(lambda x: 2 * x + 1)(nd.array([1, 2])).asnumpy()
    array([3., 5.], dtype=float32)
    >>> nn.Lambda("relu")
    Lambda(relu)

    Raises:
        ValueError: `function` is neither a function nor a name.
        AssertionError: `nd` has no operator of that name.
    """

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None):
        super().__init__(prefix)
        self._func_name, self._function = _named(function)

    def forward(self, *args: Any) -> Any:
        return self._function(*args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_name})"


class HybridLambda(HybridBlock):
    """A function f(F, x, ...), where F is `gluongraph.nd`, or the operator of `nd` with that name.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> nn.HybridLambda(lambda F, x: F.relu(x) + 1)(nd.array([-1, 2])).asnumpy()
    array([1., 3.], dtype=float32)

    Raises:
        ValueError: `function` is neither a function nor a name.
        AssertionError: `nd` has no operator of that name.
    """

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None):
        super().__init__(prefix)
        self._func_name, self._function = _named(function)
        self._lead = (nd,) if callable(function) else ()

    def forward(self, *args: Any) -> Any:
        return self._function(*self._lead, *args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_name})"


def _named(function: str | Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    if callable(function):
        return getattr(function, "__name__", type(function).__name__), function
    if not isinstance(function, str):
        raise ValueError(f"{function!r} is neither a function nor the name of an operator of nd")
    if not callable(found := getattr(nd, function, None)):
        raise AssertionError(f"nd has no operator called {function!r}")
    return function, found
