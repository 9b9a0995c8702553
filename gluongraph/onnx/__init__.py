"""ONNX models as gluon blocks: `mx.onnx.load("model.onnx")`; docs/onnx.md says which operators there are.

reader     file -> Model, checked; tensors, package; torch_metadata: what PyTorch's exporters say of the module
trained    which arrays are parameters, and whether an exporter has changed them
program    Model -> Program: operators found, arrays sorted into parameters and constants
build      Program -> graph, for inputs of given types; site is what builders see
operators/ the table: one row per operator and version, by families
block      the HybridBlock, and `load`
export/    the way out: networks, and training steps
"""

from gluongraph.errors import UnsupportedError
from gluongraph.onnx.block import ONNXBlock, load
from gluongraph.onnx.export.program import load_graph

__all__ = ["ONNXBlock", "UnsupportedError", "load", "load_graph"]
