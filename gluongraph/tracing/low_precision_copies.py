"""16-bit copies of float32 weights: contractions read them, and the kernel that updates a weight writes its copy.

A copy belongs to the memory of its weight, so all compiled calls that multiply with it share it, whatever step they are
of. Who writes into the weight otherwise counts up `storage.writes()`, and copies are made anew before their next use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from gluongraph import ops
from gluongraph import storage as storages
from gluongraph.dtypes import numpy_dtype
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.rewrite import rebuild
from gluongraph.ndarray import NDArray
from gluongraph.storage import View, aligned_empty
from gluongraph.tracing.optimizer_updates import joined, state_name


def copied(graph: Graph, state: Mapping[str, NDArray], low: str) -> tuple[Graph, dict[str, NDArray]]:
    """The graph with copies as inputs where it rounds weights to `low`, written where the weights are; and the copies
    by their names: "dense0_weight/bf16"."""
    names = {graph.inputs[name]: name for name, array in state.items() if name in graph.inputs and _is_whole(array)}
    roundings = {n: w for n in graph.nodes() if n.op.name == "cast" and n.dtype == low and (w := _moved(n)) in names}
    if not roundings:
        return graph, {}
    weights = {state_name(names[w], low): w for w in roundings.values()}
    inputs = {copy: leaf(copy, TensorType(w.shape, low)) for copy, w in weights.items()}
    input_of = {w: inputs[copy] for copy, w in weights.items()}

    def read(n: Node) -> Node:
        return input_of[n] if n in input_of else n.on(tuple(map(read, n.src)))

    whole = Graph(joined(graph.inputs, inputs), graph.outputs, graph.updates, graph.origins)
    made = rebuild(whole, lambda n: read(n.src[0]) if n in roundings else n)
    news = {copy: made.updates.get(names[w]) for copy, w in weights.items()}
    updates = {**made.updates, **{copy: ops.cast(new, low) for copy, new in news.items() if new is not None}}
    copies = {copy: copy_of(state[names[w]], low) for copy, w in weights.items()}
    return made.with_results(made.outputs, updates), copies


def _is_whole(array: NDArray) -> bool:
    return array.type.dtype == "f32" and not isinstance(array.storage, View)


def _moved(n: Node) -> Node:
    """Return the value that is rounded, before movement."""
    (n,) = n.src
    while n.op.kind == "movement" and len(n.src) == 1:
        (n,) = n.src
    return n


def copy_of(weight: NDArray, low: str) -> NDArray:
    """Return the copy of a weight; allocate it if there is none yet."""
    memory = weight.storage
    if low not in memory.copies:
        storages.keep(memory, low, NDArray(aligned_empty(weight.shape, numpy_dtype(low)), weight.context))
    copy: NDArray = memory.copies[low]
    return copy


class Copies:
    """The copies of weights that a compiled call reads and writes."""

    def __init__(self, updates: Collection[str], state: Mapping[str, NDArray], low: str | None):
        names = {name: state_name(name, low) for name in state} if low is not None else {}
        self.pairs = [(state[name].storage, state[copy].storage) for name, copy in names.items() if copy in state]
        self.written = [
            (state[name].storage, low if names.get(name) in updates else None) for name in updates if name in state
        ]
        self.seen = self.known = -1
        self.spoils = False  # does a call write weights without writing all of their copies?

    def before(self) -> None:
        """Recompute the copies that are read if their weights may have been written by other code."""
        now = storages.writes()
        if self.seen == now and not (storages.lent() and any(weight.lent for weight, _ in self.pairs)):
            return
        with np.errstate(all="ignore"):
            for weight, copy in self.pairs:
                copy.array[...] = weight.array
        self.seen = now

    def after(self) -> None:
        """Record the writes of a call."""
        if self.known != (known := storages.copies()):
            self.known = known
            self.spoils = any(weight.copies.keys() - {low} for weight, low in self.written)
        if self.spoils:
            for weight, _ in self.written:
                weight.written()
            self.seen = storages.writes()
