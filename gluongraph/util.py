"""`mx.util`: numpy's semantics, as far as they can be asked for, the environment, devices.

Arrays are MXNet's classic ones always, and `is_np_array()` is False. Shapes with an extent of 0, and arrays without
axes, exist without further ado; `np_shape` says how a Parameter writes an unknown extent: as -1 within, as 0 outside.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from gluongraph.context import Context, num_gpus
from gluongraph.errors import MissingError, with_user_location

F = TypeVar("F", bound=Callable[..., Any])


class _Shapes(threading.local):
    """Whether shapes follow numpy's rules: in this thread, unless None, else in all (`set_np_shape(2)`)."""

    here: int | None = None
    everywhere = False


_SHAPES = _Shapes()


def is_np_shape() -> bool:
    """Do shapes follow numpy's rules, 0 an extent like any other? False until somebody asks for it."""
    return bool(_Shapes.everywhere if _SHAPES.here is None else _SHAPES.here)


def set_np_shape(active: int) -> bool:
    """Switch numpy's rules for shapes on or off; 2 does so in all threads. Gives what was before."""
    before = is_np_shape()
    if active == 2 or (not active and _Shapes.everywhere):
        _Shapes.everywhere, _SHAPES.here = bool(active), None
    else:
        _SHAPES.here = bool(active)
    return before


class _NumpyShapeScope:
    def __init__(self, is_np_shape: bool):
        self._active, self._before = is_np_shape, False

    def __enter__(self) -> None:
        self._before = set_np_shape(self._active)

    def __exit__(self, *exc: object) -> None:
        set_np_shape(self._before)


def np_shape(active: bool = True) -> _NumpyShapeScope:
    """Within: shapes follow numpy's rules, or with False do not.

    >>> with np_shape():
    ...     is_np_shape()
    True
    """
    return _NumpyShapeScope(active)


def use_np_shape(func: F) -> F:
    """Decorator of functions and classes: they, or their methods, run within `np_shape()`."""
    if isinstance(func, type):
        for name, method in list(vars(func).items()):
            if callable(method) and not isinstance(method, type):
                setattr(func, name, use_np_shape(method))
        return func

    @wraps(func)
    def within(*args: Any, **kwargs: Any) -> Any:
        with np_shape():
            return func(*args, **kwargs)

    return within  # type: ignore[return-value]


# -- arrays with numpy's semantics, which do not exist

_NO_NUMPY = "mx.nd has MXNet's classic arrays and operators; numpy's own functions take what asnumpy() gives"


def _no_numpy(what: str) -> NoReturn:
    raise MissingError(
        with_user_location(f"{what}: arrays with numpy's semantics do not exist in gluongraph", help=_NO_NUMPY)
    )


class _Arrays(type):
    """`_current` of the scope is each thread's own."""

    _local = threading.local()

    @property
    def _current(cls) -> Any:
        return getattr(cls._local, "value", None) or cls(False)

    @_current.setter
    def _current(cls, value: Any) -> None:
        cls._local.value = value


class _NumpyArrayScope(metaclass=_Arrays):
    """What `np_array` gives. It can be made with True, and not be entered."""

    def __init__(self, is_np_array: bool):
        self._is_np_array = is_np_array

    def __enter__(self) -> _NumpyArrayScope:
        if self._is_np_array:
            _no_numpy("np_array")
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing."""


def np_array(active: bool = True) -> _NumpyArrayScope:
    """Within: arrays are classic ones, as always. Entering it with True raises NotImplementedError."""
    return _NumpyArrayScope(active)


def is_np_array() -> bool:
    """Are arrays numpy-like? No."""
    return False


def use_np_array(func: F) -> F:
    """Decorator: calling the function, or making an object of the class, raises NotImplementedError."""
    name = getattr(func, "__name__", str(func))

    @wraps(func, updated=())
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        _no_numpy(f"{name}, which is under use_np,")

    if not inspect.isclass(func):
        return refuse  # type: ignore[return-value]
    setattr(func, "__init__", refuse)  # noqa: B010
    return func


use_np = use_np_array


def set_np(shape: bool = True, array: bool = True) -> None:
    """Numpy's rules for shapes; raises NotImplementedError where arrays are to follow them too."""
    if array:
        _no_numpy("set_np")
    set_np_shape(shape)


def reset_np() -> None:
    """MXNet's classic rules for shapes."""
    set_np_shape(False)


def set_module(module: str) -> Callable[[F], F]:
    """Decorator that says of which module a function is shown to be."""

    def decorate(func: F) -> F:
        func.__module__ = module
        return func

    return decorate


# -- devices and the environment


def get_gpu_count() -> int:
    """How many CUDA devices there are."""
    return num_gpus()


def get_cuda_compute_capability(ctx: Context) -> NoReturn:
    """Raises ValueError: arrays lie on the CPU."""
    raise ValueError(with_user_location(f"{ctx} has no compute capability: eager arrays lie on the CPU"))


def getenv(name: str) -> str | None:
    """An environment variable; None if it is not set."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set an environment variable, or take it away with None."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
