"""Elementary functions over vectors, within 2 ulp of the true value; NaN, infinities and denormals are handled.

TVM would compile f32 functions to scalar library calls. Here they are argument reduction, a polynomial (minimax, fitted
by iterated least squares in f64 and rounded to f32 coefficient by coefficient) and scaling by exponent bits. Every
shared value is bound to a name, so that nothing is computed twice. f64 functions call the C library lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Expr, Kernel

# fmt: off
_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166825860738754, 0.00836866907775402, 0.0013821304310113192)
_EXP2 = (0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472731307149)
_EXPM1 = (0.5, 0.1666666567325592, 0.04166649281978607, 0.008333547040820122, 0.0013932320289313793,
          0.00019760783470701426)
_LOG = (0.3333333432674408, -0.2499982714653015, 0.19999681413173676, -0.16679295897483826, 0.1430271714925766,
        -0.12199418246746063, 0.1076955571770668, -0.12830109894275665, 0.1195845976471901)
_TANH = (-0.3333333134651184, 0.13333220779895782, -0.05394817888736725, 0.021706894040107727,
         -0.008190013468265533, 0.0021526841446757317)
_ERF = (0.12837916612625122, -0.3761262893676758, 0.11283625662326813, -0.026855729520320892, 0.005192393437027931,
        -0.0008049544994719326, 7.995286432560533e-05)
_ERFC = (-1.1284621953964233, -0.636112630367279, -0.1041259765625, 0.021191174164414406, -0.0017474399646744132,
         -0.0005405307747423649, 0.00022537967015523463, -3.5511468013282865e-05, 2.220807573394268e-06)
_NORMAL = (0.5, -0.39894115924835205, 0.24997767806053162, -0.1328267753124237, 0.06197080388665199,
           -0.02553446590900421, 0.009056583046913147, -0.0026186462491750717, 0.0005735520971938968,
           -8.688792149769142e-05, 7.96239146438893e-06, -3.285318541657034e-07)
_SIN = (-0.1666666716337204, 0.008333379402756691, -0.00019853068806696683, 2.832629434124101e-06)
_COS = (0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05)
_LOG64 = (0.9999999999999387, -0.5000000000180276, 0.333333333404285, -0.249999993993504, 0.19999998656597745,
          -0.1666672440653505, 0.14285810700323298, -0.12497563049452602, 0.11107733701908114, -0.10052408414575816,
          0.09154579740523912, -0.0773861345346073, 0.07038265512266186, -0.10453037208871277, 0.10026671645810797)
# fmt: on
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06  # the first has 9 trailing zero bits: n * it is exact
_ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which then is in the low bits
_ROUND64 = 6755399441055744.0  # 1.5 * 2**52


def _magnitude(x: Expr) -> tuple[Expr, Expr]:
    """Return the bits of |x| and of infinity: TVM would simplify x != x, or negated comparisons, as if for integers."""
    wide = tir.dtype_of(x) == "f64"
    bits = tir.bitcast(x, "i64" if wide else "i32")
    mask, inf = (2**63 - 1, 0x7FF << 52) if wide else (2**31 - 1, 0xFF << 23)
    return bits & tir.const(mask, tir.dtype_of(bits)), tir.const(inf, tir.dtype_of(bits))


def is_nan(x: Expr) -> Expr:
    """Is x NaN? For any float dtype but bf16."""
    return tir.compare("greater", *_magnitude(x))


def is_finite(x: Expr) -> Expr:
    """Is x neither infinite nor NaN?"""
    return tir.compare("less", *_magnitude(x))


def _f(value: float) -> Expr:
    return tir.const(value, "f32")


def _i(value: int) -> Expr:
    return tir.const(value, "i32")


def _polynomial(k: Kernel, x: Expr, coefficients: Sequence[float], dtype: str = "f32") -> Expr:
    """c0 + c1 x + c2 x^2 + ..., by Horner's scheme."""
    lanes = tir.lanes_of(x)
    total = tir.splat(tir.const(coefficients[-1], dtype), lanes)
    for c in reversed(coefficients[:-1]):
        total = k.let(fma(total, x, tir.const(c, dtype)))
    return total


