"""What MXNet keeps apart as contributed: mx.gluon.contrib."""

from typing import TYPE_CHECKING

from gluongraph.gluon.contrib import data, nn, rnn
from gluongraph.later import imported_later

if TYPE_CHECKING:
    from gluongraph.gluon.contrib import estimator

__getattr__ = imported_later(__name__, ("estimator",))

__all__ = ["data", "estimator", "nn", "rnn"]
