"""Every distribution of nd.random: its numbers have it, and consecutive draws have nothing to do with each other."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon, nd, random
from gluongraph.context import cpu

SIZE = 1 << 16
BINS = 64
Array = np.ndarray[Any, Any]
NORMAL_CDF = np.vectorize(lambda x: math.erf(x / math.sqrt(2)) / 2 + 0.5)


@dataclass
class Known:
    """How many of `size` numbers fall into which bins: by a cumulative distribution or by each number's chance."""

    cdf: Callable[[Array], Array] | None = None
    pmf: Callable[[int], float] | None = None

    def chi_squared(self, drawn: Array) -> tuple[float, int]:
        """The statistic and its degrees of freedom."""
        if self.cdf is not None:
            counts = np.bincount(np.minimum((self.cdf(drawn) * BINS).astype(int), BINS - 1), minlength=BINS)
            return _statistic(counts, np.full(BINS, drawn.size / BINS))
        assert self.pmf is not None
        first, last = int(drawn.min()), int(drawn.max())
        chances = np.array([self.pmf(k) for k in range(first, last + 1)]) * drawn.size
        counts = np.bincount(drawn.astype(int) - first, minlength=chances.size)
        often = chances >= 10  # what is rare is one bin
        rare = drawn.size - chances[often].sum()
        expected, found = chances[often], counts[often]
        if rare >= 10:
            expected, found = np.append(expected, rare), np.append(found, drawn.size - found.sum())
        return _statistic(found, expected)


def _statistic(counts: Array, expected: Array) -> tuple[float, int]:
    return float(((counts - expected) ** 2 / expected).sum()), counts.size - 1


def poisson(k: int, mean: float = 40.0) -> float:
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))


def failures(k: int, successes: float = 3.0, p: float = 0.4) -> float:
    """The chance of k failures before so many successes."""
    choose = math.lgamma(k + successes) - math.lgamma(k + 1) - math.lgamma(successes)
    return math.exp(choose + successes * math.log(p) + k * math.log1p(-p))


def generalized(k: int, mean: float = 5.0, alpha: float = 0.5) -> float:
    return failures(k, 1 / alpha, 1 / (1 + alpha * mean))


UNIFORM = Known(cdf=lambda x: (x + 1) / 4)  # from -1 to 3
NORMAL = Known(cdf=lambda x: NORMAL_CDF((x - 2) / 3))
EXPONENTIAL = Known(cdf=lambda x: -np.expm1(-x / 2))
GAMMA = Known(cdf=lambda x: 1 - np.exp(-x / 2) * (1 + x / 2 + (x / 2) ** 2 / 2))  # alpha 3, beta 2
POISSON, NEGATIVE, GENERALIZED = Known(pmf=poisson), Known(pmf=failures), Known(pmf=generalized)
CHANCES = (0.1, 0.2, 0.3, 0.4)
MULTINOMIAL = Known(pmf=lambda k: CHANCES[k])


def full(*values: float) -> list[nd.NDArray]:
    """An array of one element for each parameter."""
    return [nd.full((1,), value) for value in values]


def like() -> nd.NDArray:
    return nd.zeros((SIZE,))


SHAPE = {"shape": (SIZE,)}
# How SIZE numbers are drawn, and what their distribution is.
DRAWS: dict[str, tuple[Callable[[], nd.NDArray], Known]] = {
    "uniform": (lambda: random.uniform(-1, 3, **SHAPE), UNIFORM),
    "sample_uniform": (lambda: random.sample_uniform(*full(-1, 3), **SHAPE), UNIFORM),
    "uniform_like": (lambda: random.uniform_like(like(), -1, 3), UNIFORM),
    "normal": (lambda: random.normal(2, 3, **SHAPE), NORMAL),
    "randn": (lambda: random.randn(SIZE, loc=2, scale=3), NORMAL),
    "sample_normal": (lambda: random.sample_normal(*full(2, 3), **SHAPE), NORMAL),
    "normal_like": (lambda: random.normal_like(like(), 2, 3), NORMAL),
    "exponential": (lambda: random.exponential(2, **SHAPE), EXPONENTIAL),
    "random_exponential": (lambda: random.random_exponential(0.5, **SHAPE), EXPONENTIAL),
    "sample_exponential": (lambda: random.sample_exponential(*full(0.5), **SHAPE), EXPONENTIAL),
    "exponential_like": (lambda: random.exponential_like(like(), 0.5), EXPONENTIAL),
    "gamma": (lambda: random.gamma(3, 2, **SHAPE), GAMMA),
    "sample_gamma": (lambda: random.sample_gamma(*full(3, 2), **SHAPE), GAMMA),
    "gamma_like": (lambda: random.gamma_like(like(), 3, 2), GAMMA),
    "poisson": (lambda: random.poisson(40, **SHAPE), POISSON),
    "sample_poisson": (lambda: random.sample_poisson(*full(40), **SHAPE), POISSON),
    "poisson_like": (lambda: random.poisson_like(like(), 40), POISSON),
    "negative_binomial": (lambda: random.negative_binomial(3, 0.4, **SHAPE), NEGATIVE),
    "sample_negative_binomial": (lambda: random.sample_negative_binomial(*full(3, 0.4), **SHAPE), NEGATIVE),
    "negative_binomial_like": (lambda: random.negative_binomial_like(like(), 3, 0.4), NEGATIVE),
    "generalized_negative_binomial": (lambda: random.generalized_negative_binomial(5, 0.5, **SHAPE), GENERALIZED),
    "sample_generalized_negative_binomial": (
        lambda: random.sample_generalized_negative_binomial(*full(5, 0.5), **SHAPE),
        GENERALIZED,
    ),
    "generalized_negative_binomial_like": (
        lambda: random.generalized_negative_binomial_like(like(), 5, 0.5),
        GENERALIZED,
    ),
    "randint": (lambda: random.randint(-2, 5, **SHAPE), Known(pmf=lambda k: 1 / 7)),
    "bernoulli": (lambda: random.bernoulli(0.3, **SHAPE), Known(pmf=lambda k: 0.3 if k else 0.7)),
    "multinomial": (lambda: random.multinomial(nd.array(CHANCES), shape=SIZE), MULTINOMIAL),
    "shuffle": (lambda: random.shuffle(nd.arange(SIZE)), Known(cdf=lambda x: x / SIZE)),
}
# Draws that are not numbers one by one, or the same by another name.
STATES = {"seed", "take", "take_all", "checkpoint", "undone_on_error", "next_state", "get_state", "set_state", "source"}
STATES |= {"take_all_in_turn", "all_states", "set_all_states", "join_ranks"}


