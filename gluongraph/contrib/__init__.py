"""What MXNet keeps apart: mixed precision, vocabularies, younger operators; mx.contrib."""

from gluongraph import amp
from gluongraph import autograd as autograd
from gluongraph.contrib import text
from gluongraph.nd import contrib as nd
from gluongraph.nd import contrib as ndarray

__all__ = ["amp", "autograd", "nd", "ndarray", "text"]
