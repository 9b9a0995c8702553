"""Data-parallel training on one machine: two ranks of one thread against one process of two, MPI, and PyTorch's DDP.

python benchmarks/distributed.py [--workloads mlp-256 resnet20-32px] [--rounds 5] [--ranks 2]

Every contender is a job of its own; contenders alternate, round by round. Times are medians over blocks of steps:

one       one process, a thread for each rank, the whole batch
ranks     `kvstore="dist_sync"`, one thread for each rank, the batch divided among them
zero1     the same with `strategy="zero1"`, each rank updating its share of the parameters
apart     the same processes without communication: what the computation takes while all of them run
after     the same, each step followed by `own`: a collective that has to wait for the slower rank
own, raw  an allreduce of the gradients' bytes as a step makes it, and by mpi4py itself on a buffer of the same size
ddp       PyTorch's DistributedDataParallel over Gloo, same model, ranks and threads (where torch is installed)

`scaling` is one / ranks; `overhead` is what `ranks` takes beyond `apart` and `own`, of `ranks`; `graph` is what it
takes beyond `after`: the cost of the exchange within the step, without the time that any collective waits for the
slower rank, which neither `apart` nor `own` has.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CONTENDERS = ("one", "ranks", "zero1", "apart", "after", "own", "raw", "ddp")
SETTINGS = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
BLOCKS, SECONDS = 5, 0.6  # of each job: blocks, and how long one takes


# -- a rank


def divided(batch: Sequence[Any], rank: int, ranks: int) -> tuple[Any, ...]:
    """The part of a batch that a rank trains on."""
    return tuple(
        np.ascontiguousarray(part[rank * len(part) // ranks : (rank + 1) * len(part) // ranks]) for part in batch
    )


def gluon_step(workload: Any, rank: int, ranks: int, contender: str) -> Callable[[], Any]:
    """A training step of gluongraph on this rank's part of the batch."""
    import gluongraph as mx
    from gluongraph import gluon
    from gluongraph.bench import own
    from gluongraph.bench.workloads import batches

    net = own.network(workload)
    store = "dist_sync" if contender in ("ranks", "zero1") else "device"
    strategy = "zero1" if contender == "zero1" else None
    hyper = dict(workload.hyper)
    trainer = gluon.Trainer(net.collect_params(), workload.optimizer, hyper, kvstore=store, strategy=strategy)
    step = mx.compile(net, own.LOSSES[workload.loss](), trainer, inputs=workload.inputs)
    batch = own.arrays(divided(batches(workload)[0], rank, ranks))
    return lambda: step(*batch)


def ddp_step(workload: Any, rank: int, ranks: int) -> Callable[[], Any]:
    """A training step of PyTorch on this rank's part of the batch."""
    import torch

    from gluongraph.bench import torch_peer
    from gluongraph.bench.workloads import batches

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    net = torch.nn.parallel.DistributedDataParallel(torch_peer.network(workload))
    criterion = torch_peer.LOSSES[workload.loss]
    trainer = torch_peer.optimizer(workload, list(net.parameters()), fused=workload.optimizer in torch_peer.FUSED)
    batch = torch_peer.tensors(divided(batches(workload)[0], rank, ranks))

    def step() -> None:
        trainer.zero_grad(set_to_none=True)
        criterion(net(*batch[:-1]), batch[-1]).backward()
        trainer.step()

    return step


