"""Predict the time of a step on more ranks than there are here: kernels as measured, collectives by a model.

  gluongraph simulate mlp-8 --ranks 2..8 --bandwidth 12.5e9 --latency 5e-6
  gluongraph simulate mlp-128 --ranks 8..64 --bandwidth 100Gbit --latency 5e-6 --strategy zero1 --plot scaling.svg
  gluongraph simulate mlp-8 --ranks 16,64 --bandwidth 25Gbit --latency 2e-5 --compression 2bit --compute 120 --json
  gluongraph simulate train.py --ranks 8..4096 --bandwidth 100Gbit --latency 5e-6 --ranks-per-host 8 --compute 90

The step is compiled as that of one of several ranks, with the strategy and the compression that are asked for, and its
kernels are measured on this machine, with as many threads as this process has. --compute says how many milliseconds a
step takes on one rank of another machine; then nothing is run, and the cost model divides that time among the kernels.
Each rank's batch stays as it is, whatever the number of ranks (weak scaling); the efficiency is against one rank.

Collectives follow the alpha-beta model: a message of m bytes takes latency + m / bandwidth, by a ring or by recursive
halving and doubling, whichever is faster (--algorithm). With --ranks-per-host the ranks of a host are joined by
--host-bandwidth, and share the --bandwidth between hosts. --measure starts 2 ranks on this machine, and 4 where there
are 4 cores, and fits the model to the times of their collectives: those of one host. With --overlap, the default, a
rank computes while buckets of gradients are communicated. What the model leaves out is in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluongraph.bench.workloads import WORKLOADS
from gluongraph.cli import Failed, Refused, subject
from gluongraph.cli.words import count, sentence
from gluongraph.errors import MXNetError, pluralize
from gluongraph.host.process import threads
from gluongraph.host.progress import task
from gluongraph.host.terminal import as_json
from gluongraph.host.terminal import table as in_columns

if TYPE_CHECKING:
    from gluongraph.distributed.simulate import Cluster, Link, Prediction, Timeline

UNITS = {"": 1.0, "B": 1.0, "bit": 0.125}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
HOST_BANDWIDTH, HOST_LATENCY = 20e9, 1e-6


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    add = parser.add_argument
    add("subject", metavar="SUBJECT", help="a workload of gluongraph bench, or what is said below")
    add("--ranks", type=numbers, required=True, metavar="A..B", help="A, doubled up to B; or a list: 8,24")
    add("--strategy", help="allreduce, zero1, zero2, fsdp (that of the trainer)")
    add("--compression", metavar="TYPE", help="of gradients: 2bit, 1bit, fp16, bf16 (that of the trainer)")
    add("--overlap", action=argparse.BooleanOptionalAction, default=True, help="compute while gradients are sent")
    add("--compute", type=float, metavar="MS", help="milliseconds of a step on one rank, instead of measuring")
    add("--repeat", type=count, default=20, help="how often each kernel is timed (%(default)s)")
    add("--json", action="store_true", help="print everything for machines")
    add("--plot", type=Path, metavar="FILE", help="write an .svg: computation and exposed communication")
    network = parser.add_argument_group("the network").add_argument
    network("--bandwidth", type=rate, metavar="B", help="bytes a second of a rank, or of a host; or as 100Gbit")
    network("--latency", type=float, metavar="S", help="seconds until a message arrives")
    network("--addition-bandwidth", type=rate, metavar="B", help="bytes a second that a rank adds (as if at once)")
    network("--measure", action="store_true", help="measure the three between ranks of this machine")
    network("--algorithm", choices=("best", "ring", "recursive"), default="best", help="of collectives (%(default)s)")
    network("--ranks-per-host", type=count, default=1, metavar="N", help="which share a host's link (%(default)s)")
    network("--host-bandwidth", type=rate, metavar="B", help="between ranks of a host (20e9)")
    network("--host-latency", type=float, metavar="S", help="between ranks of a host (1e-6)")
    subject.arguments(parser)


def numbers(text: str) -> list[int]:
    """What 'A..B' or 'A,B,C' says: A, 2A, 4A and so on, and B; or just these.

    >>> numbers("2..16"), numbers("8..20"), numbers("3,5")
    ([2, 4, 8, 16], [8, 16, 20], [3, 5])
    """
    parts = re.split(r"\.{2,3}", text) if ".." in text else text.split(",")
    doubled = ".." in text
    if not all(part.isdecimal() and int(part) for part in parts) or (doubled and len(parts) != 2):
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers of ranks: write 8..4096, or 8,16,24")
    found = [int(part) for part in parts]
    if not doubled:
        return found
    first, last = found
    if first > last:
        raise argparse.ArgumentTypeError(f"{text!r}: the first number is the smallest")
    doublings = [first << i for i in range((last // first).bit_length())]
    return [*doublings, *([last] if doublings[-1] < last else [])]


def rate(text: str) -> float:
    """Bytes a second: '12.5e9', '12.5GB' and '100Gbit' are the same.

    >>> rate("12.5e9") == rate("12.5GB") == rate("100Gbit")
    True
    """
    found = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)\s*([kMGT]?)(bit|B|)(?:/s)?", text)
    try:
        value = float(found[1]) * PREFIXES[found[2]] * UNITS[found[3]] if found else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes a second: write 12.5e9, 12.5GB or 100Gbit")
    return value


def run(options: argparse.Namespace) -> int:
    """Measure, predict, and print."""
    from gluongraph.distributed.simulate import predict

    _check(options)
    try:
        cluster = _cluster(options)
        for ranks in options.ranks:
            cluster.seconds("all_reduce", ranks, 1)  # refuses before anything is measured
        step = _timeline(options)
        found = [predict(step, cluster, ranks, overlap=options.overlap) for ranks in options.ranks]
    except (MXNetError, ValueError) as error:
        raise Refused(sentence(error)) from error
    title = _described(options, step)
    if options.plot is not None:
        from gluongraph.distributed.simulate_chart import svg

        options.plot.write_text(svg(found, title), encoding="utf-8")
    if options.json:
        as_json(data(found, step, cluster))
    else:
        print(f"{title}\n{_network(cluster)}\n\n{table(found)}")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse what fits no prediction."""
    if options.plot is not None and options.plot.suffix != ".svg":
        raise Refused(f"{options.plot}: a plot is an .svg")
    if options.plot is not None and not options.plot.absolute().parent.is_dir():
        raise Refused(f"{options.plot}: there is no such folder")
    if options.compute is not None and not 0 < options.compute < math.inf:
        raise Refused(f"--compute {options.compute:g} is no time of a step in milliseconds")
    for name in ("latency", "host_latency"):
        given = getattr(options, name)
        if given is not None and not 0 <= given < math.inf:
            raise Refused(f"--{name.replace('_', '-')} {given:g} is no time in seconds")
    several = options.ranks_per_host > 1
    if options.measure and several:
        subject.refuse(options, ["host_bandwidth", "host_latency"], "what --measure finds out")
    elif options.measure:
        subject.refuse(options, ["bandwidth", "latency"], "what --measure finds out")
    if (several or not options.measure) and (options.bandwidth is None or options.latency is None):
        raise Refused("how fast is the network? --bandwidth and --latency say so, or --measure on one host")
    if options.measure:
        subject.refuse(options, ["addition_bandwidth"], "what --measure finds out")
    if not several:
        subject.refuse(options, ["host_bandwidth", "host_latency"], "for hosts of several ranks: --ranks-per-host 8")


