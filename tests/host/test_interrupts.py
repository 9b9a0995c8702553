"""Ctrl-C ends a compilation at once, in one line, and what it cut can be done again; children end with their parent."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gluongraph.host.interrupts import aside, guarded, import_whole, in_one_line, in_parallel

SCRIPT = """
import sys
import gluongraph as mx
from gluongraph import gluon, nd
net = gluon.nn.HybridSequential()
for i in range(24):
    net.add(gluon.nn.Conv2D(8 + i, 3, padding=1, activation="relu"))
net.add(gluon.nn.Dense(3))
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd")
step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
x, y = nd.ones((2, 3, 16, 16)), nd.zeros((2,))
print("go", flush=True)
try:
    step(x, y)
except KeyboardInterrupt:
    if sys.argv[1] == "ends":
        raise
    small = gluon.nn.Dense(2)
    small.initialize()
    trainer = gluon.Trainer(small.collect_params(), "sgd")
    mx.compile(small, gluon.loss.L2Loss(), trainer)(nd.ones((2, 3)), nd.ones((2, 2)))
    print("again", flush=True)
"""


def interrupted(script: Path, how: str, delay: float, cache: Path) -> tuple[int, str, str, float]:
    """Exit code, output, errors, and the seconds from the interrupt to the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal, runpy, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
         "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')", str(script), how],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "GG_CACHE": str(cache)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err, time.monotonic() - started


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("delay", [0.1, 1.0, 3.0])
def test_an_interrupt_ends_a_compilation_in_one_line(script: Path, tmp_path: Path, delay: float) -> None:
    code, _, err, _ = interrupted(script, "ends", delay, tmp_path / "cache")
    line = "KeyboardInterrupt: compilation was interrupted, training.py:15\n"
    assert (code, err.splitlines(keepends=True)[-1:]) == (-signal.SIGINT, [line]), err


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.5, 1.5])
def test_the_process_compiles_again_after_an_interrupt(script: Path, tmp_path: Path, delay: float) -> None:
    code, out, err, _ = interrupted(script, "again", delay, tmp_path / "cache")
    assert (code, out, err) == (0, "again\n", "")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As at a terminal: a job in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_import_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruptible: None) -> None:
    code = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.3)\nwhole = True\n"
    (tmp_path / "imported_slowly.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        import_whole("imported_slowly")
    assert import_whole("imported_slowly").whole


def test_hidden_packages_are_absent_during_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "try:\n    import json.tool as found\nexcept ImportError:\n    found = None\n"
    (tmp_path / "looks_for_json_tool.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    assert import_whole("looks_for_json_tool", hidden=["json.tool"]).found is None
    assert importlib.import_module("json.tool")


class Ignores:
    """Python ignores what is raised in `__del__`."""

    def __del__(self) -> None:
        interrupt()


def ignored() -> None:
    Ignores()


def becomes_another_error() -> None:
    try:
        interrupt()
    except KeyboardInterrupt as error:
        raise RuntimeError from error  # as Python does around `__set_name__`


AFTER_A_STRING = """
import atexit, ctypes
from gluongraph.host.interrupts import in_one_line
atexit.register(lambda: print("at the end"))
atexit.register(lambda: ctypes.pythonapi.PyRun_SimpleString(b"pass"))
with in_one_line("this"):
    raise KeyboardInterrupt
"""


def test_an_interrupted_process_ends_by_the_signal_whatever_native_code_runs_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER_A_STRING], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "at the end\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lose", [ignored, becomes_another_error])
def test_no_interrupt_is_lost(lose: Callable[[], None], interruptible: None) -> None:
    with pytest.raises(KeyboardInterrupt), in_one_line("this"), in_one_line("a part of it"):
        lose()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert in_parallel([lambda: 2], workers=1) == [2]
    with pytest.raises(KeyError), in_one_line("this"):
        raise KeyError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_ignored_interrupt_ends_work_at_the_next_tasks(interruptible: None) -> None:
    run: list[int] = []
    with pytest.raises(KeyboardInterrupt), in_one_line("this"):
        ignored()
        in_parallel([lambda: run.append(1)], workers=1)
    assert not run


def test_an_interrupt_does_not_wait_for_tasks(interruptible: None) -> None:
    def slow() -> None:
        interrupt()
        time.sleep(30)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        aside(slow)
    assert time.monotonic() - started < 20


def test_results_are_in_order_and_errors_are_passed_on() -> None:
    def task(i: int) -> Callable[[], int]:
        return lambda: 12 // i

    assert in_parallel([task(i) for i in (1, 2, 3)], 2) == [12, 6, 4]
    with pytest.raises(ZeroDivisionError):
        in_parallel([task(i) for i in (1, 0, 3)], 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the request is Linux's")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_guarded_children_end_with_their_parent(how: signal.Signals) -> None:
    code = (
        "import subprocess, time; from gluongraph.host.interrupts import guarded; "
        "child = subprocess.Popen(guarded(['sleep', '600'])); print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        os.kill(child, signal.SIGSTOP)  # as bench stops its workers
        parent.send_signal(how)
        parent.wait()
    for _ in range(100):
        if is_gone(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child outlived its parent")


def is_gone(pid: int) -> bool:
    """Has the process ended, or is it a zombie that nobody has waited for?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_guarded_command_that_does_not_exist_fails() -> None:
    done = subprocess.run(guarded(["no-such-program"]), capture_output=True, text=True)
    assert done.returncode
    assert "no-such-program" in done.stderr
