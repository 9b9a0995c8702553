"""mx.gluon.contrib.nn against numpy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, nd
from gluongraph.gluon import nn
from gluongraph.gluon.contrib import nn as contrib


@pytest.mark.parametrize("kind", [contrib.Concurrent, contrib.HybridConcurrent])
def test_side_by_side(kind: Any) -> None:
    net = kind(axis=1)
    net.add(nn.Dense(3), contrib.Identity(), nn.Activation("relu"))
    net.initialize()
    x = nd.array([[1, -2], [3, 4]])
    y = net(x).asnumpy()
    assert len(net) == 3 and net[0](x).shape == (2, 3)
    np.testing.assert_array_equal(y[:, 3:], [[1, -2, 1, 0], [3, 4, 3, 4]])
    with pytest.warns(UserWarning, match="hybrid") if kind is contrib.Concurrent else nullcontext():
        net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), y, rtol=1e-6)


def test_pixel_shuffle() -> None:
    """Channel (c, i, j) of pixel (h, w) becomes pixel (h f + i, w g + j) of channel c."""
    x = np.arange(2 * 12 * 2 * 3, dtype=np.float32).reshape(2, 12, 2, 3)
    y = contrib.PixelShuffle2D((2, 3))(nd.array(x)).asnumpy()
    assert y.shape == (2, 2, 4, 9)
    for n, c, i, j, h, w in np.ndindex(2, 2, 2, 3, 2, 3):
        assert y[n, c, h * 2 + i, w * 3 + j] == x[n, (c * 2 + i) * 3 + j, h, w]
    line = contrib.PixelShuffle1D(2)(nd.array([[[1, 2], [3, 4]]])).asnumpy()
    np.testing.assert_array_equal(line, [[[1, 3, 2, 4]]])
    volume = contrib.PixelShuffle3D(2)(nd.arange(8).reshape((1, 8, 1, 1, 1))).asnumpy()
    np.testing.assert_array_equal(volume, np.arange(8).reshape(1, 1, 2, 2, 2))
    assert [repr(p) for p in (contrib.PixelShuffle1D(2), contrib.PixelShuffle3D(2))] == [
        "PixelShuffle1D(2)",
        "PixelShuffle3D((2, 2, 2))",
    ]
    with pytest.raises(AssertionError, match="factor is a number or 2 of them"):
        contrib.PixelShuffle2D((1, 2, 3))


def test_sync_batch_norm_is_batch_norm() -> None:
    x = nd.array(np.random.default_rng(0).normal(size=(4, 3, 5)))
    results = []
    for layer in (nn.BatchNorm(in_channels=3), contrib.SyncBatchNorm(in_channels=3, prefix="sync_")):
        layer.initialize()
        with autograd.record():
            results.append(layer(x).asnumpy())
        results.append(layer.running_var.data().asnumpy())
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[3])
    assert repr(layer) == (
        "SyncBatchNorm(eps=1e-05, momentum=0.9, fix_gamma=False, use_global_stats=False, ndev=1, key='sync_', "
        "in_channels=3)"
    )
    with pytest.raises(NotImplementedError, match="leave num_devices unset"):
        contrib.SyncBatchNorm(num_devices=2)


def test_sparse_embedding() -> None:
    layer = contrib.SparseEmbedding(5, 2, weight_initializer="ones")
    layer.initialize()
    with autograd.record():
        loss = layer(nd.array([1, 3])).sum()
    loss.backward()
    assert isinstance(layer.weight.grad(), nd.sparse.RowSparseNDArray)
    assert layer.weight.grad().indices.asnumpy().tolist() == [1, 3]
