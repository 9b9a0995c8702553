"""Predictions of `gluongraph simulate` beside what is measured: on 1, 2 and 4 ranks here, and published for ResNet-50.

    python benchmarks/simulate_check.py                              # mlp-128 and resnet20-32px
    python benchmarks/simulate_check.py mlp-256 --strategy zero1
    python benchmarks/simulate_check.py --published

Ranks have one thread each, gradients are communicated when all are there (no overlap). Two predictions are shown:

alone    what the command says: kernels measured by one process that has the machine for itself; latency and bandwidth
         fitted to collectives of 2 ranks. More ranks than cores, or a memory that ranks share, are not in it.
shared   kernels measured on that many ranks, which begin together, until the slowest of them has computed; latency and
         bandwidth fitted to collectives of that many ranks. What is left is the model itself: which bytes, which
         algorithm, what waits.

Times are the lower quartile, since other processes delay some steps. What the host does around kernels is measured on
one rank, and counts in both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gluongraph.distributed.launcher_mpi import LaunchError
from gluongraph.distributed.simulate import Cluster, Exchange, Link, Timeline, Work, predict, timeline
from gluongraph.distributed.simulate_calibration import Timing, fit, output_of_ranks
from gluongraph.host.terminal import table

RANKS = (1, 2, 4)
WORKLOADS = ("mlp-128", "resnet20-32px")
_PATIENCE = 300.0  # seconds for a job
QUANTILE = 0.25  # of the times of steps, kernels and collectives: other processes delay some of them
_LONG, _ROUNDS = 3.0, 10  # seconds of steps, and of their kernels alone; parts, which take turns
Times = np.ndarray[Any, np.dtype[np.float64]]


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

    def slowest(seconds: list[float]) -> Times:
        array = np.array(seconds)
        communicator.allreduce(array, "max")
        return array

    def steps(count: int) -> list[float]:
        communicator.barrier()
        times = []
        for _ in range(count):
            started = time.perf_counter()
            step(*batch)
            times.append(time.perf_counter() - started)
        return times

    count = max(5, int(_LONG / _ROUNDS / slowest(steps(5))[-1]))
    timings = measure(communicator, quantile=QUANTILE) if communicator.size > 1 else []
    rows = step.profile(*batch, repeat=5, roofline=False)
    whole: list[float] = []
    computing: list[float] = []
    for _ in range(_ROUNDS):  # in turn, since other processes come and go
        whole += steps(count)
        computing += kernels_together(step, [x.asnumpy() for x in batch], communicator, count).tolist()
    seconds = slowest([float(np.quantile(whole, QUANTILE))])[0]
    together = float(np.quantile(computing, QUANTILE))
    line = timeline(step.plan, [row.seconds for row in rows], parameters=step.trainer.names)
    return {
        "seconds": float(seconds),
        "kernels": together,
        "timeline": asdict(line.scaled(together, communicator.size)),
        "timings": [asdict(timing) for timing in timings],
    }


def kernels_together(step: Any, arrays: Any, communicator: Any, count: int) -> Times:
    """Seconds of all kernels of a step, without its collectives: from when the first rank begins until the last has
    ended."""
    from gluongraph.runtime import loader

    found = step._specializations.last
    plan, module, position = step.plan, found.compiled.module(), step.plan.positions
    functions = {name: loader.function(module, name) for name in plan.kernels}
    starts, ends = np.empty(count), np.empty(count)  # of one clock: the ranks are on one host
    with found.runner.lent([arrays[i] for i in found.reads]) as memory:
        calls = [
            (functions[launch.kernel], [memory[position[b.name]] for b in launch.arguments])
            for launch in plan.launches
            if launch.group.collective is None
        ]
        for i in range(count):
            communicator.barrier()
            starts[i] = time.perf_counter()
            for function, arguments in calls:
                function(*arguments)
            ends[i] = time.perf_counter()
    communicator.allreduce(starts, "min")
    communicator.allreduce(ends, "max")
    return ends - starts


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
    """Throughput of a rank on `many` ranks by that on `few`, and what the model is told: milliseconds of a step on one
    rank, the network, the type of the gradients that are sent."""

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


def cluster_of(row: Published, share: float = 1.0) -> Cluster:
    """The network of a row, at a share of its nominal bandwidth."""
    between, within = (replace(link, bandwidth=link.bandwidth * share) for link in (row.between, row.within))
    return Cluster(between, within, row.per_host)


def efficiency_of(row: Published, line: Timeline, overlap: bool, share: float = 1.0) -> float:
    """The predicted throughput of a rank on many ranks, by that on few."""
    cluster = cluster_of(row, share)
    few, many = (predict(line, cluster, ranks, overlap=overlap) for ranks in (row.few, row.many))
    return few.seconds / many.seconds


def explained_by(row: Published, line: Timeline) -> float:
    """The share of the nominal bandwidth at which a step with overlap would be as efficient as published."""
    low, high = 1e-4, 1.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if efficiency_of(row, line, True, middle) > row.efficiency else (middle, high)
    return high


def published() -> None:
    """Print predictions for machines of which there are published figures."""
    from gluongraph.distributed.simulate_step import timeline_of_step

    rows = []
    for row in PUBLISHED:
        found = []
        for overlap in (True, False):
            step, batch = step_of_model(row.model, row.batch)
            how: dict[str, Any] = {"compression": {"type": row.compression}} if row.compression else {}
            found.append(timeline_of_step(step, batch, overlap=overlap, compute=row.compute / 1e3, **how))
        hidden, bare = (f"{efficiency_of(row, line, o):.1%}" for line, o in zip(found, (True, False), strict=True))
        sent = predict(found[1], cluster_of(row), row.many).communication
        share = f"{explained_by(row, found[0]):.0%}"
        gpus = f"{row.few} to {row.many}"
        rows.append([row.name, row.model, gpus, f"{row.efficiency:.1%}", hidden, bare, f"{sent * 1e3:.1f}", share])
    head = ["system", "model", "GPUs", ">published", ">overlap", ">no overlap", ">allreduce ms", ">of bandwidth"]
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
