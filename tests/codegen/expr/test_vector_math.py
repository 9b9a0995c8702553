"""Vector forms of the elementary functions: distance to the true value in units of the last place, and the edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gluongraph.codegen.expr import vector_math
from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.dtypes import numpy_dtype
from gluongraph.runtime import loader

Array = Any
SIZE = 1 << 16
LANES = 16
INF, NAN = math.inf, math.nan
DENORMAL = (1e-45, -1e-45, 1e-39, -1e-39, 1.1754942e-38)
EDGES = (0.0, -0.0, INF, -INF, NAN, *DENORMAL, 1.0, -1.0, 3.4e38, -3.4e38, 1.1754944e-38)


@np.vectorize
def normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


# name, the true function of f64, where, ulp
UNARY: list[tuple[str, Callable[[Array], Array], tuple[float, float], float]] = [
    ("exp", np.exp, (-105.0, 90.0), 2),
    ("exp", np.exp, (-1.0, 1.0), 2),
    ("expm1", np.expm1, (-20.0, 89.0), 2),
    ("expm1", np.expm1, (-1.0, 1.0), 2),
    ("log", np.log, (1e-3, 10.0), 2),
    ("log", np.log, (0.5, 1.5), 2),
    ("log1p", np.log1p, (-0.999, 10.0), 2),
    ("log1p", np.log1p, (-1e-3, 1e-3), 2),
    ("log1p", np.log1p, (0.0, 3e38), 2),
    ("tanh", np.tanh, (-10.0, 10.0), 2),
    ("tanh", np.tanh, (-0.7, 0.7), 2),
    ("erf", np.vectorize(math.erf), (-4.5, 4.5), 2),
    ("erf", np.vectorize(math.erf), (-1.0, 1.0), 2),
    ("normal_cdf", normal_cdf, (0.0, 9.0), 2),
    ("normal_cdf", normal_cdf, (-1.0, 0.0), 4),
    ("normal_pdf", lambda x: np.exp(x * x / -2) / math.sqrt(2 * math.pi), (-1.0, 1.0), 3),
    ("sigmoid", lambda x: np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x))), (-110.0, 110.0), 3),
    ("sin", np.sin, (-10.0, 10.0), 2),
    ("cos", np.cos, (-10.0, 10.0), 2),
    ("sin", np.sin, (-1e6, 1e6), 2),
    ("cos", np.cos, (-1e9, 1e9), 2),
    ("sqrt", np.sqrt, (0.0, 1e10), 1),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (1e-20, 1e10), 2),
]


def test_the_tail_of_the_normal_distribution(functions: Any) -> None:
    x = np.linspace(-14, 0, SIZE, dtype=np.float32)
    assert np.abs(call(functions, "normal_cdf", x) - normal_cdf(x.astype(np.float64))).max() <= 2.0**-23


@pytest.mark.parametrize("scale", [1.0, 0.125, -0.3])
def test_exponentials_of_what_is_not_above_0(scale: float) -> None:
    """The softmax of an attention: 2 ulp, and as many as the exponent is; 0 below -87.3 however far, NaN as NaN."""
    x = np.zeros(SIZE, np.float32)
    x[: SIZE // 2] = -np.random.default_rng(0).uniform(0, 87.3, SIZE // 2).astype(np.float32)
    x[-8:] = (-0.0, -1e-40, -88.0, -1e4, -1e30, -3e38, -INF, NAN)
    below = kernel("below", lambda e, v: vector_math.exp_below(e.kernel, v, scale), SIZE)
    with np.errstate(over="ignore"):
        given = x / np.float32(scale)
    y = call(machine_code.build_kernels([below], target().tvm), "below", given)
    power = given.astype(np.float64) * scale
    exact = np.where(power < -87.3, 0, np.exp(power))
    assert np.array_equal(np.isnan(y), np.isnan(x))
    assert np.array_equal(y[-6:-1], [0, 0, 0, 0, 0])
    good = ~np.isnan(x)
    error = np.abs(y[good] - exact[good]) / np.spacing(exact[good].astype(np.float32))
    assert np.all(error <= 2 + np.where(exact[good] > 0, -power[good], 0))


def table(exact: Callable[[Array], Array]) -> Array:
    with np.errstate(all="ignore"):
        return exact(np.array(EDGES, np.float32).astype(np.float64))


def kernel(name: str, emit: Callable[[CpuAlgebra, Any], Any], size: int, lanes: int = LANES, dtype: str = "f32") -> Any:
    """y = emit(algebra, x) over `size` elements."""
    k = tir.Kernel(name)
    x, y = k.param("x", size, dtype), k.param("y", size, dtype)
    with k.loop(size // lanes) as i:
        k.store(y, emit(CpuAlgebra(k), k.load(x, i * lanes, lanes)), i * lanes)
    return k.finish()


def call(module: Any, name: str, x: Array) -> Array:
    y = np.empty_like(x)
    module[name](loader.view(x), loader.view(y))
    return y


def ulps(got: Array, true: Array) -> Array:
    """|got - true| in units of the last place of the f32 next to `true`; 0 where both are the same infinity or NaN."""
    with np.errstate(all="ignore"):
        near = true.astype(np.float32)
        unit = np.spacing(np.abs(np.minimum(np.abs(near), np.float32(3e38)))).astype(np.float64)
        off = np.abs(got.astype(np.float64) - true) / unit
    same = (got == near) | (np.isnan(got) & np.isnan(near))
    return np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))


@pytest.fixture(scope="module")
def functions() -> Any:
    names = sorted({row[0] for row in UNARY})
    made = [kernel(n, lambda e, x, n=n: e.unary(n, x), SIZE) for n in names]
    edges = [kernel(f"{n}_edges", lambda e, x, n=n: e.unary(n, x), len(EDGES), 1) for n in names]
    return machine_code.build_kernels([*made, *edges], target().tvm)


@pytest.mark.parametrize(
    ("name", "exact", "bounds", "limit"),
    UNARY,
    ids=lambda v: getattr(v, "__name__", "exact") if callable(v) else str(v),
)
def test_accuracy(functions: Any, name: str, exact: Callable[[Array], Array], bounds: Any, limit: float) -> None:
    if bounds[1] > 1e5 and name in ("sin", "cos") and target().name == "x86-64":
        pytest.skip("without fused multiply-add the reduction of large arguments loses digits")
    dense = np.linspace(*bounds, SIZE // 2)
    near_zero = np.exp(np.random.uniform(-80, 0, SIZE // 2)) * np.random.choice([-1, 1], SIZE // 2)
    x = np.concatenate([dense, np.clip(near_zero, *bounds)]).astype(np.float32)
    off = ulps(call(functions, name, x), exact(x.astype(np.float64)))
    worst = int(off.argmax())
    assert off[worst] <= limit, f"{name}({x[worst]!r}) is {off[worst]:.2f} ulp off"


@pytest.mark.parametrize(
    ("name", "exact"),
    {row[0]: row[1] for row in UNARY}.items(),
    ids=lambda v: getattr(v, "__name__", "exact") if callable(v) else str(v),
)
def test_edges(functions: Any, name: str, exact: Callable[[Array], Array]) -> None:
    x, true = np.array(EDGES, np.float32), table(exact)
    if name in ("sin", "cos"):
        true[np.abs(x) > 2.0**50] = NAN  # no argument reduction up there
    got = call(functions, f"{name}_edges", x)
    off = ulps(got, true)
    assert off.max() <= 2, [(a, b, t) for a, b, t, o in zip(x, got, true, off, strict=True) if o > 2]


BINARY: list[tuple[str, Callable[[Array, Array], Array], str, float]] = [
    ("pow", np.power, "f32", 2),
    ("maximum", np.maximum, "f32", 0),
    ("minimum", np.minimum, "f32", 0),
    ("floormod", np.mod, "f32", 0),
    ("floordiv", np.floor_divide, "f32", 0),
    ("div", np.divide, "f32", 0),
    ("floordiv", np.floor_divide, "i32", 0),
    ("floormod", np.mod, "i32", 0),
    ("floordiv", np.floor_divide, "u8", 0),
    ("pow", np.power, "f64", 0),
    ("less", np.less, "f32", 0),
    ("not_equal", np.not_equal, "f32", 0),
]


def pairs(dtype: str) -> tuple[Array, Array]:
    if dtype in ("f32", "f64"):
        values = np.array([*EDGES, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 7.25, 100.0, 0.1], numpy_dtype(dtype))
    else:
        info = np.iinfo(numpy_dtype(dtype))
        values = np.array([info.min, info.max, 0, 1, 2, 3, 7, 100, *((-1, -2, -7) if info.min else ())], info.dtype)
    x, y = np.meshgrid(values, values)
    return x.ravel().copy(), y.ravel().copy()


@pytest.fixture(scope="module")
def operators() -> Any:
    made = []
    for name, _, dtype, _ in BINARY:
        size = len(pairs(dtype)[0])
        k = tir.Kernel(f"{name}_{dtype}")
        x, y = k.param("x", size, dtype), k.param("y", size, dtype)
        z = k.param("z", size, "bool" if name in ("less", "not_equal") else dtype)
        k.store(z, CpuAlgebra(k).binary(name, k.load(x, 0, size), k.load(y, 0, size)), 0)
        made.append(k.finish())
    return machine_code.build_kernels(made, target().tvm)


@pytest.mark.parametrize(
    ("name", "exact", "dtype", "limit"),
    BINARY,
    ids=lambda v: getattr(v, "__name__", "exact") if callable(v) else str(v),
)
def test_operators(operators: Any, name: str, exact: Callable[[Array, Array], Array], dtype: str, limit: int) -> None:
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        want = exact(x, y)
        true = want if name != "pow" or dtype == "f64" else exact(x.astype(np.float64), y.astype(np.float64))
    got = np.empty_like(want)
    operators[f"{name}_{dtype}"](loader.view(x), loader.view(y), loader.view(got))
    if limit:
        off = ulps(got, true)
        assert off.max() <= limit, [
            (a, b, g, t) for a, b, g, t, o in zip(x, y, got, true, off, strict=True) if o > limit
        ]
    elif dtype == "f64":
        assert np.allclose(got, want, rtol=1e-15, atol=0, equal_nan=True)
    else:
        assert np.array_equal(got, want, equal_nan=dtype[0] == "f"), [
            (a, b, g, w) for a, b, g, w in zip(x, y, got, want, strict=True) if g != w and not (g != g and w != w)
        ]


CONSTANTS = (0.0, -0.0, INF, -INF, NAN, 1.0, 0.5, -3.0)
FOLDED = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "floormod", "floordiv", "less", "not_equal")


@pytest.fixture(scope="module")
def folded() -> Any:
    """Each operator with each constant on either side, row after row."""
    made, size = [], len(EDGES)
    for name in FOLDED:
        k = tir.Kernel(name)
        x = k.param("x", size, "f32")
        z = k.param("z", 2 * len(CONSTANTS) * size, "bool" if name in ("less", "not_equal") else "f32")
        e = CpuAlgebra(k)
        for i, number in enumerate(CONSTANTS):
            pair = k.load(x, 0, size), e.const(number, "f32")
            k.store(z, e.binary(name, *pair), 2 * i * size)
            k.store(z, e.binary(name, *pair[::-1]), (2 * i + 1) * size)
        made.append(k.finish())
    return machine_code.build_kernels(made, target().tvm)


@pytest.mark.parametrize("name", FOLDED)
def test_operators_with_constants(folded: Any, name: str) -> None:
    """TVM folds what it sees to be constant, by rules for integers."""
    exact = {row[0]: row[1] for row in BINARY}.get(name) or {"add": np.add, "sub": np.subtract, "mul": np.multiply}[
        name
    ]
    x, rows = np.array(EDGES, np.float32), []
    with np.errstate(all="ignore"):
        for number in map(np.float32, CONSTANTS):
            rows += [exact(x, number), exact(number, x)]
    want = np.array(rows)
    got = np.empty_like(want)
    folded[name](loader.view(x), loader.view(got.reshape(-1)))
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-7, atol=0)


ITSELF = ("sub", "div", "equal", "not_equal", "less_equal", "greater")


@pytest.mark.parametrize("lanes", [1, LANES])
def test_operators_on_one_value(lanes: int) -> None:
    """x - x is no 0 where x is infinite, and x == x says whether x is a number."""
    k, x = tir.Kernel("itself"), np.resize(np.array(EDGES, np.float32), LANES)
    given, z, e = k.param("x", LANES, "f32"), k.param("z", len(ITSELF) * LANES, "f32"), CpuAlgebra(k)
    for i, name in enumerate(ITSELF):
        for at in range(0, LANES, lanes):
            value = k.let(k.load(given, at, lanes))
            k.store(z, e.cast(e.binary(name, value, value), "f32"), i * LANES + at)
    exact = (np.subtract, np.divide, np.equal, np.not_equal, np.less_equal, np.greater)
    with np.errstate(all="ignore"):
        want = np.array([fn(x, x).astype(np.float32) for fn in exact])
    got = np.empty_like(want)
    machine_code.build_kernels([k.finish()], target().tvm)["itself"](loader.view(x), loader.view(got.reshape(-1)))
    np.testing.assert_array_equal(got, want)


def test_not_keeps_nan() -> None:
    k = tir.Kernel("not_less")
    x, y = k.param("x", 4, "f32"), k.param("y", 4, "bool")
    e = CpuAlgebra(k)
    k.store(y, e.unary("logical_not", e.binary("less", k.load(x, 0, 4), e.const(1.0, "f32"))), 0)
    numbers, got = np.array([NAN, 0, 1, 2], np.float32), np.zeros(4, bool)
    machine_code.build_kernels([k.finish()], target().tvm)["not_less"](loader.view(numbers), loader.view(got))
    assert got.tolist() == [True, False, True, True]
