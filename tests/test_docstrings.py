"""Public names are documented with an example that runs; tests/test_layout.py runs it."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from gluongraph import random
from gluongraph.nd.examples import EXAMPLES

MODULES = (
    *("gluon.nn", "gluon.rnn", "gluon.loss", "gluon.utils", "gluon.data", "gluon.data.vision"),
    *("gluon.data.vision.transforms", "optimizer", "metric", "initializer", "lr_scheduler"),
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
    *("nd.sparse.check_storage", "random.bookmark", "random.next_state", "random.source", "random.take"),
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
