"""SqueezeNet (Iandola et al., "AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size", 2016)."""

from __future__ import annotations

from typing import Any

from gluongraph.context import Context
from gluongraph.errors import with_user_location
from gluongraph.gluon import nn
from gluongraph.gluon.contrib.nn import HybridConcurrent
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import named, row, untrained

POOL = 0
SPECS: dict[str, tuple[int, int, tuple[int, ...]]] = {  # the stem's channels and kernel; squeezed channels of each fire
    "1.0": (96, 7, (POOL, 16, 16, 32, POOL, 32, 48, 48, 64, POOL, 64)),
    "1.1": (64, 3, (POOL, 16, 16, POOL, 32, 32, POOL, 48, 48, 64, 64)),
}


class SqueezeNet(HybridBlock):
    """Fire modules: few channels are made by 1 x 1, then many by 1 x 1 and 3 x 3 convolutions; for 224 x 224."""

    def __init__(self, version: str, classes: int = 1000, **kwargs: Any):
        super().__init__(**kwargs)
        if version not in SPECS:
            raise AssertionError(
                with_user_location(f"there is no version {version} of SqueezeNet; there are {', '.join(SPECS)}")
            )
        channels, kernel, fires = SPECS[version]
        with self.name_scope():
            self.features = row(nn.Conv2D(channels, kernel, 2), nn.Activation("relu"))
            for squeezed in fires:
                self.features.add(nn.MaxPool2D(3, 2, ceil_mode=True) if squeezed == POOL else _fire(squeezed))
            self.features.add(nn.Dropout(0.5))
            self.output = row(nn.Conv2D(classes, 1), nn.Activation("relu"), nn.AvgPool2D(13), nn.Flatten())

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def _fire(squeezed: int) -> nn.HybridSequential:
    """To few channels, then to four times as many by each of two kernels."""
    first = _active(squeezed, 1)
    wide = HybridConcurrent(axis=1, prefix="")
    wide.add(_active(4 * squeezed, 1), _active(4 * squeezed, 3))
    return row(first, wide)


def _active(channels: int, kernel: int) -> nn.HybridSequential:
    return row(nn.Conv2D(channels, kernel, padding=kernel // 2), nn.Activation("relu"))


def _squeezenet(
    version: str, pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any
) -> SqueezeNet:
    return untrained(f"squeezenet{version}", pretrained, SqueezeNet(version, **kwargs))


squeezenet1_0 = named("squeezenet1_0", _squeezenet, "1.0")
squeezenet1_1 = named("squeezenet1_1", _squeezenet, "1.1")
