"""What tests do to their process and around their functions: the environment, standard error, repetitions."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from gluongraph.util import setenv


@contextlib.contextmanager
def environment(*args: Any) -> Iterator[None]:
    """Within: environment variables are set so, `environment(name, value)` or `environment({name: value, ...})`.

    None takes a variable away.
    """
    wanted: Mapping[str, str | None] = args[0] if len(args) == 1 else {args[0]: args[1]}
    before = {name: os.environ.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            setenv(name, value)
        yield
    finally:
        for name, value in before.items():
            setenv(name, value)


@contextlib.contextmanager
def discard_stderr() -> Iterator[None]:
    """Within: what is written to standard error, by libraries too, is lost."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def retry(n: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of tests of random numbers: an AssertionError counts at the n-th attempt only."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def attempts(*args: Any, **kwargs: Any) -> Any:
            for _ in range(n - 1):
                with contextlib.suppress(AssertionError):
                    return test(*args, **kwargs)
            return test(*args, **kwargs)

        return attempts

    return decorate


def assert_exception(f: Callable[..., Any], exception_type: Any, *args: Any, **kwargs: Any) -> None:
    """Raise AssertionError unless f(*args, **kwargs) raises an exception of that type."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"{getattr(f, '__name__', f)} did not raise {exception_type}")


def is_cd_run() -> bool:
    """Is this MXNet's continuous delivery, which sets CD_JOB?"""
    return os.environ.get("CD_JOB") == "1"


def is_aarch64_run() -> bool:
    """Is this a 64-bit ARM processor?"""
    return platform.machine() == "aarch64"


def has_tvm_ops() -> bool:
    """Are there operators of MXNet's build with TVM? No: here TVM compiles, and has no operators of its own."""
    return False


def is_op_runnable() -> bool:
    """Can operators run on the current device? Yes."""
    return True
