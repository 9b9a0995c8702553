"""Initializers without chance: one number, a given array, an interpolating kernel, an LSTM's bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.initializer.base import Initializer, alias, register, upsampling
from gluongraph.ndarray import NDArray
from gluongraph.ranges import check_range


@register
@alias("zeros")
class Zero(Initializer):
    """All 0.

    >>> from gluongraph import init, nd
    >>> w = nd.ones((2,))
    >>> init.Zero()("weight", w)
    >>> w.asnumpy().tolist()
    [0.0, 0.0]
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 0.0


@register
@alias("ones")
class One(Initializer):
    """All 1.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2,))
    >>> init.One()("weight", w)
    >>> w.asnumpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 1.0


@register
class Constant(Initializer):
    """All `value`, a number or an array of the parameter's shape.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2,))
    >>> init.Constant([3, 4])("weight", w)
    >>> w.asnumpy().tolist()
    [3.0, 4.0]
    """

    def __init__(self, value: Any):
        array = value.asnumpy() if isinstance(value, NDArray) else value
        super().__init__(value=array.tolist() if isinstance(array, np.ndarray) else array)  # as JSON has it
        self.value = value

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = np.asarray(self.value) if isinstance(self.value, list) else self.value


@register
class Bilinear(Initializer):
    """Bilinear interpolation as the (out, in, h, w) kernel of a transposed convolution.

    (1 - |x/f - c|) (1 - |y/f - c|) with f = ⌈w/2⌉ and c = (2f - 1 - f mod 2) / 2f, for every pair of channels.

    Raises:
        ValueError: a parameter that has not four axes.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((1, 1, 4, 4))
    >>> init.Bilinear()("weight", w)
    >>> (16 * w[0, 0, 0]).asnumpy().astype(int).tolist()
    [1, 3, 3, 1]
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = upsampling(name, arr.shape)


@register
class LSTMBias(Initializer):
    """0, but `forget_bias` for the second quarter, the forget gate of an LSTM's bias.

    The bias has shape (4 * hidden_size,), gates in the order i, f, g, o.

    >>> from gluongraph import gluon, init
    >>> bias = gluon.Parameter("i2h_bias", shape=(8,), init=init.LSTMBias(forget_bias=1.0))
    >>> bias.initialize()
    >>> bias.data().asnumpy().astype(int).tolist()
    [0, 0, 1, 1, 0, 0, 0, 0]
    """

    def __init__(self, forget_bias: float = 1.0):
        check_range(self, "forget_bias", forget_bias)
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 0.0
        hidden = arr.shape[0] // 4
        arr[hidden : 2 * hidden] = self.forget_bias
