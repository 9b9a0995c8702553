"""The tracer: runs a function over NDArrays once on arrays with types and no values, and records a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph import debug, ops
from gluongraph.context import Context
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.eager import nan_check
from gluongraph.eager.function import leaf
from gluongraph.eager.tape import STATE
from gluongraph.errors import MXNetError, Origin, TraceError, user_origin, warn, with_user_location
from gluongraph.ir.composite import results_of
from gluongraph.ir.graph import Graph, Node, TensorType, recording_origins, topological
from gluongraph.ir.plain import plain
from gluongraph.mxops.ops import detach
from gluongraph.mxops.shapes import index, index_plan, index_put
from gluongraph.ndarray import NDArray, attribute, naming_what_is_no_array, traced
from gluongraph.ops.autodiff import depended_on, gradients, ones, zeros
from gluongraph.storage import Array
from gluongraph.tracing.concat_prefixes import share_prefixes

RNG = "rng"
ARGUMENT = "data"  # data0, data1, ... are the arrays among the arguments
STATE_TYPE = TensorType((4,), "u32")
UNROLLED = 64  # equal bodies of a Python loop, above which its user is told


@dataclass(frozen=True)
class Output:
    """Stands for an array in the structure that a traced function returned."""

    name: str


@dataclass(frozen=True)
class Guard:
    """An attribute that the trace read; if it changes, the trace is no longer valid."""

    owner: Any
    attribute: str
    value: Any

    @property
    def holds(self) -> bool:
        """Is the attribute unchanged?"""
        return bool(getattr(self.owner, self.attribute, None) == self.value)


@dataclass(frozen=True)
class Traced:
    """A traced function.

    `graph` has the inputs data0, data1, ... (the arrays among the arguments), the names of `captured`, and "rng" where
    random numbers are drawn; its outputs are out0, out1, ...; `outputs` is what the function gave back, with an
    `Output` in place of each array. `captured` are the arrays that it read from outside, live. `draws` says of each
    input with a generator's state whose that is, and how many draws a call makes.
    """

    graph: Graph
    outputs: Any
    captured: Mapping[str, NDArray]
    draws: Mapping[str, tuple[Context, int]]
    guards: tuple[Guard, ...]

    @property
    def first(self) -> str:
        """The name of the first output.

        Raises:
            TraceError: the function gave back no array.
        """
        for name in self.graph.outputs:
            return name
        raise TraceError(with_user_location("the traced function gives back no array", help="return the loss"))

    @property
    def holds(self) -> bool:
        """Are all attributes that were read unchanged?"""
        return all(guard.holds for guard in self.guards)

    def restore(self, results: Mapping[str, Array | NDArray]) -> Any:
        """Return what the function would have returned, from the values of the outputs."""

        def put(part: Any) -> Any:
            if isinstance(part, Output):
                value = results[part.name]
                return value if isinstance(value, NDArray) else NDArray(value)
            return part

        return _mapped(put, self.outputs)


def trace(
    fn: Callable[..., Any], args: Sequence[Any], *, training: bool, names: Mapping[int, str] | None = None
) -> Traced:
    """The graph of fn(*args). Arrays among the arguments, nested as they may be, count by their types only.

    A TensorType may stand for an array. Arrays that `fn` reads from elsewhere become live inputs; what it writes into
    them becomes `graph.updates`. Python numbers are part of the program. `names` says what to call those that have a
    name which must not be another's, by the id of their storage; others are called as the arrays are, numbered where
    that name is taken.

    Raises:
        TraceError: `fn` wants numbers of traced values, or gives back values of another trace.
    """
    tracer = Tracer(names)
    before = STATE.tracer, STATE.recording, STATE.training
    STATE.tracer, STATE.recording, STATE.training = tracer, False, training
    try:
        with recording_origins(tracer.where) as origins:
            given = [_mapped(tracer.argument, a) for a in args]
            outputs: dict[str, Node] = {}

            def name(part: Any) -> Any:
                if not isinstance(part, NDArray):
                    return part
                key = f"out{len(outputs)}"
                outputs[key] = tracer.node(part)
                return Output(key)

            structure = _mapped(name, fn(*given))
    finally:
        STATE.tracer, STATE.recording, STATE.training = before
    _warn_of_unrolled(origins, tracer.layers)
    return tracer.finish(outputs, structure, origins)


def rng_name(ctx: Context, first: bool) -> str:
    """Return the name of the input of a device's generator state; the first device of a graph has the plain name."""
    return RNG if first else f"{RNG}@{ctx}"


