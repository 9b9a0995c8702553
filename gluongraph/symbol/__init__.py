"""MXNet's symbol files: graphs of operators as JSON, read for SymbolBlock and written by HybridBlock.export."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gluongraph.errors import FormatError, MissingError, MXNetError, with_user_location
from gluongraph.host import json_text, params_file
from gluongraph.host.file_names import check_name
from gluongraph.host.lazy import imported_later
from gluongraph.storage import Array

__getattr__ = imported_later(__name__)

Entry = tuple[int, int]  # a node's number, and which of its outputs
VARIABLE = "null"  # the op of a node that is an input or a parameter
# Inputs that an operator writes in training: auxiliary states, which have no gradient.
AUXILIARY = dict.fromkeys(("BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm"), (3, 4))
VERSION = 10901  # the MXNet whose files these are: 1.9.1


@dataclass(frozen=True)
class SymbolNode:
    """An operator on outputs of other nodes, or a variable; `attrs` are texts."""

    op: str
    name: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Entry, ...] = ()


class Symbol:
    """Outputs of a graph of MXNet's operators. `nodes` stand in an order in which sources come first.

    >>> x, w = SymbolNode("null", "data"), SymbolNode("null", "fc_weight")
    >>> fc = SymbolNode("FullyConnected", "fc", {"num_hidden": "2", "no_bias": "True"}, ((0, 0), (1, 0)))
    >>> symbol = Symbol([x, w, fc], [(2, 0)])
    >>> symbol.list_arguments(), symbol.list_outputs(), load_json(symbol.tojson()) == symbol
    (['data', 'fc_weight'], ['fc_output'], True)
    """

    def __init__(self, nodes: Iterable[SymbolNode], heads: Iterable[Entry]):
        self.nodes, self.heads = tuple(nodes), tuple(heads)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and (self.nodes, self.heads) == (other.nodes, other.heads)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Symbol {', '.join(self.list_outputs())}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"a Symbol has no attribute {name!r}")
            advice = "blocks and operators take arrays; a Symbol is what a file holds"
            raise MissingError(with_user_location(f"Symbol.{name} does not exist", help=advice))

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, which: int | str) -> Symbol:
        """One of the outputs, by number or by name: 'fc_output', or 'fc'.

        Raises:
            ValueError: no output has that name.
        """
        if isinstance(which, int):
            return Symbol(self.nodes, [self.heads[which]])
        names = self.list_outputs()
        found = [h for h, n in zip(self.heads, names, strict=True) if which in (n, self.nodes[h[0]].name)]
        if not found:
            raise ValueError(f"no output {which!r}; there are {', '.join(names)}")
        return Symbol(self.nodes, found[:1])

    @property
    def name(self) -> str:
        """The name of the node behind the first output."""
        return self.nodes[self.heads[0][0]].name

    def used(self) -> list[int]:
        """The numbers of the nodes that the outputs need, in order."""
        needed = {h for h, _ in self.heads}
        for number in range(len(self.nodes) - 1, -1, -1):
            if number in needed:
                needed.update(source for source, _ in self.nodes[number].inputs)
        return sorted(needed)

    def _auxiliary(self) -> set[int]:
        return {
            self.nodes[n].inputs[place][0]
            for n in self.used()
            for place in AUXILIARY.get(self.nodes[n].op, ())
            if place < len(self.nodes[n].inputs)
        }

    def list_inputs(self) -> list[str]:
        """The names of all variables: inputs, parameters, auxiliary states."""
        return [self.nodes[n].name for n in self.used() if self.nodes[n].op == VARIABLE]

    def list_arguments(self) -> list[str]:
        """The names of inputs and parameters."""
        auxiliary = self._auxiliary()
        return [self.nodes[n].name for n in self.used() if self.nodes[n].op == VARIABLE and n not in auxiliary]

    def list_auxiliary_states(self) -> list[str]:
        """The names of variables that operators write in training: running statistics."""
        auxiliary = self._auxiliary()
        return [self.nodes[n].name for n in self.used() if n in auxiliary]

    def list_outputs(self) -> list[str]:
        """A name for each output: that of its node, and `_output`."""
        return [output_name(self.nodes[n], k) for n, k in self.heads]

    def get_internals(self) -> Symbol:
        """All nodes' first outputs as outputs: `symbol.get_internals()["relu0_fwd_output"]`."""
        return Symbol(self.nodes, [(n, 0) for n in self.used()])

    def tojson(self) -> str:
        """The text of a symbol file."""
        nodes = []
        for n in self.nodes:
            known: dict[str, Any] = {"op": n.op, "name": n.name}
            if n.attrs:
                known["attrs"] = dict(n.attrs)
            nodes.append({**known, "inputs": [[source, which, 0] for source, which in n.inputs]})
        variables = [i for i, n in enumerate(self.nodes) if n.op == VARIABLE]
        heads = [[n, k, 0] for n, k in self.heads]
        about = {"mxnet_version": ["int", VERSION]}
        return json.dumps({"nodes": nodes, "arg_nodes": variables, "heads": heads, "attrs": about}, indent=2)

    def save(self, fname: str) -> None:
        """Write the text to a file.

        Raises:
            ArgumentError: the name of the file is empty.
        """
        check_name("Symbol.save", fname, "symbol.save('net-symbol.json')")
        params_file.whole(fname, lambda file: file.write(self.tojson().encode()))


