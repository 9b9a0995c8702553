"""What a training step holds in memory: the plan beside its lower bound, and the processes of both libraries.

    python benchmarks/memory.py --workload lenet-128,gpt

The bound is the largest sum of scratch bytes that are alive at one kernel. The two columns on the right are measured:
how far a process of its own rises, while it trains a few steps, above where it was when the library was warm (imported
and used once on something small); for gluongraph with an artefact that is compiled already.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training_step import names
from workloads import WORKLOADS, Workload, batches, find, network, trainer

MODELS = [name for name, w in WORKLOADS.items() if w.model != "update"]
MIB = 2**20


def plan_of(workload: Workload, **options: Any) -> Any:
    """The plan of a workload's step. Nothing is compiled."""
    import gluongraph as mx
    from gluongraph import debug, gluon, nd

    net = network(workload)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer(workload, net), **options)
    ((x, y),) = batches(workload, 1)
    with debug.override(backend="reference"):
        step.memory(nd.array(x), nd.array(y, dtype="int32"))
    return step.plan


def planned(workload: Workload) -> tuple[int, int]:
    """The lower bound of a workload's plan, and what the plan takes."""
    from gluongraph.passes.memory import lower_bound

    plan = plan_of(workload)
    return lower_bound(plan), plan.scratch_bytes


def level(field: str) -> int:
    """Bytes of this process: VmRSS now, or VmHWM, the most there has been."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) * 1024


def warm(library: str) -> None:
    """Import the library, and let it do what it does once."""
    if library == "torch":
        import torch

        import torch_peer  # noqa: F401

        torch.nn.functional.linear(torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)).sum().backward()
    else:
        import own

        own.compiled(find("mlp-8"))()


def rise(library: str, workload: Workload, steps: int) -> int:
    """How far this process rises above the level after warm-up."""
    warm(library)
    if library == "torch":
        import torch_peer

        make = lambda: torch_peer.contender(workload, 1, compiled=False)  # noqa: E731
    else:
        import own

        make = lambda: own.compiled(workload)  # noqa: E731
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
    before = level("VmRSS")
    step = make()
    for _ in range(steps):
        step()
    return level("VmHWM") - before


def measured(library: str, name: str, steps: int = 3) -> int | None:
    """The same in a process of its own; None where that failed. gluongraph's is run twice: the first compiles."""
    command = [sys.executable, __file__, "--process", library, "--workload", name, "--steps", str(steps)]
    for _ in range(2 if library == "gluongraph" else 1):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
            return None
    return int(json.loads(done.stdout.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=names(MODELS), default=MODELS, help=f"of {', '.join(MODELS)}")
    parser.add_argument("--plans", action="store_true", help="plans only: no process is measured")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.process:
        print(json.dumps(rise(options.process, find(options.workload[0]), options.steps)))
        return
    rows = {name: planned(find(name)) for name in options.workload}
    print(f"{'MiB':14}{'bound':>10}{'plan':>10}{'ratio':>8}{'process':>12}{'PyTorch':>10}")
    for name, (bound, taken) in rows.items():
        print(f"{name:14}{bound / MIB:>10.2f}{taken / MIB:>10.2f}{taken / max(bound, 1):>8.3f}", end="", flush=True)
        processes = (
            [] if options.plans else [measured(library, name, options.steps) for library in ("gluongraph", "torch")]
        )
        print("".join(f"{'' if each is None else round(each / MIB, 1):>11}" for each in processes))


if __name__ == "__main__":
    main()
