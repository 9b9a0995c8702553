"""A model as it was read: graphs of operators by name, free of the file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gluongraph.onnx.format.torch_metadata import TorchMetadata
from gluongraph.storage import Array

DEFAULT = ""  # the default domain, which files also call "ai.onnx"
TRAINING = "ai.onnx.preview.training"

# TensorProto.DataType: the number of an element type, and its name here.
DTYPES: dict[int, str] = {
    1: "f32", 2: "u8", 3: "i8", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64", 12: "u32", 13: "u64", 16: "bf16",
}  # fmt: skip
NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True)
class Reference:
    """Stands in a function's body for the attribute that the function was called with."""

    name: str


@dataclass(frozen=True)
class NodeDef:
    """One use of an operator; "" among the inputs or outputs is one that was left out.

    `torch_op` is the operation of PyTorch's that it was exported from, as "aten.clamp.default", where the file says so.
    """

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    torch_op: str = ""

    @property
    def where(self) -> str:
        """How messages call it: `Conv 'conv1'`."""
        op = f"{self.domain}::{self.op}" if self.domain else self.op
        return f"{op} {self.name!r}" if self.name else f"{op} (which makes {', '.join(filter(None, self.outputs))!r})"


@dataclass(frozen=True)
class ValueDef:
    """A declared input or output. Extents that are names are free; without a shape all are."""

    name: str
    dtype: str = "f32"
    shape: tuple[int | str, ...] | None = None
    sequence: bool = False  # a list of arrays

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}[{'...' if self.shape is None else ','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class GraphDef:
    """Nodes in an order in which sources come first; `constants` are the arrays that the file holds."""

    name: str
    nodes: tuple[NodeDef, ...]
    inputs: tuple[ValueDef, ...]
    outputs: tuple[ValueDef, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    proto: Any = None  # as the package reads it


@dataclass(frozen=True, eq=False)
class FunctionDef:
    """An operator that is made of others; `defaults` has its attributes, None where one must be given."""

    domain: str
    name: str
    nodes: tuple[NodeDef, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    opsets: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Model:
    """A graph, the version of each domain that it uses, and the functions that it brings along."""

    what: str  # the file, for messages
    graph: GraphDef
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], FunctionDef] = field(default_factory=dict)
    producer: str = ""  # the name that the exporter gives itself
    torch: TorchMetadata | None = None
