"""What each op is in ONNX, a function for each, in a file for each family."""

from gluongraph.onnx.export.rules import control, gradient, index, math, nn, shape
from gluongraph.onnx.export.rules.view import RULES

__all__ = ["RULES", "control", "gradient", "index", "math", "nn", "shape"]
