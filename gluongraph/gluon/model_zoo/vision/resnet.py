"""ResNet: V1 (He et al., "Deep residual learning for image recognition", 2015), and V2, which normalizes and activates
ahead of each convolution (He et al., "Identity mappings in deep residual networks", 2016).

Where Gluon differs from the papers it is followed, so that its weights fit: in V1's bottlenecks the first convolution
has the stride, and those of 1 x 1 have a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import nd
from gluongraph.context import Context
from gluongraph.gluon import nn
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import named, normalized, row, untrained

Make = Callable[..., HybridBlock]  # a class of blocks, called with channels, stride, downsample, in_channels


def _conv(channels: int, kernel: int, stride: int = 1, in_channels: int = 0) -> nn.Conv2D:
    """Without bias; of the image's size, where the stride is 1."""
    return nn.Conv2D(channels, kernel, stride, kernel // 2, use_bias=False, in_channels=in_channels)


# -- V1


class _BlockV1(HybridBlock):
    """relu(body(x) + x), where x goes through `downsample` if it has another shape than body(x)."""

    body: HybridBlock
    downsample: HybridBlock | None

    def _bring(self, channels: int, stride: int, in_channels: int) -> HybridBlock:
        return row(_conv(channels, 1, stride, in_channels), nn.BatchNorm())

    def forward(self, x: Any) -> Any:
        rest = x if self.downsample is None else self.downsample(x)
        return nd.relu(self.body(x) + rest)


class BasicBlockV1(_BlockV1):
    """relu(x + two convolutions of x)"""

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.body = row(
            *normalized(_conv(channels, 3, stride, in_channels)), _conv(channels, 3, 1, channels), nn.BatchNorm()
        )
        self.downsample = self._bring(channels, stride, in_channels) if downsample else None


class BottleneckV1(_BlockV1):
    """relu(x + a convolution of x between two of 1 x 1, which take it to a quarter of the channels and back)"""

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        few = channels // 4
        self.body = row(
            *normalized(nn.Conv2D(few, 1, stride)),
            *normalized(_conv(few, 3, 1, few)),
            nn.Conv2D(channels, 1),
            nn.BatchNorm(),
        )
        self.downsample = self._bring(channels, stride, in_channels) if downsample else None


class ResNetV1(HybridBlock):
    """Stages of blocks; `layers` says how many in each, `channels` of the stem and of each stage.

    With `thumbnail`, for small images, the stem is one 3 x 3 convolution.
    """

    def __init__(
        self,
        block: Make,
        layers: Sequence[int],
        channels: Sequence[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = row(*_stem(channels[0], thumbnail), *_stages(block, layers, channels), nn.GlobalAvgPool2D())
            self.output = nn.Dense(classes, in_units=channels[-1])

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


# -- V2


class BasicBlockV2(HybridBlock):
    """x + two convolutions of x, each of what is normalized and activated."""

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.bn1 = nn.BatchNorm()
        self.conv1 = _conv(channels, 3, stride, in_channels)
        self.bn2 = nn.BatchNorm()
        self.conv2 = _conv(channels, 3, 1, channels)
        self.downsample = _conv(channels, 1, stride, in_channels) if downsample else None

    def forward(self, x: Any) -> Any:
        active = nd.relu(self.bn1(x))
        rest = x if self.downsample is None else self.downsample(active)
        return self.conv2(nd.relu(self.bn2(self.conv1(active)))) + rest


class BottleneckV2(HybridBlock):
    """x + three convolutions of x, each of what is normalized and activated: 1 x 1 to a quarter of the channels, 3 x 3,
    1 x 1 back."""

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        few = channels // 4
        self.bn1 = nn.BatchNorm()
        self.conv1 = _conv(few, 1)
        self.bn2 = nn.BatchNorm()
        self.conv2 = _conv(few, 3, stride, few)
        self.bn3 = nn.BatchNorm()
        self.conv3 = _conv(channels, 1)
        self.downsample = _conv(channels, 1, stride, in_channels) if downsample else None

    def forward(self, x: Any) -> Any:
        active = nd.relu(self.bn1(x))
        rest = x if self.downsample is None else self.downsample(active)
        inner = self.conv2(nd.relu(self.bn2(self.conv1(active))))
        return self.conv3(nd.relu(self.bn3(inner))) + rest


class ResNetV2(HybridBlock):
    """As ResNetV1, of blocks that activate ahead of each convolution; the images themselves are normalized first."""

    def __init__(
        self,
        block: Make,
        layers: Sequence[int],
        channels: Sequence[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = row(
                nn.BatchNorm(scale=False, center=False),
                *_stem(channels[0], thumbnail),
                *_stages(block, layers, channels),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.GlobalAvgPool2D(),
                nn.Flatten(),
            )
            self.output = nn.Dense(classes, in_units=channels[-1])

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


# -- what both share


def _stem(channels: int, thumbnail: bool) -> list[HybridBlock]:
    """From images to the first stage: at a quarter of their height and width, or at all of it."""
    if thumbnail:
        return [_conv(channels, 3)]
    return [*normalized(_conv(channels, 7, 2)), nn.MaxPool2D(3, 2, 1)]


def _stages(block: Make, layers: Sequence[int], channels: Sequence[int]) -> list[HybridBlock]:
    if len(layers) != len(channels) - 1:
        raise AssertionError(f"channels of the stem and of each of {len(layers)} stages, not {list(channels)}")
    return [
        _stage(block, count, channels[i + 1], 1 if i == 0 else 2, channels[i], f"stage{i + 1}_")
        for i, count in enumerate(layers)
    ]


def _stage(block: Make, count: int, channels: int, stride: int, in_channels: int, prefix: str) -> nn.HybridSequential:
    """Blocks of one shape; the first one comes to it."""
    stage = nn.HybridSequential(prefix=prefix)
    with stage.name_scope():
        stage.add(block(channels, stride, channels != in_channels, in_channels=in_channels, prefix=""))
        for _ in range(count - 1):
            stage.add(block(channels, 1, False, in_channels=channels, prefix=""))
    return stage


_BASIC, _BOTTLENECK = (64, 64, 128, 256, 512), (64, 256, 512, 1024, 2048)
SPECS = {  # layers: is the block a bottleneck, how many in each stage, channels
    18: (False, (2, 2, 2, 2), _BASIC),
    34: (False, (3, 4, 6, 3), _BASIC),
    50: (True, (3, 4, 6, 3), _BOTTLENECK),
    101: (True, (3, 4, 23, 3), _BOTTLENECK),
    152: (True, (3, 8, 36, 3), _BOTTLENECK),
}
_V1 = (ResNetV1, BasicBlockV1, BottleneckV1)
_V2 = (ResNetV2, BasicBlockV2, BottleneckV2)


def get_resnet(
    version: int, num_layers: int, pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any
) -> ResNetV1 | ResNetV2:
    """ResNet, version 1 or 2, of 18, 34, 50, 101 or 152 layers, untrained.

    Raises:
        NotImplementedError: pretrained=True; `ctx` and `root` are of use only then.
    """
    if num_layers not in SPECS:
        raise AssertionError(f"there is no ResNet of {num_layers} layers; there are {', '.join(map(str, SPECS))}")
    if version not in (1, 2):
        raise AssertionError(f"there is no version {version} of ResNet; there are 1 and 2")
    net, basic, bottleneck = _V1 if version == 1 else _V2
    narrows, layers, channels = SPECS[num_layers]
    made: ResNetV1 | ResNetV2 = net(bottleneck if narrows else basic, layers, channels, **kwargs)
    return untrained(f"resnet{num_layers}_v{version}", pretrained, made)


resnet18_v1 = named("resnet18_v1", get_resnet, 1, 18)
resnet34_v1 = named("resnet34_v1", get_resnet, 1, 34)
resnet50_v1 = named("resnet50_v1", get_resnet, 1, 50)
resnet101_v1 = named("resnet101_v1", get_resnet, 1, 101)
resnet152_v1 = named("resnet152_v1", get_resnet, 1, 152)
resnet18_v2 = named("resnet18_v2", get_resnet, 2, 18)
resnet34_v2 = named("resnet34_v2", get_resnet, 2, 34)
resnet50_v2 = named("resnet50_v2", get_resnet, 2, 50)
resnet101_v2 = named("resnet101_v2", get_resnet, 2, 101)
resnet152_v2 = named("resnet152_v2", get_resnet, 2, 152)
