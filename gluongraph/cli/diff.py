"""What differs between two steps, graphs or dumps: in the graph after each pass, in the launches, in memory.

  gluongraph diff train.py:make_step train.py:make_step                     # nothing: exit code 0
  gluongraph diff train.py dump                                             # a script and a folder of GG_DUMP
  gluongraph diff model.onnx --loss L2Loss --to-precision bf16-mixed        # of one model, two precisions
  gluongraph diff model.onnx --loss L2Loss --to-compile clip_norm=1.0 --json

Each side is a SUBJECT, a graph that was written out (as text by `inspect --graph`, as JSON by gluongraph.ir.serialize),
or the folder of a GG_DUMP (GG_DUMP=dump python train.py), whose graphs and plan are taken as they are. What things are
called, and where they lie in memory, makes no difference. Exit codes: 0 nothing differs, 1 something does, 2 refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluongraph.cli import Refused, subject
from gluongraph.cli.inspect import planned
from gluongraph.cli.words import count, settings
from gluongraph.host.terminal import as_json

if TYPE_CHECKING:
    from gluongraph.cli.view.exhibit import Exhibit
    from gluongraph.cli.view.listing import Listing


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    parser.add_argument("first", metavar="ONE", help="a subject, a written graph, or a folder of GG_DUMP")
    parser.add_argument("second", metavar="OTHER", nargs="?", help="another; the same if the --to options differ")
    parser.add_argument("--to-precision", metavar="P", help="of the other: its --precision")
    parser.add_argument("--to-compile", type=settings, metavar="SETTINGS", help="of the other: its --compile")
    parser.add_argument("--lines", type=count, default=12, help="changed lines shown of each part (%(default)s)")
    parser.add_argument("--json", action="store_true", help="all changed lines, for machines")
    subject.arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the differences."""
    from gluongraph.cli.view.exhibit import is_written
    from gluongraph.cli.view.listing import SAME, changes, counted

    if all(is_written(Path(name)) for name in (options.first, options.second or options.first)):
        subject.refuse_all(options, options.first)
        subject.refuse(options, ["to_precision", "to_compile"], "for steps that are made now: both sides are written")
    if options.second is None and not (options.to_precision or options.to_compile):
        raise Refused("one side is given: name the other, or say what differs with --to-precision or --to-compile")
    other = argparse.Namespace(**vars(options))
    other.precision, other.compile = options.to_precision or options.precision, options.to_compile or options.compile
    one, two = exhibit(options.first, options), exhibit(options.second or options.first, other)
    parts: list[dict[str, Any]] = []
    for name, before, after in _parts(one, two):
        found = [[mark, line] for mark, line in changes(before, after) if mark != SAME]
        told = {"part": name, "before": len(before.lines), "after": len(after.lines)}
        parts.append({**told, "counts": counted(before.ops, after.ops), "changes": found})
    memory = {name: [one.memory.get(name), two.memory.get(name)] for name in {**one.memory, **two.memory}}
    if options.json:
        as_json({"first": one.name, "second": two.name, "parts": parts, "memory": memory})
    else:
        print(f"{one.name} -> {two.name}")
        _print(parts, memory, options.lines)
    return int(any(part["changes"] for part in parts) or any(before != after for before, after in memory.values()))


def exhibit(name: str, options: argparse.Namespace) -> Exhibit:
    """One side."""
    from gluongraph.cli.view.exhibit import is_written, of_plan, written
    from gluongraph.codegen.targets import target
    from gluongraph.compiler.pipeline import stages

    if is_written(Path(name)):
        return written(Path(name))
    found = subject.find(name, options)
    if not found.batch:
        raise Refused(f"{found.name} gives no batch: say the shapes with --input, or give --data")
    planned(found)
    return of_plan(name, dict(stages(found.step.graph, target())), found.step.plan)


def _parts(one: Exhibit, two: Exhibit) -> Sequence[tuple[str, Listing, Listing]]:
    """What both have: graphs by pass, and launches.

    Raises:
        Refused: they have nothing in common that could be compared.
    """
    both = [stage for stage in one.stages if stage in two.stages]
    found = [(stage, one.listing(stage), two.listing(stage)) for stage in both]
    if one.launches and two.launches:
        found.append(("launches", one.plan, two.plan))
    if not found:
        raise Refused(
            f"{one.name} has {', '.join(one.stages)}, {two.name} has {', '.join(two.stages)}: none is in both"
        )
    return found


def _print(parts: Sequence[dict[str, Any]], memory: dict[str, list[Any]], most: int) -> None:
    shown: dict[tuple[Any, ...], str] = {}
    for part in parts:
        size = f"{part['before']}" + (f" -> {part['after']}" if part["after"] != part["before"] else "")
        if not part["changes"]:
            print(f"{part['part']}: {size}, the same")
            continue
        print(f"{part['part']}: {size}, {len(part['changes'])} lines differ  {part['counts']}")
        like = shown.setdefault((len(part["changes"]), part["counts"]), part["part"])
        if like != part["part"]:
            print(f"  as in {like}")
            continue
        for mark, line in part["changes"][:most]:
            print(f"  {mark} {line}")
        if len(part["changes"]) > most:
            print(f"  ... {len(part['changes']) - most} more; --lines shows them")
    for name, (before, after) in memory.items():
        print(f"{name}: {before} bytes" + (f" -> {after}" if after != before else ", the same"))
