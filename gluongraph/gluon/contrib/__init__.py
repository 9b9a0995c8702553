"""What MXNet keeps apart as contributed: mx.gluon.contrib."""

from gluongraph.gluon.contrib import data, nn

__all__ = ["data", "nn"]
