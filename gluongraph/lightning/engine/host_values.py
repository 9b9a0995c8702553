"""What a traced step function does with Python's values: random numbers that it draws, elements that it asks for."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.torch.export import ExportError
from gluongraph.torch.traceable import is_users_file

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_SEEDS = ("manual_seed", "seed", "set_rng_state")  # functions of torch


@contextmanager
def draws_refused(torch: Any, module: Any, kind: str) -> Iterator[None]:
    """Within, the step function `kind` is traced: random numbers of Python's and numpy's would be constants, and a seed
    would act in the trace alone.

    Raises:
        ExportError: it has drawn some, or set a seed; the generators are put back.
    """
    sources = _sources(module)
    before, lines = {name: _state(each) for name, each in sources.items()}, list[str]()
    seeded, seeds = torch.get_rng_state(), list[str]()
    with (
        _noting(random, _methods(random, random.Random), lines),
        _noting(np.random, _methods(np.random, np.random.RandomState), lines),
        _noting(torch, {name: getattr(torch, name) for name in _SEEDS}, seeds),
    ):
        yield
    if seeds:
        torch.set_rng_state(seeded)
        message = f"{kind} sets a seed of torch's random numbers, which would act in the trace alone\n  at {seeds[0]}"
        help = "set it in a hook, as on_train_batch_start; or L.Trainer(..., eager=True)"
        raise ExportError(with_user_location(message, help=help))
    drawn = [name for name, each in sources.items() if str(_state(each)) != str(before[name])]
    if drawn:
        for name in drawn:
            _restore(sources[name], before[name])
        code = getattr(type(module), kind).__code__
        line = lines[0] if lines else f"{code.co_filename}:{code.co_firstlineno} in {kind}"
        message = (
            f"{kind} draws random numbers of {drawn[0]}, which would be constants of the compiled step\n  at {line}"
        )
        help = "draw them by torch.rand and the like; or in on_train_batch_start, self.share = ..., as a float"
        raise ExportError(with_user_location(message, help=f"{help}; or L.Trainer(..., eager=True)"))


def _sources(module: Any) -> dict[str, Any]:
    """The generators of Python and numpy, and those in attributes of a module, by what they are called."""
    own = {
        f"self.{path}.{name}".replace("..", "."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, _GENERATORS)
    }
    return {"Python's random": random, "numpy's random": np.random, **own}


def _state(source: Any) -> Any:
    """The state of a generator; its text can be compared."""
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    if hasattr(source, "getstate"):
        return source.getstate()
    name, words, *others = source.get_state()
    return (name, words.tolist(), *others)


def _restore(source: Any, state: Any) -> None:
    if isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    elif hasattr(source, "setstate"):
        source.setstate(state)
    else:
        source.set_state(state)


def _methods(package: ModuleType, kind: type) -> dict[str, Callable[..., Any]]:
    """The functions of a package that are methods of its generator."""
    return {name: f for name, f in vars(package).items() if isinstance(getattr(f, "__self__", None), kind)}


@contextmanager
def _noting(package: ModuleType, functions: Mapping[str, Callable[..., Any]], lines: list[str]) -> Iterator[None]:
    """Within, the user's lines that call these functions of the package are noted."""
    for name, function in functions.items():
        setattr(package, name, _noted(function, lines))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(package, name, function)


def _noted(function: Callable[..., Any], lines: list[str]) -> Callable[..., Any]:
    def call(*args: Any, **how: Any) -> Any:
        frame = sys._getframe(1)
        if is_users_file(frame.f_code.co_filename):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        return function(*args, **how)

    return call


@contextmanager
def elements_as_tensors(torch: Any) -> Iterator[None]:
    """Within, `tensor.item()` in the user's code gives the tensor, which can be computed with, returned and logged: the
    element has no value while a step is traced."""
    own, fake = torch.Tensor.item, torch._subclasses.FakeTensor

    def item(self: Any) -> Any:
        users = is_users_file(sys._getframe(1).f_code.co_filename)
        return self.detach().reshape(()) if users and isinstance(self, fake) else own(self)

    torch.Tensor.item = item
    try:
        yield
    finally:
        torch.Tensor.item = own
