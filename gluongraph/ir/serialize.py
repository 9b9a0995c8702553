"""Graphs as JSON: data with a version, checked when read; and the fingerprint that caches use.

A document is `{"format", "version", "graphs": [...]}`; the last graph is the main one, those before it are bodies to
which it refers. In a graph, `nodes` are rows `[op, sources, attributes, types, copy_id]`, sources first.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.errors import FormatError, Origin, VerifyError
from gluongraph.host import json_text
from gluongraph.ir.graph import OPS, RENAMED, Attr, Graph, Node, TensorType, Types, node, topological

FORMAT = "gluongraph-ir"
VERSION = 1
_TYPE = re.compile(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]")

# What an op's rules raise for extra, missing or ill-typed attributes, and for invalid shapes.
REFUSALS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, VerifyError)

Json = Any  # a value of the json module


def to_data(graph: Graph, origins: bool = True) -> dict[str, Json]:
    """Return the graph as lists, dicts, strings and numbers. Equal graphs have equal data, except for origins."""
    graphs: list[Json] = []
    numbers: dict[Graph, int] = {}
    _add(graph, graphs, numbers, origins)
    return {"format": FORMAT, "version": VERSION, "graphs": graphs}


def dumps(graph: Graph, origins: bool = True) -> str:
    """Return the graph as JSON text; `loads` returns the identical graph."""
    return _text(to_data(graph, origins))


def _text(data: Json) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def fingerprint(graph: Graph, names: bool = True) -> str:
    """Return a hash of the graph, without origins: the same in every process. SHA-256, 64 hex digits.

    Without `names` it is the same for graphs that differ only in the names of inputs and outputs.
    """
    data = to_data(graph, origins=False)
    if not names:
        _forget_names(data["graphs"][-1])
    return hashlib.sha256(_text(data).encode()).hexdigest()


def described(graph: Graph) -> str:
    """Return what all ranks that run a graph must have in common, line by line: its inputs with their types, and a
    digest of the rest."""
    inputs = [f"{name}: {n.ty}" for name, n in graph.inputs.items()]
    return "\n".join([*inputs, f"a graph with the digest {fingerprint(graph)}"])


def _forget_names(data: dict[str, Json]) -> None:
    """Replace the names of inputs in a graph's data by numbers, and drop those of outputs."""
    number = {name: i for i, (name, _) in enumerate(data["inputs"])}
    for name, i in data["inputs"]:
        data["nodes"][i][2] = number[name]
    data["inputs"] = [i for _, i in data["inputs"]]
    data["outputs"] = [i for _, i in data["outputs"]]
    data["updates"] = [[number[name], i] for name, i in data["updates"]]


def _add(graph: Graph, graphs: list[Json], numbers: dict[Graph, int], origins: bool) -> int:
    """Append the graph after its bodies, and return its index. Equal bodies are written once."""
    if (number := numbers.get(graph)) is not None:
        return number
    nodes = topological((*graph.inputs.values(), *graph.results))
    ids = {n: i for i, n in enumerate(nodes)}

    def row(n: Node) -> list[Json]:
        attrs = {k: _pack(n.attrs[k], lambda body: _add(body, graphs, numbers, origins)) for k in sorted(n.attrs)}
        types = [str(t) for t in n.type] if isinstance(n.type, tuple) else str(n.type)
        return [n.op.name, [ids[s] for s in n.src], attrs, types, *([n.copy_id] if n.copy_id else [])]

    data: dict[str, Json] = {"nodes": [row(n) for n in nodes]}
    for part in ("inputs", "outputs", "updates"):
        data[part] = [[name, ids[n]] for name, n in getattr(graph, part).items()]
    if origins and graph.origins:
        data["origins"] = [[ids[n], o.file, o.line, o.scope] for n, o in graph.origins.items() if n in ids]
    graphs.append(data)
    return numbers.setdefault(graph, len(graphs) - 1)


