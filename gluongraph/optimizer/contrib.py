"""Where MXNet keeps GroupAdaGrad: mx.optimizer.contrib."""

from gluongraph.optimizer.adagrad import GroupAdaGrad

__all__ = ["GroupAdaGrad"]
