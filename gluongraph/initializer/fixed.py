"""Initializers without chance: one number, a given array, an interpolating kernel, an LSTM's bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.initializer.base import Initializer, alias, register, upsampling
from gluongraph.ndarray import NDArray


@register
@alias("zeros")
class Zero(Initializer):
    """All 0."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 0.0


@register
@alias("ones")
class One(Initializer):
    """All 1."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 1.0


@register
class Constant(Initializer):
    """All `value`, a number or an array of the parameter's shape."""

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
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = upsampling(name, arr.shape)


@register
class LSTMBias(Initializer):
    """0, but `forget_bias` for the second quarter, the forget gate of an LSTM's bias."""

    def __init__(self, forget_bias: float = 1.0):
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 0.0
        hidden = arr.shape[0] // 4
        arr[hidden : 2 * hidden] = self.forget_bias
