"""From an ONNX file to a `Model`: everything is checked here, before anything is built or run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gluongraph.errors import FormatError, UnsupportedError
from gluongraph.host.file_names import check_name
from gluongraph.onnx.format.model import DEFAULT, FunctionDef, GraphDef, Model, NodeDef, Reference, ValueDef
from gluongraph.onnx.format.package import NEWEST, OLDEST, onnx
from gluongraph.onnx.format.tensors import array_of, dtype_of
from gluongraph.onnx.format.torch_metadata import torch_metadata, torch_op

DEEPEST = 32  # graphs within graphs
LONGEST = 64  # bytes of a name that messages show


def read(source: Any) -> Model:
    """The model in a file (a path), in bytes, or in a ModelProto.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it holds no ONNX model, or one that contradicts itself.
        UnsupportedError: it is of a version, or has elements of a type, that is not known here.
    """
    proto, what, folder = parsed(source)
    if not proto.HasField("graph"):
        raise FormatError(f"{what} holds no ONNX model: it has no graph")
    opsets = _opsets(proto.opset_import, what)
    version = opsets.get(DEFAULT)
    if version is not None and not 1 <= version <= NEWEST:
        raise UnsupportedError(f"{what} is of opset {version}; known are {OLDEST} to {NEWEST}")
    files = Reader(what, folder)
    functions = {
        (domain_of(text(f.domain, what)), text(f.name, what)): files.function(f, opsets) for f in proto.functions
    }
    graph = files.graph(proto.graph, frozenset(), 0)
    return Model(what, graph, opsets, functions, text(proto.producer_name, what), torch_metadata(proto))


def domain_of(domain: str) -> str:
    """The domain by its one name."""
    return DEFAULT if domain == "ai.onnx" else domain


def text(name: Any, what: str) -> str:
    """A name; protobuf gives bytes where a file has no text.

    Raises:
        FormatError: it is none.
    """
    if not isinstance(name, str):
        raise FormatError(f"{what}: a name that is no text: {name[:LONGEST]!r}")
    return name


def parsed(source: Any, asker: str = "onnx.load") -> tuple[Any, str, Path | None]:
    """The ModelProto in a path, in bytes, or itself; what messages call it; and the folder of the file."""
    proto_type = onnx().ModelProto
    if isinstance(source, proto_type):
        return source, "the model", None
    if isinstance(source, bytes):
        data, what, folder = source, "the model", None
    else:
        check_name(asker, source, f"mx.{asker}('net.onnx')")
        path = Path(os.fspath(source))
        data, what, folder = path.read_bytes(), path.name, path.parent
    proto = proto_type()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's own, which has no public name that all its versions share
        raise FormatError(f"{what} is no ONNX file, or a damaged one: {error}") from None
    return proto, what, folder


def _opsets(imports: Iterable[Any], what: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in imports:
        domain = domain_of(text(each.domain, what))
        if found.setdefault(domain, each.version) != each.version:
            raise FormatError(f"{what} imports two versions of the domain {each.domain!r}")
    return found


class Reader:
    """Reads the parts of one file."""

    def __init__(self, what: str, folder: Path | None):
        self.what, self.folder = what, folder

    def graph(self, proto: Any, outside: frozenset[str], depth: int) -> GraphDef:
        """A graph; `outside` are the values of the graphs around it, which it may read."""
        if depth > DEEPEST:
            raise FormatError(f"{self.what}: more than {DEEPEST} graphs within one another")
        if len(proto.sparse_initializer):
            raise UnsupportedError(f"{self.what}: sparse initializers")
        for value in (*proto.input, *proto.output, *proto.initializer):
            text(value.name, self.what)
        constants = {t.name: array_of(t, self.what, self.folder) for t in proto.initializer}
        users = {name: n.op_type for n in reversed(proto.node) for name in n.input}
        makers = {name: n.op_type for n in proto.node for name in n.output}
        inputs = tuple(self.value(v, users.get(v.name, "")) for v in proto.input if v.name not in constants)
        known = {*constants, *(v.name for v in inputs)}
        if len(known) != len(proto.initializer) + len(inputs) or "" in known:
            raise FormatError(f"{self.what}: two inputs or initializers of graph {proto.name!r} have one name, or none")
        nodes = self.nodes(proto.node, known, outside, depth)
        outputs = tuple(self.value(v, makers.get(v.name, "")) for v in proto.output)
        for value in outputs:
            if value.name not in known | outside:
                raise FormatError(f"{self.what}: output {value.name!r} is made by no node")
        return GraphDef(proto.name, nodes, inputs, outputs, constants, proto)

    def value(self, proto: Any, op: str) -> ValueDef:
        """A declared input or output; `op` reads or makes it."""
        kind = proto.type.WhichOneof("value")
        what = f"{self.what}: {proto.name!r} of {op or 'no operator'}"
        if kind == "sequence_type" and proto.type.sequence_type.elem_type.WhichOneof("value") == "tensor_type":
            return ValueDef(proto.name, sequence=True)
        if kind is None:
            return ValueDef(proto.name, "")
        if kind != "tensor_type":
            raise UnsupportedError(f"{what} is of the type {kind}; there are tensors")
        about = proto.type.tensor_type
        dtype = dtype_of(about.elem_type, what) if about.elem_type else ""
        if not about.HasField("shape"):
            return ValueDef(proto.name, dtype)
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else text(d.dim_param, what) or "?" for d in about.shape.dim
        )
        if any(isinstance(n, int) and n < 0 for n in shape):
            raise FormatError(f"{what} is declared with the shape {list(shape)}")
        return ValueDef(proto.name, dtype, shape)

    def nodes(self, protos: Any, known: set[str], outside: frozenset[str], depth: int) -> tuple[NodeDef, ...]:
        """Nodes in order; `known` grows by what they make."""
        made = []
        later = {name for n in protos for name in n.output}
        for n in protos:
            for name in (n.op_type, n.domain, n.name, *n.input, *n.output, *(a.name for a in n.attribute)):
                text(name, self.what)
            inputs, outputs = tuple(n.input), tuple(n.output)
            attrs = {a.name: self.attribute(a, frozenset(known) | outside, depth) for a in n.attribute}
            node = NodeDef(n.op_type, domain_of(n.domain), n.name, inputs, outputs, attrs, torch_op(n))
            for name in inputs:
                if name and name not in known and name not in outside:
                    why = "only a later node makes: a cycle?" if name in later else "nothing makes"
                    raise FormatError(f"{self.what}: {node.where} reads {name!r}, which {why}")
            for name in filter(None, outputs):
                if name in known:
                    raise FormatError(f"{self.what}: {node.where} makes {name!r}, which exists already")
                known.add(name)
            made.append(node)
        return tuple(made)

    def attribute(self, a: Any, outside: frozenset[str], depth: int) -> Any:
        """The value of an attribute, in Python."""
        if a.ref_attr_name:
            return Reference(a.ref_attr_name)
        kind = a.AttributeType.Name(a.type) if a.type in a.AttributeType.values() else str(a.type)
        where = f"{self.what}: attribute {a.name!r}"
        if kind == "GRAPH":
            return self.graph(a.g, outside, depth + 1)
        if kind == "TENSOR":
            return array_of(a.t, where, self.folder)
        simple = {"FLOAT": "f", "INT": "i", "STRING": "s", "FLOATS": "floats", "INTS": "ints", "STRINGS": "strings"}
        if kind not in simple:
            raise UnsupportedError(f"{where} is of the type {kind}")
        found = getattr(a, simple[kind])
        if kind == "STRING":
            return found.decode(errors="replace")
        if kind == "STRINGS":
            return tuple(s.decode(errors="replace") for s in found)
        return tuple(found) if kind.endswith("S") else found

    def function(self, proto: Any, opsets: Mapping[str, int], whole: bool = True) -> FunctionDef:
        """An operator that the file defines; not `whole`, it may lack outputs that nobody wants."""
        inputs = tuple(proto.input)
        known = set(inputs)
        nodes = self.nodes(proto.node, known, frozenset(), 0)
        if whole and (missing := [name for name in proto.output if name not in known]):
            raise FormatError(f"{self.what}: the function {proto.name} makes no {missing[0]!r}")
        defaults: dict[str, Any] = dict.fromkeys(proto.attribute)
        defaults |= {a.name: self.attribute(a, frozenset(), 0) for a in proto.attribute_proto}
        own = {**opsets, **_opsets(proto.opset_import, self.what)}
        domain = domain_of(proto.domain)
        return FunctionDef(domain, proto.name, nodes, inputs, tuple(proto.output), defaults, own)
