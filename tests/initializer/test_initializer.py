"""Initializers: what they write, which name calls for which rule, how they are found and read as text."""

from __future__ import annotations

import logging
import math
import pathlib
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, init, nd, random


def written(how: Any, shape: tuple[int, ...], name: str = "w_weight") -> Any:
    array = nd.full(shape, 9.0)
    how(init.InitDesc(name), array)
    return array.asnumpy()


FIXED: list[tuple[Any, tuple[int, ...], Any]] = [
    (init.Zero(), (2,), [0, 0]),
    (init.One(), (2,), [1, 1]),
    (init.Constant(3), (2,), [3, 3]),
    (init.Constant(nd.array([1, 2])), (2,), [1, 2]),
    (init.LSTMBias(2.0), (8,), [0, 0, 2, 2, 0, 0, 0, 0]),
    (init.LSTMBias(), (9,), [0, 0, 1, 1, 0, 0, 0, 0, 0]),
    (init.Bilinear(), (1, 1, 4, 4), [[np.outer([1, 3, 3, 1], [1, 3, 3, 1]) / 16]]),
    (init.Bilinear(), (1, 2, 3, 5), [[np.outer([1, 2, 3], [1, 2, 3, 2, 1]) / 9] * 2]),
]


@pytest.mark.parametrize("how,shape,expected", FIXED, ids=str)
def test_fixed_values(how: Any, shape: tuple[int, ...], expected: Any) -> None:
    np.testing.assert_allclose(written(how, shape), expected, atol=1e-7)


FANS = {"in": 30 * 25, "out": 20 * 25, "avg": 25 * 25}


@pytest.mark.parametrize("factor", FANS)
@pytest.mark.parametrize("rnd", ["uniform", "gaussian"])
def test_xavier(rnd: str, factor: str) -> None:
    random.seed(1)
    drawn = written(init.Xavier(rnd, factor, 2.5), (20, 30, 5, 5)).astype(np.float64)
    scale = math.sqrt(2.5 / FANS[factor])
    assert abs(drawn.mean()) < 0.03 * scale
    if rnd == "uniform":
        assert 0.999 * scale < np.abs(drawn).max() <= scale * (1 + 1e-6)
        scale /= math.sqrt(3)
    else:
        assert np.abs(drawn).max() > 3.5 * scale
    assert drawn.std() == pytest.approx(scale, rel=0.03)


def test_other_distributions() -> None:
    random.seed(1)
    assert written(init.Uniform(0.5), (200, 99)).std() == pytest.approx(0.5 / math.sqrt(3), rel=0.03)
    assert np.abs(written(init.Uniform(), (200, 99))).max() <= 0.07
    assert written(init.Normal(0.2), (200, 99)).std() == pytest.approx(0.2, rel=0.03)
    assert written(init.Normal(), (200, 99)).std() == pytest.approx(0.01, rel=0.03)
    fan_in = math.sqrt(2 / (1 + 0.5**2) / 99)
    assert written(init.MSRAPrelu("in", 0.5), (200, 99)).std() == pytest.approx(fan_in, rel=0.03)


@pytest.mark.parametrize("rand_type", ["uniform", "normal"])
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (4, 3, 2, 2)])
def test_orthogonal(shape: tuple[int, ...], rand_type: str) -> None:
    matrix = written(init.Orthogonal(rand_type=rand_type), shape).reshape(shape[0], -1).astype(np.float64)
    small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(small @ small.T, 1.414**2 * np.eye(len(small)), atol=1e-5)


