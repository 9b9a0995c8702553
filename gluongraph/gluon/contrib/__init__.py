"""What MXNet keeps apart as contributed: mx.gluon.contrib."""

from gluongraph.gluon.contrib import data, nn, rnn
from gluongraph.later import imported_later

__getattr__ = imported_later(__name__)

__all__ = ["data", "nn", "rnn"]
