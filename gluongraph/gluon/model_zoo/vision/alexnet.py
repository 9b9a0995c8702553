"""AlexNet (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014)."""

from __future__ import annotations

from typing import Any

from gluongraph.context import Context
from gluongraph.gluon import nn
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import untrained


class AlexNet(HybridBlock):
    """Five convolutions and three dense layers, for images of 224 x 224."""

    def __init__(self, classes: int = 1000, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            with self.features.name_scope():
                self.features.add(
                    nn.Conv2D(64, 11, 4, 2, activation="relu"),
                    nn.MaxPool2D(3, 2),
                    nn.Conv2D(192, 5, padding=2, activation="relu"),
                    nn.MaxPool2D(3, 2),
                    nn.Conv2D(384, 3, padding=1, activation="relu"),
                    nn.Conv2D(256, 3, padding=1, activation="relu"),
                    nn.Conv2D(256, 3, padding=1, activation="relu"),
                    nn.MaxPool2D(3, 2),
                    nn.Flatten(),
                    nn.Dense(4096, activation="relu"),
                    nn.Dropout(0.5),
                    nn.Dense(4096, activation="relu"),
                    nn.Dropout(0.5),
                )
            self.output = nn.Dense(classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def alexnet(pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any) -> AlexNet:
    """AlexNet, untrained. Raises NotImplementedError for pretrained=True; `ctx` and `root` are of use only then."""
    return untrained("alexnet", pretrained, AlexNet(**kwargs))
