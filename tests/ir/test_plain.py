"""Attributes and shapes are Python's own values, whatever they are given as: over the table of ops."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gluongraph import gluon, nd, ops
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError
from gluongraph.ir import serialize
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType
from gluongraph.ir.plain import PLAIN, extents, plain


class Kind(enum.IntEnum):
    TWO = 2


def by_numpy(value: Any) -> Any:
    """The same attribute, of numpy's types; tuples as lists."""
    kind = type(value)
    if kind is bool:
        return np.bool_(value)
    if kind is int:
        return np.int64(value) if -(1 << 63) <= value < 1 << 63 else np.uint64(value)
    if kind is float:
        return np.float64(value)
    if kind is tuple:
        return [by_numpy(part) for part in value]
    return value


def leaves(arrays: tuple[Any, ...]) -> list[Node] | None:
    if any(isinstance(a, tuple) for a in arrays):
        return None
    types = [TensorType(np.asarray(a).shape, dtype_name(np.asarray(a).dtype)) for a in arrays]
    return [ops.input(f"x{k}", t) for k, t in enumerate(types)]


def is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(is_plain, value))
    return type(value) in PLAIN or isinstance(value, Graph)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.samples], ids=str)
def test_attributes_of_every_op(op: Op) -> None:
    """Numbers by numpy make the very node that Python's make, whichever comes first; and it can be written."""
    assert op.samples is not None
    for arrays, attrs in op.samples(np.random.default_rng(0)):
        if (given := leaves(arrays)) is None:
            continue
        made = op(*given, **{k: by_numpy(v) for k, v in attrs.items()})
        assert all(map(is_plain, made.attrs.values())), made.attrs
        assert all(type(n) is int for t in made.types for n in t.shape), made.types
        assert made is op(*given, **attrs)
        results = ops.get_tuple_elements(made) if isinstance(made.type, tuple) else (made,)
        inputs = {n.attrs["name"]: n for n in given}
        graph = Graph(inputs, {f"y{k}": n for k, n in enumerate(results)})
        assert serialize.loads(serialize.dumps(graph)) == graph


def test_plain() -> None:
    given = (np.int8(2), [np.float16(0.5), (np.bool_(True), None)], np.array(7), ml_dtypes.bfloat16(3), np.str_("a"))
    made = plain(given)
    assert made == (2, (0.5, (True, None)), 7, 3.0, "a") and is_plain(made)
    assert [type(plain(x)) for x in (np.longdouble(1), Kind.TWO, np.float32(1))] == [float, int, float]
    same = (1, "a", None)
    assert plain(same) is same


def test_extents() -> None:
    assert extents(np.int64(3)) == (3,) and extents(np.array([2, 3])) == (2, 3)
    assert TensorType((np.int64(2), True)) == TensorType((2, 1))
    for wrong in (2.0, (2.0, 3), np.float64(2), "23"):
        with pytest.raises(TypeError):
            extents(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TensorType((2.0, 3))  # type: ignore[arg-type]


def test_what_no_graph_can_hold() -> None:
    """It is refused when the node is made, by the name of the op, and no node is left behind."""
    x = ops.input("x", TensorType((3, 4)))
    for strange in (object(), np.ones(2), {"a": 1}):
        with pytest.raises(TypeError, match="sum: the attribute axes"):
            OPS["sum"](x, axes=strange, keepdims=False)


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CALLS = [  # functions of nd with numbers by numpy, and what numpy says
    (lambda x, n: nd.sum(x, axis=n(1)), X.sum(1)),
    (lambda x, n: nd.sum(x, axis=(n(0), n(2))), X.sum((0, 2))),
    (lambda x, n: x.mean(axis=n(1)), X.mean(1)),
    (lambda x, n: nd.max(x, n(2)), X.max(2)),
    (lambda x, n: nd.softmax(x - x, axis=n(1)), np.full_like(X, 1 / 3)),
    (lambda x, n: nd.concat(x, x, dim=n(1)), np.concatenate([X, X], 1)),
    (lambda x, n: nd.stack(x, x, axis=n(1)), np.stack([X, X], 1)),
    (lambda x, n: x.swapaxes(n(0), n(1)), X.swapaxes(0, 1)),
    (lambda x, n: nd.slice_axis(x, axis=n(1), begin=n(1), end=n(2)), X[:, 1:2]),
    (lambda x, n: x.reshape((n(4), n(-1))), X.reshape(4, 6)),
    (lambda x, n: x.reshape(n(4), n(6)), X.reshape(4, 6)),
    (lambda x, n: nd.reshape(x, shape=(n(4), n(6))), X.reshape(4, 6)),
    (lambda x, n: x.transpose((n(2), n(0), n(1))), X.transpose(2, 0, 1)),
    (lambda x, n: x.expand_dims(n(1)), X[:, None]),
    (lambda x, n: nd.tile(x, n(2)), np.tile(X, 2)),
    (lambda x, n: nd.repeat(x, n(2), axis=n(0)), X.repeat(2, 0)),
    (lambda x, n: nd.moveaxis(x, n(0), n(2)), np.moveaxis(X, 0, 2)),
    (lambda x, n: nd.split(x, n(3), axis=n(1))[2], X[:, 2:]),
    (lambda x, n: nd.flip(x, n(1)), X[:, ::-1]),
    (lambda x, n: nd.broadcast_axis(x[:, :1], axis=n(1), size=n(3)), X[:, :1].repeat(3, 1)),
    (lambda x, n: nd.clip(x, n(2), n(5)), X.clip(2, 5)),
    (lambda x, n: x * n(3) + n(2), X * 3 + 2),
    (lambda x, n: x[n(1)], X[1]),
    (lambda x, n: x[:, n(0) : n(2), n(1)], X[:, 0:2, 1]),
    (lambda x, n: nd.zeros((n(2), n(3))) + x.sum(axis=n(2)), X.sum(2)),
    (lambda x, n: nd.full(n(2), n(7)), np.full(2, 7)),
    (lambda x, n: nd.one_hot(x[0, 0], n(4)), np.eye(4)),
    (lambda x, n: nd.sum(x, axis=1, keepdims=np.bool_(True)), X.sum(1, keepdims=True)),
]


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8, np.array], ids=lambda n: n.__name__)
def test_functions_take_numbers_by_numpy(number: Any) -> None:
    for call, expected in CALLS:
        if number is np.uint8 and "-1" in call.__code__.co_consts.__repr__():
            continue  # no negative ones
        np.testing.assert_allclose(call(nd.array(X), number).asnumpy(), expected, rtol=1e-6)


