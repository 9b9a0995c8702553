"""Training steps as ONNX: the file is one, and reads back as the identical graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import gluongraph as mx
from gluongraph import debug, gluon, nd
from gluongraph.errors import FormatError, MXNetError
from gluongraph.gluon import nn, rnn
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS
from gluongraph.onnx.export.functions import op_of


def random(*shape: int) -> Any:
    return nd.array(np.random.default_rng([*shape]).standard_normal(shape).astype("f4"))


def convolutional() -> tuple[Any, Any]:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(), nn.Dropout(0.3))
    net.add(nn.Dense(4))
    return net, random(5, 2, 6, 6)


def recurrent() -> tuple[Any, Any]:
    net = nn.HybridSequential()
    net.add(rnn.LSTM(4, layout="NTC", bidirectional=True), nn.Dense(3))
    return net, random(5, 6, 2)


def plain() -> tuple[Any, Any]:
    """Nothing random, no loop; no pooling by steps of 1, whose Indices onnx.reference gets wrong."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, strides=2, groups=2), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(3, 2))
    net.add(nn.Conv2D(3, 2, dilation=2, padding=1), nn.GlobalAvgPool2D(), nn.Dense(4))
    return net, random(5, 2, 12, 11)


STEPS: dict[str, tuple[Callable[[], tuple[Any, Any]], str, dict[str, Any]]] = {
    "adam, dropout": (convolutional, "adam", {}),
    "momentum, bf16": (convolutional, "nag", {"precision": "bf16-mixed"}),
    "lamb, a loop, clipping": (recurrent, "lamb", {"clip_norm": 1.0}),
    "nothing random": (plain, "adam", {}),
    "nothing random, bf16": (plain, "nag", {"precision": "bf16-mixed"}),
}


def made(name: str) -> Any:
    """A step that has been called once."""
    make, optimizer, options = STEPS[name]
    net, x = make()
    net.initialize(mx.init.Xavier())
    net(x)
    trainer = gluon.Trainer(net.collect_params(), optimizer)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **options)
    with debug.override(backend="reference"):
        step(x, nd.array([0, 1, 2, 0, 1]))
    return step


@pytest.mark.parametrize("name", STEPS)
def test_it_reads_back_as_the_identical_graph(name: str, tmp_path: Path) -> None:
    step = made(name)
    step.export_onnx(tmp_path / "step.onnx")
    graph, arrays = mx.onnx.load_graph(tmp_path / "step.onnx")
    assert graph == step.graph and list(graph.inputs) == list(step.graph.inputs)
    assert all(step.graph.inputs[name] is n for name, n in graph.inputs.items())
    parameters = {p.name: p.data().asnumpy() for p in step.net.collect_params().values()}
    for key, array in parameters.items():
        np.testing.assert_array_equal(arrays[key], array)


@pytest.mark.parametrize("name", STEPS)
def test_the_file_is_what_is_documented(name: str, tmp_path: Path) -> None:
    """Ops of the IR, results under their names, and `training_info` says what an update writes."""
    step = made(name)
    step.export_onnx(tmp_path / "step.onnx")
    proto = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(proto, full_check=True)
    called = {n.op_type for n in proto.graph.node if n.domain == "gluongraph"}
    assert {op_of(name) for name in called} <= OPS.keys()
    assert called - {f.name for f in proto.functions} <= {"dropout", "bernoulli"}
    for function in proto.functions:
        assert function.domain == "gluongraph" and {n.domain for n in function.node} == {""}
    assert {n.op_type for n in proto.graph.node if n.domain != "gluongraph"} == {"Identity"}
    bound = {b.key: b.value for b in proto.training_info[0].update_binding}
    assert list(bound) == list(step.graph.updates)
    outputs = [v.name for v in proto.graph.output]
    assert outputs == [*step.graph.outputs, *bound.values()] and bound.keys() <= {v.name for v in proto.graph.input}
    assert all(f"{key}/next" == value for key, value in bound.items())
    layers = {child.name for child in step.net._children.values()}
    assert {n.name.split("/")[0] for n in proto.graph.node} & layers  # operators are called after their layers


