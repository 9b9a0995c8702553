"""The tape of `autograd.record()`: for each call its gradient and the values that it reads; and the backward walk."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np

from gluongraph.eager.row_sparse import Rows, dense
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.ndarray import NDArray
    from gluongraph.tracing.tracer import Tracer

T = TypeVar("T")
next_number = count().__next__


class State(threading.local):
    """The flags of `autograd`, the tracer at work, and how to call numpy; each thread has its own.

    `run(fn, *args)` calls fn where numpy does not warn: what overflows says so by infinities, as compiled code does.
    Entering a context takes a tenth of the time that np.errstate takes. It does not nest.
    """

    recording = False
    training = False
    tracer: Tracer | None = None

    def __init__(self) -> None:
        context = contextvars.copy_context()
        context.run(np.seterr, all="ignore")
        self.run = context.run


STATE = State()


class Leaf:
    """The gradient side of a marked array: its buffer, what to do with it, whether a backward has written it.

    `spent` says that a compiled step has used the last gradient up, and that the buffer has never seen it. `marks`
    grows whenever any array gets another leaf, or none: who keeps leaves need ask nothing else.
    """

    __slots__ = ("by_rows", "fresh", "grad", "req", "spent")
    marks: ClassVar[int] = 0

    def __init__(self, grad: NDArray, req: str):
        self.grad, self.req, self.fresh, self.spent = grad, req, False, False
        self.by_rows: Any = grad if grad.stype == "row_sparse" else None  # the buffer, if it keeps touched rows only

    def put(self, g: Array | Rows | None) -> None:
        """Write or add a gradient; None stands for zeros."""
        if g is None:
            if self.req != "add":
                self.clear()
        elif self.by_rows is not None:
            self.by_rows.receive(g, self.req == "add")
        elif self.req == "add":
            self.grad.storage.array += dense(g)
        else:
            self.grad.storage.array[...] = dense(g)
        self.fresh, self.spent = True, False

    def clear(self) -> None:
        """Make the gradient 0."""
        if self.by_rows is not None:
            self.by_rows.clear()
        else:
            self.grad.storage.write(0)
        self.spent = False


class Gradient(Protocol):
    """`backward(*saved, *heads)` gives a gradient for each parent of an entry; `zeros` are the types of the heads."""

    zeros: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]

    @property
    def backward(self) -> Callable[..., Sequence[Any]]: ...


class Entry:
    """One recorded call: its gradient, the values that it reads (None once used up), and whose gradients it gives.

    `args` are the call's arguments and `parents` those of them, by where they came from, that get a gradient.
    `constants` are those that the results depend on and that no gradient flows to, such as x of floor(x): their
    gradient is zero, which is not computed.
    """

    __slots__ = ("args", "constants", "gradient", "number", "parents", "saved")

    def __init__(
        self,
        gradient: Gradient,
        saved: tuple[Any, ...],
        parents: Sequence[Source],
        args: tuple[NDArray, ...] = (),
        constants: Sequence[Source] = (),
    ):
        self.number = next_number()
        self.gradient: Gradient = gradient
        self.saved: tuple[Any, ...] | None = saved
        self.parents: Sequence[Source] = parents
        self.constants: Sequence[Source] = constants
        self.args = args

    def free(self) -> None:
        """Let go of the values, and of what came before."""
        self.saved, self.parents, self.constants, self.args = None, (), (), ()


Source = tuple[Entry, int] | Leaf


def tracked(array: NDArray) -> bool:
    """Is this array part of the record: marked, or computed from what is?"""
    return array._source is not None or (array._leaf is not None and array._leaf.req != "null")


def source_of(array: NDArray) -> Source | None:
    """Where the array stands in the record."""
    if array._source is not None:
        return array._source
    return array._leaf if array._leaf is not None and array._leaf.req != "null" else None


def sources_of(arrays: Iterable[NDArray], chosen: Iterable[bool]) -> list[Source]:
    """Where the chosen ones of these arrays stand in the record."""
    found = [source_of(a) for a, wanted in zip(arrays, chosen, strict=True) if wanted]
    return [source for source in found if source is not None]


def mark(array: NDArray, grad: NDArray, req: str) -> None:
    """Make the array a leaf whose gradient goes into `grad`."""
    if req not in ("write", "add", "null"):
        raise MXNetError(with_user_location(f"grad_req is one of write, add, null; not {req!r}"))
    array._source = None
    array._leaf = None if req == "null" else Leaf(grad, req)
    Leaf.marks += 1


def no_value(what: str) -> str:
    """The message when Python wants from a traced value what only a computed one has."""
    if STATE.tracer is None:
        return outlived()
    return with_user_location(
        f"{what} of a traced value: while a graph is being built there are types, and no numbers",
        help="choose between values with where(condition, a, b); compute numbers outside of the compiled function, and"
        " pass them in",
    )


def outlived() -> str:
    """The message when somebody has kept a traced value, say as an attribute of a block, and uses it afterwards."""
    return with_user_location(
        "a value of a finished trace is used: it was a node of that graph, and has no numbers",
        help="return it from the traced function instead of keeping it; what is to stay from call to call is an array "
        "that is written in place, as self.mean[:] = ...",
    )


def reverse(
    heads: Iterable[tuple[Source, T]],
    wanted: Callable[[Source], bool],
    pull: Callable[[Entry, list[T | None]], Sequence[T | None]],
    add: Callable[[T, T], T],
    retain: bool,
) -> dict[Source, T | None]:
    """Walk back from the heads: the gradients of all sources that are `wanted`.

    None stands for zeros: the heads depend on the source, and no gradient flows to it.

    Raises:
        MXNetError: a part of the way has been used up by an earlier backward; nothing has happened then.
    """
    heads = list(heads)
    order = _reachable(source for source, _ in heads)
    table: dict[Entry, dict[int, T]] = {}
    found: dict[Source, T | None] = {}

    def give(source: Source, g: T) -> None:
        if isinstance(source, tuple):
            known = table.setdefault(source[0], {})
            known[source[1]] = add(known[source[1]], g) if source[1] in known else g
            if not wanted(source):
                return
            g = known[source[1]]
            found[source] = g
        elif wanted(source):
            before = found.get(source)
            found[source] = g if before is None else add(before, g)

    for source, g in heads:
        give(source, g)
    for entry in order:
        known = table.pop(entry, None)
        if known is not None and entry.parents:
            heads_of = [known.get(i) for i in range(len(entry.gradient.zeros))]
            for parent, g_or_none in zip(entry.parents, pull(entry, heads_of), strict=True):
                if g_or_none is not None:
                    give(parent, g_or_none)
    for source in _sources(order):
        if source not in found and wanted(source):
            found[source] = None
    if not retain:
        for entry in order:
            entry.free()
    return found


def _sources(entries: Iterable[Entry]) -> Iterator[Source]:
    """All that these entries depend on, through constants as well; of what has been used up nothing is known."""
    stack = list(entries)
    seen = set(stack)
    while stack:
        entry = stack.pop()
        for source in (*entry.parents, *entry.constants):
            yield source
            if isinstance(source, tuple) and source[0] not in seen:
                seen.add(source[0])
                stack.append(source[0])


def _reachable(heads: Iterable[Source]) -> list[Entry]:
    """All entries before the heads, latest first."""
    seen: set[Entry] = set()
    stack = [source[0] for source in heads if isinstance(source, tuple)]
    while stack:
        entry = stack.pop()
        if entry in seen:
            continue
        seen.add(entry)
        if entry.saved is None:
            raise MXNetError(
                with_user_location(
                    "backward: this part of the record has been used up by an earlier backward",
                    help="pass retain_graph=True to the first one, or add the losses up and go back once",
                )
            )
        stack.extend(parent[0] for parent in entry.parents if isinstance(parent, tuple))
    return sorted(seen, key=attrgetter("number"), reverse=True)


def pull_arrays(entry: Entry, heads: list[Array | Rows | None]) -> Sequence[Array | Rows | None]:
    """The gradient of an entry, in numpy; missing heads count as zero."""
    gradient = entry.gradient
    assert entry.saved is not None
    filled = [np.zeros(*zero) if g is None else dense(g) for g, zero in zip(heads, gradient.zeros, strict=True)]
    return gradient.backward(*entry.saved, *filled)


def write(found: Mapping[Source, Array | Rows | None]) -> None:
    """Put gradients where the marked arrays want them."""
    for leaf, g in found.items():
        if isinstance(leaf, Leaf) and leaf.req != "null":
            leaf.put(g)


class concrete:
    """Within: no tracing. For arrays that a program makes once and keeps, such as parameters at the first forward."""

    def __enter__(self) -> None:
        self._tracer, STATE.tracer = STATE.tracer, None

    def __exit__(self, *exc: object) -> None:
        STATE.tracer = self._tracer