def _cluster(options: argparse.Namespace) -> Cluster:
    """The network that is given, or measured: between ranks of a host."""
    from gluongraph.distributed.simulate import Cluster, Link

    here = _measured(options.algorithm) if options.measure else None
    if options.ranks_per_host == 1 and here is not None:
        return Cluster(here)
    additions = options.addition_bandwidth or (here.additions if here else math.inf)
    between = Link(options.bandwidth, options.latency, additions, options.algorithm)
    if options.ranks_per_host == 1:
        return Cluster(between)
    latency = HOST_LATENCY if options.host_latency is None else options.host_latency
    within = here or Link(options.host_bandwidth or HOST_BANDWIDTH, latency, additions, options.algorithm)
    return Cluster(between, within, options.ranks_per_host)


def _measured(algorithm: str) -> Link:
    """The link that fits what ranks on this machine measure."""
    from gluongraph.distributed.launcher_mpi import LaunchError
    from gluongraph.distributed.simulate_calibration import fit, measure_here

    ranks = [2, 4] if len(os.sched_getaffinity(0)) >= 4 else [2]
    try:
        with task(0, "measuring"):
            found = fit(measure_here(ranks), algorithm)
    except LaunchError as error:
        raise Failed(sentence(error)) from None
    print(f"measured here: {found}", file=sys.stderr)
    return found.link


