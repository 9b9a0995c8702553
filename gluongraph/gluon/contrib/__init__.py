"""What MXNet keeps apart as contributed: mx.gluon.contrib."""

from gluongraph.gluon.contrib import data, nn, rnn

__all__ = ["data", "nn", "rnn"]
