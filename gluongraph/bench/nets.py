"""The nets that are measured, in plain Gluon: MXNet's process reads this file too, where `gluongraph` is MXNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph import gluon
from gluongraph.bench.workloads import stages
from gluongraph.gluon import nn, rnn


def convolution(
    net: nn.HybridSequential,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    relu: bool = True,
) -> None:
    """Add a convolution that keeps the size (by its stride), its batch norm and relu."""
    how: dict[str, Any] = {
        "strides": stride,
        "padding": kernel // 2,
        "groups": groups,
        "use_bias": False,
        "in_channels": inputs,
    }
    net.add(nn.Conv2D(outputs, kernel, **how), nn.BatchNorm(in_channels=outputs))
    if relu:
        net.add(nn.Activation("relu"))


class Residual(gluon.HybridBlock):
    """relu(body(x) + shortcut(x)); the body is two convolutions of 3x3, or a bottleneck of 1x1, 3x3 and 1x1."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: int = 0):
        super().__init__()
        outputs = channels * (bottleneck or 1)
        self.body = nn.HybridSequential()
        if bottleneck:
            convolution(self.body, inputs, channels, 1)
            convolution(self.body, channels, channels, 3, stride)
            convolution(self.body, channels, outputs, 1, relu=False)
        else:
            convolution(self.body, inputs, channels, 3, stride)
            convolution(self.body, channels, channels, 3, relu=False)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.HybridSequential()
            convolution(self.shortcut, inputs, outputs, 1, stride, relu=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


class Recommender(gluon.HybridBlock):
    """Dense features through an MLP, categories through one table of embeddings, all pairs of products, an MLP.

    (Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019)
    """

    def __init__(self, tables: int, rows: int, width: int, dense: int, bottom: tuple[int, ...], top: tuple[int, ...]):
        super().__init__()
        self.width = width
        self.bottom = layers(dense, (*bottom, width))
        self.table = nn.Embedding(tables * rows, width)
        self.top = layers((tables + 1) ** 2 + width, top)
        self.top.add(nn.Dense(1, in_units=top[-1]))

    def hybrid_forward(self, F: Any, dense: Any, categories: Any) -> Any:
        x = self.bottom(dense)
        features = F.concat(F.reshape(x, shape=(0, 1, self.width)), self.table(categories), dim=1)
        pairs = F.batch_dot(features, features, transpose_b=True)
        return self.top(F.concat(x, F.flatten(pairs), dim=1))


def layers(inputs: int, widths: tuple[int, ...]) -> nn.HybridSequential:
    """Dense layers, each with relu."""
    net = nn.HybridSequential()
    for width in widths:
        net.add(nn.Dense(width, activation="relu", in_units=inputs))
        inputs = width
    return net


def mlp(features: int, hidden: tuple[int, ...], classes: int) -> nn.HybridSequential:
    """Dense layers with relu between."""
    net = layers(features, hidden)
    net.add(nn.Dense(classes, in_units=hidden[-1]))
    return net


def lenet(pixels: int, channels: tuple[int, int], hidden: int, classes: int) -> nn.HybridSequential:
    """Two convolutions of 5x5 with pooling, two dense layers."""
    first, second = channels
    side = ((pixels - 4) // 2 - 4) // 2
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(first, 5, activation="relu", in_channels=1),
        nn.MaxPool2D(),
        nn.Conv2D(second, 5, activation="relu", in_channels=first),
        nn.MaxPool2D(),
        nn.Flatten(),
        nn.Dense(hidden, activation="relu", in_units=second * side * side),
        nn.Dense(classes, in_units=hidden),
    )
    return net


def digits(pixels: int, channels: tuple[int, ...], hidden: int, classes: int) -> nn.HybridSequential:
    """The network of examples/digits.py: convolution, normalization and pooling, then two dense layers."""
    net, inputs = nn.HybridSequential(), 1
    for outputs in channels:
        net.add(nn.Conv2D(outputs, 3, padding=1, in_channels=inputs), nn.BatchNorm(in_channels=outputs))
        net.add(nn.Activation("relu"), nn.MaxPool2D())
        inputs, pixels = outputs, pixels // 2
    net.add(nn.Flatten(), nn.Dense(hidden, activation="relu", in_units=inputs * pixels**2))
    net.add(nn.Dense(classes, in_units=hidden))
    return net


def resnet18(classes: int) -> nn.HybridSequential:
    """ResNet-18 with a 3x3 stem, as it is used on 32x32 images."""
    return _residual(32, (64, 128, 256, 512), (2, 2, 2, 2), classes)


def resnet20(pixels: int, widths: tuple[int, ...], blocks: int, classes: int) -> nn.HybridSequential:
    """Three stages of basic blocks (He et al., Deep Residual Learning for Image Recognition, section 4.2)."""
    return _residual(32, widths, (blocks,) * len(widths), classes)


def resnet50(pixels: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int) -> nn.HybridSequential:
    """ResNet-50's bottlenecks behind a 3x3 stem, whose stride leaves 32x32 pixels."""
    return _residual(pixels, widths, blocks, classes, bottleneck=4)


def _residual(
    pixels: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int, bottleneck: int = 0
) -> nn.HybridSequential:
    net, inputs = nn.HybridSequential(), widths[0]
    convolution(net, 3, inputs, 3, pixels // 32)
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            net.add(Residual(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = width * (bottleneck or 1)
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=inputs))
    return net


def mobilenet(pixels: int, first: int, plan: str, classes: int) -> nn.HybridSequential:
    """Blocks of a depthwise 3x3 and a 1x1 convolution (Howard et al., MobileNets, 2017)."""
    net, inputs = nn.HybridSequential(), first
    convolution(net, 3, first, 3)
    for outputs, stride in stages(plan):
        convolution(net, inputs, inputs, 3, stride, groups=inputs)
        convolution(net, inputs, outputs, 1)
        inputs = outputs
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=inputs))
    return net


def lstm(layers: int, width: int, length: int, vocabulary: int) -> nn.HybridSequential:
    """A word-level language model: embedding, LSTM layers, one output per position."""
    net = nn.HybridSequential()
    net.add(nn.Embedding(vocabulary, width), rnn.LSTM(width, layers, layout="NTC", input_size=width))
    net.add(nn.Dense(vocabulary, flatten=False, in_units=width))
    return net


def dcgan(noise: int, widths: tuple[int, ...], colours: int) -> nn.HybridSequential:
    """The generator of Radford et al. (2015): each transposed convolution of stride 2 doubles the image."""
    net, inputs = nn.HybridSequential(), noise
    for stage, width in enumerate(widths):
        how: dict[str, Any] = {"strides": 2, "padding": 1} if stage else {}
        net.add(nn.Conv2DTranspose(width, 4, use_bias=False, in_channels=inputs, **how))
        net.add(nn.BatchNorm(in_channels=width), nn.Activation("relu"))
        inputs = width
    net.add(nn.Conv2DTranspose(colours, 4, strides=2, padding=1, use_bias=False, in_channels=inputs))
    net.add(nn.Activation("tanh"))
    return net


MODELS: dict[str, Callable[..., gluon.HybridBlock]] = {
    **{"mlp": mlp, "lenet": lenet, "digits": digits, "resnet18": resnet18, "resnet20": resnet20},
    **{"resnet50": resnet50, "mobilenet": mobilenet, "lstm": lstm, "dcgan": dcgan, "dlrm": Recommender},
}
