"""MobileNet: V1 (Howard et al., "MobileNets", 2017), V2 (Sandler et al., "Inverted residuals and linear bottlenecks",
2018). Both with a multiplier of all channels."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.context import Context
from gluongraph.gluon import nn
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import named, normalized, row, untrained

# channels and stride of each separable convolution
V1 = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
# factor of widening, channels, how many, stride of the first
V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _by_channel(channels: int, stride: int) -> nn.Conv2D:
    """A 3 x 3 convolution of each channel by itself."""
    return nn.Conv2D(channels, 3, stride, 1, groups=channels, use_bias=False)


def _across(channels: int) -> nn.Conv2D:
    return nn.Conv2D(channels, 1, use_bias=False)


class MobileNet(HybridBlock):
    """Separable convolutions: of each channel by itself, then across channels."""

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any):
        super().__init__(**kwargs)
        before = int(32 * multiplier)
        with self.name_scope():
            self.features = row(*normalized(nn.Conv2D(before, 3, 2, 1, use_bias=False)))
            for channels, stride in V1:
                after = int(channels * multiplier)
                self.features.add(*normalized(_by_channel(before, stride)), *normalized(_across(after)))
                before = after
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.output = nn.Dense(classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


class RELU6(HybridBlock):
    """x held between 0 and 6"""

    def forward(self, x: Any) -> Any:
        return nd.clip(x, 0, 6)


class LinearBottleneck(HybridBlock):
    """A separable convolution of `t` times the channels, back to few without an activation; plus x, if of its shape."""

    def __init__(self, in_channels: int, channels: int, t: int, stride: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.use_shortcut = stride == 1 and in_channels == channels
        with self.name_scope():
            self.out = row(
                *normalized(_across(in_channels * t), activation=RELU6()),
                *normalized(_by_channel(in_channels * t, stride), activation=RELU6()),
                _across(channels),
                nn.BatchNorm(),
            )

    def forward(self, x: Any) -> Any:
        return self.out(x) + x if self.use_shortcut else self.out(x)


class MobileNetV2(HybridBlock):
    """Linear bottlenecks, and a convolution to the classes."""

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any):
        super().__init__(**kwargs)
        before, last = int(32 * multiplier), int(1280 * max(multiplier, 1.0))
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="features_")
            with self.features.name_scope():
                self.features.add(*normalized(nn.Conv2D(before, 3, 2, 1, use_bias=False), activation=RELU6()))
                for t, channels, count, stride in V2:
                    after = int(channels * multiplier)
                    for i in range(count):
                        self.features.add(LinearBottleneck(before, after, t, stride if i == 0 else 1))
                        before = after
                self.features.add(*normalized(_across(last), activation=RELU6()), nn.GlobalAvgPool2D())
            self.output = nn.HybridSequential(prefix="output_")
            with self.output.name_scope():
                self.output.add(nn.Conv2D(classes, 1, use_bias=False, prefix="pred_"), nn.Flatten())

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def get_mobilenet(
    multiplier: float, pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any
) -> MobileNet:
    """MobileNet with so many times the paper's channels, untrained.

    Raises:
        NotImplementedError: pretrained=True; `ctx` and `root` are of use only then.
    """
    return untrained(f"mobilenet{multiplier}", pretrained, MobileNet(multiplier, **kwargs))


def get_mobilenet_v2(
    multiplier: float, pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any
) -> MobileNetV2:
    """MobileNetV2 with so many times the paper's channels, untrained.

    Raises:
        NotImplementedError: pretrained=True; `ctx` and `root` are of use only then.
    """
    return untrained(f"mobilenetv2_{multiplier}", pretrained, MobileNetV2(multiplier, **kwargs))


mobilenet1_0 = named("mobilenet1_0", get_mobilenet, 1.0)
mobilenet0_75 = named("mobilenet0_75", get_mobilenet, 0.75)
mobilenet0_5 = named("mobilenet0_5", get_mobilenet, 0.5)
mobilenet0_25 = named("mobilenet0_25", get_mobilenet, 0.25)
mobilenet_v2_1_0 = named("mobilenet_v2_1_0", get_mobilenet_v2, 1.0)
mobilenet_v2_0_75 = named("mobilenet_v2_0_75", get_mobilenet_v2, 0.75)
mobilenet_v2_0_5 = named("mobilenet_v2_0_5", get_mobilenet_v2, 0.5)
mobilenet_v2_0_25 = named("mobilenet_v2_0_25", get_mobilenet_v2, 0.25)
