"""First values of parameters: mx.init."""

from gluongraph.host.lazy import imported_later
from gluongraph.initializer.base import InitDesc, Initializer, alias, create, register
from gluongraph.initializer.drawn import MSRAPrelu, Normal, Orthogonal, Uniform, Xavier
from gluongraph.initializer.fixed import Bilinear, Constant, LSTMBias, One, Zero
from gluongraph.initializer.named import Load, Mixed

__getattr__ = imported_later(__name__)

__all__ = [
    "Bilinear",
    "Constant",
    "InitDesc",
    "Initializer",
    "LSTMBias",
    "Load",
    "MSRAPrelu",
    "Mixed",
    "Normal",
    "One",
    "Orthogonal",
    "Uniform",
    "Xavier",
    "Zero",
    "alias",
    "create",
    "register",
]
