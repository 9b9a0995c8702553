"""Layers: mx.gluon.nn."""

from typing import TYPE_CHECKING

from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn.activations import ELU, GELU, SELU, Activation, LeakyReLU, PReLU, SiLU, Swish
from gluongraph.gluon.nn.basic import Dense, Dropout, Embedding, Flatten, HybridLambda, Identity, Lambda
from gluongraph.gluon.nn.containers import HybridSequential, Sequential
from gluongraph.gluon.nn.conv import Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose
from gluongraph.gluon.nn.norm import BatchNorm, BatchNormReLU, GroupNorm, InstanceNorm, LayerNorm
from gluongraph.gluon.nn.pool import (
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPool3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    ReflectionPad2D,
)
from gluongraph.host.lazy import imported_later

if TYPE_CHECKING:
    from gluongraph.gluon.symbol_block import SymbolBlock

__getattr__ = imported_later(__name__, members={"SymbolBlock": "gluongraph.gluon.symbol_block"})

__all__ = [
    "ELU",
    "GELU",
    "SELU",
    "Activation",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNorm",
    "BatchNormReLU",
    "Block",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GroupNorm",
    "HybridBlock",
    "HybridLambda",
    "HybridSequential",
    "Identity",
    "InstanceNorm",
    "Lambda",
    "LayerNorm",
    "LeakyReLU",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "PReLU",
    "ReflectionPad2D",
    "Sequential",
    "SiLU",
    "Swish",
    "SymbolBlock",
]
