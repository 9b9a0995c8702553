"""A step as one page for a browser: everything is in it, so that it can be sent to somebody and opened anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from gluongraph.cli.view import graphs, svg
from gluongraph.cli.view.anatomy import Anatomy, Step
from gluongraph.cli.view.drawing import MOST, PHASES, Drawing
from gluongraph.cli.view.listing import GONE, NEW, SAME, Change, Listing, changes, counted, excerpt
from gluongraph.cli.view.sums import Sum, by_layer, by_pattern
from gluongraph.cli.view.svg import in_time, resource
from gluongraph.compiler.memory_report import format_bytes
from gluongraph.errors import pluralize

_ROWS = 12  # of a summary


def page(a: Anatomy) -> str:
    """The whole file."""
    sections = {
        "Time": _time(a),
        "Kernels": _kernels(a),
        "Memory": _memory(a),
        "Roofline": _figure(svg.inline(svg.roofline(a), "roofline")) if a.roofs else "",
        "Graph by pass": _stages(a.stages, a.drawings),
    }
    made = {title: body for title, body in sections.items() if body}
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in made)
    parts = [f'<section id="{_anchor(title)}"><h2>{title}</h2>{body}</section>' for title, body in made.items()]
    data = json.dumps(_data(a), separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(a.name)} · gluongraph</title>'
        f"<style>{resource('charts.css')}{resource('page.css')}</style></head><body>\n"
        f"<header><h1>{escape(a.name)}</h1><nav>{links}</nav>{_cards(a)}</header>\n<main>"
        + "\n".join(parts)
        + '</main>\n<aside id="detail" hidden></aside>\n'
        + f'<script type="application/json" id="data">{data}</script>\n<script>{resource("page.js")}</script>\n'
        + "</body></html>\n"
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _data(a: Anatomy) -> dict[str, Any]:
    """What the page's script needs for details."""
    data = a.data()
    return {key: data[key] for key in ("steps", "places", "bodies")}


def _cards(a: Anatomy) -> str:
    kernels = len({step.kernel for step in a.steps})
    rows = [("launches", str(len(a.steps)), pluralize(kernels, "distinct kernel"))]
    if a.seconds:
        rows.insert(0, ("time of a step", in_time(a.seconds), "its kernels, one after the other"))
    if a.share:
        rows.insert(1, ("of the roofline", f"{a.share:.0%}", f"{in_time(sum(s.lost for s in a.steps))} lost"))
    if a.footprint:
        total = sum(a.footprint.values())
        rows.append(("memory", format_bytes(total), f"{format_bytes(a.scratch)} of it scratch"))
    cards = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>" for name, value, more in rows)
    about = " · ".join(escape(text) for text in (a.target, a.machine) if text)
    return f'<dl class="cards">{cards}</dl>' + (f'<p class="about">{about}</p>' if about else "")


def _figure(picture: str, caption: str = "") -> str:
    told = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure>{told}<div class="scroll">{picture}</div></figure>' if picture else ""


# -- time


def _time(a: Anatomy) -> str:
    if not a.seconds:
        return ""
    told = "A column for each launch, in order: as wide as the time it takes, filled up to its share of the roofline."
    layers = _bars("by layer", by_layer(a), a.seconds, phases=True)
    patterns = _bars("by kind of kernel", by_pattern(a), a.seconds, phases=False)
    return _figure(svg.inline(svg.time(a), "time of each launch"), told) + f'<div class="pair">{layers}{patterns}</div>'


