"""Statistical tests of random numbers: moments, and Pearson's chi-squared test over buckets (needs scipy)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph.host.interrupts import import_whole
from gluongraph.storage import Array

Generator = Callable[[int], Any]  # gives that many independent draws


def gen_buckets_probs_with_ppf(
    ppf: Callable[[float], float], nbuckets: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """Intervals of equal probability, and their probabilities, from a quantile function.

    >>> gen_buckets_probs_with_ppf(lambda p: 2 * p, 2)
    ([(0.0, 1.0), (1.0, 2.0)], [0.5, 0.5])
    """
    edges = [ppf(i / nbuckets) for i in range(nbuckets + 1)]
    return list(itertools.pairwise(edges)), [1.0 / nbuckets] * nbuckets


def mean_check(generator: Generator, mu: float, sigma: float, nsamples: int = 1000000) -> bool:
    """Is the mean of the draws within 3 standard errors, sigma / sqrt(n), of `mu`?"""
    return bool(abs(np.mean(generator(nsamples)) - mu) < 3 * sigma / np.sqrt(nsamples))


def var_check(generator: Generator, sigma: float, nsamples: int = 1000000) -> bool:
    """Is the variance of normal draws within 3 standard errors, sqrt(2 sigma^4 / (n - 1)), of sigma^2?"""
    variance = np.var(np.asarray(generator(nsamples)), ddof=1)
    return bool(abs(variance - sigma**2) < 3 * np.sqrt(2 * sigma**4 / (nsamples - 1)))


def chi_square_check(
    generator: Generator,
    buckets: Sequence[tuple[float, float]] | Sequence[float],
    probs: Sequence[float],
    nsamples: int = 1000000,
) -> tuple[float, Array, Array]:
    """The p value of chi-squared, sum (observed - expected)^2 / expected, the counts observed and those expected.

    `buckets` are intervals in ascending order, or the values of a discrete distribution; they hold all that is drawn.
    """
    stats = import_whole("scipy.stats")
    samples = np.asarray(generator(nsamples)).ravel()
    expected = nsamples * np.asarray(probs, np.float64)
    if isinstance(buckets[0], (tuple, list)):
        edges = np.asarray(buckets, np.float64).ravel()
        found = np.searchsorted(edges, samples, side="right") // 2  # an odd place is between two edges of one bucket
        observed = np.bincount(found, minlength=len(buckets))[: len(buckets)]
    else:
        observed = np.array([np.count_nonzero(samples == value) for value in buckets])
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    return float(stats.chi2.sf(statistic, len(buckets) - 1)), observed, expected


def verify_generator(
    generator: Generator,
    buckets: Sequence[Any],
    probs: Sequence[float],
    nsamples: int = 1000000,
    nrepeat: int = 5,
    success_rate: float = 0.2,
    alpha: float = 0.05,
) -> list[float]:
    """The p values of `nrepeat` chi-squared tests.

    Raises:
        AssertionError: fewer than the share `success_rate` of them are above alpha.
    """
    tests = [chi_square_check(generator, buckets, probs, nsamples) for _ in range(nrepeat)]
    p_values = [p for p, _, _ in tests]
    if sum(p > alpha for p in p_values) < nrepeat * success_rate:
        last = f"last observed {tests[-1][1]}, expected {tests[-1][2]}"
        raise AssertionError(f"the draws are not distributed so: p values {p_values}; {last}, buckets {buckets}")
    return p_values
