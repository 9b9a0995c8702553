"""Measure which algorithms are fastest for a step's kernels on this machine; every later compilation uses them.

  gluongraph tune mlp-8 gpt                          # workloads of gluongraph bench
  gluongraph tune model.onnx --loss L2Loss --seconds 300
  gluongraph tune train.py                           # the step that the script would take, for its batch
  gluongraph tune train.py:make_step --seconds 1 --json

A kernel has several algorithms, tilings and ways to be divided among threads, which compute the same. The rules
choose by shapes alone; here the candidates of each kernel are compiled and timed alternately, most expensive kernel
first, until --seconds are over. The faster choice is kept beside the compiled code, by kernel, shapes, processor,
threads and version (`gluongraph doctor` says where); what was measured before is not measured again. GG_TUNED=0
ignores the records.

The machine should have nothing else to do meanwhile. Nothing is trained.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gluongraph.bench.workloads import WORKLOADS
from gluongraph.cli import Failed, Refused, subject
from gluongraph.cli.words import sentence
from gluongraph.errors import MXNetError
from gluongraph.host.terminal import as_json

if TYPE_CHECKING:
    from gluongraph.compiler.tuning import Tuning


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    parser.add_argument(
        "subject", metavar="SUBJECT", nargs="+", help="a script, script.py:function, model.onnx or workload"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="for each; no kernel is begun later (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    subject.arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and print what was found."""
    if not 0 < options.seconds < float("inf"):
        raise Refused(f"--seconds {options.seconds} is no time to measure in")
    found = {}
    for name in options.subject:
        found[name] = _tuned(name, options)
        if not options.json:
            print(f"{name}\n{found[name]}" if len(options.subject) > 1 else found[name])
    if options.json:
        as_json({name: tuning.data() for name, tuning in found.items()})
    return 0


def _tuned(name: str, options: argparse.Namespace) -> Tuning:
    found = _workload(name, options) if name in WORKLOADS else subject.find(name, options)
    if not found.batch:
        raise Refused(f"{found.name} gives no batch: say the shapes with --input, or give --data")
    try:
        return found.step.tune(*found.batch, seconds=options.seconds)
    except (MXNetError, ValueError, TypeError) as error:
        raise Refused(f"{found.name}: {sentence(error)}") from error
    except OSError as error:
        raise Failed(f"what was found cannot be kept: {sentence(error)}") from error


def _workload(name: str, options: argparse.Namespace) -> subject.Subject:
    from gluongraph.bench.own import step_of

    if WORKLOADS[name].model == "update":
        raise Refused(f"{name} is one kernel, which there is one way to write")
    others = {"precision": options.precision} if options.precision else {}
    step, batches = step_of(WORKLOADS[name], **(options.compile or {}), **others)
    return subject.Subject(name, step, batches[0])
