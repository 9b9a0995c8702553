"""Builders: numbers become constants, shapes are broadcast, axes count from either end; and what errors say."""

import math

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.errors import DTypeError, MXNetError, ShapeError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, TensorType, topological
from gluongraph.ops.autodiff import gradients


def leaf(name, *shape, dtype="f32"):
    return ops.input(name, TensorType(shape, dtype))


def value(n, **arrays):
    env = {m: arrays[m.attrs["name"]] for m in topological([n]) if m.op.name == "input"}
    return interpreter.evaluate([n], env)[0]


x, y = leaf("x", 2, 3), leaf("y", 3)
A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 4], np.float32)


def test_numbers_take_the_dtype_of_the_array():
    for dtype in ("f32", "f64", "bf16", "i32"):
        n = leaf("n", 2, dtype=dtype) + 1
        assert n.dtype == dtype and n.src[1].op.name == "const" and n.src[1].shape == (2,)
    assert (1 - leaf("h", 2, dtype="bf16") * 0.5).dtype == "bf16"
    assert ops.where(ops.greater(x, 0), 1.0, x).dtype == "f32"
    with pytest.raises(DTypeError, match=r"0\.5 is no number of type i32"):
        leaf("n", 2, dtype="i32") * 0.5


def test_shapes_are_broadcast_as_in_numpy():
    np.testing.assert_array_equal(value(x * y, x=A, y=B), A * B)
    column = leaf("c", 2, 1)
    np.testing.assert_array_equal(value(column - y, c=A[:, :1], y=B), A[:, :1] - B)
    (g,) = gradients([x * y], [ops.ones(x.ty)], [y])
    np.testing.assert_array_equal(value(g, x=A), A.sum(0))
    assert g.shape == (3,)


def test_operators_are_ops():
    assert x + 1 is ops.add(x, 1.0) and 2 / x is ops.div(2.0, x) and -x is ops.neg(x) and x**2 is ops.pow(x, 2.0)


def test_nothing_is_built_where_nothing_changes():
    assert ops.reshape(x, (2, -1)) is x
    assert ops.cast(x, "f32") is x
    assert ops.expand(x, (2, 3)) is x
    assert ops.slice(x, (0, 0), (2, 3)) is x
    assert ops.pad(x, (0, 0), (0, 0)) is x
    assert ops.concat(x) is x


def test_axes_count_from_either_end():
    assert ops.sum(x, -1) is ops.sum(x, (1,))
    assert ops.sum(x, (-1, 0)) is ops.sum(x)
    assert ops.softmax(x) is ops.softmax(x, 1)
    assert ops.transpose(x).shape == (3, 2)
    with pytest.raises(ShapeError, match="no axis 2 in 2 axes"):
        ops.sum(x, 2)
    with pytest.raises(ShapeError, match="twice"):
        ops.sum(x, (1, -1))


def test_shapes_by_another_name():
    assert ops.expand_dims(x, -1).shape == (2, 3, 1)
    assert ops.squeeze(ops.expand_dims(x, 0), 0).shape == (2, 3)
    assert ops.moveaxis(leaf("z", 2, 3, 4), 0, 2).shape == (3, 4, 2)
    np.testing.assert_array_equal(value(ops.stack(x, x, axis=1), x=A), np.stack([A, A], 1))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((5, 2, 3), (3, 4), (5, 2, 4)), ((5, 2, 3), (1, 3, 4), (5, 2, 4)), ((2, 3), (5, 3, 4), (5, 2, 4))],
)
def test_matmul_broadcasts_batches(a, b, expected):
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(a).astype("f"), rng.standard_normal(b).astype("f")
    n = ops.matmul(leaf("a", *a), leaf("b", *b))
    assert n.shape == expected
    np.testing.assert_allclose(value(n, a=left, b=right), left @ right, rtol=1e-5, atol=1e-6)


def test_pool_sizes():
    image = leaf("i", 1, 1, 7, 7)
    assert ops.max_pool2d(image, 2).shape == (1, 1, 3, 3)
    assert ops.max_pool2d(image, 2, ceil=True).shape == (1, 1, 4, 4)
    assert ops.max_pool2d(image, 3, 2, 1, ceil=True).shape == (1, 1, 4, 4)
    mean = ops.avg_pool2d(image, 3, 2, 1, count_include_pad=False)
    assert (value(mean, i=np.ones((1, 1, 7, 7), np.float32)) == 1).all()


def test_first_of_equals_gets_the_gradient():
    a = np.zeros((1, 1, 2, 2), np.float32)
    (g,) = gradients([ops.max_pool2d(leaf("i", 1, 1, 2, 2), 2)], [ops.full((1, 1, 1, 1), 3.0)], [leaf("i", 1, 1, 2, 2)])
    np.testing.assert_array_equal(value(g, i=a)[0, 0], [[3, 0], [0, 0]])
    u, v = leaf("u", 2), leaf("v", 2)
    gu, gv = gradients([ops.maximum(u, v)], [ops.ones(u.ty)], [u, v])
    env = {u: np.zeros(2, np.float32), v: np.zeros(2, np.float32)}
    np.testing.assert_array_equal(interpreter.evaluate([gu, gv], env), [[1, 1], [0, 0]])


def test_gradient_of_a_product_with_zeros():
    (g,) = gradients([ops.prod(x, 1)], [ops.ones(TensorType((2,)))], [x])
    rows = np.array([[0, 2, 3], [0, 0, 5]], np.float32)
    np.testing.assert_array_equal(value(g, x=rows), [[6, 0, 0], [0, 0, 0]])


