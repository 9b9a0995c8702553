"""What MXNet keeps apart: mixed precision, vocabularies, younger operators; mx.contrib."""

from gluongraph import amp
from gluongraph.contrib import autograd as autograd
from gluongraph.contrib import embedding, text
from gluongraph.nd import contrib as nd
from gluongraph.nd import contrib as ndarray

__all__ = ["amp", "autograd", "embedding", "nd", "ndarray", "text"]
