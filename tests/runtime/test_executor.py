"""Artefacts brought to run: their description as text, memory that moves, libraries that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd, ops
from gluongraph.compiler import lower
from gluongraph.compiler.lower import Compiled
from gluongraph.errors import CompileError
from gluongraph.ir.entry_point import FORMAT, Arg, Program
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.runtime import loader
from gluongraph.runtime.arena import Arena
from gluongraph.runtime.executor import Executor
from gluongraph.storage import ALIGNMENT, Storage, moves

PROGRAM = Program(
    args=(
        Arg("x", "f32", (2, 3), "input"),
        Arg("w", "bf16", (3,), "state"),
        Arg("lr", "f64", (), "scalar", 8),
        Arg("v0", "bool", (4, 1), "scratch", 64),
        Arg("table", "i32", (2,), "const"),
        Arg("y", "f32", (2,), "output"),
    ),
    scratch_bytes=128,
    scalar_bytes=16,
    outputs={"loss": "y"},
    updates=("w",),
    constants={"table": bytes(range(8))},
)


def test_program_travels_as_text() -> None:
    text = PROGRAM.to_json()
    back = Program.from_json(text)
    assert back == PROGRAM
    assert back.to_json() == text
    assert back.positions("scalar") == {"lr": 2}
    assert [arg.nbytes for arg in back.args] == [24, 6, 8, 4, 8, 8]


@pytest.mark.parametrize("format", [FORMAT + 1, FORMAT - 1, str(FORMAT), None])
def test_other_formats_are_refused(format: Any) -> None:
    data = json.loads(PROGRAM.to_json())
    with pytest.raises(CompileError, match=rf"program format {format}, this version reads {FORMAT}"):
        Program.from_json(json.dumps({**data, "format": format}))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", json.dumps({"format": FORMAT})])
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(CompileError, match="not a program description"):
        Program.from_json(text)


@pytest.mark.parametrize("key", ["args", "scratch_bytes", "scalar_bytes", "outputs", "updates", "constants"])
def test_a_program_with_a_part_missing_is_refused(key: str) -> None:
    data = json.loads(PROGRAM.to_json())
    del data[key]
    with pytest.raises(CompileError, match=f"not a program description: '{key}'"):
        Program.from_json(json.dumps(data))


# --- arenas


def test_arena_holds_arrays_side_by_side() -> None:
    storages = [Storage(np.full(n, n, np.float32)) for n in (1, 16, 17, 40)]
    before = moves()
    arena = Arena(storages)
    assert moves() == before + 4
    assert arena.offsets == [0, 64, 128, 256]
    assert arena.memory.nbytes == 256 + 192
    start = arena.memory.ctypes.data
    assert start % ALIGNMENT == 0
    for storage, at in zip(storages, arena.offsets, strict=True):
        assert storage.array.ctypes.data == start + at
        assert (storage.array == storage.array.size).all(), "content has moved along"
    assert arena.holds(storages)
    assert not arena.holds(storages[:-1])
    assert not arena.holds([*storages[1:], storages[0]])


def test_handles_follow_into_an_arena() -> None:
    a, b = nd.array([1.0, 2.0, 3.0]), nd.array([[4.0, 5.0], [6.0, 7.0]])
    part = b[1]
    arena = Arena([a.storage, b.storage])
    arena.memory.view(np.float32)[:3] = 10.0
    assert (a.asnumpy() == 10.0).all()
    b[:] = 8.0
    at = arena.offsets[1] // 4
    assert (arena.memory.view(np.float32)[at : at + 4] == 8.0).all()
    assert (part.asnumpy() == 8.0).all(), "a view taken before shows the new place"


def test_an_arena_knows_who_has_left() -> None:
    storages = [Storage(np.ones(4, np.float32)) for _ in range(2)]
    arena = Arena(storages)
    storages[0].rehome(np.zeros(4, np.float32))
    assert not arena.holds(storages)
    assert (storages[0].array == 1.0).all()


@pytest.mark.parametrize("other", [np.zeros(5, np.float32), np.zeros(4, np.float64), np.zeros((2, 2), np.float32)])
def test_no_array_moves_into_a_different_one(other: Any) -> None:
    storage = Storage(np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"rehome: float.* cannot hold float32"):
        storage.rehome(other)


# --- the executor


@pytest.fixture(scope="module")
def program() -> Compiled:
    """y = x * w + lr, w = w + lr, for w of 3 columns."""
    x, w, lr = (ops.input(n, TensorType(s)) for n, s in (("x", (2, 3)), ("w", (3,)), ("lr", ())))
    graph = Graph({"x": x, "w": w, "lr": lr}, {"y": x * w + lr}, {"w": w + lr})
    return lower.lower(graph, {"x": "input", "w": "state", "lr": "scalar"})


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def executor(program: Compiled, w: Any) -> Executor:
    made = program.executor({"w": w})
    assert isinstance(made, Executor)
    return made


def test_state_is_updated_in_its_place(program: Compiled) -> None:
    w = np.ones(3, np.float32)
    run = executor(program, w)
    assert run.input_names == ("x",) and run.output_names == ("y",)
    run.scalar("lr")[0] = 0.5
    (first,) = run([X])
    (second,) = run([X])
    assert np.array_equal(first, X + 0.5) and np.array_equal(second, X * 1.5 + 0.5)
    assert (w == 2.0).all()
    assert first.ctypes.data != second.ctypes.data, "results of a call stay what they are"


def test_state_is_bound_again(program: Compiled) -> None:
    old, new = np.ones(3, np.float32), np.full(3, 4.0, np.float32)
    run = executor(program, old)
    run.scalar("lr")[0] = 1.0
    run([X])
    run.bind({"w": new})
    (y,) = run([X])
    assert np.array_equal(y, X * 4.0 + 1.0), "scalars stay when state moves"
    assert (old == 2.0).all() and (new == 5.0).all()


def test_two_executors_of_one_artefact_share_nothing(program: Compiled) -> None:
    first, second = np.zeros(3, np.float32), np.zeros(3, np.float32)
    one, two = executor(program, first), executor(program, second)
    one.scalar("lr")[0] = 1.0
    two.scalar("lr")[0] = 3.0
    one([X])
    two([X])
    assert (first == 1.0).all() and (second == 3.0).all()


def test_lent_memory_leaves_state_alone(program: Compiled) -> None:
    w = np.ones(3, np.float32)
    with executor(program, w).lent([X]) as memory:
        assert len(memory) == len(program.artefact.program.args) >= 4
        w[:] = 7.0
    assert (w == 1.0).all()


def test_a_step_finds_parameters_that_have_moved() -> None:
    """After `rehome` a compiled step works on the new memory: the old is no longer written."""
    net = gluon.nn.Dense(1, in_units=3, use_bias=False)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    x, y = nd.ones((2, 3)), nd.zeros((2, 1))
    np.testing.assert_allclose(step(x, y).asnumpy(), 4.5)
    weight = net.weight.data()
    before = weight.storage.array
    kept = before.copy()
    place = np.empty_like(before)
    weight.storage.rehome(place)
    place[...] = 1.0
    np.testing.assert_allclose(step(x, y).asnumpy(), 4.5)
    assert np.array_equal(before, kept), "nobody writes where the parameter lived"
    np.testing.assert_allclose(place, 1.0 - 0.5 * 3.0)
    np.testing.assert_allclose(weight.asnumpy(), place)


# --- the loader


def test_bytes_that_are_no_library() -> None:
    with pytest.raises(CompileError, match=r"cannot load step\.so: file too short"):
        loader.load_code(b"not a library", "step.so")
    with pytest.raises(CompileError, match=r"cannot load step\.so: invalid ELF header"):
        loader.load_code(b"not a library" * 100, "step.so")


def test_runtime_libraries_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"libnothing\.so is missing: reinstall apache-tvm"):
        loader._library("libnothing.so")
    monkeypatch.setattr(loader.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match="TVM's runtime is not installed: pip install apache-tvm"):
        loader._library("libtvm_runtime.so")