@pytest.mark.parametrize("name", [name for name in STEPS if name.startswith("nothing random")])
def test_others_compute_it_by_the_functions(name: str, tmp_path: Path) -> None:
    """onnx.reference, which knows standard operators alone: losses, gradients and updates."""
    mx.random.seed(0)
    step = made(name)
    step.export_onnx(tmp_path / "step.onnx")
    graph, given = mx.onnx.load_graph(tmp_path / "step.onnx")
    given |= {"data0": random(5, 2, 12, 11).asnumpy(), "data1": np.array([0, 1, 2, 0, 1], np.float32)}
    given |= {name: np.array(0.125, np.float32) for name in graph.inputs if name.startswith("scalar:")}
    found = ReferenceEvaluator(str(tmp_path / "step.onnx")).run(None, {name: given[name] for name in graph.inputs})
    meant = interpreter.evaluate(graph.results, {n: given[name] for name, n in graph.inputs.items()})
    for key, a, b in zip([*graph.outputs, *graph.updates], found, meant, strict=True):
        a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
        part, least = (0.05, 1e-3) if "bf16" in name else (1e-4, 1e-5)  # a bias before a batch norm has rounding alone
        np.testing.assert_allclose(a, b, rtol=0, atol=max(part * np.abs(b).max(), least), err_msg=key)


def test_what_was_read_computes_the_step(tmp_path: Path) -> None:
    """The graph of the file, run on the arrays of the file, gives the next weights of the step that goes on."""
    net, x = recurrent()
    net.initialize(mx.init.Xavier())
    net(x)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    step, label = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer), nd.array([0, 1, 2, 0, 1])
    with debug.override(backend="reference"):
        step(x, label)
        step.export_onnx(tmp_path / "step.onnx")
        loss = step(x, label).asnumpy()
    graph, arrays = mx.onnx.load_graph(tmp_path / "step.onnx")
    scalars = {"scalar:lr": 0.1, "scalar:wd": 0.0, "scalar:rescale": 1 / 5, "scalar:momentum": 0.9}
    given = {"data0": x.asnumpy(), "data1": label.asnumpy(), **arrays}
    given |= {name: np.float32(scalars[name]) for name in graph.inputs if name.startswith("scalar:")}
    values = interpreter.evaluate(graph.results, {n: given[name] for name, n in graph.inputs.items()})
    np.testing.assert_array_equal(values[0], loss)
    for name, value in zip(graph.updates, values[len(graph.outputs) :], strict=True):
        if (p := net.collect_params()._params.get(name)) is not None:
            np.testing.assert_allclose(value, p.data().asnumpy(), rtol=1e-6, atol=1e-7)


def test_nothing_called_yet(tmp_path: Path) -> None:
    step = mx.compile(nn.Dense(2))
    with pytest.raises(MXNetError, match="nothing has been compiled yet"):
        step.export_onnx(tmp_path / "s.onnx")
    assert not list(tmp_path.iterdir())


EDITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another domain": (lambda m: setattr(m.graph.node[0], "domain", ""), "is not of the domain 'gluongraph'"),
    "no such op": (lambda m: setattr(m.graph.node[0], "op_type", "Conv"), "there is no op 'Conv'"),
    "a cycle": (lambda m: m.graph.node[0].input.__setitem__(0, m.graph.node[1].output[0]), "nothing before makes it"),
    "no type": (lambda m: m.graph.value_info.pop(0), "a value without a type"),
    "another type": (lambda m: setattr(m.graph.value_info[0].type.tensor_type, "elem_type", 11), "its rule says"),
    "no attribute": (lambda m: m.graph.node[0].attribute.pop(0), "conv2d"),
    "no JSON": (lambda m: setattr(text_of(m), "s", b"\xff{"), "which is no JSON"),
    "not ours": (lambda m: setattr(m.graph.input[0], "doc_string", ""), "no training step wrote this file"),
    "other numbers": (lambda m: m.graph.initializer[0].dims.append(1), "is no input of that shape"),
    "an update of nothing": (
        lambda m: setattr(m.training_info[0].update_binding[0], "value", "no"),
        "the output 'no', which does not exist",
    ),
}


def text_of(proto: Any) -> Any:
    return next(a for n in proto.graph.node for a in n.attribute if a.type == a.STRING)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("step") / "step.onnx"
    made("adam, dropout").export_onnx(file)
    return file.read_bytes()


@pytest.mark.parametrize("name", EDITS)
def test_other_files_are_refused(name: str, whole: bytes) -> None:
    edit, message = EDITS[name]
    proto = onnx.ModelProto.FromString(whole)
    edit(proto)
    with pytest.raises(FormatError, match=message):
        mx.onnx.load_graph(proto)


def test_files_of_others_are_refused() -> None:
    with pytest.raises(FormatError, match="no ONNX file"):
        mx.onnx.load_graph(b"not a model")
