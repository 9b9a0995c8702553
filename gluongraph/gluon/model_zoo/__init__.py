"""Networks that have proved themselves: mx.gluon.model_zoo."""

from gluongraph.gluon.model_zoo import vision

__all__ = ["vision"]
