"""Predictions of `gluongraph simulate` beside what is measured: on 1, 2 and 4 ranks here, and published for ResNet-50.

    python benchmarks/simulate_check.py                              # mlp-128 and resnet20-32px
    python benchmarks/simulate_check.py mlp-256 --strategy zero1
    python benchmarks/simulate_check.py --published

Ranks have one thread each, gradients are communicated when all are there (no overlap). Two predictions are shown:

alone    what the command says: kernels measured by one process that has the machine for itself; latency and bandwidth
         fitted to collectives of 2 ranks. More ranks than cores, or a memory that ranks share, are not in it.
shared   kernels measured on that many ranks, in step: while all of them compute; latency and bandwidth fitted to
         collectives of that many ranks. What is left is the model itself: which bytes, which algorithm, what waits.

What the host does around kernels is measured on one rank, and counts in both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gluongraph.distributed.launcher_mpi import LaunchError
from gluongraph.distributed.simulate import Cluster, Exchange, Link, Timeline, Work, predict, timeline
from gluongraph.distributed.simulate_calibration import Fit, Timing, fit, output_of_ranks
from gluongraph.host.terminal import table

RANKS = (1, 2, 4)
WORKLOADS = ("mlp-128", "resnet20-32px")
_PATIENCE = 300.0  # seconds for a job
_BLOCKS, _LONG = 9, 0.3  # blocks of steps, and seconds of each


# -- on the ranks


def measured_on_a_rank(workload: str, strategy: str) -> dict[str, Any]:
    """Seconds of a step on the ranks of this job, its timeline with kernels as they are here, and the collectives."""
    import gluongraph as mx
    from gluongraph import gluon
    from gluongraph.bench import own
    from gluongraph.bench.workloads import find
    from gluongraph.distributed.simulate_ranks import measure
    from gluongraph.runtime.communicator.environment import world

    found = find(workload)
    net = own.network(found)
    how: dict[str, Any] = {"kvstore": "dist_sync", "strategy": strategy}
    trainer = gluon.Trainer(net.collect_params(), found.optimizer, dict(found.hyper), **how)
    step = mx.compile(net, own.LOSSES[found.loss](), trainer, inputs=found.inputs)
    batch = own.arrays(own.batches(found)[0])
    communicator = world()

    def slowest(seconds: list[float]) -> list[float]:
        array = np.array(seconds)
        communicator.allreduce(array, "max")
        return [float(each) for each in array]

    def block(count: int) -> float:
        communicator.barrier()
        started = time.perf_counter()
        for _ in range(count):
            step(*batch)
        return slowest([(time.perf_counter() - started) / count])[0]

    for _ in range(3):
        step(*batch)
    count = max(2, int(_LONG / block(3)))
    steps = [block(count) for _ in range(_BLOCKS // 2)]
    timings = measure(communicator) if communicator.size > 1 else []
    rows = step.profile(*batch, repeat=max(5, count), roofline=False)
    steps += [block(count) for _ in range(_BLOCKS - _BLOCKS // 2)]
    line = timeline(step.plan, slowest([row.seconds for row in rows]), parameters=step.trainer.names)
    return {
        "seconds": statistics.median(steps),
        "kernels": sum(w.seconds(line.ranks, line.ranks) for w in line.works),
        "timeline": asdict(line),
        "timings": [asdict(timing) for timing in timings],
    }


def simulated_here(workload: str, strategy: str) -> dict[str, Any]:
    """The timeline that the command makes, of a process that is alone."""
    from gluongraph.bench.own import step_of
    from gluongraph.bench.workloads import find
    from gluongraph.distributed.simulate_step import timeline_of_step

    step, batches = step_of(find(workload))
    return asdict(timeline_of_step(step, batches[0], strategy=strategy, overlap=False))


def on_a_rank(what: str, workload: str, strategy: str) -> None:
    from gluongraph.runtime.communicator.environment import world

    found = simulated_here(workload, strategy) if what == "simulate" else measured_on_a_rank(workload, strategy)
    if world().rank == 0:
        print(json.dumps(found))


# -- beside them


def read(data: dict[str, Any]) -> Timeline:
    """A timeline that came as JSON."""
    works = tuple(Work(**each) for each in data["works"])
    exchanges = tuple(Exchange(**each) for each in data["exchanges"])
    steps = tuple((what, number) for what, number in data["steps"])
    return Timeline(**{**data, "works": works, "exchanges": exchanges, "steps": steps})


def run(ranks: int, what: str, workload: str, strategy: str) -> dict[str, Any]:
    """What ranks say that are started for it."""
    line = output_of_ranks(ranks, [__file__, "--on-a-rank", what, workload, "--strategy", strategy], _PATIENCE)
    found: dict[str, Any] = json.loads(line)
    return found


def check(workload: str, strategy: str) -> None:
    """Measure a workload on all numbers of ranks, and print predictions beside that."""
    measured = {ranks: run(ranks, "measure", workload, strategy) for ranks in RANKS}
    alone = read(run(1, "simulate", workload, strategy))
    links = {n: fit([Timing(**each) for each in found["timings"]]) for n, found in measured.items() if n > 1}
    host = max(0.0, measured[1]["seconds"] - measured[1]["kernels"])
    rows = []
    for ranks, found in measured.items():
        seconds = found["seconds"]
        cells: list[object] = [ranks, f"{seconds * 1e3:.3f}", f"{found['kernels'] * 1e3:.3f}"]
        shared = replace(read(found["timeline"]), host=host)
        if ranks == 1:
            shared = replace(shared, exchanges=(), steps=())
        for line, link in ((alone, links[2]), (shared, links.get(ranks, links[2]))):
            p = predict(line, Cluster(link.link), ranks, overlap=False)
            cells += [f"{p.exposed * 1e3:.3f}", f"{p.seconds * 1e3:.3f}", f"{p.seconds / seconds - 1:+.0%}"]
        rows.append(cells)
    head = [">ranks", ">measured ms", ">kernels ms"]
    head += [f">{kind} {what}" for kind in ("alone:", "shared:") for what in ("comm. ms", "step ms", "error")]
    print(f"{workload}, {strategy}; {alone.gradient_bytes / 1e6:.3g} MB of gradients, host {host * 1e6:.0f} us a step")
    for ranks, link in links.items():
        print(f"collectives of {ranks} ranks: {link}")
    print(f"{table(head, rows)}\n")


# -- published figures


@dataclass(frozen=True)
class Published:
    """Throughput of a rank on `few` and on `many` ranks, and what the model is told: milliseconds of a step on one rank,
    the network, the gradients that are sent."""

    name: str
    model: str
    batch: int
    few: int
    many: int
    efficiency: float  # throughput of a rank on many, by that on few
    compute: float  # milliseconds of a step, where nothing is communicated
    between: Link
    within: Link
    per_host: int
    compression: str | None = None
    overlap: bool = True


NVLINK_P100, NVLINK_V100, NVSWITCH_A100 = (Link(rate, 5e-6, algorithm="ring") for rate in (80e9, 150e9, 300e9))
GBIT = 1e9 / 8


def network(gigabits: float) -> Link:
    """A network of that nominal rate; 5 us of latency, rings as in NCCL."""
    return Link(gigabits * GBIT, 5e-6, algorithm="ring")


PUBLISHED = (
    # Goyal et al., arXiv 1706.02677: 90 epochs of 1.28 million images in 29 h on 8 GPUs, 1 h on 256; 50 Gbit/s a host.
    Published("Goyal 2017, 8 P100 a host, 50 Gbit/s", "resnet50", 32, 8, 256, 0.90, 232.0, network(50), NVLINK_P100, 8),
    # Horovod, docs/benchmarks.rst: 128 servers of 4 Pascal GPUs, 25 Gbit/s RoCE; 1656.82 images/s on 16 GPUs.
    Published(
        "Horovod, 4 P100 a host, 25 Gbit/s", "resnet101", 64, 1, 512, 0.90, 618.0, network(25), Link(10e9, 5e-6), 4
    ),
    # DLPerf: MXNet 1.6 with Horovod, fp32; 389.71 images/s on 1 GPU, 2947.72 on 8, 5684.68 on 16, 10419.21 on 32.
    *(
        Published(
            "DLPerf, MXNet, 8 V100 a host, 100 Gbit/s", "resnet50", 96, 1, n, e, 246.3, network(100), NVLINK_V100, 8
        )
        for n, e in ((8, 0.945), (16, 0.912), (32, 0.836))
    ),
    # DLPerf: OneFlow, fp32; 384.85 images/s on 1 GPU, 11711.18 on 32.
    Published(
        "DLPerf, OneFlow, the same", "resnet50", 128, 1, 32, 0.951, 332.6, network(100), NVLINK_V100, 8
    ),
    # NVIDIA, DeepLearningExamples, MXNet: 384 and 3005 images/s in fp32, 1376 and 10723 in mixed precision.
    Published("NVIDIA DGX-1, fp32", "resnet50", 96, 1, 8, 0.978, 250.0, network(100), NVLINK_V100, 8),
    Published("NVIDIA DGX-1, mixed", "resnet50", 192, 1, 8, 0.974, 139.5, network(100), NVLINK_V100, 8, "fp16"),
    # 2180 and 16925 images/s in mixed precision.
    Published("NVIDIA DGX A100, mixed", "resnet50", 256, 1, 8, 0.970, 117.4, network(100), NVSWITCH_A100, 8, "fp16"),
)  # fmt: skip


def step_of_model(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """A step of a net of the model zoo, on images of ImageNet's size."""
    import gluongraph as mx
    from gluongraph import gluon, nd
    from gluongraph.gluon.model_zoo import vision

    net = getattr(vision, f"{name}_v1")(classes=1000)
    net.initialize(mx.init.Zero())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    return step, (nd.zeros((batch, 3, 224, 224)), nd.zeros((batch,)))


