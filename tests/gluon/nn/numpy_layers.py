"""What layers compute, in numpy, over any number of axes: as the formulas say it, one window after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Ints = Sequence[int]


def convolution(x: Any, w: Any, stride: Ints, pad: Ints, dilation: Ints, groups: int) -> Any:
    """y[n, o, i...] = Σ x[n, c, i s + k d - p...] w[o, c, k...]"""
    size = _places(x.shape[2:], w.shape[2:], stride, pad, dilation)
    framed = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    y = np.zeros((x.shape[0], w.shape[0], *size))
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    for place in np.ndindex(*size):
        at = _window(place, w.shape[2:], stride, dilation)
        for g in range(groups):
            window, filters = framed[:, g * inputs : (g + 1) * inputs][at], w[g * outputs : (g + 1) * outputs]
            summed = range(1, x.ndim)
            y[:, g * outputs : (g + 1) * outputs][(..., *place)] = np.tensordot(window, filters, (summed, summed))
    return y


def deconvolution(x: Any, w: Any, stride: Ints, pad: Ints, dilation: Ints, groups: int, more: Ints) -> Any:
    """Each x[n, c, i...] times w[c, o, k...] is added at i s + k d - p."""
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + m
        for n, k, s, p, d, m in zip(x.shape[2:], w.shape[2:], stride, pad, dilation, more, strict=True)
    ]
    inputs, outputs = x.shape[1] // groups, w.shape[1]
    framed = np.zeros((x.shape[0], outputs * groups, *(n + 2 * p for n, p in zip(size, pad, strict=True))))
    for place in np.ndindex(*x.shape[2:]):
        at = _window(place, w.shape[2:], stride, dilation)
        for g in range(groups):
            one, filters = x[(slice(None), slice(g * inputs, (g + 1) * inputs), *place)], w[g * inputs :][:inputs]
            framed[:, g * outputs : (g + 1) * outputs][at] += np.tensordot(one, filters, 1)
    inner = tuple(slice(p, p + n) for n, p in zip(size, pad, strict=True))
    return framed[(..., *inner)]


def _places(size: Ints, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints) -> list[int]:
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, pad, dilation, strict=True)
    ]


def _window(place: Ints, kernel: Ints, stride: Ints, dilation: Ints) -> tuple[Any, ...]:
    """The elements of a window, as an index behind images and channels."""
    spans = (
        slice(i * s, i * s + d * (k - 1) + 1, d) for i, k, s, d in zip(place, kernel, stride, dilation, strict=True)
    )
    return (..., *spans)


def pooling(fold: Callable[..., Any], x: Any, kernel: Ints, stride: Ints, pad: Ints, ceil: bool) -> Any:
    """fold(elements, covered) of each window, for the elements that lie in the data and the number with padding."""
    axes = len(kernel)
    size = [
        -(-(n + 2 * p - k) // s) + 1 if ceil else (n + 2 * p - k) // s + 1
        for n, k, s, p in zip(x.shape[2:], kernel, stride, pad, strict=True)
    ]
    y = np.zeros((*x.shape[:2], *size))
    for place in np.ndindex(*size):
        begin = [i * s - p for i, s, p in zip(place, stride, pad, strict=True)]
        end = [min(b + k, n + p) for b, k, n, p in zip(begin, kernel, x.shape[2:], pad, strict=True)]
        inside = tuple(slice(max(b, 0), e) for b, e in zip(begin, end, strict=True))
        covered = int(np.prod([e - b for b, e in zip(begin, end, strict=True)]))
        window = x[(..., *inside)].reshape(*x.shape[:2], -1)
        y[(..., *place)] = fold(window, covered)
    assert axes == x.ndim - 2
    return y


def normalized(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    """(x - mean) / sqrt(var + eps), with the biased variance."""
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
