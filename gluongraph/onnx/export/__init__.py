"""ONNX out: networks as models of standard operators, and training steps in the IR's own.

A block is traced twice, for two batches; extents in which the graphs differ follow the batch. Rules say what each op is
in ONNX, several nodes together where an operator of ONNX does their work; composites that no rule says are opened. The
writer then makes operators of it, with names of the layers, and numbers as initializers.
"""

from gluongraph.onnx.export import rules
from gluongraph.onnx.export.prediction import export, prediction

__all__ = ["export", "prediction", "rules"]
