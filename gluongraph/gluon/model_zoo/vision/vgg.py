"""VGG (Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph.context import Context
from gluongraph.errors import with_user_location
from gluongraph.gluon import nn
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import named, untrained
from gluongraph.initializer import Xavier

FILTERS = (64, 128, 256, 512, 512)  # of the five stages
LAYERS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # in each stage


class VGG(HybridBlock):
    """Stages of 3 x 3 convolutions, each with a pooling behind it, and three dense layers, for images of 224 x 224."""

    def __init__(
        self,
        layers: Sequence[int],
        filters: Sequence[int],
        classes: int = 1000,
        batch_norm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if len(layers) != len(filters):
            raise AssertionError(
                with_user_location(f"VGG: a number of filters for each stage, not {list(filters)} for {list(layers)}")
            )
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            for count, channels in zip(layers, filters, strict=True):
                for _ in range(count):
                    self.features.add(
                        nn.Conv2D(
                            channels,
                            3,
                            padding=1,
                            weight_initializer=Xavier(rnd_type="gaussian", factor_type="out", magnitude=2),
                        )
                    )
                    if batch_norm:
                        self.features.add(nn.BatchNorm())
                    self.features.add(nn.Activation("relu"))
                self.features.add(nn.MaxPool2D(strides=2))
            for _ in range(2):
                self.features.add(nn.Dense(4096, activation="relu", weight_initializer="normal"), nn.Dropout(0.5))
            self.output = nn.Dense(classes, weight_initializer="normal")

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def get_vgg(
    num_layers: int, pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any
) -> VGG:
    """VGG of 11, 13, 16 or 19 layers, untrained; with batch_norm=True normalized behind each convolution.

    Raises:
        NotImplementedError: pretrained=True; `ctx` and `root` are of use only then.
    """
    if num_layers not in LAYERS:
        raise KeyError(f"there is no VGG of {num_layers} layers; there are {', '.join(map(str, LAYERS))}")
    return untrained(f"vgg{num_layers}", pretrained, VGG(LAYERS[num_layers], FILTERS, **kwargs))


def _with_batch_norm(num_layers: int, **kwargs: Any) -> VGG:
    return get_vgg(num_layers, batch_norm=True, **kwargs)


vgg11 = named("vgg11", get_vgg, 11)
vgg13 = named("vgg13", get_vgg, 13)
vgg16 = named("vgg16", get_vgg, 16)
vgg19 = named("vgg19", get_vgg, 19)
vgg11_bn = named("vgg11_bn", _with_batch_norm, 11)
vgg13_bn = named("vgg13_bn", _with_batch_norm, 13)
vgg16_bn = named("vgg16_bn", _with_batch_norm, 16)
vgg19_bn = named("vgg19_bn", _with_batch_norm, 19)
