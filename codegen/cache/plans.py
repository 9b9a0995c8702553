"""The plan cache: from a graph to its artefact, so that a warm start runs no pass and no rule.

The plan follows from the graph, what was asked for, the target and the sources of passes and rules, and the artefact
from the plan. An entry is a file `plan-<key>.json`: where the code lies, and which of its arguments are which inputs of
the graph. Like the code it holds no names, so that the same net built again finds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache as once
from pathlib import Path

import numpy as np

from gluongraph import ops
from gluongraph.codegen.cache import artifacts
from gluongraph.codegen.cache.artifacts import Artefact
from gluongraph.codegen.rule import Target
from gluongraph.host import store
from gluongraph.ir.entry_point import Program
from gluongraph.ir.graph import Graph
from gluongraph.ir.serialize import fingerprint


def key(graph: Graph, roles: Mapping[str, str], asked: str, target: Target) -> str:
    """A digest of everything that decides a plan but for names: the graph, the space of each input, what was `asked`
    of the plan, the target, the sources of what plans."""
    spaces = [roles[name] for name in graph.inputs]
    parts = (fingerprint(graph, names=False), spaces, asked, target, planner(), artifacts.code())
    return _digest(" ".join(map(str, parts)))[:32]


@once
def planner() -> str:
    """A digest of what turns a graph into a plan, rules and ops aside: the sources of the passes, of what they share
    and of what chooses among plans; numpy's version, since `fold` computes with it."""
    return artifacts.digest_of(np.__version__, *sources())


def sources() -> list[Path]:
    """Files and folders that take part in planning, beside those of `cache.SOURCES`."""
    package = Path(ops.__file__).parent.parent
    folders = [package / name for name in ("compiler", "host", "ir")]
    return [*sorted(package.glob("*.py")), *folders, artifacts.package("gluongraph.passes")]


def find(key: str, graph: Graph, gpu: bool) -> Artefact | None:
    """The artefact that such a graph became, with this one's names; None where an entry is missing or damaged."""
    base = store.folder()
    if base is None or (text := store.noted(base / f"plan-{key}.json")) is None:
        return None
    told = json.loads(text)
    entry = store.get(base / told["code"])
    if entry is None or _digest(description := entry.files[artifacts.PROGRAM].decode()) != told["program"]:
        return None
    names = tuple(graph.inputs)
    inputs = {position: names[i] for position, i in told["inputs"]}
    program = Program.from_json(description).named(inputs, tuple(graph.outputs), graph.inputs)
    return artifacts.of_entry(entry, program, gpu)


def remember(key: str, graph: Graph, artefact: Artefact) -> None:
    """Note what the graph has become. Where the cache is off or cannot be written, the next start is cold, no more."""
    base = store.folder()
    if base is None or artefact.path is None:
        return
    number = {name: i for i, name in enumerate(graph.inputs)}
    args = enumerate(artefact.program.args)
    told = {
        "code": artefact.path.parent.name,
        "program": _digest(artefact.program.nameless().to_json()),
        "inputs": [[position, number[arg.name]] for position, arg in args if arg.name in number],
    }
    store.note(base / f"plan-{key}.json", json.dumps(told))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
