"""Hybridized blocks: forward and backward of a whole block, each one compiled call.

The block is traced for given input types and mode. Under `autograd.record()` its graph is differentiated and cut in
two: a forward that also returns the values which the backward reads, and the backward. On the tape it is one entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import debug, random
from gluongraph import storage as storages
from gluongraph.context import current_context
from gluongraph.dtypes import numpy_dtype
from gluongraph.eager.function import leaf, spans
from gluongraph.eager.row_sparse import Rows
from gluongraph.eager.row_sparse_updates import row_gradient
from gluongraph.eager.tape import STATE, Entry, sources_of, tracked
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host import services
from gluongraph.ir.graph import Graph, Node, topological
from gluongraph.ndarray import NDArray
from gluongraph.ops import get_tuple_elements
from gluongraph.ops.autodiff import depended_on, gradients, zeros
from gluongraph.storage import Array
from gluongraph.tracing.tracer import Traced, is_argument, is_rng, scope, trace

if TYPE_CHECKING:
    from gluongraph.gluon.hybrid_block import HybridBlock

Words = Mapping[str, tuple[int, int, int, int]]  # the states of generators, by the inputs that read them
SAVED = "saved"
HEAD = "head"
BY_ROWS = 2


class CachedOp:
    """A hybrid block as a callable that traces and compiles once per input types and mode."""

    def __init__(self, block: HybridBlock):
        self._block = block
        self._traces: dict[tuple[Any, ...], _Block] = {}
        self.example: tuple[Any, ...] | None = None  # the types of the last new kind of arguments
        self.in_python: str | None = None  # why the block cannot be traced, and runs in eager mode

    def __call__(self, *args: Any) -> Any:
        arrays: list[NDArray] = []
        here = current_context()
        key = (STATE.training, here, debug.how(), _key(args, arrays))
        if any(a._ctx is not here and a._ctx != here for a in arrays):
            raise ValueError(_scattered(self._block.name, arrays))
        held = self._traces.get(key)
        if held is None or not held.traced.holds:
            self.example = _typed(args)
            held = self._traces[key] = _Block(trace(self._body, args, training=STATE.training))
        if spans:
            with spans[0](f"CachedOp {self._block.name}"):
                return held(arrays)
        return held(arrays)

    def _body(self, *args: Any) -> Any:
        with scope(self._block.name):
            return self._block._run(*args)


def _typed(part: Any) -> Any:
    """The arguments with types in place of arrays."""
    if isinstance(part, NDArray):
        return part.type
    return type(part)(_typed(p) for p in part) if isinstance(part, (tuple, list)) else part


def _scattered(name: str, arrays: Sequence[NDArray]) -> str:
    where = " and ".join(dict.fromkeys(str(a.context) for a in arrays))
    return with_user_location(
        f"arguments of the hybridized block {name!r} lie on {where}", help="bring them to one context"
    )


def _key(part: Any, arrays: list[NDArray]) -> Any:
    """The structure of the arguments with types in place of arrays, which are collected in order."""
    if isinstance(part, NDArray):
        arrays.append(part)
        array = part.storage.array
        return array.shape, array.dtype.num
    if isinstance(part, (tuple, list)):
        return (type(part).__name__, *[_key(p, arrays) for p in part])
    if part is None or isinstance(part, (bool, int, float, str)):
        return type(part).__name__, part
    raise MXNetError(
        with_user_location(
            f"a hybridized block was called with a {type(part).__name__}",
            help="its arguments are arrays, None, numbers, or lists of those; call hybridize(False) for others",
        )
    )


class _Block:
    """One trace of a block: as it is for prediction, and cut into forward and backward for recording."""

    def __init__(self, traced: Traced):
        self.traced = traced
        self.captured = list(traced.captured.items())
        self._plain: Runner | None = None
        self._recorded: dict[tuple[int, ...], _Recorded | None] = {}

    def __call__(self, arrays: Sequence[NDArray]) -> Any:
        if not self.traced.draws:
            return self._run(arrays)
        with random.undone_on_error(self.traced.draws):
            return self._run(arrays)

    def _run(self, arrays: Sequence[NDArray]) -> Any:
        given = {f"data{i}": np.ascontiguousarray(a.storage.array) for i, a in enumerate(arrays)}
        words = random.take_all(self.traced.draws)
        if STATE.recording:
            mask = tuple([_wish(a) for a in arrays] + [_wish(a) for _, a in self.captured])
            if mask not in self._recorded:
                self._recorded[mask] = _record(self.traced, mask)
            if (recorded := self._recorded[mask]) is not None:
                return recorded(arrays, given, words)
        if self._plain is None:
            self._plain = Runner(self.traced.graph, self.traced.captured)
        results = self._plain(given, words)
        ctx = arrays[0].context if arrays else current_context()
        return self.traced.restore({name: NDArray(value, ctx) for name, value in results.items()})


def _wish(array: NDArray) -> int:
    """What is wanted of the gradient of an array: 0 nothing, 1 all of it, BY_ROWS the rows that it touches."""
    if not tracked(array):
        return 0
    return BY_ROWS if array._leaf is not None and array._leaf.by_rows is not None else 1


class _Recorded:
    """The two halves, and the gradient that the tape keeps (see `gluongraph.eager.tape.Gradient`).

    `wants` tells of each argument whether a gradient flows to it, `constant` whether the outputs depend on it without.
    `by_rows` has for each gradient the shape of the array if it comes as numbers of rows and values, else None.
    """

    def __init__(
        self,
        traced: Traced,
        forward: Graph,
        backward: Graph,
        wants: Sequence[bool],
        by_rows: Sequence[tuple[int, ...] | None],
        constant: Sequence[bool],
    ):
        self.traced, self.wants, self.by_rows = traced, tuple(wants), tuple(by_rows)
        self.constant = tuple(constant)
        self.outputs = tuple(traced.graph.outputs)
        self.zeros = tuple((n.shape, numpy_dtype(n.dtype)) for n in traced.graph.outputs.values())
        self._forward = Runner(forward, traced.captured)
        self._backward = Runner(backward, traced.captured)
        self._saves = tuple(n for n in backward.inputs if n.startswith((SAVED, "data")))
        self._heads = {f"{HEAD}{i}": i for i in range(len(self.zeros)) if f"{HEAD}{i}" in backward.inputs}

    def __call__(self, arrays: Sequence[NDArray], given: Mapping[str, Array], words: Words) -> Any:
        """Forward, written on the tape."""
        results = self._forward(given, words)
        saved = tuple(results[n] if n in results else given[n] for n in self._saves)
        ctx = arrays[0].context if arrays else current_context()
        outputs = [NDArray(results[n], ctx) for n in self.outputs]
        args = (*arrays, *self.traced.captured.values())
        parents, constants = sources_of(args, self.wants), sources_of(args, self.constant)
        states = [NDArray(np.array(state, np.uint32), ctx) for state in words.values()]
        entry = Entry(self, (words, *saved), parents, (*args, *states), constants)
        for i, output in enumerate(outputs):
            output._source = (entry, i)
        return self.traced.restore(dict(zip(self.outputs, outputs, strict=True)))

    @property
    def backward(self) -> Callable[..., Sequence[Array | Rows]]:
        """backward(words, *saved, *heads): the gradients that are wanted."""
        return self._pull

    def _pull(self, words: Words, *values: Any) -> Sequence[Array | Rows]:
        saved, heads = values[: len(self._saves)], values[len(self._saves) :]
        given = dict(zip(self._saves, saved, strict=True))
        given.update((name, np.ascontiguousarray(heads[i])) for name, i in self._heads.items())
        found = iter(self._backward(given, words).values())
        return [next(found) if shape is None else Rows(next(found), next(found), shape) for shape in self.by_rows]

    def again(self, *given: Node) -> tuple[Node, ...]:
        """The gradient as a builder on the arguments and the heads, for a gradient of the gradient."""
        graph = self.traced.graph
        names = [*(n for n in graph.inputs if n.startswith("data")), *self.traced.captured]
        names += list(self.traced.draws)
        arguments, heads = given[: len(names)], given[len(names) :]
        table = {graph.inputs[n]: a for n, a in zip(names, arguments, strict=True) if n in graph.inputs}
        _rebuild(graph.outputs.values(), table)
        wrt = [a for a, wanted in zip(arguments, self.wants, strict=False) if wanted]
        found = gradients([table[n] for n in graph.outputs.values()], heads, wrt)
        return tuple(zeros(x.ty) if g is None else g for x, g in zip(wrt, found, strict=True))


def _record(traced: Traced, mask: Sequence[int]) -> _Recorded | None:
    """Differentiate and cut; None if the outputs depend on nothing that the mask names."""
    graph = _inlined(traced.graph)
    names = [*(n for n in graph.inputs if n.startswith("data")), *traced.captured]
    wrt = [graph.inputs[n] for n, wanted in zip(names, mask, strict=True) if wanted]
    outputs = list(graph.outputs.values())
    heads = [None if n.dtype == "bool" else leaf(f"{HEAD}{i}", n.ty) for i, n in enumerate(outputs)]
    origins = dict(graph.origins)
    found = gradients(outputs, heads, wrt, origins=origins)
    reached = iter(found)
    wants = [bool(wanted) and next(reached) is not None for wanted in mask]
    known = depended_on(outputs)
    flows = zip(names, mask, wants, strict=True)
    constant = [bool(w) and not wanted and (is_argument(n) or graph.inputs[n] in known) for n, w, wanted in flows]
    if not any(wants) and not any(constant):
        return None
    wishes = [wish for wish, wanted in zip(mask, wants, strict=True) if wanted]
    grads = [g for g in found if g is not None]
    parts = [(wish == BY_ROWS and row_gradient(g)) or (g,) for wish, g in zip(wishes, grads, strict=True)]
    by_rows = [g.shape if len(part) > 1 else None for part, g in zip(parts, grads, strict=True)]
    results = [n for part in parts for n in part]

    known = frozenset(topological(graph.results)) | _statistics(graph) | _handed_out(graph)
    saved = [n for n in _frontier(results, known) if not _is_kept(n, graph)]
    table = {n: leaf(f"{SAVED}{i}", n.ty) for i, n in enumerate(saved)}
    kept = {f"{SAVED}{i}": n for i, n in enumerate(saved)}
    forward = Graph(graph.inputs, {**graph.outputs, **kept}, graph.updates, graph.origins)
    origins.update((made, origins[n]) for n, made in _rebuild(results, table).items() if n in origins)
    outs = {f"grad{i}": table[n] for i, n in enumerate(results)}
    inputs = {n.attrs["name"]: n for n in topological(outs.values()) if n.op.name == "input"}
    return _Recorded(traced, forward, Graph(inputs, outs, {}, origins), wants, by_rows, constant)


def _inlined(graph: Graph) -> Graph:
    """Composites whose gradient goes through their body become it: the backward then reads its values."""
    several: dict[Node, tuple[Node, ...]] = {}

    def inline(n: Node) -> Node:
        if n.op.name == "get_tuple_element" and n.src[0] in several:
            return several[n.src[0]][n.attrs["index"]]
        if n.op.body is None or n.op.grad is not None:
            return n
        made = n.op.body(*n.src, **n.attrs)
        if isinstance(made, Node):
            return made
        several[n] = tuple(made)
        return n

    return graph.map(inline)


def _statistics(graph: Graph) -> frozenset[Node]:
    """The reductions within composites that have a gradient of their own: small, and worth more than reading all again.

    Not of those that contract (attention): a kernel for the whole has no such values to give away.
    """
    found: set[Node] = set()
    for n in graph.nodes():
        if n.op.body is None:
            continue
        leaves = tuple(leaf(f"x{i}", s.ty) for i, s in enumerate(n.src))
        made = n.op.body(*leaves, **n.attrs)
        inner = topological(made if isinstance(made, tuple) else (made,))
        if all(m.op.kind != "contraction" for m in inner):
            table = _rebuild(inner, dict(zip(leaves, n.src, strict=True)))
            found.update(table[m] for m in inner if m.op.kind == "reduce")
    return frozenset(found)


def _handed_out(graph: Graph) -> frozenset[Node]:
    """All that loops hand out: the backward reads it instead of running the loops again."""
    return frozenset(item for n in graph.nodes() if n.op.name == "scan" for item in get_tuple_elements(n))


def _frontier(results: Iterable[Node], known: frozenset[Node]) -> list[Node]:
    """The nodes of the forward that the results are computed from; broadcasts are redone, not saved."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(results)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in known and n.op.name != "expand" and not isinstance(n.type, tuple):
            found[n] = None
        else:
            stack.extend(n.src)
    return list(found)


