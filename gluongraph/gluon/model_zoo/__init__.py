"""Networks that have proved themselves: mx.gluon.model_zoo."""

from gluongraph.gluon.model_zoo import vision
from gluongraph.host.lazy import imported_later

__getattr__ = imported_later(__name__)

__all__ = ["vision"]
