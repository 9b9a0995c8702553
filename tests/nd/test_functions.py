"""nd's functions by MXNet's names and arguments, against numpy; their gradients against difference quotients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, nd
from gluongraph.errors import DTypeError, MXNetError, ShapeError, TraceError
from gluongraph.tracing.tracer import trace

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (3, 4)).astype(np.float32)
T = RNG.standard_normal((4, 3, 2)).astype(np.float32)  # (time, batch, width)
LENGTHS = np.array([1, 4, 2], np.float32)
BLOCKS = np.arange(8.0)
S = np.array([[4, 2, 1], [2, 5, 3], [1, 3, 6]], np.float32)
ROW = np.array([3, 1, 2, 1], np.float32)


def masked(x: Any, lengths: Any, value: float) -> Any:
    made = x.copy()
    for i, n in enumerate(lengths.astype(int)):
        made[n:, i] = value
    return made


def reversed_steps(x: Any, lengths: Any) -> Any:
    made = x.copy()
    for i, n in enumerate(lengths.astype(int)):
        made[:n, i] = x[:n, i][::-1]
    return made


def smooth(x: Any, s: float) -> Any:
    return np.where(np.abs(x) < 1 / s**2, (s * x) ** 2 / 2, np.abs(x) - 0.5 / s**2)


# name, arguments (arrays become NDArrays), keywords, what numpy says; of several results, a list
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("tan", (X,), {}, np.tan(X)),
    ("arcsin", (X / 2,), {}, np.arcsin(X / 2)),
    ("arccos", (X / 2,), {}, np.arccos(X / 2)),
    ("arctan", (X * 9,), {}, np.arctan(X * 9)),
    ("sinh", (X,), {}, np.sinh(X)),
    ("cosh", (X,), {}, np.cosh(X)),
    ("arcsinh", (X,), {}, np.arcsinh(X)),
    ("arccosh", (abs(X) + 1,), {}, np.arccosh(abs(X) + 1)),
    ("arctanh", (X / 2.1,), {}, np.arctanh(X / np.float32(2.1))),
    ("cbrt", (X,), {}, np.cbrt(X)),
    ("rcbrt", (X,), {}, 1 / np.cbrt(X)),
    ("degrees", (X,), {}, np.degrees(X)),
    ("radians", (X,), {}, np.radians(X)),
    ("broadcast_hypot", (X, X[:1]), {}, np.hypot(X, X[:1])),
    ("gamma", (np.array([1, 2, 5, 0.5, -1.5], np.float32),), {}, [1, 1, 24, np.sqrt(np.pi), 4 / 3 * np.sqrt(np.pi)]),
    ("gammaln", (np.array([1, 3, 10, 0.5], np.float32),), {}, [0, np.log(2), np.log(362880), np.log(np.pi) / 2]),
    ("erfinv", (np.array([0, 0.5, -0.5, 1], np.float32),), {}, [0, 0.47693628, -0.47693628, np.inf]),
    ("rint", (np.array([-1.5, -0.4, 0.5, 1.5], np.float32),), {}, [-2, 0, 0, 1]),
    ("trunc", (np.array([-1.5, -0.4, 1.9], np.float32),), {}, [-1, 0, 1]),
    ("fix", (np.array([-1.5, -0.4, 1.9], np.float32),), {}, [-1, 0, 1]),
    ("hard_sigmoid", (X,), {}, np.clip(0.2 * X + 0.5, 0, 1)),
    ("smooth_l1", (X,), {"scalar": 2.0}, smooth(X, 2)),
    ("logical_xor", (X > 0, X[:1] > 0), {}, np.logical_xor(X > 0, X[:1] > 0)),
    ("argsort", (ROW,), {}, [1, 3, 2, 0]),
    ("argsort", (X,), {"axis": 0, "is_ascend": False, "dtype": "int32"}, np.argsort(-X, 0, kind="stable")),
    ("sort", (X,), {"is_ascend": False}, -np.sort(-X)),
    ("sort", (X,), {"axis": None}, np.sort(X, None)),
    ("topk", (ROW,), {"k": 2}, [0, 2]),
    ("topk", (X,), {"k": 2, "ret_typ": "value", "axis": 0}, -np.sort(-X, 0)[:2]),
    ("topk", (ROW,), {"k": 2, "ret_typ": "both", "is_ascend": True}, [[1, 1], [1, 3]]),
    ("topk", (ROW,), {"k": 2, "ret_typ": "mask"}, [1, 0, 1, 0]),
    ("topk", (ROW,), {"k": 0, "ret_typ": "value"}, [3, 2, 1, 1]),
    ("gather_nd", (X, np.array([[0, 2], [1, -1]])), {}, X[[0, 2], [1, -1]]),
    ("scatter_nd", (np.array([5, 6]), np.array([[0, 1], [1, 2]])), {"shape": (2, 3)}, [[0, 5, 0], [0, 0, 6]]),
    ("ravel_multi_index", (np.array([[0, 1], [1, 2]]),), {"shape": (2, 3)}, [1, 5]),
    ("unravel_index", (np.array([1, 5]),), {"shape": (2, 3)}, [[0, 1], [1, 2]]),
    ("batch_take", (X, np.array([0, 3, 1])), {}, X[[0, 1, 2], [0, 3, 1]]),
    ("choose_element_0index", (X, np.array([0, 3, 1])), {}, X[[0, 1, 2], [0, 3, 1]]),
    ("SequenceMask", (T, LENGTHS), {"use_sequence_length": True, "value": -1.0}, masked(T, LENGTHS, -1)),
    ("SequenceMask", (T,), {}, T),
    ("SequenceLast", (T, LENGTHS), {"use_sequence_length": True}, T[LENGTHS.astype(int) - 1, range(3)]),
    ("SequenceLast", (T,), {"axis": 1}, T[:, -1]),
    ("SequenceReverse", (T, LENGTHS), {"use_sequence_length": True}, reversed_steps(T, LENGTHS)),
    ("SequenceReverse", (T,), {}, T[::-1]),
    ("diag", (X,), {"k": 1}, np.diag(X, 1)),
    ("diag", (ROW,), {"k": -1}, np.diag(ROW, -1)),
    ("diag", (T,), {"axis1": 0, "axis2": 2}, np.diagonal(T, 0, 0, 2)),
    ("depth_to_space", (BLOCKS.reshape(1, 8, 1, 1), 2), {}, BLOCKS.reshape(2, 2, 2).transpose(2, 0, 1)[None]),
    ("space_to_depth", (np.arange(4.0).reshape(1, 1, 2, 2), 2), {}, np.arange(4.0).reshape(1, 4, 1, 1)),
    ("khatri_rao", (X, X), {}, np.einsum("ik,jk->ijk", X, X).reshape(9, 4)),
    ("split_v2", (ROW, (1, 3)), {}, [[3], [1, 2], [1]]),
    ("split_v2", (X, 2), {"axis": 1}, [X[:, :2], X[:, 2:]]),
    ("moveaxis", (T, 0, 2), {}, np.moveaxis(T, 0, 2)),
    ("moveaxis", (T, (0, 1), (1, 2)), {}, np.moveaxis(T, (0, 1), (1, 2))),
    ("nansum", (np.where(X > 1, np.nan, X),), {"axis": 1}, np.nansum(np.where(X > 1, np.nan, X), 1)),
    ("nanprod", (np.where(X > 1, np.nan, X),), {"axis": 1}, np.nanprod(np.where(X > 1, np.nan, X), 1)),
    ("moments", (X,), {"axes": (0,)}, [X.mean(0), X.var(0)]),
    ("moments", (X,), {"axes": (0, 1), "keepdims": True}, [X.mean(keepdims=True), X.var(keepdims=True)]),
    ("all_finite", (X,), {}, [1]),
    ("multi_all_finite", (X, np.array([np.inf])), {"num_arrays": 2}, [0]),
    ("multi_sum_sq", (X, ROW), {"num_arrays": 2}, [np.sum(X**2), 15]),
    ("argmax_channel", (X,), {}, X.argmax(-1)),
    ("argmax_channel", (T,), {}, T.argmax(1)),
    ("argmax", (X,), {"keepdims": True}, [[X.argmax()]]),
    ("argmin", (T,), {"axis": -2, "keepdims": True}, T.argmin(1)[:, None]),
    ("where", (np.array([1, 0, 1]), X, -X), {}, np.where([[1], [0], [1]], X, -X)),
    ("sum", (T,), {"axis": (), "exclude": True}, [T.sum()]),
    ("sum", (T,), {"axis": (0, 1, 2), "exclude": True}, T),
    ("broadcast_mul", (X[:, :1], X[:1]), {}, X[:, :1] * X[:1]),
    ("cumsum", (X,), {"axis": 1, "dtype": "float64"}, np.cumsum(X, 1)),
    ("norm", (X,), {"axis": 1, "out_dtype": "float64"}, np.linalg.norm(X, axis=1)),
    ("shape_array", (T,), {}, [4, 3, 2]),
    ("size_array", (T,), {}, [24]),
    ("reshape_like", (np.arange(12.0), X), {}, np.arange(12.0).reshape(3, 4)),
    ("reshape_like", (T, np.zeros((6, 9))), {"lhs_begin": 1, "rhs_begin": 0, "rhs_end": 1}, T.reshape(4, 6)),
    ("broadcast_like", (X[:1], X), {"lhs_axes": 0, "rhs_axes": 0}, np.broadcast_to(X[:1], X.shape)),
    ("add_n", (X, X, X), {}, 3 * X),
    ("histogram", (X,), {"bins": 4, "range": (-2, 2)}, list(np.histogram(X, 4, (-2, 2)))),
    ("linalg.gemm", (S, S, S), {"alpha": 2.0, "beta": 3.0, "transpose_a": True}, 2 * S.T @ S + 3 * S),
    ("linalg.gemm2", (T, T), {"transpose_b": True}, T @ T.transpose(0, 2, 1)),
    ("linalg.gemm2", (T, T[..., :1]), {"transpose_a": True, "axis": 0}, np.einsum("kbm,kbn->mbn", T, T[..., :1])),
    ("linalg.syrk", (X,), {"transpose": True, "alpha": 2.0}, 2 * X.T @ X),
    ("linalg.trmm", (S, S), {"transpose": True, "rightside": True, "alpha": 2.0}, 2 * S @ np.tril(S).T),
    ("linalg.trmm", (S, S), {"lower": False}, np.triu(S) @ S),
    ("linalg.potrf", (S,), {}, np.linalg.cholesky(S)),
    ("linalg.potri", (S,), {}, np.linalg.inv(np.tril(S) @ np.tril(S).T)),
    ("linalg.trsm", (S, S), {"alpha": 2.0}, 2 * np.linalg.inv(np.tril(S)) @ S),
    ("linalg.trsm", (S, S), {"transpose": True, "rightside": True}, S @ np.linalg.inv(np.tril(S).T)),
    ("linalg.trsm", (S, S), {"lower": False}, np.linalg.inv(np.triu(S)) @ S),
    ("linalg.inverse", (S,), {}, np.linalg.inv(S)),
    ("linalg.det", (S,), {}, [67]),
    ("linalg.det", (np.stack([S, -S]),), {}, [67, -67]),
    ("linalg.slogdet", (-S,), {}, [[-1], [np.log(67)]]),
    ("linalg.sumlogdiag", (S,), {}, [np.log(120)]),
    ("linalg.extractdiag", (T,), {"offset": -1}, np.diagonal(T, -1, 1, 2)),
    ("linalg.makediag", (X,), {"offset": 1}, np.stack([np.diag(row, 1) for row in X])),
    ("linalg.extracttrian", (S,), {"offset": 1}, [2, 1, 3]),
    ("linalg.maketrian", (np.array([1.0, 2, 3]),), {}, [[1, 0], [2, 3]]),
    ("linalg.maketrian", (np.array([1.0, 2, 3]),), {"offset": 1}, [[0, 1, 2], [0, 0, 3], [0, 0, 0]]),
    ("linalg.maketrian", (np.arange(6.0),), {"lower": False}, [[0, 1, 3], [0, 2, 4], [0, 0, 5]]),
    ("contrib.arange_like", (X,), {"start": 1.0, "repeat": 2}, (1 + np.arange(12) // 2).reshape(3, 4)),
    ("contrib.arange_like", (X,), {"axis": 1}, [0, 1, 2, 3]),
    ("contrib.div_sqrt_dim", (X,), {}, X / 2),
    ("contrib.quadratic", (X,), {"a": 1.0, "b": 2.0, "c": 3.0}, X**2 + 2 * X + 3),
    ("contrib.isfinite", (np.array([1, np.inf, np.nan]),), {}, [1, 0, 0]),
    ("contrib.isnan", (np.array([1, np.inf, np.nan]),), {}, [0, 0, 1]),
    ("contrib.isinf", (np.array([1, -np.inf, np.nan]),), {}, [0, 1, 0]),
    ("contrib.allclose", (X, X + np.float32(1e-7)), {}, 1),
    ("contrib.index_copy", (X, np.array([2, 0]), X[:2] + 1), {}, np.stack([X[1] + 1, X[1], X[0] + 1])),
    ("contrib.index_array", (X,), {"axes": (1,)}, np.broadcast_to(np.arange(4), (3, 4))[..., None]),
    ("contrib.boolean_mask", (X, np.array([1, 0, 1])), {}, X[[0, 2]]),
    ("contrib.box_iou", (np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 1, 3, 3]])), {}, [[1 / 7]]),
    ("contrib.box_iou", (np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 1, 3, 3]])), {"format": "center"}, [[9 / 43]]),
]  # fmt: skip


def function(name: str) -> Callable[..., Any]:
    found: Any = nd
    for part in name.split("."):
        found = getattr(found, part)
    return found


def arrays(args: tuple[Any, ...]) -> list[Any]:
    return [nd.array(a) if isinstance(a, np.ndarray) else a for a in args]


@pytest.mark.parametrize(("name", "args", "kwargs", "expected"), CASES, ids=[c[0] for c in CASES])
def test_against_numpy(name: str, args: Any, kwargs: Any, expected: Any) -> None:
    found = function(name)(*arrays(args), **kwargs)
    several = isinstance(found, (list, tuple))
    for each, wanted in zip(found if several else [found], expected if several else [expected], strict=True):
        np.testing.assert_allclose(each.asnumpy(), wanted, rtol=2e-5, atol=2e-6)


SMOOTH = [
    c for c in CASES
    if c[0] in ("arctan", "arcsin", "arccosh", "gammaln", "erfinv", "smooth_l1", "sort", "gather_nd", "scatter_nd",
                "linalg.trsm", "linalg.potri", "SequenceMask", "broadcast_mul",
                "SequenceLast", "SequenceReverse", "diag", "moments", "linalg.gemm2", "linalg.trmm",
                "linalg.maketrian", "contrib.index_copy", "contrib.box_iou")
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs", "expected"), SMOOTH, ids=[c[0] for c in SMOOTH])
def test_gradients(name: str, args: Any, kwargs: Any, expected: Any) -> None:
    x, *rest = arrays(args)
    x = (x * 0.4 + (1.2 if name == "arccosh" else 0)).astype("float64")
    rest = [r.astype("float64") if isinstance(r, nd.NDArray) and r.dtype == np.float32 else r for r in rest]
    x.attach_grad()
    way, weight = RNG.standard_normal(x.shape), None

    def loss(at: Any) -> Any:
        nonlocal weight
        made = function(name)(at, *rest, **kwargs)
        made = made[-1] if isinstance(made, list) else made
        weight = nd.array(RNG.standard_normal(made.shape), dtype="float64") if weight is None else weight
        return (made * weight).sum()

    with autograd.record():
        y = loss(x)
    y.backward()
    h = 1e-6
    step = nd.array(h * way, dtype="float64")
    quotient = (loss(x + step) - loss(x - step)).asscalar() / (2 * h)
    assert (x.grad.asnumpy() * way).sum() == pytest.approx(quotient, rel=1e-5, abs=1e-6)


def test_slopes_at_zero() -> None:
    x = nd.zeros((1,))
    x.attach_grad()
    for name in ("arctan", "arcsinh", "arcsin", "sinh"):
        with autograd.record():
            y = function(name)(x)
        y.backward()
        assert x.grad.asscalar() == 1.0, name


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("arcsinh", [-1e20, 1e20, np.inf], [-46.744849, 46.744849, np.inf]),
        ("arccosh", [1e20, np.inf, 0.5, -1e20, -np.inf], [46.744849, np.inf, np.nan, np.nan, np.nan]),
        ("gamma", [0, -1, -2, 1e20], [np.inf, np.nan, np.nan, np.inf]),
        ("gammaln", [0, -1, -2, np.inf], [np.inf] * 4),
    ],
)
def test_far_out_and_at_poles(name: str, x: Any, expected: Any) -> None:
    np.testing.assert_allclose(function(name)(nd.array(x)).asnumpy(), expected, rtol=1e-6)


def test_indices_have_the_type_of_the_data_where_it_holds_any() -> None:
    kinds = {"float64": "float64", "int32": "int32", "int64": "int64", "float16": "float32", "uint8": "float32"}
    for given, expected in kinds.items():
        assert nd.argmax(nd.array(X, dtype=given), axis=1).dtype == np.dtype(expected), given


def test_random_slopes() -> None:
    x = nd.array(-np.ones((50, 40)))
    x.attach_grad()
    np.testing.assert_allclose(nd.LeakyReLU(x, act_type="rrelu").asnumpy(), -(0.125 + 0.334) / 2, rtol=1e-6)
    with autograd.record():
        y = nd.LeakyReLU(x, act_type="rrelu", lower_bound=0.1, upper_bound=0.2)
    y.backward()
    slopes = x.grad.asnumpy()
    assert 0.1 <= slopes.min() < 0.11 and 0.19 < slopes.max() < 0.2
    np.testing.assert_array_equal(slopes, -y.asnumpy())


def test_missing_functions_name_those_near() -> None:
    with pytest.raises(NotImplementedError, match=r"nd\.contrib\.box_encoded does not exist(.|\n)*box_encode"):
        _ = nd.contrib.box_encoded
    assert not hasattr(nd.linalg, "syevdd")


def slope_of(build: Callable[[Any], Any], x: Any, head: Any) -> Any:
    array = nd.array(x)
    array.attach_grad()
    with autograd.record():
        y = build(array)
    y.backward(nd.array(head))
    return array.grad.asnumpy()


def test_slopes_that_mxnet_has_otherwise() -> None:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    found = slope_of(lambda x: nd.LeakyReLU(x, act_type="selu"), [-1, 1], [1, 1])
    np.testing.assert_allclose(found, [scale * alpha * np.exp(-1), scale], rtol=1e-6)
    head = RNG.standard_normal(T.shape)
    np.testing.assert_allclose(slope_of(nd.SoftmaxActivation, T, head), slope_of(nd.softmax, T, head), rtol=1e-6)
    label, head = nd.array([0, 2, 1]), RNG.standard_normal(X.shape)
    plain, times = (slope_of(lambda x, o=o: nd.SoftmaxOutput(x, label, out_grad=o), X, head) for o in (False, True))
    np.testing.assert_allclose(times, plain * head, rtol=1e-5, atol=1e-6)


def test_batch_norm_goes_back_by_the_mode_of_its_forward() -> None:
    gamma, beta, mean, var = nd.full((4,), 3), nd.zeros((4,)), nd.ones((4,)), nd.full((4,), 4)
    x, head = nd.array(X), RNG.standard_normal(X.shape)
    x.attach_grad()
    with autograd.record(train_mode=False):
        y = nd.BatchNorm(x, gamma, beta, mean, var, eps=0)
    y.backward(nd.array(head), train_mode=True)
    np.testing.assert_allclose(x.grad.asnumpy(), head / 2, rtol=1e-6)
    assert gamma.asnumpy().tolist() == [3] * 4 and mean.asnumpy().tolist() == [1] * 4


def test_no_pooling_window_lies_outside() -> None:
    x = nd.array([[[1, 2, 3, 4]]])
    for kind in ("max", "sum"):
        made = nd.Pooling(x, kernel=2, stride=3, pad=1, pool_type=kind, pooling_convention="full")
        assert made.shape == (1, 1, 2), kind


def test_integers_compared_with_fractions() -> None:
    x = nd.array([0, 1, 2], dtype="int32")
    found = [x > 0.5, x >= 1.5, x < 0.5, x <= 1.5, x == 1.5, x != 0.5, x < 1.5]
    assert [f.asnumpy().tolist() for f in found] == [
        [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 1, 0],
    ]  # fmt: skip
    assert all(f.dtype == np.int32 for f in found)


def test_out_and_name() -> None:
    out = nd.zeros((3, 4))
    assert nd.sqrt(nd.ones((3, 4)) * 4, out=out, name="root") is out
    assert out.asnumpy().tolist() == [[2] * 4] * 3
    assert nd.concat(out[:, :2], out[:, :2], dim=1, name="both", out=out) is out
    assert nd.add_n(out, out, name="sum").sum().asscalar() == 48
    assert nd.ones((3, 4), out=out, name="ones") is out and out.sum().asscalar() == 12
    assert nd.zeros((3, 4), out=out) is out and out.sum().asscalar() == 0
    with pytest.raises(TypeError, match="fill"):
        nd.ones((2,), fill=3)
    nd.full((3, 4), 2, out=out)
    mean, var = nd.zeros((4,)), nd.ones((4,))
    nd.moments(out, axes=(0,), out=[mean, var])
    assert mean.asnumpy().tolist() == [2] * 4 and var.asnumpy().tolist() == [0] * 4


def test_integers_are_whole_already_and_have_no_fractions() -> None:
    x = nd.array([-7, 4], dtype="int32")
    for name in ("floor", "ceil", "round", "rint", "trunc", "fix"):
        made = function(name)(x)
        assert made.dtype == np.int32 and made.asnumpy().tolist() == [-7, 4], name
    assert (x / 2).asnumpy().tolist() == [-3, 2]  # the whole quotient, as in C
    for refused in (lambda: nd.sqrt(x), lambda: x.mean()):
        with pytest.raises(DTypeError, match="needs a float type"):
            refused()


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(MXNetError, match="k is a number from 1 to 4"):
        nd.topk(nd.array(ROW), k=5)
    with pytest.raises(MXNetError, match="ret_typ is one of"):
        nd.topk(nd.array(ROW), ret_typ="best")
    with pytest.raises(ShapeError, match="no 3 equal parts"):
        nd.split_v2(nd.array(ROW), 3)
    with pytest.raises(MXNetError, match="time is axis 0 or 1"):
        nd.SequenceMask(nd.array(T), nd.array(LENGTHS), True, axis=2)
    with pytest.raises(MXNetError, match="fill no triangle"):
        nd.linalg.maketrian(nd.zeros((4,)))


# -- control flow and attention


def test_foreach_while_cond() -> None:
    out, state = nd.contrib.foreach(lambda d, s: (d + s, d + s), nd.array([0, 1, 2]), nd.array([10]))
    assert out.asnumpy().ravel().tolist() == [10, 11, 13] and state.asscalar() == 13
    (out, twice), states = nd.contrib.foreach(
        lambda d, s: ([d[0], d[1] * 2], [s[0] + d[0]]), [nd.ones((3, 2)), nd.ones((3, 2))], [nd.zeros((2,))]
    )
    assert out.shape == (3, 2) and twice.sum().asscalar() == 12 and states[0].asnumpy().tolist() == [3, 3]
    out, end = nd.contrib.while_loop(lambda i: i < 3, lambda i: (i * 2, i + 1), nd.array([0]), max_iterations=5)
    assert out.asnumpy().ravel().tolist() == [0, 2, 4, 0, 0] and end.asscalar() == 3
    assert nd.contrib.cond(nd.array([1]), lambda: "yes", lambda: "no") == "yes"
    with pytest.raises(ValueError, match="max_iterations"):
        nd.contrib.while_loop(lambda i: i < 3, lambda i: (i, i), nd.array([0]))


def test_self_attention_is_softmax_free_attention() -> None:
    length, batch, heads, size = 4, 2, 2, 5
    x = RNG.standard_normal((length, batch, heads * 3 * size)).astype(np.float32)
    q, k, v = x.reshape(length, batch, heads, 3, size).transpose(3, 1, 2, 0, 4).reshape(3, batch * heads, length, size)
    scores = nd.contrib.interleaved_matmul_selfatt_qk(nd.array(x), heads=heads)
    np.testing.assert_allclose(scores.asnumpy(), q @ k.transpose(0, 2, 1) / np.sqrt(size), rtol=1e-4, atol=1e-5)
    mixed = nd.contrib.interleaved_matmul_selfatt_valatt(nd.array(x), scores, heads=heads)
    wanted = (scores.asnumpy() @ v).reshape(batch, heads, length, size).transpose(2, 0, 1, 3).reshape(length, batch, -1)
    np.testing.assert_allclose(mixed.asnumpy(), wanted, rtol=1e-4, atol=1e-5)


# -- output layers: their gradient is that of a loss, whatever the upstream gradient

LABEL = np.array([0, 1], np.float32)
P = np.exp(X[:2]) / np.exp(X[:2]).sum(1, keepdims=True)
HOT = np.eye(4)[[0, 1]]


@pytest.mark.parametrize(
    ("name", "kwargs", "slope"),
    [
        ("SoftmaxOutput", {}, P - HOT),
        ("SoftmaxOutput", {"grad_scale": 2.0, "normalization": "batch"}, P - HOT),
        ("SoftmaxOutput", {"use_ignore": True, "ignore_label": 1, "normalization": "valid"}, (P - HOT) * [[1], [0]]),
        ("SoftmaxOutput", {"smooth_alpha": 0.1}, P - (HOT * 0.9 + (1 - HOT) * 0.1 / 3)),
        ("LinearRegressionOutput", {}, (X[:2] - HOT) / 4),
        ("LogisticRegressionOutput", {"grad_scale": 4.0}, 1 / (1 + np.exp(-X[:2])) - HOT),
        ("MAERegressionOutput", {}, np.sign(X[:2] - HOT) / 4),
        ("SVMOutput", {"use_linear": True}, np.where(1 - (2 * HOT - 1) * X[:2] > 0, 1 - 2 * HOT, 0)),
    ],
)
def test_output_layers(name: str, kwargs: Any, slope: Any) -> None:
    x = nd.array(X[:2])
    x.attach_grad()
    label = HOT if "Regression" in name else LABEL
    with autograd.record():
        y = function(name)(x, nd.array(label), **kwargs) * 7  # the upstream gradient does not count
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), slope, rtol=1e-5, atol=1e-6)


def test_softmax_output_over_channels() -> None:
    x = nd.array(np.arange(12).reshape(1, 3, 2, 2))
    x.attach_grad()
    with autograd.record():
        y = nd.SoftmaxOutput(x, nd.array([[[0, 1], [2, 0]]]), multi_output=True)
    y.backward()
    p = y.asnumpy()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)
    hot = np.eye(3)[[[0, 1], [2, 0]]].transpose(2, 0, 1)[None]
    np.testing.assert_allclose(x.grad.asnumpy(), (p - hot) / 4, rtol=1e-5, atol=1e-7)


def test_make_loss() -> None:
    x = nd.array([1, 2, 3])
    x.attach_grad()
    for kwargs, slope in (({}, 1), ({"grad_scale": 6.0, "normalization": "valid", "valid_thresh": 1.5}, 2)):
        with autograd.record():
            y = nd.MakeLoss(x * 2, **kwargs)
        y.backward()
        assert x.grad.asnumpy().tolist() == [2 * slope] * 3


# -- random numbers


def test_multinomial() -> None:
    mx.random.seed(0)
    p = nd.array([[0, 0.25, 0.75, 0], [1, 0, 0, 0]])
    drawn = nd.random.multinomial(p, shape=4000).asnumpy()
    assert drawn.dtype == np.int32 and drawn.shape == (2, 4000)
    assert np.bincount(drawn[0], minlength=4) / 4000 == pytest.approx([0, 0.25, 0.75, 0], abs=0.03)
    assert set(drawn[1]) == {0}
    assert nd.sample_multinomial(p[0]).shape == (1,) and nd.random.multinomial(p, (2, 3)).shape == (2, 2, 3)
    p.attach_grad()
    with autograd.record():
        chosen, logp = nd.sample_multinomial(p, get_prob=True)
    logp.backward()
    hit = np.eye(4)[chosen.asnumpy()]
    np.testing.assert_allclose(p.grad.asnumpy(), hit / np.where(hit, p.asnumpy(), 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "args", "mean", "var"),
    [
        ("gamma", (3.0, 2.0), 6, 12),
        ("poisson", (4.0,), 4, 4),
        ("negative_binomial", (3, 0.4), 4.5, 11.25),
        ("generalized_negative_binomial", (2.0, 0.5), 2, 4),
        ("exponential", (3.0,), 3, 9),
    ],
)
def test_distributions(name: str, args: Any, mean: float, var: float) -> None:
    mx.random.seed(1)
    first = getattr(nd.random, name)(*args, shape=(100, 300))
    x = first.asnumpy()
    assert x.mean() == pytest.approx(mean, rel=0.05) and x.var() == pytest.approx(var, rel=0.1)
    mx.random.seed(1)
    assert (getattr(nd.random, name)(*args, shape=(100, 300)) == first).asnumpy().all()


def test_a_distribution_per_element() -> None:
    loc, scale = nd.array([0, 100]), nd.array([1, 2])
    x = nd.sample_normal(loc, scale, shape=(3, 400))
    assert x.shape == (2, 3, 400)
    assert x.mean(axis=(1, 2)).asnumpy() == pytest.approx([0, 100], abs=0.5)
    assert nd.random.gamma(nd.array([1, 2]), nd.array([1, 1])).shape == (2,)
    assert nd.random.normal_like(loc).shape == (2,) and nd.random_exponential(lam=4.0, shape=2).shape == (2,)


def test_numbers_from_numpy_are_refused_in_a_trace() -> None:
    with pytest.raises(TraceError, match="draw outside"):
        trace(lambda x: x + nd.random.poisson(3, shape=(1,)), [nd.zeros((1,))], training=False)


# -- update operators


def test_update_operators_are_the_optimizers() -> None:
    w, g = X.copy(), np.flip(X).copy()
    for name, states, kwargs, expected in (
        ("sgd_update", 0, {"lr": 0.1, "wd": 0.01, "rescale_grad": 0.5}, w - 0.1 * (0.5 * g + 0.01 * w)),
        ("sgd_mom_update", 1, {"lr": 0.1, "momentum": 0.9, "clip_gradient": 0.5}, w - 0.1 * np.clip(g, -0.5, 0.5)),
        ("nag_mom_update", 1, {"lr": 0.1, "momentum": 0.9}, w - 1.9 * 0.1 * g),
        ("signsgd_update", 0, {"lr": 0.1}, w - 0.1 * np.sign(g)),
        ("signum_update", 1, {"lr": 0.1, "momentum": 0.9}, w - 0.1 * np.sign(g)),
        ("adam_update", 2, {"lr": 0.1}, w - 0.1 * 0.1 * g / (np.sqrt(0.001 * g * g) + 1e-8)),
        ("rmsprop_update", 1, {"lr": 0.1}, w - 0.1 * g / np.sqrt(0.05 * g * g + 1e-8)),
        ("ftml_update", 3, {"lr": 0.1, "t": 1}, w - 0.1 * g / (np.abs(g) + 1e-8)),
    ):
        weight, rest = nd.array(w), [nd.zeros(w.shape) for _ in range(states)]
        assert function(name)(weight, nd.array(g), *rest, out=weight, **kwargs) is weight
        np.testing.assert_allclose(weight.asnumpy(), expected, rtol=2e-4, atol=1e-5, err_msg=name)
        assert all(s.norm().asscalar() > 0 for s in rest), f"{name} leaves its states"


def test_update_operators_with_a_copy_in_32_bits() -> None:
    weight, copy = nd.ones((3,), dtype="float16"), nd.ones((3,))
    mom = nd.zeros((3,))
    for _ in range(3):
        nd.mp_sgd_mom_update(weight, nd.ones((3,), dtype="float16"), mom, copy, lr=1e-4, momentum=0.9, out=weight)
    np.testing.assert_allclose(copy.asnumpy(), 1 - 1e-4 * (1 + 1.9 + 2.71), rtol=1e-6)
    assert weight.dtype is np.float16 and weight.asnumpy()[0] == np.float16(copy.asnumpy()[0])


def test_a_rate_that_changes_makes_no_new_function() -> None:
    from gluongraph.ndarray import _FUNCTIONS

    weight, grad = nd.ones((2,)), nd.ones((2,))
    nd.sgd_update(weight, grad, lr=0.5, out=weight)
    before = len(_FUNCTIONS)
    for lr in (0.1, 0.2, 0.3):
        nd.sgd_update(weight, grad, lr=lr, out=weight)
    assert len(_FUNCTIONS) == before


# -- compiled: the same numbers


def test_compiled_is_eager() -> None:
    class Many(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            values, indices = F.topk(x, k=2, ret_typ="both")
            return [
                values,
                indices,
                F.sort(x, axis=0),
                F.arctan(x) + F.arcsinh(x),
                F.gammaln(F.abs(x) + 1),
                F.SequenceReverse(F.expand_dims(x, 2), F.array([1, 3, 2, 3]), True),
                F.SoftmaxOutput(x, F.array([0, 1, 2])),
                F.linalg.gemm2(x, x, transpose_b=True),
                F.depth_to_space(F.reshape(x, (1, 4, 3, 1)), 2),
                F.gather_nd(x, F.array([[0, 2], [1, 3]])),
            ]

    net = Many()
    x = nd.array(X)
    plain = [y.asnumpy() for y in net(x)]
    net.hybridize()
    for y, wanted in zip(net(x), plain, strict=True):
        np.testing.assert_allclose(y.asnumpy(), wanted, rtol=1e-5, atol=1e-6)
