"""Bars of how long peers take, in units of gluongraph's time: SVG by the lines below, PNG where matplotlib is."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from html import escape
from pathlib import Path

from gluongraph.host.interrupts import import_whole

Ratios = Mapping[str, Mapping[str, float]]

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_BAR, _GAP, _LEFT, _WIDTH, _RIGHT = 14, 12, 130, 520, 60  # pixels


def refuses(path: Path) -> str:
    """Why no chart can be written there; '' if one can."""
    if path.suffix not in (".svg", ".png"):
        return f"{path}: a chart is an .svg or a .png"
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        return f"{path}: PNG needs matplotlib; an .svg needs nothing"
    if not path.absolute().parent.is_dir():
        return f"{path}: there is no such folder"
    return ""


def draw(ratios: Ratios, path: Path) -> None:
    """Write the chart."""
    if path.suffix == ".svg":
        path.write_text(svg(ratios), encoding="utf-8")
    else:
        _png(ratios, path)


def peers_of(ratios: Ratios) -> list[str]:
    """All peers, in order of appearance."""
    return list(dict.fromkeys(peer for found in ratios.values() for peer in found))


def svg(ratios: Ratios) -> str:
    """A group of bars for each workload; the line is gluongraph's time."""
    peers = peers_of(ratios)
    scale = _WIDTH / max([1.5, *(ratio for found in ratios.values() for ratio in found.values())])
    parts, y = [], 40
    for x, (peer, colour) in enumerate(zip(peers, COLOURS, strict=False)):
        parts.append(f'<rect x="{_LEFT + 110 * x}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 14 + 110 * x}" y="17">{escape(peer)}</text>')
    for name, found in ratios.items():
        middle = y + _BAR * max(len(found), 1) / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for peer, ratio in found.items():
            width, colour = ratio * scale, COLOURS[peers.index(peer) % len(COLOURS)]
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{_LEFT + width + 4:.1f}" y="{y + 10}">{ratio:.2f}</text>')
            y += _BAR
        y += _GAP
    one = _LEFT + scale
    parts.append(f'<line x1="{one:.1f}" y1="30" x2="{one:.1f}" y2="{y}" stroke="black" stroke-dasharray="3"/>')
    parts.append(f'<text x="{one:.1f}" y="{y + 14}" text-anchor="middle">1 = gluongraph</text>')
    size = f'width="{_LEFT + _WIDTH + _RIGHT}" height="{y + 24}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _png(ratios: Ratios, path: Path) -> None:
    figures = import_whole("matplotlib.figure")
    peers = peers_of(ratios)
    figure = figures.Figure(figsize=(8, 1 + 0.2 * sum(len(found) + 1 for found in ratios.values())))
    axes = figure.add_subplot()
    for number, peer in enumerate(peers):
        places = [w + number * 0.8 / len(peers) for w in range(len(ratios))]
        heights = [found.get(peer, 0.0) for found in ratios.values()]
        axes.barh(places, heights, 0.8 / len(peers), label=peer, color=COLOURS[number % len(COLOURS)])
    axes.axvline(1, color="black", linestyle=":")
    axes.set_yticks([w + 0.4 for w in range(len(ratios))], list(ratios))
    axes.invert_yaxis()
    axes.set_xlabel("step time / gluongraph's")
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=120)
