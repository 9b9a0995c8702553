"""A training step as ONNX: the IR's own ops as operators of the domain `gluongraph`, and back to the identical graph.

Forward, backward and update are one graph. Its operators are those of `gluongraph ops`, with the attributes that they
have there: integers and tuples of integers as such, the bodies of loops as graphs, all else as a text of JSON, which
keeps every bit; functions of the file say what they mean in standard operators. The arrays that a step writes are
initializers, and `training_info` says which output is their next value, as ONNX has it for training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gluongraph.errors import FormatError
from gluongraph.host import json_text
from gluongraph.ir import serialize
from gluongraph.ir.graph import Attr, Graph, topological
from gluongraph.onnx.export.functions import Functions, op_of
from gluongraph.onnx.export.prediction import OPSET, assembled
from gluongraph.onnx.export.writer import Names, declared, tensor
from gluongraph.onnx.format.model import DTYPES
from gluongraph.onnx.format.package import onnx
from gluongraph.onnx.format.reader import DEEPEST, parsed, text
from gluongraph.onnx.format.tensors import array_of
from gluongraph.storage import Array

DOMAIN, VERSION = "gluongraph", 1
Json = Any
LARGEST_INT = 1 << 63


def program(graph: Graph, arrays: Mapping[str, Array], title: str) -> Any:
    """The ModelProto of a step's graph; `arrays` are those inputs whose numbers go with it."""
    writer = _Writer(serialize.to_data(graph, origins=False)["graphs"])
    proto = writer.graph(-1, title, "", graph)
    proto.initializer.extend(tensor(name, a) for name, a in arrays.items())
    model = assembled(proto, {"": OPSET, DOMAIN: VERSION}, writer.functions.protos)
    binding = model.training_info.add().update_binding
    outputs = [v.name for v in proto.output][len(graph.outputs) :]
    for name, output in zip(graph.updates, outputs, strict=True):
        binding.add(key=name, value=output)
    return model


class _Writer:
    """Writes rows of `serialize.to_data` as operators."""

    def __init__(self, graphs: list[Json]):
        self.graphs, self.bodies = graphs, 0
        self.functions = Functions(DOMAIN, OPSET)

    def graph(self, number: int, title: str, prefix: str, graph: Graph) -> Any:
        """The graph of that number; names in bodies begin with `prefix`, so that they hide none around them."""
        data, helper = self.graphs[number], onnx("helper")
        keys = {i: name for name, i in data["inputs"]}
        names = Names([prefix + name for name in keys.values()])
        values = {i: [prefix + name] for i, name in keys.items()}
        order = topological((*graph.inputs.values(), *graph.results))  # the same as in the rows
        nodes, inputs, outputs, inner = [], [], [], []
        for i, (op, sources, attrs, types, *again) in enumerate(data["nodes"]):
            if i in keys:
                inputs.append(_declared(values[i][0], types, [keys[i], attrs["name"]]))
                continue
            types = types if isinstance(types, list) else [types]
            count = len(types)
            values[i] = [names.free(f"{prefix}v{i}" + (f".{k}" if count > 1 else "")) for k in range(count)]
            inner += [_declared(v, t) for v, t in zip(values[i], types, strict=True)]
            read = [values[s][attrs["index"] if op == "get_tuple_element" else 0] for s in sources]
            how = {name: self._attribute(value, order[i].attrs.get(name)) for name, value in attrs.items()}
            how |= {"again": again[0]} if again else {}
            origin, called = graph.origins.get(order[i]), self.functions.name(order[i], list(how))
            name = names.free(f"{origin.scope}/{op}" if origin and origin.scope else op)
            nodes.append(helper.make_node(called, read, values[i], name, str(origin or "") or None, DOMAIN, **how))
        for part in ("outputs", "updates"):
            for key, i in data[part]:
                name = names.free(f"{prefix}{key}" if part == "outputs" else f"{prefix}{key}/next")
                nodes.append(helper.make_node("Identity", [values[i][0]], [name], names.free(f"{name}/Identity")))
                outputs.append(_declared(name, data["nodes"][i][3], [key]))
        given = [prefix + name for name, _ in data["inputs"]]
        inputs.sort(key=lambda v: given.index(v.name))
        return helper.make_graph(nodes, title, inputs, outputs, value_info=inner)

    def _attribute(self, value: Json, meant: Attr) -> Any:
        match value:
            case int() if type(value) is int and -LARGEST_INT <= value < LARGEST_INT:
                return value
            case [_, *_] if all(type(n) is int and -LARGEST_INT <= n < LARGEST_INT for n in value):
                return value
            case {"graph": number}:
                self.bodies += 1
                return self.graph(number, f"body{self.bodies}", f"body{self.bodies}.", meant)
        return json.dumps(value)


def _declared(name: str, type: Json, about: list[str] | None = None) -> Any:
    """The declaration of a value, and the names that the IR has for it."""
    kind = serialize.type_of(type)
    proto = declared(name, kind.dtype, kind.shape)
    proto.doc_string = json.dumps(about) if about else ""
    return proto


# -- reading