def published() -> None:
    """Print predictions for machines of which there are published figures."""
    from gluongraph.distributed.simulate_step import timeline_of_step

    rows = []
    for row in PUBLISHED:
        cells: list[object] = [row.name, row.model, f"{row.few} to {row.many}", f"{row.efficiency:.1%}"]
        for overlap in (True, False):
            step, batch = step_of_model(row.model, row.batch)
            how: dict[str, Any] = {"compression": {"type": row.compression}} if row.compression else {}
            line = timeline_of_step(step, batch, overlap=overlap, compute=row.compute / 1e3, **how)
            cluster = Cluster(row.between, row.within, row.per_host)
            few, many = (predict(line, cluster, ranks, overlap=overlap) for ranks in (row.few, row.many))
            cells += [f"{few.seconds / many.seconds:.1%}", f"{many.communication * 1e3:.1f}"]
        rows.append(cells)
    head = ["system", "model", "GPUs", ">published", ">overlap", ">comm. ms", ">no overlap", ">comm. ms"]
    print(table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="*", default=WORKLOADS)
    parser.add_argument("--strategy", default="allreduce", help="allreduce, zero1, zero2, fsdp")
    parser.add_argument("--published", action="store_true", help="predictions beside published figures of ResNet-50")
    parser.add_argument("--on-a-rank", choices=("measure", "simulate"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["GG_OVERLAP"] = "0"
    if options.on_a_rank:
        on_a_rank(options.on_a_rank, options.workload[0], options.strategy)
    elif options.published:
        published()
    else:
        for workload in options.workload:
            try:
                check(workload, options.strategy)
            except LaunchError as error:
                raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
