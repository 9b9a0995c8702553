"""Graphs and plans as text. What `show` prints is Python, and `read` gives the identical graph back.

Types and origins are comments, names are given while printing; so equal graphs print equal, and a dump may be edited,
pasted into a test or sent in a bug report. Reading parses with `ast` and knows a few forms only: nothing is executed.
"""

from __future__ import annotations

import ast
import base64
import json
import keyword
import math
import re
import struct
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gluongraph.dtypes import DTYPES
from gluongraph.errors import FormatError, pluralize
from gluongraph.ir.graph import OPS, RENAMED, Attr, Graph, Node, Op, TensorType, Types, node, topological
from gluongraph.ir.plan import Buffer, Launch, Plan

COMMENT_COLUMN = 56
_NAN = struct.pack("<d", math.nan)


def show(graph: Graph, title: str = "") -> str:
    """Return the graph as Python text: one function, one line per node, the updates as a second dict.

    >>> from gluongraph import ops
    >>> from gluongraph.ir.graph import Graph, TensorType
    >>> x = ops.input("fc.x", TensorType((2, 3)))
    >>> print(show(Graph({"fc.x": x}, {"y": ops.tanh(x)}), "example"))
    # example · 2 nodes
    def example(*,
            fc_x: f32[2,3] = "fc.x",
    ):
        v0 = tanh(fc_x)                                     # f32[2,3]
        return {"y": v0}
    <BLANKLINE>
    """
    counts = [_count(len(graph.nodes()), "node"), *([_count(len(graph.updates), "update")] if graph.updates else [])]
    name = _identifier(title.split()[0], set()) if title.split() else "graph"
    return f"# {' · '.join([*([title] if title else []), *counts])}\n" + _Writer(0).function(name, graph)


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def lines(graph: Graph) -> list[tuple[Node, str]]:
    """Return the nodes of a graph, except inputs, each with its line as `show` prints it."""
    writer = _Writer(0)
    writer.function("graph", graph)
    found = writer.lines[-1 - len(writer.live) : -1]
    return list(zip(writer.live, map(str.strip, found), strict=True))


