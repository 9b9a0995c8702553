"""Batches split over contexts, and gradients clipped by their norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import cpu, nd
from gluongraph.gluon.utils import clip_global_norm, split_and_load, split_data

TWO = [cpu(0), cpu(1)]


@pytest.mark.parametrize(
    "size,parts,sizes", [(6, 3, [2, 2, 2]), (7, 3, [3, 2, 2]), (8, 3, [3, 3, 2]), (3, 3, [1, 1, 1])]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_split(size: int, parts: int, sizes: list[int], axis: int) -> None:
    """Uneven parts as MXNet 1.9.1 has them: the first ones are one larger."""
    data = nd.arange(size * 2).reshape((size, 2))
    found = split_data(data if axis == 0 else data.T, parts, batch_axis=axis, even_split=size % parts == 0)
    assert [part.shape[axis] for part in found] == sizes
    np.testing.assert_array_equal(
        np.concatenate([f.asnumpy() if axis == 0 else f.asnumpy().T for f in found]), data.asnumpy()
    )


def test_load() -> None:
    parts = split_and_load(np.arange(4), TWO)
    assert [p.context for p in parts] == TWO and [p.asnumpy().tolist() for p in parts] == [[0, 1], [2, 3]]
    (whole,) = split_and_load(nd.ones((3,)), [cpu(1)])
    assert whole.context == cpu(1) and whole.shape == (3,)


@pytest.mark.parametrize(
    "size,even,message", [(7, True, "do not divide into 2 equal"), (1, False, "cannot be split into 2")]
)
def test_what_cannot_be_split(size: int, even: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_and_load(nd.ones((size, 2)), TWO, even_split=even)


@pytest.mark.parametrize("finite", [True, False])
def test_clip(finite: bool) -> None:
    arrays = [nd.array([[3.0, 4.0]]), nd.array([12.0], ctx=cpu(1))]
    norm = clip_global_norm(arrays, 6.5, check_isfinite=finite)
    assert float(norm) == pytest.approx(13) and (isinstance(norm, float) if finite else norm.shape == (1,))
    assert arrays[1].context == cpu(1)
    np.testing.assert_allclose(arrays[0].asnumpy(), [[1.5, 2.0]], rtol=1e-6)
    np.testing.assert_allclose(arrays[1].asnumpy(), [6.0], rtol=1e-6)
    assert float(clip_global_norm(arrays, 100.0)) == pytest.approx(6.5)  # and all stays


def test_clip_of_what_is_not_finite() -> None:
    arrays = [nd.array([1.0, np.inf])]
    with pytest.warns(UserWarning, match="norm of the gradients is inf"):
        clip_global_norm(arrays, 1.0)
    with pytest.raises(AssertionError, match="at least one"):
        clip_global_norm([], 1.0)


def test_a_gradient_of_several_axes_counts_every_element() -> None:
    arrays: list[Any] = [nd.ones((2, 3, 4)), nd.ones((1,))]
    assert clip_global_norm(arrays, 1.0) == pytest.approx(5)
