"""The plan cache: from a graph to its artefact, so that a warm start runs no pass and no rule.

The graph, the options, the target and the sources of passes and rules determine the plan, and the plan determines the
artefact. An entry is a file `plan-<key>.json`: the key of the code, and which of its arguments are which inputs of the
graph. Like the code it contains no names, so that the same network built again finds it.
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


def key(graph: Graph, roles: Mapping[str, str], options: str, target: Target) -> str:
    """Return a digest of everything that determines a plan except for names: the graph, the space of each input, the
    `options` of planning, the target, the sources of passes and rules."""
    spaces = [roles[name] for name in graph.inputs]
    parts = (fingerprint(graph, names=False), spaces, options, target, planner(), artifacts.code())
    return _digest(" ".join(map(str, parts)))[:32]


@once
def planner() -> str:
    """Return a digest of what turns a graph into a plan, except for rules and ops: the sources of the passes and of the
    compiler, and numpy's version, since the pass `fold` computes with it."""
    return artifacts.digest_of(np.__version__, *sources())


def sources() -> list[Path]:
    """Return the files and folders that take part in planning, besides those of `artifacts.SOURCES`."""
    package = Path(ops.__file__).parent.parent
    folders = [package / name for name in ("compiler", "host", "ir")]
    return [*sorted(package.glob("*.py")), *folders, artifacts.package("gluongraph.passes")]


def find(key: str, graph: Graph, gpu: bool) -> Artefact | None:
    """Return the artefact of an equal graph, with this one's names; None if the entry is missing or damaged."""
    base = store.folder()
    if base is None or (text := store.noted(base / f"plan-{key}.json")) is None:
        return None
    record = json.loads(text)
    entry = store.get(base / record["code"])
    if entry is None or _digest(description := entry.files[artifacts.PROGRAM].decode()) != record["program"]:
        return None
    names = tuple(graph.inputs)
    inputs = {position: names[i] for position, i in record["inputs"]}
    program = Program.from_json(description).named(inputs, tuple(graph.outputs), graph.inputs)
    return artifacts.of_entry(entry, program, gpu)


def remember(key: str, graph: Graph, artefact: Artefact) -> None:
    """Store the artefact of a graph. If the cache is off or not writable, the next start is cold."""
    base = store.folder()
    if base is None or artefact.path is None:
        return
    position_of = {name: i for i, name in enumerate(graph.inputs)}
    args = enumerate(artefact.program.args)
    record = {
        "code": artefact.path.parent.name,
        "program": _digest(artefact.program.nameless().to_json()),
        "inputs": [[position, position_of[arg.name]] for position, arg in args if arg.name in position_of],
    }
    store.note(base / f"plan-{key}.json", json.dumps(record))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
