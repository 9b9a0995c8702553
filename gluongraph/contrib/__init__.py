"""What MXNet keeps apart: mixed precision, vocabularies, younger operators; mx.contrib."""

from gluongraph import amp
from gluongraph.contrib import autograd as autograd
from gluongraph.host.lazy import imported_later
from gluongraph.nd import contrib as nd
from gluongraph.nd import contrib as ndarray

__getattr__ = imported_later(__name__, ("embedding", "pretrained", "text"))

__all__ = ["amp", "autograd", "nd", "ndarray"]
