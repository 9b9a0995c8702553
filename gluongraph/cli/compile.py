"""Compile a step ahead of its first call: the cache then has its code, and the next process needs no compiler.

  gluongraph compile train.py                                # the step that the script would take, for its batch
  gluongraph compile train.py:make_step --modes step,evaluate --batch-sizes 64,16
  gluongraph compile model.onnx --batch-sizes 1,32 --modes predict
  gluongraph compile model.onnx --loss L2Loss --optimizer adam --json
  gluongraph compile train.py -o step.gga --batch-sizes 64,16   # all of it in one file, which trains elsewhere

Nothing is trained. With -o the step is also written as an artefact; the cache is where GG_CACHE says,
~/.cache/gluongraph by default; `gluongraph doctor` tells.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gluongraph.cli import Refused, chosen, subject
from gluongraph.cli.inspect import planned
from gluongraph.cli.words import count, sentence
from gluongraph.errors import MXNetError
from gluongraph.host.progress import task
from gluongraph.host.terminal import as_json, table

MODES = ("step", "evaluate", "predict")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    parser.add_argument("subject", metavar="SUBJECT", help="a script, script.py:function, model.onnx or artefact.gga")
    parser.add_argument("--modes", type=chosen(MODES), metavar="M,...", help=f"some of {', '.join(MODES)} (step)")
    parser.add_argument("--batch-sizes", type=_counts, metavar="N,...", help="for batches of so many rows")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write an artefact, .gga")
    parser.add_argument("--target", metavar="NAME", help="of the artefact: x86-64-v3, aarch64, cuda:sm_90, ...")
    parser.add_argument("--json", action="store_true", help="for machines")
    subject.arguments(parser)


@dataclass(frozen=True)
class Made:
    """One compiled entry: what for, how large, and what it took."""

    mode: str
    rows: int
    launches: int
    kernels: int
    compiled: int  # now; 0 when the cache had it
    seconds: float
    path: str


def run(options: argparse.Namespace) -> int:
    """Compile, and print what there is now."""
    output: Path | None = options.output
    if output is not None and output.suffix != ".gga":
        raise Refused(f"{output}: an artefact is a .gga")
    if output is not None and not output.absolute().parent.is_dir():
        raise Refused(f"{output}: there is no such folder")
    if output is None and options.target:
        raise Refused("--target is that of an artefact: -o step.gga")
    found = subject.find(options.subject, options)
    if not found.batch:
        raise Refused(f"{found.name} gives no batch: say the shapes with --input, or give --data")
    modes = options.modes or (["predict"] if found.step.trainer is None else ["step"])
    if found.step.trainer is None and modes != ["predict"]:
        raise Refused(f"{found.name} predicts, it does not train: --modes predict")
    sizes = options.batch_sizes or [len(found.batch[0])]
    batches = [tuple(_resized(array, rows) for array in found.batch) for rows in sizes]
    made = []
    with task(len(sizes) * len(modes), "compiling") as further:
        for rows, batch in zip(sizes, batches, strict=True):
            for mode in modes:
                made.append(_compile(subject.Subject(found.name, found.step, batch), mode, rows, options))
                further()
    if output is not None:
        _export(found, output, batches, options)
    if options.json:
        as_json([asdict(each) for each in made])
        return 0
    head = ["mode", ">rows", ">launches", ">kernels", ">compiled now", ">seconds", "code"]
    rows_of = [[m.mode, m.rows, m.launches, m.kernels, m.compiled, f"{m.seconds:.1f}", m.path] for m in made]
    print(table(head, rows_of))
    return 0


def _export(found: subject.Subject, output: Path, batches: list[tuple[Any, ...]], options: argparse.Namespace) -> None:
    try:
        found.step.export(output, batches=batches, modes=options.modes, target=options.target)
    except (MXNetError, ValueError, OSError) as error:
        raise Refused(f"{found.name}: {sentence(error)}") from error


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def _resized(array: Any, rows: int) -> Any:
    """So many rows, the same ones again where there are fewer."""
    import numpy as np

    values = array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)
    if len(values) == rows:
        return array
    return values[np.arange(rows) % len(values)]


def _compile(found: subject.Subject, mode: str, rows: int, options: argparse.Namespace) -> Made:
    step, batch = found.step, found.batch
    if mode == "step" or step.trainer is None:
        planned(found)
    else:
        inputs = batch[: options.inputs or step.inputs or max(1, len(batch) - 1)]
        try:
            step.evaluate(*batch) if mode == "evaluate" else step.predict(*inputs)
        except (MXNetError, ValueError, TypeError) as error:
            raise Refused(f"{found.name}, {mode}: {sentence(error)}") from error
    code, plan = step.artefact, step.plan
    path = str(code.path) if code.path is not None else "in memory alone: there is no linker, or GG_CACHE=0"
    return Made(mode, rows, len(plan.launches), len(plan.kernels), code.compiled, code.seconds, path)
