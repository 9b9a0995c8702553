"""Contexts, random shapes and arrays, and reductions, as MXNet's tests ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.context import Context, current_context, num_gpus, set_default
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array


def list_gpus() -> range:
    """The numbers of the CUDA devices."""
    return range(num_gpus())


def default_context() -> Context:
    """The current context."""
    return current_context()


def set_default_context(ctx: Context) -> None:
    """Make `ctx` the current context of this thread outside of any `with ctx:`."""
    set_default(ctx)


def default_dtype() -> type[np.float32]:
    """numpy.float32"""
    return np.float32


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape with extents of 1 (0 with `allow_zero_size`) to dim."""
    return tuple(int(n) for n in np.random.randint(0 if allow_zero_size else 1, dim + 1, num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, int]:
    """A random shape with extents of at most these."""
    low = 0 if allow_zero_size else 1
    return np.random.randint(low, dim0 + 1), np.random.randint(low, dim1 + 1)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape with extents of at most these."""
    return (*rand_shape_2d(dim0, dim1, allow_zero_size), np.random.randint(0 if allow_zero_size else 1, dim2 + 1))


def rand_coord_2d(x_low: int, x_high: int, y_low: int, y_high: int) -> tuple[int, int]:
    """A random pair of whole numbers, each at least its low and below its high."""
    return np.random.randint(x_low, x_high), np.random.randint(y_low, y_high)


def random_arrays(*shapes: tuple[int, ...]) -> Any:
    """Normally distributed numpy arrays of float32 of these shapes; the array itself of a single shape."""
    arrays = [np.asarray(np.random.randn(*shape), np.float32) for shape in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def random_uniform_arrays(
    *shapes: tuple[int, ...], low: float = 0.0, high: float = 1.0, dtype: Any = np.float32
) -> list[Array]:
    """numpy arrays of these shapes, uniformly distributed in [low, high)."""
    return [np.asarray(np.random.uniform(low, high, shape), dtype) for shape in shapes]


def random_sample(population: Sequence[Any], k: int) -> list[Any]:
    """`k` elements of a sequence in random order, each at most once."""
    return [population[i] for i in np.random.permutation(len(population))[:k]]


def rand_ndarray(shape: tuple[int, ...], stype: str = "default", density: Any = None, dtype: Any = None) -> NDArray:
    """An array of uniform random numbers in [-1, 1). Raises NotImplementedError for another storage than "default"."""
    if stype != "default":
        raise NotImplementedError(f'rand_ndarray: arrays of storage {stype!r} do not exist; "default" ones do')
    return nd.array(np.random.uniform(-1, 1, shape), dtype=dtype)


def create_vector(size: int, dtype: Any = np.int64) -> NDArray:
    """0, 1, ..., size - 1"""
    return nd.arange(size, dtype=dtype)


def create_2d_tensor(rows: int, columns: int, dtype: Any = np.int64) -> NDArray:
    """An array (rows, columns) in which every row is filled with its number."""
    return nd.broadcast_to(nd.arange(rows, dtype=dtype).reshape((rows, 1)), shape=(rows, columns))


def np_reduce(
    dat: Array, axis: int | Sequence[int] | None, keepdims: bool, numpy_reduce_func: Callable[..., Any]
) -> Any:
    """numpy_reduce_func over one axis after the other, the last first."""
    axes = range(dat.ndim) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    made = dat
    for each in sorted(axes, reverse=True):
        made = numpy_reduce_func(made, axis=each)
    return np.reshape(made, [1 if i in axes else n for i, n in enumerate(dat.shape)]) if keepdims else made


def collapse_sum_like(a: Array, shape: tuple[int, ...]) -> Array:
    """The sum of `a` over the axes along which an array of `shape` would be broadcast to it."""
    extra = a.ndim - len(shape)
    axes = [*range(extra), *(extra + i for i, n in enumerate(shape) if n != a.shape[extra + i])]
    summed: Array = np.sum(a, axis=tuple(axes)).reshape(shape)
    return summed


def assign_each(the_input: Array, function: Callable[[Any], Any] | None) -> Array:
    """The function of every element; a copy if there is none."""
    return np.array(the_input) if function is None else np.vectorize(function, otypes=[the_input.dtype])(the_input)


def assign_each2(input1: Array, input2: Array, function: Callable[[Any, Any], Any] | None) -> Array:
    """The function of every pair of elements; a copy of the first if there is none."""
    return np.array(input1) if function is None else np.vectorize(function, otypes=[input1.dtype])(input1, input2)


def new_orthonormal_matrix_2d(n: int) -> Array:
    """A random orthonormal matrix (n, n)."""
    return np.linalg.qr(np.random.randn(n, n))[0]


def new_matrix_with_real_eigvals_2d(n: int) -> Array:
    """A matrix (n, n) with real eigenvalues of -10 to 10, and eigenvectors of a condition below 3."""
    while True:
        vectors = new_orthonormal_matrix_2d(n) * np.random.uniform(0.4, 1.0, n)
        if np.linalg.cond(vectors) < 3:
            return np.linalg.inv(vectors) @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ vectors


def new_sym_matrix_with_real_eigvals_2d(n: int) -> Array:
    """A symmetric matrix (n, n) with eigenvalues of -10 to 10."""
    vectors = new_orthonormal_matrix_2d(n)
    return vectors.T @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ vectors


def new_matrix_with_real_eigvals_nd(shape: tuple[int, ...]) -> Array:
    """`new_matrix_with_real_eigvals_2d` for each index of the axes before the last two."""
    return _each_matrix(new_matrix_with_real_eigvals_2d, shape)


def new_sym_matrix_with_real_eigvals_nd(shape: tuple[int, ...]) -> Array:
    """`new_sym_matrix_with_real_eigvals_2d` for each index of the axes before the last two."""
    return _each_matrix(new_sym_matrix_with_real_eigvals_2d, shape)


def _each_matrix(make: Callable[[int], Array], shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape[:-2], dtype=np.int64))
    return np.array([make(shape[-1]) for _ in range(count)]).reshape(shape)
