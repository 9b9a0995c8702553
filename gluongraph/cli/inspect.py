"""Where the time and the memory of a step go, kernel by kernel; its graph, before and after each pass.

  gluongraph inspect train.py                              # as text: layers, kernels, memory, passes
  gluongraph inspect train.py --html step.html             # one page for a browser, with everything in it
  gluongraph inspect train.py:make_step --svg step.svg     # pictures: time, scratch, live memory, roofline
  gluongraph inspect model.onnx --loss SoftmaxCrossEntropyLoss --optimizer sgd,momentum=0.9
  gluongraph inspect step.gga --by time                    # of what an artefact holds
  gluongraph inspect train.py --graph traced               # the graph as it was traced, as text that reads back
  gluongraph inspect train.py --graph fuse --svg fuse.svg  # before and after a pass, as a picture
  gluongraph inspect train.py --plan                       # every launch, what it reads and writes, and where
  gluongraph inspect train.py --json > step.json

Each kernel is run some times on the memory of the step, and held against what the machine can do with as many bytes and
operations (the roofline, measured in two seconds). Weights are put back: nothing is trained. --no-times measures
nothing, and then equal steps give equal output, byte by byte.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluongraph.cli import Refused, subject
from gluongraph.cli.words import count, sentence
from gluongraph.errors import MXNetError
from gluongraph.host.terminal import as_json

if TYPE_CHECKING:
    from gluongraph.cli.view.anatomy import Anatomy

ORDERS = ("lost", "time", "bytes", "order")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    parser.add_argument("subject", metavar="SUBJECT", help="a script, script.py:function, model.onnx or artefact.gga")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the pictures")
    parser.add_argument("--json", action="store_true", help="print everything for machines")
    parser.add_argument("--plan", action="store_true", help="print the plan instead")
    parser.add_argument(
        "--graph", metavar="PASS", help="print, or draw into --svg, the graph after this pass, or 'traced'"
    )
    parser.add_argument("--by", choices=ORDERS, default="lost", help="order of the kernels (%(default)s)")
    parser.add_argument("--rows", type=count, default=12, help="kernels, layers and buffers shown (%(default)s)")
    parser.add_argument("--repeat", type=count, default=20, help="how often each kernel is timed (%(default)s)")
    parser.add_argument("--no-times", action="store_true", help="measure nothing")
    subject.arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print, or write, what the step is made of."""
    for path in (options.html, options.svg):
        if path is not None and not path.absolute().parent.is_dir():
            raise Refused(f"{path}: there is no such folder")
    if options.plan:
        subject.refuse(options, ["graph", "html", "svg", "json"], "for another answer than --plan, which is text")
    if options.graph is not None:
        subject.refuse(options, ["html", "json"], "for another answer than --graph, which is text or --svg")
    found = subject.find(options.subject, options)
    if not found.batch:
        raise Refused(f"{found.name} gives no batch: say the shapes with --input, or give --data")
    if options.graph is not None or options.plan:
        return _print(found, options)
    a = look(found, times=not options.no_times, repeat=options.repeat)
    if options.json:
        as_json(a.data())
    for path, write in ((options.html, _page), (options.svg, _pictures)):
        if path is not None:
            path.write_text(write(a), encoding="utf-8")
    if not (options.json or options.html or options.svg):
        from gluongraph.cli.view.text import text

        print(text(a, options.rows, options.by))
    return 0


def look(found: subject.Subject, times: bool = True, repeat: int = 20) -> Anatomy:
    """Compile a step for its batch, and gather what it is made of."""
    from gluongraph.cli.view.anatomy import anatomy
    from gluongraph.codegen.targets import target
    from gluongraph.compiler.lower import interprets
    from gluongraph.compiler.pipeline import stages

    step = found.step
    footprint = planned(found)
    profile = step.profile(*found.batch, repeat=repeat) if times and not interprets() else None
    on = target("cuda" if not interprets() and step.artefact.gpu else "cpu")
    held = {name: value for name, value in vars(footprint).items() if name != "extra_time"}
    return anatomy(found.name, step.plan, held, stages(step.graph, on), on.name, profile)


def planned(found: subject.Subject) -> Any:
    """Compile a step for its batch: what memory it takes.

    Raises:
        Refused: the step does not take this batch.
    """
    try:
        return found.step.memory(*found.batch)
    except (MXNetError, ValueError, TypeError) as error:
        raise Refused(f"{found.name}: {sentence(error)}") from error


def _print(found: subject.Subject, options: argparse.Namespace) -> int:
    """The graph, or the plan, as it is printed everywhere; or the graph as a picture."""
    from gluongraph.cli.view.drawing import drawing
    from gluongraph.cli.view.svg import around_a_pass
    from gluongraph.codegen.targets import target
    from gluongraph.compiler.pipeline import stages
    from gluongraph.ir.printer import show, show_plan

    planned(found)
    if options.plan:
        print(show_plan(found.step.plan), end="")
        return 0
    graphs = dict(stages(found.step.graph, target()))
    if options.graph not in graphs:
        raise Refused(f"there is no pass {options.graph}; there are {', '.join(graphs)}")
    if options.svg is not None:
        names = list(graphs)
        before = names[max(names.index(options.graph) - 1, 0)]
        made = (drawing(graphs[name]) for name in (before, options.graph))
        options.svg.write_text(around_a_pass(options.graph, *made), encoding="utf-8")
    else:
        print(show(graphs[options.graph], options.graph), end="")
    return 0


def _page(a: Anatomy) -> str:
    from gluongraph.cli.view.page import page

    return page(a)


def _pictures(a: Anatomy) -> str:
    from gluongraph.cli.view.svg import document

    return document(a)
