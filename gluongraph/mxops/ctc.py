"""Connectionist temporal classification as a builder over nodes: MXNet's CTCLoss.

The probability of a label is the sum over all paths of T symbols that give it when repeated symbols are merged and
blanks are dropped (Graves et al., 2006). With the label's symbols l at the odd places of a row of 2L + 1 blanks, a[s]
is the logarithm of the probability of all beginnings of paths that end at place s:

    a[s] <- log(e^a[s] + e^a[s-1] + e^a[s-2] where s is a symbol unlike that of s-2) + log p(symbol at s)

once for each frame. It is one scan, whose gradient is the scan backwards.
"""

from __future__ import annotations

from functools import reduce

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node

NEVER = -1e30  # the logarithm of a probability of 0: finite, so that differences of two of them are numbers


def CTCLoss(
    data: Node,
    label: Node,
    data_lengths: Node | None = None,
    label_lengths: Node | None = None,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: str = "first",
) -> Node:
    """-log p(label | data) of each sequence, (N,), for scores `data` (T, N, C) and labels (N, L).

    The blank is class 0 and 0 ends a label (`blank_label` "first"), or it is class C - 1 and -1 ends a label ("last"),
    unless `label_lengths` (N,) tells the lengths. `data_lengths` (N,) says how many of the T frames count. A label that
    needs more frames than there are costs 0 and has no gradient. Behind its end a label may hold anything.

    Raises:
        IndexRangeError: when it is computed, a label holds what is no class.
    """
    if blank_label not in ("first", "last"):
        raise MXNetError(with_user_location(f"CTCLoss: blank_label is 'first' or 'last', not {blank_label!r}"))
    frames = data_lengths if use_data_lengths else None
    symbols = label_lengths if use_label_lengths else None
    _check(data, label, frames, symbols)
    blank, end = (0, 0) if blank_label == "first" else (data.shape[2] - 1, -1)
    symbols = _length_of(label, end) if symbols is None else _held(symbols, label.shape[1])
    label = _classes(label, symbols, data.shape[2], end)
    frames = None if frames is None else _held(frames, data.shape[0])
    data = data if frames is None else _within(data, frames)
    log_p = ops.log_softmax(ops.cast(data, "f64" if data.dtype == "f64" else "f32"), axis=2)
    cost, enough = negative_log_likelihood(log_p, label, frames, symbols, blank)
    return ops.cast(ops.where(enough, cost, 0.0), data.dtype)


ctc_loss = CTCLoss


def negative_log_likelihood(
    log_p: Node, label: Node, frames: Node | None, symbols: Node, blank: int
) -> tuple[Node, Node]:
    """-log p(label), (N,), from log-probabilities (T, N, C), labels (N, L) and how many of their symbols count, all
    i32; and whether there are enough frames for the label, without which the first is meaningless."""
    total = _total(_last(log_p, label, frames, blank), symbols)
    enough = ops.less_equal(symbols + _repeats(label, symbols), log_p.shape[0] if frames is None else frames)
    return ops.neg(total), enough


def _check(data: Node, label: Node, frames: Node | None, symbols: Node | None) -> None:
    batch = data.shape[1:2]
    if data.ty.rank != 3 or label.ty.rank != 2 or label.shape[:1] != batch:
        help = "scores are (T, N, C), labels (N, L)"
        raise ShapeError(with_user_location(f"CTCLoss: labels {label.ty} do not fit scores {data.ty}", help=help))
    if not 0 < label.shape[1] <= data.shape[0]:
        what = f"CTCLoss: labels of {label.shape[1]} symbols need as many frames, and there are {data.shape[0]}"
        raise ShapeError(with_user_location(what, help="cut the padding of the labels"))
    for name, lengths in (("data_lengths", frames), ("label_lengths", symbols)):
        if lengths is not None and lengths.shape != batch:
            raise ShapeError(
                with_user_location(f"CTCLoss: {name} {lengths.ty} is not one number for each of {data.ty}")
            )


def _held(lengths: Node, most: int) -> Node:
    return ops.minimum(ops.maximum(ops.cast(lengths, "i32"), 0), most)


def _within(data: Node, frames: Node) -> Node:
    """The scores of the frames that count, 0 in the others: what stands there must not be seen, NaN or not."""
    counts = ops.less(ops.iota(data.shape[:2], 0, "i32"), ops.reshape(frames, (1, -1)))
    return ops.where(ops.reshape(counts, (*data.shape[:2], 1)), data, 0.0)