def test_stop_gradient():
    assert gradients([ops.stop_gradient(x) * 2], [ops.ones(x.ty)], [x]) == [None]
    (g,) = gradients([ops.stop_gradient(x) * x], [ops.ones(x.ty)], [x])
    np.testing.assert_array_equal(value(g, x=A), A)


def test_losses_are_exact_for_large_scores():
    scores = np.array([[1000.0, 0.0, -1000.0]], np.float32)
    loss = ops.softmax_cross_entropy(leaf("s", 1, 3), leaf("l", 1, dtype="i32"))
    assert value(loss, s=scores, l=np.array([2], np.int32))[0] == 2000
    assert math.isfinite(value(ops.log_softmax(leaf("s", 1, 3)), s=scores)[0, 2])


def test_attention_row_without_keys_is_finite():
    q = leaf("q", 1, 1, 2, 4)
    n = ops.attention(q, q, q, leaf("m", 1, 1, 2, 2, dtype="bool"))
    a = np.random.default_rng(0).standard_normal((1, 1, 2, 4)).astype("f")
    np.testing.assert_allclose(value(n, q=a, m=np.zeros((1, 1, 2, 2), bool))[0, 0, 0], a.mean(2)[0, 0], rtol=1e-5)


def test_attention_causal_mask_ends_with_the_last_key():
    q, k = leaf("q", 1, 1, 2, 4), leaf("k", 1, 1, 5, 4)
    n = ops.attention(q, k, k, causal=True)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, 1, 2, 4)).astype("f"), rng.standard_normal((1, 1, 5, 4)).astype("f")
    scores = (a @ b.swapaxes(2, 3) / 2)[0, 0]
    scores[0, 4] = -np.inf
    e = np.exp(scores)
    np.testing.assert_allclose(value(n, q=a, k=b)[0, 0], e / e.sum(1, keepdims=True) @ b[0, 0], rtol=1e-5)


def test_inline_is_what_the_composite_means():
    n = ops.softmax(x)
    (body,) = ops.inline(n)
    assert n.op.name == "softmax" and body.op.name == "mul" and body.type == n.type
    np.testing.assert_array_equal(value(body, x=A), value(n, x=A))
    gamma = leaf("g", 3)
    parts = ops.inline(OPS["batch_norm"](x, gamma, gamma, axis=1, eps=1e-5))
    assert [p.shape for p in parts] == [(2, 3), (3,), (3,)]


def test_call_is_its_body_and_so_is_its_gradient():
    a, b = leaf("a", 2, 3), leaf("b", 2, 3)
    body = Graph({"a": a, "b": b}, {"p": ops.tanh(a) * b, "q": a + 1, "n": ops.cast(a, "i32")})
    p, q, n = ops.call(x, x * 2, body=body)
    assert n.dtype == "i32"
    (g,) = gradients([p * q], [ops.ones(x.ty)], [x])
    (h,) = gradients([ops.tanh(x) * (x * 2) * (x + 1)], [ops.ones(x.ty)], [x])
    np.testing.assert_allclose(value(g, x=A), value(h, x=A), rtol=1e-6)


MESSAGES = [
    (lambda: ops.matmul(x, x), ShapeError, r"matmul: inner sizes differ: f32\[2,3\] and f32\[2,3\]"),
    (lambda: x + leaf("z", 4), ShapeError, r"add: shapes do not broadcast: f32\[2,3\] and f32\[4\]"),
    (lambda: x + leaf("z", 2, 3, dtype="f64"), DTypeError, r"add: dtypes differ: f32\[2,3\] and f64\[2,3\]"),
    (lambda: ops.exp(leaf("i", 2, dtype="i32")), DTypeError, r"exp: needs a float type: i32\[2\]"),
    (lambda: ops.reshape(x, (4, 2)), ShapeError, r"reshape: 6 elements do not fill \(4, 2\)"),
    (lambda: ops.slice(x, (0, 0), (3, 3)), ShapeError, "slice: .* is not inside"),
    (lambda: ops.take(x, y), DTypeError, "take: indices are integers"),
    (lambda: ops.concat(x, leaf("z", 2, 3, 1)), ShapeError, "concat: sizes differ"),
    (lambda: ops.where(x, x, x), DTypeError, "the condition is bool"),
    (lambda: ops.conv2d(leaf("i", 1, 3, 5, 5), leaf("w", 4, 2, 3, 3)), ShapeError, "channels do not fit"),
    (lambda: ops.conv2d(leaf("i", 1, 3, 2, 2), leaf("w", 4, 3, 3, 3)), ShapeError, "larger than the padded image"),
    (lambda: ops.max_pool2d(leaf("i", 1, 3, 5, 5), 2, padding=2), ShapeError, "not below the kernel"),
    (lambda: ops.layer_norm(x, leaf("g", 2), leaf("g", 2)), ShapeError, "parameters do not fit"),
    (lambda: ops.softmax_cross_entropy(x, y), ShapeError, r"class numbers have the shape \(2,\)"),
    (lambda: ops.uniform(x, (2,)), ShapeError, r"the state of the generator is u32\[4\]"),
    (lambda: ops.const(300, "u8"), DTypeError, "300 is out of the range of u8"),
    (lambda: ops.get_tuple_element(x, 1), ShapeError, "no result 1 among 1"),
]


@pytest.mark.parametrize(("make", "error", "message"), MESSAGES, ids=[m[2].split(":")[0] for m in MESSAGES])
def test_messages_name_the_op_the_types_and_the_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "test_builders.py" in str(caught.value)
    assert isinstance(caught.value, MXNetError)
