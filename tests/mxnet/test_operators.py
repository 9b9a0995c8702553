"""Operators of MXNet that few networks use: against formulas in numpy, and gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.errors import DTypeError, MXNetError, ShapeError
from gluongraph.nd import _internal
from gluongraph.test_utils import check_numeric_gradient

RNG = np.random.default_rng(5)


def test_hawkes_likelihood() -> None:
    """Against the sum over all earlier events, as the intensity is written down."""
    lda, alpha, beta = np.array([[0.5, 1.0], [0.3, 0.7]]), np.array([0.2, 0.4]), np.array([1.0, 2.0])
    lags, marks = RNG.uniform(0.1, 1.0, (2, 5)), np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    length, end = np.array([5, 3]), np.array([6.0, 5.0])
    expected, states = np.zeros(2), np.zeros((2, 2))
    for n in range(2):
        times = np.cumsum(lags[n])[: length[n]]
        for k in range(2):
            own = times[marks[n, : length[n]] == k]
            for t in own:
                past = own[own < t]
                expected[n] += np.log(lda[n, k] + alpha[k] * beta[k] * np.exp(-beta[k] * (t - past)).sum())
            expected[n] -= lda[n, k] * end[n] + alpha[k] * (1 - np.exp(-beta[k] * (end[n] - own))).sum()
            states[n, k] = np.exp(-beta[k] * (end[n] - own)).sum()
    rest = (nd.zeros((2, 2)), nd.array(lags), nd.array(marks, dtype="int32"), nd.array(length), nd.array(end))
    found, memory = nd.contrib.hawkesll(nd.array(lda), nd.array(alpha), nd.array(beta), *rest)
    assert np.allclose(found.asnumpy(), expected, 1e-5) and np.allclose(memory.asnumpy(), states, 1e-5)
    wide = [x if i == 2 else x.astype("float64") for i, x in enumerate(rest)]
    check_numeric_gradient(lambda a, b, c: nd.contrib.hawkesll(a, b, c, *wide), [lda, alpha, beta], dtype=np.float64)


def test_boxes_there_and_back() -> None:
    anchors = np.array([[[0.1, 0.2, 0.5, 0.6], [0.3, 0.3, 0.9, 0.8]]])
    boxes = np.array([[[0.2, 0.2, 0.7, 0.9], [0.0, 0.1, 0.3, 0.5]]])
    matches, samples = nd.array([[1, 0]]), nd.array([[1, 1]])
    means, stds = nd.zeros(4), nd.array([0.1, 0.1, 0.2, 0.2])
    found, mask = nd.contrib.box_encode(samples, matches, nd.array(anchors), nd.array(boxes), means, stds)
    back = nd.contrib.box_decode(found, nd.array(anchors), 0.1, 0.1, 0.2, 0.2, format="corner")
    assert np.allclose(back.asnumpy(), boxes[:, ::-1], atol=1e-6) and mask.asnumpy().all()
    found, mask = nd.contrib.box_encode(nd.array([[1, 0]]), matches, nd.array(anchors), nd.array(boxes), means, stds)
    assert mask.asnumpy()[0, :, 0].tolist() == [1, 0] and not found.asnumpy()[0, 1].any()
    clipped = nd.contrib.box_decode(nd.ones((1, 1, 4)) * 9, nd.ones((1, 1, 4)), clip=1.0)
    assert np.allclose(clipped.asnumpy()[0, 0, 2] - clipped.asnumpy()[0, 0, 0], np.e)
    with pytest.raises(MXNetError, match="'center' or 'corner'"):
        nd.contrib.box_decode(found, nd.array(anchors), format="middle")


def test_pairs() -> None:
    scores = nd.array([[[0.5, 0.6], [0.1, 0.2], [0.3, 0.4]]])
    rows, columns = nd.contrib.bipartite_matching(scores, threshold=1e-12)
    assert rows.asnumpy().tolist() == [[1, -1, 0]] and columns.asnumpy().tolist() == [[2, 0]]
    rows, _ = nd.contrib.bipartite_matching(scores, threshold=100, is_ascend=True)
    assert rows.asnumpy().tolist() == [[-1, 0, 1]]
    rows, _ = nd.contrib.bipartite_matching(scores, threshold=0.0, topk=1)
    assert rows.asnumpy().tolist() == [[1, -1, -1]]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_numbers_of_8_bits(kind: str) -> None:
    x = np.linspace(-0.5, 1.0, 7, dtype=np.float32)
    low, high = nd.array([-0.5]), nd.array([1.0])
    q, *span = nd.contrib.quantize(nd.array(x), low, high, out_type=kind)
    assert q.dtype == np.dtype(kind).type
    if kind == "int8":
        assert q.asnumpy().tolist() == (np.sign(x) * np.floor(np.abs(x) * 127 + 0.5)).tolist()
        assert [s.asscalar() for s in span] == [-1.0, 1.0]
    back = nd.contrib.dequantize(q, *span).asnumpy()
    assert np.abs(back - x).max() <= (1 / 127 if kind == "int8" else 1.5 / 255)
    with pytest.raises(DTypeError, match="int8 or uint8"):
        nd.contrib.quantize(nd.array(x), low, high, out_type="int32")


@pytest.mark.parametrize(
    ("kernel", "most", "stride1", "stride2", "pad", "product"),
    [(1, 1, 1, 1, 0, True), (3, 2, 2, 1, 3, True), (3, 2, 1, 2, 2, False)],
)
def test_correlation(kernel: int, most: int, stride1: int, stride2: int, pad: int, product: bool) -> None:
    a, b = RNG.normal(size=(2, 1, 3, 8, 7))
    pads = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    pa, pb = np.pad(a, pads), np.pad(b, pads)
    reach, border = most // stride2, most + kernel // 2
    rows, columns = (-(-(n + 2 * pad - 2 * border) // stride1) for n in (8, 7))
    expected = np.zeros((1, (2 * reach + 1) ** 2, rows, columns))
    for d, (dy, dx) in enumerate(np.ndindex(2 * reach + 1, 2 * reach + 1)):
        for i, j in np.ndindex(rows, columns):
            y, x = i * stride1 + most, j * stride1 + most
            v, u = y + (dy - reach) * stride2, x + (dx - reach) * stride2
            one, other = pa[0, :, y : y + kernel, x : x + kernel], pb[0, :, v : v + kernel, u : u + kernel]
            expected[0, d, i, j] = (one * other if product else np.abs(one - other)).mean()
    how: Any = {"kernel_size": kernel, "max_displacement": most, "stride1": stride1, "stride2": stride2}
    how |= {"pad_size": pad, "is_multiply": product}
    found = nd.Correlation(nd.array(a), nd.array(b), **how).asnumpy()
    assert found.shape == expected.shape and np.allclose(found, expected, atol=1e-5)


def test_what_correlation_refuses() -> None:
    x = nd.ones((1, 1, 5, 5))
    with pytest.raises(MXNetError, match="kernel_size is odd, not 2"):
        nd.Correlation(x, x, kernel_size=2)
    with pytest.raises(MXNetError, match="no patch of 7 pixels"):
        nd.Correlation(x, x, kernel_size=7)
    with pytest.raises(ShapeError, match="two images"):
        nd.Correlation(x, nd.ones((1, 1, 5, 6)))


def _deformed(data: Any, offset: Any, mask: Any, weight: Any, stride: int, pad: int, groups: int) -> Any:
    """By loops over everything; without a mask what lies outside is 0, with one there are zeros around the image."""
    batch, channels, height, width = data.shape
    filters, _, kh, kw = weight.shape
    out = np.zeros((batch, filters, *offset.shape[2:]))

    def pixel(n: int, c: int, y: int, x: int) -> float:
        return float(data[n, c, y, x]) if 0 <= y < height and 0 <= x < width else 0.0

    for n, f, i, j, c, a, b in np.ndindex(*out.shape, channels, kh, kw):
        g, e = c * groups // channels, a * kw + b
        at = 2 * (g * kh * kw + e)
        y, x = i * stride - pad + a + offset[n, at, i, j], j * stride - pad + b + offset[n, at + 1, i, j]
        top, left = int(np.floor(y)), int(np.floor(x))
        if mask is None and not (0 <= y < height and 0 <= x < width):
            continue
        limit = (lambda v, most: v) if mask is not None else (lambda v, most: min(v, most - 1))
        rows, columns = (top, limit(top + 1, height)), (left, limit(left + 1, width))
        value = 0.0
        for row, share_y in zip(rows, (1 - (y - top), y - top), strict=True):
            for column, share_x in zip(columns, (1 - (x - left), x - left), strict=True):
                value += share_y * share_x * pixel(n, c, row, column)
        out[n, f, i, j] += weight[f, c, a, b] * value * (1 if mask is None else mask[n, g * kh * kw + e, i, j])
    return out


@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolution(masked: bool) -> None:
    data, weight = RNG.normal(size=(2, 4, 5, 6)), RNG.normal(size=(3, 4, 3, 2))
    how: Any = {"kernel": (3, 2), "stride": (2, 2), "pad": (1, 1), "num_filter": 3, "num_deformable_group": 2}
    offset, mask = RNG.normal(scale=1.5, size=(2, 24, 3, 4)), RNG.uniform(size=(2, 12, 3, 4))
    args = [data, offset, *([mask] if masked else []), weight]
    fn = nd.contrib.ModulatedDeformableConvolution if masked else nd.contrib.DeformableConvolution
    found = fn(*(nd.array(x, dtype="float64") for x in args), no_bias=True, **how).asnumpy()
    assert np.allclose(found, _deformed(data, offset, mask if masked else None, weight, 2, 1, 2))
    small = [
        data[:1, :2, :3, :3],
        RNG.uniform(0.1, 0.4, (1, 4, 2, 3)),
        RNG.uniform(size=(1, 2, 2, 3)),
        weight[:2, :2, :2, :1],
    ]
    how = {"kernel": (2, 1), "num_filter": 2, "no_bias": True}
    chosen = small if masked else [small[0], small[1], small[3]]
    check_numeric_gradient(lambda *x: fn(*x, **how), chosen, dtype=np.float64, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="take offsets"):
        nd.contrib.DeformableConvolution(nd.ones((1, 2, 3, 3)), nd.ones((1, 3, 2, 2)), nd.ones((1, 2, 1, 1)))


@pytest.mark.parametrize("masked", [False, True])
def test_deformable_layers(masked: bool) -> None:
    """With offsets of 0 they are convolutions; compiled they give the same as eager."""
    from gluongraph.gluon.contrib import cnn

    layer = (cnn.ModulatedDeformableConvolution if masked else cnn.DeformableConvolution)(4, 3, 1, 1)
    layer.initialize()
    x = nd.array(RNG.normal(size=(2, 3, 6, 6)))
    plain = gluon.nn.Conv2D(4, 3, padding=1, in_channels=3)
    plain.initialize()
    made = layer(x)
    plain.weight.set_data(layer.deformable_conv_weight.data())
    assert np.allclose(made.asnumpy(), plain(x).asnumpy(), atol=1e-5)
    layer.offset_weight.set_data(nd.array(RNG.normal(scale=0.1, size=layer.offset_weight.shape)))
    eager = layer(x).asnumpy()
    layer.hybridize()
    with mx.autograd.record():
        compiled = layer(x)
    compiled.backward()
    assert np.allclose(compiled.asnumpy(), eager, atol=1e-5) and layer.offset_weight.grad().asnumpy().any()


def test_parts_written_and_gathered() -> None:
    x = nd.ones((2, 3))
    made = _internal._crop_assign(x, nd.zeros((1, 2)), begin=(1, 0), end=(2, 2))
    assert made.asnumpy().tolist() == [[1, 1, 1], [0, 0, 1]]
    _internal._crop_assign_scalar(x, scalar=5, begin=(0, 2), end=(2, 3), out=x)
    assert x.asnumpy().tolist() == [[1, 1, 5], [1, 1, 5]]
    found = _internal._backward_gather_nd(nd.array([2, 3]), nd.array([[1, 1]]), shape=(3,))
    assert found.asnumpy().tolist() == [0, 5, 0]


def test_classes_that_are_all_different() -> None:
    classes, tries = _internal._sample_unique_zipfian(1000, shape=(2, 100))
    for row, count in zip(classes.asnumpy(), tries.asnumpy(), strict=True):
        assert len(set(row.tolist())) == 100 and (row >= 0).all() and (row < 1000).all() and count >= 100
        assert np.median(row) < 250  # small ones are likely


@pytest.mark.parametrize("name", ["sgd_update", "sgd_mom_update", "mp_sgd_update", "mp_sgd_mom_update"])
def test_several_weights_in_one_call(name: str) -> None:
    def arrays() -> list[list[Any]]:
        kind = "float16" if name.startswith("mp") else "float32"
        rng = np.random.default_rng(0)
        per = []
        for shape in ((2, 3), (4,)):
            w, g = (nd.array(rng.normal(size=shape), dtype=kind) for _ in range(2))
            momentum = [nd.array(rng.normal(size=shape))] * ("mom" in name)
            per.append([w, g, *momentum, *([w.astype("float32")] if name.startswith("mp") else [])])
        return per

    each, together, loaded = arrays(), arrays(), arrays()
    rates, decays = [0.1, 0.2], [0.0, 0.01]
    momentum: Any = {"momentum": 0.9} if "mom" in name else {}
    for part, lr, wd in zip(each, rates, decays, strict=True):
        getattr(nd, name)(*part, lr=lr, wd=wd, out=part[0], **momentum)
    multi, preloaded = getattr(nd, f"multi_{name}"), getattr(nd, f"preloaded_multi_{name}")
    multi(*together[0], *together[1], lrs=rates, wds=decays, out=[p[0] for p in together], num_weights=2, **momentum)
    last = nd.array(rates), nd.array(decays)
    preloaded(*loaded[0], *loaded[1], *last, out=[p[0] for p in loaded], num_weights=2, **momentum)
    for one, two, three in zip(each, together, loaded, strict=True):
        for a, b, c in zip(one, two, three, strict=True):
            assert np.array_equal(a.asnumpy(), b.asnumpy()) and np.allclose(a.asnumpy(), c.asnumpy(), 1e-3)
    with pytest.raises(MXNetError, match="arrays belong to a weight"):
        multi(*each[0], lrs=rates, wds=decays)


def test_several_weights_of_adamw_and_lamb() -> None:
    def arrays() -> list[Any]:
        rng = np.random.default_rng(0)
        return [[nd.array(rng.uniform(0.1, 1, shape)) for shape in ((2, 3), (4,))] for _ in range(4)]

    one, two = arrays(), arrays()
    how: Any = {"lrs": [0.1, 0.2], "wds": [0.0, 0.01], "etas": [1.0, 0.5]}
    nd.contrib.multi_adamw_update(*one, 0.5, out=one[0], **how)
    for i, (w, g, m, v) in enumerate(zip(*two, strict=True)):
        scalars = {k[:-1]: x[i] for k, x in how.items()}
        nd.contrib.adamw_update(w, g, m, v, 0.5, out=w, **scalars)
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(one[0] + one[2], two[0] + two[2], strict=True))
    half = [w.astype("float16") for w in one[0]]
    nd.contrib.multi_mp_adamw_update(half, one[1], one[2], one[3], one[0], 0.5, out=half, **how)
    assert all(np.array_equal(h.asnumpy(), w.astype("float16").asnumpy()) for h, w in zip(half, one[0], strict=True))
    how = {"lrs": [0.1, 0.2], "wds": [0.0, 0.01], "step_count": [1, 3]}
    first, again = arrays(), arrays()
    nd.contrib.multi_lamb_update(*first, out=first[0], **how)
    for i, (w, g, m, v) in enumerate(zip(*again, strict=True)):
        direction = nd.lamb_update_phase1(w, g, m, v, t=how["step_count"][i], wd=how["wds"][i])
        nd.lamb_update_phase2(w, direction, w.norm(), direction.norm(), lr=how["lrs"][i], out=w)
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(first[0], again[0], strict=True))


def test_a_recurrent_layer_and_its_cells() -> None:
    for kind in (gluon.rnn.LSTM, gluon.rnn.GRU, gluon.rnn.RNN):
        layer = kind(3, num_layers=2, bidirectional=True, input_size=4)
        cells = layer._unfuse()
        layer.initialize()
        x = nd.array(RNG.normal(size=(5, 2, 4)))
        made, _ = cells.unroll(5, x, layout="TNC", merge_outputs=True)
        assert np.allclose(layer(x).asnumpy(), made.asnumpy(), atol=1e-5)
        assert set(cells.collect_params().keys()) == set(layer.collect_params().keys())
    with pytest.raises(NotImplementedError, match="projects its states"):
        gluon.rnn.LSTM(3, projection_size=2)._unfuse()


def test_a_hybridized_block_whose_shapes_depend_on_values() -> None:
    class Masked(gluon.HybridBlock):
        def forward(self, x: Any, mask: Any) -> Any:
            return nd.contrib.boolean_mask(2 * x, mask)

    net = Masked()
    net.hybridize()
    x, mask = nd.array([[1, 2], [3, 4], [5, 6]]), nd.array([0, 1, 1])
    x.attach_grad()
    said = "not compiled, it runs in eager mode: the result of boolean_mask"
    with pytest.warns(UserWarning, match=said), mx.autograd.record():
        y = net(x, mask)
    y.backward()
    assert y.asnumpy().tolist() == [[6, 8], [10, 12]] and x.grad.asnumpy().tolist() == [[0, 0], [2, 2], [2, 2]]
    with pytest.raises(MXNetError, match="nothing is left"):
        nd.contrib.boolean_mask(x, nd.zeros((3,)))
    with mx.np_shape():
        assert nd.contrib.boolean_mask(x, nd.zeros((3,))).shape == (0, 2)


def test_axes_that_are_broadcast_come_in_pairs() -> None:
    x, y = nd.ones((1, 7, 1)), nd.ones((5, 3))
    assert nd.broadcast_like(x, y, lhs_axes=(0, -1), rhs_axes=(0, 1)).shape == (5, 7, 3)
    for left, right in (((), ()), ((0,), (0, 1))):
        with pytest.raises(ShapeError, match="as many lhs_axes as rhs_axes"):
            nd.broadcast_like(x, y, lhs_axes=left, rhs_axes=right)
