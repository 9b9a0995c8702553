"""Graphs as pictures: boxes for operations, kernels or layers, in columns for forward, backward and update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from html import escape
from itertools import accumulate

from gluongraph.cli.view.drawing import PHASES, Box, Drawing

_WIDTH, _HEIGHT, _ASIDE, _BELOW, _BETWEEN, _TOP = 190, 34, 12, 20, 56, 24  # pixels
_BESIDE = 4  # boxes of a phase in a line; a row of more takes several lines
_LETTERS = 30  # of a line in a box
Places = dict[int, tuple[float, float]]


def size(drawing: Drawing) -> tuple[int, int]:
    """Width and height of the picture."""
    places = _places(drawing)
    return (
        int(max((x for x, _ in places.values()), default=0.0)) + _WIDTH + 2,
        int(max((y for _, y in places.values()), default=0.0)) + _HEIGHT + 2,
    )


def picture(drawing: Drawing, marked: Collection[int] = (), style: str = "") -> str:
    """The picture as an element of its own; the marked boxes have a style."""
    width, height = size(drawing)
    places = _places(drawing)
    names = {
        phase: min(x for i, (x, _) in places.items() if drawing.boxes[i].phase == phase) for phase in _used(drawing)
    }
    heads = "".join(
        f'<rect class="f-{phase}" x="{x:.0f}" y="2" width="9" height="9"/><text x="{x + 13:.0f}" y="11">{phase}</text>'
        for phase, x in names.items()
    )
    lines = "".join(_line(drawing, places, *ends) for ends in drawing.lines)
    boxes = "".join(_box(i, box, *places[i], style if i in marked else "") for i, box in enumerate(drawing.boxes))
    frame = f'class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {frame} role="img" aria-label="graph">{heads}{lines}{boxes}</svg>'


def changed(before: Drawing, after: Drawing) -> tuple[list[int], list[int]]:
    """The boxes that are gone, and those that are new: a box with other operations in it is both."""

    def apart(one: Drawing, other: Drawing) -> list[int]:
        there: dict[tuple[str, str, tuple[tuple[str, int], ...]], int] = defaultdict(int)
        for box in other.boxes:
            there[box.name, box.phase, box.ops] += 1
        found = []
        for i, box in enumerate(one.boxes):
            there[box.name, box.phase, box.ops] -= 1
            if there[box.name, box.phase, box.ops] < 0:
                found.append(i)
        return found

    return apart(before, after), apart(after, before)


def _used(drawing: Drawing) -> list[str]:
    found = {box.phase for box in drawing.boxes}
    return [phase for phase in PHASES if phase in found]


def _places(drawing: Drawing) -> Places:
    """Where the upper left corner of each box is."""
    rows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, box in enumerate(drawing.boxes):
        rows[box.phase, box.row].append(i)
    columns = {
        phase: max(min(len(found), _BESIDE) for (p, _), found in rows.items() if p == phase) for phase in _used(drawing)
    }
    widths = [n * (_WIDTH + _ASIDE) + _BETWEEN for n in columns.values()]
    left = dict(zip(columns, (0.0, *accumulate(widths)), strict=False))
    lines = [0] * (1 + max((box.row for box in drawing.boxes), default=-1))
    for (phase, row), found in rows.items():
        if phase != "update":  # those find room further down
            lines[row] = max(lines[row], -(-len(found) // _BESIDE))
    first = [0, *accumulate(lines)]  # line of each row
    near: dict[int, list[int]] = defaultdict(list)  # of each box those of its phase that a line joins to it
    for i, j in drawing.lines:
        if drawing.boxes[i].phase == drawing.boxes[j].phase:
            near[i].append(j)
            near[j].append(i)
    places: Places = {}

    def middle(i: int) -> tuple[float, int]:
        around = [places[j][0] for j in near[i] if j in places]
        return (sum(around) / len(around) if around else 0.0), i

    free = 0  # the first line without updates
    for (phase, row), found in sorted(rows.items(), key=lambda item: item[0][1]):
        begin = max(free, first[row]) if phase == "update" else first[row]
        for at, i in enumerate(sorted(found, key=middle)):
            line, column = divmod(at, _BESIDE)
            places[i] = left[phase] + column * (_WIDTH + _ASIDE), _TOP + (begin + line) * (_HEIGHT + _BELOW)
        free = begin - (-len(found) // _BESIDE) if phase == "update" else free
    return places


def _line(drawing: Drawing, places: Places, i: int, j: int) -> str:
    """Down within the forward pass, up within the backward pass, from left to right between them."""
    (x, y), (u, v) = places[i], places[j]
    phases = drawing.boxes[i].phase, drawing.boxes[j].phase
    if phases[0] != phases[1] or y == v:
        x, y, u, v = x + _WIDTH, y + _HEIGHT / 2, u, v + _HEIGHT / 2
        middle = (x + u) / 2
        curve = f"{middle:.0f} {y:.0f} {middle:.0f} {v:.0f}"
    else:
        x, u = x + _WIDTH / 2, u + _WIDTH / 2
        y, v = (y + _HEIGHT, v) if y < v else (y, v + _HEIGHT)
        middle = (y + v) / 2
        curve = f"{x:.0f} {middle:.0f} {u:.0f} {middle:.0f}"
    return f'<path class="wire" data-ends="{i} {j}" d="M{x:.0f} {y:.0f}C{curve} {u:.0f} {v:.0f}"/>'


def _box(number: int, box: Box, x: float, y: float, style: str) -> str:
    names = " ".join(name if count == 1 else f"{count} {name}" for name, count in box.ops)
    name = box.name if len(box.name) <= _LETTERS else "…" + box.name[1 - _LETTERS :]
    inside = names if len(names) <= _LETTERS else names[: _LETTERS - 1] + "…"
    return (
        f'<g data-box="{number}"><title>{escape(box.title)}</title>'
        f'<rect class="box {style}" x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
        f'<rect class="f-{box.phase}" x="{x:.0f}" y="{y:.0f}" width="4" height="{_HEIGHT}"/>'
        f'<text class="on" x="{x + 9:.0f}" y="{y + 14:.0f}">{escape(name)}</text>'
        f'<text x="{x + 9:.0f}" y="{y + 28:.0f}">{escape(inside)}</text></g>'
    )
