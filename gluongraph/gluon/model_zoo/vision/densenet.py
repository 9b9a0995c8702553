"""DenseNet (Huang et al., "Densely connected convolutional networks", 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph.context import Context
from gluongraph.gluon import nn
from gluongraph.gluon.contrib.nn import HybridConcurrent
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import named, normalized, row, untrained

SPECS = {  # layers: channels of the stem, channels that each layer adds, layers of each stage
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}


class DenseNet(HybridBlock):
    """Stages of layers that each add channels to all of what came before, for images of 224 x 224."""

    def __init__(
        self,
        num_init_features: int,
        growth_rate: int,
        block_config: Sequence[int],
        bn_size: int = 4,
        dropout: float = 0,
        classes: int = 1000,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = row(
                *normalized(nn.Conv2D(num_init_features, 7, 2, 3, use_bias=False)), nn.MaxPool2D(3, 2, 1)
            )
            channels = num_init_features
            for i, count in enumerate(block_config):
                if i > 0:
                    channels //= 2
                    self.features.add(_transition(channels))
                self.features.add(_stage(count, growth_rate, bn_size, dropout, f"stage{i + 1}_"))
                channels += count * growth_rate
            self.features.add(nn.BatchNorm(), nn.Activation("relu"), nn.AvgPool2D(7), nn.Flatten())
            self.output = nn.Dense(classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def _stage(count: int, growth: int, bn_size: int, dropout: float, prefix: str) -> nn.HybridSequential:
    stage = nn.HybridSequential(prefix=prefix)
    with stage.name_scope():
        for _ in range(count):
            stage.add(_layer(growth, bn_size, dropout))
    return stage


def _layer(growth: int, bn_size: int, dropout: float) -> HybridConcurrent:
    """What comes in, and `growth` channels made of it."""
    made = row(
        nn.BatchNorm(),
        nn.Activation("relu"),
        *normalized(nn.Conv2D(bn_size * growth, 1, use_bias=False)),
        nn.Conv2D(growth, 3, padding=1, use_bias=False),
    )
    if dropout:
        made.add(nn.Dropout(dropout))
    both = HybridConcurrent(axis=1, prefix="")
    both.add(nn.Identity(), made)
    return both


def _transition(channels: int) -> nn.HybridSequential:
    """To fewer channels, and half the height and width."""
    return row(nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(channels, 1, use_bias=False), nn.AvgPool2D(2, 2))


def _densenet(
    num_layers: int, pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any
) -> DenseNet:
    return untrained(f"densenet{num_layers}", pretrained, DenseNet(*SPECS[num_layers], **kwargs))


densenet121 = named("densenet121", _densenet, 121)
densenet161 = named("densenet161", _densenet, 161)
densenet169 = named("densenet169", _densenet, 169)
densenet201 = named("densenet201", _densenet, 201)
