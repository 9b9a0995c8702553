"""Comparisons of arrays: of NDArrays, numpy's and numbers, which broadcast, with MXNet's tolerances by element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph.ndarray import NDArray
from gluongraph.storage import Array

Tolerance = float | Mapping[Any, float] | None  # for all types, or by type; None: the default
_TOLERANCES = {"float16": (1e-2, 1e-1), "bfloat16": (1e-2, 1e-1), "float32": (1e-4, 1e-3), "float64": (1e-5, 1e-20)}
_EXACT = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")


def _default(which: int) -> dict[Any, float]:
    known = {np.dtype(name): 0.0 for name in _EXACT}
    return known | {np.dtype(n): t[which] for n, t in _TOLERANCES.items() if n != "bfloat16"}


def default_rtols() -> dict[Any, float]:
    """Relative tolerances by type of element: 1e-4 for float32."""
    return _default(0)


def default_atols() -> dict[Any, float]:
    """Absolute tolerances by type of element: 1e-3 for float32."""
    return _default(1)


def default_numeric_eps() -> dict[Any, float]:
    """Steps of finite differences by type of element: powers of two."""
    return {np.dtype(np.float16): 2.0**-6, np.dtype(np.float32): 2.0**-9, np.dtype(np.float64): 2.0**-14}


def effective_dtype(dat: Any) -> Any:
    """The type by whose precision to judge an array: its own."""
    return np.dtype(dat.dtype)


def get_rtol(rtol: float | None = None, dtype: Any = np.float64) -> float:
    """`rtol`, or by default that of the type."""
    return default_rtols()[np.dtype(dtype)] if rtol is None else rtol


def get_atol(atol: float | None = None, dtype: Any = np.float64) -> float:
    """`atol`, or by default that of the type."""
    return default_atols()[np.dtype(dtype)] if atol is None else atol


def get_etol(etol: float | None = None) -> float:
    """`etol`, the share of elements that may differ; 0 by default."""
    return 0 if etol is None else etol


def get_tolerance(dat: Any, tol: Tolerance, default_tol: Mapping[Any, float]) -> float:
    """A tolerance for an array: a number as it is; else by type, from `tol` if it has that type."""
    if tol is None or isinstance(tol, Mapping):
        dtype = effective_dtype(dat)
        found = (tol or {}).get(dtype)
        return default_tol.get(dtype, 0.0) if found is None else found
    return float(tol)


def get_tols(x: Any, y: Any, rtol: Tolerance, atol: Tolerance) -> tuple[float, float]:
    """Relative and absolute tolerance for comparing two arrays: the larger of both, each by its type."""
    a, b = _numpy(x), _numpy(y)
    relative, absolute = (
        max(_tolerance(each, tol, which) for each in (a, b)) for which, tol in enumerate((rtol, atol))
    )
    return relative, absolute


def _tolerance(x: Array, tol: Tolerance, which: int) -> float:
    default = _TOLERANCES.get(x.dtype.name, (0.0, 0.0))[which]
    return get_tolerance(x, tol, {np.dtype(x.dtype): default})


def _numpy(x: Any) -> Array:
    return x.asnumpy() if isinstance(x, NDArray) else np.asarray(x)


def _wide(x: Array) -> Array:
    return x if x.dtype.kind in "iub" else x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def same(a: Any, b: Any) -> bool:
    """Are the arrays equal, element by element, and of one shape?"""
    return np.array_equal(_numpy(a), _numpy(b))


def same_array(array1: NDArray, array2: NDArray) -> bool:
    """Do two arrays share their memory?"""
    return np.shares_memory(array1.storage.array, array2.storage.array)


def almost_equal(
    a: Any,
    b: Any,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    equal_nan: bool = False,
    use_broadcast: bool = True,
) -> bool:
    """|a - b| <= atol + rtol * |b| everywhere? By default the tolerances are MXNet's for the coarser dtype.

    Raises:
        AssertionError: without `use_broadcast`, the shapes differ.
    """
    x, y = _numpy(a), _numpy(b)
    if not use_broadcast and x.shape != y.shape:
        raise AssertionError(f"shapes differ: {x.shape} and {y.shape}")
    relative, absolute = get_tols(x, y, rtol, atol)
    if relative == absolute == 0 and {x.dtype.kind, y.dtype.kind} <= set("iub"):
        return bool(np.all(x == y))  # without rounding to float64
    return np.allclose(_wide(x), _wide(y), relative, absolute, equal_nan)


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    use_broadcast: bool = True,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Raise AssertionError, which names the worst place, unless `almost_equal`. `mismatches` changes nothing."""
    if almost_equal(a, b, rtol, atol, equal_nan, use_broadcast):
        return
    x, y = np.broadcast_arrays(_wide(_numpy(a)), _wide(_numpy(b)))
    relative, absolute = get_tols(a, b, rtol, atol)
    what = f"{names[0]} and {names[1]} differ"
    np.testing.assert_allclose(x, y, relative, absolute, equal_nan, what)
    raise AssertionError(what)


def assert_allclose(a: Any, b: Any, rtol: Tolerance = 1e-07, atol: Tolerance = 0, equal_nan: bool = True) -> None:
    """`assert_almost_equal` with numpy's tolerances."""
    assert_almost_equal(a, b, rtol, atol, equal_nan=equal_nan)


def assert_almost_equal_ignore_nan(
    a: Any, b: Any, rtol: Tolerance = None, atol: Tolerance = None, names: tuple[str, str] = ("a", "b")
) -> None:
    """`assert_almost_equal` where neither array is NaN."""
    x, y = np.copy(_numpy(a)), np.copy(_numpy(b))
    either = np.isnan(x) | np.isnan(y)
    x[either] = y[either] = 0
    assert_almost_equal(x, y, rtol, atol, names)


def assert_almost_equal_with_err(
    a: Any,
    b: Any,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    etol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """`assert_almost_equal` of all but the share `etol` of the elements."""
    if not get_etol(etol):
        assert_almost_equal(a, b, rtol, atol, names, equal_nan)
        return
    relative, absolute = get_tols(a, b, rtol, atol)
    fits = np.isclose(_wide(_numpy(a)), _wide(_numpy(b)), relative, absolute, equal_nan)
    wrong = 1 - np.count_nonzero(fits) / fits.size
    if wrong > get_etol(etol):
        raise AssertionError(f"{names[0]} and {names[1]} differ in {100 * wrong:g} % of the elements")


def compare_ndarray_tuple(t1: Any, t2: Any, rtol: Tolerance = None, atol: Tolerance = None) -> None:
    """`assert_almost_equal` of the arrays in nested tuples; None fits anything."""
    if t1 is None or t2 is None:
        return
    if isinstance(t1, (tuple, list)):
        for one, other in zip(t1, t2, strict=True):
            compare_ndarray_tuple(one, other, rtol, atol)
    else:
        assert_almost_equal(t1, t2, rtol, atol)