def test_vectors_by_numpy_are_axes() -> None:
    np.testing.assert_allclose(nd.sum(nd.array(X), axis=np.array([0, 2])).asnumpy(), X.sum((0, 2)))


def test_a_compiled_block_takes_numbers_by_numpy() -> None:
    """And leaves nothing behind that another block of the same shapes would stumble on."""

    class Net(gluon.HybridBlock):
        def __init__(self, number: Any):
            super().__init__()
            self.number = number

        def forward(self, x: Any) -> Any:
            n = self.number
            return nd.softmax(x.reshape((n(5), n(7))), axis=n(1)).sum(axis=n(0)) * n(2)

    given = nd.arange(35)
    for number in (np.int64, int):
        net = Net(number)
        net.hybridize()
        np.testing.assert_allclose(net(given).asnumpy().sum(), 10, rtol=1e-5)


def test_layers_take_numbers_by_numpy() -> None:
    n = np.int64
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(n(4), n(3), padding=n(1), strides=(n(1), n(1))),
        gluon.nn.MaxPool2D(n(2)),
        gluon.nn.BatchNorm(axis=n(1), momentum=np.float64(0.5), epsilon=np.float32(1e-3)),
        gluon.nn.ReflectionPad2D(n(1)),
        gluon.nn.Dropout(np.float64(0.5)),
        gluon.nn.Dense(n(5), in_units=n(4 * 6 * 6)),
    )
    net.initialize()
    x = nd.ones((2, 3, 8, 8))
    eager = net(x).asnumpy()
    assert all(type(k) is int for p in net.collect_params().values() for k in p.shape)
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), eager, rtol=1e-4, atol=1e-5)


def test_a_failed_block_leaves_nothing_behind() -> None:
    """Blocks that raise while they are traced, at extents and attributes of all kinds, and then a right one."""

    class Net(gluon.HybridBlock):
        def __init__(self, axis: Any, shape: Any):
            super().__init__()
            self.axis, self.shape = axis, shape

        def forward(self, x: Any) -> Any:
            return nd.softmax(nd.reshape(x, shape=self.shape), axis=self.axis)

    given = nd.ones((33,))
    for axis, shape in ((1.0, (3, 11)), (1, (3.0, 11)), (np.float64(1), (3, 11)), (object(), (3, 11)), (5, (3, 11))):
        for active in (False, True):
            net = Net(axis, shape)
            net.hybridize(active)
            with pytest.raises((TypeError, MXNetError)):
                net(given)
    right = Net(1, (3, 11))
    right.hybridize()
    np.testing.assert_allclose(right(given).asnumpy(), 1 / 11, rtol=1e-6)


def test_a_number_by_numpy_on_a_block_is_a_setting() -> None:
    """A compiled block follows when it changes."""

    class Net(gluon.HybridBlock):
        scale = np.float32(2)

        def forward(self, x: Any) -> Any:
            return x * self.scale

    net = Net()
    net.scale = np.int64(2)
    net.hybridize()
    assert net(nd.ones((3,))).asnumpy().tolist() == [2, 2, 2]
    net.scale = np.int64(3)
    assert net(nd.ones((3,))).asnumpy().tolist() == [3, 3, 3]
