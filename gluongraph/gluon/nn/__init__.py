"""Layers: mx.gluon.nn."""

from gluongraph.gluon.block import Block, HybridBlock
from gluongraph.gluon.nn.activations import GELU, Activation, LeakyReLU
from gluongraph.gluon.nn.basic import Dense, Dropout, Embedding, Flatten, HybridLambda, Identity, Lambda
from gluongraph.gluon.nn.containers import HybridSequential, Sequential
from gluongraph.gluon.nn.conv import AvgPool2D, Conv2D, GlobalAvgPool2D, GlobalMaxPool2D, MaxPool2D
from gluongraph.gluon.nn.norm import BatchNorm, LayerNorm

__all__ = [
    "GELU",
    "Activation",
    "AvgPool2D",
    "BatchNorm",
    "Block",
    "Conv2D",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool2D",
    "GlobalMaxPool2D",
    "HybridBlock",
    "HybridLambda",
    "HybridSequential",
    "Identity",
    "Lambda",
    "LayerNorm",
    "LeakyReLU",
    "MaxPool2D",
    "Sequential",
]
