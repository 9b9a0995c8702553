"""The cache of artefacts: what is the same code for it, what is not, and entries that are broken."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, ops
from gluongraph.codegen.cache import artifacts
from gluongraph.codegen.targets import TARGETS
from gluongraph.compiler.lower import compile_graph, lower
from gluongraph.compiler.pipeline import plan_of
from gluongraph.gluon import nn
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.step import TrainStep

X, Y = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.array([0, 1, 2, 0], np.int32)
CPU = TARGETS["x86-64"]


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A cache for each test alone."""
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    yield tmp_path


def net(**how: Any) -> tuple[nn.HybridSequential, TrainStep]:
    """Two layers and their training step, with the same numbers each time."""
    mx.random.seed(3)
    made = nn.HybridSequential(**how)
    with made.name_scope():  # dense0 and dense1, whatever tests before this have made
        made.add(nn.Dense(8, activation="relu", in_units=6), nn.Dense(3, in_units=8))
    made.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(made.collect_params(), "adam", {"learning_rate": 0.1})
    return made, mx.compile(made, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)


def test_a_net_built_again_is_not_compiled_again(folder: pathlib.Path) -> None:
    """Its parameters have other names; each net trains its own."""
    (first, one), (second, two) = net(), net(prefix="other_")
    assert set(first.collect_params()).isdisjoint(second.collect_params())
    losses = [one(X, Y).asnumpy(), two(X, Y).asnumpy()]
    assert one.artefact.compiled > 0 and two.artefact.compiled == 0
    assert two.artefact.path == one.artefact.path and len(list(folder.glob("*/step.so"))) == 1
    assert np.array_equal(*losses)
    before = second[0].weight.data().asnumpy()
    one(X, Y)
    assert np.array_equal(second[0].weight.data().asnumpy(), before)
    assert set(two.artefact.program.updates) > set(second.collect_params()), "its own description has its own names"


def scale(names: dict[str, str], shape: tuple[int, ...] = (4, 5)) -> tuple[Graph, dict[str, str]]:
    """out = x * w, w = w + x, under names of one's own."""
    x, w = (ops.input(names.get(n, n), TensorType(shape)) for n in ("x", "w"))
    key_x, key_w, out = (names.get(n, n) for n in ("x", "w", "out"))
    graph = Graph({key_x: x, key_w: w}, {out: x * w}, {key_w: w + x})
    return graph, {key_x: "input", key_w: "state"}


def key(graph: Graph, roles: dict[str, str], target: str = "x86-64") -> str:
    return artifacts.key(plan_of(graph, roles, CPU)[0], TARGETS[target])


def test_what_the_key_depends_on() -> None:
    same = {key(*scale(names)) for names in ({}, {"x": "a", "w": "z", "out": "m"}, {"x": "z", "w": "a", "out": "x"})}
    assert len(same) == 1
    graph, roles = scale({})
    other = Graph(graph.inputs, graph.outputs, {"w": ops.sub(graph.inputs["w"], graph.inputs["x"])})
    more = Graph(graph.inputs, {**graph.outputs, "again": graph.outputs["out"]}, graph.updates)
    different = {
        key(*scale({}, (4, 6))),
        key(graph, roles, "x86-64-v3"),
        key(graph, {"x": "scalar", "w": "state"}),
        key(other, roles),
        key(more, roles),
    }
    assert len(different | same) == 6


def test_the_plan_within_a_scan_counts() -> None:
    """Kernels of a turn are written into the scan's own: their memory is code."""
    c, xs = ops.input("c", TensorType((3, 3))), ops.input("xs", TensorType((4, 3, 3)))
    (last,), _ = ops.scan(lambda carries, x: ((ops.matmul(ops.tanh(ops.matmul(*carries, *x)), *x),), ()), [c], [xs])
    plan, _ = plan_of(Graph({"c": c, "xs": xs}, {"last": last}), {"c": "input", "xs": "input"}, CPU)
    (launch,) = plan.launches
    assert launch.group.inner is not None
    for other in ({"scratch_bytes": 1 << 20}, {"launches": launch.group.inner.launches[::-1]}):
        group = replace(launch.group, inner=replace(launch.group.inner, **other))
        assert artifacts.key(replace(plan, launches=(replace(launch, group=group),)), CPU) != artifacts.key(plan, CPU)


