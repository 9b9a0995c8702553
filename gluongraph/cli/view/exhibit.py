"""What can be looked at or held against something else: the graphs and the launches of a step, a file or a dump."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gluongraph.cli import Refused
from gluongraph.cli.view.listing import Listing, listing
from gluongraph.errors import FormatError
from gluongraph.ir import printer, serialize
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import Plan

_STAGE = re.compile(r"(\d\d)_(\w+)\.py")
CASE, INPUTS = "graph.json", "inputs.safetensors"  # what `replay -o folder` writes
_NUMBER = re.compile(r"^\d+ +k\d+ +", re.M)
_PLACE = re.compile(r"(\w[^ ,:;]*):(\w+\[[\d,]*\])\((\w+)[^)]*\)")


@dataclass(frozen=True)
class Exhibit:
    """Graphs by the pass that made them, and the launches of the plan: a line each as `show_plan` has them."""

    name: str
    stages: Mapping[str, Graph]
    launches: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)

    def listing(self, stage: str) -> Listing:
        """The graph after a pass, line by line."""
        return listing(self.stages[stage])

    @property
    def plan(self) -> Listing:
        """The launches, line by line; where things lie, and what they are called, makes no difference."""
        keys = [_PLACE.sub(r"\2(\3)", line.partition("  # ")[0].partition("; in place")[0]) for line in self.launches]
        return Listing(self.launches, tuple(keys), tuple(line.split("  ")[0] for line in self.launches))


def is_written(path: Path) -> bool:
    """Does a path hold a written graph: a dump's folder, a case for `replay`, JSON, or a text of `printer.show`?"""
    if path.is_dir():
        return (path / CASE).exists() or any(_STAGE.fullmatch(file.name) for file in path.iterdir())
    if path.suffix == ".json":
        return path.is_file()
    return path.suffix == ".py" and path.is_file() and _is_text(path)


def _is_text(path: Path) -> bool:
    """One function and nothing else, whose annotations are types: no script is like that."""
    try:
        (function,) = ast.parse(path.read_text(errors="replace", encoding="utf-8")).body
    except (ValueError, SyntaxError):
        return False
    return isinstance(function, ast.FunctionDef) and isinstance(function.body[-1], ast.Return)


def written(path: Path) -> Exhibit:
    """What was written out there.

    Raises:
        Refused: it is damaged.
    """
    try:
        if path.is_dir():
            return Exhibit(str(path), dict(_dumped(path)), *_planned(path / "plan.txt"))
        text = path.read_text(encoding="utf-8")
        graph = serialize.loads(text) if path.suffix == ".json" else printer.read(text)
    except (FormatError, OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: {str(error).splitlines()[0]}") from None
    return Exhibit(str(path), {"traced": graph})


def _dumped(folder: Path) -> Iterator[tuple[str, Graph]]:
    """The graphs of GG_DUMP, in the order of the passes, or the one of a case for `replay`."""
    if (folder / CASE).exists():
        yield "traced", serialize.loads((folder / CASE).read_text(encoding="utf-8"))
        return
    for file in sorted(folder.iterdir()):
        if found := _STAGE.fullmatch(file.name):
            yield found[2], printer.read(file.read_text(encoding="utf-8"))


def _planned(file: Path) -> tuple[tuple[str, ...], dict[str, int]]:
    return launches_of(file.read_text(encoding="utf-8")) if file.exists() else ((), {})


def launches_of(text: str) -> tuple[tuple[str, ...], dict[str, int]]:
    """The launches of a printed plan without their numbers, and its totals in bytes."""
    *lines, last = text.splitlines()
    totals = {name: int(n) for n, name in re.findall(r"(\d+) (?:bytes )?of (scratch|scalars|constants)", last)}
    return tuple(_NUMBER.sub("", line) for line in lines), totals


def of_plan(name: str, stages: Mapping[str, Graph], plan: Plan) -> Exhibit:
    """The exhibit of a step that has been planned here."""
    return Exhibit(name, stages, *launches_of(printer.show_plan(plan)))
