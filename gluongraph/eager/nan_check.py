"""Which op a NaN or an infinity comes from: in interpreted graphs, and in eager mode under GG_CHECK=nan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph.errors import NotFiniteError, Origin, user_origin
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node

NAN, INFINITY = "a NaN", "an infinity"
SHOWN = 3  # results that a message names
HELP = (
    "look at this op's inputs; a smaller learning rate, clip_gradient or a guard before log, sqrt and division are the"
    " usual cures"
)


class _Local(threading.local):
    """Of each thread: the layers that are running, the origin of the call whose gradient is; is nobody to look?"""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.behind: Origin | None = None
        self.suspended = False


_LOCAL = _Local()


@contextmanager
def layer(name: str) -> Iterator[None]:
    """Within: eager ops are made by this layer."""
    _LOCAL.layers.append(name)
    try:
        yield
    finally:
        _LOCAL.layers.pop()


@contextmanager
def suspended() -> Iterator[None]:
    """Within: nobody looks, because somebody else will: gradients of a scaled loss may overflow."""
    before, _LOCAL.suspended = _LOCAL.suspended, True
    try:
        yield
    finally:
        _LOCAL.suspended = before


def not_finite(value: Any) -> str:
    """NAN, INFINITY or nothing: what there is in the array, or in one of the tuple of arrays."""
    parts = [part for part in (value if isinstance(value, tuple) else (value,)) if part.dtype.kind not in "iub"]
    if all(np.isfinite(part).all() for part in parts):
        return ""
    return NAN if any(np.isnan(part).any() for part in parts) else INFINITY


class Blame:
    """A `watch` for `reference.run` that knows where every value that is not finite comes from.

    To blame is the first node that gives a NaN or an infinity out of finite values, or that computes with one that was
    `given`. Infinite constants are meant, as in a mask: who passes them on is not to blame; who multiplies matrices
    with them or makes a NaN of them is. With `trusting` given infinities are meant, too.
    """

    def __init__(self, given: Mapping[Node, Any], trusting: bool = False):
        self._given, self._kinds = given, {n: not_finite(value) for n, value in given.items()}
        self._of: dict[Node, Node | None] = {}  # what is not finite -> who is to blame for it, if anybody
        for n, kind in self._kinds.items():
            if kind:
                self._of[n] = None if trusting and kind == INFINITY else n
        self._numbers = dict.fromkeys(given, -1)  # of those to blame, in the order of execution

    def __call__(self, n: Node, value: Any) -> None:
        if not (kind := not_finite(value)):
            return
        earlier = [self._of[s] for s in n.src if s in self._of]
        blamed = [b for b in earlier if b is not None]
        if made := [b for b in blamed if b not in self._given]:
            self._of[n] = min(made, key=self._numbers.__getitem__)
        elif kind == INFINITY and not blamed and _is_meant(n, passed_on=bool(earlier)):
            self._of[n] = None
        elif blamed and (n.op.kind == "movement" or n.op.name == "cast"):
            self._of[n] = blamed[0]
        else:
            self._of[n], self._kinds[n], self._numbers[n] = n, kind, len(self._numbers)

    def check(
        self,
        results: Iterable[tuple[str, Node]],
        names: Mapping[Node, str],
        origin: Callable[[Node], Origin | None],
        what: str = "",
    ) -> None:
        """Raise if one of these is not finite, and is not meant to be so. `names` are those of the given ones."""
        found: dict[Node, list[str]] = {}
        for name, n in results:
            if (blamed := self._of.get(n)) is not None:
                found.setdefault(blamed, []).append(name)
        if not found or _LOCAL.suspended:
            return
        first = min(found, key=self._numbers.__getitem__)
        kind = self._kinds[first]
        lines = [f"{what}{_call(first)} made {kind}" if first.src else f"{what}{names.get(first, first)} holds {kind}"]
        came = dict.fromkeys(s if s in names else self._of.get(s) for s in first.src if s in self._of)
        if held := [f"{self._kinds[n]} in {names[n]}" for n in came if n is not None and n in names]:
            lines.append(f"  which came in: there is {', '.join(held)}")
        if place := origin(first):
            lines.append(f"  made by {place.scope or 'the program'} at {place.file}:{place.line}")
        if seen := [name for name in found[first] if name]:
            more = f" and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
            lines.append(f"  seen in {', '.join(seen[:SHOWN])}{more}")
        raise NotFiniteError("\n".join([*lines, f"  help: {HELP}"]))


def _is_meant(n: Node, passed_on: bool) -> bool:
    """Is an infinity a constant, or one that was meant and is passed on?"""
    return (passed_on and n.op.kind != "contraction") if n.src else n.op.kind == "leaf"


def _call(n: Node) -> str:
    return f"{n.op.name}({', '.join(str(s.type) for s in n.src)})"


def run(graph: Graph, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`reference.run` of a graph whose outputs and updates have to be finite.

    Raises:
        NotFiniteError: one is not.
    """
    blame = Blame({n: np.asarray(values[name]) for name, n in graph.inputs.items()})
    made = interpreter.run(graph, values, blame)
    results = [*graph.outputs.items(), *((f"new {name}", n) for name, n in graph.updates.items())]
    blame.check(results, {n: name for name, n in graph.inputs.items()}, graph.origins.get)
    return made


# -- eager mode


def _here() -> Origin:
    """The user's line that is running, and the layer."""
    return user_origin(_LOCAL.layers[-1] if _LOCAL.layers else "")


def watched(
    call: Callable[..., tuple[Any, ...]], inputs: Sequence[Node], results: Sequence[Node], gradient_of: str = ""
) -> Callable[..., tuple[Any, ...]]:
    """`call`, which computes `results` and more from `inputs`, with an error where a result is not finite.

    An infinity among the arguments is taken to be meant, as in a mask; not where gradients are computed.
    """
    what = f"in the gradient of {gradient_of}: " if gradient_of else ""

    def checked(*arrays: Any) -> tuple[Any, ...]:
        values = call(*arrays)
        if not_finite(tuple(values[: len(results)])):
            given = dict(zip(inputs, arrays, strict=True))
            blame = Blame(given, trusting=not gradient_of)
            interpreter.evaluate(results, given, blame)
            names = {n: f"argument {i}" for i, n in enumerate(inputs)}
            blame.check((("", n) for n in results), names, lambda n: _LOCAL.behind or _here(), what)
        return values

    return checked


def remembering(
    forward: Callable[..., tuple[Any, ...]], backward: Callable[..., Sequence[Any]], saved: int
) -> tuple[Callable[..., tuple[Any, ...]], Callable[..., Sequence[Any]]]:
    """Both, with one more value between them behind those `saved`: where the forward was called."""

    def noting(*arrays: Any) -> tuple[Any, ...]:
        return (*forward(*arrays), _here())

    def recalling(*values: Any) -> Sequence[Any]:
        _LOCAL.behind = values[saved]
        try:
            return backward(*values[:saved], *values[saved + 1 :])
        finally:
            _LOCAL.behind = None

    return noting, recalling