def _clamp(k: Kernel, x: Expr, low: float, high: float) -> Expr:
    """Return x clamped to bounds; NaN is propagated."""
    x = k.let(tir.select(tir.compare("less", x, _f(low)), _f(low), x))
    return k.let(tir.select(tir.compare("greater", x, _f(high)), _f(high), x))


def fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    """Return a * b + c, rounded once where the target has fused multiply-add, else twice."""
    dtype, lanes = tir.dtype_of(a), tir.lanes_of(a)
    return tir.llvm("llvm.fmuladd", dtype, lanes, a, tir.splat(b, lanes, dtype), tir.splat(c, lanes, dtype))


def _reduce_exp(k: Kernel, x: Expr) -> tuple[Expr, Expr]:
    """Return n and r with x = n ln 2 + r, |r| <= ln 2 / 2; n as an i32."""
    z = k.let(fma(x, math.log2(math.e), _ROUND))
    n = k.let(z - _f(_ROUND))
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return k.let(tir.bitcast(z, "i32") - _i(0x4B400000)), k.let(r)


def _power_of_two(n: Expr) -> Expr:
    """2**n for -127 < n < 128."""
    return tir.bitcast((n + _i(127)) << _i(23), "f32")


def _exp_core(k: Kernel, x: Expr) -> tuple[Expr, Expr]:
    """Return n and p with e**x = 2**n p."""
    n, r = _reduce_exp(k, x)
    return n, _exp_near(k, r)


def _exp_near(k: Kernel, r: Expr) -> Expr:
    """e**r for |r| <= ln 2 / 2."""
    return k.let(fma(k.let(r * r), _polynomial(k, r, _EXP), r) + _f(1.0))


def _exp(k: Kernel, x: Expr) -> Expr:
    """Return e**x. Underflow to 0 is by multiplication with 0: processors are slow in producing denormals, which masked
    scores of a softmax would do often."""
    n, p = _exp_core(k, _clamp(k, x, -104.0, 89.0))
    half = k.let(n >> _i(1))  # in two steps, so that results of denormal size are rounded once
    rest = tir.select(tir.compare("less", x, _f(-103.98)), _f(0.0), _power_of_two(n - half))
    return p * _power_of_two(half) * rest


def exp_below(k: Kernel, x: Expr, scale: float = 1.0) -> Expr:
    """Return e**(x scale) for x scale <= 0, in half of the time of exp; the only additional error is the rounding of
    x scale. Results that would be denormal (x scale < -87.3) are 0."""
    factor, least = scale * math.log2(math.e), _f(-87.3 / scale)
    z = k.let(fma(x, factor, _ROUND))  # x factor = n + r, n in the low bits of z
    r = k.let(fma(x, factor, _f(_ROUND) - z))
    p = fma(r, _polynomial(k, r, _EXP2), 1.0)
    power = tir.bitcast((tir.bitcast(z, "i32") - _i(0x4B400000 - 127)) << _i(23), "f32")
    return tir.select(tir.compare("less" if scale > 0 else "greater", x, least), _f(0.0), p * power)


def _expm1(k: Kernel, x: Expr) -> Expr:
    x = _clamp(k, x, -20.0, 89.0)
    n, r = _reduce_exp(k, x)
    p = fma(k.let(r * r), _polynomial(k, r, _EXPM1), r)
    scale = k.let(_power_of_two(n - _i(1)))  # half of it: 2**128 overflows
    result = k.let(fma(k.let(p), scale, scale - _f(0.5)) * _f(2.0))
    return tir.select(tir.compare("equal", n, _i(0)), p, result)


def _log_core(k: Kernel, f: Expr, e: Expr) -> Expr:
    """log(2**e (1 + f))"""
    square = k.let(f * f)
    tail = k.let(fma(f, _polynomial(k, f, _LOG), -0.5))
    return fma(e, _LN2_HIGH, fma(e, _LN2_LOW, fma(square, tail, f)))


