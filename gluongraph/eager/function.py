"""Ops run one at a time: a builder and the types of its arguments become a small Python function over numpy.

A builder is any function from nodes to nodes. What it builds for arguments of given types is built once, and kept as a
function that calls the numpy meaning of each op in turn. Its gradient is kept as a second function, made by the one
reverse walk in `gluongraph.ops.autodiff`: eager and compiled gradients have the same rules because they are the same
graph. The second function reads values that the first one had computed; none is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial, wraps
from types import CodeType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gluongraph import debug
from gluongraph.dtypes import numpy_dtype
from gluongraph.eager import nan_check
from gluongraph.eager.row_sparse import Rows
from gluongraph.eager.row_sparse_updates import row_gradient
from gluongraph.errors import MXNetError
from gluongraph.ir.composite import inline, results_of
from gluongraph.ir.graph import OPS, Node, TensorType, node
from gluongraph.ops.autodiff import gradients, zeros
from gluongraph.ops.scan import run as run_scan
from gluongraph.storage import Array

Arrays = tuple[Array, ...]
P = ParamSpec("P")
R = TypeVar("R")
SMALL = 1024  # constants up to so many elements are kept with the function; larger ones are made at each call


# Who wants to know, such as the profiler: called with each function that is made, its builder and its arguments;
# and the context, by name, in which hybridized blocks, operators in Python, and what makes arrays of nothing run.
observers: list[Callable[[Function, Callable[..., Any], tuple[Any, ...]], None]] = []
spans: list[Callable[[str], AbstractContextManager[None]]] = []


def spanning(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that makes arrays without `Function`: to the profiler it is an operator of that name."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        @wraps(call)
        def spanned(*args: P.args, **kwargs: P.kwargs) -> R:
            if not spans:
                return call(*args, **kwargs)
            with spans[0](name):
                return call(*args, **kwargs)

        return spanned

    return decorate


def leaf(name: str, type: TensorType) -> Node:
    """An input node."""
    return node(OPS["input"], (), {"name": name}, type=type)


class Function:
    """A builder for arguments of given types, as numpy.

    `build(*nodes)` gives a node, or a tuple or list of them (`single` tells which). `call(*arrays)` computes the
    results, always as a tuple. `recorded(mask)` is the same with a gradient for the arguments that `mask` names.
    """

    def __init__(self, build: Callable[..., Any], types: Sequence[TensorType]):
        self.build = build
        self.inputs = tuple(leaf(f"a{i}", t) for i, t in enumerate(types))
        made = build(*self.inputs)
        self.single = isinstance(made, Node) and not isinstance(made.type, tuple)
        self.results = results_of(made)
        self.call = _checked(_program(self.inputs, self.results, inline=False), self.inputs, self.results)
        # Results that may be views of arguments, as numpy gives them for movement ops, or constants of the function.
        self.aliases = tuple(i for i, n in enumerate(self.results) if _may_alias(n))
        self._recorded: dict[tuple[bool, ...], Recorded] = {}

    def recorded(self, mask: tuple[bool, ...]) -> Recorded:
        """The function that also keeps what its gradient by these arguments reads."""
        try:
            return self._recorded[mask]
        except KeyError:
            made = self._recorded[mask] = self._record(mask)
            return made

    def _record(self, mask: tuple[bool, ...]) -> Recorded:
        wrt = [x for x, wanted in zip(self.inputs, mask, strict=True) if wanted]
        heads = [leaf(f"g{i}", n.ty) for i, n in enumerate(self.results)]
        return Recorded(self, mask, heads, gradients(self.results, heads, wrt))


class Recorded:
    """A `Function` and its gradient.

    `forward(*arrays)` gives the results and then the saved values; `backward(*saved, *heads)` a gradient for each
    argument that `wants` one, which are those of the mask that one flows to. `constant` are the others of the mask; ()
    if there are none.
    """

    def __init__(self, function: Function, mask: Sequence[bool], heads: Sequence[Node], found: Sequence[Node | None]):
        self.function = function
        reached = iter(found)
        self.wants = tuple(w and next(reached) is not None for w in mask)
        constant = tuple(masked and not wanted for masked, wanted in zip(mask, self.wants, strict=True))
        self.constant = constant if True in constant else ()
        wanted = [g for g in found if g is not None]
        emitted = _Text(function.inputs, inline=True)
        for n in function.results:
            emitted.value(n)
        given = [n for n in (*function.inputs, *emitted.computed()) if n not in heads]
        saved = [n for n in _frontier(wanted, frozenset(given) | frozenset(heads)) if n not in heads]
        self.zeros = tuple((n.shape, numpy_dtype(n.dtype)) for n in function.results)
        self.forward = _checked(emitted.function((*function.results, *saved)), function.inputs, function.results)
        self.backward = _backward(function, (*saved, *heads), wanted)
        if debug.settings().check:
            self.forward, self.backward = nan_check.remembering(self.forward, self.backward, len(saved))
        self._build, self._count = function.build, len(function.inputs)

    def again(self, *given: Node) -> tuple[Node, ...]:
        """The gradient as a builder on the arguments and the heads, for a gradient of the gradient."""
        arguments, heads = given[: self._count], given[self._count :]
        wrt = [x for x, wanted in zip(arguments, self.wants, strict=True) if wanted]
        found = gradients(results_of(self._build(*arguments)), heads, wrt)
        return tuple(zeros(x.ty) if g is None else g for x, g in zip(wrt, found, strict=True))


def _backward(function: Function, given: Sequence[Node], wanted: Sequence[Node]) -> Callable[..., Sequence[Any]]:
    """The program that computes gradients: arrays, or where it is a sum of rows, `Rows`."""
    if not wanted:
        return lambda *arrays: ()
    parts = [row_gradient(g) or (g,) for g in wanted]
    flat = [n for part in parts for n in part]
    program = _checked(_program(given, flat, inline=False), given, flat, _named(function))
    if len(flat) == len(wanted):
        return program

    def backward(*arrays: Array) -> list[Any]:
        values = iter(program(*arrays))
        return [
            next(values) if len(part) == 1 else Rows(next(values), next(values), g.shape)
            for part, g in zip(parts, wanted, strict=True)
        ]

    return backward


def _checked(
    call: Callable[..., Arrays], inputs: Sequence[Node], results: Sequence[Node], gradient_of: str = ""
) -> Callable[..., Arrays]:
    """`call`; under GG_CHECK=nan, looked at whenever it runs."""
    return nan_check.watched(call, inputs, results, gradient_of) if debug.settings().check else call


def _named(function: Function) -> str:
    """The op, for messages; of several, the last."""
    made = function.results[0]
    return (made.src[0] if made.op.name == "get_tuple_element" else made).op.name


def _may_alias(n: Node) -> bool:
    while n.op.kind == "movement" and n.src:
        n = n.src[0]
    return n.op.name in ("stop_gradient", "cast", "get_tuple_element") or n.op.kind in ("leaf", "composite", "control")


def _frontier(results: Iterable[Node], known: frozenset[Node]) -> list[Node]:
    """The known nodes that the results are computed from."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(results)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in known:
            found[n] = None
        else:
            stack.extend(n.src)
    return list(found)


