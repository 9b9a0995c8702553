"""PyTorch's modules as hybrid blocks: `from_torch` traces them with torch.export, and builds them of the project's ops.

PyTorch is imported by the first call, not before.
"""

from gluongraph.torch.aten.table import operator
from gluongraph.torch.block import TorchBlock, from_torch
from gluongraph.torch.export import ExportError
from gluongraph.torch.loss import Loss

__all__ = ["ExportError", "Loss", "TorchBlock", "from_torch", "operator"]
