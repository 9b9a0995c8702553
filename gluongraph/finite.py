"""GG_CHECK=nan: which op gives the first NaN, in interpreted graphs and in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import reference
from gluongraph.errors import NotFiniteError, Origin, user_origin
from gluongraph.ir import Node

HELP = (
    "look at this op's inputs; a smaller learning rate, clip_gradient or a guard before log, sqrt and division are the"
    " usual cures"
)


def has_nan(value: Any) -> bool:
    """Is there a NaN in the array, or in one of the tuple of arrays?"""
    parts = value if isinstance(value, tuple) else (value,)
    return any(part.dtype.kind not in "iub" and bool(np.isnan(part).any()) for part in parts)


def watcher(given: Mapping[str, Any], origin: Callable[[Node], Origin | None], what: str = "") -> reference.Watch:
    """A `watch` for `reference.run` that raises at the first node with a NaN.

    `given` are the arrays that came in, by the names that messages call them by; `what` says what the nodes are.
    """

    def watch(n: Node, value: Any) -> None:
        if n.op.kind == "leaf" or not has_nan(value):
            return
        sources = ", ".join(str(s.type) for s in n.src)
        place = origin(n)
        where = f"\n  made by {place.scope or 'the program'} at {place.file}:{place.line}" if place else ""
        brought = [name for name, array in given.items() if has_nan(array)]
        held = f"\n  which came in: there is one in {', '.join(brought)}" if brought else ""
        raise NotFiniteError(f"{what}{n.op.name}({sources}) made a NaN{held}{where}\n  help: {HELP}")

    return watch


def watched(
    call: Callable[..., tuple[Any, ...]], inputs: Sequence[Node], results: Iterable[Node], what: str = ""
) -> Callable[..., tuple[Any, ...]]:
    """`call`, which computes `results` and more from `inputs`, with an error where a result holds a NaN."""
    results = tuple(results)

    def checked(*arrays: Any) -> tuple[Any, ...]:
        values = call(*arrays)
        if any(has_nan(value) for value in values[: len(results)]):
            given = {f"argument {i}": array for i, array in enumerate(arrays)}
            watch = watcher(given, lambda n: user_origin(), what)
            reference.evaluate(results, dict(zip(inputs, arrays, strict=True)), watch)
        return values

    return checked
