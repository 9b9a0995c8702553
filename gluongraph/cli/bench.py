"""Training steps beside those of other frameworks, and kernels beside what the machine could do.

  gluongraph bench                                   # the default workloads, against whatever peers are installed
  gluongraph bench gpt resnet20-32px --against torch-fused,jax
  gluongraph bench lenet-128 --kernels               # where the time goes, and the share of the roofline
  gluongraph bench --precision bf16-mixed --against torch-fused,torch-compile
  gluongraph bench --target x86-64-v3                # as on a machine that has AVX2 and no AVX-512
  gluongraph bench --json --chart steps.svg > steps.json
  gluongraph bench --torch-models                    # modules of PyTorch's through from_torch, beside PyTorch itself
  gluongraph bench --torch-models tv_resnet18 hf_bert --blocks 5
  gluongraph bench --list

Each contender is a process of its own on the same cores, with as many threads; their blocks of steps take turns, and
only one runs at a time. What is printed is the median of the blocks, and how many times gluongraph's it is: above 1
gluongraph is faster. `roofline` is the share of what the machine could do at best: the time that the operations of all
kernels need at the peak of multiply-adds, or their bytes at the bandwidth of where they lie, by the step's. Peers that
are missing are left out, and said. With `--target` they are held to the same vectors by variables of their own. MXNet
1.9.1 runs in the interpreter that GG_MXNET_PYTHON names.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gluongraph.bench.interleaved_timing import VECTORS, contest, cores
from gluongraph.bench.report import Report, show
from gluongraph.bench.worker import CONTENDERS
from gluongraph.bench.workloads import WORKLOADS, find
from gluongraph.cli import Refused, chosen
from gluongraph.cli.words import count
from gluongraph.host.progress import task
from gluongraph.host.terminal import as_json, table

OWN, PROBE = "gluongraph", "bandwidth"
PEERS = [name for name in CONTENDERS if not name.startswith(OWN) and name != PROBE]
PRECISIONS = ("32", "bf16-mixed", "16-mixed")
DEFAULT = (
    *("mlp-8", "mlp-256", "lenet-128", "resnet20-32px", "resnet20-64px", "resnet50-32px", "resnet50-64px", "mobilenet"),
    *("gpt", "bert", "lstm", "dcgan", "dlrm", "update"),
)
QUICK = ("mlp-8", "lenet-128", "gpt-small")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("workload", nargs="*", metavar="WORKLOAD", help="of those that --list shows")
    parser.add_argument("--list", action="store_true", help="what can be measured, and end")
    parser.add_argument(
        "--torch-models", action="store_true", help="models of torchvision, timm and transformers, of the names given"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="with --torch-models: compare results, measure nothing")
    only.add_argument("--no-check", action="store_true", help="with --torch-models: measure, compare no results")
    parser.add_argument("--against", type=chosen(PEERS), default=PEERS, help=f"some of {','.join(PEERS)}; '' for none")
    parser.add_argument("--precision", choices=PRECISIONS, default="32", help="of all contenders")
    parser.add_argument("--target", choices=VECTORS, default="", help="whose vectors all contenders are held to")
    parser.add_argument("--threads", type=count, help="cores that all contenders are bound to; all by default")
    parser.add_argument("--blocks", type=count, default=7, help="blocks of each contender (%(default)s)")
    parser.add_argument("--block-seconds", type=float, default=0.5, help="length of a block (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="three short blocks: says whether it works, not how fast")
    parser.add_argument(
        "--kernels", action="store_true", help="each kernel of gluongraph's step: time, bytes, roofline"
    )
    parser.add_argument("--rows", type=count, default=15, help="kernels shown, by what they lose (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything that was measured as JSON instead")
    parser.add_argument("--chart", type=Path, help="a file of bars, .svg or .png (which needs matplotlib)")
    parser.add_argument("--own", choices=(OWN, "gluongraph-eager"), default=OWN, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Measure, print, draw. 1 if gluongraph's own step failed somewhere."""
    if options.list:
        listed = [[w.name, w.batch, w.optimizer, w.note] for w in WORKLOADS.values()]
        print(table(["workload", ">batch", "optimizer", ""], listed))
        return 0
    if options.torch_models:
        return torch_models(options)
    names = options.workload or list(QUICK if options.quick else DEFAULT)
    for name in names:
        if name not in WORKLOADS:
            raise Refused(f"there is no workload {name}; there are {', '.join(WORKLOADS)}")
    if options.chart:
        from gluongraph.bench import chart

        if trouble := chart.refuses(options.chart):
            raise Refused(trouble)
    try:
        on = cores(options.threads)
    except ValueError as error:
        raise Refused(str(error)) from None
    if not 0 < options.block_seconds < float("inf"):
        raise Refused(f"--block-seconds {options.block_seconds} is no time to measure in")
    blocks, length = (3, 0.05) if options.quick else (options.blocks, options.block_seconds)
    report = Report(on, options.own, options.precision, blocks, length, options.target)
    contenders = (options.own, *options.against, PROBE)
    if not options.json:
        print(report.head())
    with task(len(names) * (len(contenders) + blocks), "measuring") as further:
        for name in names:
            ours = options.own == OWN
            repeat = max(3, blocks) if options.kernels and ours else 0
            how = (options.precision, further, ours, repeat, options.target)
            found = contest(contenders, name, on, blocks, length, *how)
            report.add(find(name), found)
            if not options.json:
                print(show(report, name, options.rows))
    if options.json:
        as_json(report.data())
    elif len(names) > 1:
        print(report.summary())
    if options.chart:
        chart.draw(report.ratios(), options.chart)
    return int(report.failed)


def torch_models(options: argparse.Namespace) -> int:
    """The table of PyTorch's models. 1 if one of them is not computed as PyTorch does."""
    from gluongraph.bench import torch_models as models

    try:
        names, on = models.names(options.workload), cores(options.threads)
    except (KeyError, ValueError) as error:
        raise Refused(str(error.args[0])) from None
    except ImportError:
        raise Refused("PyTorch is not installed: pip install torch") from None
    blocks = 0 if options.check else 3 if options.quick else options.blocks
    peers = (models.EAGER, models.COMPILED)
    rows = []
    if not options.json:
        print(models.head(names), flush=True)
    with task(len(names) * (1 + (1 + len(peers) + blocks if blocks else 0)), "measuring") as further:
        for name in names:
            how = (on, blocks, options.block_seconds, peers, further, not options.no_check)
            rows.append(models.measure(name, *how))
            if not options.json:
                print(models.line(rows[-1], names), flush=True)  # it may take hours: the row as it is found
    if options.json:
        as_json([{"name": r.name, "check": r.check, "passed": r.passed, "ratio": r.ratio} for r in rows])
    else:
        print(*models.summary(rows), sep="\n")
    return int(not all(row.passed for row in rows if row.check or row.missing))
