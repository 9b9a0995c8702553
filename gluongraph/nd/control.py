"""Control flow on arrays: foreach, while_loop, cond. In eager mode they are Python's own; in a trace a loop is one
`scan`, whose body is traced and compiled once, and a condition is a choice between values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from gluongraph import ops
from gluongraph.context import Context
from gluongraph.eager.tape import STATE
from gluongraph.errors import ShapeError, TraceError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops import shapes as mxshapes
from gluongraph.ndarray import NDArray, invoke, traced
from gluongraph.ops.loops import fresh, over
from gluongraph.tracing.tracer import Tracer

Tree = Any  # an array, or a list or tuple of such
Turn = Callable[[Tree, Sequence[NDArray]], tuple[Tree, Tree]]  # states and slices -> states after it and outputs


def foreach(body: Callable[..., Any], data: Tree, init_states: Tree, name: str = "foreach") -> tuple[Tree, Tree]:
    """`outputs[t], states = body(data[t], states)` for every t along axis 0: the stacked outputs, and the last states.

    Data, states and outputs are arrays, or (nested) lists of them.

    Raises:
        AssertionError: something else among them.
        ShapeError: in a trace, data of different lengths, or states that change their type.
        TraceError: in a trace, a body that writes into arrays.
    """
    arrays = _leaves(data, "foreach data")
    _leaves(init_states, "foreach states")
    if not arrays:
        raise AssertionError("foreach: there is no data to go through")
    if STATE.tracer is not None:
        last, outputs = _looped(_with_data(body, data), init_states, arrays, len(arrays[0]))
        return outputs, last
    turns, state = [], init_states
    for t in range(len(arrays[0])):
        made, state = body(_map(itemgetter(t), data), state)
        turns.append(made)
    return _stacked(turns, "foreach outputs"), state


def _with_data(body: Callable[..., Any], data: Tree) -> Turn:
    def turn(states: Tree, rows: Sequence[NDArray]) -> tuple[Tree, Tree]:
        slices = iter(rows)
        made, after = body(_map(lambda _: next(slices), data), states)
        return after, made

    return turn


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., Any],
    loop_vars: Tree,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Tree, Tree]:
    """`outputs[t], loop_vars = func(*loop_vars)` while `cond(*loop_vars)`: the stacked outputs, and the last variables.

    Outputs have max_iterations rows; those of steps that were not taken are 0. In a trace all steps are computed, and
    what comes after the end is dropped; in eager mode, without any step, there are no outputs.

    Raises:
        ValueError: max_iterations is not given, there are no variables, or their number changes.
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations says how many steps the outputs have room for")
    single = isinstance(loop_vars, NDArray)
    first = [loop_vars] if single else list(loop_vars)
    if not _leaves(first, "while_loop variables"):
        raise ValueError("while_loop: loop_vars has at least one array")

    def step(current: Sequence[Any]) -> tuple[Tree, list[Any]]:
        made, after = func(*current)
        after = [after] if isinstance(after, NDArray) else list(after or ())
        if len(after) != len(first):
            raise ValueError(f"while_loop: there are {len(first)} variables, and the step gives back {len(after)}")
        return [] if made is None else made, after

    run = _while if STATE.tracer is None else _traced_while
    outputs, last = run(lambda current: cond(*current), step, first, int(max_iterations))
    return outputs, last[0] if single else last


def cond(pred: Any, then_func: Callable[[], Tree], else_func: Callable[[], Tree], name: str = "cond") -> Tree:
    """`then_func()` if pred is not 0, else `else_func()`; in a trace both are computed, and one is chosen.

    Raises:
        ShapeError: in a trace, functions whose results have different shapes.
        TraceError: in a trace, a function that writes into arrays.
    """
    tracer = STATE.tracer
    if tracer is None or not isinstance(pred, NDArray):
        return then_func() if bool(pred) else else_func()
    with _without_writes(tracer, "cond"):
        yes, no = then_func(), else_func()
    left, right = _leaves(yes, "cond"), _leaves(no, "cond")
    if [x.shape for x in left] != [x.shape for x in right]:
        shapes = " and ".join(", ".join(str(x.shape) for x in side) for side in (left, right))
        raise ShapeError(with_user_location(f"cond: its two sides give different shapes: {shapes}"))
    chosen = iter([invoke(_chosen, pred, a, b) for a, b in zip(left, right, strict=True)])
    return _map(lambda _: next(chosen), yes)


def _chosen(pred: Any, a: Any, b: Any) -> Any:
    return ops.where(_truth(pred), a, b)


def _truth(x: Any) -> Any:
    """The one element of x as a truth value."""
    return ops.not_equal(ops.reshape(x, ()), 0) if isinstance(x, Node) else bool(x)


# -- nested lists


def _leaves(tree: Tree, what: str) -> list[NDArray]:
    if isinstance(tree, NDArray):
        return [tree]
    if not isinstance(tree, list | tuple):
        raise AssertionError(f"{what}: arrays or lists of arrays, not {type(tree).__name__}")
    return [leaf for part in tree for leaf in _leaves(part, what)]


def _map(fn: Callable[[NDArray], Any], tree: Tree) -> Tree:
    return fn(tree) if isinstance(tree, NDArray) else [_map(fn, part) for part in tree]


def _stacked(turns: Sequence[Tree], what: str, room: int = 0) -> Tree:
    """The outputs of all turns, leaf by leaf, with `room` rows of zeros behind."""
    columns = zip(*(_leaves(turn, what) for turn in turns), strict=True)
    stacks = iter([invoke(_stack, *column, room=room) for column in columns])
    return _map(lambda _: next(stacks), turns[-1])