def _log_split(k: Kernel, x: Expr) -> tuple[Expr, Expr]:
    """Return m in [2/3, 4/3) and e as f32 with x = m 2**e, for positive finite x."""
    small = k.let(tir.compare("less", x, _f(2.0**-126)))
    bits = k.let(tir.bitcast(tir.select(small, x * _f(2.0**23), x), "i32") - _i(0x3F2AAAAB))
    m = tir.bitcast((bits & _i(0x7FFFFF)) + _i(0x3F2AAAAB), "f32")
    e = tir.cast(bits >> _i(23), "f32") - tir.select(small, _f(23.0), _f(0.0))
    return k.let(m), k.let(e)


def _log(k: Kernel, x: Expr) -> Expr:
    m, e = _log_split(k, x)
    return _log_edges(k, x, _log_core(k, k.let(m - _f(1.0)), e), 0.0)


def _log_edges(k: Kernel, x: Expr, inside: Expr, zero: float) -> Expr:
    """Return `inside`, but NaN where x is below `zero`, -inf where it is equal, and x where it is inf or NaN."""
    inside = k.let(inside)
    regular = tir.select(tir.compare("less", x, _f(math.inf)), inside, x)
    nan = tir.select(tir.compare("less", x, _f(zero)), _f(math.nan), _f(-math.inf))
    return tir.select(tir.compare("less_equal", x, _f(zero)), nan, regular)


def _log1p(k: Kernel, x: Expr) -> Expr:
    """Return log(1 + x). The exponent is that of 1 + x, but the fraction is computed from x, so small x lose
    nothing."""
    e = k.let(tir.bitcast(k.let(x + _f(1.0)), "i32") - _i(0x3F2AAAAB) & _i(-0x800000))
    scale = k.let(tir.bitcast(_i(0x40800000) - e, "f32"))  # 4 * 2**-e
    f = k.let(fma(x, scale * _f(0.25), fma(scale, 0.25, -1.0)))
    inside = _log_core(k, f, k.let(tir.cast(e >> _i(23), "f32")))
    return _log_edges(k, x, inside, -1.0)


def _tanh(k: Kernel, x: Expr) -> Expr:
    """Return tanh(x): a polynomial near 0; elsewhere 1 - 2 / (e**2|x| + 1), with the sign of x."""
    size, square = k.let(tir.llvm("llvm.fabs", "f32", tir.lanes_of(x), x)), k.let(x * x)
    near = k.let(fma(k.let(x * square), _polynomial(k, square, _TANH), x))
    n, p = _exp_core(k, k.let(tir.select(tir.compare("greater", size, _f(10.0)), _f(20.0), size + size)))
    far = _f(1.0) - tir.splat(_f(2.0), tir.lanes_of(x)) / (p * _power_of_two(n) + _f(1.0))
    far = tir.llvm("llvm.copysign", "f32", tir.lanes_of(x), k.let(far), x)
    return tir.select(tir.compare("less", size, _f(0.625)), near, far)


def _erf(k: Kernel, x: Expr) -> Expr:
    """Return erf(x): a polynomial near 0; elsewhere 1 - e**P(|x|), with the sign of x."""
    size, square = k.let(tir.llvm("llvm.fabs", "f32", tir.lanes_of(x), x)), k.let(x * x)
    near = k.let(fma(x, _polynomial(k, square, _ERF), x))
    t = k.let(tir.select(tir.compare("greater", size, _f(4.0)), _f(4.0), size))
    n, p = _exp_core(k, k.let(t * _polynomial(k, t, _ERFC)))
    far = tir.llvm("llvm.copysign", "f32", tir.lanes_of(x), k.let(_f(1.0) - p * _power_of_two(n)), x)
    return tir.select(tir.compare("less", size, _f(0.9277)), near, far)


def _bell(k: Kernel, x: Expr) -> Expr:
    """Return e**(-x**2 / 2). If a kernel computes both the CDF and the PDF of an x, LLVM merges the common part."""
    return k.let(exp_below(k, k.let(x * x), -0.5))


