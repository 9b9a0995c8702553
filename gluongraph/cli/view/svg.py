"""The pictures: where time goes, what lies where in scratch, how much of it is live, kernels under the roofline.

Elements have classes, whose colours `charts.css` gives for light and dark; `data-i` is the number of a launch and
`data-b` the name of a buffer, by which the page makes them answer to a click.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import accumulate

from gluongraph.cli.view import graphs
from gluongraph.cli.view.anatomy import KINDS, Anatomy, Place, Step
from gluongraph.cli.view.drawing import PHASES, Drawing
from gluongraph.compiler.memory_report import format_bytes

WIDTH, _LEFT, _RIGHT, _TOP, _BAND = 1000, 64, 12, 26, 8  # pixels
_INSIDE = WIDTH - _LEFT - _RIGHT
_GUTTER = 40  # between two graphs
_LETTER = 6.2  # pixels that a letter takes


def resource(name: str) -> str:
    """A file beside this one."""
    return (resources.files("gluongraph.cli.view") / name).read_text(encoding="utf-8")


def document(a: Anatomy) -> str:
    """All pictures below one another, as a file of their own."""
    pictures = [("Time", time(a)), ("Scratch", arena(a)), ("Live", live(a)), ("Roofline", roofline(a))]
    if a.drawings:
        pictures.append(("Graph", _fitted([*a.drawings.values()][-1])))
    parts, y = [], 10
    for _, (height, body) in ((title, made) for title, made in pictures if made[0]):
        parts.append(f'<g transform="translate(0 {y})">{body}</g>')
        y += height + 16
    return _file(a.name, WIDTH, y, parts)


def _fitted(drawing: Drawing) -> tuple[int, str]:
    """A graph, made narrower where it is too wide."""
    width, height = graphs.size(drawing)
    part = min(1.0, WIDTH / width)
    return math.ceil(part * height), f'<g transform="scale({part:.4f})">{graphs.picture(drawing)}</g>'


def around_a_pass(name: str, before: Drawing, after: Drawing) -> str:
    """A file with the graph before a pass, and beside it after that."""
    gone, new = graphs.changed(before, after)
    (left, one), (right, other) = graphs.size(before), graphs.size(after)
    width, height = left + _GUTTER + right, 34 + max(one, other)
    parts = []
    for x, when, drawn, marked, style in (
        (0, "before", before, gone, "gone"),
        (left + _GUTTER, "after", after, new, "new"),
    ):
        parts.append(_text(x, 16, f"{when} {name}", style="on"))
        parts.append(f'<g transform="translate({x} 26)">{graphs.picture(drawn, marked, style)}</g>')
    return _file(name, width, height, parts)


def _file(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    style = f'<style>{resource("charts.css")}</style><rect class="paper" width="100%" height="100%"/>'
    return f"{head}<title>{escape(title)}</title>{style}" + "\n".join(parts) + "</svg>\n"


def inline(picture: tuple[int, str], label: str) -> str:
    """A picture as part of a page."""
    height, body = picture
    size = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}"'
    return f"<svg {size}>{body}</svg>" if height else ""


# -- time


def time(a: Anatomy) -> tuple[int, str]:
    """A column for each launch: as wide as its time, filled as far as the roofline; what is empty is lost."""
    if not a.seconds:
        return 0, ""
    height = 190
    scale = _INSIDE / a.seconds
    ends = list(accumulate(step.seconds * scale for step in a.steps))
    parts = [_phases(a, [0.0, *ends])]
    for step, end in zip(a.steps, ends, strict=True):
        width = step.seconds * scale
        x, full = _LEFT + end - width, step.share if step.bound else 1.0
        filled = min(full, 1.0) * height
        text = f"{told(step)}\n{in_time(step.seconds)}, {step.seconds / a.seconds:.1%} of the step"
        if step.bound:
            text += f"; {step.share:.0%} of the roofline, {step.limit}"
        parts.append(
            f'<g data-i="{step.number}"><title>{escape(text)}</title>'
            + _rect(x, _TOP, width, height, f"p-{step.pattern} pale")
            + _rect(x, _TOP + height - filled, width, filled, f"p-{step.pattern}")
            + _label(x, _TOP + 12, width, step.label, "on")
            + "</g>"
        )
    parts += _ticks_across(a.seconds, scale, _TOP + height)
    if any(step.bound for step in a.steps):
        parts += [_tick(_TOP + height * (1 - v), f"{v:.0%}") for v in (0, 0.5, 1)]
    return _TOP + height + 22, "".join(parts)


def _phases(a: Anatomy, edges: Sequence[float]) -> str:
    """A band over columns that end at these edges, and the names of phases where they begin."""
    parts = []
    for step in a.steps:
        x, end = edges[step.number], edges[step.number + 1]
        parts.append(_rect(_LEFT + x, _TOP - _BAND - 2, end - x, _BAND, f"f-{step.phase}"))
    x = _LEFT
    for phase in PHASES:
        parts.append(_rect(x, 2, 9, 9, f"f-{phase}") + _text(x + 13, 10, phase))
        x += 80
    return "".join(parts)


# -- memory


def arena(a: Anatomy) -> tuple[int, str]:
    """A rectangle for each buffer in scratch: from the first launch that needs it to the last, at its offset."""
    if not a.scratch:
        return 0, ""
    height = 320
    column, scale = _columns(a), height / a.scratch
    parts = [_phases(a, [column * i for i in range(len(a.steps) + 1)])]
    for place in a.places:
        x, width = _LEFT + place.first * column, (place.last - place.first + 1) * column
        y, high = _TOP + place.offset * scale, place.nbytes * scale
        label = _label(x, y + min(high, 14) - 3, width, f"{place.name} {place.layer}") if high > 10 else ""
        parts.append(
            f'<g data-b="{escape(place.name)}"><title>{escape(told_place(place, a))}</title>'
            + _rect(x, y, max(width - 0.5, 0.5), max(high - 0.5, 0.4), f"m-{place.kind}")
            + label
            + "</g>"
        )
    parts += [_tick(_TOP + height * v, format_bytes(a.scratch * v) if v else "0") for v in (0, 0.25, 0.5, 0.75, 1)]
    parts += _launch_ticks(a, _TOP + height)
    return _TOP + height + 22, "".join(parts)


def live(a: Anatomy) -> tuple[int, str]:
    """How many bytes of scratch are needed while each launch runs, by what they are."""
    if not a.scratch:
        return 0, ""
    height = 150
    column, scale = _columns(a), height / a.scratch
    base = [0] * len(a.steps)
    parts = []
    for kind in KINDS:
        top = [low + more for low, more in zip(base, a.live(kind), strict=True)]
        parts.append(f'<path class="m-{kind}" d="{_between(base, top, column, scale, _TOP + height)}"/>')
        base = top
    peak = a.peak
    text = f"{format_bytes(max(base))} of {format_bytes(a.scratch)} are live in launch {peak}"
    x = _LEFT + (peak + 0.5) * column
    for i, step in enumerate(a.steps):
        title = f"<title>{escape(f'{told(step)}{chr(10)}{format_bytes(base[i])} live')}</title>"
        parts.append(f'<g data-i="{i}">{title}{_rect(_LEFT + i * column, _TOP, column, height, "ghost")}</g>')
    parts.append(_line(x, _TOP, x, _TOP + height, "peak"))
    parts.append(_text(x - 4, _TOP - 4, text, "end") if x > WIDTH / 2 else _text(x + 4, _TOP - 4, text))
    parts += [_tick(_TOP + height * (1 - v), format_bytes(a.scratch * v) if v else "0") for v in (0, 0.5, 1)]
    parts += _launch_ticks(a, _TOP + height)
    x, y = _LEFT, _TOP + height + 30
    for kind in KINDS:
        parts.append(_rect(x, y - 9, 9, 9, f"m-{kind}") + _text(x + 13, y, MEANT[kind]))
        x += 34 + len(MEANT[kind]) * 6
    return _TOP + height + 38, "".join(parts)


MEANT = {
    "kept": "kept from forward for gradients",
    "gradient": "gradients",
    "passing": "passing",
    "workspace": "workspaces of kernels",
}


def _columns(a: Anatomy) -> float:
    return _INSIDE / max(len(a.steps), 1)


def _between(base: Sequence[int], top: Sequence[int], column: float, scale: float, bottom: float) -> str:
    """The outline of the steps between two lines."""

    def corners(values: Sequence[int]) -> Iterator[tuple[float, float]]:
        for i, value in enumerate(values):
            y = bottom - value * scale
            yield from ((_LEFT + i * column, y), (_LEFT + (i + 1) * column, y))

    points = [*corners(top), *reversed(list(corners(base)))]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"


# -- roofline


def roofline(a: Anatomy) -> tuple[int, str]:
    """Operations a second over operations a byte, both in powers of 10; a dot's area is its time."""
    dots = [step for step in a.steps if step.seconds and step.flops and step.nbytes]
    if not a.roofs or not dots:
        return 0, ""
    height = 260
    peaks: dict[str, float] = a.roofs["flops"]
    levels = [max(level["read"], level["write"], level["add"]) for level in a.roofs["levels"]]
    low, high = _decades([s.flops / s.nbytes for s in dots] + [p / b for p in peaks.values() for b in levels])
    bottom, top = _decades([s.flops / s.seconds for s in dots] + list(peaks.values()))

    def x(intensity: float) -> float:
        return _LEFT + (math.log10(intensity) - low) / (high - low) * _INSIDE

    def y(rate: float) -> float:
        return _TOP + height - (math.log10(rate) - bottom) / (top - bottom) * height

    box = f"{_LEFT} {_TOP} {_INSIDE} {height}"
    place = f'x="{_LEFT}" y="{_TOP}" width="{_INSIDE}" height="{height}"'
    parts = [f'<svg {place} viewBox="{box}">']
    for level, rate in zip(a.roofs["levels"], levels, strict=True):
        parts.append(_line(x(10**low), y(rate * 10**low), x(10**high), y(rate * 10**high), "roof"))
        at = max(10**low, 10**bottom / rate) * 1.15
        name = f"{rate / 1e9:.0f} GB/s within {format_bytes(level['nbytes'])}"
        parts.append(_text(x(at) + 14, y(rate * at) - 6, name))
    for unit, rate in peaks.items():
        parts.append(_line(x(10**low), y(rate), x(10**high), y(rate), "roof"))
        parts.append(_text(WIDTH - _RIGHT - 4, y(rate) - 4, f"{unit} {rate / 1e9:.0f} GFLOP/s", "end"))
    for step in sorted(dots, key=lambda step: -step.seconds):
        radius = max(3.0, 60 * math.sqrt(step.seconds / a.seconds / math.pi))
        rate, moved = step.flops / step.seconds, step.nbytes / step.seconds
        rates = f"{rate / 1e9:.3g} GFLOP/s, {moved / 1e9:.3g} GB/s, {step.share:.0%} of the roofline"
        place = f'cx="{x(step.flops / step.nbytes):.1f}" cy="{y(rate):.1f}" r="{radius:.1f}"'
        dot = f'<circle class="p-{step.pattern} dot" {place}/>'
        parts.append(f'<g data-i="{step.number}"><title>{escape(f"{told(step)}{chr(10)}{rates}")}</title>{dot}</g>')
    parts.append("</svg>")
    for power in range(bottom, top + 1):
        parts.append(_tick(y(10.0**power), f"{_prefix(power)}"))
    for power in range(low, high + 1):
        parts.append(
            _text(x(10.0**power), _TOP + height + 14, f"{10.0**power:g}", "end" if power == high else "middle")
        )
    parts.append(_text(WIDTH - _RIGHT, _TOP + height + 28, "operations a byte", "end"))
    parts.append(_text(_LEFT, 12, "operations a second"))
    return _TOP + height + 34, "".join(parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around values."""
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def _prefix(power: int) -> str:
    """A power of ten with the letter for thousands."""
    unit = max(0, min(power // 3, 5))
    return f"{10.0 ** (power - 3 * unit):g} {' kMGTP'[unit]}".strip()


# -- parts


def told(step: Step) -> str:
    """A launch in a line."""
    return f"{step.number} {step.kernel} {step.label}" + (f" ({step.layer})" if step.layer else "")


def told_place(place: Place, a: Anatomy) -> str:
    """A buffer in two lines."""
    until = f"from launch {place.first} to {place.last}" if place.last > place.first else f"in launch {place.first}"
    return f"{place.name} {place.type}, {place.layer or a.steps[place.first].label}\n" + (
        f"{format_bytes(place.nbytes)} at {place.offset:#x}, {until}; {MEANT[place.kind]}"
    )


def in_time(seconds: float) -> str:
    """Seconds for people.

    >>> in_time(0.0000123), in_time(0.25)
    ('12.3 us', '250 ms')
    """
    unit, size = next((pair for pair in (("s", 1.0), ("ms", 1e-3)) if seconds >= pair[1]), ("us", 1e-6))
    return f"{seconds / size:.3g} {unit}"


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _label(x: float, y: float, width: float, text: str, style: str = "in") -> str:
    """As much of a text as there is room for; nothing if that is next to nothing."""
    room = int((width - 6) / _LETTER)
    if room < 3:
        return ""
    shown = text if len(text) <= room else text[: room - 1] + "…"
    return _text(x + 3, y, shown, style=style)


def _tick(y: float, text: str) -> str:
    return _line(_LEFT - 4, y, WIDTH - _RIGHT, y, "grid") + _text(_LEFT - 8, y + 4, text, "end")


def _ticks_across(total: float, scale: float, y: float) -> list[str]:
    """Marks along a time axis, at 1, 2 or 5 times a power of ten."""
    rough = total / 6
    power = 10.0 ** math.floor(math.log10(rough))
    each = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    times = [i * each for i in range(int(total / each) + 1)]
    return [_text(_LEFT + t * scale, y + 14, in_time(t) if t else "0", "middle") for t in times]


def _launch_ticks(a: Anatomy, y: float) -> list[str]:
    each = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if len(a.steps) / n <= 16)
    column = _columns(a)
    return [_text(_LEFT + (i + 0.5) * column, y + 14, str(i), "middle") for i in range(0, len(a.steps), each)]