def _bars(title: str, rows: Sequence[Sum], total: float, phases: bool) -> str:
    """A line for each sum with a bar, by phase or with the part that is lost."""
    longest = max((row.total for row in rows), default=0.0) or 1.0
    lines = []
    for row in rows[:_ROWS]:
        if phases:
            bars = [(f"f-{phase}", row.seconds[phase]) for phase in PHASES]
        else:
            bars = [(f"p-{row.name}", row.total - row.lost), (f"p-{row.name} pale", row.lost)]
        drawn = "".join(f'<i class="{style}" style="width:{100 * v / longest:.2f}%"></i>' for style, v in bars if v)
        told = f"{in_time(row.total)} <small>{row.total / total:.0%}</small>"
        lines.append(f'<tr><th>{escape(row.name)}</th><td class="bar">{drawn}</td><td class="n">{told}</td></tr>')
    rest = f"<caption>{title}; {len(rows) - _ROWS} smaller ones are left out</caption>" if len(rows) > _ROWS else ""
    return f'<table class="bars">{rest or f"<caption>{title}</caption>"}{"".join(lines)}</table>'


# -- kernels

COLUMNS = (
    *("#", "kernel", "operations", "layer", "phase", "rule", "time", "%", "roofline", "lost", "limit"),
    *("MB", "MFLOP", "GB/s", "GFLOP/s", "line"),
)
_TEXTS = {"kernel", "operations", "layer", "phase", "rule", "limit", "line"}
_MEASURED = {"time", "%", "roofline", "lost", "limit", "GB/s", "GFLOP/s"}