def output_name(node: SymbolNode, which: int) -> str:
    """What MXNet calls an output of a node: its name and `_output`, numbered from the second on."""
    if node.op == VARIABLE:
        return node.name
    return f"{node.name}_output{which}" if which else f"{node.name}_output"


def load(fname: str | os.PathLike[str]) -> Symbol:
    """Read a symbol file.

    Raises:
        ArgumentError: the name of the file is empty.
        FormatError: it is none.
    """
    check_name("sym.load", fname, "mx.sym.load('net-symbol.json')")
    with open(fname, encoding="utf-8") as file:
        return load_json(file.read(), str(fname))


def load_json(json_str: str, what: str = "the text") -> Symbol:
    """Read the text of a symbol file. Raises FormatError if it is none."""
    try:
        found = json_text.parse(json_str)
        nodes = [
            SymbolNode(
                n["op"],
                n["name"],
                {k: str(v) for k, v in {**n.get("param", {}), **n.get("attr", {}), **n.get("attrs", {})}.items()},
                tuple((int(i[0]), int(i[1])) for i in n["inputs"]),
            )
            for n in found["nodes"]
        ]
        heads = [(int(h[0]), int(h[1])) for h in found["heads"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(f"{what} is no symbol file of MXNet: {type(error).__name__} {error}") from None
    for number, n in enumerate(nodes):
        if any(not 0 <= source < number for source, _ in n.inputs):
            raise FormatError(f"{what}: node {n.name!r} reads nodes that do not come before it")
    if any(not 0 <= n < len(nodes) for n, _ in heads):
        raise FormatError(f"{what}: an output that is no node")
    return Symbol(nodes, heads)


def write(path: str, epoch: int, symbol: Symbol, arrays: Mapping[str, Array]) -> tuple[str, str]:
    """Write path-symbol.json and path-<epoch>.params, which MXNet loads; gives their names.

    Raises:
        ArgumentError: the name of the file is empty.
    """
    check_name("export", path, "net.export('net')")
    symbol_file, params_name = f"{path}-symbol.json", f"{path}-{epoch:04d}.params"
    auxiliary = set(symbol.list_auxiliary_states())
    names = [n for n in symbol.list_inputs() if n in arrays]
    kinds = ["aux" if n in auxiliary else "arg" for n in names]
    params_file.write(params_name, [arrays[n] for n in names], [f"{k}:{n}" for k, n in zip(kinds, names, strict=True)])
    symbol.save(symbol_file)
    return symbol_file, params_name


def var(name: str, **attrs: Any) -> Symbol:
    """A variable: names an input of a SymbolBlock."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a variable is a text, not {name!r}")
    return Symbol([SymbolNode(VARIABLE, name)], [(0, 0)])


Variable = var


def Group(symbols: Sequence[Symbol]) -> Symbol:
    """Outputs of one graph together. Raises MXNetError for symbols of several graphs."""
    if len({id(s.nodes) for s in symbols}) != 1:
        raise MXNetError("Group: the symbols belong to different graphs; take them from one get_internals()")
    return Symbol(symbols[0].nodes, [h for s in symbols for h in s.heads])


__all__ = ["Group", "Symbol", "SymbolNode", "Variable", "load", "load_json", "var", "write"]