def is_rng(name: str) -> bool:
    """Is this the name of an input with a generator's state?"""
    return name == RNG or name.startswith(f"{RNG}@")


def is_argument(name: str) -> bool:
    """Is this the name of an input that is an argument of the traced function?"""
    return name.removeprefix(ARGUMENT).isdigit() and name.startswith(ARGUMENT)


def tracing() -> bool:
    """Is a graph being built?"""
    return STATE.tracer is not None


def has_gradient(result: NDArray, arrays: Collection[NDArray]) -> bool:
    """Within a trace: does a gradient flow from a result, of floats, to one of these arrays from outside?"""
    tracer = STATE.tracer
    assert tracer is not None
    inputs = [tracer.inputs[tracer.names[key]] for a in arrays if (key := id(a.storage)) in tracer.names]
    node = tracer.node(result)
    return any(g is not None for g in gradients([node], [ones(node.ty)], inputs))


_NO_SCOPE: AbstractContextManager[None] = nullcontext()


def scope(name: str, layer: object = None, at: Origin | None = None) -> AbstractContextManager[None]:
    """Within: nodes are noted as made by the layer `name`; several layers may have one name. So are eager ops that
    are looked at. `at` is the user's line, where that is not on Python's stack."""
    if STATE.tracer is not None:
        return _Scope(STATE.tracer, name, layer, at)
    return nan_check.layer(name) if debug.settings().check else _NO_SCOPE


def guard(owner: Any, attribute: str) -> Any:
    """The attribute; a trace that reads it holds only as long as it stays equal."""
    value = getattr(owner, attribute)
    if STATE.tracer is not None:
        STATE.tracer.guards[(id(owner), attribute)] = Guard(owner, attribute, value)
    return value


def assign(array: NDArray, value: Any) -> None:
    """array[:] = value; in a trace, an update of the array."""
    array[:] = value


class _Scope(AbstractContextManager[None]):
    def __init__(self, tracer: Tracer, name: str, layer: object, at: Origin | None):
        self.tracer, self.name, self.layer, self.at = tracer, name, layer, at

    def __enter__(self) -> None:
        self.before, self.tracer.at = self.tracer.at, self.at or self.tracer.at
        self.tracer.scopes.append(self.name)
        self.tracer.layers.setdefault(self.name, set()).add(id(self.layer))

    def __exit__(self, *exc: object) -> None:
        self.tracer.scopes.pop()
        self.tracer.at = self.before


