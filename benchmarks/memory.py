"""What a training step holds in memory: the plan beside its lower bound, and the processes of both libraries.

    python benchmarks/memory.py --workload lenet-128,gpt
    python benchmarks/memory.py --workload gpt --times 4      # four times PyTorch's batch: in which memory, how fast?
    python benchmarks/memory.py --workload gpt --promises     # what step.memory says of remat, and what comes of it

The bound is the largest sum of scratch bytes that are alive at one kernel. The two columns on the right are measured:
how far a process of its own rises, while it trains a few steps, above where it was when the library was warm (imported
and used once on something small); for gluongraph with an artefact that is compiled already.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gluongraph.bench.own import step_of
from gluongraph.bench.workloads import WORKLOADS, Workload, find
from gluongraph.cli import chosen

MODELS = [name for name, w in WORKLOADS.items() if w.model != "update"]
MIB = 2**20


def plan_of(workload: Workload, **options: Any) -> Any:
    """The plan of a workload's step. Nothing is compiled."""
    from gluongraph import debug

    step, (batch, *_) = step_of(workload, **options)
    with debug.override(backend="reference"):
        step.memory(*batch)
    return step.plan


def planned(workload: Workload) -> tuple[int, int]:
    """The lower bound of a workload's plan, and what the plan takes."""
    from gluongraph.passes.assign_memory import lower_bound

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

        importlib.import_module("gluongraph.bench.torch_peer")
        torch.nn.functional.linear(torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)).sum().backward()
    else:
        from gluongraph.bench import own

        own.compiled(find("mlp-8"))()


def train(library: str, workload: Workload, steps: int, **options: Any) -> tuple[int, float]:
    """How far this process rises above the level after warm-up, and the least seconds of a step."""
    warm(library)
    if library == "torch":
        from gluongraph.bench import torch_peer

        make = partial(torch_peer.contender, workload, 1, compiled=False)
    else:
        from gluongraph.bench import own

        make = partial(own.compiled, workload, **options)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
    before, best = level("VmRSS"), float("inf")
    step = make()
    for _ in range(steps):
        started = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - started)
    return level("VmHWM") - before, best


def measured(library: str, name: str, *further: str) -> tuple[int, float] | None:
    """The same in a process of its own; None where that failed. gluongraph's is run twice: the first compiles."""
    if library == "torch" and importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: it is left out", file=sys.stderr)
        return None
    command = [sys.executable, __file__, "--process", library, "--workload", name, *further]
    for _ in range(2 if library == "gluongraph" else 1):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
            return None
    nbytes, seconds = json.loads(done.stdout.splitlines()[-1])
    return nbytes, seconds


def fit(name: str, times: int, steps: int, remat: str) -> None:
    """A workload in PyTorch's eager mode, and with so many times its batch and recomputation in ours."""
    batch = find(name).batch
    print(f"{name:24}{'batch':>7}{'MiB':>9}{'ms a sample':>14}")
    for library, samples, more in (("torch", batch, []), ("gluongraph", batch * times, ["--remat", remat])):
        found = measured(library, name, "--batch", str(samples), "--steps", str(steps), *more)
        if found is not None:
            print(f"{library:24}{samples:>7}{found[0] / MIB:>9.0f}{found[1] / samples * 1e3:>14.1f}")


def promises(name: str, rounds: int) -> None:
    """What `step.memory` expects of each `remat`, and what is measured: steps take turns, and the best of each counts;
    the process is one of its own."""
    kinds, best = (None, "auto", "blocks"), dict[str | None, float]()
    steps = {kind: step_of(find(name), remat=kind) for kind in kinds}
    for _ in range(rounds + 1):
        for kind, (step, (batch, *_)) in steps.items():
            started = time.perf_counter()
            step(*batch)
            best[kind] = min(best.get(kind, float("inf")), time.perf_counter() - started)
    print(f"{name:14}{'peak, MiB':>10}{'process':>10}{'extra time':>12}{'measured':>10}")
    for kind, (step, (batch, *_)) in steps.items():
        told, more = step.memory(*batch), [] if kind is None else ["--batch", str(find(name).batch), "--remat", kind]
        rise = measured("gluongraph", name, "--steps", "2", *more)
        process = "" if rise is None else f"{rise[0] / MIB:.0f}"
        extra = f"{told.extra_time:>12.1%}{best[kind] / best[None] - 1:>10.1%}"
        print(f"{kind or 'all kept':14}{told.peak / MIB:>10.0f}{process:>10}{extra}")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=chosen(MODELS), default=MODELS, help=f"of {', '.join(MODELS)}")
    parser.add_argument("--plans", action="store_true", help="plans only: no process is measured")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--times", type=int, help="so many times PyTorch's batch, with recomputation; its time and memory"
    )
    parser.add_argument("--remat", default="blocks", help="with --times: as in mx.compile")
    parser.add_argument("--promises", action="store_true", help="what step.memory expects, beside what is measured")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.process:
        workload = find(options.workload[0])
        given = {"remat": options.remat} if options.batch and options.process != "torch" else {}
        workload = replace(workload, batch=options.batch or workload.batch)
        print(json.dumps(train(options.process, workload, options.steps, **given)))
    elif options.promises:
        for name in options.workload:
            promises(name, options.steps)
    elif options.times:
        for name in options.workload:
            fit(name, options.times, options.steps, options.remat)
    else:
        compare(options.workload, [] if options.plans else ["gluongraph", "torch"], str(options.steps))


def compare(workloads: Sequence[str], libraries: Sequence[str], steps: str) -> None:
    """Each workload's plan and its bound, and what processes rise by."""
    print(f"{'MiB':14}{'bound':>10}{'plan':>10}{'ratio':>8}{'process':>12}{'PyTorch':>10}")
    for name in workloads:
        bound, taken = planned(find(name))
        print(f"{name:14}{bound / MIB:>10.2f}{taken / MIB:>10.2f}{taken / max(bound, 1):>8.3f}", end="", flush=True)
        processes = [measured(library, name, "--steps", steps) for library in libraries]
        print("".join(f"{'' if each is None else round(each[0] / MIB, 1):>11}" for each in processes))


if __name__ == "__main__":
    main()
