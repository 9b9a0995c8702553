"""Arguments for each row of the table of ATen's operators: small arrays, ties, negative axes, other element types."""

# fmt: off
from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from aten_rows import Sample as S

SAMPLES: dict[str, list[S]] = {}
INF, NAN = math.inf, math.nan
_RNG = np.random.default_rng(0)


def rows(names: str, *samples: S) -> None:
    """These samples for each of the overloads."""
    for name in names.split():
        SAMPLES.setdefault(name, []).extend(samples)


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Numbers in float64; none are equal, none is near a multiple of 1/2."""
    drawn = torch.tensor(_RNG.uniform(low, high, shape), dtype=torch.float64)
    near = (drawn * 2 - (drawn * 2).round()).abs() < 0.02
    return torch.where(near, drawn + 0.05 * (1 if high > low + 0.2 else 0), drawn)


def p(*shape: int) -> Any:
    """Positive numbers, from 0.1 to 2.1."""
    return f(*shape, low=0.1, high=2.1)


def unit(*shape: int) -> Any:
    """Numbers between 0.05 and 0.95."""
    return f(*shape, low=0.05, high=0.9)


def t(values: Any, dtype: Any = None) -> Any:
    """These elements; floats as float64."""
    made = torch.tensor(values, dtype=dtype)
    return made.double() if dtype is None and made.is_floating_point() else made


def i(*shape: int, low: int = -4, high: int = 5, dtype: Any = torch.int64) -> Any:
    """Integers."""
    return torch.tensor(_RNG.integers(low, high, shape), dtype=dtype)


def nz(*shape: int, dtype: Any = torch.int64) -> Any:
    """Integers that are not 0."""
    return torch.tensor(_RNG.integers(1, 5, shape) * _RNG.choice([-1, 1], shape), dtype=dtype)


def b(*shape: int) -> Any:
    """Bools."""
    return torch.tensor(_RNG.integers(0, 2, shape), dtype=torch.bool)


def order(*shape: int, axis: int = -1) -> Any:
    """Permutations along an axis."""
    return torch.tensor(np.argsort(_RNG.uniform(size=shape), axis), dtype=torch.int64)


i32, i8, u8, f32, f16, bf16 = torch.int32, torch.int8, torch.uint8, torch.float32, torch.float16, torch.bfloat16
i64, f64, boolean = torch.int64, torch.float64, torch.bool


# -- two operands

PAIRS = (
    S(f(2, 3), f(2, 3)),
    S(f(2, 3), f(3)),
    S(f(2, 1), f(1, 3)),
    S(f(3), f()),
    S(f(), f()),
    S(f(3), i(3)),
    S(i(2, 3), f(3)),
    S(i(2, 3), t(1.5)),
    S(i(2, 3), t(1.5, f32)),
    S(f(3).float(), t(2.5)),
    S(f(3).half(), f(3).float(), grad=False),
    S(f(3).half(), f(3).bfloat16(), grad=False),
)
WHOLE = (
    S(i(2, 3), i(3)),
    S(i(3), t(2, i32)),
    S(i(3, dtype=i32), i(3)),
    S(i(3, dtype=i8), i(3, dtype=i32)),
)
BOOLS = (S(b(2, 3), b(3)), S(i(3, dtype=i32), b(3)), S(b(3), i(3)), S(f(3), b(3)))
NUMBERS = (S(f(2, 3), 2), S(f(2, 3), 1.5), S(f(), -3), S(i(2, 3), 1.5), S(f(3).half(), 1.5, grad=False))
WHOLE_NUMBERS = (S(i(3), 2), S(i(3, dtype=i32), -3), S(i(3, low=0, dtype=u8), 2))

rows("add.Tensor mul.Tensor multiply.Tensor", *PAIRS, *WHOLE, *BOOLS)
rows("add.Tensor sub.Tensor", S(f(3), f(3), alpha=2), S(f(3), f(3), alpha=-0.5), S(i(3), i(3), alpha=3))
rows("sub.Tensor rsub.Tensor", *PAIRS, *WHOLE)
rows("rsub.Tensor", S(f(3), f(3), alpha=2))
rows("add.Scalar sub.Scalar mul.Scalar rsub.Scalar", *NUMBERS, *WHOLE_NUMBERS)
rows("add.Scalar mul.Scalar", S(b(3), 2), S(b(3), True), S(b(3), 1.5))
rows("add.Scalar sub.Scalar rsub.Scalar", S(f(3), 2.0, 0.5), S(i(3), 2, 3))
rows("div.Tensor true_divide.Tensor divide.Tensor", *PAIRS, S(i(3), nz(3)), S(b(3), nz(3)), S(i(3, dtype=i32), t(2)))
rows("div.Tensor", S(t([1.0, -1.0, 0.0]), t([0.0, 0.0, 0.0]), grad=False))
rows("div.Scalar", *NUMBERS, S(i(3), 2), S(b(3), 2))
EQUAL = S(t([1.0, 2.0, -1.0]), t([1.0, 1.0, -1.0]))
NANS = S(t([NAN, 1.0, NAN, INF]), t([1.0, NAN, NAN, 2.0]), grad=False)
rows("minimum.default min.other maximum.default max.other", *PAIRS, *WHOLE, *BOOLS, EQUAL, NANS)
rows("fmin.default fmax.default", *PAIRS, *WHOLE, *BOOLS, EQUAL, NANS, S(t([NAN, 1.0, 3.0]), t([1.0, NAN, 2.0])))
QUOTIENTS = (
    S(f(2, 3), f(3)),
    S(t([7.0, -7.0, 7.0, -7.0, 6.0]), t([2.0, 2.0, -2.0, -2.0, 3.0])),
    S(t([7, -7, 7, -7, 6]), t([2, 2, -2, -2, 3])),
    S(t([7, -7, 5], i32), t([2, 3, -3])),
    S(t([250, 7], u8), t([16, 3], u8)),
    S(i(3), f(3)),
    S(t([1.0, -1.0, 0.0]), t([0.0, 0.0, 0.0]), grad=False),
    S(t([INF, 1.0, -1.0]), t([2.0, INF, INF]), grad=False),
    S(t([-1e-20, 1e-20, 1e20]), t([1.0, -1.0, 3.0]), f32=False),
)
QUOTIENTS_OF_NUMBERS = (
    S(t([7.0, -7.0, 0.3]), 2), S(t([7.0, -7.0, 0.3]), -1.5), S(t([7, -7, 6]), 3), S(t([7, -7, 6]), -2.5),
)
rows("remainder.Tensor fmod.Tensor", *QUOTIENTS)
rows("remainder.Scalar fmod.Scalar", *QUOTIENTS_OF_NUMBERS)
# PyTorch has no gradients of these.
rows("floor_divide.default", *(S(*s.args, grad=False, f32=s.f32) for s in QUOTIENTS))
rows("floor_divide.Scalar", *(S(*s.args, grad=False) for s in QUOTIENTS_OF_NUMBERS))
rows("remainder.Scalar_Tensor",
     *(S(*a, grad=False) for a in ((7, t([2.0, -3.0])), (-7, t([2, -3])), (2.5, t([2, -3])))))
for _mode in ("floor", "trunc", None):
    rows("div.Tensor_mode", *(S(*s.args, rounding_mode=_mode, grad=s.grad, f32=s.f32) for s in QUOTIENTS))
    rows("div.Scalar_mode", *(S(*s.args, rounding_mode=_mode) for s in QUOTIENTS_OF_NUMBERS))
rows(
    "pow.Tensor_Scalar",
    *(S(p(3), e) for e in (0, 0.5, 1, 2, 3, 4, -1, -2, -0.5, 2.5, 1 / 3)),
    *(S(t([-1.5, 0.0, 2.0]), e) for e in (0, 1, 2, 3, 4, 5)),
    *(S(t([-2, 0, 3]), e) for e in (0, 1, 2, 3, 5)),
    S(t([2, 3]), 0.5),
    S(t([2, 3]), 2.5),
    S(t([True, False]), 2),
    S(t([0.0, 4.0]), -1, grad=False),
    S(f(3).half(), 2, grad=False),
)
rows(
    "pow.Tensor_Tensor",
    S(p(2, 3), f(3)),
    S(t([0.0, 0.0, 2.0]), t([2.0, 0.0, 3.0])),
    S(t([-2.0, -2.0]), t([2.0, 3.0]), grad=False),
    S(t([2, -3, 0]), t([3, 2, 0])),
    S(t([2, 3]), f(2)),
)
rows("pow.Scalar", S(2, f(3)), S(1.5, f(3)), S(2, t([0, 3])), S(2.5, t([0, 3])), S(0, t([0.0, 2.0])))
rows("pow.Scalar", S(1, f(2, 2)))
ANGLES = t([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [0.5, 0.0], [-0.5, 0.0], [0.0, 2.0], [0.0, -2.0]])
rows("float_power.Tensor_Tensor", S(p(2, 3), f(3)), S(i(3, low=1), i(3)))
rows("float_power.Tensor_Scalar", S(p(3), 2), S(p(3), -0.5), S(i(3), 2))
rows("float_power.Scalar", S(2, f(3)), S(2, i(3)))
rows("angle.default", S(t([-1.0, 2.0, 0.5])), S(t([NAN, 0.0]), grad=False), S(i(3)))
rows("atan2.default arctan2.default", *PAIRS[:7], S(ANGLES[:, 0], ANGLES[:, 1]), S(i(3), nz(3)))
rows("atan2.default", S(t([0.0, -0.0, 0.0, -0.0]), t([0.0, 0.0, -0.0, -0.0]), grad=False))
rows("atan2.default", S(t([INF, -INF, 1.0]), t([1.0, 1.0, -INF]), grad=False))
rows("addcmul.default addcdiv.default", S(f(2, 3), f(3), p(2, 1)), S(f(3), f(3), p(3), value=-0.5))
rows("addcmul.default", S(i(3), i(3), i(3), value=2), S(f(3).half(), f(3).half(), f(3).half(), grad=False))
rows("lerp.Scalar", S(f(2, 3), f(3), 0.3), S(f(3), f(3), 0.7))
rows("lerp.Tensor", S(f(2, 3), f(3), f(2, 1)), S(f(3), f(3), f()))
EXTREME = S(t([INF, -INF, 1.0]), t([INF, -INF, INF]), grad=False)
rows("logaddexp.default logaddexp2.default", S(f(2, 3), f(3)), S(t([800.0, 1.0]), t([799.0, 1.0])), EXTREME)
rows("hypot.default", S(f(2, 3), f(3)), S(t([3.0, 1e200]), t([4.0, 1e200]), f32=False), EXTREME)
rows("copysign.Tensor", S(f(2, 3), f(3)), S(t([1.0, 2.0, -3.0, 0.0]), t([-0.0, 0.0, 0.0, -1.0])), S(i(3), nz(3)))
rows("copysign.Scalar", S(f(3), -2.0), S(t([0.0, 1.0]), -1), S(i(3), -1.0))
rows("ldexp.Tensor", S(f(3), i(3), grad=False), S(f(3), f(3)), S(i(3), i(3)))
rows("xlogy.Tensor special_xlog1py.default", S(f(2, 3), p(3)), S(t([0.0, 0.0, 1.0]), t([0.0, 2.0, 1.0]), grad=False))
rows("xlogy.Tensor", S(i(3), p(3)), S(t([0.0]), t([NAN]), grad=False), S(t([0.0, 2.0]), t([3.0, 2.0])))
rows("xlogy.Scalar_Self", S(2.0, p(3)), S(0, p(3)))
rows("xlogy.Scalar_Other", S(f(3), 2.0))
rows("dist.default", S(f(3), f(3)), S(f(2, 3), f(3), 1), S(f(3), f(3), 3.5), S(f(3), f(3), INF))

# -- one operand

ODD = S(t([NAN, INF, -INF, 0.0, -0.0]), grad=False)
ANY = (S(f(2, 3)), S(f()), S(f(4).half(), grad=False), S(f(4).bfloat16(), grad=False))
EVERYWHERE = (
    "abs", "absolute", "atan", "arctan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor",
    "neg", "negative", "positive", "sgn", "sign", "sigmoid", "special_expit", "sin", "sinh", "square", "tan", "tanh",
    "trunc", "fix", "round", "frac", "relu", "selu", "silu", "mish", "hardsigmoid", "hardswish", "log_sigmoid",
    "relu6", "asinh", "arcsinh", "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "conj", "deg2rad",
    "rad2deg", "sinc", "digamma", "lgamma", "erfinv",
)
# PyTorch's own gradients are less exact: it has 1/6 in float32, and the derivative of digamma by six terms.
CLOSE = {"hardsigmoid": (1e-7, 1e-7), "digamma": (1e-8, 1e-8)}
for _name in EVERYWHERE:
    if _name in CLOSE:
        rows(f"{_name}.default", *(S(*s.args, grad=s.grad, close=CLOSE[_name]) for s in ANY))
        continue
    rows(f"{_name}.default", *ANY)
for _name in ("abs", "neg", "relu", "square", "sign", "sgn", "positive", "alias", "clone", "ceil", "floor", "round"):
    rows(f"{_name}.default", S(i(2, 3)), S(i(3, dtype=i32)))
for _name in ("trunc", "fix", "absolute", "negative", "detach", "contiguous", "lift_fresh_copy"):
    rows(f"{_name}.default", S(i(2, 3)))
for _name in ("cos", "exp", "sigmoid", "tanh", "erf", "atan", "expm1", "sin", "sinh", "cosh", "tan", "exp2", "asinh"):
    rows(f"{_name}.default", S(i(2, 3, low=-1, high=2)), S(b(3)), S(i(3, dtype=i8, low=-1, high=2)))
rows("hardsigmoid.default", S(t([0.0, -3.0, 3.0, 6.0]), close=CLOSE["hardsigmoid"]))
for _name in ("abs", "relu", "sign", "sgn", "hardswish", "relu6", "selu", "sinc"):
    rows(f"{_name}.default", S(t([0.0, -3.0, 3.0, 6.0, -1.0, -0.0])))
for _name in ("sin", "exp", "tanh", "sigmoid", "erf", "sign", "floor", "ceil", "trunc", "abs", "relu", "silu",
     "atan"):
    rows(f"{_name}.default", ODD)
for _name in ("exp2", "expm1", "log_sigmoid", "sinh", "asinh", "round", "selu", "neg", "cosh", "tan", "erfc", "frac"):
    rows(f"{_name}.default", ODD)
rows("trunc.default fix.default round.default floor.default ceil.default",
     S(t([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.0])))
rows("erfc.default", S(t([3.0, 5.0, 8.0, -3.0])))
rows("expm1.default asinh.default sinh.default", S(t([1e-9, -1e-5, 20.0])))
rows("log_sigmoid.default sigmoid.default mish.default silu.default", S(t([-800.0, 800.0, 30.0, -30.0]), f32=False))
rows("tanh.default", S(t([-800.0, 800.0])))
POSITIVE = ["log", "log10", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"]
for _name in POSITIVE:
    rows(f"{_name}.default", S(p(2, 3)), S(p(4).half(), grad=False), S(i(3, low=1)), ODD,
         S(t([-1.0, -2.0]), grad=False))
rows("sqrt.default", S(t([0.0, 4.0])))
rows("asin.default acos.default atanh.default arcsin.default arccos.default arctanh.default",
     S(f(2, 3, low=-0.9, high=0.9)),
     S(t([0.0, 0.1])), S(t([0, 0])))
rows("asin.default acos.default atanh.default", S(t([1.0, -1.0, 2.0, -2.0]), grad=False))
rows("acosh.default arccosh.default", S(f(2, 3, low=1.1, high=3.0)), S(t([1.0, 0.5, 1e6]), grad=False),
     S(i(3, low=2)))
rows("logit.default", S(unit(2, 3)), S(t([0.0, 1.0, 0.05, 0.5]), 0.1), S(unit(3), None), S(t([0.1, 0.9, 0.05]), 0.1))
rows("erfinv.default", S(f(2, 3, low=-0.95, high=0.95)), S(t([0.0, 1.0, -1.0, 2.0]), grad=False),
     S(t([0.0, 0.999]), f32=False))
rows("lgamma.default", S(p(5)), S(t([0.5, 1.0, 1.5, 2.0, 3.0, 10.0, 40.0])), S(f(6)), S(i(3, low=1)))
rows("digamma.default special_digamma.default special_psi.default", S(p(5), close=CLOSE["digamma"]), S(i(3, low=1)),
     S(t([0.5, 1.0, 1.5, 2.0, 3.0, 10.0, 40.0]), close=CLOSE["digamma"]), S(f(6), close=CLOSE["digamma"]))
rows("lgamma.default", S(t([0.0, -1.0, INF]), grad=False))
rows("digamma.default", S(t([0.0, -1.0, -2.0, INF]), grad=False))
rows("polygamma.default", *(S(n, t([0.6, 1.3, 5.0, 20.0])) for n in (2, 3)))
rows("polygamma.default special_polygamma.default", S(0, p(3), close=CLOSE["digamma"]), S(2, p(3)))
rows("mvlgamma.default", S(p(3) + 2, 3))
rows("special_entr.default", S(t([0.5, 1.0, 2.0])), S(t([-1.0, 0.0, NAN]), grad=False))
rows("special_ndtr.default", S(f(2, 3)), S(t([-3.0, 3.0, 6.0])))
rows("special_ndtri.default", S(unit(3)), S(t([0.0, 1.0]), grad=False))
rows("round.decimals", S(f(5), decimals=1), S(t([1234.5678, -0.0512]), decimals=-2), S(f(3), decimals=0))
rows("gelu.default", *ANY, S(f(2, 3), approximate="tanh"), S(f(3), approximate="none"))
BOTH_SIDES = t([0.0, -0.5, 0.5, -3.0, 3.0, 1.0, -1.0])
rows("elu.default", S(f(2, 3)), S(BOTH_SIDES, 0.5), S(f(3), 1.5, 2.0, 0.7), S(f(3).half(), grad=False))
rows("celu.default", S(f(2, 3)), S(BOTH_SIDES, 0.5), S(f(3).half(), 2.0, grad=False))
rows("leaky_relu.default", S(f(2, 3)), S(BOTH_SIDES, 0.3), S(f(3), -0.5))
rows("rrelu.default", S(f(2, 3)), S(BOTH_SIDES, 0.1, 0.5))
rows("prelu.default _prelu_kernel.default", S(f(2, 3), t([0.3])), S(BOTH_SIDES, t([0.3])))
rows("prelu.default", S(f(2, 3, 2), f(3)), S(f(2, 3), f(3)), S(f(), t([0.2])))
rows("_prelu_kernel.default", S(f(2, 3, 2), f(1, 3, 1)))
rows("softplus.default", S(f(2, 3)), S(t([-30.0, 0.0, 19.0, 21.0]), f32=False), S(f(4), 2.0, 1.0),
     S(t([0.5, 0.6]), 2, 1))
rows("hardtanh.default", S(BOTH_SIDES), S(BOTH_SIDES, -0.5, 2), S(i(5), -2, 2))
rows("hardshrink.default softshrink.default", S(BOTH_SIDES), S(BOTH_SIDES, 1.0), S(f(3), 0.0), ODD)
rows("threshold.default", S(BOTH_SIDES, 0.5, 7.0), S(f(3), -0.1, -1), S(i(5), 1, -7),
     S(t([NAN]), 0.0, 1.0, grad=False))
rows("glu.default", S(f(4)), S(f(2, 4, 3), 1), S(f(4, 2), 0), S(f(2, 6), -1))
BOUNDED = t([-2.0, -1.0, 0.0, 1.0, 2.0])
rows("clamp.default clip.default", S(BOUNDED, -1.0, 1.0), S(BOUNDED, None, 1), S(BOUNDED, -1), S(i(5), -1, 2),
     S(f(3), 1.0, -1.0),
     S(i(5), 0.5), S(t([NAN, 1.0]), 0.0, 0.5, grad=False))
rows("clamp.Tensor clip.Tensor", S(BOUNDED, t(-1.0), t(1.0)), S(f(2, 3), f(3), f(2, 1)),
     S(BOUNDED, None, t([1.0] * 5)),
     S(i(5), t(-1), t(2)), S(i(5), t(-0.5)), S(BOUNDED, BOUNDED.clone(), None), S(t([0.0]), t([NAN]), grad=False))
rows("clamp_min.default", S(BOUNDED, -1.0), S(i(5), 1), S(i(5), 0.5))
rows("clamp_max.default", S(BOUNDED, -1.0), S(i(5), 1), S(i(5), 0.5))
rows("clamp_min.Tensor clamp_max.Tensor", S(BOUNDED, t([-1.0])), S(f(2, 3), f(3)), S(i(3), i(3)), S(f(2, 1), f(1, 3)))
rows("nan_to_num.default", S(t([NAN, INF, -INF, 1.0])), S(t([NAN, INF, -INF, 1.0]), 3.0, 9.0, -9.0), S(i(3)),
     S(t([NAN, INF, -INF, 1.0], f16)), S(t([True])))

# -- comparisons, logic, choice

COMPARED = (
    S(f(2, 3), f(3)), S(t([1.0, NAN, 2.0]), t([1.0, NAN, 3.0])), S(i(6), i(6)), S(i(3), f(3)), S(b(4), b(4)),
    S(i(3), t(1.5)), S(t([1.5], f32), t(1.5)), S(i(3, dtype=i8), i(3, low=0, dtype=u8)), S(b(4), i(4)), S(f(), f()),
)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rows(f"{_name}.Tensor", *COMPARED)
    rows(f"{_name}.Scalar", S(BOUNDED, 1), S(i(5), 1), S(i(5), 0.5), S(b(3), 1), S(b(3), True),
         S(i(3, low=0, dtype=u8), 2), S(f(), 0.0))
LOGIC = (S(b(6), b(6)), S(b(2, 3), b(3)))
BITS = (
    S(i(6, low=-99, high=99), i(6, low=-99, high=99)), S(t([-128, 127, 5], i8), t([-1, 85, -6], i8)),
    S(i(4, low=0, high=255, dtype=u8), i(4, low=0, high=255, dtype=u8)), S(i(4, dtype=i32), i(4)), S(b(3), i(3)),
    S(t([2**62, -(2**63), 2**63 - 1]), t([-1, 2**62 + 5, -(2**40)])),
)
for _name in ("and", "or", "xor"):
    rows(f"bitwise_{_name}.Tensor __{_name}__.Tensor", *LOGIC, *BITS)
    rows(f"bitwise_{_name}.Scalar __{_name}__.Scalar", S(b(4), True), S(i(6), 6), S(i(3, dtype=i32), -3), S(b(4), 3))
    rows(f"logical_{_name}.default", *LOGIC, S(f(3), i(3)), S(t([NAN, 0.0, 1.0]), t([1.0, 1.0, 0.0])))
    rows(f"bitwise_{_name}.Scalar_Tensor", S(6, i(6)), S(True, b(3)))
rows("bitwise_not.default", S(b(4)), S(i(6)), S(t([0, 255, 7], u8)), S(i(3, dtype=i32)))
rows("logical_not.default", S(b(4)), S(i(6)), S(t([NAN, 0.0, -0.0, 1.0])))
SHIFTS = (S(t([5, -5, 127]), t([0, 2, 3])), S(t([5, -5], i32), t([1, 2], i32)), S(t([255, 3], u8), t([1, 4], u8)))
for _name in ("left", "right"):
    rows(f"bitwise_{_name}_shift.Tensor", *SHIFTS)
    rows(f"bitwise_{_name}_shift.Tensor_Scalar", S(t([5, -5, 127]), 2))
rows("__lshift__.Tensor __rshift__.Tensor", *SHIFTS)
rows("__lshift__.Scalar __rshift__.Scalar", S(t([5, -5, 127]), 2))
SPECIAL = (S(t([NAN, INF, -INF, 1.0])), S(i(3)), S(t([NAN, INF, 1.0], f16)), S(b(3)))
rows("isnan.default isfinite.default isinf.default isposinf.default isneginf.default signbit.default", *SPECIAL)
rows("signbit.default", S(t([-0.0, 0.0, -1.0])))
rows("isreal.default", S(f(3)), S(i(2)))
rows("isclose.default", S(t([1.0, 1.0, NAN, INF]), t([1.0 + 1e-9, 1.1, NAN, INF])),
     S(t([NAN]), t([NAN]), 1e-5, 1e-8, True))
CHOICES = (S(b(2, 3), f(3), f(2, 1)), S(b(3), f(3), i(3)), S(b(3), i(3), f(3).float()), S(b(1), f(), f(3)))
rows("where.self", *CHOICES, S(b(3), b(3), b(3)), S(b(2, 1), i(3, dtype=i32), t(2)), S(b(3), f(3), t(1)))
rows("where.ScalarOther", S(b(2, 3), f(3), 2.0), S(b(3), i(3), 2), S(b(3), i(3), 1.5), S(b(3), f(3), -INF))
rows("where.ScalarSelf", S(b(2, 3), 2.0, f(3)), S(b(3), 2, i(3)))
rows("where.Scalar", S(b(2, 3), 2.0, 1.0), S(b(3), 2, 1), S(b(3), 2, 1.5))
rows("masked_fill.Scalar", S(f(2, 3), b(3), 2.0), S(f(3), b(2, 3), -INF), S(i(3), b(3), 7), S(f(), b(), 1),
     S(b(3), b(3), True))
rows("masked_fill.Tensor", S(f(2, 3), b(3), t(2.0)), S(f(3), b(3), t(2)), S(i(3), b(3), t(7)))
rows("heaviside.default", S(t([0.0, 1.0, -1.0]), f(3), grad=False), S(t([0, 1, -2]), i(3)),
     S(t([NAN, 0.0]), f(2), grad=False))
rows("isin.Tensor_Tensor", S(i(2, 4), i(3)), S(f(3), f(2)), S(i(4), i(3), invert=True))
rows("isin.Tensor_Scalar", S(i(6), 2), S(i(6), 2, invert=True))
rows("isin.Scalar_Tensor", S(2, i(6)))
rows("detach_copy.default", *(S(*s.args, grad=False) for s in ANY))
for _name in ("special_exp2", "special_expm1", "special_log1p", "special_erf", "special_erfc", "special_sinc",
              "alias_copy"):
    rows(f"{_name}.default", S(p(3)), S(f(2, 2)))
rows("special_gammaln.default", S(p(3)))
rows("special_multigammaln.default", S(p(3) + 2, 2))
rows("special_erfinv.default", S(unit(3)))
rows("special_xlogy.default", S(f(3), p(3)))

# -- casts

rows("_to_copy.default", *(S(t([1.7, -1.7, 0.0, 3.0]), dtype=d) for d in (f32, f16, bf16, i64, i32, boolean)),
     S(t([1, 0, -2]), dtype=f32), S(b(3), dtype=i64), S(b(3), dtype=f64), S(t([300, -1]), dtype=u8),
     S(t([NAN]), dtype=boolean),
     S(f(3)))
rows("to.dtype", *(S(t([1.7, -1.7, 0.0, 3.0]), d) for d in (f16, i64, boolean)), S(i(3), f64), S(f(3), f64))
rows("to.dtype_layout", S(f(3), dtype=f16), S(i(3), dtype=f64))
rows("to.device", S(f(3), torch.device("cpu"), f16), S(f(3), torch.device("cpu"), f64))
rows("to.other", S(f(3), i(2)), S(i(3), f(2)))
rows("type_as.default", S(f(3), i(2)), S(i(3), f(2)), S(f(3), f(1).half(), grad=False))


# -- reductions

FOLDS = (
    S(f(2, 3)), S(f()), S(f(1)), S(i(2, 3)), S(b(5)), S(f(3).half(), grad=False), S(i(2, dtype=i32)),
    S(i(3, low=0, dtype=u8)),
)
OVER = (
    S(f(2, 3, 4), [0]), S(f(2, 3, 4), [-1], True), S(f(2, 3, 4), [0, 2]), S(f(2, 3, 4), [-1, -3], True),
    S(f(2, 3), []),
    S(f(2, 3), [], True), S(f(), [0]), S(f(), [-1], True), S(f(2, 1), [1]),
)
rows("sum.default", *FOLDS, S(i(3), dtype=f32), S(b(3), dtype=f64))
rows("mean.default", FOLDS[0], FOLDS[1], FOLDS[2], FOLDS[5], S(i(3), dtype=f64))
rows("sum.dim_IntList mean.dim", *OVER, S(f(2, 3), None), S(f(2, 3), None, True))
rows("sum.dim_IntList", S(i(2, 3), [1]), S(b(2, 3), [-1], True), S(i(2, 3, dtype=i32), [0]),
     S(i(2, 3), [0], dtype=f64))
rows("mean.dim", S(i(2, 3), [1], dtype=f64), S(b(2, 3), [1], True, dtype=f32), S(f(2, 3).bfloat16(), [1], grad=False))
rows("prod.default", *FOLDS, S(t([2.0, 0.0, 3.0])), S(t([0.0, 0.0, 3.0])), S(i(3), dtype=f64))
rows("prod.dim_int", S(f(2, 3), 0), S(f(2, 3), -1, True), S(f(), 0), S(i(2, 3), 1), S(b(2, 3), 0),
     S(t([[2.0, 0.0], [0.0, 0.0]]), 1))
TIED = t([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
rows("amax.default amin.default", *OVER, S(TIED, [1]), S(TIED), S(TIED, [-1], True), S(i(2, 3), [0]),
     S(b(2, 3), [1]), S(f()),
     S(t([NAN, 1.0, 2.0]), grad=False), S(TIED, [0, 1]))
rows("max.default min.default", *FOLDS, S(TIED), S(t([NAN, 1.0]), grad=False))
for _name in ("max", "min"):
    rows(f"{_name}.dim", S(f(2, 3), 0), S(f(2, 3), -1, True), S(TIED, 1), S(i(2, 3), 1), S(b(2, 3), 1), S(f(), 0),
         S(f(), -1, True),
         S(t([1.0, NAN, 2.0, NAN]), 0, grad=False), S(f(3).half(), 0, grad=False), S(i(3, low=0, dtype=u8), 0))
    rows(f"arg{_name}.default", S(f(2, 3)), S(f(2, 3), 0), S(f(2, 3), -1, True), S(f(2, 3), None, True), S(TIED, 1),
         S(TIED), S(i(2, 3), 1),
         S(f()), S(f(), 0), S(f(), None, True), S(f(), -1, True), S(t([1.0, NAN, 2.0])))
rows("aminmax.default", S(b(3)), S(b(2, 3), dim=1), S(f(2, 3)), S(f(2, 3), dim=0), S(f(2, 3), dim=-1, keepdim=True),
     S(TIED), S(i(2, 3), dim=1), S(TIED, dim=1))
for _name in ("any", "all"):
    rows(f"{_name}.default", S(b(2, 3)), S(i(4)), S(f(3)), S(t([0.0, NAN])), S(b()), S(t([0, 0], u8)))
    rows(f"{_name}.dim", S(b(2, 3), 0), S(b(2, 3), -1, True), S(i(2, 3), 1), S(b(), 0))
    rows(f"{_name}.dims", S(b(2, 3, 2), [0, -1]), S(b(2, 3), [1], True), S(i(2, 3), [0]), S(b(2, 3), None),
         S(f(2, 3), []))
rows("count_nonzero.default", S(i(2, 3)), S(f(3), None), S(b(2, 3), 1))
rows("count_nonzero.dim_IntList", S(i(2, 3), [0]), S(t([[0.0, 1.0], [2.0, NAN]]), [0, 1]), S(i(2, 3, 2), [0, -1]))
for _name in ("var", "std"):
    rows(f"{_name}.correction", S(f(2, 3)), S(f(2, 3), [0]), S(f(2, 3), [-1], correction=0, keepdim=True),
         S(f(2, 3, 4), [0, 2], correction=2),
         S(f(4), correction=0.5), S(f(2, 3), None, keepdim=True), S(f(1), correction=0, grad=_name == "var"),
         S(f(3).half(), grad=False),
         S(f(1), grad=False))
    rows(f"{_name}.dim", S(f(2, 3), [0]), S(f(2, 3), [-1], False, True), S(f(2, 3), None), S(f(2, 3), [0, 1], False))
    rows(f"{_name}.default", S(f(2, 3)), S(f(2, 3), False))
    rows(f"{_name}_mean.correction", S(f(2, 3)), S(f(2, 3), [0], correction=0), S(f(2, 3), [-1], keepdim=True))
    rows(f"{_name}_mean.dim", S(f(2, 3), [0]), S(f(2, 3), [1], False, True))
    rows(f"{_name}_mean.default", S(f(2, 3)), S(f(2, 3), False))
rows("std.correction", S(t([2.0, 2.0, 2.0]), correction=0), S(t([[1.0, 1.0], [1.0, 2.0]]), [1]))
ORDERS = (2, 1, 0, 3, 2.5, 0.5, INF, -INF, -1)
NORMED = (t([3.0, -4.0, 0.5]), t([3.0, 3.0, -3.0]), t([[1.0, -2.0], [0.5, 2.0]]))
for _name in ("linalg_vector_norm.default", "norm.Scalar", "linalg_norm.default"):
    rows(_name, *(S(x, q) for q in ORDERS for x in NORMED[: 3 if "vector" in _name else 2]))
    rows(_name, *(S(t([0.0, 0.0]), q) for q in (2, 1, 0, INF, 3)), *(S(t([0.0, 1.0]), q) for q in (2, 1, 1.5, 3)))
rows("linalg_vector_norm.default", S(f(2, 3), 2, [0]), S(f(2, 3), 1, [-1], True), S(f(2, 3), INF, [0, 1]),
     S(f(2, 3), 2, None, True),
     S(f(), 2), S(f(2, 3), 3.0, [1]), S(f(3), dtype=f64), S(f(3).half(), 2, grad=False))
rows("norm.ScalarOpt_dim", S(f(2, 3), 2, [0]), S(f(2, 3), None, [1], True), S(f(2, 3), 1, [0, 1]),
     S(t([[0.0, 0.0]]), 2, [1]))
rows("norm.ScalarOpt_dim_dtype", S(f(2, 3), 2, [0], True, dtype=f64), S(f(2, 3), 3, [1], False, dtype=f64))
rows("norm.Scalar", S(f(2, 3), 2), S(f(2, 3)))
rows("linalg_norm.default", S(f(2, 3)), S(f(2, 3), 2, [1]), S(f(3), 2, [0], True), S(f(2, 3), 1), S(f(2, 3), INF),
     S(f(2, 3), -1),
     S(f(2, 3), -INF), S(f(2, 3, 2), 1, [0, 2]))
rows("linalg_norm.ord_str", S(f(2, 3), "fro"), S(f(2, 3, 2), "fro", [0, -1], True))
rows("linalg_matrix_norm.default", S(f(2, 3), 1), S(f(2, 3), INF), S(f(2, 2, 3), -1, [0, 2], True))
rows("linalg_matrix_norm.str_ord", S(f(2, 3)), S(f(2, 2, 3), "fro", [0, 1]))
rows("renorm.default", S(f(3, 4), 2, 0, 1.5), S(f(3, 4), 1, -1, 2.0), S(f(2, 3, 2), 2, 1, 100.0))
RUNNING = (S(f(2, 3), 0), S(f(2, 3), -1), S(f(), 0), S(i(2, 3), 1), S(b(4), 0), S(f(3).half(), 0, grad=False))
rows("cumsum.default cumprod.default", *RUNNING, S(i(3), 0, dtype=f64), S(i(3, dtype=i8), 0))
rows("cumprod.default", S(t([2.0, 0.0, 3.0, 0.0, 1.0]), 0), S(t([0.0, 2.0]), 0))
for _name in ("cummax", "cummin"):
    rows(f"{_name}.default", *RUNNING[:4], S(b(4), 0), S(t([1.0, 3.0, 3.0, 2.0, 3.0]), 0),
         S(t([1.0, NAN, 2.0]), 0, grad=False))
rows("logcumsumexp.default", S(f(2, 3), 0), S(f(2, 3), -1), S(f(), 0), S(t([-800.0, 1.0, 800.0, 3.0]), 0),
     S(t([-INF, -INF, 1.0]), 0, grad=False))
rows("logsumexp.default", S(f(2, 3), [0]), S(f(2, 3), [-1], True), S(f(2, 3), [0, 1]), S(f(), [0]), S(i(2, 3), [1]),
     S(t([800.0, 800.0]), [0]),
     S(t([-INF, -INF]), [0], grad=False), S(t([INF, 1.0]), [0], grad=False), S(TIED, [1]))
rows("nansum.default", S(t([[1.0, NAN], [2.0, 3.0]])), S(t([[1.0, NAN], [2.0, 3.0]]), [0]), S(i(3)))
rows("nanmean.default", S(t([[1.0, NAN], [2.0, 3.0]])), S(t([[1.0, NAN], [2.0, 3.0]]), [0], True))
rows("diff.default", S(f(5)), S(f(2, 5), 2), S(f(3, 2), 1, 0), S(f(3), 1, -1, f(1), f(2)), S(b(4)), S(i(4)),
     S(f(4), 0), S(f(4), 1, 0, f(1)))
rows("trace.default", S(f(3, 3)), S(f(2, 4)), S(i(3, 3)))
rows("dot.default vdot.default", S(f(3), f(3)), S(i(3), i(3)))
rows("sort.default", S(f(2, 4)), S(f(2, 4), 0), S(f(2, 4), -1, True), S(i(5)), S(f()), S(b(4)),
     S(f(4).half(), grad=False), S(f(), 0, True))
rows("sort.stable", S(t([2.0, 1.0, 2.0, 1.0]), stable=True),
     S(t([2.0, 1.0, 2.0, 1.0]), stable=True, descending=True), S(f(3, 2), stable=True, dim=0),
     S(t([2, 1, 2, 1], u8), stable=True, descending=True), S(t([True, False, True]), stable=True, descending=True),
     S(t([1.0, NAN, 0.0]), stable=True, grad=False), S(t([1.0, NAN, 0.0]), stable=True, descending=True, grad=False),
     S(t([2**60, 2**60 + 1, -(2**62)]), stable=True, descending=True),
     S(t([-(2**63), 5, 2**63 - 1]), stable=True, descending=True))
rows("argsort.default", S(f(2, 4)), S(f(2, 4), 0), S(f(2, 4), -1, True), S(i(5)), S(f()))
rows("argsort.stable", S(t([2.0, 1.0, 2.0, 1.0]), stable=True), S(t([2, 1, 2, 1]), stable=True, descending=True),
     S(f(3, 2), stable=True, dim=0))
rows("msort.default", S(f(3, 2)))
rows("topk.default", S(f(5), 2), S(f(2, 5), 3, -1, False), S(f(4, 2), 2, 0), S(order(6), 2), S(f(), 1),
     S(f(5).half(), 2, grad=False))
rows("kthvalue.default", S(f(5), 2), S(f(2, 5), 1), S(f(4, 2), 3, 0, True))
rows("median.default nanmedian.default", S(f(5)), S(f(2, 2)))
rows("median.dim nanmedian.dim", S(f(2, 5), 1), S(f(4, 2), 0, True), S(f(2, 4), -1))
rows("median.dim", S(t([1.0, NAN, 3.0]), 0, grad=False))
for _how in ("linear", "lower", "higher", "nearest", "midpoint"):
    rows("quantile.scalar nanquantile.scalar", S(f(5), 0.3, interpolation=_how),
         S(f(2, 4), 0.6, 1, True, interpolation=_how))
rows("quantile.default nanquantile.default", S(f(), t([0.3, 0.5])), S(f(5), t([0.0, 0.4, 1.0])),
     S(f(2, 5), t([0.25, 0.5]), -1, True), S(f(3, 2), t(0.5), 0))

# -- matrices

rows("linear.default", S(f(2, 3), f(4, 3), f(4)), S(f(2, 5, 3), f(4, 3)), S(f(3), f(4, 3), f(4)), S(f(3), f(3)),
     S(f(2, 2, 3), f(4, 3), f(4)), S(i(2, 3), i(4, 3)))
PRODUCTS = (
    S(f(2, 3), f(3, 4)), S(f(3), f(3)), S(f(2, 3), f(3)), S(f(3), f(3, 2)), S(f(5, 2, 3), f(3, 4)),
    S(f(5, 2, 3), f(5, 3, 4)),
    S(f(2, 3), f(5, 3, 4)), S(f(6, 1, 2, 3), f(5, 3, 4)), S(f(5, 2, 3), f(3)), S(f(3), f(5, 3, 2)),
    S(i(2, 3), i(3, 2)), S(f(1, 3), f(3, 1)),
)
rows("matmul.default linalg_matmul.default", *PRODUCTS)
rows("mm.default", PRODUCTS[0], S(i(2, 3), i(3, 2)))
rows("bmm.default", PRODUCTS[5], S(i(2, 2, 3), i(2, 3, 2)))
rows("mv.default", PRODUCTS[2], S(i(2, 3), i(3)))
rows("inner.default", S(f(3), f(3)), S(f(2, 3), f(4, 3)), S(f(2, 2, 3), f(3)), S(f(), f(2)), S(f(2), f()))
rows("addmm.default", S(f(2, 4), f(2, 3), f(3, 4)), S(f(4), f(2, 3), f(3, 4), beta=0.5, alpha=2),
     S(f(2, 4), f(2, 3), f(3, 4), beta=0, alpha=3),
     S(i(2, 2), i(2, 3), i(3, 2), beta=2, alpha=3), S(t([[NAN]]), f(1, 2), f(2, 1), beta=0))
rows("baddbmm.default", S(f(5, 2, 4), f(5, 2, 3), f(5, 3, 4), beta=2, alpha=0.5), S(f(1, 4), f(5, 2, 3), f(5, 3, 4)))
rows("addbmm.default", S(f(2, 4), f(5, 2, 3), f(5, 3, 4)), S(f(4), f(5, 2, 3), f(5, 3, 4), beta=2, alpha=0.5),
     S(i(2, 2), i(3, 2, 2), i(3, 2, 2), beta=2))
rows("addbmm.default", S(i(2, 2), i(3, 2, 2), i(3, 2, 2), beta=0.2, alpha=0.6))
rows("addmv.default", S(f(2), f(2, 3), f(3)), S(f(2), f(2, 3), f(3), beta=2, alpha=0.5), S(f(), f(2, 3), f(3)))
rows("addr.default", S(f(2, 3), f(2), f(3)), S(f(3), f(2), f(3), beta=0.5, alpha=2), S(i(2, 3), i(2), i(3), beta=2),
     S(t([[NAN]]), f(1), f(1), beta=0))
rows("outer.default ger.default", S(f(2), f(3)), S(i(2), i(3)))
rows("outer.default", S(f(2), i(3)))
rows("bilinear.default", S(f(2, 3), f(2, 4), f(5, 3, 4), f(5)), S(f(2, 2, 3), f(2, 2, 4), f(5, 3, 4)),
     S(f(3), f(4), f(5, 3, 4)))
EQUATIONS = (
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 4)), ("i,i->", (3,
         ), (3,)), ("i,j->ij", (2,), (3,)),
    ("ij->ji", (2, 3)), ("ii->i", (3, 3)), ("ii->", (3, 3)), ("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)),
         ("...ij,jk->...ik", (5, 2, 3), (3, 4)),
    ("ij->", (2, 3)), ("ij->i", (2, 3)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), ("ab,bc,cd->ad", (2, 3),
         (3, 4), (4, 2)),
    ("ij,ij->ij", (2, 3), (2, 3)), ("ij,ij->i", (2, 3), (1, 3)), ("ijj->ij", (2, 3, 3)), ("a,b,ab->", (2,), (3,),
         (2, 3)), (" i j , j -> i ", (2, 3), (3,)),
    ("...i->...", (2, 3)), ("i...,i...->...", (3, 2), (3, 2)), ("Ab,bC->AC", (2, 3), (3, 2)), ("ba", (2, 3)),
         ("...", (2, 3)),
)
rows("einsum.default", *(S(equation, [f(*shape) for shape in shapes]) for equation, *shapes in EQUATIONS))
rows("cdist.default", *(S(f(2, 3), f(4, 3), q) for q in (2.0, 1.0, 3.0, 0.5, INF)), S(f(5, 2, 3), f(4, 3)),
     S(f(1, 2, 3), f(5, 4, 3), 1),
     S(f(3, 2), f(4, 2), 0.0), S(t([[1.0, 2.0]]), t([[1.0, 2.0], [1.0, 3.0]])), S(f(5, 1, 2, 3), f(2, 4, 3)))
rows("_cdist_forward.default", S(f(2, 3), f(4, 3), 2.0, None), S(f(2, 3), f(4, 3), 1.0, 2),
     S(f(2, 3), f(4, 3), INF, None))
rows("pdist.default _pdist_forward.default", *(S(f(4, 3), q) for q in (2.0, 1.0, 3.0, INF)))
rows("pairwise_distance.default", S(f(2, 3), f(2, 3)), S(f(2, 3), f(3), 1), S(f(2, 3), f(2, 3), 2.0, 0.1, True),
     S(f(3), f(3), 3), S(f(2, 3), f(2, 3), INF),
     S(f(2, 3), f(2, 3), 0.5))
rows("cosine_similarity.default", S(f(), f(), 0), S(f(2, 3), f(2, 3)), S(f(2, 3), f(3), -1), S(f(2, 3), f(2, 3), 0),
     S(f(3), f(3), 0), S(t([[0.0, 0.0]]), f(1, 2)),
     S(f(4, 2, 3), f(2, 3), 2, 0.1), S(t([[1e-3, 0.0]]), t([[1.0, 1.0]]), 1, 0.1))
rows("cross.default", S(f(2, 3), f(2, 3)), S(f(3, 2), f(3, 2), 0))
rows("linalg_cross.default", S(f(2, 3), f(2, 3)), S(f(3, 2), f(3, 2), dim=0), S(f(1, 3), f(4, 3)))
rows("kron.default", S(f(2, 3), f(3, 2)), S(f(2), f(3, 2)))
rows("chain_matmul.default linalg_multi_dot.default", S([f(2, 3), f(3, 4), f(4, 2)]))
rows("linalg_multi_dot.default", S([f(3), f(3, 4), f(4)]))
rows("matrix_power.default linalg_matrix_power.default", S(f(3, 3), 0), S(f(3, 3), 1), S(f(3, 3), 3),
     S(f(2, 3, 3), 5))
rows("tensordot.default", S(f(2, 1), f(3, 2), [1], [0]), S(f(2, 3), f(1, 2), [1], [0]),
     S(f(2, 3, 4), f(4, 3, 5), [1, 2], [1, 0]), S(f(2, 3), f(3, 2), [1], [0]),
     S(f(2), f(3), [], []))
rows("block_diag.default", S([f(2, 3), f(1, 2), f(3)]))
rows("linalg_vecdot.default", S(f(2, 3), f(2, 3)), S(f(2, 3), f(2, 3), dim=0))


def spd(*shape: int) -> Any:
    """Symmetric positive definite matrices."""
    a = f(*shape)
    return a @ a.mT + 2 * torch.eye(shape[-1], dtype=torch.float64)


def tri(*shape: int) -> Any:
    """Lower triangular matrices."""
    return torch.tril(f(*shape)) + 3 * torch.eye(shape[-1], dtype=torch.float64)


rows("linalg_cholesky.default", S(t([[4.0, 9.0], [1.0, 3.0]])), S(t([[4.0, 1.0], [9.0, 3.0]]), upper=True),
     S(spd(3, 3)), S(spd(2, 3, 3)), S(spd(3, 3), upper=True))
rows("cholesky.default", S(spd(3, 3)), S(spd(3, 3), True))
rows("linalg_cholesky_ex.default", S(spd(3, 3)), S(spd(2, 3, 3), upper=True))
rows("linalg_inv.default inverse.default", S(spd(3, 3)), S(f(2, 3, 3) + 3 * torch.eye(3)))
rows("linalg_inv_ex.default", S(spd(3, 3)))
rows("linalg_det.default det.default _linalg_det.default", S(spd(3, 3)), S(f(2, 3, 3)))
rows("linalg_slogdet.default slogdet.default _linalg_slogdet.default", S(spd(3, 3)), S(f(2, 3, 3)))
rows("logdet.default", S(spd(3, 3)), S(spd(2, 2, 2)))
rows("linalg_solve_ex.default _linalg_solve_ex.default", S(spd(3, 3), f(3, 2)), S(spd(3, 3), f(2, 3), left=False))
rows("linalg_solve.default", S(spd(3, 3), f(3, 2)), S(spd(2, 3, 3), f(2, 3, 2)), S(spd(3, 3), f(3)),
     S(spd(2, 3, 3), f(2, 3)), S(spd(3, 3), f(2, 3), left=False))
rows("linalg_solve_triangular.default", S(tri(3, 3), f(3, 2), upper=False),
     S(tri(3, 3).mT.contiguous(), f(3, 2), upper=True), S(tri(2, 3, 3), f(2, 3, 2), upper=False),
     S(tri(3, 3), f(2, 3), upper=False, left=False), S(tri(3, 3), f(3, 2), upper=False, unitriangular=True),
     S(tri(3, 3), f(4, 3, 2), upper=False),
     S(tri(3, 3).mT.contiguous(), f(2, 3), upper=True, left=False))
rows("triangular_solve.default", S(f(3, 2), tri(3, 3), False), S(f(3, 2), tri(3, 3).mT.contiguous()),
     S(f(3, 2), tri(3, 3), False, True), S(f(3, 2), tri(3, 3), False, False, True))
# PyTorch's gradient has elements on the other side of the diagonal, on which nothing depends.
rows("cholesky_solve.default", S(f(3, 2), tri(3, 3), grad=False),
     S(f(3, 2), tri(3, 3).mT.contiguous(), True, grad=False))
rows("cholesky_inverse.default", S(tri(3, 3), grad=False), S(tri(3, 3).mT.contiguous(), True, grad=False))
rows("linalg_eigvalsh.default", S(spd(3, 3)), S(spd(2, 3, 3)))
rows("qr.default", S(f(3, 3)))
rows("linalg_qr.default", S(f(3, 3)), S(f(2, 4, 3)))


# -- movement

rows("view.default reshape.default _unsafe_view.default view_copy.default", S(f(2, 3), [3, 2]), S(f(2, 3), [-1]),
     S(f(2, 3), [3, -1]), S(f(), [1, 1]), S(f(1), []),
     S(b(2, 3), [6]), S(i(4), [2, -1]))
rows("_reshape_alias.default", S(f(2, 3), [6], [1]))
rows("view.dtype", S(f(3), f64, grad=False))
rows("view_as.default reshape_as.default", S(f(2, 3), f(3, 2)), S(f(6), i(2, 3)))
rows("flatten.using_ints", S(f(2, 3, 4)), S(f(2, 3, 4), 1), S(f(2, 3, 4), -2, -1), S(f(2, 3, 4), 0, 1), S(f()),
     S(f(3)), S(f(2, 3), 1, 1))
rows("unflatten.int", S(f(6, 2), 0, [2, 3]), S(f(2, 6), -1, [-1, 3]), S(f(2, 6), 1, [3, 2]))
rows("squeeze.default", S(f(1, 2, 1)), S(f(2, 3)), S(f()), S(f(1, 1)))
rows("squeeze.dim", S(f(1, 2, 1), 0), S(f(1, 2, 1), -1), S(f(1, 2), 1), S(f(), 0))
rows("squeeze.dims squeeze_copy.dims", S(f(1, 2, 1), [0, -1]), S(f(1, 2, 1), [1]), S(f(1, 2), [0, 1]))
rows("squeeze_copy.default", S(f(1, 2)))
rows("squeeze_copy.dim", S(f(1, 2), 0))
rows("unsqueeze.default unsqueeze_copy.default", S(f(2, 3), 0), S(f(2, 3), -1), S(f(2, 3), 1), S(f(), 0), S(f(2), -2))
rows("expand.default expand_copy.default", S(f(1, 3), [2, 3]), S(f(3), [2, -1]), S(f(2, 1), [4, -1, 3]),
     S(f(), [2]), S(f(2, 3), [2, 3]))
rows("sum_to_size.default", S(f(2, 3), [1, 3]), S(f(4, 2, 3), [2, 1]), S(f(2, 3), [2, 3]))
rows("expand_as.default", S(f(1, 3), f(2, 3)), S(f(3), i(4, 2, 3)))
rows("broadcast_to.default", S(f(1, 3), [2, 3]), S(f(3), [2, 3]))
rows("broadcast_tensors.default", S([f(3), f(2, 1), f()]), S([i(2), f(3, 1)]))
rows("repeat.default", S(f(2, 3), [2, 2]), S(f(3), [2, 1, 3]), S(f(), [2]), S(f(2, 3), [1, 1]), S(f(2), [2, 3]))
rows("tile.default", S(f(2, 3), [2]), S(f(3), [2, 2]), S(f(2, 3), [2, 1, 3]))
rows("repeat_interleave.self_int", S(f(2, 3), 2), S(f(2, 3), 2, 0), S(f(2, 3), 3, -1), S(i(3), 2, output_size=6))
rows("permute.default permute_copy.default", S(f(2, 3, 4), [2, 0, 1]), S(f(2, 3), [-1, 0]), S(f(), []),
     S(b(2, 3), [1, 0]))
rows("transpose.int swapaxes.default transpose_copy.int swapdims.default", S(f(2, 3, 4), 0, 2), S(f(2, 3), -1, 0),
     S(f(3), 0, 0))
rows("t.default t_copy.default", S(f(2, 3)), S(f(3)), S(f()))
rows("numpy_T.default", S(f(2, 3)), S(f(3)))
rows("mT.default", S(f(2, 3)), S(f(4, 2, 3)))
rows("matrix_H.default mH.default adjoint.default", S(f(2, 3)))
rows("mH.default adjoint.default", S(f(4, 2, 3)))
rows("movedim.intlist moveaxis.intlist", S(f(2, 3, 4), [0, 1], [1, 2]), S(f(2, 3, 4), [-1], [0]))
rows("movedim.int moveaxis.int", S(f(2, 3, 4), 0, 2), S(f(2, 3, 4), -1, 0))
rows("flip.default", S(f(2, 3), [0]), S(f(2, 3), [-1, 0]), S(f(2, 3), []), S(b(4), [0]), S(f(), []))
rows("fliplr.default flipud.default", S(f(2, 3)))
rows("rot90.default", *(S(f(2, 3), k) for k in range(-1, 5)), S(f(2, 3, 4), 1, [1, 2]))
rows("roll.default", S(f(2, 3), [1], [0]), S(f(2, 3), [2, -1], [0, -1]), S(f(2, 3), [4]), S(f(5), [0], [0]),
     S(f(2, 3), [-7], [1]))
rows("select.int select_copy.int", S(f(2, 3), 0, 1), S(f(2, 3), -1, -2), S(f(3), 0, 0), S(b(3, 2), 0, -1))
rows("slice.Tensor slice_copy.Tensor", S(f(5, 3), 0, 1, 4), S(f(5, 3), -1, -2), S(f(5), 0, None, -1),
     S(f(5), 0, 0, 9223372036854775807, 2), S(f(5), 0, 1, 5, 3),
     S(f(5, 2)), S(i(5), 0, -3, 100))
rows("narrow.default", S(f(5, 3), -1, -2, 2))
rows("narrow.default narrow_copy.default", S(f(5, 3), 0, 1, 2), S(f(5), 0, 0, 5))
rows("select_scatter.default", S(f(2, 3), f(3), 0, 1), S(f(2, 3), f(2), -1, -2), S(f(3), f(), 0, 2))
rows("slice_scatter.default", S(f(5, 3), f(2, 3), 0, 1, 3), S(f(5, 3), f(5, 2), -1, 1), S(f(5), f(5)),
     S(f(6), f(3), 0, 0, 6, 2), S(f(6), f(2), 0, 1, 6, 3),
     S(f(4), f(2), 0, -2))
rows("diagonal_scatter.default", S(f(3, 4), f(3)), S(f(3, 4), f(3), 1), S(f(2, 3, 3), f(2, 2), -1, 1, 2))
rows("split.Tensor split_copy.Tensor unsafe_split.Tensor", S(f(5, 2), 2), S(f(2, 6), 3, -1), S(f(3), 5))
rows("split_with_sizes.default split.sizes split_with_sizes_copy.default unsafe_split_with_sizes.default",
     S(f(5, 2), [1, 4]), S(f(2, 6), [1, 2, 3], -1))
rows("chunk.default unsafe_chunk.default", S(f(5, 2), 2), S(f(2, 6), 4, -1), S(f(2), 3))
rows("tensor_split.sections", S(f(5, 2), 2), S(f(2, 7), 3, -1))
rows("tensor_split.indices", S(f(5, 2), [1, 3]), S(f(2, 6), [-2], 1))
rows("hsplit.int", S(f(2, 4), 2), S(f(4), 2))
rows("vsplit.int", S(f(4, 2), 2))
rows("unbind.int unbind_copy.int", S(f(2, 3)), S(f(2, 3), -1), S(i(3)))
rows("unfold.default unfold_copy.default", S(f(7), 0, 3, 2), S(f(2, 5), -1, 2, 1), S(f(5, 2), 0, 5, 1))
rows("diagonal.default diagonal_copy.default", S(f(3, 4)), S(f(3, 4), 1), S(f(3, 4), -2), S(f(2, 3, 4), 0, -2, -1),
     S(f(2, 3, 4), 1, 2, 0))
rows("linalg_diagonal.default", S(f(2, 3, 4)), S(f(2, 3, 4), offset=1, dim1=0, dim2=1))
rows("diag.default", S(f(3)), S(f(3), 1), S(f(3), -2), S(f(3, 4)), S(f(3, 4), -1))
rows("diag_embed.default", S(f(3)), S(f(2, 3)), S(f(2, 3), 1), S(f(2, 3), -1, 0, 2), S(i(3), 0, 1, 0))
rows("diagflat.default", S(f(2, 2)), S(f(3), -1))
rows("cat.default concat.default concatenate.default", S([f(2, 3), f(1, 3)]), S([f(2, 3), f(2, 1), f(2, 2)], -1),
     S([i(2), f(3)]), S([f(3)]), S([b(2), i(2)]),
     S([torch.zeros(0, dtype=f64), f(2, 3)]), S([f(2).half(), f(2).float()], grad=False))
rows("stack.default", S([f(2, 3), f(2, 3)]), S([f(2), f(2)], -1), S([f(), f()]), S([i(2), f(2)]), S([f(2)], 1))
rows("hstack.default", S([f(2, 3), f(2, 1)]), S([f(2), f(3)]), S([f(), f()]))
rows("vstack.default row_stack.default", S([f(2, 3), f(1, 3)]), S([f(3), f(3)]))
rows("dstack.default", S([f(2, 3), f(2, 3)]), S([f(3), f(3)]))
rows("column_stack.default", S([f(3), f(3, 2)]))
rows("atleast_1d.default", S(f()), S(f(2)))
rows("atleast_2d.default", S(f()), S(f(2)), S(f(2, 3)))
rows("atleast_3d.default", S(f()), S(f(2)), S(f(2, 3)), S(f(2, 3, 1)))
rows("meshgrid.indexing", S([f(2), f(3)], indexing="ij"), S([f(2), f(3)], indexing="xy"),
     S([f(2), f(3), f(4)], indexing="xy"), S([f(2)], indexing="xy"))
rows("meshgrid.default", S([f(2), f(3)]), S([f(), f(2)]))
rows("cartesian_prod.default", S([f(2), f(3)]), S([f(3)]))
rows("constant_pad_nd.default", S(f(2, 3), [1, 2]), S(f(2, 3), [1, 0, 0, 2], 0.5), S(f(4, 5), [-1, 1, 2, -2]),
     S(i(3), [1, 1], 7), S(f(2), [0, 0]), S(b(2), [1, 0]))
rows("reflection_pad1d.default", S(f(2, 4), [2, 3]), S(f(2, 3, 4), [1, 0]))
rows("reflection_pad2d.default", S(f(2, 4, 3), [1, 2, 3, 0]), S(f(1, 2, 4, 3), [2, 0, 1, 1]))
rows("reflection_pad3d.default", S(f(1, 2, 3, 4, 3), [1, 2, 3, 0, 1, 1]), S(f(2, 2, 3, 3), [1, 1, 1, 1, 1, 1]))
rows("replication_pad1d.default", S(f(2, 4), [2, 5]), S(f(2, 3, 4), [1, 0]), S(f(2, 4), [-1, 2]))
rows("replication_pad2d.default", S(f(2, 4, 3), [1, 2, 5, 0]), S(f(1, 2, 4, 3), [2, 0, 1, 1]))
rows("replication_pad3d.default", S(f(1, 2, 3, 4, 3), [1, 2, 3, 0, 1, 1]))
rows("_pad_circular.default", S(f(1, 2, 4), [2, 3]), S(f(1, 2, 4, 3), [1, 2, 0, 4]))
rows("pad.default", S(f(2, 3), [1, 2]), S(f(2, 3), [1, 2], "constant", 2.5), S(f(1, 2, 4), [2, 3], "reflect"),
     S(f(1, 2, 4), [2, 3], "replicate"),
     S(f(1, 2, 4), [2, 3], "circular"), S(f(1, 2, 4, 4), [1, 0, 2, 1], "reflect"))
rows("_pad_enum.default", S(f(2, 3), [1, 2], 3, 2.5), S(f(1, 2, 4), [2, 3], 0), S(f(1, 2, 4), [2, 3], 1),
     S(f(1, 2, 4), [2, 3], 2))
rows("tril.default triu.default", S(f(3, 4)), S(f(3, 4), 1), S(f(2, 4, 3), -1), S(b(3, 3)), S(i(3, 3), 5),
     S(f(3, 3), -5))
rows("size.int sym_size.int", S(f(2, 3), 0, grad=False), S(f(2, 3), -1, grad=False))
rows("numel.default sym_numel.default", S(f(2, 3), grad=False))
rows("block_diag.default", S([f(2, 3), f(1, 2), f(3)]), S([f(), i(2, 2)]))
rows("pixel_shuffle.default", S(f(8, 3, 2), 2), S(f(2, 9, 2, 3), 3))
rows("pixel_unshuffle.default", S(f(2, 4, 6), 2), S(f(1, 2, 6, 3), 3))
rows("channel_shuffle.default", S(f(2, 6, 3, 2), 3))
rows("native_channel_shuffle.default", S(f(2, 6, 3, 2), 3, grad=False))

# -- elements by indices

K = t([2, 0, 1, 2])
rows("index_select.default", S(f(3, 2), 0, K), S(f(2, 3), -1, K), S(f(3), 0, t([1])), S(f(3), 0, t(1)),
     S(i(3), 0, K), S(f(3, 2), 0, K.int()), S(b(3), 0, K), S(f(), 0, t([0])))
rows("take.default", S(f(2, 3), t([[0, 5], [-1, 2]])), S(f(4), t(1)))
rows("gather.default", S(f(3, 2), 0, i(2, 2, low=0, high=3)), S(f(3, 4), -1, i(3, 6, low=0, high=4)),
     S(f(3, 4), 1, i(2, 2, low=0, high=4)), S(f(), 0, t([0, 0])),
     S(f(3), 0, t(1)), S(f(3), 0, t([1, 1, 1])), S(b(3), 0, K), S(f(), 0, t(0)))
rows("take_along_dim.default", S(f(3, 2), i(3, 1, low=0, high=2), 1), S(f(3, 2), order(3, 2, axis=0), 0),
     S(f(2, 3), t([0, 5, 1])), S(f(1, 3), i(4, 2, low=0, high=3), -1))
PLACES = (
    S(f(3, 4), [K]), S(f(3, 4), [None, t([3, -1, 0])]), S(f(3, 4), [t([0, 2]), t([1, -3])]),
    S(f(3, 4), [t([[0], [2]]), t([1, 3])]),
    S(f(2, 3, 4), [t([0, 1]), None, t([3, 2])]), S(f(2, 3, 4), [None, t([0, 2]), t([3, 2])]),
    S(f(2, 3, 4), [None, t([[0, 2], [1, 1]])]),
    S(f(3, 2), [t(1)]), S(f(3), [t([0, 1], i32)]), S(i(3), [K]), S(f(3, 2), [t([True, False, True])]),
    S(f(2, 2), [t([[True, False], [True, True]])]),
    S(f(3, 4), [t([1]), t([0, 1, 2])]), S(b(3), [K]),
)
rows("index.Tensor", *PLACES)
rows("_unsafe_index.Tensor", *PLACES[:6])
del SAMPLES["index.Tensor"][10:12],
SAMPLES["index.Tensor"][-1]  # masks are constants in a program: see the test of index_put
PUT = (
    S(f(3, 4), [t([2, 0])], f(2, 4)), S(f(3, 4), [None, t([2, -1])], f(3, 2)),
    S(f(3, 4), [t([0, 2]), t([1, -3])], f(2)), S(f(3, 4), [t([[0], [2]]), t([1, 3])], f(2, 2)),
    S(f(2, 3, 4), [t([0, 1]), None, t([3, 2])], f(2, 3)), S(f(3, 4), [t([2, 0])], f(4)),
    S(f(3, 4), [t([2, 0])], f()), S(f(3), [t(1)], f()), S(i(4), [t([1, 3])], i(2)),
    S(b(4), [t([1, 3])], b(2)), S(f(2, 3, 4), [None, t([0, 2]), t([3, 2])], f(2, 2)),
    S(i(4, dtype=i32), [t([1, 3])], i(dtype=i32)),
)
rows("index_put.default", *PUT, *(S(*s.args, True) for s in PUT[:9]), S(f(3, 4), [t([2, 2])], f(2, 4), True),
     S(f(3), [t([True, False, True])], f()),
     S(f(3, 2), [t([True, False, True])], f(1)), S(f(2, 2), [t([[True, False], [True, True]])], t(0.5), True),
     S(b(3), [t([True, False, True])], t(True)))
rows("_unsafe_index_put.default", *PUT[:4])
rows("put.default", S(f(2, 3), t([0, 5]), f(2)), S(f(2, 3), t([[0], [-1]]), f(2, 1), True),
     S(f(2, 3), t([1, 1]), f(2), True))
rows("index_add.default", S(f(), 0, t([0]), f()), S(f(3, 2), 0, K, f(4, 2)), S(f(2, 3), -1, K, f(2, 4), alpha=-0.5),
     S(f(3), 0, t([1]), f(1)), S(i(3), 0, K, i(4), alpha=2), S(f(3, 2), 0, K.int(), f(4, 2)))
rows("index_copy.default", S(f(), 0, t([0]), f(1), grad=False), S(f(), 0, t([0]), f()),
     S(f(3, 2), 0, t([2, 0]), f(2, 2)), S(f(2, 3), -1, t([2, 0]), f(2, 2)),
     S(b(3), 0, t([1]), b(1)), S(i(3), 0, t([1]), i(1)))
rows("index_fill.int_Scalar", S(f(), 0, t([0]), 1.5), S(f(3, 2), 0, t([2, 0, 2]), 1.5), S(f(2, 3), -1, t([1]), -1),
     S(i(3), 0, t([1]), 7),
     S(b(3), 0, t([1]), True))
rows("index_fill.int_Tensor", S(f(), 0, t([0]), f()), S(f(3, 2), 0, t([2, 0, 2]), t(1.5)), S(f(3), 0, t([1]), f()))
for _way in ("sum", "prod", "mean", "amax", "amin"):
    for _self in (True, False):
        if _way == "sum":
            continue
        rows("index_reduce.default", S(f(3, 2), 0, K, f(4, 2), _way, include_self=_self, grad=_way != "prod"),
             S(f(2, 3), 1, t([0, 0]), f(2, 2), _way, include_self=_self, grad=_way != "prod"))
    for _self in (True, False):
        rows("scatter_reduce.two", S(f(3, 2), 0, t([[0, 1], [0, 2]]), f(2, 2), _way, include_self=_self),
             S(f(2, 3), -1, t([[0, 0, 0], [1, 2, 2]]), f(2, 3), _way, include_self=_self),
             S(t([1.0, 2.0, 3.0] if _self else [7.0, 8.0, 9.0]), 0, t([0, 0, 1]), t([1.0, 1.0, 2.0]), _way,
             include_self=_self), S(i(3), 0, t([0, 0, 1]), i(3, low=1), _way, include_self=_self))
rows("scatter_reduce.two", S(t([0.0, 2.0, 3.0]), 0, t([0, 0, 1, 2]), t([2.0, 3.0, 0.0, 5.0]), "prod"),
     S(f(), 0, t(0), f(), "sum"))
SCATTERED = (
    S(f(3, 2), 0, t([[0, 1], [2, 0]]), f(2, 2)), S(f(2, 4), -1, t([[0, 3], [1, 2]]), f(2, 3), grad=False),
    S(f(3), 0, t([2]), f(1)), S(i(3), 0, t([2]), i(1)), S(f(3, 4), 1, t([[0, 2]]), f(3, 4), grad=False),
    S(f(), 0, t(0), f()), S(b(3), 0, t([1]), b(1)),
)
rows("scatter.src", *SCATTERED)
rows("scatter.value", *(S(*s.args[:3], 2.5 if s.args[0].is_floating_point() else 1) for s in SCATTERED),
     S(f(2, 3), 1, t([[0, 0], [1, 1]]), 3))
rows("scatter_add.default", *SCATTERED[:6], S(f(3), 0, t([1, 1, 1]), f(3)),
     S(f(3, 2), 0, t([[0, 0], [0, 1]]), f(2, 2)))
rows("scatter.reduce", S(f(3), 0, t([1, 1]), f(2), reduce="add", grad=False),
     S(f(3), 0, t([1, 1]), f(2), reduce="multiply", grad=False))
rows("scatter.value_reduce", S(f(3), 0, t([1, 1]), 2.0, reduce="add", grad=False),
     S(f(3), 0, t([1, 2]), 2.0, reduce="multiply", grad=False))
rows("masked_scatter.default", S(f(2, 3), t([[True, False, True], [False, True, True]]), f(5)), S(f(3), b(3), f(4)),
     S(f(2, 3), b(3), f(2, 4)), S(i(3), b(3), i(3)))
BOUNDARIES = t([-1.0, 0.0, 0.5, 2.0])
rows("bucketize.Tensor", S(f(2, 3), BOUNDARIES), S(BOUNDARIES, BOUNDARIES), S(BOUNDARIES, BOUNDARIES, right=True),
     S(f(3), BOUNDARIES, out_int32=True), S(i(3), t([-2, 0, 2])), S(f(), BOUNDARIES))
rows("bucketize.Scalar", S(0.5, BOUNDARIES, right=True), S(0.5, BOUNDARIES))
rows("searchsorted.Tensor", S(BOUNDARIES, f(2, 3)), S(BOUNDARIES, BOUNDARIES, right=True),
     S(BOUNDARIES, f(3), side="right"), S(torch.sort(f(2, 5)).values, f(2, 3)), S(BOUNDARIES, f()))
rows("searchsorted.Scalar", S(BOUNDARIES, 0.5), S(BOUNDARIES, 0.5, right=True))
rows("one_hot.default", S(t([0, 2, 1]), 4), S(t([[0, 2]]), 3), S(t(1), 2))
rows("embedding.default", S(f(5, 3), i(2, 4, low=0, high=5)), S(f(5, 3), t([1, 1, 0]), 1), S(f(5, 3), t(2)),
     S(f(5, 3), t([1, 2], i32)), S(f(5, 3), t([1, 1, 1, 4]), -1, True),
     S(f(5, 3), t([[1, 1], [0, 4]]), 0, True))
BAGS = (t([1, 2, 4, 0, 0, 3]), t([0, 2, 4]))
UNEVEN = t([0, 1, 4])
for _mode in (0, 1, 2):
    rows("embedding_bag.default", S(f(5, 3), *BAGS, False, _mode, f32=False),
         S(f(5, 3), BAGS[0], UNEVEN, False, _mode, f32=False))
    rows("embedding_bag.padding_idx", S(f(5, 3), *BAGS, False, _mode, False, None, False, None),
         S(f(5, 3), BAGS[0], UNEVEN, False, _mode, False, None, False, 0),
         S(f(5, 3), t([1, 0, 0, 3]), t([0, 1, 3, 4]), False, _mode, False, None, True, 0))
rows("embedding_bag.default", S(f(5, 3), *BAGS, False, 0, False, f(6)),
     S(f(5, 3), BAGS[0], t([0, 2, 2, 6]), False, 0, False, None, True))
rows("_embedding_bag.default", S(f(5, 3), *BAGS), S(f(5, 3), BAGS[0], UNEVEN, False, 1))
rows("_embedding_bag_forward_only.default", S(f(5, 3), *BAGS, grad=False))


# -- windows

rows("conv1d.default", S(f(2, 4, 7), f(3, 4, 3), f(3)), S(f(2, 4, 7), f(6, 2, 2), None, [2], [1], [2], 2),
     S(f(4, 7), f(3, 4, 3), f(3)))
rows("conv2d.default", S(f(2, 2, 5, 6), f(3, 2, 3, 2), f(3)),
     S(f(1, 4, 6, 5), f(4, 1, 2, 3), f(4), [2, 1], [1, 2], [1, 2], 4), S(f(2, 5, 5), f(3, 2, 3, 3), None, [2], [1]))
rows("conv3d.default", S(f(1, 2, 4, 4, 3), f(2, 2, 2, 2, 2), f(2)),
     S(f(1, 2, 4, 4, 3), f(2, 1, 2, 2, 1), None, [2, 1, 1], [1, 0, 1], [1, 2, 1], 2))
rows("conv1d.padding", S(f(2, 2, 7), f(3, 2, 4), f(3), [1], "same"),
     S(f(2, 2, 7), f(3, 2, 3), None, [2], "valid", [2]))
rows("conv2d.padding", S(f(1, 2, 5, 6), f(3, 2, 3, 2), f(3), [1, 1], "same", [2, 1]),
     S(f(2, 5, 6), f(3, 2, 2, 2), None, [1, 1], "same"))
rows("conv3d.padding", S(f(1, 2, 3, 4, 3), f(2, 2, 2, 3, 2), f(2), [1, 1, 1], "same"))
rows("conv_transpose1d.default", S(f(2, 4, 5), f(4, 3, 3), f(3)),
     S(f(2, 4, 5), f(4, 1, 3), None, [2], [1], [1], 2, [2]), S(f(4, 5), f(4, 3, 3), f(3)))
rows("conv_transpose2d.input", S(f(2, 2, 3, 4), f(2, 3, 3, 2), f(3)),
     S(f(1, 4, 3, 3), f(4, 2, 2, 3), f(4), [2, 1], [1, 1], [1, 0], 2, [1, 1]),
     S(f(1, 2, 3, 3), f(2, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], 1, [2, 2]), S(f(2, 3, 3), f(2, 1, 2, 2)))
rows("conv_transpose3d.input", S(f(1, 2, 2, 3, 2), f(2, 2, 2, 2, 2), f(2), [2, 1, 1], [1, 0, 0], [1, 0, 0]))
rows("convolution.default", S(f(2, 2, 5), f(3, 2, 3), f(3), [1], [1], [1], False, [0], 1),
     S(f(2, 2, 5), f(2, 3, 3), f(3), [2], [1], [1], True, [1], 1))
rows("im2col.default", S(f(2, 2, 5, 6), [2, 3], [1, 2], [1, 0], [2, 1]),
     S(f(2, 4, 4), [2, 2], [1, 1], [0, 0], [2, 2]))
rows("col2im.default", S(f(2, 8, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
     S(f(8, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]))
rows("_weight_norm.default _weight_norm_interface.default", S(f(3, 4), p(3, 1), 0), S(f(3, 4), p(1, 4), 1),
     S(f(3, 2, 2), p(3, 1, 1), 0))
TIES = t([[[1.0, 1.0, 0.0, 1.0, 2.0, 2.0]]])
rows("max_pool1d.default", S(f(2, 2, 7), [3]), S(f(2, 2, 7), [3], [2], [1], [1], True),
     S(f(2, 7), [2], [2], [0], [2]), S(TIES, [2], [1]), S(TIES, [3], [3]), S(TIES, [2], [1], [0], [2]),
     S(f(1, 1, 6), [2], [], [1]))
rows("max_pool2d.default", S(f(2, 2, 5, 6), [2, 3]), S(f(1, 2, 5, 6), [3, 2], [2, 2], [1, 1], [1, 1], True),
     S(f(2, 5, 6), 2, 1), S(f(1, 2, 7, 6), [2, 2], [1, 2], [1, 0], [3, 2]),
     S(t([[[[1.0, 1.0], [1.0, 1.0]]]]), [2, 2]),
     S(t([[[[1.0, 1.0, 1.0], [1.0, 2.0, 2.0], [1.0, 2.0, 2.0]]]]), [2, 2], [1, 1]),
     S(f(1, 1, 5, 5), [2, 2], [2, 2], [0, 0], [2, 2], True))
rows("max_pool3d.default", S(f(1, 2, 4, 4, 3), [2, 2, 2]), S(f(2, 4, 4, 3), [2, 1, 2], [1, 2, 1], [1, 0, 1]))
rows("max_pool1d_with_indices.default", S(f(2, 2, 7), [3]), S(TIES, [2], [1]))
rows("max_pool2d_with_indices.default", S(f(2, 2, 5, 6), [2, 3]),
     S(f(1, 2, 5, 6), [3, 2], [2, 2], [1, 1], [1, 1], True), S(f(1, 1, 5, 5), [2, 2], [1, 1], [1, 1], [2, 2]))
rows("max_pool3d_with_indices.default", S(f(1, 2, 4, 4, 3), [2, 2, 2]))
rows("max_unpool2d.default", S(t([[[[1.0, 1.0]]]]), t([[[[2, 2]]]]), [2, 2]),
     S(f(1, 1, 2, 2), t([[[[0, 3], [9, 15]]]]), [4, 4]),
     S(f(1, 2, 2), t([[[0, 3], [9, 15]]]), [4, 4]))
rows("max_unpool3d.default", S(f(1, 1, 1, 2, 2), t([[[[[0, 3], [9, 15]]]]]), [1, 4, 4], [2, 2, 2], [0, 0, 0]))
AVERAGED = ((), ([2],), ([2], [1], True), ([2], [1], True, False), ([3], [1], False, False))
rows("avg_pool1d.default", *(S(f(2, 2, 7), [3], *a) for a in AVERAGED), S(f(2, 7), [2]))
rows("avg_pool2d.default", S(f(2, 2, 5, 6), [2, 3]),
     *(S(f(1, 2, 5, 6), [3, 2], [2, 2], [1, 1], *a) for a in ((True, True), (True, False), (False, False), (True,
     True, 5), (False, True, 3))), S(f(2, 5, 6), 2, 1))
rows("avg_pool3d.default", S(f(1, 2, 4, 4, 3), [2, 2, 2]),
     S(f(1, 2, 4, 4, 3), [2, 2, 3], [1, 2, 1], [1, 0, 1], True, False),
     S(f(2, 4, 4, 3), [2, 2, 2], [1, 1, 1], [0, 0, 0], False, True, 3))
rows("adaptive_avg_pool1d.default", *(S(f(2, 2, 7), [k]) for k in (1, 3, 7, 9)), S(f(2, 6), [3]))
rows("adaptive_avg_pool2d.default _adaptive_avg_pool2d.default",
     *(S(f(2, 2, 6, 7), k) for k in ([1, 1], [2, 7], [3, 2], [4, 9])), S(f(2, 6, 4), [3, 2]))
rows("adaptive_avg_pool3d.default _adaptive_avg_pool3d.default", S(f(1, 2, 4, 3, 5), [2, 3, 2]),
     S(f(1, 2, 4, 3, 5), [1, 1, 1]))
rows("adaptive_max_pool1d.default", *(S(f(2, 2, 7), [k]) for k in (1, 3, 7)), S(TIES, [2]))
rows("adaptive_max_pool2d.default", *(S(f(2, 2, 6, 7), k) for k in ([1, 1], [2, 7], [3, 2])), S(f(2, 6, 4), [3, 2]),
     S(t([[[[1.0, 1.0], [1.0, 1.0]]]]), [1, 1]))
rows("adaptive_max_pool3d.default", S(f(1, 2, 4, 3, 5), [2, 3, 2]))

# -- resampling

for _kind in ("upsample_nearest", "_upsample_nearest_exact"):
    rows(f"{_kind}1d.vec", S(f(1, 2, 5), [8], None), S(f(1, 2, 5), None, [1.7]), S(f(1, 2, 4), [8], None),
         S(f(1, 2, 7), None, [0.6]))
    rows(f"{_kind}1d.default", S(f(1, 2, 5), [8]), S(f(1, 2, 5), [8], 1.7))
    rows(f"{_kind}2d.vec", S(f(1, 2, 3, 4), [5, 7], None), S(f(1, 2, 3, 4), None, [2.0, 2.0]),
         S(f(1, 2, 6, 5), None, [0.5, 1.3]))
    rows(f"{_kind}2d.default", S(f(1, 2, 3, 4), [5, 7]), S(f(1, 2, 3, 4), [5, 7], 1.7, 1.8))
    rows(f"{_kind}3d.vec", S(f(1, 1, 2, 3, 2), [3, 3, 5], None), S(f(1, 1, 2, 3, 2), None, [2.0, 1.5, 1.0]))
    rows(f"{_kind}3d.default", S(f(1, 1, 2, 3, 2), [3, 3, 5]))
for _align in (False, True):
    rows("upsample_linear1d.vec", S(f(1, 2, 5), [8], _align, None), S(f(1, 2, 5), None, _align, [1.7]),
         S(f(1, 2, 5), [3], _align, None), S(f(1, 2, 5), [1], _align, None))
    rows("upsample_linear1d.default", S(f(1, 2, 5), [8], _align), S(f(1, 2, 5), [8], _align, 1.7))
    for _kind in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        rows(f"{_kind}.vec", S(f(1, 2, 3, 4), [5, 7], _align, None), S(f(1, 2, 3, 4), None, _align, [2.0, 2.0]),
             S(f(1, 2, 7, 5), [3, 2], _align, None), S(f(1, 2, 4, 4), None, _align, [1.7, 0.6]),
             S(f(1, 2, 4, 4), None, _align, [1.2, 1.0], grad=False))
        rows(f"{_kind}.default", S(f(1, 2, 3, 4), [5, 7], _align), S(f(1, 2, 3, 4), [5, 7], _align, 1.7, 1.8))
    rows("upsample_trilinear3d.vec", S(f(1, 1, 2, 3, 2), [3, 3, 5], _align, None),
         S(f(1, 1, 2, 3, 2), None, _align, [2.0, 1.5, 1.0]))
    rows("upsample_trilinear3d.default", S(f(1, 1, 2, 3, 2), [3, 3, 5], _align))
    rows("affine_grid_generator.default", S(f(2, 2, 3), [2, 1, 3, 4], _align), S(f(1, 2, 3), [1, 1, 1, 3], _align),
         S(f(2, 3, 4), [2, 1, 2, 3, 2], _align))
    for _mode in (0, 1, 2):
        for _padding in (0, 1, 2):
            rows("grid_sampler_2d.default grid_sampler.default",
                 S(f(2, 2, 4, 5), f(2, 3, 3, 2, low=-1.4, high=1.4), _mode, _padding, _align))
            if _mode < 2:
                rows("grid_sampler_3d.default grid_sampler.default",
                     S(f(1, 2, 3, 4, 2), f(1, 2, 2, 3, 3, low=-1.3, high=1.3), _mode, _padding, _align))

# -- normalization

X, CHANNELS = f(4, 3, 5), (p(3), f(3), f(3), p(3))
rows("_native_batch_norm_legit_functional.default", S(f(4, 3, 5), *CHANNELS, True, 0.1, 1e-5),
     S(f(4, 3), *CHANNELS, True, 0.3, 1e-3),
     S(f(4, 3, 2, 2), None, None, f(3), p(3), True, 0.1, 1e-5),
     S(f(4, 3), *CHANNELS, False, 0.1, 1e-5, grad=False))
rows("_native_batch_norm_legit.no_stats", S(f(4, 3, 5), p(3), f(3), True, 0.1, 1e-5),
     S(f(4, 3), None, None, True, 0.1, 1e-5))
rows("_native_batch_norm_legit_no_training.default", S(f(4, 3, 5), *CHANNELS, 0.1, 1e-5),
     S(f(4, 3), None, None, f(3), p(3), 0.1, 1e-5))
rows("batch_norm.default", S(f(4, 3, 5), *CHANNELS, False, 0.1, 1e-5, False),
     S(f(4, 3), p(3), f(3), None, None, True, 0.1, 1e-5, False))
rows("native_batch_norm.default _native_batch_norm_legit.default", S(f(4, 3, 5), *CHANNELS, False, 0.1, 1e-5))
rows("layer_norm.default", S(f(2, 3, 4), [4], p(4), f(4)), S(f(2, 3, 4), [3, 4], p(3, 4), f(3, 4), 1e-3),
     S(f(2, 4), [4]), S(f(2, 4), [4], p(4)), S(f(4), [4], p(4), f(4)))
rows("native_layer_norm.default", S(f(2, 3, 4), [4], p(4), f(4), 1e-5), S(f(2, 4), [4], None, None, 1e-5))
rows("rms_norm.default", S(f(2, 3, 4), [4], p(4)), S(f(2, 3, 4), [3, 4], None, 1e-3), S(f(2, 4), [4]))
rows("_fused_rms_norm.default", S(f(2, 3, 4), [4], p(4), 1e-5), S(f(2, 4), [4], None, 1e-3))
rows("group_norm.default", S(f(2, 6, 3), 3, p(6), f(6)), S(f(2, 6, 3, 2), 2), S(f(2, 4), 2, p(4), f(4), 1e-3),
     S(f(2, 6, 3), 3, p(6)))
rows("native_group_norm.default", S(f(2, 6, 3), p(6), f(6), 2, 6, 3, 3, 1e-5),
     S(f(2, 6, 3, 2), None, None, 2, 6, 6, 2, 1e-5))
rows("instance_norm.default", S(f(2, 3, 4), p(3), f(3), None, None, True, 0.1, 1e-5, False),
     S(f(2, 3, 4, 2), None, None, None, None, True, 0.1, 1e-5, False),
     S(f(2, 3, 4), *CHANNELS, False, 0.1, 1e-5, False))

# -- softmax, attention, dropout that does nothing

SUMMED = (S(f(2, 3), 0, False), S(f(2, 3), -1, False), S(f(), 0, False), S(t([INF, 1.0]), 0, False, grad=False),
     S(t([-INF, 1.0]), 0, False, grad=False))
rows("_softmax.default _log_softmax.default", *SUMMED)
rows("softmax.int log_softmax.int", *(S(*s.args[:2], grad=s.grad) for s in SUMMED), S(f(2, 3), 1, f64),
     S(i(2, 3), 1, f64), S(f(2, 3).half(), 1, f32, grad=False))
rows("_safe_softmax.default", S(f(2, 3), -1), S(t([[-INF, -INF], [1.0, 2.0]]), -1, grad=False))
HEADS = (f(2, 3, 4, 5), f(2, 3, 6, 5), f(2, 3, 6, 7))
rows("scaled_dot_product_attention.default", S(*HEADS), S(*HEADS, b(4, 6)), S(*HEADS, f(2, 1, 4, 6)),
     S(*HEADS, None, 0.0, True), S(*HEADS, scale=0.7), S(f(4, 5), f(6, 5), f(6, 5)),
     S(f(3, 4, 5), f(3, 6, 5), f(3, 6, 2), f(4, 6)),
     S(f(2, 4, 3, 5), f(2, 2, 3, 5), f(2, 2, 3, 5), None, 0.0, True, enable_gqa=True),
     S(*HEADS, torch.ones(4, 6, dtype=boolean).tril()),
     S(f(2, 3, 4, 4, 5), f(2, 3, 4, 6, 5), f(2, 3, 4, 6, 7), f(4, 1, 6)),
     S(*HEADS, t([[True] * 6, [False] * 6, [True] * 6, [True, False] * 3]), grad=False))
rows("dropout.default alpha_dropout.default feature_dropout.default feature_alpha_dropout.default",
     S(f(2, 3, 4), 0.5, False), S(f(2, 3), 0.0, True), S(f(2, 3), 1.0, True))
rows("native_dropout.default", S(f(2, 3), 0.5, False), S(f(2, 3), 0.0, True))

# -- losses: reductions are 0 (none), 1 (mean), 2 (sum)

for _r in (0, 1, 2):
    SAME_SHAPE = (S(f(2, 3), f(2, 3), _r), S(f(3), f(3), _r), S(f(), f(), _r),
         S(t([0.0, 1.0, 2.0]), t([0.0, 0.0, 3.0]), _r))
    rows("mse_loss.default l1_loss.default smooth_l1_loss.default huber_loss.default", *SAME_SHAPE)
    rows("smooth_l1_loss.default", S(f(3), f(3), _r, 0.3), S(f(3), f(3), _r, 0.0),
         S(t([0.5, 1.0, -0.5]), t([0.0, 0.5, 0.0]), _r, 0.5))
    rows("huber_loss.default", S(f(3), f(3), _r, 0.3), S(t([0.5, 1.0, -0.5]), t([0.0, 0.5, 0.0]), _r, 0.5))
    rows("binary_cross_entropy_with_logits.default", S(f(2, 3), unit(2, 3), None, None, _r),
         S(f(2, 3), unit(2, 3), p(3), p(3), _r), S(t([0.0, 100.0, -100.0]), t([0.3, 1.0, 0.0]), None, None, _r),
         S(f(2, 3), unit(2, 3), None, p(3), _r))
    rows("binary_cross_entropy.default", S(unit(2, 3), unit(2, 3), None, _r), S(unit(2, 3), unit(2, 3), p(3), _r),
         S(t([0.0, 1.0, 0.5]), t([1.0, 0.0, 0.5]), None, _r, grad=False))
    rows("kl_div.default", S(f(2, 3), unit(2, 3), _r), S(f(2, 3), f(2, 3), _r, log_target=True),
         S(f(3), t([0.0, 0.5, 1.0]), _r, grad=False))
    for _log in (True, False):
        for _full in (True, False):
            rows("poisson_nll_loss.default", S(p(4), t([0.5, 2.0, 3.0, 1.5]), _log, _full, 1e-8, _r))
    rows("soft_margin_loss.default", S(f(2, 3), t([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]), _r),
         S(t([0.0, 30.0]), t([1.0, -1.0]), _r))
    CLASSES = (S(f(4, 3), t([0, 2, 1, 2]), None, _r), S(f(4, 3), t([0, 2, -100, 2]), p(3), _r),
         S(f(3), t(1), None, _r), S(f(4, 3), t([0, 1, 1, 2]), p(3), _r, 1))
    IMAGES = (S(f(2, 3, 2, 2), i(2, 2, 2, low=0, high=3), p(3), _r),
         S(f(2, 3, 2, 2), i(2, 2, 2, low=0, high=3), None, _r, 0))
    rows("nll_loss_nd.default", *CLASSES, *IMAGES, S(f(2, 3, 4), i(2, 4, low=0, high=3), None, _r))
    rows("nll_loss.default", *CLASSES)
    rows("nll_loss2d.default", *IMAGES)
    rows("nll_loss_forward.default", *(S(*s.args, *([-100] if len(s.args) == 4 else [])) for s in CLASSES))
    rows("nll_loss2d_forward.default", *(S(*s.args, *([-100] if len(s.args) == 4 else [])) for s in IMAGES))
    rows("cross_entropy_loss.default", *CLASSES, *IMAGES, S(f(4, 3), unit(4, 3), None, _r),
         S(f(4, 3), unit(4, 3), p(3), _r, -100, 0.1), S(f(4, 3), t([0, 2, -100, 2]), p(3), _r, -100, 0.2),
         S(f(2, 3, 2), i(2, 2, low=0, high=3), None, _r, -100, 0.1), S(f(2, 3, 2), unit(2, 3, 2), p(3), _r),
         S(f(3), t(1), p(3), _r, -100, 0.1), S(f(3), unit(3), None, _r))
    rows("multi_margin_loss.default", S(f(4, 3), t([0, 2, 1, 2]), 1, 1, None, _r),
         S(f(4, 3), t([0, 2, 1, 2]), 2, 0.5, p(3), _r), S(f(3), t(1), 1, 1, None, _r))
    rows("multilabel_margin_loss.default", S(f(), t(0), _r), S(f(2, 4), t([[3, 0, -1, 1], [1, -1, 0, 0]]), _r),
         S(f(4), t([3, 0, -1, 1]), _r))
    rows("triplet_margin_loss.default", S(f(4, 3), f(4, 3), f(4, 3), 1.0, 2.0, 1e-6, False, _r),
         S(f(4, 3), f(4, 3), f(4, 3), 5.0, 1.0, 1e-6, True, _r),
         S(f(4, 3), f(4, 3), f(4, 3), 3.0, 3.0, 0.1, True, _r),
         S(f(3), f(3), f(3), 4.0, 2.0, 1e-6, False, _r))
    rows("cosine_embedding_loss.default", S(f(4, 3), f(4, 3), t([1.0, -1.0, 1.0, -1.0]), 0.1, _r),
         S(f(4, 3), f(4, 3), t([1, -1, 1, -1]), 0.0, _r), S(f(3), f(3), t(1), 0.0, _r))
    rows("margin_ranking_loss.default", S(f(4), f(4), t([1.0, -1.0, 1.0, -1.0]), 0.5, _r),
         S(t([1.0, 2.0]), t([1.0, 1.0]), t([1, -1]), 0.0, _r))
    rows("hinge_embedding_loss.default", S(f(4), t([1.0, -1.0, 1.0, -1.0]), 1.0, _r),
         S(t([1.0, 0.5]), t([-1, -1]), 1.0, _r))
LOG_P = torch.log_softmax(f(6, 3, 5), -1)
for _r in (0, 1, 2):  # its gradient in PyTorch is that with the log_softmax before it: see the test of modules
    rows("ctc_loss.IntList",
         S(LOG_P, t([[1, 2, 2], [3, 4, 0], [1, 0, 0]]), [6, 5, 4], [3, 2, 1], 0, _r, f32=False, grad=False),
         S(LOG_P, t([1, 2, 2, 3, 4, 1]), [6, 5, 4], [3, 2, 1], 0, _r, f32=False, grad=False),
         S(LOG_P, t([[1, 2, 2], [3, 4, 0], [1, 1, 1]]), [6, 5, 2], [3, 2, 3], 0, _r, True, f32=False, grad=False),
         S(LOG_P[:, 0], t([1, 2]), [6], [2], 0, _r, f32=False, grad=False))
    rows("ctc_loss.Tensor",
         S(LOG_P, t([[1, 2, 2], [3, 1, 0], [1, 0, 0]]), t([6, 5, 4]), t([3, 2, 1]), 4, _r, f32=False, grad=False))

# -- recurrent layers


def _weights(gates: int, n: int, m: int, directions: int = 1, layers: int = 1, biases: bool = True) -> list[Any]:
    """The parameters of layers, as PyTorch has them."""
    found: list[Any] = []
    for layer in range(layers):
        for _ in range(directions):
            found += [f(gates * m, n if layer == 0 else m * directions), f(gates * m, m)]
            found += [f(gates * m), f(gates * m)] if biases else []
    return found


for _name, _gates in (("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
    rows(f"{_name}.input",
         S(f(4, 2, 3), f(1, 2, 5), _weights(_gates, 3, 5), True, 1, 0.0, False, False, False, f32=False),
         S(f(2, 4, 3), f(4, 2, 2), _weights(_gates, 3, 2, 2, 2, False), False, 2, 0.0, True, True, True, f32=False))
    rows(f"{_name}_cell.default", S(f(2, 3), f(2, 5), *_weights(_gates, 3, 5)),
         S(f(2, 3), f(2, 5), *_weights(_gates, 3, 5, biases=False)))
rows("lstm.input",
     S(f(4, 2, 3), [f(1, 2, 5), f(1, 2, 5)], _weights(4, 3, 5), True, 1, 0.0, False, False, False, f32=False),
     S(f(2, 4, 3), [f(4, 2, 2), f(4, 2, 2)], _weights(4, 3, 2, 2, 2, False), False, 2, 0.0, True, True, True,
     f32=False),
     S(f(4, 2, 3), [f(1, 2, 2), f(1, 2, 5)], [f(20, 3), f(20, 2), f(20), f(20), f(2, 5)], True, 1, 0.0, False,
     False, False, f32=False))
rows("lstm_cell.default", S(f(2, 3), [f(2, 5), f(2, 5)], *_weights(4, 3, 5)),
     S(f(2, 3), [f(2, 5), f(2, 5)], *_weights(4, 3, 5, biases=False)))

# -- arrays of constants (empty ones are zeros here, and random numbers have a test of their own)

rows("zeros.default ones.default", S([2, 3]), S([], dtype=f64), S([3], dtype=i64), S([2], dtype=boolean))
rows("zeros_like.default ones_like.default", S(f(2, 3)), S(i(3), dtype=f16), S(b(2)))
rows("new_zeros.default new_ones.default", S(f(2), [3, 2]), S(i(2), [3], dtype=f64))
rows("full.default", S([2, 3], 1.5), S([2], 3), S([2], True), S([2], 7, dtype=f64), S([], 2.5, dtype=f64))
rows("full_like.default", S(f(2, 3), 1.5), S(i(3), 2), S(i(3), 1.5, dtype=f64))
rows("fill.Scalar", S(f(2, 3), 1.5), S(i(3), 2))
rows("fill.Tensor", S(f(2, 3), t(1.5)), S(i(3), t(2)))
rows("new_full.default", S(f(2), [3], 1.5), S(i(2), [2, 2], 3))
rows("zero.default", S(f(2, 3)))
rows("scalar_tensor.default", S(1.5), S(2, dtype=i64), S(True, dtype=boolean), S(1.5, dtype=f64))
rows("copy.default", S(f(2, 3), f(3), grad=False), S(f(3), i(3), grad=False), S(i(3), f(3)))
rows("arange.default", S(5), S(2.5), S(4, dtype=f64), S(3, dtype=i32))
rows("arange.start", S(1, 5), S(-1.5, 2), S(2, 4, dtype=f64))
rows("arange.start_step", S(0, 10, 3), S(5, 0, -2), S(0.0, 1.0, 0.1, dtype=f64), S(1, 7, 2, dtype=i32), S(0, 1, 0.25))
rows("linspace.default", S(0, 1, 5, dtype=f64), S(-2.5, 3.5, 4), S(3, 3, 1), S(0, 10, 4, dtype=i64),
     S(5, -5, 3, dtype=f64))
rows("linspace.Tensor_Tensor", S(t(0.5), t(2.0), 4, dtype=f64, grad=False))
rows("linspace.Tensor_Scalar", S(t(0.5), 2, 4, dtype=f64, grad=False))
rows("linspace.Scalar_Tensor", S(1, t(2.0), 3, dtype=f64, grad=False))
rows("eye.default", S(3), S(2, dtype=i64))
rows("eye.m", S(2, 3), S(3, 2, dtype=f64))
rows("tril_indices.default triu_indices.default", S(3, 4), S(4, 3, 1), S(3, 3, -1, dtype=i32))
