"""The networks for images: parameters and outputs as in MXNet 1.9.1, from where the digests and numbers below come."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon import nn
from gluongraph.gluon.model_zoo import vision
from gluongraph.gluon.model_zoo.vision.mobilenet import LinearBottleneck
from gluongraph.gluon.model_zoo.vision.squeezenet import _fire
from gluongraph.ir.graph import TensorType
from gluongraph.tracing.tracer import trace

# Of the parameters in order: name below the net's prefix, name by place in the tree, shape.
PARAMETERS = {
    "alexnet": "4b54489e219e",
    "densenet121": "df968aa65a7a",
    "densenet161": "5d70196e6b9c",
    "densenet169": "e9c50d8ed563",
    "densenet201": "0ea001a65b76",
    "inceptionv3": "82629ea58579",
    "mobilenet0.25": "2b7fe0cf0fc4",
    "mobilenet0.5": "460786081453",
    "mobilenet0.75": "5c5f3b82c665",
    "mobilenet1.0": "ea2570bb8bea",
    "mobilenetv2_0.25": "df321d4f39b4",
    "mobilenetv2_0.5": "3119b5096146",
    "mobilenetv2_0.75": "16a84079c04a",
    "mobilenetv2_1.0": "bf3feeecf1fa",
    "resnet101_v1": "8ea3eb67d27e",
    "resnet101_v2": "1262d25c5804",
    "resnet152_v1": "cce8b73ee19d",
    "resnet152_v2": "015eb90ddc1f",
    "resnet18_v1": "49c8c8ed6adc",
    "resnet18_v2": "8293d1856b42",
    "resnet34_v1": "de271ca60f4c",
    "resnet34_v2": "381d5557124c",
    "resnet50_v1": "d36ad85dfb4e",
    "resnet50_v2": "e6387d241052",
    "squeezenet1.0": "c4affc758fc0",
    "squeezenet1.1": "f045dce25e4e",
    "vgg11": "40c5c4e370e1",
    "vgg11_bn": "4d4e62096dd8",
    "vgg13": "b96affd2e660",
    "vgg13_bn": "73dcae1fde03",
    "vgg16": "81c2c9f0094d",
    "vgg16_bn": "94e35c02185c",
    "vgg19": "996eca3ad840",
    "vgg19_bn": "dcffa6044f99",
}


def test_there_are_all_of_them() -> None:
    assert set(vision.MODELS) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    net = vision.get_model(name)
    for parameter in net.collect_params().values():
        parameter.init = mx.init.Zero()  # memory that nothing is written into: 138 million numbers cost nothing
    net.initialize()
    size = 299 if name == "inceptionv3" else 224
    (result,) = trace(net._run, (TensorType((1, 3, size, size)),), training=False).graph.outputs.values()
    assert result.shape == (1, 1000)
    rows = [
        f"{p.name.removeprefix(net.prefix)} {place} {list(p.shape or ())}"
        for p, place in zip(net.collect_params().values(), net._collect_params_with_prefix(), strict=True)
    ]
    assert hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12] == PARAMETERS[name], rows


def drawn(net: Any, x: Any, rng: np.random.RandomState) -> Any:
    """The net's result for x, with its parameters, in order, drawn from the generator."""
    net.initialize(mx.init.Zero())
    net(x)
    for p in net.collect_params().values():
        values = rng.normal(size=p.shape)
        if p.name.endswith("weight"):
            values *= np.sqrt(2 / np.prod(p.shape[1:]))
        elif p.name.endswith(("gamma", "var")):
            values = 1 + 0.3 * np.tanh(values)
        else:
            values *= 0.1
        if p.grad_req != "null" or "running" in p.name:
            p.set_data(nd.array(values))
    return net(x).asnumpy()


RESULTS: list[tuple[str, int, dict[str, Any], list[float]]] = [
    ("mobilenet0.25", 32, {}, [-0.18435, -0.00129, -0.02248, -0.30231]),
    ("mobilenetv2_0.25", 32, {}, [0.47479, -0.52307, -0.40588, -0.46398]),
    ("resnet18_v1", 32, {"thumbnail": True}, [-9.83963, 33.37938, -14.09091, 16.55927]),
    ("squeezenet1.1", 224, {}, [3.02377, 0.0, 0.06724, 5.43252]),
]


@pytest.mark.parametrize("name,size,settings,wanted", RESULTS)
def test_results(name: str, size: int, settings: dict[str, Any], wanted: list[float]) -> None:
    rng = np.random.RandomState(0)  # draws the same numbers for ever
    x = nd.array(rng.normal(size=(2, 3, size, size)))
    got = drawn(vision.get_model(name, classes=10, **settings), x, rng)
    assert got.shape == (2, 10)
    np.testing.assert_allclose(got[0, :4], wanted, rtol=2e-5, atol=1e-5)


def test_a_compiled_step_is_the_eager_one() -> None:
    """A residual block, a linear bottleneck and a fire module."""
    images, labels = nd.random.normal(shape=(4, 3, 8, 8)), nd.array([0, 1, 2, 1])
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    found = []
    for compiled in (False, True):
        mx.random.seed(0)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(
                nn.Conv2D(4, 3, padding=1),
                vision.BasicBlockV1(8, 2, True, in_channels=4),
                LinearBottleneck(8, 8, 2, 1),
                _fire(2),
                nn.GlobalAvgPool2D(),
                nn.Dense(3),
            )
        net.initialize(mx.init.Xavier())
        net(images)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        if compiled:
            mx.compile(net, loss, trainer)(images, labels)
        else:
            with mx.autograd.record():
                losses = loss(net(images), labels)
            losses.backward()
            trainer.step(4)
        found.append({name: p.data().asnumpy() for name, p in net._collect_params_with_prefix().items()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: vision.get_model("resnet18"), ValueError, "there is no model 'resnet18'; there are alexnet"),
    (lambda: vision.get_model("resnet18_v1", pretrained=True), NotImplementedError, r"net.load_parameters\(file\)"),
    (lambda: vision.alexnet(pretrained=True), NotImplementedError, "alexnet"),
    (lambda: vision.get_resnet(1, 20), AssertionError, "no ResNet of 20 layers"),
    (lambda: vision.get_resnet(3, 18), AssertionError, "no version 3"),
    (lambda: vision.get_vgg(10), KeyError, "no VGG of 10 layers"),
    (lambda: vision.SqueezeNet("2.0"), AssertionError, "no version 2.0"),
    (lambda: vision.ResNetV1(vision.BasicBlockV1, [1, 1], [8, 8]), AssertionError, "each of 2 stages"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_settings() -> None:
    assert repr(vision.vgg11_bn(classes=7).output) == "Dense(None -> 7, linear)"
    assert vision.get_model("ResNet50_V2").output.weight.shape == (1000, 2048)
    net = vision.DenseNet(8, 4, [1, 1], dropout=0.2)
    assert [type(b).__name__ for b in net.features[4][0][1]][-1] == "Dropout"
    assert vision.resnet34_v1.__name__ == "resnet34_v1" and vision.resnet34_v1.__doc__ == "`get_resnet(1, 34, ...)`"