def _pack(value: Attr, number: Any) -> Json:
    """Return an attribute as JSON. Types that JSON lacks are objects with one key."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is tuple:
        return [_pack(v, number) for v in value]
    if kind is bytes:
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Graph):
        return {"graph": number(value)}
    raise FormatError(f"an attribute of type {kind.__name__} cannot be written: {value!r}")


def loads(text: str) -> Graph:
    """Return the graph that `dumps` wrote.

    Raises:
        FormatError: not such a text, another version, or a graph that the current ops reject or type differently.
    """
    try:
        data = json_text.parse(text)
    except ValueError as error:
        raise FormatError(f"not JSON: {error}") from None
    return from_data(data)


def from_data(data: Json) -> Graph:
    """Return the graph of data from `to_data`. Raises FormatError like `loads`."""
    _expect(isinstance(data, dict) and data.get("format") == FORMAT, f"not a graph: no format {FORMAT!r}")
    version = data.get("version")
    _expect(version == VERSION, f"graph of version {version!r}; this gluongraph reads version {VERSION}")
    graphs: list[Graph] = []
    _expect(isinstance(data.get("graphs"), list) and data["graphs"], "there is no graph")
    for part in data["graphs"]:
        graphs.append(_graph(part, graphs))
    return graphs[-1]


def _graph(data: Json, graphs: list[Graph]) -> Graph:
    _expect(isinstance(data, dict) and isinstance(data.get("nodes"), list), "a graph has no nodes")
    nodes: list[Node] = []
    for row in data["nodes"]:
        nodes.append(_node(row, nodes, graphs))
    inputs, outputs, updates = (_named(data.get(part), nodes, part) for part in ("inputs", "outputs", "updates"))
    origins: dict[Node, Origin] = {}
    for row in data.get("origins", []):
        match row:
            case [int(i), str(file), int(line), str(scope)] if 0 <= i < len(nodes):
                origins[nodes[i]] = Origin(file, line, scope)
            case _:
                raise FormatError(f"not an origin: {row!r}")
    return Graph(inputs, outputs, updates, origins)


def _node(row: Json, nodes: list[Node], graphs: list[Graph]) -> Node:
    match row:
        case [str(op), list(src), dict(attrs), types]:
            copy_id = 0
        case [str(op), list(src), dict(attrs), types, int(copy_id)]:
            pass
        case _:
            raise FormatError(f"not a node: {row!r}")
    op = RENAMED.get(op, op)
    _expect(op in OPS, f"there is no op {op!r}")
    _expect(all(type(s) is int and 0 <= s < len(nodes) for s in src), f"{op}: sources {src} are not nodes before it")
    given: Types = tuple(map(type_of, types)) if isinstance(types, list) else type_of(types)
    try:
        values = {k: _unpack(v, graphs) for k, v in attrs.items()}
        made = node(OPS[op], tuple(nodes[s] for s in src), values, copy_id, given if op == "input" else None)
    except REFUSALS as error:
        raise FormatError(f"{op}: {error}") from None
    _expect(made.type == given, f"{op}: the file says {types}, its rule says {made.type}")
    return made


def _unpack(value: Json, graphs: list[Graph]) -> Attr:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return tuple(_unpack(v, graphs) for v in value)
        case {"float": str(bits)}:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"base64": str(text)}:
            return base64.b64decode(text, validate=True)
        case {"graph": int(number)} if 0 <= number < len(graphs):
            return graphs[number]
    raise FormatError(f"not an attribute: {value!r}")


def type_of(text: Json) -> TensorType:
    """Parse a type: `f32[2,3]`. Raises FormatError."""
    found = _TYPE.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in DTYPES:
        raise FormatError(f"not a type: {text!r}")
    return TensorType(tuple(map(int, found[2].split(","))) if found[2] else (), found[1])


def _named(rows: Json, nodes: list[Node], part: str) -> Mapping[str, Node]:
    _expect(isinstance(rows, list), f"there are no {part}")
    found: dict[str, Node] = {}
    for row in rows:
        match row:
            case [str(name), int(i)] if 0 <= i < len(nodes) and name not in found:
                found[name] = nodes[i]
            case _:
                raise FormatError(f"{part}: {row!r} does not name a node, or names it twice")
    return found


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise FormatError(message)
