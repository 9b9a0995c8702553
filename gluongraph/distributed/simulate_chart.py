"""A picture of predicted steps as SVG: for each number of ranks a bar of computation and of exposed communication."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gluongraph.distributed.simulate import Prediction

_COMPUTE, _EXPOSED = "#4c72b0", "#dd8452"
_WIDTH, _GAP, _LEFT, _TOP, _HEIGHT, _BELOW = 46, 14, 64, 48, 240, 56  # pixels
_LINES = 4  # of the scale


def svg(found: Sequence[Prediction], title: str) -> str:
    """Return the picture: bars in milliseconds, and above each the efficiency against one rank."""
    most = max(p.seconds for p in found)
    bottom = _TOP + _HEIGHT
    width = _LEFT + len(found) * (_WIDTH + _GAP) + _GAP
    parts = [f'<text x="{_LEFT}" y="14">{escape(title)}</text>', *_legend()]
    for number in range(_LINES + 1):
        y = bottom - _HEIGHT * number / _LINES
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{width}" y2="{y:.1f}" stroke="#ddd"/>')
        label = f"{most * 1e3 * number / _LINES:.3g} ms"
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for number, p in enumerate(found):
        parts += _bar(p, _LEFT + _GAP + number * (_WIDTH + _GAP), bottom, _HEIGHT / most)
    middle = (_LEFT + width) / 2
    parts.append(f'<text x="{middle:.1f}" y="{bottom + 38}" text-anchor="middle">ranks</text>')
    style = f'width="{max(width, 420)}" height="{bottom + _BELOW}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _legend() -> list[str]:
    parts = []
    for x, colour, text in ((0, _COMPUTE, "compute"), (90, _EXPOSED, "exposed communication")):
        parts.append(f'<rect x="{_LEFT + x}" y="21" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + x + 14}" y="30">{text}</text>')
    parts.append(f'<text x="{_LEFT + 240}" y="30">% efficiency</text>')
    return parts


def _bar(p: Prediction, x: float, bottom: float, scale: float) -> list[str]:
    computing, waiting = p.compute * scale, p.exposed * scale
    centre, top = x + _WIDTH / 2, bottom - computing - waiting
    return [
        f'<rect x="{x}" y="{bottom - computing:.1f}" width="{_WIDTH}" height="{computing:.1f}" fill="{_COMPUTE}"/>',
        f'<rect x="{x}" y="{top:.1f}" width="{_WIDTH}" height="{waiting:.1f}" fill="{_EXPOSED}"/>',
        f'<text x="{centre}" y="{top - 4:.1f}" text-anchor="middle">{p.efficiency:.0%}</text>',
        f'<text x="{centre}" y="{bottom + 16}" text-anchor="middle">{p.ranks}</text>',
    ]