def _normal_cdf(k: Kernel, x: Expr) -> Expr:
    """Return e**(-x**2 / 2) P(|x|) for x < 0, with an error within 2**-23, and 1 minus it for x >= 0. The polynomial is
    valid for |x| <= 5; beyond, the tail is below 3e-7."""
    size = k.let(tir.llvm("llvm.fabs", "f32", tir.lanes_of(x), x))
    t = k.let(tir.select(tir.compare("greater", size, _f(5.0)), _f(5.0), size))
    tail = k.let(_bell(k, x) * _polynomial(k, t, _NORMAL))
    return tir.select(tir.compare("less", x, _f(0.0)), tail, _f(1.0) - tail)


def _normal_pdf(k: Kernel, x: Expr) -> Expr:
    """Return e**(-x**2 / 2) / sqrt(2 pi); the error is that of rounding x**2, and beyond 13.2 the result is 0."""
    return _bell(k, x) * _f(1 / math.sqrt(2 * math.pi))


def _sigmoid(k: Kernel, x: Expr) -> Expr:
    """Return the sigmoid as 1 / (1 + e**-|x|), times e**-|x| for x < 0, so that nothing overflows."""
    e = k.let(_exp(k, k.let(-tir.llvm("llvm.fabs", "f32", tir.lanes_of(x), x))))
    return tir.select(tir.compare("less", x, _f(0.0)), e, _f(1.0)) / (e + _f(1.0))


def _quadrant(k: Kernel, x: Expr) -> tuple[Expr, Expr]:
    """Return n and r with x = n pi/2 + r, |r| <= pi/4, computed in f64: accurate for |x| < 2**50, NaN beyond."""
    lanes = tir.lanes_of(x)
    size = tir.llvm("llvm.fabs", "f32", lanes, x)
    x = tir.cast(k.let(tir.select(tir.compare("less", size, _f(2.0**50)), x, _f(math.nan))), "f64")
    x = k.let(x)
    magic = tir.splat(tir.const(_ROUND64, "f64"), lanes)
    z = k.let(fma(x, 2 / math.pi, magic))
    n = k.let(z - magic)
    r = fma(n, -6.123233995736766e-17, fma(n, -math.pi / 2, x))
    return k.let(tir.cast(tir.bitcast(z, "i64"), "i32")), k.let(tir.cast(r, "f32"))


def _sine(k: Kernel, x: Expr, turn: int) -> Expr:
    n, r = _quadrant(k, x)
    n = k.let(n + _i(turn))
    square = k.let(r * r)
    sin = fma(k.let(r * square), _polynomial(k, square, _SIN), r)
    cos = fma(k.let(square * square), _polynomial(k, square, _COS), fma(square, -0.5, 1.0))
    odd = tir.compare("not_equal", n & _i(1), _i(0))
    sign = (n & _i(2)) << _i(30)
    return tir.bitcast(tir.bitcast(k.let(tir.select(odd, cos, sin)), "i32") ^ sign, "f32")


def pow32(k: Kernel, x: Expr, y: Expr) -> Expr:
    """Return x**y as 2**(y log2 |x|) with the logarithm in f64, and the special cases of C."""
    lanes = tir.lanes_of(x)
    size = k.let(tir.llvm("llvm.fabs", "f32", lanes, x))
    m, e = _log_split(k, size)
    f = k.let(tir.cast(m, "f64") - tir.const(1.0, "f64"))
    log2 = fma(f * _polynomial(k, f, _LOG64, "f64"), math.log2(math.e), tir.cast(e, "f64"))
    power = k.let(tir.cast(y, "f64") * log2)
    low, high = tir.const(-160.0, "f64"), tir.const(160.0, "f64")
    power = k.let(tir.select(tir.compare("less", power, low), low, power))
    power = k.let(tir.select(tir.compare("greater", power, high), high, power))
    n = k.let(tir.llvm("llvm.rint", "f64", lanes, power))
    p = _exp_near(k, k.let(tir.cast((power - n) * tir.const(math.log(2), "f64"), "f32")))
    n32 = k.let(tir.cast(n, "i32"))
    half = k.let(n32 >> _i(1))
    result = k.let(p * _power_of_two(half) * _power_of_two(n32 - half))
    return _pow_edges(k, x, y, size, result)