def _program(inputs: Sequence[Node], results: Sequence[Node], *, inline: bool) -> Callable[..., Arrays]:
    return _Text(inputs, inline=inline).function(results)


class _Text:
    """Writes the Python function that computes nodes from the values of `inputs`.

    With `inline`, composites without a gradient of their own are computed by their bodies, which their gradient reads.
    """

    def __init__(self, inputs: Sequence[Node], *, inline: bool):
        self.inline = inline
        self.names: dict[Node, str] = {n: f"a{i}" for i, n in enumerate(inputs)}
        self.parts: dict[Node, tuple[Node, ...]] = {}  # results of the composites that are computed by their bodies
        self.arguments = [f"a{i}" for i in range(len(inputs))]
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"asarray": np.asarray}

    def computed(self) -> list[Node]:
        """The nodes that the function has a value of, for itself (composites that were inlined have none)."""
        return list(self.names)

    def function(self, results: Sequence[Node]) -> Callable[..., Arrays]:
        """The function, which gives the values of `results` as a tuple."""
        values = ", ".join([self.value(n) for n in results])
        body = "\n ".join([f"def call({', '.join(self.arguments)}):", *self.lines, f"return ({values},)"])
        namespace = self.constants
        exec(_compiled(body + "\n"), namespace)
        call: Callable[..., Arrays] = namespace["call"]
        return call

    def value(self, n: Node) -> str:
        """The name of the value of `n`, computed if it is not yet."""
        for each in _missing(n, self.names):
            self._emit(each)
        return self.names[n]

    def _emit(self, n: Node) -> None:
        if n in self.names or n in self.parts:
            return
        if n.op.name == "get_tuple_element" and n.src[0] in self.parts:
            self.names[n] = self.value(self.parts[n.src[0]][n.attrs["index"]])
        elif n.op.body is not None and (n.op.numpy is None or (self.inline and n.op.grad is None)):
            parts = self.parts[n] = inline(n)
            values = [self.value(part) for part in parts]
            if not isinstance(n.type, tuple):
                self.names[n] = values[0]
        elif n.op.name == "get_tuple_element":
            self._bind(n, f"{self.names[n.src[0]]}[{n.attrs['index']}]")
        elif n.op.name == "input":
            raise MXNetError(f"an op may read nothing but its arguments, and reads {n!r} {n.attrs['name']!r}")
        elif not n.src and (isinstance(n.type, tuple) or n.ty.size <= SMALL):
            self.names[n] = self._constant(_constant(n))
        else:
            self._bind(n, self._call(n))

    def _bind(self, n: Node, expression: str) -> None:
        name = self.names[n] = f"v{len(self.names)}"
        self.lines.append(f"{name} = {expression}")

    def _constant(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def _call(self, n: Node) -> str:
        if n.op.numpy is None:
            raise MXNetError(f"{n!r} has no meaning in numpy")
        loose = _loose(n)
        # A value that is there is read as it is: what it was broadcast from may not be there in a gradient.
        sources = [self.names[s] if s in self.names or s not in loose else self._operand(loose[s]) for s in n.src]
        meaning, given = _meaning(n)
        attrs = [f"{k}={self._constant(v)}" for k, v in given.items()]
        text = f"{self._constant(meaning)}({', '.join([*sources, *attrs])})"
        # numpy gives scalars, not arrays, where no axis is left
        return f"asarray({text})" if not isinstance(n.type, tuple) and n.ty.rank == 0 else text

    def _operand(self, value: Any) -> str:
        return self.value(value) if isinstance(value, Node) else self._constant(value)


def _meaning(n: Node) -> tuple[Any, Mapping[str, Any]]:
    """The function that computes n, and its attributes; a turn of a loop is written as one function too."""
    if n.op.name != "scan":
        return n.op.numpy, n.attrs
    how = dict(n.attrs)
    body = how.pop("body")
    turn = _program(tuple(body.inputs.values()), tuple(body.outputs.values()), inline=False)
    return partial(run_scan, turn), how


def _constant(n: Node) -> Any:
    """A value that is kept: not to be written, so that who gets it as a result copies it."""
    assert n.op.numpy is not None
    value = n.op.numpy(**n.attrs)
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return value


def _missing(n: Node, known: Mapping[Node, str]) -> list[Node]:
    """What must be computed for `n`, sources first; sources that numpy broadcasts by itself are left out."""
    order: dict[Node, None] = {}
    stack = [(n, False)]
    while stack:
        current, ready = stack.pop()
        if ready:
            order[current] = None
        elif current not in order and current not in known:
            stack.append((current, True))
            loose = _loose(current)
            for s in reversed(current.src):
                operand = s if s in known else loose.get(s, s)
                if isinstance(operand, Node):
                    stack.append((operand, False))
    return list(order)


def _loose(n: Node) -> dict[Node, Any]:
    """Sources of an elementwise op that numpy broadcasts by itself -> what to pass in their place (a node or a scalar).

    At least one source of the full shape stays.
    """
    if n.op.kind != "elementwise" or len(n.src) < 2:
        return {}
    loose = {s: small for s in n.src if (small := _unexpanded(s)) is not s}
    return loose if any(s not in loose for s in n.src) else {}


def _unexpanded(n: Node) -> Any:
    """The value that broadcasts to `n`: without expand, and without the axes of 1 put in front of it."""
    whole = n
    if n.op.name == "expand":
        n = n.src[0]
        if n.op.name == "reshape" and n.shape == (1,) * (n.ty.rank - n.src[0].ty.rank) + n.src[0].shape:
            n = n.src[0]
    if n.op.name == "const" and (n is not whole or n.ty.rank):
        return numpy_dtype(n.dtype).type(n.attrs["value"])
    return n


@lru_cache(maxsize=4096)
def _compiled(text: str) -> CodeType:
    return compile(text, "<gluongraph eager>", "exec")
