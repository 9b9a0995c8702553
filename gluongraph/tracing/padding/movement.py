"""Rules of movement: where padding comes to lie."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.tracing.padding.layout import (
    UNIFORM,
    Axis,
    Factor,
    Refusal,
    fixed,
    is_fixed,
    joined,
    merged,
    need_fixed,
    regrouped,
    sizes,
)
from gluongraph.tracing.padding.masking import Masking, Value, kept
from gluongraph.tracing.padding.table import rule


@rule("reshape", varies=("shape",))
def _reshape(m: Masking, a: Node, b: Node, x: Value) -> Value:
    return Value(kept(a, x), regrouped(x.layout, a.shape, b.shape))


@rule("transpose")
def _transpose(m: Masking, a: Node, b: Node, x: Value) -> Value:
    return Value(kept(a, x), tuple(x.layout[k] for k in a.attrs["axes"]))


@rule("expand", varies=("shape",))
def _expand(m: Masking, a: Node, b: Node, x: Value) -> Value:
    each = zip(x.layout, a.src[0].shape, b.src[0].shape, a.shape, b.shape, strict=True)
    layout = tuple(
        axis if (old, old_other) == (new, new_other) else m.extents.axis(new, new_other)
        for axis, old, old_other, new, new_other in each
    )
    return Value(kept(a, x), layout)


@rule("slice", varies=("begin", "end"))
def _slice(m: Masking, a: Node, b: Node, x: Value) -> Value:
    layout, last = list(x.layout), dict[int, tuple[Factor, int]]()
    for k, axis in enumerate(x.layout):
        mine, others = ((n.attrs["begin"][k], n.attrs["end"][k], n.src[0].shape[k]) for n in (a, b))
        stride = a.attrs["strides"][k]
        if mine[:2] == (0, mine[2]) and others[:2] == (0, others[2]) and stride == 1:
            continue
        if is_fixed(axis):
            layout[k] = _cut_table(m, mine, others, stride)
        elif axis[0].name == UNIFORM and len(axis) == 1:
            layout[k] = m.extents.axis(a.shape[k], b.shape[k])
        else:
            layout[k] = _cut(m, k, axis, mine, others, stride, last)
    return Value(_last(m, a, x, last) if last else kept(a, x), tuple(layout))


Cut = tuple[int, int, int]  # begin, end, extent


def _cut_table(m: Masking, mine: Cut, others: Cut, stride: int) -> Axis:
    """The axis after a slice of one that is fixed: as many elements of a table as a length says."""
    (begin, end, _), (begin_other, end_other, _) = mine, others
    if mine == others:
        return fixed(-(-(end - begin) // stride))
    if begin != begin_other or stride != 1:
        raise Refusal("where it begins depends on a length")
    return m.leading(m.extents.axis(end - begin, end_other - begin), "it takes a part")


def _cut(
    m: Masking, number: int, axis: Axis, mine: Cut, others: Cut, stride: int, last: dict[int, tuple[Factor, int]]
) -> Axis:
    """The axis after a slice; where it counts from the end, `last` gets where it begins."""
    f = m.single(axis, "it takes a part")
    (begin, end, size), (begin_other, end_other, size_other) = mine, others
    if begin == begin_other and end == end_other:  # so many of the first
        m.need(f, end)
        return fixed(-(-(end - begin) // stride))
    if stride != 1:
        raise Refusal("it takes every so many elements")
    from_end = size - end == size_other - end_other
    if begin == begin_other and from_end:
        offset = f.offset - begin - (size - end)
        m.need(f, begin + (size - end) + 1)
        return m.extents.free(f.name, offset)
    if size - begin == size_other - begin_other and from_end:  # so many of the last
        m.need(f, size - begin)
        last[number] = f, size - begin
        return fixed(end - begin)
    raise Refusal("it takes a part that follows the lengths in a way that is not known")


def _last(m: Masking, a: Node, x: Value, last: dict[int, tuple[Factor, int]]) -> Node:
    """A slice that counts from the end of the valid elements along some axes."""
    begin, end = list(a.attrs["begin"]), list(a.attrs["end"])
    for k in last:
        begin[k], end[k] = 0, a.src[0].shape[k]
    found = ops.slice(x.node, begin, end, a.attrs["strides"])
    for k, (f, before) in last.items():
        index = ops.iota((a.shape[k],)) + (m.length(f) - before)
        found = ops.take(found, index, k)
    return found


@rule("concat")
def _concat(m: Masking, a: Node, b: Node, *xs: Value) -> Value:
    axis = a.attrs["axis"]
    others = [tuple(n for k, n in enumerate(x.layout) if k != axis) for x in xs]
    layout = list(joined(others))
    layout.insert(axis, _chained(m, [m.extents.named(x.layout[axis]) for x in xs]))
    return Value(kept(a, *xs), tuple(layout))


def _chained(m: Masking, axes: list[Axis]) -> Axis:
    """Axes one behind another: fixed ones and then one that is free, or the same one several times."""
    if all(axis == axes[0] for axis in axes) and not is_fixed(axes[0]):
        return merged((Factor(len(axes), len(axes)), *axes[0]))
    if not all(map(is_fixed, axes[:-1])):
        raise Refusal("it joins others behind elements of which the number varies")
    before = sum(sizes((axis,))[0][0] for axis in axes[:-1])
    if is_fixed(axes[-1]):
        return fixed(before + sizes((axes[-1],))[0][0])
    f = m.single(axes[-1], "it joins others before a product")
    return m.extents.free(f.name, f.offset + before)


@rule("pad", varies=("before", "after"))
def _pad(m: Masking, a: Node, b: Node, x: Value) -> Value:
    """What is added behind the valid elements begins within the padding: that becomes the value."""
    layout, filled = list(x.layout), []
    for k, axis in enumerate(x.layout):
        before, after = ((n.attrs["before"][k], n.attrs["after"][k]) for n in (a, b))
        if before == after == (0, 0):
            continue
        if is_fixed(axis):
            layout[k] = m.extents.axis(a.shape[k], b.shape[k])
            if not is_fixed(layout[k]):
                raise Refusal("it adds elements of which the number varies")
            continue
        f = m.single(axis, "it adds elements to a product")
        if before[0] != after[0]:
            raise Refusal("it adds elements in front of which the number varies")
        if before[1] or after[1]:
            filled.append(k)
        if a.shape[k] == b.shape[k]:  # up to a fixed extent
            layout[k] = fixed(a.shape[k])
        elif before[1] == after[1]:
            layout[k] = m.extents.free(f.name, f.offset + sum(before))
        else:
            raise Refusal("it adds elements of which the number varies")
    source = Value(m.filled(x, filled, a.attrs["value"]), x.layout) if filled else x
    return Value(kept(a, source), tuple(layout))


@rule("flip")
def _flip(m: Masking, a: Node, b: Node, x: Value) -> Value:
    """Along a free axis the valid elements change places among themselves."""
    free = [k for k in a.attrs["axes"] if not is_fixed(x.layout[k])]
    rest = [k for k in a.attrs["axes"] if k not in free]
    node = ops.flip(x.node, rest) if rest else x.node
    for k in free:
        f = m.single(x.layout[k], "it reverses an axis")
        node = ops.take(node, m.length(f) - 1 - ops.iota((a.shape[k],)), k)
    return Value(node, x.layout)


@rule("depth_windows")
def _depth_windows(m: Masking, a: Node, b: Node, x: Value) -> Value:
    n, c, depth, h, w = x.layout
    need_fixed("the depth", depth)
    return Value(kept(a, x), (n, fixed(a.shape[1]), c, fixed(a.shape[3]), h, w))


@rule("depth_windows_grad")
def _depth_windows_grad(m: Masking, a: Node, b: Node, g: Value) -> Value:
    n, places, c, kernel, h, w = g.layout
    need_fixed("the depth", places, kernel)
    return Value(kept(a, g), (n, c, fixed(a.shape[2]), h, w))
