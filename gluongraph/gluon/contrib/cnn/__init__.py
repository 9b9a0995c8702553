"""Convolutions that MXNet keeps apart: mx.gluon.contrib.cnn."""

from gluongraph.gluon.contrib.cnn.conv_layers import DeformableConvolution, ModulatedDeformableConvolution

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution"]