TAKEN = ("v0", "v1", "const0", "workspace0", "workspace1", "unused", "x", "y")


def test_inputs_and_outputs_may_have_any_names() -> None:
    """Those of a plan's own memory too, and outputs those of inputs."""
    inputs = {name: ops.input(name, TensorType((7, 7))) for name in TAKEN}
    table = ops.literal(np.arange(49, dtype=np.float32).reshape(7, 7))
    total = table
    for n in inputs.values():
        total = ops.matmul(ops.tanh(total + n), n, ta=True)
    outputs = {"x": total, "v0": inputs["y"], "const0": ops.sum(total, axis=1), "v2": total}
    graph = Graph(inputs, outputs, {"y": inputs["y"] * 2.0})
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal((7, 7), dtype=np.float32) for name in TAKEN}
    want = interpreter.run(graph, {name: array.copy() for name, array in values.items()})
    got = compile_graph(graph, "taken")(values)
    for results, true in zip(got, want, strict=True):
        assert list(results) == list(true)
        for name, array in true.items():
            np.testing.assert_allclose(results[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("file", ["program.json", "step.so"])
def test_a_broken_entry_is_made_again(folder: pathlib.Path, file: str) -> None:
    graph, roles = scale({})
    made = lower(graph, roles).artefact
    assert made is not None
    path = made.path
    assert path is not None
    found = artifacts.find(path.parent.name, made.program)
    assert found is not None and found.path == path and found.files == made.files
    path.with_name(file).unlink()
    assert artifacts.find(path.parent.name, made.program) is None
    again = lower(graph, roles).artefact
    assert again is not None and again.compiled > 0 and again.path == path and path.with_name(file).exists()
    assert {p.name for p in folder.iterdir() if p.is_dir()} == {path.parent.name}, "no drafts are left"
    assert again.files == made.files


COMPILED = """
import hashlib, numpy as np, gluongraph as mx
from gluongraph.codegen.tvm import machine_code
from gluongraph.gluon import nn
modules, write = [], machine_code.write_object
machine_code.write_object = lambda module, path: modules.append(path) or write(module, path)
net = nn.HybridSequential(prefix="net_")
net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.MaxPool2D(), nn.Flatten(), nn.Dense(8, activation="tanh"), nn.Dense(3))
net.initialize(mx.init.One())
step = mx.compile(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.gluon.Trainer(net.collect_params(), "lamb"))
step(np.ones((4, 2, 8, 8), np.float32), np.zeros(4, np.float32))
print(len(modules), hashlib.sha256(step.artefact.path.read_bytes()).hexdigest())
"""


def test_a_folder_that_cannot_be_written_is_told_and_the_step_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file lies in the folder's place, which stops even the superuser."""
    place = tmp_path / "cache"
    place.write_text("a file")
    monkeypatch.setenv("GG_CACHE", str(place))
    with pytest.warns(UserWarning, match=r"not kept: .*cache cannot be written(.|\n)*help: .*GG_CACHE") as told:
        _, step = net()
        assert step(X, Y).shape == (4,)
    assert told[0].filename == __file__ and place.read_text() == "a file"
    assert step.artefact.path is not None and not step.artefact.path.is_relative_to(tmp_path)


def test_threads_of_the_compiler_leave_no_trace(tmp_path: pathlib.Path) -> None:
    """Several modules and the entry point's, by one thread and by two."""
    seen = []
    for threads in ("1", "2"):
        environ = {**os.environ, "GG_THREADS": threads, "GG_CACHE": str(tmp_path / threads)}
        run = [sys.executable, "-c", COMPILED]
        seen.append(subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stdout)
    assert int(seen[0].split()[0]) >= 3 and seen[0] == seen[1]
