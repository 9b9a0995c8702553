"""mx.test_utils: comparisons, statistics of generators, gradients, and what tests do to their process."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon, nd, optimizer, test_utils
from gluongraph.storage import Array


def test_comparisons_broadcast_and_take_tolerances_by_type() -> None:
    a = np.array([1.0, 1.0], np.float32)
    test_utils.assert_almost_equal(nd.ones((2, 2)), a)
    with pytest.raises(AssertionError, match=r"shapes differ: \(2, 2\) and \(2,\)"):
        test_utils.assert_almost_equal(nd.ones((2, 2)), a, use_broadcast=False)
    loose = {np.dtype(np.float32): 0.1}
    test_utils.assert_almost_equal(a, a + 0.05, rtol=loose, atol=0)
    with pytest.raises(AssertionError, match="a and b differ"):
        test_utils.assert_almost_equal(a, a + 0.2, rtol=loose, atol=0)
    with pytest.raises(AssertionError):
        test_utils.assert_allclose(a, a + 1e-4)
    big = np.array([2**53 + 1], np.int64)
    assert not test_utils.almost_equal(big, big - 1) and test_utils.almost_equal(3, 3.0)
    x, y = np.array([1.0, np.nan]), np.array([1.0, 2.0])
    test_utils.assert_almost_equal_ignore_nan(x, y)
    test_utils.assert_almost_equal_with_err(np.zeros(10), np.eye(1, 10)[0], etol=0.2)
    with pytest.raises(AssertionError, match="10 % of the elements"):
        test_utils.assert_almost_equal_with_err(np.zeros(10), np.eye(1, 10)[0], etol=0.05)


def test_memory_that_is_shared() -> None:
    x = nd.ones((4,))
    assert test_utils.same_array(x, x[1:3]) and not test_utils.same_array(x, x.copy())
    assert x.asnumpy().tolist() == [1, 1, 1, 1]


def test_generators() -> None:
    rng = np.random.default_rng(0)
    buckets, probs = test_utils.gen_buckets_probs_with_ppf(lambda p: p, 5)
    p_values = test_utils.verify_generator(lambda n: rng.random(n), buckets, probs, nsamples=10000)
    assert len(p_values) == 5
    with pytest.raises(AssertionError, match="not distributed so"):
        test_utils.verify_generator(lambda n: rng.random(n) ** 1.1, buckets, probs, nsamples=10000)
    dice: Any = [1, 2, 3, 4, 5, 6]
    test_utils.verify_generator(lambda n: rng.integers(1, 7, n), dice, [1 / 6] * 6, nsamples=10000)
    p, observed, expected = test_utils.chi_square_check(lambda n: np.ones(n), dice, [1 / 6] * 6, nsamples=600)
    assert p < 1e-9 and observed.tolist() == [600, 0, 0, 0, 0, 0] and np.allclose(expected, 100)
    assert test_utils.mean_check(lambda n: rng.normal(1, 2, n), 1, 2, 10000)
    assert not test_utils.mean_check(lambda n: rng.normal(1.5, 2, n), 1, 2, 10000)
    assert test_utils.var_check(lambda n: rng.normal(1, 2, n), 2, 10000)
    assert not test_utils.var_check(lambda n: rng.normal(1, 2.2, n), 2, 10000)


def test_gradients_of_blocks_by_name_and_added() -> None:
    dense = gluon.nn.Dense(2, in_units=3, activation="tanh")
    dense.initialize()
    x: Array = np.random.default_rng(0).normal(size=(4, 3))
    test_utils.check_numeric_gradient(dense, [x])
    both = {"x": x, "y": x + 1}
    test_utils.check_numeric_gradient(nd.multiply, both, grad_nodes={"x": "add", "y": "write"}, dtype=np.float64)
    indices = np.array([0, 2, 1, 1])
    test_utils.check_numeric_gradient(nd.pick, [x, indices], dtype=np.float64)  # which have none


def test_the_process() -> None:
    os.environ.pop("GG_TEST_A", None)
    with test_utils.environment({"GG_TEST_A": "1", "HOME": None}):
        assert os.environ["GG_TEST_A"] == "1" and "HOME" not in os.environ
    assert "GG_TEST_A" not in os.environ and "HOME" in os.environ
    with pytest.raises(KeyError), test_utils.environment("GG_TEST_A", "2"):
        raise KeyError
    assert "GG_TEST_A" not in os.environ
    test_utils.assert_exception(int, ValueError, "x")
    with pytest.raises(AssertionError, match="int did not raise"):
        test_utils.assert_exception(int, ValueError, "1")


def test_standard_error_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with test_utils.discard_stderr():
        os.write(2, b"from a library")
        print("from Python", file=sys.stderr)
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == "after\n"


def test_attempts() -> None:
    calls = []

    @test_utils.retry(3)
    def flaky(good: int) -> int:
        calls.append(1)
        assert len(calls) == good
        return good

    assert flaky(3) == 3
    calls.clear()
    with pytest.raises(AssertionError):
        flaky(4)
    assert len(calls) == 3


def test_arrays() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for axis in (None, 1, (0, 2)):
        assert np.array_equal(test_utils.np_reduce(x, axis, True, np.sum), x.sum(axis=axis, keepdims=True))
        assert np.array_equal(test_utils.np_reduce(x, axis, False, np.sum), x.sum(axis=axis))
    assert test_utils.collapse_sum_like(x, (3, 1)).tolist() == x.sum((0, 2)).reshape(3, 1).tolist()
    assert sorted(test_utils.random_sample([1, 2, 3], 3)) == [1, 2, 3]
    (u,) = test_utils.random_uniform_arrays((50,), low=2, high=3)
    assert u.dtype == np.float32 and (u >= 2).all() and (u < 3).all()
    assert test_utils.create_2d_tensor(2, 3).asnumpy().tolist() == [[0, 0, 0], [1, 1, 1]]
    matrix = test_utils.new_sym_matrix_with_real_eigvals_nd((2, 3, 3))
    assert np.allclose(matrix, matrix.swapaxes(1, 2))
    assert np.abs(np.linalg.eigvals(test_utils.new_matrix_with_real_eigvals_nd((4, 4))).imag).max() < 1e-6


def test_optimizers_against_one_another() -> None:
    test_utils.compare_optimizer(optimizer.SGD(momentum=0.9), optimizer.SGD(momentum=0.9), (3, 4), "float32")
    with pytest.raises(AssertionError):
        test_utils.compare_optimizer(
            optimizer.SGD(momentum=0.9), optimizer.NAG(momentum=0.9), (3, 4), "float32", compare_states=False
        )
