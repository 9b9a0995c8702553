"""Operators that ONNX itself defines by others: those without a row are built from their definition in the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gluongraph.errors import FormatError
from gluongraph.ir.graph import Node, TensorType
from gluongraph.onnx.format.model import NUMBERS, FunctionDef, GraphDef, NodeDef
from gluongraph.onnx.format.package import onnx
from gluongraph.onnx.format.reader import Reader


def plain(node: NodeDef, version: int) -> FunctionDef | None:
    """The definition of an operator, if it has one that does not depend on types."""
    return _plain(node.domain, node.op, version)


def depends(node: NodeDef, version: int) -> bool:
    """Does the operator have a definition that depends on its attributes and the types of its inputs?"""
    schema = _schema(node.domain, node.op, version)
    return schema is not None and schema.has_context_dependent_function


def unchanged(node: NodeDef, version: int, since: int) -> bool:
    """Is the operator of that version the one that it is in a later one?"""
    then, now = _schema(node.domain, node.op, version), _schema(node.domain, node.op, since)
    return then is not None and now is not None and bool(then.since_version == now.since_version)


def of_types(node: NodeDef, version: int, types: Sequence[TensorType | None], opsets: Mapping[str, int]) -> FunctionDef:
    """The definition of an operator for inputs of these types.

    Raises:
        FormatError: it has none for them.
    """
    schema, helper = _schema(node.domain, node.op, version), onnx("helper")
    assert schema is not None
    protos = [
        onnx().TypeProto() if t is None else helper.make_tensor_type_proto(NUMBERS[t.dtype], t.shape) for t in types
    ]
    proto = helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain)
    for name, value in node.attrs.items():
        if isinstance(value, np.ndarray):
            value = onnx("numpy_helper").from_array(value)
        elif isinstance(value, GraphDef):
            value = value.proto
        proto.attribute.append(helper.make_attribute(name, value))
    try:
        text = schema.get_context_dependent_function(proto.SerializeToString(), [p.SerializeToString() for p in protos])
    except Exception as error:  # of the package's compiled part: of several types
        raise FormatError(f"{node.where}: {error}") from None
    return _defined(text, schema, opsets)


@lru_cache(maxsize=256)
def _plain(domain: str, name: str, version: int) -> FunctionDef | None:
    schema = _schema(domain, name, version)
    if schema is None or not schema.has_function:
        return None
    fitting = [v for v in schema.function_opset_versions if v <= version]
    if not fitting:
        return None
    return _defined(schema.get_function_with_opset_version(max(fitting)), schema, {domain: version})


@lru_cache(maxsize=256)
def _schema(domain: str, name: str, version: int) -> Any:
    defs = onnx("defs")
    try:
        found = defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


def _defined(text: bytes, schema: Any, opsets: Mapping[str, int]) -> FunctionDef:
    proto = onnx().FunctionProto.FromString(text)
    reader = Reader(f"the definition of {schema.name}", None)
    made = reader.function(proto, opsets, whole=False)
    given = {name: about.default_value for name, about in schema.attributes.items() if about.default_value.type}
    defaults = {name: reader.attribute(value, frozenset(), 0) for name, value in given.items()}
    return replace(made, defaults={**made.defaults, **defaults})


def type_of(value: Any) -> TensorType | None:
    """The type of a value; None of one that is left out, or of a sequence."""
    return value.ty if isinstance(value, Node) else None
