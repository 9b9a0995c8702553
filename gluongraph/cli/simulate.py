"""Predict the time of a step on more ranks than there are here: kernels as measured, collectives by a model.

  gluongraph simulate mlp-8 --ranks 2..8 --bandwidth 12.5e9 --latency 5e-6
  gluongraph simulate mlp-8 --ranks 8..64 --bandwidth 12.5e9 --latency 5e-6 --strategy zero1 --plot scaling.svg
  gluongraph simulate mlp-8 --ranks 16,64 --bandwidth 3e9 --latency 2e-5 --compression 2bit --compute 120 --json

The kernels of the step are measured on this machine, unless --compute says how many milliseconds a step takes on
another. A message of m bytes takes latency + m / bandwidth; with --ranks-per-host a host's ranks share its link to
others, and are joined by --host-bandwidth. With --overlap gradients are communicated while others are computed. Each
rank's batch stays as it is, whatever their number (weak scaling).

What the model leaves out: ranks that wait for a slower one, and networks with fewer links than hosts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluongraph.bench.workloads import WORKLOADS
from gluongraph.cli import Refused, subject
from gluongraph.cli.words import count, sentence
from gluongraph.errors import MXNetError
from gluongraph.host.terminal import as_json

if TYPE_CHECKING:
    from gluongraph.distributed.simulate import Prediction


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    add = parser.add_argument
    add("subject", metavar="SUBJECT", help="a script, script.py:function, model.onnx or a workload of gluongraph bench")
    add("--ranks", type=numbers, required=True, metavar="A..B", help="powers of two from A to B; or a list, as 8,24")
    add("--bandwidth", type=float, required=True, metavar="B", help="bytes a second between two ranks, or hosts")
    add("--latency", type=float, required=True, metavar="S", help="seconds until a message arrives")
    add("--strategy", default="allreduce", help="allreduce, zero1, zero2, fsdp (%(default)s)")
    add("--compression", help="2bit, 1bit, fp16, bf16")
    add("--overlap", action="store_true", help="communicate gradients while others are computed")
    add("--ranks-per-host", type=count, default=1, metavar="N", help="(%(default)s)")
    add("--host-bandwidth", type=float, default=20e9, metavar="B", help="between the ranks of a host (%(default)s)")
    add("--host-latency", type=float, default=1e-6, metavar="S", help="(%(default)s)")
    add("--compute", type=float, metavar="MS", help="milliseconds of a step of one rank, instead of measuring")
    add("--json", action="store_true", help="for machines")
    add("--plot", type=Path, metavar="FILE", help="an .svg of throughput by the number of ranks")
    subject.arguments(parser)


def numbers(text: str) -> list[int]:
    """What 'A..B' or 'A,B,C' says.

    >>> numbers("2..16"), numbers("3,5")
    ([2, 4, 8, 16], [3, 5])
    """
    first, dots, last = text.partition("..")
    parts = [first, last] if dots else text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: write 8..4096, or 8,16,24")
    if not dots:
        return [int(part) for part in parts]
    found = [int(first)]
    while found[-1] * 2 <= int(last):
        found.append(found[-1] * 2)
    return found


def run(options: argparse.Namespace) -> int:
    """Measure, predict, and print."""
    from gluongraph.distributed.simulate import Cluster, Link, predict

    if options.plot is not None and options.plot.suffix != ".svg":
        raise Refused(f"{options.plot}: a plot is an .svg")
    if options.compute is not None and not 0 < options.compute < float("inf"):
        raise Refused(f"--compute {options.compute} is no time of a step")
    try:
        within = Link(options.host_bandwidth, options.host_latency) if options.ranks_per_host > 1 else None
        cluster = Cluster(Link(options.bandwidth, options.latency), within, options.ranks_per_host)
        how = {"strategy": options.strategy, "compression": options.compression, "overlap": options.overlap}
        predict(_nothing(), cluster, 1, **how)  # refuses before anything is measured
        step = _timeline(options)
        found = [predict(step, cluster, ranks, **how) for ranks in (1, *options.ranks)]
    except (MXNetError, ValueError) as error:
        raise Refused(sentence(error)) from error
    if options.plot is not None:
        options.plot.write_text(svg(found), encoding="utf-8")
    if options.json:
        as_json([{**asdict(p), "seconds": p.seconds, "efficiency": p.efficiency} for p in found])
    else:
        print(f"{step.nbytes / 2**20:.2f} MiB of gradients\n{table(found)}")
    return 0


def _nothing() -> Any:
    from gluongraph.distributed.simulate import Timeline

    return Timeline(1.0, ())


def _timeline(options: argparse.Namespace) -> Any:
    """The timeline of the subject's step."""
    from gluongraph.distributed.simulate import timeline

    found = _workload(options) if options.subject in WORKLOADS else subject.find(options.subject, options)
    if not found.batch or found.step.trainer is None:
        raise Refused(f"{found.name} gives no step that trains on a batch: say --loss, and the shapes with --input")
    measured = found.step.profile(*found.batch, roofline=False)
    step = timeline(found.step.plan, measured, found.step.trainer.names)
    return step if options.compute is None else step.scaled(options.compute / 1e3)


def _workload(options: argparse.Namespace) -> subject.Subject:
    from gluongraph.bench.own import step_of

    step, batches = step_of(WORKLOADS[options.subject])
    return subject.Subject(options.subject, step, batches[0])


def table(found: Sequence[Prediction]) -> str:
    """A line for each number of ranks."""
    lines = [f"{'ranks':>6}{'compute':>11}{'communication':>15}{'exposed':>11}{'step':>11}{'efficiency':>12}"]
    for p in found:
        times = (p.compute, p.communication, p.exposed, p.seconds)
        a, b, c, d = (f"{1e3 * seconds:.2f} ms" for seconds in times)
        lines.append(f"{p.ranks:6}{a:>11}{b:>15}{c:>11}{d:>11}{p.efficiency:12.1%}")
    return "\n".join(lines)


def svg(found: Sequence[Prediction]) -> str:
    """Steps of all ranks a second, as a multiple of one rank's, over the number of ranks; both axes logarithmic."""
    import math

    width, height, left, top = 520, 320, 60, 20
    most = math.log2(max(2, *(p.ranks for p in found)))
    points = [(math.log2(p.ranks) / most, math.log2(max(p.ranks * p.efficiency, 1.0)) / most, p) for p in found]

    def at(x: float, y: float) -> str:
        return f"{left + x * width:.1f},{top + (1 - y) * height:.1f}"

    parts = [
        f'<polyline points="{at(0, 0)} {at(1, 1)}" fill="none" stroke="#999" stroke-dasharray="4"/>',
        f'<polyline points="{" ".join(at(x, y) for x, y, _ in points)}" fill="none" stroke="#4c72b0"/>',
        f'<polyline points="{at(0, 1)} {at(0, 0)} {at(1, 0)}" fill="none" stroke="black"/>',
    ]
    for x, y, p in points:
        px, py = at(x, y).split(",")
        parts.append(f'<circle cx="{px}" cy="{py}" r="3" fill="#4c72b0"/>')
        parts.append(f'<text x="{px}" y="{top + height + 16}" text-anchor="middle">{p.ranks}</text>')
        parts.append(f'<text x="{float(px) + 6:.1f}" y="{float(py) + 14:.1f}">{p.ranks * p.efficiency:.0f}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">ranks</text>')
    parts.append(f'<text x="{left}" y="14">throughput, of one rank; dashed: linear</text>')
    style = 'font-family="sans-serif" font-size="11"'
    size = f'width="{left + width + 40}" height="{top + height + 44}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'
