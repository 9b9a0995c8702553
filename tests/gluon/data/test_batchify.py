"""Batches out of lists of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.errors import ShapeError
from gluongraph.gluon.data import DataLoader, SimpleDataset, batchify, default_batchify_fn

A, B = np.array([[1, 2], [3, 4]], np.int32), np.array([[5, 6], [7, 8]], np.int32)


@pytest.mark.parametrize("stack", [default_batchify_fn, batchify.Stack()])
def test_stack(stack: Any) -> None:
    for samples in ([A, B], [nd.array(A, dtype=A.dtype), nd.array(B, dtype=A.dtype)]):
        made = stack(samples)
        assert made.shape == (2, 2, 2) and made.dtype == np.int32 and made.tolist() == [A.tolist(), B.tolist()]
    both = stack([(A, 1.5), (B, 2.5)])
    assert both[0].dtype == np.int32 and both[1].tolist() == [1.5, 2.5] and both[1].dtype == np.float64


def test_lists_are_arrays_by_default_and_columns_for_stack() -> None:
    """As in MXNet 1.9.1, where `default_batchify_fn` opens tuples only, and in MXNet 2, whose Stack opens both."""
    assert default_batchify_fn([[1, 2, 3], [4, 5, 6]]).shape == (2, 3)
    assert [column.tolist() for column in batchify.Stack()([[1, 2, 3], [4, 5, 6]])] == [[1, 4], [2, 5], [3, 6]]


def test_samples_of_different_shapes() -> None:
    for samples in ([[1, 2], [3]], [nd.ones((2,)), nd.ones((3,))]):
        with pytest.raises(ShapeError, match=r"cannot be stacked; batchify\.Pad"):
            default_batchify_fn(samples)


def test_pad() -> None:
    made = batchify.Pad(val=-1)([[1, 2, 3], [4]])
    assert made.tolist() == [[1, 2, 3], [4, -1, -1]] and made.dtype == np.int64
    made = batchify.Pad(dtype="float16", round_to=4)([A, A[:1]])
    assert made.shape == (2, 4, 4) and made.dtype == np.float16
    assert made[1].tolist() == [[1, 2, 0, 0], [0] * 4, [0] * 4, [0] * 4]
    assert batchify.Pad()([nd.array([1.0]), nd.array([1.0, 2.0])]).tolist() == [[1, 0], [1, 2]]
    with pytest.raises(TypeError, match="Group"):
        batchify.Pad()([([1], 2)])
    with pytest.raises(ShapeError, match=r"samples have \[1, 2\] axes"):
        batchify.Pad()([[1], [[1]]])


def test_append() -> None:
    made = batchify.Append()([[1, 2, 3], nd.array([4])])
    assert [x.shape for x in made] == [(1, 3), (1, 1)]
    assert [x.shape for x in batchify.Append(expand=False)([[1, 2, 3], [4]])] == [(3,), (1,)]
    assert batchify.Append(batch_axis=1)([[1, 2]])[0].shape == (2, 1)


def test_group() -> None:
    data = SimpleDataset([([1, 2], 0, "a"), ([3], 1, "b")])
    how = batchify.Group(batchify.Pad(), batchify.Stack(), batchify.AsList())
    ((words, labels, texts),) = DataLoader(data, batch_size=2, batchify_fn=how)
    assert words.tolist() == [[1, 2], [3, 0]] and labels.tolist() == [0, 1] and texts == ["a", "b"]
    assert batchify.Tuple is batchify.Group and batchify.List is batchify.AsList
    assert len(batchify.Group([batchify.Stack()])([(1,), (2,)])) == 1
    with pytest.raises(AssertionError, match="3 functions, and samples have 2 elements"):
        how([(1, 2)])
    with pytest.raises(AssertionError, match="one by one, or as one list"):
        batchify.Group([batchify.Stack()], batchify.Stack())
    with pytest.raises(AssertionError, match="function 1 is a int"):
        batchify.Group(batchify.Stack(), 1)
