"""Public names are documented with an example that runs; tests/test_layout.py runs it."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from gluongraph import nd, random
from gluongraph.errors import ArgumentError, DTypeError, MXNetError, ShapeError
from gluongraph.nd import families
from gluongraph.nd.examples import EXAMPLES

MODULES = (
    *("gluon.nn", "gluon.rnn", "gluon.loss", "gluon.utils", "gluon.data", "gluon.data.vision"),
    *("gluon.data.vision.transforms", "optimizer", "optimizer.torch", "metric", "initializer", "lr_scheduler"),
    *("gluon", "step", "onnx", "autograd", "kvstore", "random", "recordio", "io", "image"),
)
WITH_METHODS = ("gluon", "step")  # modules whose classes have an example for every public method, too


def public(name: str) -> Iterator[tuple[str, Any]]:
    """The public classes and functions of a module that are ours."""
    module = importlib.import_module(f"gluongraph.{name}")
    for key in getattr(module, "__all__", dir(module)):
        value = getattr(module, key)
        ours = getattr(value, "__module__", "").startswith(f"gluongraph.{name}")
        if not key.startswith("_") and ours and (inspect.isclass(value) or inspect.isfunction(value)):
            yield key, value


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_example(name: str) -> None:
    found = dict(public(name))
    assert found
    without = [key for key, value in found.items() if ">>>" not in (value.__doc__ or "")]
    assert not without, f"gluongraph.{name}: {', '.join(without)}"


def methods(cls: type) -> Iterator[str]:
    """The public methods and properties that a class defines itself."""
    for key, value in vars(cls).items():
        if (key == "__call__" or not key.startswith("_")) and isinstance(
            value, (property, staticmethod, type(methods))
        ):
            yield key


@pytest.mark.parametrize("name", WITH_METHODS)
def test_every_public_method_has_an_example(name: str) -> None:
    """An overridden method may leave the text to the one that it overrides."""
    classes = [value for _, value in public(name) if inspect.isclass(value)]
    without = [
        f"{cls.__name__}.{key}"
        for cls in classes
        for key in methods(cls)
        if ">>>" not in (inspect.getdoc(getattr(cls, key)) or "")
    ]
    assert classes and not without, f"gluongraph.{name}: {', '.join(without)}"


# What other modules of the package use, found in the modules of nd though not meant for users.
INTERNAL = {
    *("nd.examples.document", "nd.function.function", "nd.function.into", "nd.function.no_such"),
    *("nd.sparse.check_storage", "random.checkpoint", "random.next_state", "random.source", "random.take"),
    *("random.take_all", "random.undone_on_error"),
}
HOMES = ("nd", "random", "nd.linalg", "nd.contrib", "nd.image", "nd.sparse")


def functions_of_nd() -> dict[str, Any]:
    """The public functions of nd and its modules; one of several names is there once."""
    found: dict[int, tuple[str, Any]] = {}
    for home in HOMES:
        for key, value in vars(importlib.import_module(f"gluongraph.{home}")).items():
            defined = getattr(value, "__module__", "").removeprefix("gluongraph.")
            ours = inspect.isfunction(value) and (defined == home or defined.startswith("nd."))
            if ours and not key.startswith("_") and f"{defined}.{value.__name__}" not in INTERNAL:
                found.setdefault(id(value), (f"{home}.{key}", value))
    return dict(found.values())


FUNCTIONS = functions_of_nd()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_nd_has_examples_that_run(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    before = random.all_states()
    session = doctest.DocTestParser().get_doctest(FUNCTIONS[name].__doc__ or "", {}, name, None, None)
    try:
        assert session.examples, f"{name} has no example: write one into gluongraph/nd/examples.py"
        assert doctest.DocTestRunner().run(session).failed == 0
    finally:
        random.set_all_states(before)


def test_examples_of_nd_stand_in_one_place() -> None:
    """None is written twice: in the table and in the docstring, or under two names of a function."""
    seen: dict[int, str] = {}
    for home, sessions in EXAMPLES.items():
        for key in sessions:
            function = getattr(importlib.import_module(home), key)
            assert id(function) not in seen, f"{home}.{key} is {seen[id(function)]}"
            seen[id(function)] = f"{home}.{key}"
            assert function.__doc__.count("from gluongraph import nd\n") == 1, f"{home}.{key}"


OF_ND = families.FAMILIES["gluongraph.nd"]


def raises(expected: type[MXNetError], function: Any, *args: Any, **how: Any) -> None:
    with pytest.raises(expected):
        function(*args, **how)


@pytest.mark.parametrize("name", OF_ND[families.ARITHMETIC] + OF_ND[families.COMPARISON])
def test_functions_of_two_are_as_their_docstrings_say(name: str) -> None:
    function = getattr(nd, name)
    whole = nd.ones((2, 1), dtype="int32")
    made = function(whole, nd.ones((1, 3), dtype="int32"))
    assert (made.shape, made.dtype, function(whole, 2).dtype) == ((2, 3), whole.dtype, whole.dtype)
    raises(ShapeError, function, nd.ones(2), nd.ones(3))
    raises(DTypeError, function, whole, nd.ones(1))
    if name in OF_ND[families.ARITHMETIC]:
        raises(DTypeError, function, whole, 1.5)
    else:
        function(whole, 1.5)


@pytest.mark.parametrize("name", OF_ND[families.OF_FLOATS] + OF_ND[families.OF_NUMBERS] + OF_ND[families.SOFTMAX])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_functions_of_one_are_as_their_docstrings_say(name: str, dtype: str) -> None:
    function, data = getattr(nd, name), nd.ones((2, 3), dtype=dtype)
    if dtype == "int32" and name not in OF_ND[families.OF_NUMBERS]:
        raises(DTypeError, function, data)
    else:
        assert (function(data).shape, function(data).dtype) == (data.shape, data.dtype)


@pytest.mark.parametrize("name", OF_ND[families.SOFTMAX])
def test_softmax_is_as_its_docstring_says(name: str) -> None:
    function, data = getattr(nd, name), nd.ones((2, 3), dtype="int32")
    assert function(data, dtype="float64").dtype == nd.zeros(1, dtype="float64").dtype
    raises(ShapeError, function, nd.ones(2), axis=1)


@pytest.mark.parametrize("name", OF_ND[families.REDUCTION])
def test_reductions_are_as_their_docstring_says(name: str) -> None:
    function, data = getattr(nd, name), nd.ones((2, 3, 4), dtype="float16")
    assert function(data).shape == (1,)
    assert function(data, axis=-1).shape == (2, 3)
    assert function(data, axis=(0, 2)).shape == (3,)
    assert function(data, axis=1, keepdims=True).shape == (2, 1, 4)
    assert function(data, axis=0).dtype == data.dtype
    raises(ShapeError, function, data, axis=3)


@pytest.mark.parametrize("name", families.FAMILIES["gluongraph.random"][families.DRAW])
def test_draws_are_as_their_docstring_says(name: str) -> None:
    function = getattr(random, name)
    parameters = [p for p in inspect.signature(function).parameters if p not in ("shape", "dtype", "ctx", "out")]
    made = function(*[nd.array([0.5, 0.5])] * len(parameters), shape=3)
    assert (made.shape, made.dtype) == ((2, 3), nd.zeros(1).dtype)
    assert function(shape=(4, 5)).shape == (4, 5)
    raises(ArgumentError, function, *[-1, -2][: len(parameters)])


# Arguments that each function of this family refuses.
UNFIT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "reshape": ((nd.ones(6), (4, 2)), {}),
    "expand_dims": ((nd.ones(2), 5), {}),
    "squeeze": ((nd.ones(2),), {"axis": 0}),
    "transpose": ((nd.ones((2, 3)), (0,)), {}),
    "swapaxes": ((nd.ones(2), 0, 3), {}),
    "flip": ((nd.ones(2), 3), {}),
    "slice_axis": ((nd.ones(2),), {"axis": 1, "begin": 0, "end": 1}),
    "broadcast_to": ((nd.ones(2), (3,)), {}),
    "concat": ((nd.ones((2, 3)), nd.ones((3, 4))), {"dim": 0}),
    "stack": ((nd.ones(2), nd.ones(3)), {}),
    "split": ((nd.ones((2, 5)), 2), {}),
    "dot": ((nd.ones((2, 3)), nd.ones((2, 3))), {}),
    "batch_dot": ((nd.ones((1, 2, 3)), nd.ones((1, 2, 3))), {}),
    "matmul": ((nd.ones((2, 3)), nd.ones((2, 3))), {}),
    "FullyConnected": ((nd.ones((1, 2)), nd.ones((2, 3))), {"no_bias": True, "num_hidden": 2}),
    "Convolution": ((nd.ones((1, 1, 3)), nd.ones((1, 2, 2))), {"kernel": (2,), "num_filter": 1, "no_bias": True}),
    "LayerNorm": ((nd.ones((2, 3)), nd.ones(2), nd.ones(2)), {}),
    "where": ((nd.ones(2), nd.ones(3), nd.ones(3)), {}),
    "argmax": ((nd.ones(2),), {"axis": 1}),
    "argmin": ((nd.ones(2),), {"axis": 1}),
    "cumsum": ((nd.ones(2),), {"axis": 1}),
    "repeat": ((nd.ones(2), 2), {"axis": 1}),
    "take": ((nd.ones(2), nd.zeros(1)), {"axis": 1}),
    "pick": ((nd.ones((2, 3)), nd.zeros(4)), {}),
}


@pytest.mark.parametrize("name", OF_ND[families.OF_SHAPES])
def test_functions_refuse_what_their_docstrings_say(name: str) -> None:
    args, how = UNFIT[name]
    raises(ShapeError, getattr(nd, name), *args, **how)


@pytest.mark.parametrize("name", OF_ND[families.UPDATE])
def test_updates_are_as_their_docstring_says(name: str) -> None:
    function, weight = getattr(nd, name), nd.array([1, -2])
    kinds = inspect.signature(function).parameters.values()
    arrays = [nd.zeros(2) for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD][2:]
    new = function(weight, nd.array([20, 30]), *arrays, lr=0.5, clip_gradient=1.0)
    assert new.shape == weight.shape
    assert weight.asnumpy().tolist() == [1, -2]
    assert all(state.asnumpy().all() for state in arrays)
    function(weight, nd.ones(2), *arrays, lr=0.5, out=weight)
    assert weight.asnumpy().tolist() != [1, -2]
    with pytest.raises(TypeError):
        function(weight, lr=0.5)
