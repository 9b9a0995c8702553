"""What MXNet 1.9.1 does with arguments that few programs have; the numbers are those that it gave."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.errors import FormatError, MXNetError, ShapeError
from gluongraph.ndarray import NDArray


def thirds(*shape: int) -> NDArray:
    return nd.array(np.arange(math.prod(shape)).reshape(shape) / 3)


def gradient(fn: Callable[[NDArray], Any], x: NDArray) -> np.ndarray[Any, Any]:
    """Of all results, each element times its number."""
    y = x.copy()
    y.attach_grad()
    with autograd.record():
        made = fn(y)
        parts = made if isinstance(made, list) else [made]
        total = nd.add_n(*((part * nd.arange(part.size).reshape(part.shape)).sum() for part in parts))
    total.backward()
    found: np.ndarray[Any, Any] = y.grad.asnumpy()
    return found


# -- integers


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_division_of_integers_is_whole(dtype: str, way: str) -> None:
    a, b = (nd.array(v, dtype=dtype) for v in ([7, -7, 9, 0, -8, 5], [2, 2, -4, 3, 4, 0]))

    def fn(a: NDArray, b: NDArray) -> list[NDArray]:
        return [a / b, a / 2, 100 / nd.maximum(b, 1), nd.broadcast_div(a, b.reshape((6, 1)))[0]]

    found = fn(a, b) if way == "eager" else mx.compile(fn).predict(a, b)
    assert all(f.dtype == np.dtype(dtype) for f in found)
    assert found[0].asnumpy().tolist() == [3, -3, -2, 0, -2, 0]
    assert found[1].asnumpy().tolist() == [3, -3, 4, 0, -4, 2]
    assert found[2].asnumpy().tolist() == [50, 50, 100, 33, 25, 100]
    assert found[3].asnumpy().tolist() == [3, -3, 4, 0, -4, 2]
    c = a.copy()
    c /= 2
    assert c.asnumpy().tolist() == [3, -3, 4, 0, -4, 2]


def test_division_of_unsigned_integers() -> None:
    a = nd.array([7, 200, 9], dtype="uint8")
    assert (a / 3).asnumpy().tolist() == [2, 66, 3] and (a / 3).dtype == np.uint8


# -- losses and trainers


@pytest.mark.parametrize("loss", [gluon.loss.L2Loss(), gluon.loss.L1Loss(), gluon.loss.HuberLoss()], ids=str)
def test_sample_weights_may_broadcast_beyond_the_losses(loss: gluon.loss.Loss) -> None:
    for shape, expected in (((3, 1), 3), ((1, 1), 3), ((2, 3, 1), 2), ((1,), 3), ((5, 3, 2), 5)):
        assert loss(thirds(3, 2), thirds(3, 2) + 1, nd.ones(shape)).shape == (expected,)
    with pytest.raises(ShapeError, match="does not fit losses"):
        loss(thirds(3, 2), thirds(3, 2), nd.ones((4,)))


def test_a_weight_of_more_columns_than_the_losses() -> None:
    made = gluon.loss.L2Loss()(thirds(3, 1), nd.zeros((3, 1)), nd.array([[1.0, 2], [2, 3], [3, 4]]))
    np.testing.assert_allclose(made.asnumpy(), [0, 5 / 36, 7 / 9], rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_two_parameters_of_one_name(compiled: bool, tmp_path: pathlib.Path) -> None:
    def made() -> tuple[gluon.Parameter, gluon.Parameter, gluon.Trainer]:
        first, second = (gluon.Parameter("w", shape=(n,), init="ones") for n in (2, 3))
        first.initialize()
        second.initialize()
        return first, second, gluon.Trainer([first, second], "sgd", {"learning_rate": 1.0, "momentum": 0.9})

    a, b, trainer = made()
    assert trainer.names == ("w", "w_1") and (a.name, b.name) == ("w", "w")

    def loss() -> NDArray:
        return (b.data() * 3).sum() + (a.data() * 2).sum()  # in another order than the trainer's

    step = mx.compile(loss, trainer=trainer) if compiled else None
    for _ in range(2):
        if step is not None:
            step()
        else:
            with autograd.record():
                value = loss()
            value.backward()
            trainer.step(1)
    np.testing.assert_allclose(a.data().asnumpy(), [-4.8, -4.8], rtol=1e-6)
    np.testing.assert_allclose(b.data().asnumpy(), [-7.7, -7.7, -7.7], rtol=1e-6)
    trainer.save_states(str(tmp_path / "states"))
    made()[2].load_states(str(tmp_path / "states"))


def test_a_compiled_step_trains_its_own_parameter_and_not_another_of_that_name() -> None:
    mine, other = (gluon.nn.Dense(1, in_units=2, prefix="d_", use_bias=False) for _ in range(2))
    for net in (mine, other):
        net.initialize(mx.init.One())
    trainer = gluon.Trainer(mine.collect_params(), "sgd", {"learning_rate": 0.1})
    mx.compile(lambda x: other(x) * mine(x), trainer=trainer)(nd.array([[1.0, 2]]))
    assert (other.weight.data().asnumpy() == 1).all()
    np.testing.assert_allclose(mine.weight.data().asnumpy(), [[0.7, 0.4]], rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "nag", "rmsprop", "ftrl"])
def test_lists_of_weights_are_updated_one_by_one(name: str) -> None:
    def arrays() -> tuple[list[NDArray], list[NDArray]]:
        return [nd.ones(2), nd.ones(3)], [nd.ones(2), nd.ones(3) * 2]

    listed, single = (mx.optimizer.create(name, learning_rate=0.1) for _ in range(2))
    (weights, grads), (others, same) = arrays(), arrays()
    listed.update([0, 1], weights, grads, [listed.create_state(i, w) for i, w in enumerate(weights)])
    for i, (w, g) in enumerate(zip(others, same, strict=True)):
        single.update(i, w, g, single.create_state(i, w))
    for w, o in zip(weights, others, strict=True):
        assert (w.asnumpy() == o.asnumpy()).all() and (w.asnumpy() != 1).all()
    before = weights[0].asnumpy()
    with pytest.raises(MXNetError, match="lists of 2, 2, 1, 2"):
        listed.update([0, 1], weights, grads[:1], [None, None])
    assert (weights[0].asnumpy() == before).all()


def test_lists_with_master_weights() -> None:
    sgd = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, multi_precision=True)
    weights = [nd.ones(2, dtype="float16"), nd.ones(3, dtype="float16")]
    states = [sgd.create_state_multi_precision(i, w) for i, w in enumerate(weights)]
    sgd.update_multi_precision([0, 1], weights, [w.copy() for w in weights], states)
    assert all((w.asnumpy() == np.float16(0.9)).all() for w in weights)


# -- shapes


@pytest.mark.parametrize(
    ("name", "how", "shape"),
    [
        ("squeeze", {}, (2, 3)),
        ("squeeze", {"axis": 0}, (2, 3)),
        ("flatten", {}, (1, 6)),
        ("expand_dims", {"axis": 1}, (1, 1, 2, 3)),
        ("expand_dims", {"axis": -1}, (1, 2, 3, 1)),
    ],
)
def test_inplace_shares_memory(name: str, how: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = thirds(1, 2, 3)
    view, copy = getattr(x, name)(inplace=True, **how), getattr(x, name)(**how)
    view[:] = 5
    assert view.shape == copy.shape == shape
    assert (x.asnumpy() == 5).all() and not (copy.asnumpy() == 5).any()

    def traced(x: NDArray) -> NDArray:
        y = x.copy()
        getattr(y, name)(inplace=True, **how)[:] = 4
        return y

    assert (mx.compile(traced).predict(x).asnumpy() == 4).all()


def test_inplace_of_what_does_not_fit() -> None:
    with pytest.raises(ShapeError):
        thirds(1, 2, 3).squeeze(axis=1, inplace=True)
    with pytest.raises(ShapeError):
        thirds(2, 3).expand_dims(axis=5, inplace=True)


@pytest.mark.parametrize(
    ("old", "wanted", "forwards", "backwards"),
    [
        ((10, 5, 4), (-1, 0), (40, 5), (50, 4)),
        ((8, 3), (-1, 2, -4, 0), None, (4, 2, 3)),
        ((3, 8), (0, 2, -1, -4), None, (3, 2, 4)),
        ((8, 3), (-4, 2, -1, -2), (2, 4, 3), None),
        ((2, 3, 4), (-3, 0), (6, 4), (6, 4)),
        ((3, 5, 4), (-1, -4, 2, 2), None, None),
    ],
)
def test_reshape_codes_from_both_ends(old: Any, wanted: Any, forwards: Any, backwards: Any) -> None:
    for reverse, expected in ((False, forwards), (True, backwards)):
        if expected is None:
            with pytest.raises(ShapeError):
                nd.zeros(old).reshape(wanted, reverse=reverse)
        else:
            assert nd.zeros(old).reshape(wanted, reverse=reverse).shape == expected
            assert nd.reshape(nd.zeros(old), shape=wanted, reverse=reverse).shape == expected


def test_take_that_raises() -> None:
    x = thirds(4, 2)
    assert nd.take(x, nd.array([0, 3]), mode="raise").asnumpy()[1, 0] == np.float32(2)
    for wrong in (7, -1, math.nan):
        for call in (nd.take, NDArray.take):
            with pytest.raises(IndexError, match=f"take: index {wrong} at 1 is not an integer from 0 to 3"):
                call(x, nd.array([0, wrong]), mode="raise")
            with pytest.raises(IndexError, match=f"take: index {wrong} at 1"):
                mx.compile(partial(call, x, mode="raise")).predict(nd.array([0, wrong]))
    with pytest.raises(MXNetError, match="mode"):
        nd.take(x, nd.array([0]), mode="odd")


# -- norms, pooling, resizing


def test_means_and_deviations_of_norms() -> None:
    x, one, zero = thirds(2, 3, 2), nd.ones(3), nd.zeros(3)

    def batch(**how: Any) -> list[NDArray]:
        return nd.BatchNorm(x, one, zero, nd.zeros(3), nd.ones(3), output_mean_var=True, fix_gamma=False, **how)

    with autograd.record():
        y, mean, inverse = batch()
    np.testing.assert_allclose(mean.asnumpy(), [7 / 6, 11 / 6, 2.5], rtol=1e-6)
    np.testing.assert_allclose(inverse.asnumpy(), [0.9859] * 3, atol=1e-4)
    np.testing.assert_allclose(y.asnumpy()[0, 0], [-1.1502, -0.8216], atol=1e-4)
    for how in ({}, {"use_global_stats": True}):
        _, mean, inverse = batch(**how)
        np.testing.assert_allclose([mean.asnumpy(), inverse.asnumpy()], [[0] * 3, [0.9995] * 3], atol=1e-4)
    _, mean, deviation = nd.LayerNorm(x, one, zero, axis=1, output_mean_var=True)
    np.testing.assert_allclose(mean.asnumpy(), [[[2 / 3, 1.0]], [[8 / 3, 3.0]]], rtol=1e-6)
    np.testing.assert_allclose(deviation.asnumpy(), np.full((2, 1, 2), 0.5443), atol=1e-4)
    _, mean, deviation = nd.GroupNorm(thirds(1, 4, 2), nd.ones(2), nd.zeros(2), num_groups=2, output_mean_var=True)
    np.testing.assert_allclose([mean.asnumpy()[0], deviation.asnumpy()[0]], [[0.5, 11 / 6], [0.3727] * 2], atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "kind", "expected", "slope"),
    [
        (3, 2, "avg", [-2, 0, 2, 3.5], [1 / 3, 1 / 3, 2 / 3, 1 / 3, 2 / 3, 1 / 3, 5 / 6, 1 / 2]),
        (3, 2, "sum", [-6, 0, 6, 7], [1, 1, 2, 1, 2, 1, 2, 1]),
        (4, 3, "avg", [-1.5, 1.5, 3.5], [0.25, 0.25, 0.25, 0.5, 0.25, 0.25, 0.75, 0.5]),
        (5, 1, "sum", [-5, 0, 5, 10, 10, 9, 7, 4], [1, 2, 3, 4, 5, 5, 5, 5]),
        (2, 3, "max", [-2, 1, 4], [0, 1, 0, 0, 1, 0, 0, 1]),
        (3, 2, "max", [-1, 1, 3, 4], [0, 0, 1, 0, 1, 0, 1, 1]),  # an error of oneDNN there
    ],
)
def test_pooling_of_the_same_size(kernel: int, stride: int, kind: str, expected: Any, slope: Any) -> None:
    x = nd.array(np.arange(8.0).reshape(1, 1, 8) - 3)
    x.attach_grad()
    how = {"kernel": kernel, "stride": stride, "pool_type": kind, "pooling_convention": "same"}
    with autograd.record():
        y = nd.Pooling(x, **how)
    y.backward()
    np.testing.assert_allclose(y.asnumpy().ravel(), expected, rtol=1e-6)
    np.testing.assert_allclose(x.grad.asnumpy().ravel(), slope, rtol=1e-6)
    for wrong in ({"pad": 1}, {"data": thirds(1, 1, 4, 4)}):
        with pytest.raises(MXNetError, match="'same'"):
            nd.Pooling(**{"data": x, **how, **wrong})


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        ("odd_scale", (3, 4)),
        ("to_even_down", (6, 6)),
        ("to_even_up", (6, 8)),
        ("to_odd_down", (5, 7)),
        ("to_odd_up", (7, 7)),
        ("size", (3, 3)),
    ],
)
def test_modes_of_bilinear_resizing(mode: str, shape: tuple[int, int]) -> None:
    x = thirds(1, 1, 6, 7)
    made = nd.contrib.BilinearResize2D(x, scale_height=0.5, scale_width=0.5, mode=mode)
    assert made.shape == (1, 1, *shape)
    rows, columns = np.linspace(0, 5, shape[0]), np.linspace(0, 6, shape[1])
    np.testing.assert_allclose(made.asnumpy()[0, 0], (rows[:, None] * 7 + columns) / 3, rtol=1e-5, atol=1e-6)
    with pytest.raises(MXNetError, match="no mode 'odd'"):
        nd.contrib.BilinearResize2D(x, mode="odd")
    with pytest.raises(MXNetError, match="needs scale_height"):
        nd.contrib.BilinearResize2D(x, mode="odd_scale")


# -- linear algebra

S = nd.array([[4.0, 1, 0.5], [1, 5, 2], [0.5, 2, 6]])


@pytest.mark.parametrize(
    "call,A,message",
    [
        ("potrf", [[0.0, 0], [0, 0]], r"potrf: the matrix of f32\[2,2\] is not positive definite"),
        (
            "potrf",
            [[[4.0, 1], [1, 3]], [[1, 2], [2, 1]]],
            r"potrf: the matrix number \(1,\) of f32\[2,2,2\] is not pos",
        ),
        ("inverse", [[1.0, 2], [2, 4]], r"inverse: the matrix of f32\[2,2\] is singular"),
        ("potri", [[1.0, 0], [2, 0]], r"potri: the matrix of f32\[2,2\] is no triangle"),
    ],
)
def test_matrices_without_a_factor_or_an_inverse(call: str, A: Any, message: str) -> None:
    function, x, out = getattr(nd.linalg, call), nd.array(A), nd.ones(np.shape(A))
    with pytest.raises(MXNetError, match=message):
        function(x, out=out)
    assert (out.asnumpy() == 1).all()
    x[..., 0, 0] = np.nan  # what is no number already is handed on
    if x.ndim == 2:
        assert np.isnan(function(x).asnumpy()).any()
    compiled = gluon.nn.HybridLambda(lambda F, x: F.linalg.potrf(x))
    compiled.hybridize()
    assert np.isnan(compiled(nd.zeros((2, 2))).asnumpy()).any(), "compiled code goes on with NaN"


def test_upper_triangles() -> None:
    upper = nd.linalg.potrf(S, lower=False)
    np.testing.assert_allclose(upper.asnumpy()[:2], [[2, 0.5, 0.25], [0, 2.1794, 0.8603]], atol=1e-4)
    np.testing.assert_allclose(nd.linalg.potri(upper, lower=False).asnumpy(), np.linalg.inv(S.asnumpy()), atol=1e-6)
    junk = nd.linalg.potri(nd.array([[2.0, 7], [1, 3]]), lower=False)
    np.testing.assert_allclose(junk.asnumpy(), [[1.6111, -0.3889], [-0.3889, 0.1111]], atol=1e-4)
    found = gradient(lambda s: nd.linalg.potrf(s, lower=False), S)
    expected = [[-0.0230, 0.0086, 0.1671], [0.0086, 0.7383, 0.4545], [0.1671, 0.4545, 1.7546]]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    found = gradient(lambda u: nd.linalg.potri(u, lower=False), upper)
    np.testing.assert_allclose(found[0], [0.1215, -0.1772, -0.6177], atol=2e-4)


def test_eigenvalues() -> None:
    u, values = nd.linalg.syevd(S)
    expected = [[-0.5749, 0.7167, -0.3947], [0.7765, 0.3258, -0.5394], [0.2580, 0.6166, 0.7438]]
    np.testing.assert_allclose(u.asnumpy(), expected, atol=1e-4)
    np.testing.assert_allclose(values.asnumpy(), [3.0965, 4.0722, 7.8313], atol=1e-4)
    expected = [[0.6566, 0.2979, -0.0814], [0.2979, 0.2713, 0.7012], [-0.0814, 0.7012, 2.0721]]
    np.testing.assert_allclose(gradient(nd.linalg.syevd, S), expected, atol=1e-3)


def test_lq_factors() -> None:
    x = thirds(2, 3) + nd.array([[1.0, 0, 0], [0, 2, 0]])
    q, lower = nd.linalg.gelqf(x)
    np.testing.assert_allclose(q.asnumpy(), [[-0.8018, -0.2673, -0.5345], [0.3738, -0.9221, -0.0997]], atol=1e-4)
    np.testing.assert_allclose(lower.asnumpy(), [[-1.2472, 0], [-2.5835, -2.8661]], atol=1e-4)
    expected = [[-2.1540, 5.1823, 0.6399], [-0.2090, -3.1371, -1.8596]]
    np.testing.assert_allclose(gradient(nd.linalg.gelqf, x), expected, atol=1e-3)


@pytest.mark.parametrize("n", [1, 6])
def test_compiled_factors_are_eager_ones(n: int) -> None:
    rng = np.random.default_rng(n)
    x = nd.array(rng.normal(size=(2, n, n)), dtype="float64")
    s = nd.linalg.syrk(x) + nd.array(np.eye(n), dtype="float64")

    def fn(x: NDArray, s: NDArray) -> list[NDArray]:
        return [*nd.linalg.gelqf(x), *nd.linalg.syevd(s)]

    for found, expected in zip(mx.compile(fn).predict(x, s), fn(x, s), strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), atol=1e-10)


def test_lq_needs_columns() -> None:
    with pytest.raises(ShapeError, match="at most as many rows"):
        nd.linalg.gelqf(thirds(3, 2))


# -- arguments


@pytest.mark.parametrize("name", ["relu", "exp", "sqrt", "floor", "negative", "BlockGrad", "shape_array", "erf"])
def test_functions_of_arrays_ignore_other_keywords(name: str) -> None:
    x = thirds(2) + 1
    assert (getattr(nd, name)(x, odd=3).asnumpy() == getattr(nd, name)(x).asnumpy()).all()
    assert (getattr(nd, name)(data=x, odd=3).asnumpy() == getattr(nd, name)(x).asnumpy()).all()
    assert (x.relu(odd=3).asnumpy() == x.asnumpy()).all()
    assert (nd.broadcast_add(x, x, odd=3).asnumpy() == 2 * x.asnumpy()).all()


@pytest.mark.parametrize("name", ["softmax", "sum", "Activation", "clip", "dot"])
def test_others_refuse_them(name: str) -> None:
    with pytest.raises(TypeError, match="odd"):
        getattr(nd, name)(thirds(2), odd=3)


@pytest.mark.parametrize("name", ["sqrt", "exp", "sum", "softmax", "relu", "mean", "zeros_like", "negative"])
def test_numbers_and_lists_in_place_of_arrays(name: str) -> None:
    for wrong, shown in ((2.0, r"2\.0"), ([1.0, 2.0], r"\[1\.0, 2\.0\]")):
        with pytest.raises(TypeError, match=rf"expects an NDArray, got {shown}(.|\n)*nd\.array"):
            getattr(nd, name)(wrong)
        with pytest.raises(TypeError, match="expects an NDArray"):
            mx.compile(lambda x, wrong=wrong: x + getattr(nd, name)(wrong)).predict(thirds(2))


@pytest.mark.parametrize("mode", ["training", "always"])
def test_dropout_of_everything(mode: str) -> None:
    x = thirds(2, 3) / 0  # infinities and NaN are dropped too
    x.attach_grad()
    with autograd.record():
        y = nd.Dropout(x, p=1, mode=mode)
    y.backward()
    assert not y.asnumpy().any() and not x.grad.asnumpy().any()
    assert (nd.Dropout(thirds(2), p=1).asnumpy() == thirds(2).asnumpy()).all()
    net = gluon.nn.Dropout(1)
    with autograd.record():
        assert not net(thirds(2)).asnumpy().any()
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(MXNetError, match="p is a probability"):
            nd.Dropout(x, p=wrong)
        with pytest.raises(ValueError, match="Dropout: rate must be from 0 to 1"):
            gluon.nn.Dropout(wrong)


# -- blocks


def layers() -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(2, in_units=2), gluon.nn.BatchNorm(in_channels=2), gluon.nn.Dense(3, in_units=2))
    return net


def test_save_and_load(tmp_path: pathlib.Path) -> None:
    net, other = layers(), layers()
    net.initialize(mx.init.Normal(1))
    net.save(str(tmp_path / "net"))
    assert sorted(os.listdir(tmp_path)) == ["net-model.json", "net-model.params"]
    told = json.loads((tmp_path / "net-model.json").read_text())
    assert told["hybridsequential0"]["children"] == {"net_dense0": "0", "net_batchnorm0": "1", "net_dense1": "2"}
    assert told["hybridsequential0"]["dense3"]["orig_name"] == "net_dense1"
    other.load(str(tmp_path / "net"))
    x = thirds(4, 2)
    assert (net(x).asnumpy() == other(x).asnumpy()).all()
    (tmp_path / "net-model.json").write_text(json.dumps({"dense0": told["hybridsequential0"]}))
    with pytest.raises(FormatError, match="does not describe the blocks of 'net'"):
        layers().load(str(tmp_path / "net"))


def test_keys_of_children_are_those_of_the_file(tmp_path: pathlib.Path) -> None:
    class Net(gluon.nn.HybridBlock):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(prefix="net_")
            with self.name_scope():
                setattr(self, first, gluon.nn.Dense(2, in_units=2))
                setattr(self, second, gluon.nn.Dense(2, in_units=2))

        def forward(self, x: NDArray) -> NDArray:
            for child in self._children.values():
                x = child(x)
            return x

    net, other = Net("a", "b"), Net("c", "d")
    net.initialize(mx.init.Normal(1))
    net.save(str(tmp_path / "net"))
    other.load(str(tmp_path / "net"))
    assert list(other._children) == ["a", "b"]
    assert (net(thirds(1, 2)).asnumpy() == other(thirds(1, 2)).asnumpy()).all()


def test_op_hooks() -> None:
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(2), gluon.nn.Activation("tanh"))
    net.initialize(mx.init.One())
    seen: list[tuple[str, str, list[float]]] = []
    net.register_op_hook(lambda name, op, array: seen.append((name, op, array.asnumpy().ravel().tolist())))
    x = nd.array([[0.25, 0.5]])
    net(x)
    assert not seen, "only hybridized blocks have operators"
    net.hybridize()
    y = net(x)
    assert [name for name, _, _ in seen] == ["net_dense0_fwd_output", "net_tanh0_fwd_output"]
    assert seen[0][1:] == ("FullyConnected", [0.75, 0.75])
    np.testing.assert_allclose(seen[1][2], y.asnumpy().ravel(), rtol=1e-6)
    seen.clear()
    net.register_op_hook(lambda name, op, array: seen.append((name, op, [])), monitor_all=True)
    net(x)
    inputs = ["net_dense0_fwd_data", "net_dense0_fwd_weight", "net_dense0_fwd_bias"]
    assert [n for n, _, _ in seen][:5] == [*inputs, "net_dense0_fwd_output", "net_tanh0_fwd_input0"]


def test_numpys_array_may_only_be_read_while_an_ndarray_shares_it() -> None:
    given = np.zeros((2, 3), np.float32)
    shared = nd.from_numpy(given)
    with pytest.raises(ValueError, match="read-only"):
        given[0, 0] = 1
    shared[1, 2] = 7
    assert given[1, 2] == 7 and nd.from_numpy(given).asnumpy()[1, 2] == 7


def test_pooling_by_same_takes_a_padding_of_zeros() -> None:
    x = nd.array(np.arange(10.0).reshape(1, 1, 10))
    how = {"kernel": 2, "stride": 2, "pool_type": "max", "pooling_convention": "same"}
    assert nd.Pooling(x, pad=(0, 0, 0), **how).asnumpy().tolist() == nd.Pooling(x, **how).asnumpy().tolist()


def test_sync_batch_norm_gives_the_variance() -> None:
    x = nd.array(np.random.default_rng(0).normal(2, 3, (8, 3, 5)))
    gamma, beta, mean, var = nd.ones(3), nd.zeros(3), nd.zeros(3), nd.ones(3)
    with autograd.train_mode():
        y, middle, spread = nd.contrib.SyncBatchNorm(x, gamma, beta, mean, var, output_mean_var=True, key="k", ndev=2)
    values = x.asnumpy()
    np.testing.assert_allclose(middle.asnumpy(), values.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(spread.asnumpy(), values.var((0, 2)), rtol=1e-4)
    np.testing.assert_allclose(y.asnumpy().mean((0, 2)), 0, atol=1e-5)


def test_whether_slices_lie_without_gaps() -> None:
    contiguous = nd.NDArray._basic_indexing_slice_is_contiguous
    assert contiguous((slice(1, 3), slice(None)), (4, 5)) and contiguous((slice(1, 2), slice(0, 3)), (4, 5))
    assert not contiguous((slice(0, 2), slice(0, 3)), (4, 5)) and not contiguous((slice(None, None, 2),), (4,))
