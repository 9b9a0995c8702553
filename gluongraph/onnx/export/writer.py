"""From a graph to ONNX's: terms become operators with names of the layers that they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name
from gluongraph.ir.graph import Node, topological
from gluongraph.onnx.export.rules.extents import Extent, Free
from gluongraph.onnx.export.rules.terms import Body, Made, Several, Sizes, Source, Term
from gluongraph.onnx.export.rules.view import View
from gluongraph.onnx.format.model import NUMBERS
from gluongraph.onnx.format.package import onnx
from gluongraph.storage import Array

Extents = tuple[Extent, ...]
FOLDED = 1 << 12  # elements of a constant that is written out rather than repeated
SMALL = 16  # elements of a constant whose equals share one initializer


@dataclass(frozen=True)
class Value:
    """A value of the file; its shape may be smaller than its node's, as numpy would broadcast it."""

    name: str
    shape: Extents


class Names:
    """Names that are given once in a file."""

    def __init__(self, taken: Sequence[str]):
        self.taken = set(taken)

    def free(self, wanted: str) -> str:
        """The name, with a number if it is taken."""
        name, number = wanted, 0
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name


class Writer:
    """Writes one graph; the bodies of loops are written by writers of their own, which know the values around them."""

    def __init__(self, view: View, names: Names, batch: tuple[str, int] | None):
        self.view, self.names, self.batch = view, names, batch
        self.protos: list[Any] = []
        self.initializers: list[Any] = []
        self.values: dict[Node, Value | tuple[Value | None, ...]] = {}
        self.numbers: dict[tuple[Any, ...], str] = {}  # small constants, by their bits
        self.arrays: dict[str, Array] = {}  # those that are initializers here
        self.given: set[str] = set()  # the outputs of the graph
        self.captured: set[str] = set()  # what bodies read from around them
        self.scope = ""

    # -- the graph

    def leaf(self, n: Node, name: str) -> None:
        """An input of the graph is the value of this name."""
        self.values[n] = Value(name, self.view.sizes(n))

    def write(self, results: Sequence[Node]) -> None:
        """The operators for these nodes; leaves have values already."""
        order = topological(results)
        wanted, plan = set(results), {}
        for n in reversed(order):
            if n in wanted and n not in self.values:
                plan[n] = made = self.view.made(n)
                wanted.update(_read(made))
        for n in order:
            if n in plan:
                origin = self.view.origins.get(n)
                self.scope = origin.scope if origin is not None else ""
                self.values[n] = self._made(n, plan[n])

    def _made(self, n: Node, made: Made) -> Value | tuple[Value | None, ...]:
        if isinstance(made, Node):
            found = self.values[made]
            if isinstance(found, tuple):
                picked = found[n.attrs["index"]]
                assert picked is not None
                return picked
            return found
        if isinstance(made, Several):
            return self._several(n, made)
        if made.op == "Constant":
            array = made.inputs[0]
            assert isinstance(array, np.ndarray)
            return Value(self.constant(array), array.shape)
        return self._value(n, made)

    def _value(self, n: Node, made: Term) -> Value:
        if made.op == "Reshape" and isinstance(made.inputs[0], Node):
            source = self._of(made.inputs[0])
            if source.shape == ():  # one number, which its readers repeat
                return source
        sizes = self.view.sizes(n)
        if made.op == "Unsqueeze" and isinstance(made.inputs[0], Node):
            source = self._of(made.inputs[0])
            added = len(sizes) - len(source.shape)
            if sizes[added:] == source.shape and all(k == 1 for k in sizes[:added]):
                return source  # axes in front, which its readers add
        name = self._term(made)
        return Value(name, self._broadcast(made, sizes) if made.broadcasts else sizes)

    def _broadcast(self, made: Term, sizes: Extents) -> Extents:
        """The shape of an operator on elements."""
        shapes: list[Extents] = []
        for source in made.inputs:
            if isinstance(source, Node):
                shapes.append(self._of(source).shape)
            elif isinstance(source, Term):
                if not source.broadcasts:
                    return sizes
                shapes.append(self._broadcast(source, sizes))
            elif isinstance(source, np.ndarray):
                shapes.append(source.shape)
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(s)) + s for s in shapes]
        return tuple(next((k for k in column if k != 1), 1) for column in zip(*padded, strict=True))

    def _several(self, n: Node, made: Several) -> tuple[Value | None, ...]:
        count = max(k for k in made.outputs if k is not None) + 1
        names = self._operator(made.term, count)
        shapes = (self.view.pairs.sizes(n, k) for k in range(len(n.types)))
        return tuple(
            None if k is None else Value(names[k], shape) for k, shape in zip(made.outputs, shapes, strict=True)
        )

    # -- operators

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, name: str = "", **attrs: Any) -> list[str]:
        """Write one operator; the names of its outputs."""
        name = self.names.free(name or (f"{self.scope}/{op}" if self.scope else op))
        results = [name, *(self.names.free(f"{name}:{k}") for k in range(1, outputs))]
        self.protos.append(onnx("helper").make_node(op, inputs, results, name, **attrs))
        return results

    def _term(self, made: Term) -> str:
        return self._operator(made, made.output + 1)[made.output]

    def _operator(self, made: Term, outputs: int) -> list[str]:
        inputs = [self._source(s, made.broadcasts) for s in made.inputs]
        attrs = {k: self._body(v) if isinstance(v, Body) else v for k, v in made.attrs.items()}
        return self.emit(made.op, inputs, outputs, **attrs)

    def _source(self, source: Source, broadcasts: bool) -> str:
        if source is None:
            return ""
        if isinstance(source, Node):
            return self._of(source).name if broadcasts else self.whole(source)
        if isinstance(source, Term):
            return self._term(source)
        if isinstance(source, Sizes):
            return self.sizes(source.extents)
        return self.constant(source)

    def _of(self, n: Node) -> Value:
        found = self.values[n]
        assert isinstance(found, Value), n
        return found

    def whole(self, n: Node) -> str:
        """The value with the very shape that the node has."""
        value, wanted = self._of(n), self.view.sizes(n)
        if value.shape == wanted:
            return value.name
        missing = len(wanted) - len(value.shape)
        front: Extents = (1,) * missing + value.shape
        if front == wanted:
            return self.emit("Unsqueeze", [value.name, self.sizes(tuple(range(missing)))])[0]
        numbers = self.arrays.get(value.name)
        if numbers is not None and all(isinstance(k, int) for k in wanted) and math.prod(n.shape) <= FOLDED:
            return self.constant(np.broadcast_to(numbers, n.shape))
        needed = tuple(1 if a == b else b for a, b in zip(front, wanted, strict=True))
        return self.emit("Expand", [value.name, self.sizes(needed)])[0]

    # -- numbers

    def constant(self, array: Array) -> str:
        """The name of an initializer with these numbers; equal small ones are one."""
        key = (array.dtype.str, array.shape, array.tobytes() if array.size <= SMALL else id(array))
        if array.size > SMALL or (found := self.numbers.get(key)) is None:
            found = self.numbers[key] = self.names.free("constant")
            self.arrays[found] = array
            self.initializers.append(tensor(found, array))
        return found

    def sizes(self, extents: Extents) -> str:
        """The name of a vector of extents, computed from the batch where they follow it."""
        if not any(isinstance(n, Free) for n in extents):
            return self.constant(np.array(extents, np.int64))
        parts = [self._extent(n) if isinstance(n, Free) else self.constant(np.array([n], np.int64)) for n in extents]
        return parts[0] if len(parts) == 1 else self.emit("Concat", parts, name="sizes", axis=0)[0]

    def _extent(self, n: Free) -> str:
        assert self.batch is not None
        source, axis = self.batch
        (size,) = self.emit("Shape", [source], name="batch_size", start=axis, end=axis + 1)
        return size if n.times == 1 else self.emit("Mul", [size, self.sizes((n.times,))], name="batch_size")[0]

    # -- loops

    def _body(self, body: Body) -> Any:
        """The graph of one turn."""
        view = View(body.graph, self.view.pairs, self.view.origins)
        inner, inputs = Writer(view, self.names, self.batch), []
        inner.scope = self.scope
        for key, leaf in body.graph.inputs.items():
            if leaf in body.outer:
                inner.leaf(leaf, self.whole(body.outer[leaf]))
                self.captured.add(inner._of(leaf).name)
                continue
            inner.leaf(leaf, self.names.free(key))
            inputs.append(declared(inner._of(leaf).name, leaf.dtype, view.sizes(leaf)))
        inner.write(body.results)
        outputs = [inner.result(n, f"result{k}") for k, n in enumerate(body.results)]
        return onnx("helper").make_graph(inner.protos, "turn", inputs, outputs, inner.initializers)

    def result(self, n: Node, wanted: str) -> Any:
        """The declaration of an output of this name, and the value under it."""
        found, name = self.whole(n), self.names.free(wanted)
        maker = next((p for p in self.protos if found in p.output), None)
        if maker is None or found in self.given or found in self.captured:
            self.protos.append(onnx("helper").make_node("Identity", [found], [name], name))
        else:
            for proto in self.protos:
                proto.input[:] = [name if i == found else i for i in proto.input]
                proto.output[:] = [name if o == found else o for o in proto.output]
            self.values = {
                k: Value(name, v.shape) if isinstance(v, Value) and v.name == found else v
                for k, v in self.values.items()
            }
        self.given.add(name)
        return declared(name, n.dtype, self.view.sizes(n))


def _read(made: Made) -> Iterator[Node]:
    """The nodes that must be written first."""
    if isinstance(made, Node):
        yield made
        return
    term = made.term if isinstance(made, Several) else made
    yield from term.nodes()
    for attr in term.attrs.values():
        if isinstance(attr, Body):
            yield from attr.outer.values()


def declared(name: str, dtype: str, shape: Extents, batch: str = "batch") -> Any:
    """The declaration of a value."""
    names = [n if isinstance(n, int) else batch if n.times == 1 else f"{n.times}*{batch}" for n in shape]
    return onnx("helper").make_tensor_value_info(name, NUMBERS[dtype], names)


def tensor(name: str, array: Array) -> Any:
    """An array as an initializer."""
    array = np.asarray(array, order="C")  # ascontiguousarray gives an array without axes one
    proto = onnx().TensorProto(name=name, data_type=NUMBERS[dtype_name(array.dtype)], dims=array.shape)
    proto.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return proto
