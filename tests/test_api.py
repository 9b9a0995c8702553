"""The public API, names and signatures, held against a text: nothing appears, goes or changes by accident."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import gluongraph as mx
from gluongraph.step import TrainStep

MODULES = (
    "gluongraph",
    "gluongraph.artefact",
    "gluongraph.autograd",
    "gluongraph.checkpoint",
    "gluongraph.gluon",
    "gluongraph.gluon.contrib.nn",
    "gluongraph.gluon.contrib.rnn",
    "gluongraph.gluon.data",
    "gluongraph.gluon.data.batchify",
    "gluongraph.gluon.data.vision",
    "gluongraph.gluon.data.vision.transforms",
    "gluongraph.gluon.loss",
    "gluongraph.gluon.model_zoo.vision",
    "gluongraph.gluon.nn",
    "gluongraph.gluon.rnn",
    "gluongraph.gluon.utils",
    "gluongraph.image",
    "gluongraph.init",
    "gluongraph.io",
    "gluongraph.kvstore",
    "gluongraph.lightning",
    "gluongraph.lightning.accelerators",
    "gluongraph.lightning.callbacks",
    "gluongraph.lightning.cli",
    "gluongraph.lightning.data",
    "gluongraph.lightning.loggers",
    "gluongraph.lightning.strategies",
    "gluongraph.lightning.tuner",
    "gluongraph.lightning.utilities",
    "gluongraph.lightning.utilities.model_summary",
    "gluongraph.lightning.utilities.types",
    "gluongraph.lr_scheduler",
    "gluongraph.metric",
    "gluongraph.nd",
    "gluongraph.nd.image",
    "gluongraph.onnx",
    "gluongraph.optimizer",
    "gluongraph.optimizer.torch",
    "gluongraph.random",
    "gluongraph.torch",
    "gluongraph.recordio",
    "gluongraph.test_utils",
)


def module(name: str) -> ModuleType:
    """The module that users find under this name."""
    found: Any = importlib.import_module("gluongraph")
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    assert isinstance(found, ModuleType)
    return found


def public(owner: ModuleType) -> list[str]:
    """The names of a module: what __all__ says, else all without an underscore that are gluongraph's own."""
    if hasattr(owner, "__all__"):
        return sorted(owner.__all__)
    own = [k for k, v in vars(owner).items() if callable(v) and getattr(v, "__module__", "").startswith("gluongraph")]
    return sorted(k for k in own if not k.startswith("_") and getattr(owner, k).__module__ == owner.__name__)


def signature(callable: Callable[..., Any]) -> str:
    """The parameters and their defaults, without annotations."""
    try:
        found = inspect.signature(callable)
    except ValueError:
        return "(...)"
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    return re.sub(r" at 0x\w+", "", str(found.replace(parameters=bare, return_annotation=found.empty)))


def lines(name: str, value: Any) -> Iterator[str]:
    """How one name reads."""
    if isinstance(value, ModuleType):
        yield f"{name}: module"
    elif inspect.isclass(value):
        yield f"class {name}{signature(value)}"
        if issubclass(value, BaseException):
            return
        for key in sorted(k for k in dir(value) if not k.startswith("_")):
            if not owner(value, key).startswith("gluongraph"):
                continue
            member = inspect.getattr_static(value, key)
            if isinstance(member, property):
                yield f"  {key}: property" + (", writable" if member.fset else "")
            elif isinstance(member, (staticmethod, classmethod)):
                yield f"  {key}{signature(getattr(value, key))} [{type(member).__name__}]"
            elif callable(member):
                yield f"  {key}{signature(member)}"
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name} = {value!r}" if isinstance(value, (int, float, str)) else f"{name}: {type(value).__name__}"


def owner(cls: type, key: str) -> str:
    """The module of the class that a member comes from."""
    return next((base.__module__ for base in cls.__mro__ if key in vars(base)), "")


def text(name: str) -> str:
    """The API of a module; a member that a public base has in the same form is told there only."""
    found = module(name)
    values = {each: getattr(found, each) for each in public(found)}
    classes = [v for v in (*values.values(), mx.gluon.HybridBlock) if inspect.isclass(v)]
    said: list[str] = []
    for each, value in values.items():
        bases = [c for c in classes if inspect.isclass(value) and c is not value and issubclass(value, c)]
        told = {line for base in bases for line in lines("", base)}
        said += [line for line in lines(each, value) if line not in told]
    return "\n".join(said) + "\n"


@pytest.mark.parametrize("name", MODULES)
def test_public_names_and_signatures(name: str, golden: Callable[[str, str], None]) -> None:
    found = text(name)
    assert found.strip(), f"{name} offers nothing"
    golden(f"api_{name}", found)


def test_the_compiled_step(golden: Callable[[str, str], None]) -> None:
    from gluongraph.step.compile import compile

    said = [f"compile{signature(compile)}", *lines("TrainStep", TrainStep)]
    golden("api_gluongraph.compile", "\n".join([*said, f"  __call__{signature(TrainStep.__call__)}"]) + "\n")


def test_arrays(golden: Callable[[str, str], None]) -> None:
    golden("api_gluongraph.nd.NDArray", "\n".join(lines("NDArray", mx.nd.NDArray)) + "\n")


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name: str) -> None:
    found = module(name)
    bare = [k for k in public(found) if callable(getattr(found, k)) and not inspect.getdoc(getattr(found, k))]
    assert not bare, f"{name} does not say what these do: {', '.join(bare)}"