def _classes(label: Node, symbols: Node, count: int, end: int) -> Node:
    """The labels as integers; each that counts has to be a class. The blank may be one, as in MXNet."""
    blank = "first" if end == 0 else "last"
    help = (
        f"the {blank} of the {count} classes is the blank; {end} ends a label, unless label_lengths say where it ends"
    )
    counts = _counts(label, symbols)
    checked = ops.checked_index(label, count, counts=counts, what="CTCLoss: label", help=help)
    return ops.cast(checked, "i32")


def _counts(label: Node, symbols: Node) -> Node:
    """Does a place of a label stand before its end?"""
    return ops.less(ops.iota(label.shape, 1, "i32"), ops.reshape(symbols, (-1, 1)))


def _length_of(label: Node, end: int) -> Node:
    """How many symbols stand before the first `end`."""
    label = label if is_float(label.dtype) or label.dtype == "i64" else ops.cast(label, "i32")
    ended = ops.cumsum(ops.cast(ops.equal(label, end), "i32"), axis=1)
    return ops.sum(ops.cast(ops.equal(ended, 0), "i32"), axis=1)


def _repeated(label: Node) -> Node:
    """Is a symbol that of the place before? Of the first one: no."""
    length = label.shape[1]
    same = ops.equal(ops.part(label, 1, 1, length), ops.part(label, 1, 0, length - 1))
    return ops.pad(same, (0, 1), (0, 0), False)


def _repeats(label: Node, symbols: Node) -> Node:
    """How often a symbol follows itself: there the path needs a blank between."""
    return ops.sum(ops.cast(ops.logical_and(_repeated(label), _counts(label, symbols)), "i32"), axis=1)


def _last(log_p: Node, label: Node, frames: Node | None, blank: int) -> Node:
    """a[s] after the last frame, (N, 2L + 1), from log-probabilities (T, N, C) and labels (N, L)."""
    turns, batch, _ = log_p.shape
    places = _between(ops.full(label.shape, blank, "i32"), label)
    skips = _between(ops.full(label.shape, False, "bool"), ops.logical_not(_repeated(label)))
    index = ops.expand(ops.reshape(places, (1, *places.shape)), (turns, *places.shape))
    stacks = [ops.maximum(ops.gather(log_p, index, axis=2), NEVER)]
    if frames is not None:
        stacks.append(ops.less(ops.iota((turns, batch), 0, "i32"), ops.reshape(frames, (1, batch))))

    def turn(carries: tuple[Node, ...], slices: tuple[Node, ...]) -> tuple[list[Node], list[Node]]:
        (before,), (likely, *going) = carries, slices
        after = _log_sum(before, _moved(before, 1), ops.where(skips, _moved(before, 2), NEVER)) + likely
        for goes in going:  # what has ended stays what it is
            after = ops.where(ops.reshape(goes, (batch, 1)), after, before)
        return [after], []

    start = ops.where(ops.equal(ops.iota(places.shape, 1, "i32"), 0), ops.full(places.shape, 0.0, log_p.dtype), NEVER)
    (last,), _ = ops.scan(turn, [start], stacks)
    return last


def _between(even: Node, odd: Node) -> Node:
    """A row (N, 2L + 1) that has one at the even places and the other between."""
    rows, length = odd.shape
    both = ops.reshape(ops.stack(even, odd, axis=2), (rows, 2 * length))
    return ops.concat(both, ops.part(even, 1, 0, 1), axis=1)


def _moved(x: Node, places: int) -> Node:
    return ops.pad(ops.part(x, 1, 0, x.shape[1] - places), (0, places), (0, 0), NEVER)


def _log_sum(*xs: Node) -> Node:
    """log Σ e^x without overflow."""
    most: Node = ops.stop_gradient(reduce(ops.maximum, xs))
    return most + ops.log(reduce(ops.add, [ops.exp(x - most) for x in xs]))


def _total(last: Node, symbols: Node) -> Node:
    """log of the sum at the two places where a path may end: the last symbol, and the blank behind it."""
    place, end = ops.iota(last.shape, 1, "i32"), ops.reshape(symbols * 2, (-1, 1))
    ends = ops.logical_or(ops.equal(place, end), ops.equal(place, end - 1))
    final = ops.where(ends, last, NEVER)
    most = ops.stop_gradient(ops.max(final, axis=1, keepdims=True))
    total = ops.sum(ops.exp(final - most), axis=1)
    return ops.log(total) + ops.reshape(most, total.shape)