def _timeline(options: argparse.Namespace) -> Timeline:
    """The timeline of the subject's step, as one of several ranks."""
    from gluongraph.distributed.simulate_step import timeline_of_plan, timeline_of_step

    found = _workload(options) if options.subject in WORKLOADS else subject.find(options.subject, options)
    if not found.batch or found.step.trainer is None:
        raise Refused(f"{found.name} gives no step that trains on a batch: say --loss, and the shapes with --input")
    compute = None if options.compute is None else options.compute / 1e3
    how = {"overlap": options.overlap, "compute": compute, "repeat": options.repeat}
    if options.subject.endswith(".gga"):
        subject.refuse(options, ["strategy", "compression"], "for steps that are made now: give the script")
        return timeline_of_plan(found.step, found.batch, **how)
    compression = {"type": options.compression} if options.compression else None
    return timeline_of_step(found.step, found.batch, strategy=options.strategy, compression=compression, **how)


def _workload(options: argparse.Namespace) -> subject.Subject:
    from gluongraph.bench.own import step_of

    subject.refuse_all(options, options.subject)
    if WORKLOADS[options.subject].model == "update":
        raise Refused(f"{options.subject} computes no gradients that could be communicated")
    step, batches = step_of(WORKLOADS[options.subject])
    return subject.Subject(options.subject, step, batches[0])


def _described(options: argparse.Namespace, step: Timeline) -> str:
    """The first line: what is predicted."""
    how = "of another machine" if options.compute is not None else f"with {pluralize(threads(), 'thread')} here"
    parts = [
        f"{options.subject}, {step.samples} samples a rank",
        f"one rank {step.compute(1) * 1e3:.3g} ms {how}",
        f"{step.gradient_bytes / 1e6:.3g} MB of gradients sent",
        options.strategy or "",
        f"compressed to {options.compression}" if options.compression else "",
        "" if options.overlap else "no overlap",
    ]
    return "; ".join(filter(None, parts))


def _network(cluster: Cluster) -> str:
    """The second line: the network."""

    def link(name: str, found: Link) -> str:
        return f"{name} {found.bandwidth / 1e9:.3g} GB/s, {found.latency * 1e6:.3g} us"

    if cluster.within is None:
        return f"{link('network', cluster.between)}; algorithm {cluster.between.algorithm}"
    hosts = f"{cluster.per_host} ranks a host: {link('within', cluster.within)}"
    return f"{hosts}; {link('between hosts', cluster.between)}; algorithm {cluster.between.algorithm}"


def table(found: Sequence[Prediction]) -> str:
    """A line for each number of ranks."""
    head = [">ranks", ">compute ms", ">communication ms", ">exposed ms", ">step ms", ">samples/s", ">efficiency"]
    rows = []
    for p in found:
        times = [f"{1e3 * seconds:.3f}" for seconds in (p.compute, p.communication, p.exposed, p.seconds)]
        rows.append([p.ranks, *times, f"{p.throughput:.0f}", f"{p.efficiency:.1%}"])
    return in_columns(head, rows)


def data(found: Sequence[Prediction], step: Timeline, cluster: Cluster) -> dict[str, Any]:
    """Everything, for machines; rates that are infinite are null."""
    links = {"between": cluster.between, "within": cluster.within}
    plain = {
        name: link and {k: None if v == math.inf else v for k, v in asdict(link).items()}
        for name, link in links.items()
    }
    return {
        "network": {**plain, "ranks_per_host": cluster.per_host},
        "samples": step.samples,
        "exchanges": [asdict(each) for each in step.exchanges],
        "predictions": [
            {**asdict(p), "seconds": p.seconds, "throughput": p.throughput, "efficiency": p.efficiency} for p in found
        ],
    }