class Tracer:
    """A trace in progress: what has been read from outside, what has been written there."""

    def __init__(self, given: Mapping[int, str] | None = None) -> None:
        self.given = given or {}  # id of a storage -> the name of its input
        self.taken = frozenset(self.given.values())
        self.arguments: dict[str, Node] = {}
        self.captured: dict[str, NDArray] = {}
        self.names: dict[int, str] = {}  # id of a storage -> its input; `captured` keeps the storage alive
        self.inputs: dict[str, Node] = {}
        self.now: dict[str, Node] = {}  # what a captured array holds at this point of the program
        self.updates: dict[str, Node] = {}
        self.draws: dict[Context, int] = {}
        self.generators: dict[Context, str] = {}  # device -> the input that holds its generator's state
        self.turn: Callable[[Context, Node], Node] | None = None  # within a loop: the turn's state of a generator
        self.unnamed = 0
        self.scopes: list[str] = []
        self.at: Origin | None = None  # the user's line, where a scope knows it
        self.layers: dict[str, set[int]] = {}  # scope -> the layers of that name that have run
        self.pins = 0  # of `gluongraph.amp`, one within another
        self.guards: dict[tuple[int, str], Guard] = {}

    def where(self) -> Origin:
        """Return the origin of the node that is being created."""
        return self.at or user_origin(self.scopes[-1] if self.scopes else "")

    # -- reading

    def argument(self, part: Any) -> Any:
        """An argument of the traced function, as a traced array if it is an array."""
        if isinstance(part, NDArray):
            type = part.type
        elif isinstance(part, np.ndarray):
            type = TensorType(part.shape, dtype_name(part.dtype))
        elif isinstance(part, TensorType):
            type = part
        else:
            return part
        name = f"{ARGUMENT}{len(self.arguments)}"
        made = traced(leaf(name, type))
        self.arguments[name] = self.node(made)
        if isinstance(part, NDArray):
            made._ctx = part._ctx
        return made

    def node(self, array: NDArray) -> Node:
        """The node that an array stands for at this point; of a view, that of the whole, looked at now."""
        if array._view is not None:
            whole, build, how = array._view
            found: Node = build(self.node(whole), **how)
        elif array._node is not None:
            if array._tracer is not self:
                raise TraceError(_of_another_trace(str(array._node.type)))
            return array._node
        else:
            found = self.now[self.capture(array)]
        return detach(found) if array._alias and array._leaf is None else found

    def capture(self, array: NDArray) -> str:
        """The input that an array from outside has become."""
        storage = array.storage
        name = self.names.get(id(storage))
        if name is not None and self.captured[name]._alias:
            self.captured[name] = array  # perhaps the handle that gradients belong to
        if name is None:
            name = self.given.get(id(storage)) or self._free_name(array.name or f"capture{self.unnamed}")
            self.unnamed += not array.name
            self.names[id(storage)] = name
            self.captured[name] = array
            self.inputs[name] = self.now[name] = leaf(name, array.type)
        return name

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 0
        while name in self.captured or name in self.arguments or name in self.taken or is_rng(name):
            number += 1
            name = f"{wanted}_{number}"
        return name

    def draw(self, ctx: Context) -> tuple[NDArray, int]:
        """The state of a device's generator, and the number of the draw counted from there."""
        name = self.generators.setdefault(ctx, rng_name(ctx, first=not self.generators))
        number = self.draws.get(ctx, 0)
        self.draws[ctx] = number + 1
        state = self.inputs[name] = leaf(name, STATE_TYPE)
        return traced(state if self.turn is None else self.turn(ctx, state)), number

    # -- ops

    def call(self, build: Callable[..., Any], args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """`invoke` within the trace."""
        with naming_what_is_no_array(build, args, attrs):
            made = build(
                *(self._operand(a) if isinstance(a, NDArray) else plain(a) for a in args),
                **{k: self._operand(a) if isinstance(a, NDArray) else attribute(a) for k, a in attrs.items()},
            )
            nodes = [traced(n) for n in results_of(made)]
        arrays = [a for a in (*args, *attrs.values()) if isinstance(a, NDArray)]
        for each in nodes if arrays else ():
            each._ctx = arrays[0]._ctx
        return nodes[0] if isinstance(made, Node) and not isinstance(made.type, tuple) else nodes

    def _operand(self, array: NDArray) -> Node:
        found = self.node(array)
        return ops.keep_precision(found) if self.pins and is_float(found.dtype) else found

    def grad(self, heads: list[NDArray], variables: list[NDArray], head_grads: Any) -> list[NDArray]:
        """autograd.grad within the trace."""
        nodes = [self.node(h) for h in heads]
        given = [None] * len(nodes) if head_grads is None else list(head_grads)
        starts = [ones(n.ty) if g is None else self.node(g) for n, g in zip(nodes, given, strict=True)]
        wrt = [self.node(v) for v in variables]
        found = gradients(nodes, starts, wrt)
        if None in found:
            known = depended_on(nodes)
            if any(g is None and x not in known for g, x in zip(found, wrt, strict=True)):
                raise MXNetError(with_user_location("grad: a variable that the heads do not depend on"))
        return [traced(zeros(x.ty) if g is None else g) for g, x in zip(found, wrt, strict=True)]

    # -- writing

    def assign(self, array: NDArray, key: Any, value: Any) -> None:
        """array[key] = value"""
        old = self.node(array)
        if isinstance(value, np.ndarray | list | tuple):
            value = NDArray(np.asarray(value, array.dtype))
        plan, indices = index_plan(key, old.shape)
        if indices:
            raise TraceError(
                with_user_location("a traced write at an array of indices", help="use where() with a mask, or one_hot")
            )
        self.store(array, index_put(old, self.node(value) if isinstance(value, NDArray) else value, plan=plan))

    def store(self, array: NDArray, made: Node) -> None:
        """The array holds this from now on; what is written into a view is written into the whole."""
        if array._part:
            raise TraceError(
                with_user_location("a traced write into a recorded slice", help="write into the whole array")
            )
        if array._view is not None:
            whole, build, how = array._view
            old = self.node(whole)
            self.store(whole, index_put(old, made, **how) if build is index else ops.reshape(made, old.shape))
        elif array._node is not None:
            array._node = made
        else:
            name = self.capture(array)
            self.now[name] = self.updates[name] = made

    # -- the end

    def finish(self, outputs: dict[str, Node], structure: Any, origins: Mapping[Node, Origin]) -> Traced:
        """The graph: all arguments, and of what was captured that which something reads or writes."""
        known = {**self.arguments, **self.inputs}
        live = {n for n in topological([*outputs.values(), *self.updates.values()]) if n.op.name == "input"}
        for n in live:
            if known.get(n.attrs["name"]) is not n:
                raise TraceError(_of_another_trace(f"{n.attrs['name']!r}: {n.ty}"))
        inputs = {k: n for k, n in known.items() if k in self.arguments or n in live or k in self.updates}
        captured = {k: a for k, a in self.captured.items() if k in inputs}
        graph = share_prefixes(Graph(inputs, outputs, self.updates, origins))
        draws = {name: (ctx, self.draws[ctx]) for ctx, name in self.generators.items() if name in inputs}
        return Traced(graph, structure, captured, draws, tuple(self.guards.values()))


def _warn_of_unrolled(origins: Mapping[Node, Origin], layers: Mapping[str, Collection[int]]) -> None:
    """Say where a Python loop has left many copies of its body: the same op, of the same type, from the same line and
    the same layer."""
    copies = Counter((origin, n.op.name, n.type) for n, origin in origins.items() if n.src)
    for (origin, op, _), count in copies.most_common():
        if count <= UNROLLED:
            return
        if count > UNROLLED * len(layers.get(origin.scope, " ")):
            warn(
                f"a loop at {origin.file}:{origin.line} has been unrolled: the graph holds {op} {count} times, and "
                "takes as many times longer to compile\n"
                "  help: the layers of gluon.rnn and nd.contrib.foreach compile the body of a loop once"
            )
            return


def _of_another_trace(what: str) -> str:
    return with_user_location(
        f"a value of another trace is used ({what})",
        help="return values from the traced function instead of keeping them in variables",
    )


def _mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """fn on every leaf of nested tuples, lists and dicts."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_mapped(fn, part) for part in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(fn, part) for part in tree)
    if isinstance(tree, dict):
        return {key: _mapped(fn, part) for key, part in tree.items()}
    return fn(tree)
