"""Public names are documented with an example that runs; tests/test_layout.py runs it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

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
