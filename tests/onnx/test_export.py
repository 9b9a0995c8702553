"""Networks as ONNX models: checked by onnx, run by onnxruntime where it is installed, read back; and refusals."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import char_transformer
import digits

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.errors import MXNetError, UnsupportedError
from gluongraph.gluon import nn, rnn

try:
    runtime = importlib.import_module("onnxruntime")
except ImportError:
    runtime = None

# The smallest input that each model takes, but for those whose last pooling wants a certain one.
ZOO = {
    "alexnet": 67, "densenet121": 224, "inceptionv3": 299, "mobilenet0.25": 32, "mobilenetv2_0.25": 32,
    "resnet18_v1": 32, "resnet18_v2": 32, "resnet50_v1": 32, "squeezenet1.0": 224, "squeezenet1.1": 224,
    "vgg11": 32, "vgg11_bn": 32,
}  # fmt: skip
OPERATORS = {
    "alexnet": {"Conv": 5, "Flatten": 1, "Gemm": 3, "MaxPool": 3, "Relu": 7},
    "mobilenetv2_0.25": {"Add": 10, "BatchNormalization": 53, "Clip": 36, "Conv": 54, "Flatten": 1,
                         "GlobalAveragePool": 1},
    "resnet18_v1": {"Add": 8, "BatchNormalization": 20, "Conv": 20, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1,
                    "MaxPool": 1, "Relu": 17},
}  # fmt: skip


def random(*shape: int, seed: int = 0) -> Any:
    return nd.array(np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f4"))


def flat(made: Any) -> list[Any]:
    return [a for part in made for a in flat(part)] if isinstance(made, list | tuple) else [made]


def check(net: Any, path: Path, *inputs: Any, others: Any = (), **how: Any) -> Any:
    """Export, then compare what the net gives with onnxruntime and with the file read back; the model."""
    net.export_onnx(path, *inputs, **how)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    back = mx.onnx.load(path)
    own = {name: p.data() for name, p in net.collect_params().items()}
    for name, p in back.collect_params().items():  # names and numbers of parameters are kept; others are constants
        assert name.startswith("constant") or (p.data().asnumpy() == own[name].asnumpy()).all()
    session = runtime and runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for args in (inputs, others) if others else (inputs,):
        expected = [y.asnumpy() for y in flat(net(*args))]
        compare(flat(back(*flat(args))), expected)
        if session is not None:
            given = {i.name: a.asnumpy() for i, a in zip(session.get_inputs(), flat(args), strict=True)}
            compare(session.run(None, given), expected)
    return proto


def compare(made: Any, expected: Any) -> None:
    for got, wanted in zip(made, expected, strict=True):
        got = got if isinstance(got, np.ndarray) else got.asnumpy()
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_onnxruntime_compares() -> None:
    if runtime is None:
        pytest.skip("onnxruntime is not installed: files are compared with what mx.onnx.load makes of them only")
    assert runtime.get_available_providers()


SMALL = ("mobilenet0.25", "mobilenetv2_0.25")  # the others take minutes: GG_ONNX_ALL=1 runs them


@pytest.mark.parametrize("name", ZOO if os.environ.get("GG_ONNX_ALL", "") not in ("", "0") else SMALL)
def test_model_zoo(name: str, tmp_path: Path) -> None:
    """Convolutions and products with their biases, pooling by name, and nothing else."""
    net = gluon.model_zoo.vision.get_model(name, classes=10)
    net.initialize(mx.init.Xavier())
    proto = check(net, tmp_path / "net.onnx", random(1, 3, ZOO[name], ZOO[name]))
    counts = Counter(n.op_type for n in proto.graph.node)
    assert not counts.keys() & {"Transpose", "Reshape", "Expand", "Identity", "Constant", "Shape"}
    assert counts == OPERATORS.get(name, counts)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_digits_example(tmp_path: Path) -> None:
    net = digits.network()
    proto = check(net, tmp_path / "digits.onnx", random(2, 1, 8, 8), others=(random(5, 1, 8, 8),))
    assert [n.op_type for n in proto.graph.node] == [
        "Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "BatchNormalization", "Relu", "MaxPool", "Flatten",
        "Gemm", "Relu", "Gemm",
    ]  # fmt: skip
    layers = {p.name.rpartition("_")[0] for p in net.collect_params().values()}
    assert {n.name.split("/")[0] for n in proto.graph.node if n.op_type in ("Conv", "Gemm")} < layers


def test_the_transformer_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(char_transformer, "LAYERS", 2)
    net = char_transformer.Gpt()
    net.initialize(mx.init.Normal(0.02))
    x, y = (nd.array(np.random.default_rng(n).integers(0, 96, (n, 64)), dtype="int32") for n in (2, 3))
    proto = check(net, tmp_path / "gpt.onnx", x, others=(y,))
    counts = Counter(n.op_type for n in proto.graph.node)
    assert counts == {
        "Gather": 7, "Add": 5, "LayerNormalization": 5, "Reshape": 18, "Gemm": 9, "Transpose": 4, "Attention": 2,
        "Gelu": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "states"),
    [
        (lambda: rnn.LSTM(5, 2, input_size=3, bidirectional=True), 2),
        (lambda: rnn.GRU(5, input_size=3), 1),
        (lambda: rnn.RNN(5, input_size=3), 1),
    ],
    ids=["lstm", "gru", "rnn"],
)
def test_recurrent_layers(layer: Any, states: int, tmp_path: Path) -> None:
    net = layer()
    net.initialize()
    check(net, tmp_path / "a.onnx", random(4, 2, 3), others=(random(4, 3, 3),), batch_axis=1)
    begin = [[s + 0.5 for s in net.begin_state(n)] for n in (2, 3)]
    check(net, tmp_path / "b.onnx", random(4, 2, 3), begin[0], others=(random(4, 3, 3), begin[1]), batch_axis=1)


class Odd(gluon.HybridBlock):
    """What layers do not do."""

    def __init__(self, fn: Any):
        super().__init__()
        self.fn = fn

    def forward(self, *x: Any) -> Any:
        return self.fn(*x)


FORWARDS: dict[str, Any] = {
    "two outputs, one of them twice": lambda x: (x + 1, x * 2, x + 1),
    "the input itself": lambda x: x,
    "numbers": lambda x: nd.concat(x, nd.ones((1, 4)) * 3, dim=0),
    "slices": lambda x: (x[:, 1], x[1:2], x[:, ::2], x[:, ::-1]),
    "reductions": lambda x: (x.sum(axis=1), x.mean(axis=0, keepdims=True), x.max(), nd.norm(x)),
    "order": lambda x: (nd.argsort(x, axis=1), nd.argmax(x, axis=1), nd.topk(x, k=2, axis=1)),
    "softmaxes": lambda x: (nd.softmax(x), nd.log_softmax(x, axis=0), nd.softmin(x)),
    "powers": lambda x: (nd.power(nd.abs(x), 1.5), x % 2.0, nd.rsqrt(nd.abs(x) + 1), nd.expm1(x), nd.log1p(nd.abs(x))),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards(name: str, tmp_path: Path) -> None:
    check(Odd(FORWARDS[name]), tmp_path / "odd.onnx", random(3, 4), dynamic_batch=False)


LAYERS: dict[str, tuple[Any, tuple[int, ...], set[str]]] = {
    "leaky": (lambda: nn.LeakyReLU(0.1), (2, 3, 4), {"LeakyRelu"}),
    "prelu": (nn.PReLU, (2, 3, 4), {"PRelu"}),
    "elu": (lambda: nn.ELU(0.7), (2, 3), {"Elu"}),
    "selu": (nn.SELU, (2, 3), {"Selu"}),
    "gelu": (nn.GELU, (2, 3), {"Gelu"}),
    "swish": (nn.Swish, (2, 3), {"Mul", "Sigmoid"}),
    "softrelu": (lambda: nn.Activation("softrelu"), (2, 3), {"Softplus"}),
    "softsign": (lambda: nn.Activation("softsign"), (2, 3), {"Softsign"}),
    "transposed": (lambda: nn.Conv2DTranspose(4, 3, 2, 1, 1), (2, 3, 5, 6), {"ConvTranspose"}),
    "grouped": (lambda: nn.Conv2D(6, 3, groups=3, dilation=2), (2, 3, 7, 8), {"Conv"}),
    "volume": (lambda: nn.Conv3D(2, 3, padding=1), (2, 3, 4, 5, 6), set()),
    "line": (lambda: nn.Conv1D(2, 3), (2, 3, 7), {"Conv", "Squeeze", "Unsqueeze"}),
    "ceil": (lambda: nn.MaxPool2D(3, 2, ceil_mode=True), (2, 3, 8, 8), {"MaxPool"}),
    "ceil average": (lambda: nn.AvgPool2D(3, 2, 1, ceil_mode=True), (2, 3, 7, 8), {"AveragePool", "Mul"}),
    "average": (lambda: nn.AvgPool2D(3, 2, 1, count_include_pad=False), (2, 3, 8, 8), {"AveragePool"}),
    "layer norm": (nn.LayerNorm, (2, 3, 4), {"LayerNormalization"}),
    "layer norm in front": (lambda: nn.LayerNorm(axis=1), (2, 3, 4), set()),
    "instance norm": (nn.InstanceNorm, (2, 3, 4), set()),
    "group norm": (lambda: nn.GroupNorm(2), (2, 4, 3), set()),
    "batch norm of the last axis": (lambda: nn.BatchNorm(axis=-1), (2, 3, 4), set()),
    "wide": (lambda: nn.Dense(4, flatten=False), (2, 3, 5), {"Reshape", "Gemm"}),
    "no bias": (lambda: nn.Dense(4, use_bias=False), (2, 5), {"Gemm"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    """For any batch, by the operators of that name."""
    make, shape, operators = LAYERS[name]
    net = make()
    net.initialize(mx.init.Normal(0.5))
    net(random(*shape))
    proto = check(net, tmp_path / "l.onnx", random(*shape), others=(random(5, *shape[1:]),), dynamic_batch=True)
    assert not operators or {n.op_type for n in proto.graph.node} == operators


def test_sixteen_bits(tmp_path: Path) -> None:
    """The file has the element type of the network."""
    net = digits.network()
    net(random(2, 1, 8, 8))
    net.cast("float16")
    x = random(2, 1, 8, 8).astype("float16")
    net.export_onnx(tmp_path / "n.onnx", x)
    onnx.checker.check_model(onnx.load(tmp_path / "n.onnx"), full_check=True)
    back = mx.onnx.load(tmp_path / "n.onnx")
    assert back.inputs == ("'data' f16[batch,1,8,8]",)
    np.testing.assert_allclose(back(x).asnumpy(), net(x).asnumpy(), rtol=1e-2, atol=1e-2)


def test_inputs_of_the_last_call_are_taken(tmp_path: Path) -> None:
    net = nn.Dense(2, in_units=3)
    net.initialize()
    with pytest.raises(MXNetError, match=r"its inputs are not known[^$]*help: export_onnx\(path, x\)"):
        net.export_onnx(tmp_path / "n.onnx")
    net.hybridize()
    net(random(4, 3))
    assert net.export_onnx(str(tmp_path / "n.onnx")) == str(tmp_path / "n.onnx")
    assert mx.onnx.load(tmp_path / "n.onnx").inputs == ("'data' f32[batch,3]",)


def test_a_batch_that_the_graph_fixes(tmp_path: Path) -> None:
    """It is said, or refused where a free one was asked for."""
    net = Odd(lambda x: x * nd.arange(x.shape[0]).reshape((-1, 1)))
    with pytest.warns(UserWarning, match="the batch is fixed to that of the inputs"):
        check(net, tmp_path / "n.onnx", random(3, 4))
    assert mx.onnx.load(tmp_path / "n.onnx").inputs == ("'data' f32[3,4]",)
    with pytest.raises(UnsupportedError):
        net.export_onnx(tmp_path / "other.onnx", random(3, 4), dynamic_batch=True)
    assert not (tmp_path / "other.onnx").exists()


def noisy(x: Any) -> Any:
    return x + nd.random.normal(shape=x.shape)


def test_what_cannot_be_said_is_refused_and_nothing_written(tmp_path: Path) -> None:
    """By op, layer and line."""
    net = Odd(noisy)
    with pytest.raises(UnsupportedError, match=r"export_onnx: \w+\(u32\[4\]\) of 'odd\d+'\n  at .*test_export.py:\d+"):
        net.export_onnx(tmp_path / "n.onnx", random(3, 4))
    (tmp_path / "n.onnx").write_bytes(b"old")
    with pytest.raises(NotImplementedError):
        net.export_onnx(tmp_path / "n.onnx", random(3, 4))
    assert (tmp_path / "n.onnx").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(FileNotFoundError):
        Odd(abs).export_onnx(tmp_path / "no folder" / "n.onnx", random(3, 4))


def test_a_file_is_the_same_each_time(tmp_path: Path) -> None:
    net = digits.network()
    files = [Path(net.export_onnx(tmp_path / f"{k}.onnx", random(2, 1, 8, 8))).read_bytes() for k in range(2)]
    assert files[0] == files[1]


def test_arrays_that_are_too_large_for_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in a file beside the model, which ONNX's own tools and this importer find."""
    monkeypatch.setattr("gluongraph.onnx.export.writing.LARGEST", 100)
    net = nn.Dense(5, in_units=7)
    net.initialize()
    check(net, tmp_path / "net.onnx", random(2, 7))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]
    assert (tmp_path / "net.onnx.data").stat().st_size == 4 * (5 * 7 + 5)
    onnx.checker.check_model(tmp_path / "net.onnx")
