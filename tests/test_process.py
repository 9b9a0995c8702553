"""What is asked of the process: imports that are whole, interrupts that stay interrupts, threads that do not fight."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gluongraph.process import calling_tvm, collecting_later, importing_tvm


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """As at a terminal: a job in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_an_import() -> None:
    whole = False
    with pytest.raises(KeyboardInterrupt), importing_tvm():
        interrupt()
        whole = True
    assert whole


@pytest.mark.parametrize("name", ["torch", "cuda"])
def test_what_tvm_would_import_for_others_is_hidden(name: str) -> None:
    before = sys.modules.pop(name, None)
    try:
        with importing_tvm(), pytest.raises(ImportError):
            importlib.import_module(name)
        assert name not in sys.modules
    finally:
        if before is not None:
            sys.modules[name] = before


def test_an_interrupt_of_tvm_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), calling_tvm():
        try:
            interrupt()
        except KeyboardInterrupt:
            raise RuntimeError from None  # as TVM does
    with pytest.raises(RuntimeError, match="another"), calling_tvm():
        raise RuntimeError("another error")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("first", ["gluongraph", "numpy"])
def test_threads_of_two_libraries_do_not_fight(first: str) -> None:
    """Those of BLAS are to sleep; where numpy came first and cannot be asked, ours are not bound to cores."""
    program = f"import {first}, gluongraph, os; print([os.environ.get(n) for n in {NAMES}])"
    clean = {k: v for k, v in os.environ.items() if k not in NAMES}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean
    ).stdout
    assert found.strip() == str(["10", None] if first == "gluongraph" else [None, "0"])


NAMES = ("OPENBLAS_THREAD_TIMEOUT", "TVM_BIND_THREADS")


@pytest.mark.parametrize("on", [True, False])
def test_garbage_is_collected_later_where_it_was_before(on: bool) -> None:
    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), collecting_later():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is on
    finally:
        (gc.enable if before else gc.disable)()