@pytest.mark.parametrize("name", ["uniform", "normal", "xavier", "orthogonal"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_numbers_come_from_the_arrays_device(name: str, dtype: str) -> None:
    """Seeding another device changes nothing; the element type is the array's."""
    drawn = []
    for other in (5, 6):
        random.seed(3, ctx=mx.cpu(1))
        random.seed(other, ctx=mx.cpu(0))
        array = nd.zeros((4, 6), ctx=mx.cpu(1), dtype=dtype)
        init.create(name)(init.InitDesc("w_weight"), array)
        drawn.append(array.asnumpy())
    assert drawn[0].dtype == dtype and drawn[0].std() > 0
    np.testing.assert_array_equal(*drawn)


# -- by name

SEVEN = 7.0
NAMES = [  # name, value by InitDesc, value by a plain text
    ("fc_weight", SEVEN, SEVEN),
    ("fc_bias", 0, 0),
    ("bn_gamma", 1, 1),
    ("bn_beta", 0, 0),
    ("q_min", 0, 0),
    ("q_max", 1, 1),
    ("bn_running_mean", 0, 0),
    ("bn_running_var", 1, 1),
    ("bn_moving_mean", 0, 0),
    ("bn_moving_var", 1, 1),
    ("bn_moving_inv_var", 0, 0),
    ("bn_moving_avg", 0, 0),
    ("stn_loc_weight", SEVEN, 0),
]


@pytest.mark.parametrize("name,by_desc,by_text", NAMES)
def test_the_name_says_which_rule(name: str, by_desc: float, by_text: float) -> None:
    array = nd.full((2,), 9.0)
    for desc, expected in ((init.InitDesc(name), by_desc), (name, by_text)):
        init.Constant(SEVEN)(desc, array)
        assert array.asnumpy().tolist() == [expected] * 2


def test_rules_of_old_names() -> None:
    kernel, affine = nd.zeros((1, 1, 4, 4)), nd.zeros((6,))
    init.Zero()("upsampling0_weight", kernel)
    np.testing.assert_array_equal(kernel.asnumpy(), written(init.Bilinear(), (1, 1, 4, 4)))
    init.Zero()("stn_loc_bias", affine)
    assert affine.asnumpy().reshape(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_what_is_chosen_in_the_description_wins() -> None:
    array = nd.zeros((2,))
    desc = init.InitDesc("anything", {"__init__": '["constant", {"value": 4}]'})
    base = init.One()
    base(desc, array)
    assert array.asnumpy().tolist() == [4, 4] and desc.global_init is base


def test_mixed_takes_the_first_pattern() -> None:
    how = init.Mixed([".*bias", "a_.*", ".*"], ["zeros", init.Constant(2), init.One()])
    assert [written(how, (1,), name)[0] for name in ("a_bias", "a_weight", "b_weight")] == [0, 2, 1]


def test_load(tmp_path: pathlib.Path) -> None:
    how = init.Load({"arg:a_weight": nd.array([1, 2]), "aux:b_mean": np.array([3.0])}, init.Constant(4))
    assert written(how, (2,), "a_weight").tolist() == [1, 2]
    assert written(how, (1,), "b_mean").tolist() == [3]
    assert written(how, (2,), "c_weight").tolist() == [4, 4] and written(how, (2,), "c_bias").tolist() == [0, 0]
    net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    net.initialize(init.One())
    net.bias.set_data(nd.array([5]))
    net.collect_params().save(str(tmp_path / "net.params"))
    nd.save(str(tmp_path / "mxnet.params"), {"arg:d_weight": nd.ones((1, 2)), "arg:d_bias": nd.full((1,), 5)})
    for name in ("net.params", "mxnet.params"):
        again = gluon.nn.Dense(1, in_units=2, prefix="d_")
        again.initialize(init.Load(str(tmp_path / name)))
        assert again.weight.data().asnumpy().tolist() == [[1, 1]] and again.bias.data().asscalar() == 5


# -- found by name, and as text

CREATED: list[tuple[Any, Any]] = [
    ("zeros", init.Zero()),
    ("Ones", init.One()),
    ("xavier", init.Xavier()),
    (init.One, init.One()),
    ('["uniform", {"scale": 2}]', init.Uniform(2)),
    ('{"initializer": "uniform", "scale": 2}', init.Uniform(2)),
    ({"initializer": "uniform", "scale": 2}, init.Uniform(2)),
]


@pytest.mark.parametrize("spec,expected", CREATED, ids=str)
def test_create(spec: Any, expected: init.Initializer) -> None:
    assert init.create(spec) == expected and init.create(expected) is expected


def test_create_with_arguments() -> None:
    assert init.create("normal", 3) == init.create("normal", sigma=3) == init.Normal(3) != init.Normal(2)


TEXTS: list[tuple[init.Initializer, str]] = [
    (init.Zero(), '["zero", {}]'),
    (init.Constant(np.ones(2)), '["constant", {"value": [1.0, 1.0]}]'),
    (
        init.Xavier("gaussian", "in", 2.34),
        '["xavier", {"rnd_type": "gaussian", "factor_type": "in", "magnitude": 2.34}]',
    ),
    (init.MSRAPrelu(), '["msraprelu", {"factor_type": "avg", "slope": 0.25}]'),
    (
        init.Mixed([".*bias", ".*"], ["zeros", init.Normal()]),
        '["mixed", {"patterns": [".*bias", ".*"], "initializers": ["zeros", ["normal", {"sigma": 0.01}]]}]',
    ),
    (
        init.Load({"a": nd.ones((1,))}, init.One()),
        '["load", {"param": {"a": [1.0]}, "default_init": ["one", {}]}]',
    ),
]


@pytest.mark.parametrize("how,text", TEXTS, ids=[text for _, text in TEXTS])
def test_dumps(how: init.Initializer, text: str) -> None:
    again = init.create(text)
    assert how.dumps() == text and again == how and hash(again) == hash(how)


def test_register_and_alias() -> None:
    @init.register
    @init.alias("mine", "ours")
    class OnlyForThisTest(init.Initializer):
        def _init_weight(self, name: str, arr: nd.NDArray) -> None:
            arr[:] = 0.5

        def _init_bias(self, name: str, arr: nd.NDArray) -> None:
            arr[:] = 2.0

    for name in ("onlyforthistest", "mine", "ours"):
        assert isinstance(init.create(name), OnlyForThisTest)
    assert written(init.create("mine"), (1,), "x_bias") == 2
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize("mine")
    assert net.weight.data().asscalar() == 0.5
    with pytest.warns(UserWarning, match="'mine' was"):
        init.alias("mine")(OnlyForThisTest)


def test_an_initializer_that_overrides_the_call() -> None:
    class Whole(init.Initializer):
        def __init__(self) -> None:
            pass

        def __call__(self, desc: str, arr: nd.NDArray) -> None:
            arr[:] = len(desc)

    net = gluon.nn.Dense(1, in_units=1, prefix="net_", bias_initializer="ones")
    net.initialize(Whole())  # as in MXNet, the net's is asked first, even of a parameter with an own one
    assert net.weight.data().asscalar() == len("net_weight") and net.bias.data().asscalar() == len("net_bias")


def test_verbosity(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    written(init.Constant(3).set_verbosity(True), (4,))
    written(init.One().set_verbosity(True, lambda array: f"{array.size} numbers"), (4,), "a_bias")
    written(init.Load({"w_weight": nd.ones((1,))}, verbose=True), (1,))
    written(init.One(), (4,))
    net = gluon.nn.Dense(1, in_units=2, prefix="net_", weight_initializer="ones")
    net.initialize(init.Constant(5), verbose=True)
    assert [record.getMessage() for record in caplog.records] == [
        "Initialized w_weight as weight: 3.0",
        "Initialized a_bias as bias: 4 numbers",
        "Initialized w_weight by loading",
        "Initialized net_weight as ones: 1.0",
        "Initialized net_bias as zeros: 0.0",
    ]


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: init.create("xaver"), AssertionError, "did you mean 'xavier'"),
    (lambda: init.create(None), AssertionError, "by name"),
    (lambda: init.create(init.One(), 3), AssertionError, "arguments"),
    (lambda: init.create('{"scale": 2}'), AssertionError, "by name"),
    (lambda: init.register(int), AssertionError, "subclasses of Initializer"),
    (lambda: init.create("constant"), TypeError, "value"),
    (lambda: written(init.Zero(), (1,), "thing"), ValueError, "'thing' does not say what it is"),
    (lambda: init.Zero()(3, nd.ones((1,))), TypeError, "name"),
    (lambda: init.Zero()("a_weight", np.ones(1)), TypeError, "NDArray, not ndarray"),
    (lambda: init.Xavier(rnd_type="x"), ValueError, "'uniform' or 'gaussian', not 'x'"),
    (lambda: init.Xavier(factor_type="x"), ValueError, "'avg', 'in' or 'out', not 'x'"),
    (lambda: init.Orthogonal(rand_type="x"), ValueError, "'uniform' or 'normal', not 'x'"),
    (lambda: written(init.Xavier(), (3,)), ValueError, "w_weight has shape"),
    (lambda: written(init.Bilinear(), (3, 5)), ValueError, "w_weight has shape"),
    (lambda: init.Mixed([".*"], []), AssertionError, "1 patterns do not fit 0"),
    (lambda: written(init.Mixed(["a"], ["one"]), (1,)), ValueError, "no pattern matches 'w_weight'"),
    (lambda: init.Load([1]), AssertionError, "not list"),
    (lambda: written(init.Load({"w_weight": nd.ones((2,))}), (3,)), AssertionError, r"\(3,\).*\(2,\)"),
    (lambda: written(init.Load({"a_weight": nd.ones((2,))}), (2,)), AssertionError, "no default_init"),
    (lambda: written(init.Initializer(), (1,)), NotImplementedError, "_init_weight"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_array_as_constant_is_written_as_numbers() -> None:
    for value in (nd.array([[1, 2]]), np.array([[1.0, 2.0]])):
        made = init.Constant(value)
        assert made.dumps() == '["constant", {"value": [[1.0, 2.0]]}]' and init.create(made.dumps()) == made
        array = nd.zeros((1, 2))
        init.create(made.dumps())("w_weight", array)
        assert array.asnumpy().tolist() == [[1, 2]]