class _Writer:
    """Prints one graph at one depth of indentation."""

    def __init__(self, depth: int):
        self.depth = depth
        self.lines: list[str] = []
        self.live: list[Node] = []  # the nodes that have a line
        self.names: dict[Node, str] = {}
        self.bodies: dict[Graph, str] = {}

    def line(self, text: str, comment: str = "", depth: int = 1) -> None:
        text = "    " * (self.depth + depth) + text
        self.lines.append(f"{text:<{COMMENT_COLUMN - 2}}  # {comment}" if comment else text)

    def function(self, name: str, graph: Graph) -> str:
        taken: set[str] = set()
        self.parameters(name, graph, taken)
        live = self.live = [n for n in topological(graph.results) if n not in self.names]
        self.nested(live, taken)
        self.name_nodes(live, taken)
        for n in live:
            origin = graph.origins.get(n)
            types = " ".join(map(str, n.types))
            self.line(f"{self.names[n]} = {self.call(n)}", f"{types}  {origin}" if origin else types)
        dicts = [graph.outputs, graph.updates] if graph.updates else [graph.outputs]
        self.line("return " + ", ".join(map(self.results, dicts)))
        return "\n".join(self.lines) + "\n"

    def parameters(self, name: str, graph: Graph, taken: set[str]) -> None:
        rows = []
        for key, leaf in graph.inputs.items():
            printed = _identifier(key, taken)
            taken.add(printed)
            rows.append((printed, _type(leaf.type), _default(printed, key, leaf), graph.origins.get(leaf)))
            self.names.setdefault(leaf, printed)
        if not rows:
            return self.line(f"def {name}():", depth=0)
        named = any(default for _, _, default, _ in rows)  # Python wants * before defaults in any order
        self.line(f"def {name}({'*,' * named}", depth=0)
        for printed, type, default, origin in rows:
            self.line(f"{printed}: {type}{default},", str(origin or ""), depth=2)
        return self.line("):", depth=0)

    def nested(self, live: Iterable[Node], taken: set[str]) -> None:
        """Print body graphs first, as functions inside this one; equal ones once."""
        for n in live:
            for value in n.attrs.values():
                if isinstance(value, Graph) and value not in self.bodies:
                    name = self.bodies[value] = _identifier(f"body{len(self.bodies)}", taken)
                    taken.add(name)
                    self.lines.append(_Writer(self.depth + 1).function(name, value).removesuffix("\n"))

    def name_nodes(self, live: Iterable[Node], taken: set[str]) -> None:
        count = 0
        for n in live:
            while (name := f"v{count}") in taken:
                count += 1
            self.names[n] = name
            count += 1

    def call(self, n: Node) -> str:
        parts = [self.names[s] for s in n.src]
        parts += [f"{key}={self.value(n.attrs[key])}" for key in sorted(n.attrs)]
        if n.op.name == "input":  # a leaf that is not among the inputs: invalid, but printable
            parts.append(f"type={_type(n.type)}")
        if n.copy_id:
            parts.append(f"copy_id={n.copy_id}")
        return f"{n.op.name}({', '.join(parts)})"

    def value(self, value: Attr) -> str:
        if isinstance(value, Graph):
            return self.bodies[value]
        if isinstance(value, tuple):
            inner = ", ".join(map(self.value, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        return _literal(value)

    def results(self, results: Mapping[str, Node]) -> str:
        return "{" + ", ".join(f"{_quoted(key)}: {self.names[n]}" for key, n in results.items()) + "}"


def _identifier(name: str, taken: set[str]) -> str:
    """Return `name` as an unused Python identifier: 'fc1.weight' -> 'fc1_weight'."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    if base[0].isdigit() or keyword.iskeyword(base) or base in ("inf", "nan"):
        base = "_" + base
    found, count = base, 1
    while found in taken:
        count += 1
        found = f"{base}_{count}"
    return found


def _default(printed: str, key: str, leaf: Node) -> str:
    """Return the default value of a parameter: its key, and the leaf's name, where they differ from the printed
    name."""
    own = leaf.attrs.get("name", key)
    if own != key:
        return f" = ({_quoted(key)}, {_quoted(own)})"
    return "" if printed == key else f" = {_quoted(key)}"


def _quoted(text: str) -> str:
    """Return a string in double quotes; JSON's escapes are valid in Python."""
    return json.dumps(text, ensure_ascii=False)


def _type(types: Types) -> str:
    if isinstance(types, tuple):
        return "(" + ", ".join(map(_type, types)) + ",)"
    return str(types).replace("[]", "[()]")


def _literal(value: Attr) -> str:
    """Return an attribute as text, without loss: inf, nan (other NaNs by their bits), -0.0; bytes in base64."""
    if isinstance(value, bytes):
        return f'base64("{base64.b64encode(value).decode()}")'
    if isinstance(value, float) and math.isnan(value) and (bits := struct.pack("<d", value)) != _NAN:
        return f'nan("{bits.hex()}")'
    if isinstance(value, str):
        return _quoted(value)
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    raise FormatError(f"an attribute of type {type(value).__name__} cannot be printed: {value!r}")


def read(text: str) -> Graph:
    """Return the graph of a text printed by `show`; its nodes are identical to those that were printed.

    Raises:
        FormatError: the text is not the text of a graph; the message has the line. Nothing in it is executed.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise FormatError(f"not the text of a graph: {error}") from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise FormatError("not the text of a graph: one function definition is expected")
    return _Reader({}).function(tree.body[0])


@dataclass
class _Reader:
    """Reads one function; `bodies` are the graphs defined around it."""

    bodies: dict[str, Graph]
    values: dict[str, Node] = field(default_factory=dict)

    def function(self, tree: ast.FunctionDef) -> Graph:
        inputs = self.parameters(tree)
        bodies = dict(self.bodies)
        *statements, last = tree.body
        for statement in statements:
            if isinstance(statement, ast.FunctionDef):
                bodies[statement.name] = _Reader(dict(bodies)).function(statement)
            elif isinstance(statement, ast.Assign):
                self.bodies = bodies
                self.assign(statement)
            else:
                raise _bad(statement, "a statement that no graph has")
        if not isinstance(last, ast.Return) or last.value is None:
            raise _bad(last, "the last line must return the outputs")
        dicts = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
        if len(dicts) > 2:
            raise _bad(last, "outputs and updates are expected, nothing else")
        outputs, updates = (*map(self.results, dicts), {})[:2]
        return Graph(inputs, outputs, updates)

    def parameters(self, tree: ast.FunctionDef) -> dict[str, Node]:
        a = tree.args
        if a.vararg or a.kwarg or a.posonlyargs or a.defaults or tree.decorator_list or tree.returns:
            raise _bad(tree, "only plain parameters are expected")
        inputs: dict[str, Node] = {}
        for parameter, default in zip([*a.args, *a.kwonlyargs], [*[None] * len(a.args), *a.kw_defaults], strict=True):
            if parameter.annotation is None:
                raise _bad(parameter, f"parameter {parameter.arg} has no type")
            types = self.type(parameter.annotation)
            key, name = _names(parameter, default)
            if key in inputs:
                raise _bad(parameter, f"two inputs are named {key!r}")
            inputs[key] = self.values[parameter.arg] = node(_op(parameter, "input"), (), {"name": name}, 0, types)
        return inputs

    def assign(self, statement: ast.Assign) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=op)) as call):
                if name in self.values:
                    raise _bad(statement, f"{name} is assigned twice")
                self.values[name] = self.call(op, call)
            case _:
                raise _bad(statement, "expected: name = op(sources, attributes)")

    def call(self, op: str, call: ast.Call) -> Node:
        src = tuple(self.source(a) for a in call.args)
        attrs: dict[str, Attr] = {}
        types: Types | None = None
        copy_id = 0
        for k in call.keywords:
            if k.arg is None or k.arg in attrs:
                raise _bad(call, "each attribute is given once, by name")
            if k.arg == "type":
                types = self.type(k.value)
            elif k.arg in ("copy_id", "again"):  # its name in older texts
                copy_id = self.value(k.value)
            else:
                attrs[k.arg] = self.value(k.value)
        try:
            return node(_op(call, op), src, attrs, copy_id, types)
        except TypeError as error:  # an attribute too many or too few
            raise _bad(call, str(error)) from None

    def source(self, tree: ast.expr) -> Node:
        if isinstance(tree, ast.Name) and tree.id in self.values:
            return self.values[tree.id]
        raise _bad(tree, f"{ast.unparse(tree)} is not a value defined above")

    def value(self, tree: ast.expr) -> Attr:
        match tree:
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return tree.value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                if type(inner := self.value(operand)) in (int, float):
                    return -inner
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name(id="nan"):
                return math.nan
            case ast.Name(id=name) if name in self.bodies:
                return self.bodies[name]
            case ast.Tuple(elts=elements):
                return tuple(map(self.value, elements))
            case ast.Call(func=ast.Name(id="base64"), args=[ast.Constant(value=str() as data)], keywords=[]):
                return base64.b64decode(data, validate=True)
            case ast.Call(func=ast.Name(id="nan"), args=[ast.Constant(value=str() as bits)], keywords=[]):
                return struct.unpack("<d", bytes.fromhex(bits))[0]
        raise _bad(tree, f"{ast.unparse(tree)} is no attribute")

    def type(self, tree: ast.expr) -> Types:
        match tree:
            case ast.Tuple(elts=elements):
                return tuple(self.tensor(e) for e in elements)
            case _:
                return self.tensor(tree)

    def tensor(self, tree: ast.expr) -> TensorType:
        match tree:
            case ast.Subscript(value=ast.Name(id=dtype), slice=index) if dtype in DTYPES:
                shape = self.value(index)
                shape = shape if isinstance(shape, tuple) else (shape,)
                if all(type(d) is int and d >= 0 for d in shape):
                    return TensorType(shape, dtype)
        raise _bad(tree, f"{ast.unparse(tree)} is no type; types look like f32[2,3] and f32[()]")

    def results(self, tree: ast.expr) -> dict[str, Node]:
        if not isinstance(tree, ast.Dict):
            raise _bad(tree, "results are a dict of names and values")
        found: dict[str, Node] = {}
        for key, value in zip(tree.keys, tree.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or key.value in found:
                raise _bad(tree, "the names of results are strings, each given once")
            found[key.value] = self.source(value)
        return found


def _bad(tree: ast.AST, message: str) -> FormatError:
    return FormatError(f"not the text of a graph, line {getattr(tree, 'lineno', '?')}: {message}")


def _op(tree: ast.AST, name: str) -> Op:
    if (op := OPS.get(RENAMED.get(name, name))) is None:
        raise _bad(tree, f"there is no op {name!r}")
    return op


def _names(parameter: ast.arg, default: ast.expr | None) -> tuple[str, str]:
    """Return the key of an input and the name of its leaf."""
    match default:
        case None:
            return parameter.arg, parameter.arg
        case ast.Constant(value=str() as key):
            return key, key
        case ast.Tuple(elts=[ast.Constant(value=str() as key), ast.Constant(value=str() as name)]):
            return key, name
    raise _bad(parameter, f"parameter {parameter.arg}: what follows = is the name of the input")


def show_plan(plan: Plan) -> str:
    """Return a plan as text, one line per launch: number, kernel, label, pattern, rule, buffers read and written; then
    totals.

    Below a scan is, indented, the plan of one iteration.
    """
    rows = [_launch(i, launch) for i, launch in enumerate(plan.launches)]
    widths = [max((len(row[c]) for row in rows), default=0) for c in range(5)]
    lines = []
    for row, launch in zip(rows, plan.launches, strict=True):
        lines.append("  ".join([*map(str.ljust, row[:5], widths), row[5]]))
        if launch.group.inner is not None:
            lines.append(textwrap.indent(show_plan(launch.group.inner), "     | ").removesuffix("\n"))
    constants = sum(map(len, plan.constants.values()))
    lines.append(
        f"# {pluralize(len(plan.launches), 'launch')}, {pluralize(len(plan.kernels), 'distinct kernel')}, "
        f"{plan.scratch_bytes} bytes of scratch, {plan.scalar_bytes} of scalars, {constants} of constants"
    )
    return "\n".join(lines) + "\n"


def _launch(index: int, launch: Launch) -> tuple[str, str, str, str, str, str]:
    reads = ", ".join(map(_buffer, launch.reads))
    writes = ", ".join(map(_buffer, launch.writes))
    moved = f"{reads or '-'} -> {writes or '-'}"
    if launch.workspace is not None:
        moved += f"; workspace {_buffer(launch.workspace)}"
    if launch.group.inplace:
        moved += "; in place " + ", ".join(f"{launch.writes[o].name}" for o, _ in launch.group.inplace)
    if launch.origin is not None:
        moved += f"  # {launch.origin}"
    return f"{index:03d}", launch.kernel, launch.label, launch.group.pattern, launch.candidate.described, moved


def _buffer(buffer: Buffer) -> str:
    place = buffer.space if buffer.offset is None else f"{buffer.space}@{buffer.offset:#x}"
    return f"{buffer.name}:{buffer.type}({place}, {_size(buffer.type.nbytes)})"


def _size(nbytes: int) -> str:
    return f"{nbytes} B" if nbytes < 1024 else f"{nbytes / 1024:.4g} KiB"
