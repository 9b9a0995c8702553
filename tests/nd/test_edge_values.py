"""Values that lie at the edge of what functions of nd are made for; the expected ones are those of MXNet 1.9.1."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd, ops
from gluongraph.contrib import text
from gluongraph.errors import MXNetError, ShapeError
from gluongraph.ndarray import NDArray

NAN, INF = float("nan"), float("inf")
ODD = [NAN, -1.0, 0.0, 1.0, INF, -INF]


def values(array: NDArray) -> Any:
    return array.asnumpy().tolist()


def compiled(function: Any, *arrays: NDArray) -> NDArray:
    """The function as a hybridized block."""

    class Net(gluon.HybridBlock):
        def forward(self, *xs: NDArray) -> Any:
            return function(*xs)

    net = Net()
    net.hybridize()
    made: NDArray = net(*arrays)
    return made


# -- indices


def test_unravel_index_with_a_free_axis() -> None:
    at = nd.array([5, 9, 100])
    assert values(nd.unravel_index(at, shape=(-1, 8))) == [[0, 1, 12], [5, 1, 4]]
    assert values(nd.unravel_index(at, shape=(2, 8))) == [[0, 1, 12], [5, 1, 4]]
    assert values(nd.ravel_multi_index(nd.array([[0, 1, 12], [5, 1, 4]]), shape=(-1, 8))) == [5, 9, 100]
    for function in (nd.unravel_index, nd.ravel_multi_index):
        for shape in ((2, -1), (-2, 8), (0, 8), (3, 0), ()):
            with pytest.raises(ShapeError, match="extents are positive"):
                function(nd.array([[1], [1]]), shape=shape)


ROWS = [[1, NAN, 3], [NAN, 2, NAN], [4, 5, 6], [NAN, NAN, NAN], [9, NAN, 3]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_extreme_of_what_holds_nan_is_nan(dtype: str) -> None:
    x = nd.array(ROWS, dtype=dtype)
    for function, whole in ((nd.argmax, 2), (nd.argmin, 0)):
        assert values(function(x, axis=1)) == [1, 0, whole, 0, 1]
        assert values(function(x, axis=0)) == [1, 0, 1]
        assert values(function(x)) == [1]
    assert values(nd.argmax_channel(x)) == [1, 0, 2, 0, 1]


def test_compiled_extremes_of_what_holds_nan() -> None:
    x = nd.array(ROWS)
    both = compiled(lambda x: nd.concat(nd.argmax(x, axis=1), nd.argmin(x, axis=1), dim=0), x)
    assert values(both) == [1, 0, 2, 0, 1, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("block_size", [0, -1])
@pytest.mark.parametrize("function", [nd.depth_to_space, nd.space_to_depth], ids=lambda f: f.__name__)
def test_blocks_have_a_size(function: Any, block_size: int) -> None:
    with pytest.raises(MXNetError, match="block_size is a whole number from 1 on"):
        function(nd.ones((1, 4, 2, 2)), block_size)


# -- gradients

SLOPES = {  # of activations at NaN, -1, 0, 1 and both infinities; None where MXNet's differs from the derivative
    "relu": (nd.relu, [NAN, 0, 0, 1, 1, 0]),
    "Activation": (lambda x: nd.Activation(x, act_type="relu"), [NAN, 0, 0, 1, 1, 0]),
    "softrelu": (lambda x: nd.Activation(x, act_type="softrelu"), [NAN, 0.26894143, 0.5, 0.7310586, 1, 0]),
    "leaky": (nd.LeakyReLU, [1, 0.25, 0.25, 1, 1, 0.25]),
    "elu": (lambda x: nd.LeakyReLU(x, act_type="elu"), [1, 0.09196987, 0.25, 1, 1, 0]),
    "selu": (lambda x: nd.LeakyReLU(x, act_type="selu"), [1.050701, 0.6467686, 1.7580993, 1.050701, 1.050701, 0]),
    "smooth_l1": (nd.smooth_l1, [NAN, -1, 0, 1, 1, -1]),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes(name: str) -> None:
    function, expected = SLOPES[name]

    def slope(x: NDArray, f: Any) -> Any:
        x.attach_grad()
        with autograd.record():
            y = f(x)
        y.backward()
        return x.grad.asnumpy()

    np.testing.assert_allclose(slope(nd.array(ODD), function), expected, rtol=1e-5)


def test_compiled_slope_of_relu() -> None:
    class Net(gluon.HybridBlock):
        def forward(self, x: NDArray) -> NDArray:
            return nd.relu(x)

    net, x = Net(), nd.array(ODD)
    net.hybridize()
    x.attach_grad()
    with autograd.record():
        y = net(x)
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), SLOPES["relu"][1])


@pytest.mark.parametrize("beyond", [NAN, INF])
def test_ctc_does_not_see_what_lies_beyond_the_lengths(beyond: float) -> None:
    scores = np.random.default_rng(0).standard_normal((6, 2, 5)).astype(np.float32)
    found = []
    for fill in (0.0, beyond):
        scores[4:, 0] = fill
        x = nd.array(scores)
        x.attach_grad()
        with autograd.record():
            loss = nd.CTCLoss(x, nd.array([[1, 2], [2, 3]]), nd.array([4, 6]), use_data_lengths=True)
        loss.backward()
        assert np.isfinite(loss.asnumpy()).all() and not x.grad.asnumpy()[4:, 0].any()
        found.append((loss.asnumpy(), x.grad.asnumpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


# -- 16 bits

FORMULAS = {  # functions that are composed of several operations, and where they are looked at
    "gamma": (0.1, 8.0), "gammaln": (0.1, 50.0), "erfinv": (-0.99, 0.99), "cbrt": (-9.0, 9.0), "rcbrt": (0.1, 9.0),
    "tan": (-1.3, 1.3), "arctan": (-9.0, 9.0), "arcsin": (-0.99, 0.99), "arccos": (-0.99, 0.99), "sinh": (-4.0, 4.0),
    "cosh": (-4.0, 4.0), "arcsinh": (-90.0, 90.0), "arccosh": (1.01, 90.0), "arctanh": (-0.99, 0.99),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_16_bits_are_rounded_once(name: str, dtype: str) -> None:
    x = nd.array(np.linspace(*FORMULAS[name], 997), dtype=dtype)
    exact = getattr(nd, name)(x.astype("float64")).asnumpy()
    found = getattr(nd, name)(x)
    assert found.dtype == x.dtype
    half = 2.0**-11 if dtype == "float16" else 2.0**-8  # of a unit in the last place
    np.testing.assert_allclose(found.astype("float64").asnumpy(), exact, rtol=1.01 * half, atol=1e-5)


def test_gammaln_of_infinity() -> None:
    assert values(nd.gammaln(nd.array([INF]))) == [INF]


# -- making arrays

COUNTED = [
    ((1.3, 8, 1.3), "int32", [1, 2, 3, 4, 5, 6]),
    ((-3.7, 3, 1.5), "int32", [-3, -2, -1, 0, 1]),
    ((0, 3, 0.5), "int64", [0] * 6),
    ((0, 10, 1.3), "int64", list(range(8))),
    ((3, 0, -1), "int32", [3, 2, 1]),
    ((5,), "uint8", list(range(5))),
    ((1.5, 4, 1.5), "float32", [1.5, 3.0]),
]


@pytest.mark.parametrize(("arguments", "dtype", "expected"), COUNTED)
def test_arange_counts_in_whole_steps(arguments: tuple[float, ...], dtype: str, expected: list[float]) -> None:
    made = nd.arange(*arguments, dtype=dtype)
    assert values(made) == expected and made.dtype == np.dtype(dtype)


def test_an_array_without_axes() -> None:
    for source in (np.ones(()), 1.0, np.float64(1)):
        made = nd.array(source)
        assert made.shape == () and made.size == 1 and made.asscalar() == 1 and made.reshape((1,)).shape == (1,)
    assert values(compiled(lambda x: x * nd.array(2.0), nd.ones((2,)))) == [2, 2]


GOOD = np.arange(12, dtype=np.float32).reshape(3, 4)
READ_ONLY = GOOD.copy()
READ_ONLY.setflags(write=False)
FOREIGN = {
    "big-endian": GOOD.astype(">f4"),
    "transposed": GOOD.T.copy().T,
    "reversed": GOOD[::-1].copy()[::-1],
    "every other": np.repeat(GOOD, 2, 1)[:, ::2],
    "by columns": np.asfortranarray(GOOD),
    "big-endian integers": GOOD.astype(">i4"),
    "read-only": READ_ONLY,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_arrays_by_numpy_of_any_layout(name: str) -> None:
    given = FOREIGN[name]
    native = given.dtype.newbyteorder("=")

    def check(made: NDArray, expected: Any = GOOD) -> None:
        array = made.storage.array
        assert array.dtype.isnative
        np.testing.assert_array_equal(array, expected)

    check(nd.array(given))
    check(nd.array(given, dtype=given.dtype))
    check(nd.from_numpy(given, zero_copy=False))
    check(nd.ones((3, 4)) + given, GOOD + 1)
    check(given + nd.ones((3, 4)), GOOD + 1)
    whole = nd.zeros((3, 4))
    whole[:] = given
    check(whole)
    whole[1:] = 2 * given[1:]
    check(whole, np.concatenate([GOOD[:1], 2 * GOOD[1:]]))
    parameter = gluon.Parameter("w", shape=(3, 4), init=mx.init.Constant(given))
    parameter.initialize()
    check(parameter.data())
    parameter.set_data(given)
    check(parameter.data())
    check(next(iter(gluon.data.DataLoader(given, 3))))
    check(mx.io.NDArrayIter(given, batch_size=3).next().data[0])
    check(nd.array(GOOD)[np.array([2, 0], ">i8")], GOOD[[2, 0]])
    assert ops.literal(given).attrs["data"] == np.ascontiguousarray(given, native).tobytes()
    if not given.dtype.isnative:
        with pytest.raises(ValueError, match="byte order"):
            nd.from_numpy(given)


def test_a_compiled_step_takes_arrays_of_any_layout() -> None:
    net = gluon.nn.Dense(2, in_units=4, use_bias=False)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    step = mx.compile(net, gluon.loss.L1Loss(), trainer)
    for name, given in FOREIGN.items():
        if given.dtype.kind == "f":
            assert values(step(given, np.zeros((3, 2), ">f4"))) == GOOD.sum(1).tolist(), name


# -- layers


def test_slopes_of_prelu() -> None:
    x = nd.array([[-1, -2], [3, -4]])
    by_shape = {
        (2, 2): [[-0.1, -0.4], [3, -1.6]],
        (2,): [[-0.1, -0.4], [3, -0.8]],
        (1, 2): [[-0.1, -0.4], [3, -0.8]],
        (1,): [[-0.1, -0.2], [3, -0.4]],
    }
    for shape, expected in by_shape.items():
        slopes = nd.array([0.1, 0.2, 0.3, 0.4])[: int(np.prod(shape))].reshape(shape)
        np.testing.assert_allclose(values(nd.LeakyReLU(x, gamma=slopes, act_type="prelu")), expected, rtol=1e-6)
    line = nd.LeakyReLU(nd.array([-1, -2, 3]), gamma=nd.array([0.1, 0.2, 0.3]), act_type="prelu")
    np.testing.assert_allclose(values(line), [-0.1, -0.4, 3], rtol=1e-6)
    image = nd.LeakyReLU(-nd.ones((2, 3, 4, 5)), gamma=nd.array([1, 2, 3]), act_type="prelu")
    assert values(image)[1][2][3][4] == -3
    with pytest.raises(ShapeError, match="the slopes"):
        nd.LeakyReLU(x, gamma=nd.ones((3,)), act_type="prelu")


@pytest.mark.parametrize("name", ["Conv1DRNNCell", "Conv1DLSTMCell", "Conv1DGRUCell", "Conv2DLSTMCell"])
def test_convolutional_cells_learn_their_channels(name: str) -> None:
    extents = (7,) * int(name[4])
    cell = getattr(gluon.contrib.rnn, name)((0, *extents), 4, 3, 3, 1)
    assert "None ->" in repr(cell)
    cell.initialize()
    output, _ = cell(nd.ones((2, 3, *extents)), cell.begin_state(2))
    assert output.shape == (2, 4, *extents) and cell.i2h_weight.shape[1] == 3
    cell.reset()
    unrolled, _ = cell.unroll(2, [nd.ones((2, 3, *extents))] * 2)
    assert unrolled[0].shape == output.shape


def nets() -> list[tuple[gluon.HybridBlock, tuple[int, ...]]]:
    class Own(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.params.get("weight", shape=(3, 0), allow_deferred_init=True)

        def hybrid_forward(self, F: Any, x: NDArray, weight: Any) -> Any:
            return F.FullyConnected(x, weight, None, num_hidden=3, no_bias=True)

    stack = gluon.nn.HybridSequential()
    stack.add(gluon.nn.Dense(3), gluon.nn.BatchNorm())
    layers: list[tuple[gluon.HybridBlock, tuple[int, ...]]] = [
        (gluon.nn.Dense(3), (2, 5)), (gluon.nn.Conv2D(3, 3), (2, 5, 5, 5)), (gluon.nn.LayerNorm(), (2, 5)),
        (gluon.nn.BatchNorm(), (2, 5)), (gluon.rnn.LSTM(3), (2, 5, 5)), (Own(), (2, 5)), (stack, (2, 5)),
        (gluon.nn.Conv2DTranspose(3, 3), (2, 5, 5, 5)), (gluon.nn.PReLU(), (2, 5)),
    ]  # fmt: skip
    return layers


@pytest.mark.parametrize("number", range(9))
def test_forward_by_itself_settles_shapes(number: int) -> None:
    net, shape = nets()[number]
    net.initialize()
    made = net.forward(nd.ones(shape))
    assert all(n > 0 for p in net.collect_params().values() for n in p.shape)
    np.testing.assert_array_equal(made.asnumpy(), net(nd.ones(shape)).asnumpy())


# -- files and texts

# pickle.dumps({"a": nd.array([[1, 2], [3, 4]]), "h": nd.array([1, 2], dtype="float16")}, 2) by MXNet 1.9.1
PICKLED = """
gAJ9cQAoWAEAAABhcQFjbXhuZXQubmRhcnJheS5uZGFycmF5Ck5EQXJyYXkKcQJOhXEDUnEEfXEFWAYAAABoYW5kbGVxBmNfX2J1aWx0aW5fXw
pieXRlYXJyYXkKcQdjX2NvZGVjcwplbmNvZGUKcQhYPgAAAMOJw7rCk8O5AAAAAAIAAAACAAAAAAAAAAIAAAAAAAAAAQAAAAAAAAAAAAAAAADC
gD8AAABAAABAQAAAwoBAcQlYBgAAAGxhdGluMXEKhnELUnEMhXENUnEOc2JYAQAAAGhxD2gCaANScRB9cRFoBmgHaAhYKAAAAMOJw7rCk8O5AA
AAAAEAAAACAAAAAAAAAAEAAAAAAAAAAgAAAAA8AEBxEmgKhnETUnEUhXEVUnEWc2J1Lg==
"""


def test_pickles_by_mxnet() -> None:
    class Unpickler(pickle.Unpickler):
        """Finds MXNet's class here, as `python -m gluongraph.mxnet` does."""

        def find_class(self, module: str, name: str) -> Any:
            return (
                NDArray if (module, name) == ("mxnet.ndarray.ndarray", "NDArray") else super().find_class(module, name)
            )

    made = Unpickler(io.BytesIO(base64.b64decode(PICKLED))).load()
    assert values(made["a"]) == [[1, 2], [3, 4]] and made["h"].dtype is np.float16 and values(made["h"]) == [1, 2]
    assert values(made["a"] + 1) == [[2, 3], [4, 5]]


def test_tokens_in_lower_case() -> None:
    """Delimiters are looked for before letters become lower case."""
    assert text.count_tokens_from_str("aXbXA", "X", "\n", to_lower=True) == {"a": 2, "b": 1}
    assert text.count_tokens_from_str("axAXa", "x", "\n", to_lower=True) == {"a": 1, "axa": 1}
