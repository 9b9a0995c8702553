"""Splitting batches over devices, and clipping gradients."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph import cpu, gluon, nd

X = np.arange(20, dtype=np.float32).reshape(10, 2)


def test_split() -> None:
    a, b = gluon.utils.split_data(nd.array(X), 2)
    assert a.shape == b.shape == (5, 2) and (b.asnumpy() == X[5:]).all()
    sizes = [p.shape[0] for p in gluon.utils.split_data(nd.array(X), 3, even_split=False)]
    assert sizes == [4, 3, 3]
    with pytest.raises(ValueError, match="do not divide"):
        gluon.utils.split_data(nd.array(X), 3)
    with pytest.raises(ValueError, match="cannot be split"):
        gluon.utils.split_data(nd.array(X), 11)
    parts = gluon.utils.split_and_load(X, [cpu(0), cpu(1)])
    assert [p.context for p in parts] == [cpu(0), cpu(1)]


def test_clip_global_norm() -> None:
    arrays = [nd.array([3.0]), nd.array([0.0, 4.0])]
    assert gluon.utils.clip_global_norm(arrays, 1.0) == pytest.approx(5.0)
    assert [v for a in arrays for v in a.asnumpy().tolist()] == pytest.approx([0.6, 0, 0.8])
    assert gluon.utils.clip_global_norm(arrays, 10.0, check_isfinite=False).asscalar() == pytest.approx(1.0)
    assert arrays[0].asscalar() == pytest.approx(0.6)
    with pytest.warns(UserWarning, match="norm of the gradients is nan"):
        gluon.utils.clip_global_norm([nd.array([float("nan")])], 1.0)