def _pow_edges(k: Kernel, x: Expr, y: Expr, size: Expr, result: Expr) -> Expr:
    """Return the power with the signs, zeros, infinities and NaN of C."""
    lanes, zero, one, inf = tir.lanes_of(x), _f(0.0), _f(1.0), _f(math.inf)

    def both(a: Expr, b: Expr) -> Expr:
        return tir.logical("and", a, b)

    # 0 and inf have no finite logarithm: the result is 0 or inf, by the sign of y
    end = k.let(tir.logical("or", tir.compare("equal", size, zero), tir.compare("equal", size, inf)))
    big = k.let(tir.compare("equal", tir.compare("equal", size, inf), tir.compare("greater", y, zero)))
    result = k.let(tir.select(end, tir.select(big, inf, zero), result))
    whole = k.let(tir.compare("equal", tir.llvm("llvm.floor", "f32", lanes, y), y))
    halved = k.let(y * _f(0.5))
    odd = k.let(both(whole, tir.compare("not_equal", tir.llvm("llvm.floor", "f32", lanes, halved), halved)))
    negative = k.let(tir.compare("less", tir.bitcast(x, "i32"), _i(0)))
    result = k.let(tir.select(both(negative, odd), -result, result))
    wrong = both(tir.compare("less", x, zero), both(tir.logical("not", whole), tir.compare("less", size, inf)))
    nan = tir.logical("or", is_nan(x), is_nan(y))
    result = k.let(tir.select(tir.logical("or", wrong, nan), _f(math.nan), result))
    unit = tir.logical("or", tir.compare("equal", y, zero), tir.compare("equal", x, one))
    ends = both(tir.compare("equal", size, one), tir.compare("equal", tir.llvm("llvm.fabs", "f32", lanes, y), inf))
    return k.let(tir.select(tir.logical("or", unit, ends), one, result))


_F32: dict[str, Callable[[Kernel, Expr], Expr]] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "normal_cdf": _normal_cdf,
    "normal_pdf": _normal_pdf,
    "sigmoid": _sigmoid,
    "sin": lambda k, x: _sine(k, x, 0),
    "cos": lambda k, x: _sine(k, x, 1),
}


def f32(k: Kernel, name: str, x: Expr) -> Expr:
    """Return exp, log, log1p, expm1, tanh, erf, normal_cdf, normal_pdf, sigmoid, sin or cos of an f32."""
    return _F32[name](k, x)


def f64(k: Kernel, name: str, x: Expr) -> Expr:
    """Return these functions, and more, of an f64, through the C library."""
    one = tir.splat(tir.const(1.0, "f64"), tir.lanes_of(x))
    if name == "sigmoid":
        e = k.let(tir.libm("exp", -tir.llvm("llvm.fabs", "f64", tir.lanes_of(x), x)))
        return tir.select(tir.compare("less", x, tir.const(0.0, "f64")), e, one) / (e + one)
    if name == "normal_cdf":
        return by_lane("erfc", k.let(x * tir.const(-math.sqrt(0.5), "f64"))) * tir.const(0.5, "f64")
    if name == "normal_pdf":
        return tir.libm("exp", k.let(x * x * tir.const(-0.5, "f64"))) * tir.const(1 / math.sqrt(2 * math.pi), "f64")
    if name not in ("erf", "expm1", "log1p"):
        return tir.libm(name, x)
    return by_lane(name, x)


def by_lane(name: str, *args: Expr) -> Expr:
    """Return a function of the C library, called for each lane."""
    dtype, lanes = tir.dtype_of(args[0]), tir.lanes_of(args[0])
    if lanes == 1:
        return tir.external(name, dtype, *args)
    return tir.shuffle([tir.external(name, dtype, *v) for v in zip(*map(tir.lanes, args), strict=True)], range(lanes))
