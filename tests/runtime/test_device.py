"""Device memory and the executor over it, with the CPU as the device: the same calls that a GPU gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.compiler.lower import lower
from gluongraph.errors import CompileError
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.runtime import loader
from gluongraph.runtime.device import CPU, Device, DeviceExecutor, Memory, layout

HERE = Device(CPU, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool", "float16"])
def test_spans_keep_what_is_uploaded(dtype: str) -> None:
    short = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8", "float16": "f16"}
    memory = Memory(1024, HERE)
    array = np.arange(20).astype(dtype)
    first, second = (memory.span(short.get(dtype, dtype), 20, at) for at in (0, 512))
    first.upload(array)
    second.upload(array[::-1].copy())
    back = np.zeros(20, dtype)
    first.download(back)
    assert np.array_equal(back, array)
    second.download(back)
    assert np.array_equal(back, array[::-1])
    assert (first.address, second.address) == (memory.address, memory.address + 512)


def test_spans_are_checked() -> None:
    memory = Memory(64, HERE)
    with pytest.raises(CompileError, match="exceed 64 bytes"):
        memory.span("f32", 17)
    with pytest.raises(CompileError, match="16 elements of f32 on the device, not float64"):
        memory.span("f32", 16).upload(np.zeros(16))
    with pytest.raises(CompileError, match=r"not float32\[4, 2\]"):
        memory.span("f32", 8).upload(np.zeros((2, 4), "f").T)


def test_a_span_keeps_its_memory_alive() -> None:
    span = Memory(4096, HERE).span("f32", 1024)
    span.upload(np.arange(1024, dtype="f"))
    others = [Memory(4096, HERE).span("f32", 1024) for _ in range(8)]
    for other in others:
        other.upload(np.zeros(1024, "f"))
    back = np.zeros(1024, "f")
    span.download(back)
    assert back[-1] == 1023


def momentum() -> tuple[Graph, dict[str, str], dict[str, Any]]:
    """A step with every kind of argument: inputs, a scalar, states that are updated, a constant, an output."""
    x, w = ops.input("x", TensorType((6, 5))), ops.input("w", TensorType((5, 3)))
    m, lr = ops.input("m", TensorType((5, 3))), ops.input("lr", TensorType(()))
    y = ops.matmul(x, w) + ops.literal(np.arange(3, dtype="f"))
    g = ops.matmul(x, y, ta=True)
    new = m * 0.9 + g
    graph = Graph({"x": x, "w": w, "m": m, "lr": lr}, {"y": y}, {"w": w - new * lr, "m": new})
    rng = np.random.default_rng(0)
    state = {"w": rng.standard_normal((5, 3)).astype("f"), "m": np.zeros((5, 3), "f")}
    return graph, {"x": "input", "w": "state", "m": "state", "lr": "scalar"}, state


def test_steps_are_those_of_the_host() -> None:
    graph, roles, state = momentum()
    compiled = lower(graph, roles)
    assert compiled.artefact is not None
    there = {name: a.copy() for name, a in state.items()}
    host = compiled.executor(state)
    function = loader.function(compiled.module(), "step")
    device = DeviceExecutor(function, compiled.artefact.program, there, HERE, mirror=False)
    assert device.input_names == host.input_names and device.output_names == host.output_names
    for executor in (host, device):
        executor.scalar("lr")[0] = 0.01
    for step in range(4):
        x = np.random.default_rng(step).standard_normal((6, 5)).astype("f")
        for ours, theirs in zip(device([x]), host([x]), strict=True):
            assert np.array_equal(ours, theirs)
    before = there["w"].copy()
    device.fetch()
    device.wait()
    assert not np.array_equal(before, there["w"])
    assert all(np.array_equal(there[name], state[name]) for name in state)


def test_a_mirrored_state_is_the_hosts() -> None:
    """What the host writes between calls counts, and it sees what a call has changed."""
    graph, roles, state = momentum()
    compiled = lower(graph, roles)
    assert compiled.artefact is not None
    there = {name: a.copy() for name, a in state.items()}
    host = compiled.executor(state)
    function = loader.function(compiled.module(), "step")
    device = DeviceExecutor(function, compiled.artefact.program, there, HERE)
    for step in range(3):
        x = np.full((6, 5), step, "f")
        for executor, arrays in ((host, state), (device, there)):
            executor.scalar("lr")[0] = 0.1
            arrays["w"][0] = step
            executor([x])
        assert all(np.array_equal(there[name], state[name]) for name in state)


def test_every_argument_has_its_place() -> None:
    graph, roles, _ = momentum()
    compiled = lower(graph, roles)
    assert compiled.artefact is not None
    args = compiled.artefact.program.args
    places, end = layout(args, ("input", "state"))
    assert set(places) == {"x", "w", "m"} and all(at % 64 == 0 for at in places.values())
    assert end == 128 + 64 + 64


def test_a_missing_gpu_is_said_so() -> None:
    if Device().exists():
        pytest.skip("there is a GPU")
    with pytest.raises(CompileError, match="no CUDA on this machine"):
        Memory(64, Device())