def load_graph(source: Any) -> tuple[Graph, dict[str, Array]]:
    """The graph of a training step that `TrainStep.export_onnx` wrote, and the arrays that go with it, by input.

    Raises:
        ArgumentError: the name of the file is empty.
        FileNotFoundError: there is no such file.
        FormatError: it is no such file, or one that contradicts itself.

    >>> import tempfile
    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    >>> net.initialize(mx.init.One())
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
    >>> loss = step(x, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     step.export_onnx(folder + "/step.onnx")
    ...     graph, arrays = mx.onnx.load_graph(folder + "/step.onnx")
    >>> "d_weight" in graph.updates, arrays["d_weight"].shape
    (True, (1, 2))
    """
    proto, what, folder = parsed(source, "onnx.load_graph")
    graphs: list[Json] = []
    _Reader(what, graphs).graph(proto.graph, {}, 0)
    bound = {text(b.key, what): text(b.value, what) for t in proto.training_info for b in t.update_binding}
    data = graphs[-1]
    names = {text(v.name, what): v for v in proto.graph.output}
    if strange := [output for output in bound.values() if output not in names]:
        raise FormatError(f"{what}: the next value of an input is the output {strange[0]!r}, which does not exist")
    results = dict(zip(names, data["outputs"], strict=True))
    data["updates"] = [[key, results[output][1]] for key, output in bound.items()]
    data["outputs"] = [row for name, row in results.items() if name not in bound.values()]
    graph = serialize.from_data({"format": serialize.FORMAT, "version": serialize.VERSION, "graphs": graphs})
    arrays = {text(t.name, what): array_of(t, what, folder) for t in proto.graph.initializer}
    for name, array in arrays.items():
        if name not in graph.inputs or graph.inputs[name].shape != array.shape:
            raise FormatError(f"{what}: the initializer {name!r} is no input of that shape")
    return graph, arrays


class _Reader:
    """Makes rows for `serialize.from_data` of operators; that checks them."""

    def __init__(self, what: str, graphs: list[Json]):
        self.what, self.graphs = what, graphs

    def graph(self, proto: Any, known: Mapping[str, int], depth: int) -> int:
        """Append a graph behind those within it; its number."""
        if depth > DEEPEST:
            raise FormatError(f"{self.what}: more than {DEEPEST} graphs within one another")
        rows: list[Json] = []
        values: dict[str, int] = {}
        inputs, outputs = [], []
        for value in proto.input:
            key, name = self._about(value, 2)
            values[value.name] = len(rows)
            inputs.append([key, len(rows)])
            rows.append(["input", [], {"name": name}, self._type(value)])
        types = {v.name: v for v in proto.value_info}
        for n in proto.node:
            sources = [self._value(values, name) for name in n.input]
            if not n.domain and n.op_type == "Identity" and len(sources) == len(n.output) == 1:
                values[n.output[0]] = sources[0]
                continue
            if n.domain != DOMAIN:
                raise FormatError(f"{self.what}: {n.op_type!r} is not of the domain {DOMAIN!r}")
            attrs = {text(a.name, self.what): self._attribute(a, depth) for a in n.attribute}
            again = [attrs.pop("again")] if "again" in attrs else []
            made = [self._type(types.get(name)) for name in n.output]
            values.update(dict.fromkeys(n.output, len(rows)))
            rows.append([op_of(n.op_type), sources, attrs, made if len(made) != 1 else made[0], *again])
        for value in proto.output:
            outputs.append([self._about(value, 1)[0], self._value(values, value.name)])
        self.graphs.append({"nodes": rows, "inputs": inputs, "outputs": outputs, "updates": []})
        return len(self.graphs) - 1

    def _value(self, values: Mapping[str, int], name: str) -> int:
        if name not in values:
            raise FormatError(f"{self.what}: {name!r} is read, and nothing before makes it")
        return values[name]

    def _about(self, value: Any, count: int) -> list[str]:
        """The names that the IR has for a value."""
        try:
            found = json_text.parse(value.doc_string)
        except ValueError:
            found = None
        if not isinstance(found, list) or len(found) != count or not all(isinstance(n, str) for n in found):
            raise FormatError(f"{self.what}: {value.name!r} does not say what it is; no training step wrote this file")
        return found

    def _type(self, value: Any) -> str:
        if value is None or value.type.tensor_type.elem_type not in DTYPES:
            raise FormatError(f"{self.what}: a value without a type")
        about = value.type.tensor_type
        return f"{DTYPES[about.elem_type]}[{','.join(str(d.dim_value) for d in about.shape.dim)}]"

    def _attribute(self, a: Any, depth: int) -> Json:
        kinds = a.AttributeType
        if a.type == kinds.INT:
            return a.i
        if a.type == kinds.INTS:
            return list(a.ints)
        if a.type == kinds.GRAPH:
            return {"graph": self.graph(a.g, {}, depth + 1)}
        try:
            return json_text.parse(a.s)
        except ValueError:
            raise FormatError(f"{self.what}: the attribute {a.name!r} is {a.s!r}, which is no JSON") from None
