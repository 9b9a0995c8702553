"""Inception v3 (Szegedy et al., "Rethinking the inception architecture for computer vision", 2015)."""

from __future__ import annotations

from typing import Any

from gluongraph.context import Context
from gluongraph.gluon import nn
from gluongraph.gluon.contrib.nn import HybridConcurrent
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.model_zoo.vision.making import normalized, row, untrained

Kernel = int | tuple[int, int]
Branch = list[HybridBlock]


def _conv(channels: int, kernel: Kernel, stride: int = 1, padding: int | None = None) -> nn.HybridSequential:
    """Normalized and activated; of the image's size, where the stride is 1 and no padding is given."""
    if padding is None:
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        around = (sizes[0] // 2, sizes[1] // 2) if stride == 1 else (0, 0)
    else:
        around = (padding, padding)
    return row(*normalized(nn.Conv2D(channels, kernel, stride, around, use_bias=False), epsilon=0.001))


def _averaged(channels: int) -> Branch:
    return [nn.AvgPool2D(3, 1, 1), _conv(channels, 1)]


def _side_by_side(*branches: Branch) -> HybridConcurrent:
    beside = HybridConcurrent(axis=1, prefix="")
    beside.add(*(row(*branch) for branch in branches))
    return beside


def _module(prefix: str, make: Any, *args: int) -> HybridConcurrent:
    """The branches that make(*args) gives, side by side; the names of their parameters begin with the prefix."""
    beside = HybridConcurrent(axis=1, prefix=prefix)
    with beside.name_scope():
        beside.add(*(row(*branch) for branch in make(*args)))
    return beside


def _a(pooled: int) -> list[Branch]:
    return [
        [_conv(64, 1)],
        [_conv(48, 1), _conv(64, 5)],
        [_conv(64, 1), _conv(96, 3), _conv(96, 3)],
        _averaged(pooled),
    ]


def _b() -> list[Branch]:
    return [[_conv(384, 3, 2)], [_conv(64, 1), _conv(96, 3), _conv(96, 3, 2)], [nn.MaxPool2D(3, 2)]]


def _c(few: int) -> list[Branch]:
    across, down = (1, 7), (7, 1)
    return [
        [_conv(192, 1)],
        [_conv(few, 1), _conv(few, across), _conv(192, down)],
        [_conv(few, 1), _conv(few, down), _conv(few, across), _conv(few, down), _conv(192, across)],
        _averaged(192),
    ]


def _d() -> list[Branch]:
    return [
        [_conv(192, 1), _conv(320, 3, 2)],
        [_conv(192, 1), _conv(192, (1, 7)), _conv(192, (7, 1)), _conv(192, 3, 2)],
        [nn.MaxPool2D(3, 2)],
    ]


def _e() -> list[Branch]:
    return [
        [_conv(320, 1)],
        [row(_conv(384, 1)), _both_ways()],
        [row(_conv(448, 1), _conv(384, 3)), _both_ways()],
        _averaged(192),
    ]


def _both_ways() -> HybridConcurrent:
    return _side_by_side([_conv(384, (1, 3))], [_conv(384, (3, 1))])


class Inception3(HybridBlock):
    """Modules of branches side by side, for images of 299 x 299."""

    def __init__(self, classes: int = 1000, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = row(
                _conv(32, 3, 2),
                _conv(32, 3, padding=0),
                _conv(64, 3),
                nn.MaxPool2D(3, 2),
                _conv(80, 1),
                _conv(192, 3, padding=0),
                nn.MaxPool2D(3, 2),
                *(_module(f"A{i}_", _a, pooled) for i, pooled in ((1, 32), (2, 64), (3, 64))),
                _module("B_", _b),
                *(_module(f"C{i}_", _c, few) for i, few in ((1, 128), (2, 160), (3, 160), (4, 192))),
                _module("D_", _d),
                *(_module(f"E{i}_", _e) for i in (1, 2)),
                nn.AvgPool2D(8),
                nn.Dropout(0.5),
            )
            self.output = nn.Dense(classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def inception_v3(pretrained: bool = False, ctx: Context | None = None, root: str = "", **kwargs: Any) -> Inception3:
    """Inception v3, untrained. Raises NotImplementedError for pretrained=True; `ctx`, `root` are of use only then."""
    return untrained("inceptionv3", pretrained, Inception3(**kwargs))