def allreduce(nbytes: int, raw: bool) -> Callable[[], Any]:
    """An allreduce of so many bytes of float32."""
    from gluongraph.runtime.communicator.environment import world

    communicator, array = world(), np.zeros(nbytes // 4, np.float32)
    if not raw:
        memory = communicator.shared_memory(array.nbytes)
        if memory is not None:
            return memory.array(0, array.nbytes, array.dtype).allreduce
        return lambda: communicator.allreduce(array)
    try:
        from mpi4py import MPI
    except ImportError:
        raise SystemExit("the measurement of MPI itself needs mpi4py: pip install 'gluongraph[mpi]'") from None

    comm = MPI.COMM_WORLD.Dup()
    return lambda: comm.Allreduce(MPI.IN_PLACE, [array, MPI.FLOAT])


def in_turn(first: Callable[[], Any], second: Callable[[], Any]) -> Callable[[], Any]:
    """One after the other."""

    def both() -> None:
        first()
        second()

    return both


def times_of(run: Callable[[], Any], barrier: Callable[[], None]) -> list[float]:
    """Seconds of one call, for each block. The number of calls is the same on all ranks."""
    for _ in range(3):
        run()
    barrier()
    start = time.perf_counter()
    for _ in range(3):
        run()
    calls = agreed(max(3, round(SECONDS / ((time.perf_counter() - start) / 3))))
    found = []
    for _ in range(BLOCKS):
        barrier()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        found.append((time.perf_counter() - start) / calls)
    return found


def agreed(calls: int) -> int:
    """The least number of all ranks."""
    from gluongraph.runtime.communicator.environment import world

    number = np.array([calls], np.int64)
    world().allreduce(number, "min")
    return int(number[0])


def worker(contender: str, name: str, nbytes: int) -> None:
    """Run on one rank; rank 0 prints the times, of the slowest rank in each block."""
    from gluongraph.bench.workloads import WORKLOADS
    from gluongraph.runtime.communicator.environment import world

    communicator, workload = world(), WORKLOADS[name]
    rank, ranks = communicator.rank, communicator.size
    if contender in ("own", "raw"):
        run = allreduce(nbytes, contender == "raw")
    elif contender == "ddp":
        run = ddp_step(workload, rank, ranks)
    elif contender == "after":
        run = in_turn(gluon_step(workload, rank, ranks, "apart"), allreduce(nbytes, raw=False))
    else:
        run = gluon_step(workload, rank, ranks, contender)
    found = np.array(times_of(run, communicator.barrier))
    communicator.allreduce(found, "max")
    if rank == 0:
        print(json.dumps(found.tolist()))


# -- all jobs


def job(contender: str, name: str, nbytes: int, ranks: int) -> list[float]:
    """Start the ranks of a contender; return seconds of a step, for each block."""
    alone = contender == "one"
    threads = str(ranks if alone else 1)
    env = os.environ | SETTINGS | {"TVM_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "GG_PROGRESS": "0"}
    line = [sys.executable, __file__, "--worker", contender, name, str(nbytes)]
    if not alone:
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
        line = [str(Path(sys.executable).with_name("mpiexec")), "--oversubscribe", "-n", str(ranks), *line]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{contender} of {name}: {done.stderr[-2000:]}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def gradient_bytes(name: str) -> int:
    """The bytes of all gradients of a workload."""
    from gluongraph.bench import own
    from gluongraph.bench.workloads import WORKLOADS, batches

    workload = WORKLOADS[name]
    net = own.network(workload)
    net(*own.arrays(batches(workload)[0][: workload.inputs]))
    return sum(4 * p.data().size for p in net.collect_params().values() if p.grad_req != "null")


def bandwidth(threads: int) -> float:
    """Bytes a second of the triad on all cores, now."""
    from gluongraph.bench import bandwidth as probe

    run = probe.triad(threads)
    start = time.perf_counter()
    run()
    return 3 * 4 * probe.NUMBERS / (time.perf_counter() - start)


def measured(name: str, rounds: int, ranks: int, contenders: Sequence[str]) -> dict[str, float]:
    """Median milliseconds of each contender."""
    nbytes, found = gradient_bytes(name), {contender: list[float]() for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            found[contender] += job(contender, name, nbytes, ranks)
    return {contender: 1e3 * statistics.median(times) for contender, times in found.items()} | {"MiB": nbytes / 2**20}


def shown(name: str, ms: dict[str, float]) -> str:
    """A row of the table."""
    scaling = ms["one"] / ms["ranks"]
    overhead = (ms["ranks"] - ms["apart"] - ms["own"]) / ms["ranks"]
    ddp = f"{ms['ddp']:8.2f}{ms['ddp'] / ms['ranks']:8.2f}" if "ddp" in ms else f"{'':16}"
    graph = (ms["ranks"] - ms["after"]) / ms["ranks"]
    times = "".join(f"{ms[contender]:8.2f}" for contender in CONTENDERS if contender != "ddp")
    shares = f"{scaling:9.2f}{overhead:9.1%}{graph:9.1%}{ms['raw'] / ms['own']:9.2f}"
    return f"{name:16}{ms['MiB']:7.2f}{times}{shares}{ddp}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["mlp-256", "lenet-128", "resnet20-32px", "resnet18-32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        contender, name, nbytes = options.worker
        worker(contender, name, int(nbytes))
        return
    contenders = [c for c in CONTENDERS if c != "ddp" or importlib.util.find_spec("torch")]
    print(f"bandwidth {bandwidth(options.ranks) / 1e9:.1f} GB/s; milliseconds of a step, {options.ranks} ranks")
    times, shares = [c for c in CONTENDERS if c != "ddp"], ("scaling", "overhead", "graph", "raw/own")
    widths = {**dict.fromkeys(times, 8), **dict.fromkeys(shares, 9), "ddp": 8, "/ranks": 8}
    print(f"{'':16}{'MiB':>7}" + "".join(f"{name:>{width}}" for name, width in widths.items()))
    for name in options.workloads:
        print(shown(name, measured(name, options.rounds, options.ranks, contenders)), flush=True)


if __name__ == "__main__":
    main()
