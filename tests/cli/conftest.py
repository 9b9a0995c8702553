"""A folder with a script, an ONNX model and data, in which the examples of all help texts run."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest

SCRIPT = '''\
"""Trains a small net: what the commands of gluongraph are tried on."""

import argparse

import numpy as np

import gluongraph as mx
from gluongraph import gluon

ROWS = 64


def network():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8, prefix="first_"))
    net.add(gluon.nn.Dense(3, in_units=16, prefix="second_"))
    net.initialize(mx.init.Xavier())
    return net


def make_step():
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    draw = np.random.default_rng(0)
    return step, draw.standard_normal((ROWS, 8), np.float32), draw.integers(0, 3, ROWS).astype("int32")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    step, x, y = make_step()
    for i in range(options.steps):
        print(i, step(x, y).mean().asscalar())
    raise SystemExit(3)  # nobody who looks at the first step gets here
'''


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("work")
    (folder / "train.py").write_text(SCRIPT)
    shutil.copy(pathlib.Path(__file__).with_name("fit_module.py"), folder / "module.py")
    draw = np.random.default_rng(1)
    x, y = draw.standard_normal((160, 8), np.float32), draw.integers(0, 3, 160).astype(np.int32)
    np.savez(folder / "data.npz", x=x, y=y)
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    shapes = {"w": (8, 16), "v": (16, 3)}
    weights = [numpy_helper.from_array(draw.standard_normal(s, np.float32) / 4, n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["out"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", s]) for n, s in (("x", 8), ("out", 3))]
    graph = helper.make_graph(nodes, "model", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "model.onnx")
    for end in (model.graph.input[0], model.graph.output[0]):
        end.type.tensor_type.shape.dim[0].dim_value = 64
    onnx.save(model, folder / "fixed.onnx")  # the same for batches of 64 alone
    return folder


@pytest.fixture
def work(made: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder, entered."""
    monkeypatch.chdir(made)
    return made
