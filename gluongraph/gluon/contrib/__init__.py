"""What MXNet keeps apart as contributed: mx.gluon.contrib."""

from typing import TYPE_CHECKING

from gluongraph.gluon.contrib import data, nn, rnn
from gluongraph.host.lazy import imported_later

if TYPE_CHECKING:
    from gluongraph.gluon.contrib import cnn, estimator

__getattr__ = imported_later(__name__, ("cnn", "estimator"))

__all__ = ["cnn", "data", "estimator", "nn", "rnn"]
