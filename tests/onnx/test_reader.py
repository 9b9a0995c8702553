"""Files that are none, that contradict themselves, or want too much: refused by a sentence, before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as models
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import gluongraph as mx
from gluongraph import nd
from gluongraph.errors import FormatError, MXNetError, UnsupportedError


def small() -> Any:
    nodes = [models.node("MatMul", "x w", "h"), models.node("Relu", "h", "y")]
    return models.model(nodes, {"x": ["n", 3]}, ["y"], {"w": models.random(3, 2)})


def relu(**about: Any) -> Any:
    return models.model([models.node("Relu", "x", "y")], {"x": [2]}, ["y"], **about)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mx.onnx.load(tmp_path / "none.onnx")


def test_bytes_paths_and_protos_are_one_model(tmp_path: Path) -> None:
    proto, x = small(), nd.array(models.random(4, 3))
    file = tmp_path / "small.onnx"
    file.write_bytes(proto.SerializeToString())
    results = [mx.onnx.load(m)(x).asnumpy() for m in (file, str(file), file.read_bytes(), proto)]
    assert all((r == results[0]).all() for r in results)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x07"], ids=["empty", "text", "no graph"])
def test_no_model(data: bytes) -> None:
    with pytest.raises(FormatError, match="the model"):
        mx.onnx.load(data)


@pytest.mark.parametrize("opset", [0, 1, 29, 10_000])
def test_unknown_opset(opset: int) -> None:
    with pytest.raises(UnsupportedError, match=f"opset {opset}; known are 7 to 28"):
        mx.onnx.load(relu(opset=opset))


def test_unknown_domain_operator_and_attribute() -> None:
    strange = helper.make_node("Relu", ["x"], ["y"], name="r", domain="com.example")
    with pytest.raises(FormatError, match=r"com.example::Relu 'r': the file imports no version of the domain"):
        mx.onnx.load(models.model([strange], {"x": [2]}, ["y"]))
    with pytest.raises(UnsupportedError, match=r"com.example::Relu 'r': there is no such operator"):
        mx.onnx.load(models.model([strange], {"x": [2]}, ["y"], domains={"com.example": 1}))
    with pytest.raises(UnsupportedError, match=r"Relu 'relu_y': attribute speed=3 is not known"):
        mx.onnx.load(models.model([models.node("Relu", "x", "y", speed=3)], {"x": [2]}, ["y"]))
    with pytest.raises(FormatError, match=r"Relu 'relu_y': 2 inputs; it takes x"):
        mx.onnx.load(models.model([models.node("Relu", "x x", "y")], {"x": [2]}, ["y"]))


def test_cycles_and_values_from_nowhere() -> None:
    cycle = [models.node("Add", "x b", "a"), models.node("Relu", "a", "b")]
    with pytest.raises(FormatError, match=r"Add 'add_a' reads 'b', which only a later node makes: a cycle\?"):
        mx.onnx.load(models.model(cycle, {"x": [2]}, ["b"]))
    with pytest.raises(FormatError, match=r"reads 'z', which nothing makes"):
        mx.onnx.load(models.model([models.node("Relu", "z", "y")], {"x": [2]}, ["y"]))
    with pytest.raises(FormatError, match="output 'q' is made by no node"):
        mx.onnx.load(models.model([models.node("Relu", "x", "y")], {"x": [2]}, ["q"]))
    with pytest.raises(FormatError, match="makes 'y', which exists already"):
        mx.onnx.load(models.model([models.node("Relu", "x", "y")] * 2, {"x": [2]}, ["y"]))


def test_a_function_that_calls_itself() -> None:
    body = [helper.make_node("F", ["a"], ["b"], domain="mine")]
    loop = helper.make_function("mine", "F", ["a"], ["b"], body, [helper.make_opsetid("mine", 1)])
    call = helper.make_node("F", ["x"], ["y"], domain="mine")
    with pytest.raises(FormatError, match="the function calls itself"):
        mx.onnx.load(models.model([call], {"x": [2]}, ["y"], domains={"mine": 1}, functions=[loop]))


def tensor(**about: Any) -> Any:
    proto = small()
    for name, value in about.items():
        if name == "dims":
            proto.graph.initializer[0].dims[:] = value
        else:
            setattr(proto.graph.initializer[0], name, value)
    return proto


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (tensor(dims=[3, 3]), r"array 'w' of shape \[3, 3\] has 24 bytes of data instead of 36"),
        (tensor(dims=[-3, 2]), r"has the shape \[-3, 2\]"),
        (tensor(dims=[1 << 40, 1 << 20]), r"would take 4.61e\+18 bytes"),
        (tensor(raw_data=b""), "has 0 bytes of data instead of 24"),
        (tensor(data_type=TensorProto.STRING), "elements of type STRING, which do not exist here"),
        (tensor(data_type=999), "elements of type number 999"),
    ],
    ids=["too few", "negative", "absurd", "none", "strings", "unknown"],
)
def test_arrays_that_do_not_fit(proto: Any, message: str) -> None:
    with pytest.raises(MXNetError, match=message):
        mx.onnx.load(proto.SerializeToString())


def external(location: str, **about: int) -> Any:
    proto = small()
    array = proto.graph.initializer[0]
    array.ClearField("raw_data")
    array.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **about}.items():
        array.external_data.add(key=key, value=str(value))
    return proto


def test_external_data(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"\0" * 8 + models.random(3, 2).tobytes())
    (tmp_path / "secret").write_bytes(b"\0" * 24)
    (folder / "link").symlink_to(tmp_path / "secret")
    file, x = folder / "m.onnx", nd.array(models.random(4, 3))
    file.write_bytes(external("weights.bin", offset=8, length=24).SerializeToString())
    assert (mx.onnx.load(file)(x).asnumpy() == mx.onnx.load(small())(x).asnumpy()).all()
    for location, message in (
        ("../secret", "outside of the model's folder"),
        (str(tmp_path / "secret"), "outside of the model's folder"),
        ("link", "outside of the model's folder"),
        ("", "outside of the model's folder"),
        ("absent", "does not exist"),
        ("weights.bin", "needs 24 bytes, and has 24 at 16"),
    ):
        file.write_bytes(external(location, offset=16 if location == "weights.bin" else 0).SerializeToString())
        with pytest.raises(FormatError, match=message):
            mx.onnx.load(file)
    with pytest.raises(FormatError, match="the model did not come from a file"):
        mx.onnx.load(external("weights.bin").SerializeToString())


def test_absurd_sizes_are_refused_when_the_graph_is_built() -> None:
    for nodes, arrays in (
        ([models.node("ConstantOfShape", "s", "y")], {"s": np.array([1 << 40, 1 << 20])}),
        ([models.node("Expand", "x s", "y")], {"s": np.array([1 << 40, 2])}),
        ([models.node("Tile", "x s", "y")], {"s": np.array([1 << 60])}),
        ([models.node("Range", "a b c", "y")], {"a": np.float32(0), "b": np.float32(3e38), "c": np.float32(1)}),
        ([models.node("Pad", "x s", "y")], {"s": np.array([0, 1 << 60])}),
    ):
        net = mx.onnx.load(models.model(nodes, {"x": [2]}, ["y"], arrays))
        with pytest.raises(FormatError, match=nodes[0].op_type):
            net(nd.ones((2,)))


def test_wrong_shapes_name_the_node() -> None:
    net = mx.onnx.load(
        models.model([models.node("MatMul", "x w", "y")], {"x": None}, ["y"], {"w": models.random(3, 2)})
    )
    with pytest.raises(MXNetError, match=r"MatMul 'matmul_y'"):
        net(nd.ones((4, 5)))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("gluongraph.onnx.format.package.import_whole", missing)
    with pytest.raises(MXNetError, match="need the package onnx, which is not installed"):
        mx.onnx.load(b"")


def test_importing_gluongraph_does_not_import_onnx() -> None:
    program = "import sys, gluongraph as mx; mx.onnx.load; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_names_that_are_no_text() -> None:
    """Bytes where a name should be; protobuf lets them through."""
    data = small().SerializeToString()
    for place in (data.index(b"Relu"), data.index(b"\x01h") + 1, data.index(b"relu_y"), data.index(b"\x01x") + 1):
        with pytest.raises(MXNetError):
            mx.onnx.load(data[:place] + b"\x80" + data[place + 1 :])


DATA = small().SerializeToString()
EDIT = st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(EDIT, min_size=1, max_size=4), st.integers(0, 8))
def test_bytes_that_were_changed(edits: list[tuple[int, int]], lost: int) -> None:
    """A model with other bytes is read, or refused by an error of gluongraph's; it never raises another."""
    data = bytearray(DATA)
    for place, byte in edits:
        data[place] = byte
    try:
        net = mx.onnx.load(bytes(data[: len(data) - lost]))
        net(*(nd.ones((2, 3)) for _ in net.inputs))
    except MXNetError:
        pass
