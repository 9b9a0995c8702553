"""mx.gluon.contrib.nn: blocks side by side, pixel shuffling, sparse embeddings, BatchNorm over several ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gluongraph import nd
from gluongraph.gluon.block import Block
from gluongraph.gluon.contrib.sync_batch_norm import SyncBatchNorm
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn import Embedding, HybridSequential, Identity, Sequential
from gluongraph.gluon.nn.layout import each_axis
from gluongraph.gluon.parameter_dict import ParameterDict

__all__ = [
    "Concurrent",
    "HybridConcurrent",
    "Identity",
    "PixelShuffle1D",
    "PixelShuffle2D",
    "PixelShuffle3D",
    "SparseEmbedding",
    "SyncBatchNorm",
]


class Concurrent(Sequential):
    """Blocks side by side on the same input; what they give is joined along `axis`."""

    def __init__(self, axis: int = -1, prefix: str | None = None, params: ParameterDict | None = None):
        super().__init__(prefix, params)
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return _joined(self, x, self.axis)


class HybridConcurrent(HybridSequential):
    """Hybrid blocks side by side on the same input; what they give is joined along `axis`."""

    def __init__(self, axis: int = -1, prefix: str | None = None, params: ParameterDict | None = None):
        super().__init__(prefix, params)
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return _joined(self, x, self.axis)


def _joined(block: Block, x: Any, axis: int) -> Any:
    return nd.concat(*(child(x) for child in block._children.values()), dim=axis)


class SparseEmbedding(Embedding):
    """`nn.Embedding` whose gradient is kept by rows."""

    def __init__(
        self, input_dim: int, output_dim: int, dtype: Any = "float32", weight_initializer: Any = None, **kwargs: Any
    ):
        super().__init__(input_dim, output_dim, dtype, weight_initializer, sparse_grad=True, **kwargs)


class _PixelShuffle(HybridBlock):
    """Groups of channels laid out as small blocks of pixels (Shi et al., 2016)."""

    _axes = 0

    def __init__(self, factor: int | Sequence[int]):
        super().__init__()
        self._factors = each_axis(self, "factor", factor, self._axes)

    def forward(self, x: Any) -> Any:
        axes, (n, channels, *size) = self._axes, x.shape
        apart = x.reshape((n, channels // math.prod(self._factors), *self._factors, *size))
        beside = [a for axis in range(axes) for a in (2 + axes + axis, 2 + axis)]  # each factor behind its axis
        mixed = apart.transpose((0, 1, *beside))
        return mixed.reshape((n, apart.shape[1], *(k * f for k, f in zip(size, self._factors, strict=True))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._factors if self._axes > 1 else self._factors[0]})"


class PixelShuffle1D(_PixelShuffle):
    """(N, f C, W) -> (N, C, f W)"""

    _axes = 1


class PixelShuffle2D(_PixelShuffle):
    """(N, f₁ f₂ C, H, W) -> (N, C, f₁ H, f₂ W)"""

    _axes = 2


class PixelShuffle3D(_PixelShuffle):
    """(N, f₁ f₂ f₃ C, D, H, W) -> (N, C, f₁ D, f₂ H, f₃ W)"""

    _axes = 3
