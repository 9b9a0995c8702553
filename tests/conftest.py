"""What all tests share: seeds, golden texts, verification of every graph, and the list of optional parts not here."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("GG_VERIFY", "1")  # before gluongraph reads it: every pass is checked in tests
# Keys of these tests, which never see or change those of whoever runs them; processes that tests start have them too.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="gluongraph-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
if not any(name in os.environ for name in ("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS")):
    # Plans are of as many pieces as threads share evenly: golden texts of them are of 8, for 1, 2, 4 or 8 threads.
    os.environ["GG_THREADS"] = str(max(n for n in (1, 2, 4, 8) if n <= len(os.sched_getaffinity(0))))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has what it starts in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Importlib mode puts no folder on the path: helper modules are imported by their names from any folder. No two of them
# have the same name, see tests/test_layout.py.
for helper in sorted(pathlib.Path(__file__).parent.glob("*/**/[!_]*.py")):
    if helper.name != "conftest.py" and not helper.name.startswith("test_") and str(helper.parent) not in sys.path:
        sys.path.insert(0, str(helper.parent))

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew instead of comparing")


# Files that take longest, from half a minute on. They come first, or one process would end with them alone.
LONG = [
    "lightning/test_ranks.py",
    "runtime/native/test_ranks.py",
    "examples/test_examples.py",
    "gluon/test_strategies.py",
    "codegen/cuda/test_fake_gpu.py",
    "lightning/test_parity.py",
    "torch/test_models.py",
    "step/test_ranks.py",
    "artefact/test_ranks.py",
    "distributed/test_launcher.py",
    "lightning/data/test_resumed_loaders.py",
    "step/test_dynamic.py",
    "host/test_progress.py",
    "lightning/engine/test_read_attributes.py",
    "tracing/test_compressed_exchange.py",
    "step/test_deterministic.py",
    "errors/test_variables.py",
    "lightning/test_metric_objects.py",
    "runtime/communicator/test_shared_memory.py",
    "compiler/test_recomputation.py",
    "runtime/communicator/test_torchrun.py",
    "lightning/callbacks/test_callbacks_on_ranks.py",
    "step/test_precision_convergence.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the others, and the tests of each file, in their order."""
    places = {str(pathlib.Path(__file__).parent / name): place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(str(item.path), len(LONG)))


class FailuresAtOnce:
    """Names each failed test when it has failed: a run that is stopped from outside never comes to its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = report.longreprtext.splitlines()
            errors = [line for line in lines if line.startswith("E ")] or lines[-1:]
            self._terminal.write_line("\n".join([f"\nFAILED {report.nodeid} ({report.when})", *errors[:5]]))


@pytest.hookimpl(trylast=True)  # the terminal's reporter is made in this hook
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(FailuresAtOnce(terminal))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)`: the text is that of `golden/<name>.txt` here, or becomes it (--update-golden)."""
    folder = pathlib.Path(request.path).parent / "golden"

    def check(name: str, text: str) -> None:
        file = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"no golden text {file.name}; make it with: pytest {request.path.name} --update-golden"
        assert text == file.read_text(), f"{file.name} differs; if that is right: pytest --update-golden"

    return check


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test starts from the same random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    yield


@pytest.fixture(autouse=True, scope="session")
def crashes(request: pytest.FixtureRequest) -> None:
    """A crash tells what Python was at. TVM, when it is loaded, replaces pytest's handler by one for C++ alone."""
    importlib.import_module("tvm")

    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        stderr = os.fdopen(os.dup(2), "w")  # that of the process, not what a test captures
    atexit.register(stderr.close)
    faulthandler.disable()
    faulthandler.enable(stderr)


@pytest.fixture(autouse=True, scope="session")
def spoiled() -> Iterator[None]:
    """Before every call of a compiled program its scratch and its outputs are NaN, -1 and true. Memory that the system
    has just given is 0, with which a kernel that reads what none has written seems right."""
    from gluongraph.runtime.executor import Executor
    from gluongraph.runtime.repeated import Repeated

    fill, stacks = Executor._fill, Repeated.results

    def filled(self: Executor, inputs: Sequence[Any]) -> list[Any]:
        results = fill(self, inputs)
        for array in (self._scratch, *results):
            array.reshape(-1).view(np.uint8).fill(0xFF)
        return results

    def stacked(self: Repeated, count: int) -> dict[str, Any]:
        results = stacks(self, count)
        for array in (self._executor._scratch, *results.values()):
            array.reshape(-1).view(np.uint8).fill(0xFF)
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "_fill", filled)
        patch.setattr(Repeated, "results", stacked)
        yield


@pytest.fixture
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache for this test alone: nothing is compiled or measured before."""
    monkeypatch.setenv("GG_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def demo_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make demo` does not install is not found: torch, pillow and whatever else happens to be here."""
    from environment import Without, strangers

    beside = request.node.get_closest_marker("beside")
    hidden = strangers("examples").difference(beside.args if beside else ())
    monkeypatch.setattr(sys, "meta_path", [Without(hidden, finder) for finder in sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        monkeypatch.delitem(sys.modules, name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which optional parts were not tested here, once each: a green run must not hide them."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        text = text.removeprefix("Skipped: ")
        reasons[text] = reasons.get(text, 0) + 1
    if reasons:
        terminalreporter.section("not tested here")
        for text, count in sorted(reasons.items()):
            terminalreporter.write_line(f"{count:4d} tests: {text}")
