"""What MXNet keeps apart as contributed: mx.gluon.contrib."""

from gluongraph.gluon.contrib import nn

__all__ = ["nn"]
