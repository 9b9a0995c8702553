"""Symbol files: those of MXNet run and train here, those written here come back as the same function."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.errors import FormatError, MXNetError
from gluongraph.gluon import nn, rnn
from gluongraph.gluon.shape_inference import parameter_shapes
from gluongraph.host import params_file
from gluongraph.symbol import Symbol, SymbolNode, load, load_json, var
from gluongraph.symbol.operators import value

# The shape of what MXNet 1.9.1 exports for Dense(2, in_units=3), BatchNorm, Activation("relu"), Dropout, softmax
TEXT = json.dumps(
    {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {
                "op": "null",
                "name": "fc_weight",
                "attrs": {"__dtype__": "0", "__lr_mult__": "0.5", "__shape__": "(2, 0)", "__wd_mult__": "1.0"},
                "inputs": [],
            },
            {"op": "null", "name": "fc_bias", "attrs": {"__init__": "zeros", "__shape__": "(2,)"}, "inputs": []},
            {
                "op": "FullyConnected",
                "name": "fc",
                "attrs": {"flatten": "True", "no_bias": "False", "num_hidden": "2"},
                "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]],
            },
            {"op": "null", "name": "bn_gamma", "attrs": {"__shape__": "(0,)"}, "inputs": []},
            {"op": "null", "name": "bn_beta", "attrs": {"__shape__": "(0,)"}, "inputs": []},
            {"op": "null", "name": "bn_running_mean", "attrs": {"__shape__": "(0,)"}, "inputs": []},
            {"op": "null", "name": "bn_running_var", "attrs": {"__shape__": "(0,)"}, "inputs": []},
            {
                "op": "BatchNorm",
                "name": "bn",
                "attrs": {"axis": "1", "eps": "1e-05", "fix_gamma": "False", "momentum": "0.9", "cudnn_off": "False"},
                "inputs": [[3, 0, 0], [4, 0, 0], [5, 0, 0], [6, 0, 1], [7, 0, 1]],
            },
            {"op": "Activation", "name": "relu", "attrs": {"act_type": "relu"}, "inputs": [[8, 0, 0]]},
            {"op": "Dropout", "name": "drop", "attrs": {"axes": "()", "p": "0.5"}, "inputs": [[9, 0, 0]]},
            {"op": "softmax", "name": "softmax", "attrs": {"axis": "-1"}, "inputs": [[10, 0, 0]]},
        ],
        "arg_nodes": [0, 1, 2, 4, 5, 6, 7],
        "heads": [[11, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
)
WEIGHT = np.array([[1, 2, 3], [-1, 0, 1]], np.float32)
ARRAYS = {
    "arg:fc_weight": WEIGHT,
    "arg:fc_bias": np.array([0.5, -0.5], np.float32),
    "arg:bn_gamma": np.array([1, 2], np.float32),
    "arg:bn_beta": np.zeros(2, np.float32),
    "aux:bn_running_mean": np.array([0.1, 0.2], np.float32),
    "aux:bn_running_var": np.array([4, 1], np.float32),
}
X = np.array([[1.0, 0.5, -0.2], [0.3, 0.1, 0.9]], np.float32)


@pytest.fixture
def model(tmp_path: pathlib.Path) -> tuple[str, str]:
    (tmp_path / "m-symbol.json").write_text(TEXT)
    params_file.write(str(tmp_path / "m-0000.params"), list(ARRAYS.values()), list(ARRAYS))
    return str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")


def expected(x: Any) -> Any:
    h = (x @ WEIGHT.T + ARRAYS["arg:fc_bias"] - ARRAYS["aux:bn_running_mean"]) / np.sqrt(
        ARRAYS["aux:bn_running_var"] + 1e-5
    )
    h = np.maximum(h * ARRAYS["arg:bn_gamma"], 0)
    return np.exp(h) / np.exp(h).sum(1, keepdims=True)


def test_a_model_of_mxnet_predicts(model: tuple[str, str]) -> None:
    net = gluon.SymbolBlock.imports(model[0], "data", model[1])
    np.testing.assert_allclose(net(nd.array(X)).asnumpy(), expected(X), rtol=1e-5)
    net.hybridize()
    np.testing.assert_allclose(net(nd.array(X)).asnumpy(), expected(X), rtol=1e-5)


def test_a_model_of_mxnet_trains_on(model: tuple[str, str]) -> None:
    net = gluon.SymbolBlock.imports(model[0], ["data"], model[1])
    found = net.collect_params()
    assert found["bn_running_mean"].grad_req == "null" and found["fc_weight"].grad_req == "write"
    assert found["fc_weight"].lr_mult == 0.5, "multipliers of the file count"
    trainer = gluon.Trainer(found, "sgd", {"learning_rate": 0.1})
    mx.random.seed(0)
    x = nd.random.normal(shape=(16, 3))
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    trainer.step(1)
    assert (found["fc_weight"].data().asnumpy() != WEIGHT).any()
    assert (found["bn_running_mean"].data().asnumpy() != ARRAYS["aux:bn_running_mean"]).all()


def test_shapes_follow_from_the_data_without_a_parameter_file(model: tuple[str, str]) -> None:
    net = gluon.SymbolBlock.imports(model[0], "data")
    net.initialize()
    assert net(nd.array(X)).shape == (2, 2)
    shapes = {n: p.shape for n, p in net.collect_params().items()}
    assert shapes["fc_weight"] == (2, 3) and shapes["bn_running_var"] == (2,)


def test_part_of_a_model_as_a_block(model: tuple[str, str]) -> None:
    graph = load(model[0])
    inside = graph.get_internals()
    net = gluon.SymbolBlock([inside["relu_output"], inside["fc"]], var("data"))
    net.load_parameters(model[1], ignore_extra=True)
    act, fc = net(nd.array(X))
    np.testing.assert_allclose(fc.asnumpy(), X @ WEIGHT.T + ARRAYS["arg:fc_bias"], rtol=1e-6)
    assert (act.asnumpy() >= 0).all() and "softmax" not in [n for n, _ in net.collect_params().items()]


def test_what_a_symbol_says_of_itself(model: tuple[str, str]) -> None:
    graph = load(model[0])
    assert graph.list_arguments() == ["data", "fc_weight", "fc_bias", "bn_gamma", "bn_beta"]
    assert graph.list_auxiliary_states() == ["bn_running_mean", "bn_running_var"]
    assert graph.list_outputs() == ["softmax_output"] and graph.name == "softmax"
    assert load_json(graph.tojson()) == graph
    with pytest.raises(ValueError, match="softmax_output"):
        graph["nothing"]


def test_bad_files(model: tuple[str, str], tmp_path: pathlib.Path) -> None:
    bad = tmp_path / "bad.json"
    for text, says in (
        ("{", "no symbol file"),
        ('{"nodes": [], "heads": [[0, 0, 0]]}', "an output that is no node"),
        ('{"nodes": [{"op": "abs", "name": "a", "inputs": [[0, 0]]}], "heads": []}', "do not come before"),
    ):
        bad.write_text(text)
        with pytest.raises(FormatError, match=says):
            load(str(bad))
    with pytest.raises(ValueError, match=r"no input x; its variables are data, fc_weight"):
        gluon.SymbolBlock.imports(model[0], "x", model[1])
    params_file.write(str(bad), [WEIGHT], ["arg:fc_weight"])
    with pytest.raises(AssertionError, match="fc_bias"):
        gluon.SymbolBlock.imports(model[0], "data", str(bad))


def one(op: str, **attrs: str) -> gluon.SymbolBlock:
    node = SymbolNode(op, "only", attrs, ((0, 0),))
    return gluon.SymbolBlock(Symbol([SymbolNode("null", "data"), node], [(1, 0)]), var("data"))


def test_what_an_operator_does_not_have_here() -> None:
    with pytest.raises(NotImplementedError, match="'SpatialTransformer'"):
        one("SpatialTransformer")(nd.array(X))
    with pytest.raises(MXNetError, match=r"softmax 'only' of a symbol file has warp=3"):
        one("softmax", warp="3")(nd.array(X))
    with pytest.raises(MXNetError, match="2 inputs for a graph that takes 1: data"):
        one("abs")(nd.array(X), nd.array(X))


@pytest.mark.parametrize(
    ("op", "attrs", "made"),
    [
        ("_rminus_scalar", {"scalar": "2.0"}, 2 - X),
        ("_plus_scalar", {"scalar": "1", "is_int": "1"}, X + 1),
        ("Reshape", {"shape": "-1"}, X.ravel()),
        ("Cast", {"dtype": "float64"}, X),
        ("SwapAxis", {"dim1": "0", "dim2": "1"}, X.T),
        ("sum", {"axis": "(0,)", "keepdims": "True"}, X.sum(0, keepdims=True)),
        ("slice", {"begin": "(None, 1)", "end": "(1, None)"}, X[:1, 1:]),
        ("_contrib_div_sqrt_dim", {}, X / np.sqrt(3)),
        ("SoftmaxOutput", {"multi_output": "False"}, np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        ("LogisticRegressionOutput", {}, 1 / (1 + np.exp(-X))),
        ("_copy", {}, X),
    ],
)
def test_operators_by_their_texts(op: str, attrs: dict[str, str], made: Any) -> None:
    np.testing.assert_allclose(one(op, **attrs)(nd.array(X)).asnumpy(), made, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("(3L, 3L)", (3, 3)), ("[1,2]", (1, 2)), ("true", True), ("None", None), ("relu", "relu"), ("1e-05", 1e-05)],
)
def test_texts_of_attributes(text: str, meant: Any) -> None:
    assert value(text) == meant


# -- export


class Mixed(gluon.HybridBlock):
    """Operators with numbers on either side, several outputs, constants, indexing."""

    def __init__(self) -> None:
        super().__init__(prefix="mixed_")
        with self.name_scope():
            self.embedding, self.norm, self.dense = nn.Embedding(20, 6), nn.LayerNorm(), nn.Dense(5, flatten=False)
            self.offset = self.params.get("offset", shape=(5,), init="ones")

    def hybrid_forward(self, F: Any, x: Any, y: Any, offset: Any) -> Any:
        h = self.dense(self.norm(self.embedding(F.floor(20.0 * x)))) * 2.0 - 1.0 + offset.reshape((1, 1, -1))
        a = F.softmax(F.batch_dot(h, h, transpose_b=True) / 2.0, axis=-1)
        p, q = F.split(F.concat(F.batch_dot(a, h), h, dim=2), num_outputs=2, axis=2)
        h = F.where(p > q - 1, p, q) * F.expand_dims(y, 2)
        h = F.sum(h, axis=1) + F.slice_axis(h, axis=1, begin=0, end=2).mean(axis=1) + h[:, 0] + F.array([1, 2, 3, 4, 5])
        return [F.tanh(F.clip(1.0 / (F.abs(h) + 1.0), 0.1, 0.9)), F.maximum(2.0, h) ** 2]


class Recurrent(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__(prefix="recurrent_")
        with self.name_scope():
            self.lstm, self.gru = rnn.LSTM(5, 2, bidirectional=True), rnn.GRU(4)
            self.rnn, self.dense = rnn.RNN(3, activation="tanh"), nn.Dense(3, flatten=False)

    def forward(self, x: Any) -> Any:
        return self.dense(self.rnn(self.gru(self.lstm(x))))


def images() -> gluon.HybridBlock:
    net = nn.HybridSequential(prefix="images_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, padding=1, activation="relu"),
            nn.BatchNorm(),
            nn.MaxPool2D(),
            nn.Conv2D(6, 3, use_bias=False, strides=(1, 2)),
            nn.LeakyReLU(0.1),
            nn.Conv2DTranspose(3, 4, strides=2, padding=1),
            nn.GlobalAvgPool2D(),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Dense(10),
        )
    return net


@pytest.mark.parametrize(
    ("make", "shapes"),
    [(images, [(2, 3, 8, 8)]), (Mixed, [(2, 4), (2, 4)]), (Recurrent, [(4, 2, 3)])],
    ids=["images", "mixed", "recurrent"],
)
def test_what_is_exported_comes_back(
    tmp_path: pathlib.Path, make: Callable[[], gluon.HybridBlock], shapes: list[tuple[int, ...]]
) -> None:
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Xavier())
    xs = [nd.random.uniform(shape=s) for s in shapes]
    net.hybridize()
    made = net(*xs)
    files = net.export(str(tmp_path / "net"), epoch=3)
    assert [pathlib.Path(f).name for f in files] == ["net-symbol.json", "net-0003.params"]
    names = ["data"] if len(xs) == 1 else [f"data{i}" for i in range(len(xs))]
    back = gluon.SymbolBlock.imports(files[0], names, files[1])
    again = back(*xs)
    for a, b in zip(_listed(made), _listed(again), strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-6)
    assert set(back.collect_params()) >= set(net.collect_params())
    twice = back.export(str(tmp_path / "twice"))
    assert load(twice[0]) == load(files[0])


def _listed(made: Any) -> list[Any]:
    return made if isinstance(made, list) else [made]


def test_export_needs_a_call_and_operators(tmp_path: pathlib.Path) -> None:
    net = nn.Dense(2)
    net.initialize()
    with pytest.raises(RuntimeError, match="hybridize"):
        net.export(str(tmp_path / "net"))
    net.hybridize()
    with pytest.raises(RuntimeError, match="hybridize"):
        net.export(str(tmp_path / "net"))

    class Odd(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.sort(x)

    odd = Odd()
    odd.hybridize()
    odd(nd.array(X))
    with pytest.raises(MXNetError, match="no operator for sort"):
        odd.export(str(tmp_path / "odd"))
    assert not list(tmp_path.iterdir())


# -- shapes that hybrid_forward tells


class Custom(gluon.HybridBlock):
    """A layer as guides write it: the size of its input is unknown, and no infer_shape."""

    def __init__(self, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = units
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(units, 0), allow_deferred_init=True)
            self.bias = self.params.get("bias", shape=(units,), init="zeros", allow_deferred_init=True)
            self.gamma = self.params.get("gamma", shape=(0,), init="ones", allow_deferred_init=True)
            self.beta = self.params.get("beta", shape=(0,), init="zeros", allow_deferred_init=True)

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any, gamma: Any, beta: Any) -> Any:
        h = F.relu(F.FullyConnected(x, weight, bias, num_hidden=self.units))
        return F.LayerNorm(h, gamma=gamma, beta=beta)


@pytest.mark.parametrize("hybrid", [False, True])
def test_shapes_follow_from_hybrid_forward(hybrid: bool) -> None:
    net = nn.HybridSequential()
    net.add(Custom(4), Custom(3))
    net.initialize()
    if hybrid:
        net.hybridize()
    assert net(nd.ones((2, 7))).shape == (2, 3)
    assert [net[0].weight.shape, net[0].gamma.shape, net[1].weight.shape] == [(4, 7), (4,), (3, 4)]


@pytest.mark.parametrize(
    ("op", "data", "how", "shapes"),
    [
        ("Convolution", (8, 6, 9, 9), {"num_filter": 4, "kernel": (3, 2), "num_group": 2}, [(4, 3, 3, 2), (4,)]),
        ("Convolution", (8, 9, 9, 6), {"num_filter": 4, "kernel": (3, 2), "layout": "NHWC"}, [(4, 3, 2, 6), (4,)]),
        ("Deconvolution", (8, 6, 9), {"num_filter": 4, "kernel": (3,)}, [(6, 4, 3), (4,)]),
        ("FullyConnected", (8, 6, 9), {"num_hidden": 4}, [(4, 54), (4,)]),
        ("FullyConnected", (8, 6, 9), {"num_hidden": 4, "flatten": False}, [(4, 9), (4,)]),
        ("BatchNorm", (8, 6, 9), {"axis": -1}, [(9,)] * 4),
        ("GroupNorm", (8, 6, 9), {"num_groups": 3}, [(3,)] * 2),
        ("Embedding", (8,), {"input_dim": 20, "output_dim": 5}, [(20, 5)]),
        ("RNN", (4, 2, 3), {"mode": "gru", "state_size": 5, "num_layers": 2}, [(15 * (3 + 5 + 2) + 15 * (5 + 5 + 2),)]),
        ("abs", (8, 6), {}, []),
    ],
)
def test_rules_of_shapes(op: str, data: Any, how: Any, shapes: Any) -> None:
    assert parameter_shapes(op, data, how) == shapes


def test_shapes_that_nothing_tells() -> None:
    class Scaled(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.params.get("scale", shape=(0,), allow_deferred_init=True)

        def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
            return x * scale

    net = Scaled()
    net.initialize()
    with pytest.raises(MXNetError, match=r"parameters of unknown shape: scaled\d+_scale"):
        net(nd.ones((2, 7)))