def test_the_table_has_every_distribution() -> None:
    here = {name for name, f in vars(random).items() if inspect.isfunction(f) and f.__module__ == random.__name__}
    assert {name for name in here if not name.startswith("_")} - STATES == set(DRAWS)


def check(draws: list[Array], known: Known) -> None:
    draws = [drawn.reshape(-1) for drawn in draws]
    for drawn in draws:
        statistic, freedom = known.chi_squared(drawn.astype(np.float64))
        assert abs(statistic - freedom) < 6 * math.sqrt(2 * max(freedom, 8)), (statistic, freedom)
    centred = [drawn.astype(np.float64) - drawn.mean() for drawn in draws]
    for a, b in pairwise(centred):
        for shift in range(-8, 9):
            first, second = a[max(0, -shift) :], b[max(0, shift) :]
            count = min(first.size, second.size)
            found = float(first[:count] @ second[:count]) / count / a.std() / b.std()
            assert abs(found) < 5 / math.sqrt(count), (shift, found)


@pytest.mark.parametrize("name", DRAWS)
def test_a_distribution(name: str) -> None:
    """Chi-squared against the exact one, and the correlation of consecutive draws at shifts -8 to 8."""
    draw, known = DRAWS[name]
    random.seed(20)
    if name == "shuffle":  # a permutation is exactly even; a part of it is not
        check([draw().asnumpy()[: SIZE // 4] for _ in range(3)], known)
    else:
        check([draw().asnumpy() for _ in range(3)], known)


class Drawing(gluon.HybridBlock):
    """Three draws of each distribution that a graph can hold."""

    NAMES = ("uniform", "normal", "exponential", "randint", "bernoulli", "multinomial")

    def forward(self, x: nd.NDArray) -> list[nd.NDArray]:
        return [DRAWS[name][0]() for name in self.NAMES for _ in range(3)]


def test_compiled_draws() -> None:
    """The same numbers as eager, so independent within a call, and from one call to the next."""
    net = Drawing()
    random.seed(21)
    eager = [a.asnumpy() for a in net(nd.zeros((1,)))]
    net.hybridize()
    random.seed(21)
    first, second = ([a.asnumpy() for a in net(nd.zeros((1,)))] for _ in range(2))
    for i, name in enumerate(net.NAMES):
        for a, b in zip(first[3 * i : 3 * i + 3], eager[3 * i : 3 * i + 3], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        check([*first[3 * i : 3 * i + 3], second[3 * i]], DRAWS[name][1])


def test_a_wide_range_of_integers_is_even() -> None:
    """32 random bits, taken modulo 3 * 2**30, would name the first third twice as often."""
    random.seed(22)
    drawn = random.randint(-(1 << 31), 1 << 30, shape=(SIZE,)).asnumpy().astype(np.float64)
    assert drawn.min() < -2.1e9 and drawn.max() > 1.07e9
    check([drawn], Known(cdf=lambda x: (x + (1 << 31)) / (3 << 30)))


def test_seeds_and_devices_are_apart() -> None:
    def drawn(seed: int, ctx: Any = None) -> Array:
        random.seed(seed)
        return random.poisson(40, shape=(SIZE,), ctx=ctx).asnumpy()

    check([drawn(1), drawn(2), drawn(3), drawn(3, cpu(1))], POISSON)


def test_a_binomial_of_no_spread_is_poissons() -> None:
    random.seed(23)
    check([random.generalized_negative_binomial(40, 0, **SHAPE).asnumpy()], POISSON)


ARRAYS = {  # distributions whose parameters may be arrays, and how many they are
    "uniform": 2, "normal": 2, "exponential": 1, "gamma": 2, "poisson": 1, "negative_binomial": 2,
    "generalized_negative_binomial": 2, "bernoulli": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("given", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_parameters_of_another_type(name: str, given: str) -> None:
    """The type of the result is the one asked for, float32 without, whatever that of the parameters is."""
    draw = getattr(random, name)
    arrays = [nd.ones((2,), dtype=given)] * ARRAYS[name]
    for wanted in ("float16", "bfloat16", "float32", "float64"):
        made = draw(*arrays, shape=3, dtype=wanted)
        assert made.shape == (2, 3) and nd.zeros((1,), dtype=wanted).dtype is made.dtype
    assert draw(*arrays).dtype is np.float32


def test_parameters_keep_their_digits() -> None:
    """Float64 parameters of a float64 draw are not rounded to float32."""
    base = 1 + 2.0**-40
    drawn = random.normal(nd.array([base], dtype="float64"), nd.array([0.0]), dtype="float64")
    assert drawn.asnumpy()[0] == base
