"""Small modules exported by PyTorch, and the files that were recorded of them for where PyTorch cannot export.

`python tests/onnx/torch_exports.py` writes the folder `recorded` anew; it needs torch, onnx and onnxscript.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import text_format

RECORDED = Path(__file__).parent / "recorded"
READ = ("InputSpec.kind", "graph_signature", "fx_node", "folded_from", "rule_name")  # ends of the keys that are kept


def exported(module: Any, args: tuple[Any, ...], **how: Any) -> Any:
    """The ModelProto that torch.onnx.export(dynamo=True) makes, in silence."""
    import torch

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(module, args, dynamo=True, verbose=False, **how).model_proto
    finally:
        logging.disable(logging.NOTSET)


def every_kind() -> tuple[Any, tuple[Any, ...]]:
    """Parameters of any rank, tied ones, buffers, constants, batch norm, dropout, parameters that begin alike."""
    import torch
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.head.weight = self.embedding.weight
            self.norm, self.batch_norm = nn.LayerNorm(4), nn.BatchNorm1d(4)
            self.dense, self.drop, self.unused = nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(2, 2)
            self.gate = nn.Parameter(torch.tensor(2.0))
            self.register_buffer("positions", torch.randn(5, 4))
            self.shift = torch.randn(8)

        def forward(self, tokens: Any) -> Any:
            x = self.norm(self.embedding(tokens) + self.positions)
            x = self.batch_norm(self.dense(x).transpose(1, 2)).transpose(1, 2)
            return (self.head(self.drop(x)) * self.gate + self.shift).mean(1)

    return Net(), (torch.randint(0, 8, (6, 5)),)


def convolution() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval(), (torch.randn(2, 1, 4, 4),)


def tied() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.embedding(tokens))

    return Net(), (torch.randint(0, 8, (2, 5)),)


def alike() -> tuple[Any, tuple[Any, ...]]:
    """Two layer norms that begin with the same weights."""
    import torch
    from torch import nn

    return nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4)), (torch.randn(2, 4),)


def scaled() -> tuple[Any, tuple[Any, ...]]:
    """A dense layer times a scalar, which is 1 at first: its multiplication is removed as if that were all it does."""
    import torch
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.gate = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Any) -> Any:
            return self.dense(x) * self.gate

    return Net(), (torch.randn(2, 4),)


def reparametrized() -> tuple[Any, tuple[Any, ...]]:
    """Weight normalization: the weight is computed from two parameters."""
    import torch
    from torch import nn

    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)


def plain() -> tuple[Any, tuple[Any, ...]]:
    """Nothing that the optimizer would change."""
    import torch
    from torch import nn

    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (torch.randn(2, 4),)


# By name: the module, whether the exporter optimizes, and the message that a refusal has; "" if the file is taken.
EXPORTS: dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool, str]] = {
    "every_kind": (every_kind, False, ""),
    "convolution": (convolution, False, ""),
    "tied": (tied, False, ""),
    "alike": (alike, False, ""),
    "scaled": (scaled, False, ""),
    "reparametrized": (reparametrized, False, ""),
    "plain": (plain, False, ""),
    "plain_optimized": (plain, True, ""),
    "every_kind_optimized": (every_kind, True, "'head.weight' was untied"),
    "convolution_optimized": (convolution, True, "BatchNorm was fused into 'node_Conv_.*FuseBatchNormIntoConv"),
    "tied_optimized": (tied, True, "'head.weight' was untied: it is there, and 'val_.*' that was computed from it"),
    "alike_optimized": (alike, True, "'1.weight' is used and is not in the file: it was merged with an equal array"),
    "scaled_optimized": (scaled, True, "'gate' is not in the file, whose optimizer has removed 'mul'"),
    "reparametrized_optimized": (reparametrized, True, "'parametrizations.weight.original0' is there only as 'mul'"),
}


def module_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The module and its arguments, the same at each call."""
    import torch

    torch.manual_seed(0)
    return EXPORTS[name][0]()


def export_of(name: str) -> Any:
    """The ModelProto, exported now."""
    module, args = module_of(name)
    return exported(module, args, optimize=EXPORTS[name][1])


def recorded(name: str) -> Any:
    """The ModelProto as it was recorded."""
    return text_format.Parse((RECORDED / f"{name}.textproto").read_text(), onnx.ModelProto())


def _stripped(model: Any) -> Any:
    """Without metadata that nothing reads, among them paths and lines of the machine where it was exported."""
    graph = model.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        kept = [p for p in part.metadata_props if p.key.endswith(READ)]
        del part.metadata_props[:]
        part.metadata_props.extend(kept)
    return model


def record() -> None:
    """Write all files."""
    RECORDED.mkdir(exist_ok=True)
    for name in EXPORTS:
        (RECORDED / f"{name}.textproto").write_text(text_format.MessageToString(_stripped(export_of(name))))


if __name__ == "__main__":
    record()
