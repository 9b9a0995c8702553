"""Warm starts: what a graph has become is remembered, and whoever asks for its plan gets that of a cold one."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug, gluon, ops
from gluongraph.codegen.cache import measurements, plans
from gluongraph.codegen.targets import TARGETS
from gluongraph.codegen.targets import target as find_target
from gluongraph.compiler import lower, pipeline
from gluongraph.compiler.memory_options import ALL_KEPT, MemoryOptions
from gluongraph.gluon import nn
from gluongraph.ir.entry_point import program_of
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.plan import Candidate
from gluongraph.ir.printer import show_plan
from gluongraph.step import TrainStep

X, Y = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.array([0, 1, 2, 0], np.int32)


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A cache for each test alone, and passes that nobody watches: under GG_VERIFY all of them run."""
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    with debug.override(verify=False):
        yield tmp_path


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that have been planned."""
    seen: list[Graph] = []
    choice: Callable[..., Any] = pipeline.choice

    def watched(graph: Graph, *how: Any) -> Any:
        seen.append(graph)
        return choice(graph, *how)

    monkeypatch.setattr(pipeline, "choice", watched)
    return seen


def trained(prefix: str = "net_") -> TrainStep:
    """The step of a small net, with the same numbers each time."""
    mx.random.seed(3)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu", in_units=6), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    return mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_"), trainer)


def test_a_known_graph_is_not_planned(planned: list[Graph]) -> None:
    """Nor is one that differs in names alone; both do what the planned one does."""
    cold, warm, renamed = trained(), trained(), trained(prefix="other_")
    losses = [[step(X, Y).asnumpy() for _ in range(3)] for step in (cold, warm, renamed)]
    assert len(planned) == 1 and cold.artefact.compiled and not warm.artefact.compiled
    assert np.array_equal(losses[0], losses[1]) and np.array_equal(losses[0], losses[2])
    assert warm.artefact.program == cold.artefact.program
    assert set(renamed.artefact.program.updates) > set(renamed.net.collect_params())


def test_whoever_asks_gets_the_plan(planned: list[Graph]) -> None:
    """Made once, and the same as that of a cold start."""
    cold, warm = trained(), trained()
    cold(X, Y), warm(X, Y)
    assert len(planned) == 1
    assert show_plan(warm.plan) == show_plan(cold.plan)
    assert warm.memory(X, Y) == cold.memory(X, Y)
    assert program_of(warm.plan) == warm.artefact.program
    assert [row.kernel for row in warm.profile(X, Y, repeat=1, roofline=False)] == [
        launch.kernel for launch in cold.plan.launches
    ]
    assert len(planned) == 2


def product(names: str = "xwy", shape: tuple[int, ...] = (4, 5)) -> tuple[Graph, dict[str, str]]:
    """y = x * w, w = w + x."""
    x, w, y = names
    a, b = ops.input(x, TensorType(shape)), ops.input(w, TensorType(shape))
    return Graph({x: a, w: b}, {y: a * b}, {w: b + a}), {x: "input", w: "state"}


def test_what_the_key_depends_on() -> None:
    here = find_target()

    def key(graph: Graph, roles: dict[str, str], asked: str = "", target: Any = here) -> str:
        return plans.key(graph, roles, asked, target)

    graph, roles = product()
    same = {key(graph, roles), key(*product("wxz")), key(*product("abx"))}
    x, w = graph.inputs.values()
    different = {
        key(*product(shape=(5, 4))),
        key(graph, {"x": "scalar", "w": "state"}),
        key(graph, roles, "Thrift(mode='blocks')"),
        key(graph, roles, target=TARGETS["x86-64"]),
        key(Graph(graph.inputs, graph.outputs, {"w": x + w}), roles),
        key(Graph({"w": w, "x": x}, graph.outputs, graph.updates), roles),
        key(Graph(graph.inputs, {**graph.outputs, "z": w}, graph.updates), roles),
        key(Graph(graph.inputs, graph.outputs, {"x": w + x}), roles),
    }
    assert len(same) == 1 and len(different | same) == 9


def test_what_is_asked_for_is_another_plan(planned: list[Graph]) -> None:
    graph, roles = product()
    for memory_options in (
        ALL_KEPT,
        MemoryOptions("blocks"),
        MemoryOptions(activations="bf16"),
        MemoryOptions("blocks"),
    ):
        for spared in ((), ("y",)):
            lower.lower(graph, roles, spared, memory_options=memory_options)
    assert len(planned) == 3 * 2, "what could be computed again counts"


def test_what_was_measured_is_another_plan(planned: list[Graph]) -> None:
    """Whoever asks for the plan of what was known before gets that of its code."""
    (graph, roles), here = product(), find_target()
    for _ in range(2):
        before = lower.lower(graph, roles)
    measurements.table(here).put({"a kernel": measurements.Measurement(Candidate("loop"), 1e-6, 2e-6)})
    lower.lower(graph, roles)
    assert len(planned) == 2
    assert not len(before.request.measured) and len(measurements.table(here)) == 1
    assert show_plan(before.plan) == show_plan(lower.lower(graph, roles).plan) and len(planned) == 4


@pytest.mark.parametrize("names", ["xwy", "abc", "yxw", "xwx"])
def test_names_that_arguments_have(folder: pathlib.Path, planned: list[Graph], names: str) -> None:
    """Inputs may be called as outputs of the graph that was remembered, and an output as its own graph's input."""
    lower.lower(*product())
    graph, roles = product(names)
    found = lower.lower(graph, roles)
    assert len(planned) == 1 and found.artefact is not None
    assert found.artefact.program == program_of(found.plan)


def cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def change(file: pathlib.Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def fill(file: pathlib.Path) -> None:
    file.write_bytes(b"\xff\x00" * 40)


@pytest.mark.parametrize("harm", [cut, change, fill, pathlib.Path.unlink])
@pytest.mark.parametrize("name", ["plan-*.json", "*/program.json"])
def test_a_damaged_entry_is_not_believed(
    folder: pathlib.Path, planned: list[Graph], name: str, harm: Callable[[pathlib.Path], None]
) -> None:
    graph, roles = product()
    before = lower.lower(graph, roles).artefact
    (file,) = folder.glob(name)
    harm(file)
    after = lower.lower(graph, roles).artefact
    assert len(planned) == 2 and before is not None and after is not None and after.program == before.program
    again = lower.lower(graph, roles).artefact
    assert len(planned) == 2 and again is not None and again.path == after.path, "it has been written anew"


def test_code_that_is_gone_is_made_again(folder: pathlib.Path, planned: list[Graph]) -> None:
    graph, roles = product()
    lower.lower(graph, roles)
    (library,) = folder.glob("*/step.so")
    library.unlink()
    found = lower.lower(graph, roles).artefact
    assert len(planned) == 2 and found is not None and found.compiled and library.exists()


def test_other_sources_are_other_plans(planned: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, roles = product()
    lower.lower(graph, roles)
    monkeypatch.setattr(plans, "planner", lambda: "a pass has been changed")
    lower.lower(graph, roles)
    assert len(planned) == 2


@pytest.mark.parametrize("how", [{"verify": True}, {"log": frozenset({"plan"})}, {"skip": frozenset({"cse"})}])
def test_passes_run_for_whoever_looks_at_them(planned: list[Graph], how: dict[str, Any]) -> None:
    graph, roles = product()
    lower.lower(graph, roles)
    with debug.override(**how):
        lower.lower(graph, roles)
    assert len(planned) == 2


def test_without_a_cache_nothing_is_remembered(planned: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GG_CACHE", "0")
    graph, roles = product()
    for _ in range(2):
        assert lower.lower(graph, roles).artefact is not None
    assert len(planned) == 2


WARM = """
import sys, numpy as np, gluongraph as mx
from gluongraph.gluon import nn
net = nn.Dense(3, in_units=6)
net.initialize(mx.init.One())
step = mx.compile(net, mx.gluon.loss.L2Loss(), mx.gluon.Trainer(net.collect_params(), "sgd"))
step(np.ones((4, 6), np.float32), np.zeros((4, 3), np.float32))
print(sorted(m for m in ("tvm", "gluongraph.passes", "gluongraph.codegen.rules") if m in sys.modules))
"""


def test_a_warm_process_imports_neither_passes_nor_rules(folder: pathlib.Path) -> None:
    environ = {**os.environ, "GG_VERIFY": "0"}
    seen = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", WARM], env=environ, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        seen.append(done.stdout.strip())
    assert seen == ["['gluongraph.codegen.rules', 'gluongraph.passes', 'tvm']", "[]"]
