"""Run a step's graph compiled and in numpy on the same numbers, and say where they part: which pass, kernel and node.

  gluongraph replay train.py                          # the first step of a script, on its own weights and batch
  gluongraph replay model.onnx --loss L2Loss -o case  # and write graph and numbers into a folder, for somebody else
  gluongraph replay case                              # run such a folder
  gluongraph replay dump                              # the graph of a GG_DUMP folder, on made-up numbers

Three things are held against the meaning that the operators have in numpy: the graph after each pass; each kernel by
itself, on the memory of the step; and the whole step. A kernel that is wrong is taken apart to the first of its
operations that is. Errors count in proportion to the largest number of an array. Exit codes: 0 they agree, 1 they do
not, 2 refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.cli import Refused, subject
from gluongraph.cli.inspect import planned
from gluongraph.cli.words import random_array, sentence
from gluongraph.errors import FormatError, MXNetError
from gluongraph.host.terminal import as_json, table
from gluongraph.ir.graph import Graph, Node
from gluongraph.ops import index_checks
from gluongraph.storage import Array
from gluongraph.tracing.optimizer_updates import SCALAR
from gluongraph.tracing.tracer import is_rng

if TYPE_CHECKING:
    from gluongraph.cli.view.parting import Found


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    parser.add_argument("subject", metavar="SUBJECT", help="or a written graph, a case, a folder of GG_DUMP")
    parser.add_argument("--tolerance", type=float, default=1e-3, metavar="E", help="of float32 (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="write graph and numbers there")
    parser.add_argument("--json", action="store_true", help="all errors, for machines")
    subject.arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Compare, and print the largest errors, or where they begin."""
    from gluongraph.cli.view.parting import parting

    output: Path | None = options.output
    if output is not None and (output.exists() or not output.absolute().parent.is_dir()):
        raise Refused(f"{output}: " + ("it exists already" if output.exists() else "there is no folder to put it in"))
    graph, values = case(options)
    try:
        found = parting(graph, values, options.tolerance)
    except MXNetError as error:
        raise Refused(f"{options.subject}: {sentence(error)}") from error
    if output is not None:
        _write(output, graph, values)
    if options.json:
        as_json([asdict(each) for each in found])
    else:
        _print(found)
    return int(any(each.parts for each in found))


def case(options: argparse.Namespace) -> tuple[Graph, dict[str, Array]]:
    """The graph, and a value for each of its inputs."""
    from gluongraph.cli.view.exhibit import INPUTS, is_written, written

    path = Path(options.subject)
    if not is_written(path):
        return _of_step(subject.find(options.subject, options))
    subject.refuse_all(options, options.subject)
    graph = next(iter(written(path).stages.values()))
    plain = index_checks.plain(graph)
    if (path / INPUTS).exists():
        return plain, _recorded(path / INPUTS, plain)
    allowed = index_checks.ranges(graph)
    return plain, {name: made_up(name, n, i, allowed.get(name)) for i, (name, n) in enumerate(plain.inputs.items())}


def _of_step(found: subject.Subject) -> tuple[Graph, dict[str, Array]]:
    """A step's graph, and all that a call of it reads."""
    if not found.batch:
        raise Refused(f"{found.name} gives no batch: say the shapes with --input, or give --data")
    planned(found)
    step, batch = found.step, found.batch
    if found.made_up:
        batch = _with_indices(step.graph, batch)
    step.predict(*batch) if step.trainer is None else step(*batch)  # scalars are written by a call
    return index_checks.plain(step.graph), {name: np.array(array) for name, array in step.reads(*batch).items()}


def _with_indices(graph: Graph, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """A batch that was made up, with labels and token ids that the graph accepts in the place of other numbers."""
    allowed, made = index_checks.ranges(graph), list(batch)
    for i in range(len(batch)):
        name = f"data{i}"
        if name in allowed:
            made[i] = random_array(graph.inputs[name].ty, i, allowed[name])
    return tuple(made)


def _recorded(file: Path, graph: Graph) -> dict[str, Array]:
    from gluongraph.runtime import tensorfile

    try:
        found = tensorfile.parse(np.fromfile(file, np.uint8), str(file))
    except FormatError as error:
        raise Refused(sentence(error)) from None
    for name, n in graph.inputs.items():
        if name not in found or found[name].shape != n.shape:
            raise Refused(f"{file} has no {name} of {n.ty}, which the graph reads")
    return {name: np.array(found[name]) for name in graph.inputs}


def made_up(name: str, n: Node, number: int, allowed: range | None = None) -> Array:
    """Numbers that an input of that name can have: settings, states and variances are positive, indices `allowed`."""
    if is_rng(name):
        return np.arange(4, dtype=np.uint32)
    array = random_array(n.ty, number, allowed)
    if name.startswith(SCALAR) or "/" in name or "var" in name:
        return np.asarray(np.abs(array) * array.dtype.type(0.1))
    return array


def _write(folder: Path, graph: Graph, values: Mapping[str, Array]) -> None:
    from gluongraph.cli.view.exhibit import CASE, INPUTS
    from gluongraph.ir import serialize
    from gluongraph.runtime import tensorfile

    folder.mkdir()
    (folder / CASE).write_text(serialize.dumps(graph), encoding="utf-8")
    with (folder / INPUTS).open("wb") as file:
        for piece in tensorfile.pieces(values):
            file.write(piece.data)


def _print(found: list[Found]) -> None:
    for what in dict.fromkeys(each.what for each in found):
        rows = [each for each in found if each.what == what]
        wrong = [each for each in rows if each.parts]
        if not wrong:
            worst = max(rows, key=lambda each: (not each.cancels, each.error))
            cancel = sum(each.cancels for each in rows)
            more = f"; {cancel} are sums that cancel to rounding errors" if cancel else ""
            print(f"{what}: {len(rows)} agree, the largest error is {worst.error:.1e}, of {worst.name}{more}")
            continue
        print(f"{what}: {len(wrong)} of {len(rows)} part")
        shown = [[f"  {each.name}", f"{each.error:.1e}", each.told] for each in wrong[:8]]
        print(table(["  " + what, ">error", ""], shown))