def _stack(*xs: Any, room: int) -> Any:
    whole = mxshapes.stack(*xs)
    return ops.pad(whole, (0,) * whole.ty.rank, (room, *(0,) * (whole.ty.rank - 1)))


# -- loops in eager mode


def _while(
    cond: Callable[[list[Any]], Any], step: Callable[[list[Any]], Any], current: list[Any], most: int
) -> tuple[Tree, list[Any]]:
    turns: list[Tree] = []
    while len(turns) < most and bool(cond(current)):
        made, current = step(current)
        turns.append(made)
    return _stacked(turns, "while_loop outputs", most - len(turns)) if turns else [], current


# -- loops in a trace


def _traced_while(
    cond: Callable[[list[Any]], Any], step: Callable[[list[Any]], Any], current: list[Any], most: int
) -> tuple[Tree, list[Any]]:
    """All steps, with a state that says whether the loop still runs; what comes after its end changes nothing."""

    def turn(states: Tree, _: Sequence[NDArray]) -> tuple[Tree, Tree]:
        running, now = states
        going = invoke(_both, running, cond(now))
        made, after = step(now)
        olds = iter(_leaves(now, "while_loop variables"))
        kept = _map(lambda new: invoke(ops.where, going, new, next(olds)), after)
        return [going, kept], _map(lambda y: invoke(ops.where, going, y, 0.0), made)

    begin = invoke(ops.const, True, "bool")
    (_, last), outputs = _looped(turn, [begin, current], [], most)
    return outputs, last


def _both(running: Any, more: Any) -> Any:
    return ops.logical_and(running, _truth(more))


def _looped(turn: Turn, init: Tree, data: Sequence[NDArray], length: int) -> tuple[Tree, Tree]:
    """The last states and the stacked outputs of `turn`, which is traced once and becomes the body of a scan."""
    tracer = STATE.tracer
    assert tracer is not None
    begin = _leaves(init, "loop states")
    forms: list[Tree] = []  # the lists that the turn gave back

    def step(carries: Sequence[Node], xs: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        *slices, number = xs
        given = iter([_handle(c, like) for c, like in zip(carries, begin, strict=True)])
        with _random_turns(tracer, number, length) as varied, _without_writes(tracer, "a loop"):
            rows = [_handle(_row(x), like) for x, like in zip(slices, data, strict=True)]
            forms[:] = turn(_map(lambda _: next(given), init), rows)
            after, made = (
                [tracer.node(x) for x in _leaves(form, what)]
                for form, what in zip(forms, ("loop states", "loop outputs"), strict=True)
            )
        return [varied(n) for n in after], [varied(n) for n in made]

    xs = (*(tracer.node(x) for x in data), ops.iota((length,), 0, "u32"))
    last, stacks = ops.scan(step, [tracer.node(s) for s in begin], xs)
    results = iter([traced(n) for n in (*last, *stacks)])
    states, outputs = (_map(lambda like: _placed(next(results), like), form) for form in forms)
    return states, outputs


def _row(x: Node) -> Node:
    """What indexing gives: of a vector an element has shape (1,)."""
    return x if x.ty.rank else ops.reshape(x, (1,))


def _handle(n: Node, like: NDArray) -> NDArray:
    return _placed(traced(n), like)


def _placed(array: NDArray, like: NDArray) -> NDArray:
    array._ctx = like._ctx
    return array


@contextmanager
def _without_writes(tracer: Tracer, what: str) -> Iterator[None]:
    """Raise if arrays from outside are written within."""
    before = dict(tracer.updates)
    yield
    if changed := [name for name, n in tracer.updates.items() if before.get(name) is not n]:
        raise TraceError(
            with_user_location(
                f"{what} writes into {', '.join(changed)} while it is traced, where its body is run once for all turns",
                help="make the array a state of the loop, or write a loop in Python, which is unrolled",
            )
        )


@contextmanager
def _random_turns(tracer: Tracer, number: Node, length: int) -> Iterator[Callable[[Node], Node]]:
    """Within, draws are those of turn `number`, numbered as if the turns had been written out one after another.

    Gives the function that puts the generators' states into what was made, once the number of draws is known.
    """
    states: dict[Context, tuple[Node, Node]] = {}  # of the program, and what stands for that of the turn
    outer, counts = tracer.turn, dict(tracer.draws)

    def turn(ctx: Context, state: Node) -> Node:
        state = state if outer is None else outer(ctx, state)
        return states.setdefault(ctx, (state, fresh(state.ty)))[1]

    table: dict[Node, Node] = {}
    tracer.turn = turn
    try:
        yield lambda n: over(n, table)
    finally:
        tracer.turn = outer
    for ctx, (state, stand_in) in states.items():
        each = tracer.draws[ctx] - counts.get(ctx, 0)
        table[stand_in] = _moved_on(state, ops.mul(number, each))
        tracer.draws[ctx] += each * (length - 1)


def _moved_on(state: Node, draws: Node) -> Node:
    """A generator's state after so many draws: they are added to the two words that count them."""
    low, high = ops.part(state, 0, 2, 3), ops.part(state, 0, 3, 4)
    moved = ops.add(low, ops.reshape(draws, (1,)))
    carry = ops.cast(ops.less(moved, low), state.dtype)
    return ops.concat(ops.part(state, 0, 0, 2), moved, ops.add(high, carry))
