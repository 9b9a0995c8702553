"""NDArray: making, operators, indexing, conversion; each against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph import autograd, nd
from gluongraph.context import Context, cpu, current_context, gpu
from gluongraph.errors import MXNetError, ShapeError
from gluongraph.ndarray import NDArray

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)


def same(array: NDArray, expected: object, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(array.asnumpy(), expected, rtol=rtol, atol=1e-6)


def test_making() -> None:
    assert nd.array([1, 2]).dtype is np.float32 and nd.array(np.arange(3)).dtype is np.float32
    assert nd.array(np.arange(3), dtype="int32").dtype is np.int32
    assert nd.array(nd.array([1], dtype="float64")).dtype is np.float64
    assert nd.array(3.0).shape == () == nd.array(np.ones(())).shape and float(nd.array(3.0) + 1) == 4
    same(nd.zeros((2, 3)), np.zeros((2, 3)))
    same(nd.full(2, 7, dtype="int64"), [7, 7])
    same(nd.arange(1, 7, 2, repeat=2), [1, 1, 3, 3, 5, 5])
    same(nd.zeros_like(nd.array(X)) + nd.ones_like(nd.array(X)), np.ones_like(X))
    same(nd.eye(2), np.eye(2))


@pytest.mark.parametrize("size", [3, 5000])  # small constants are kept with the function that gives them
def test_like_gives_memory_of_its_own(size: int) -> None:
    x = nd.ones((size,))
    first = nd.zeros_like(x)
    first[:] = 5
    assert not nd.zeros_like(x).asnumpy().any()


def test_from_numpy_and_dlpack_share_memory() -> None:
    source = np.zeros(3, np.float32)
    shared = nd.from_numpy(source)
    shared[1] = 5
    assert source[1] == 5
    back = np.from_dlpack(shared)
    back[0] = 7
    assert shared.asnumpy().tolist() == [7, 5, 0]
    same(nd.from_dlpack(source), source)
    for capsule in (shared.to_dlpack_for_read(), nd.to_dlpack_for_write(shared)):
        again = nd.from_dlpack(capsule)
        again[2] += 1
        del again
    assert shared.asnumpy().tolist() == [7, 5, 2]
    with pytest.raises(ValueError, match="contiguous"):
        nd.from_numpy(np.zeros((3, 3))[:, 1])


def test_an_array_is_shared_twice() -> None:
    source = np.zeros(3, np.float32)
    first, second = nd.from_numpy(source), nd.from_numpy(source)
    first[0], second[1] = 1, 2
    assert first.asnumpy().tolist() == second.asnumpy().tolist() == source.tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="read-only"):
        source[0] = 5
    del source
    first[2] = 3
    assert second.asnumpy().tolist() == [1, 2, 3]


def test_memory_that_is_read_only_is_not_written() -> None:
    source = np.frombuffer(bytes(8), np.float32)
    for _ in range(2):
        with pytest.raises(ShapeError, match="read-only"):
            nd.from_numpy(source)[:] = 1
    own = np.zeros(2, np.float32)
    own.flags.writeable = False
    with pytest.raises(ShapeError, match="read-only"):
        nd.from_numpy(own)[:] = 1
    assert source.tolist() == own.tolist() == [0, 0]


def test_asnumpy_is_a_copy() -> None:
    x = nd.zeros((2,))
    x.asnumpy()[:] = 1
    same(x, [0, 0])


def test_repr_is_that_of_mxnet() -> None:
    assert repr(nd.array([[1, 2, 3], [4, 5, 6]])) == "\n[[1. 2. 3.]\n [4. 5. 6.]]\n<NDArray 2x3 @cpu(0)>"


def test_python_numbers() -> None:
    x = nd.array([2.5])
    assert float(x) == 2.5 and int(x) == 2 and bool(x) and x.asscalar() == 2.5 and len(x) == 1
    assert [float(v) for v in nd.array([1, 2])] == [1, 2]
    with pytest.raises(ValueError, match="one element"):
        float(nd.zeros((2,)))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(nd.zeros((2,)))


@pytest.mark.parametrize("other", [2.0, X[0], X[:, :1]], ids=["number", "matrix", "column"])
@pytest.mark.parametrize("op", ["__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__", "__rmul__"])
def test_arithmetic_broadcasts(op: str, other: object) -> None:
    right = other if isinstance(other, float) else nd.array(other)
    same(getattr(nd.array(X), op)(right), getattr(X, op)(other), rtol=1e-5)


def test_numpy_on_the_left_gives_an_array() -> None:
    left = X * nd.array(X)
    assert isinstance(left, NDArray)
    same(left, X * X)


def test_power_and_mod() -> None:
    x = np.abs(X) + 0.5
    same(nd.array(x) ** 2, x**2, rtol=1e-5)
    same(2 ** nd.array(x), 2**x, rtol=1e-5)
    same(nd.array(x) % 0.7, x % np.float32(0.7), rtol=1e-4)


def test_comparisons_have_the_dtype_of_the_array() -> None:
    x = nd.array([1, 2, 3])
    for result, expected in ((x > 2, [0, 0, 1]), (x == x, [1, 1, 1]), (x != 1, [0, 1, 1]), (x <= 2, [1, 1, 0])):
        assert result.dtype is np.float32
        same(result, expected)


@pytest.mark.parametrize(
    "key",
    [
        1,
        -1,
        slice(1, 3),
        slice(None, None, 2),
        slice(None, None, -1),
        slice(5, 1, -2),
        slice(3, 3),
        (1, 2),
        (slice(None), 1),
        (Ellipsis, 2),
        (slice(None), None, slice(1, 3)),
        (0, Ellipsis, slice(1, None, 2)),
        (slice(None), [0, 2, -1]),
        ([0, 2], [1, 3]),
        (slice(0, 2), np.array([[0, 1], [2, 3]]), slice(1, 4)),
        np.array([2, 0]),
        (1, slice(None), [0, 2]),
        (slice(None), 1, [0, 2]),
        (slice(None), [0, 2], 1),
        ([0, 1], slice(1, 3), [3, 0]),
        ([[0], [1]], slice(None, None, -1), [3, 0]),
        (slice(None), [0, 2], None, [1, 3]),
        (slice(1, 2), [0, 2], None, [1, 3]),
        ([1, 0], 2, [1, 3]),
        ([0, 1], np.array([2, 0], np.int32), np.array([3, 3])),
    ],
    ids=str,
)
def test_reading_parts(key: object) -> None:
    same(nd.array(X)[key], X[key])


def test_reading_one_element_has_one_axis() -> None:
    assert nd.array([1, 2])[1].shape == (1,)


@pytest.mark.parametrize(
    "key", [1, slice(1, 3), (slice(None), 2), (1, slice(0, 4, 2)), slice(None), [0, -1], (slice(2), [0, -1])], ids=str
)
def test_writing_parts(key: object) -> None:
    x, expected = nd.array(X), X.copy()
    x[key] = 3
    expected[key] = 3
    same(x, expected)
    x[key] = nd.array(expected[key] * 2)
    expected[key] *= 2
    same(x, expected)


@pytest.mark.parametrize("one", [np.array([7.0]), np.array([[7.0]], np.float32), nd.array([7])])
def test_writing_an_array_of_one_element(one: object) -> None:
    x = nd.zeros((3,))
    x[1] = one
    assert x.asnumpy().tolist() == [0, 7, 0]


def test_kinds_of_host_memory_are_the_cpu() -> None:
    assert Context("cpu_shared", 1) == cpu(1) and nd.ones((1,), Context("cpu_pinned")).context == cpu()


def test_index_errors() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        nd.zeros((2,))[2]
    with pytest.raises(IndexError, match="3 indices"):
        nd.zeros((2, 2))[0, 0, 0]
    with pytest.raises(MXNetError, match="mask"):
        nd.zeros((2,))[np.array([True, False])]


def test_results_do_not_share_memory_with_arguments() -> None:
    x = nd.array(X)
    others = [x[:, 1], x[[0]], x.T, x.flatten(), x.copy(), x.broadcast_to((2, 3, 4, 5)), x.astype("float32")]
    before = [o.asnumpy() for o in others]
    x[:] = 0
    for other, was in zip(others, before, strict=True):
        same(other, was)


def test_contiguous_slices_and_reshaped_arrays_share_memory() -> None:
    x = nd.array(X)
    row, part, flat = x[1], x[1, 1:3], x.reshape((-1,))[3:5]
    x[:] = 2
    for view in (row, part, flat):
        assert (view.asnumpy() == 2).all()
    row[:] = 3
    part += 1
    flat[0] = 9
    x[2, 3] -= 2
    expected = np.full((3, 4, 5), 2, np.float32)
    expected[1] = 3
    expected[1, 1:3] += 1
    expected[0, 0, 3] = 9
    expected[2, 3] -= 2
    same(x, expected)
    x.storage.rehome(np.zeros((3, 4, 5), np.float32))
    row[:] = 7
    assert (x.asnumpy()[1] == 7).all()
    with pytest.raises(ValueError, match="view"):
        row.storage.rehome(np.zeros((4, 5), np.float32))


def test_other_parts_are_copies() -> None:
    x = nd.array(X)
    for copied in (x[:, 1], x[::2], x.reshape_like(x)):
        copied[:] = 0
    same(x, X)
    x[:, 1] += 1
    same(x[:, 1], X[:, 1] + 1)


def test_an_array_without_axes_is_read_and_written_whole() -> None:
    x = NDArray(np.zeros((), np.float32))
    x[:] = 2
    x += 1
    assert x.shape == () and x[:].asscalar() == x[...].asscalar() == 3


def test_writing_one_element() -> None:
    x = nd.zeros((3,))
    x[1] = nd.array([5])
    x[2] += 1
    same(x, [0, 5, 1])


def test_arguments_that_are_no_arrays() -> None:
    with pytest.raises(TypeError, match=r"dot: (.|\n)*ndarray(.|\n)*nd.array"):
        nd.dot(nd.array(X[0]), X[0].T)


def test_inplace_operators_keep_the_handle() -> None:
    x = nd.ones((2,))
    alias = x
    x += 1
    x *= nd.array([1, 3])
    assert alias is x
    same(alias, [2, 6])


@pytest.mark.parametrize(
    ("codes", "shape"),
    [
        ((0, -1), (2, 12)),
        ((-3, 0), (6, 4)),
        ((-2,), (2, 3, 4)),
        ((0, -2), (2, 3, 4)),
        ((0, 0, -4, 2, -1), (2, 3, 2, 2)),
    ],
)
def test_reshape_codes(codes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert nd.zeros((2, 3, 4)).reshape(codes).shape == shape
    assert nd.zeros((2, 3, 4)).reshape(*codes).shape == shape
    assert nd.zeros((2, 3, 4)).reshape(shape=codes).shape == shape


def test_reshape_errors() -> None:
    with pytest.raises(ShapeError, match=r"reshape: the 6 elements of shape \[2, 3\]"):
        nd.zeros((2, 3)).reshape((4, 2))
    with pytest.raises(TypeError, match="reshape: shape is given twice"):
        nd.zeros((2, 3)).reshape(6, shape=(3, 2))
    assert nd.zeros((2, 3)).reshape(shape=-1).shape == (6,)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reductions(name: str, axis: int | tuple[int, ...] | None) -> None:
    expected = getattr(X, name)(axis=axis)
    result = getattr(nd, name)(nd.array(X), axis=axis)
    assert result.shape == (expected.shape or (1,))
    same(result, expected, rtol=1e-4)
    same(getattr(nd.array(X), name)(axis=axis, keepdims=True), getattr(X, name)(axis=axis, keepdims=True), rtol=1e-4)


def test_reduction_excluding() -> None:
    same(nd.array(X).mean(axis=0, exclude=True), X.mean(axis=(1, 2)), rtol=1e-5)


def test_arg_and_norm() -> None:
    x = nd.array(X)
    assert x.argmax(axis=1).dtype is np.float32
    same(x.argmax(axis=1), X.argmax(axis=1))
    same(x.argmin(axis=-1, keepdims=True), X.argmin(axis=-1, keepdims=True))
    same(x.argmax(), [X.argmax()])
    same(x.norm(), [np.sqrt((X * X).sum())], rtol=1e-5)
    same(x.norm(ord=1, axis=1), np.abs(X).sum(axis=1), rtol=1e-5)


def test_shapes() -> None:
    x = nd.array(X)
    same(x.T, X.T)
    same(x.transpose((1, 0, 2)), X.transpose(1, 0, 2))
    same(x.swapaxes(0, 2), X.swapaxes(0, 2))
    same(x.flatten(), X.reshape(3, -1))
    same(x.transpose(axes=(1, 2, 0)), X.transpose(1, 2, 0))
    same(x.expand_dims(-1), X[..., None])
    same(x.expand_dims(1).squeeze(), X)
    same(x.tile((2, 1, 3)), np.tile(X, (2, 1, 3)))
    same(x.repeat(2, axis=1), X.repeat(2, axis=1))
    same(x.repeat(3), X.repeat(3))
    same(x.flip(axis=1), X[:, ::-1])
    same(x.slice_axis(axis=1, begin=1, end=None), X[:, 1:])
    same(nd.slice(x, begin=(1, None), end=(3, 2)), X[1:3, :2])
    same(nd.concat(x, x, dim=2), np.concatenate([X, X], 2))
    same(nd.stack(x, x, axis=-1), np.stack([X, X], -1))
    parts = nd.split(x, num_outputs=2, axis=1)
    assert isinstance(parts, list)
    same(parts[1], X[:, 2:])
    same(nd.array(X[:1]).broadcast_to((3, 4, 5)), np.broadcast_to(X[:1], X.shape))
    same(nd.cumsum(x, axis=1), X.cumsum(axis=1), rtol=1e-5)


def test_choosing() -> None:
    x, i = nd.array(X), nd.array([0, 2, 1])
    same(x.take(i, axis=1), X.take([0, 2, 1], axis=1))
    same(x.take(nd.array([9, 4]), axis=1), X[:, [3, 3]])
    same(x.take(nd.array([9, -1]), axis=1, mode="wrap"), X[:, [1, 3]])
    same(nd.pick(nd.array(X[:, :, 0]), i), X[[0, 1, 2], [0, 2, 1], 0])
    same(nd.one_hot(i, 3), np.eye(3)[[0, 2, 1]])
    same(nd.one_hot(i, 3, on_value=5, off_value=-1), np.eye(3)[[0, 2, 1]] * 6 - 1)
    same(nd.where(x > 0, x, -x), np.abs(X))
    same(x.clip(-0.5, 0.5), X.clip(-0.5, 0.5))
    same(nd.maximum(x, 0.1), np.maximum(X, 0.1))


def test_products() -> None:
    a, b = X[0], X[1]
    same(nd.dot(nd.array(a), nd.array(b), transpose_b=True), a @ b.T, rtol=1e-4)
    same(nd.dot(nd.array(a), nd.array(b), transpose_a=True), a.T @ b, rtol=1e-4)
    same(nd.dot(nd.array(X), nd.array(b.T)), np.tensordot(X, b.T, 1), rtol=1e-4)
    same(nd.batch_dot(nd.array(X), nd.array(X), transpose_b=True), X @ X.transpose(0, 2, 1), rtol=1e-4)
    same(nd.array(a) @ nd.array(b.T), a @ b.T, rtol=1e-4)
    with pytest.raises(ShapeError, match="dot"):
        nd.dot(nd.array(a), nd.array(b))


def test_layers() -> None:
    x = nd.array(X[0])
    e = np.exp(X[0] - X[0].max(-1, keepdims=True))
    same(x.softmax(), e / e.sum(-1, keepdims=True), rtol=1e-5)
    same(x.log_softmax(), np.log(e / e.sum(-1, keepdims=True)), rtol=1e-4)
    w = RNG.standard_normal((2, 5)).astype(np.float32)
    same(nd.FullyConnected(x, nd.array(w), nd.ones((2,)), num_hidden=2), X[0] @ w.T + 1, rtol=1e-4)
    same(nd.Activation(x, "relu"), np.maximum(X[0], 0))
    image = nd.array(X.reshape(1, 3, 4, 5))
    assert nd.Convolution(image, nd.ones((2, 3, 3, 3)), nd.zeros((2,)), kernel=(3, 3), num_filter=2).shape == (
        1,
        2,
        2,
        3,
    )
    assert nd.Convolution(nd.array(X), nd.ones((2, 4, 3)), kernel=(3,), pad=(1,), no_bias=True).shape == (3, 2, 5)
    same(nd.Pooling(image, kernel=(2, 2), stride=(2, 2)), X[None, :, :, :4].reshape(1, 3, 2, 2, 2, 2).max((3, 5)))
    same(nd.Pooling(image, global_pool=True, pool_type="avg"), X[None].mean((2, 3), keepdims=True), rtol=1e-4)
    same(nd.Embedding(nd.array([2, 0]), x, input_dim=4, output_dim=5), X[0][[2, 0]])
    label = nd.array([1, 0, 4, 2])
    picked = np.log(e / e.sum(-1, keepdims=True))[range(4), [1, 0, 4, 2]]
    same(nd.softmax_cross_entropy(x, label), [-picked.sum()], rtol=1e-4)


def test_errors_name_the_op_the_types_and_the_line() -> None:
    with pytest.raises(ShapeError, match=r"f32\[2,3\](.|\n)*f32\[2,4\](.|\n)*test_ndarray.py"):
        nd.zeros((2, 3)) + nd.zeros((2, 4))
    with pytest.raises(ShapeError, match=r"FullyConnected(.|\n)*in_units"):
        nd.FullyConnected(nd.zeros((2, 3)), nd.zeros((4, 5)))


def test_context() -> None:
    x = nd.zeros((2,), ctx=cpu(1))
    assert x.context == cpu(1) and (x + 1).context == cpu(1) and x.as_in_context(cpu(1)) is x
    assert x.copyto(cpu(0)).context == cpu(0)
    with cpu(2):
        assert current_context() == cpu(2) and nd.zeros((1,)).context == cpu(2)
    assert current_context() == cpu(0)
    with pytest.raises(MXNetError, match=r"different devices(.|\n)*as_in_context"):
        x + nd.zeros((2,))
    with pytest.raises(MXNetError, match=r"gpu\(0\)"):
        nd.zeros((2,), ctx=gpu(0))


def test_copyto_array() -> None:
    x, y = nd.ones((2,)), nd.zeros((2,))
    assert x.copyto(y) is y
    same(y, [1, 1])


def test_storage_follows() -> None:
    x = nd.array([1, 2])
    alias = x.detach()
    arena = np.zeros(4, np.float32)
    x.storage.rehome(arena[1:3])
    same(alias, [1, 2])
    x[0] = 9
    assert arena.tolist() == [0, 9, 2, 0]


def test_dropout_needs_training() -> None:
    x = nd.ones((100,))
    assert nd.Dropout(x, p=0.5) is x
    with autograd.train_mode():
        y = nd.Dropout(x, p=0.5).asnumpy()
    assert set(np.unique(y)) == {0.0, 2.0}


def test_nothing_is_built_twice() -> None:
    from gluongraph.ndarray import _FUNCTIONS

    x = nd.array(X)
    x * 2.0 + x
    before = len(_FUNCTIONS)
    for _ in range(3):
        x * 2.0 + x
    for i in range(3):
        x[i:], x[:, i], x[::-1, i : i + 2]
        with autograd.record():
            x[:, i]
    assert len(_FUNCTIONS) == before
    assert float((nd.zeros((1,)) * -0.0).asnumpy().view(np.int32)[0]) == -(2.0**31)  # 0.0 and -0.0 are two numbers
    assert (nd.zeros((1,)) * 0.0).asnumpy().view(np.int32)[0] == 0


def test_numpys_reductions_are_those_of_the_array() -> None:
    x = nd.array(X)
    for function in (np.sum, np.max, np.min, np.prod):
        made = function(x, axis=1)
        assert isinstance(made, NDArray)
        same(made, function(X, axis=1), rtol=1e-5)
    same(np.argmax(x, axis=1), X.argmax(1))
    out = nd.zeros((3, 5))
    assert x.sum(axis=1, out=out) is out
    same(out, X.sum(1), rtol=1e-5)
