"""A step as text: sums first, then the kernels that lose or take most, memory, and what the passes did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gluongraph.cli.view.anatomy import KINDS, Anatomy, Step
from gluongraph.cli.view.listing import counted
from gluongraph.cli.view.sums import Sum, by_layer, by_phase
from gluongraph.cli.view.svg import MEANT, in_time
from gluongraph.compiler.memory_report import format_bytes
from gluongraph.errors import pluralize
from gluongraph.host.terminal import table

ORDERS = {
    "lost": lambda step: -step.lost,
    "time": lambda step: -step.seconds,
    "bytes": lambda step: -step.nbytes,
    "order": lambda step: step.number,
}


def text(a: Anatomy, rows: int, by: str) -> str:
    """All of it; of kernels, layers and buffers so many rows."""
    return "\n\n".join("\n".join(part) for part in _parts(a, rows, by))


def _parts(a: Anatomy, rows: int, by: str) -> Iterator[list[str]]:
    yield list(_head(a))
    if a.seconds:
        yield [_sums("phase", by_phase(a), a, rows), "", _sums("layer", by_layer(a), a, rows)]
    chosen = sorted(a.steps, key=ORDERS[by])[:rows]
    yield [f"kernels, by {by}" + _of(len(chosen), len(a.steps)), _kernels(a, chosen)]
    if a.places:
        yield list(_memory(a, rows))
    yield list(_passes(a))


def _head(a: Anatomy) -> Iterator[str]:
    kernels = len({step.kernel for step in a.steps})
    target = f" for {a.target}" if a.target else ""
    yield f"{a.name}: {pluralize(len(a.steps), 'launch')} of {pluralize(kernels, 'kernel')}{target}"
    if a.seconds:
        bound = f", {a.share:.0%} of the roofline" if a.share else ""
        yield f"{in_time(a.seconds)} in kernels{bound}" + (f" ({a.machine})" if a.machine else "")
    held = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in a.footprint.items() if nbytes)
    yield f"{format_bytes(sum(a.footprint.values()))} of memory: {held}"


def _of(shown: int, there_are: int) -> str:
    return f" ({shown} of {there_are})" if shown < there_are else ""


def _sums(what: str, sums: Sequence[Sum], a: Anatomy, rows: int) -> str:
    lines = []
    for s in sums[:rows]:
        share = s.total / a.seconds
        lines.append([s.name, s.launches, in_time(s.total), f"{share:.1%}", in_time(s.lost), _bar(share)])
    return table([what + _of(len(lines), len(sums)), ">launches", ">time", ">share", ">lost", ""], lines)


def _bar(share: float) -> str:
    return "█" * round(30 * share)


def _kernels(a: Anatomy, steps: Sequence[Step]) -> str:
    measured = [">time", ">share", ">roofline", ">lost"] if a.seconds else []
    lines = []
    for s in steps:
        times = [in_time(s.seconds), f"{s.seconds / a.seconds:.1%}"] if a.seconds else []
        bounds = [f"{s.share:.0%}" if s.bound else "", in_time(s.lost) if s.bound else ""] if a.seconds else []
        must = [f"{s.nbytes / 1e6:.3g}", f"{s.flops / 1e6:.3g}"]
        lines.append([s.number, s.kernel, s.phase, s.rule, *times, *bounds, *must, s.label, s.layer])
    return table(["#", "kernel", "phase", "rule", *measured, ">MB", ">MFLOP", "operations", "layer"], lines)


def _memory(a: Anatomy, rows: int) -> Iterator[str]:
    total = [sum(row) for row in zip(*(a.live(kind) for kind in KINDS), strict=True)]
    most = format_bytes(max(total))
    yield f"scratch: {format_bytes(a.scratch)}, of which at most {most} are live, in launch {a.peak}"
    yield _graph(total, a.scratch)
    found = a.at(a.peak)
    yield table(
        [f"live then{_of(min(rows, len(found)), len(found))}", ">size", ">at", ">launches", "is", "type", "layer"],
        [
            [p.name, format_bytes(p.nbytes), f"{p.offset:#x}", f"{p.first}-{p.last}", MEANT[p.kind], p.type, p.layer]
            for p in found[:rows]
        ],
    )


def _graph(values: Sequence[int], top: int, width: int = 100) -> str:
    """A line of blocks: of each stretch of launches the largest value, in eighths of `top`."""
    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    heights = [max(values[low:high]) / top for low, high in pairwise(edges)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * height)] for height in heights)


def _passes(a: Anatomy) -> Iterator[str]:
    for (_, before), (name, after) in pairwise(a.stages.items()):
        what = _brief(counted(before.ops, after.ops)) if before.keys != after.keys else "changes nothing"
        yield f"{name:10}{len(before.lines):5} -> {len(after.lines):<5} nodes  {what}"


def _brief(text: str, words: int = 24) -> str:
    parts = text.split()
    return text if len(parts) <= words else " ".join(parts[:words]) + " ..."