def _is_kept(n: Node, graph: Graph) -> bool:
    """Has the backward this leaf without its being saved: a constant, or an input that the forward leaves alone?"""
    return not n.src and not (n.op.name == "input" and n.attrs["name"] in graph.updates)


def _rebuild(results: Iterable[Node], table: dict[Node, Node]) -> dict[Node, Node]:
    """Complete `table`, which says what stands for some nodes, to all that the results need."""
    for n in topological(results):
        if n not in table:
            table[n] = n.on(tuple(table[s] for s in n.src))
    return table


class Runner:
    """A graph, compiled, as a function of its inputs by name; captured arrays are read and written where they lie.

    Threads take turns: a call runs without Python's lock, in memory between kernels that is the runner's.
    """

    def __init__(self, graph: Graph, captured: Mapping[str, NDArray]):
        self._turn = threading.Lock()
        first: dict[Node, str] = {}  # each value is computed once, inputs not at all
        self._same: dict[str, str] = {}
        for name, n in graph.outputs.items():
            if n.op.name == "input":
                self._same[name] = n.attrs["name"]
            elif n in first:
                self._same[name] = first[n]
            else:
                first[n] = name
        self._names = tuple(graph.outputs)
        self._state = {n: captured[n] for n in graph.inputs if n in captured}
        self._runner: Any = None
        if first or graph.updates:
            graph = graph.with_results({name: n for n, name in first.items()}, graph.updates)
            roles = {n: "scalar" if is_rng(n) else "state" if n in self._state else "input" for n in graph.inputs}
            self._runner = services.get("lower")(graph, roles).executor(self._memory())
            self._written = storages.Written(self._state[name].storage for name in graph.updates)
            live = {n.attrs["name"] for n in graph.nodes() if n.op.name == "input"}
            self._rng = {n: self._runner.scalar(n) for n in graph.inputs if is_rng(n) and n in live}
        self._moves = storages.moves()

    def _memory(self) -> dict[str, Array]:
        return {name: array.storage.array for name, array in self._state.items()}

    def __call__(self, given: Mapping[str, Array], words: Words) -> dict[str, Array]:
        results: dict[str, Array] = {}
        if self._runner is not None:
            with self._turn:
                values = self._run(given, words)
            results = dict(zip(self._runner.output_names, values, strict=True))
        for name, other in self._same.items():
            value = results[other] if other in results else given.get(other)
            results[name] = np.array(self._state[other].storage.array if value is None else value)
        return {name: results[name] for name in self._names}

    def _run(self, given: Mapping[str, Array], words: Words) -> Sequence[Array]:
        if self._moves != storages.moves():
            self._runner.bind(self._memory())
            self._moves = storages.moves()
        for name, cell in self._rng.items():
            for i, word in enumerate(words[name]):
                cell[i] = word
        values: Sequence[Array] = self._runner([given[n] for n in self._runner.input_names])
        self._written.tell()
        return values