def _kernels(a: Anatomy) -> str:
    shown = [c for c in COLUMNS if a.seconds or c not in _MEASURED]
    head = "".join(f'<th{"" if c in _TEXTS else " class=n"}><button type="button">{c}</button></th>' for c in shown)
    body = "".join(_row(a, step, shown) for step in a.steps)
    return (
        '<p><input type="search" id="filter" placeholder="layer, operation, rule …" aria-label="filter kernels"> '
        '<span id="shown" class="soft"></span></p><div class="scroll tall">'
        f'<table id="launches"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(a: Anatomy, step: Step, columns: Sequence[str]) -> str:
    cells = _cells(a, step)
    made = []
    for column in columns:
        value, text = cells[column]
        if column == "roofline" and step.bound:
            text = f'<span class="meter"><i style="width:{min(100.0, 100 * step.share):.0f}%"></i></span>{text}'
        if column == "phase":
            text = f'<i class="dot f-{step.phase}"></i>{text}'
        style = "" if column in _TEXTS else " class=n"
        made.append(f'<td{style} data-v="{escape(str(value))}">{text}</td>')
    return f'<tr data-i="{step.number}" tabindex="0">{"".join(made)}</tr>'


def _cells(a: Anatomy, step: Step) -> dict[str, tuple[object, str]]:
    """What each column sorts by, and shows."""
    seconds = step.seconds or 1.0
    return {
        "#": (step.number, str(step.number)),
        "kernel": (step.kernel, step.kernel),
        "operations": (step.label, escape(step.label)),
        "layer": (step.layer, escape(step.layer)),
        "phase": (PHASES.index(step.phase), step.phase),
        "rule": (step.rule, step.rule),
        "time": (f"{step.seconds:.9f}", in_time(step.seconds)),
        "%": (f"{step.seconds:.9f}", f"{step.seconds / (a.seconds or 1.0):.1%}"),
        "roofline": (f"{step.share:.4f}", f"{step.share:.0%}" if step.bound else ""),
        "lost": (f"{step.lost:.9f}", in_time(step.lost) if step.bound else ""),
        "limit": (step.limit, step.limit),
        "MB": (step.nbytes, f"{step.nbytes / 1e6:.3g}"),
        "MFLOP": (step.flops, f"{step.flops / 1e6:.3g}"),
        "GB/s": (f"{step.nbytes / seconds:.0f}", f"{step.nbytes / seconds / 1e9:.3g}"),
        "GFLOP/s": (f"{step.flops / seconds:.0f}", f"{step.flops / seconds / 1e9:.3g}"),
        "line": (step.place, escape(step.place)),
    }


# -- memory


def _memory(a: Anatomy) -> str:
    held = "".join(_held(a.footprint)) if a.footprint else ""
    arena = "What lies where in scratch: from the launch that first needs it to the last one, at its offset."
    parts = [
        held,
        _figure(svg.inline(svg.live(a), "live bytes"), "What of scratch is needed while each launch runs."),
        _figure(svg.inline(svg.arena(a), "scratch arena"), arena),
    ]
    return "".join(parts) + (_at_peak(a) if a.places else "")


def _held(footprint: Mapping[str, int]) -> Iterator[str]:
    total = sum(footprint.values()) or 1
    yield '<p class="held">'
    for number, (name, nbytes) in enumerate(footprint.items()):
        if nbytes:
            yield f'<i class="h{number}" style="flex:{nbytes / total:.4f}" title="{name} {format_bytes(nbytes)}"></i>'
    yield '</p><ul class="legend">'
    for number, (name, nbytes) in enumerate(footprint.items()):
        if nbytes:
            told = f"{name} <b>{format_bytes(nbytes)}</b> <small>{nbytes / total:.0%}</small>"
            yield f'<li><i class="dot h{number}"></i>{told}</li>'
    yield "</ul>"


def _at_peak(a: Anatomy) -> str:
    found = a.at(a.peak)
    rows = "".join(
        f'<tr data-b="{escape(p.name)}" tabindex="0"><td><i class="dot m-{p.kind}"></i>{escape(p.name)}</td>'
        f"<td>{p.type}</td><td class=n>{format_bytes(p.nbytes)}</td><td>{escape(p.layer)}</td>"
        f"<td>{svg.MEANT[p.kind]}</td><td class=n>{p.first} to {p.last}</td></tr>"
        for p in found[:_ROWS]
    )
    more = f", the {_ROWS} largest of {len(found)}" if len(found) > _ROWS else ""
    head = (
        "<tr><th>buffer</th><th>type</th><th class=n>size</th><th>layer</th><th>is</th><th class=n>launches</th></tr>"
    )
    caption = f"<caption>live in launch {a.peak}, the peak{more}</caption>"
    return f'<div class="scroll"><table>{caption}<thead>{head}</thead><tbody>{rows}</tbody></table></div>'


# -- graphs


def _stages(stages: Mapping[str, Listing], drawings: Mapping[str, Drawing]) -> str:
    if not stages:
        return ""
    (first, traced), *_ = stages.items()
    told = f"In the end: a box for each kernel, for those of a layer where there are more than {MOST}. Point at one."
    parts = [_figure(graphs.picture([*drawings.values()][-1]), told)]
    whole = _figure(graphs.picture(drawings[first]))
    text = _lines([(SAME, line) for line in traced.lines])
    parts.append(_opened(f"<b>{first}</b> {len(traced.lines)} nodes", whole, text))
    for (earlier, before), (name, after) in pairwise(stages.items()):
        count = f"{len(before.lines)} → {len(after.lines)} nodes"
        if before.keys == after.keys:
            parts.append(f'<p class="stage soft"><b>{name}</b> changes nothing</p>')
            continue
        told = f"<b>{name}</b> {count} <small>{escape(counted(before.ops, after.ops))}</small>"
        parts.append(_opened(told, _pair(drawings[earlier], drawings[name]), _lines(excerpt(changes(before, after)))))
    parts.append("<p class=soft>- before the pass, + after it. Names are given while printing, v0, v1, ...</p>")
    return "".join(parts)


def _pair(before: Drawing, after: Drawing) -> str:
    """The pictures of a graph before and after a pass, what has changed in them marked."""
    gone, new = graphs.changed(before, after)
    pictures = (("before", graphs.picture(before, gone, "gone")), ("after", graphs.picture(after, new, "new")))
    return f'<div class="twins">{"".join(_figure(drawn, caption) for caption, drawn in pictures)}</div>'


def _opened(title: str, pictures: str, text: str) -> str:
    inside = f'{pictures}<div class="scroll tall">{text}</div>'
    return f'<details class="stage"><summary>{title}</summary>{inside}</details>'


def _lines(found: Sequence[Change]) -> str:
    styles = {SAME: "same", GONE: "gone", NEW: "new"}
    text = "\n".join(f'<span class="{styles[m]}">{m} {escape(line)}</span>' for m, line in found)
    return f"<pre>{text}</pre>"
