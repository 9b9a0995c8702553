"""One contender in a process of its own: prepares, then runs blocks of steps for contest.py. Speaks JSON lines.

python benchmarks/worker.py CONTENDER WORKLOAD CORES
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import bandwidth
from workloads import find

Step = Callable[[], Any]  # one whole step; returns its loss, however the library holds it


def gluongraph(name: str, threads: int) -> Step:
    import own

    return own.compiled(find(name))


def gluongraph_eager(name: str, threads: int) -> Step:
    import own

    return own.eager(find(name))


def torch(name: str, threads: int) -> Step:
    import torch_peer

    return torch_peer.contender(find(name), threads, compiled=False)


def torch_compile(name: str, threads: int) -> Step:
    import torch_peer

    return torch_peer.contender(find(name), threads, compiled=True)


def jax(name: str, threads: int) -> Step:
    import jax_peer

    return jax_peer.contender(find(name), threads)


def gluongraph_call(name: str, threads: int) -> Step:
    import own

    return own.update(find(name), call=True)


def torch_foreach(name: str, threads: int) -> Step:
    import torch_peer

    return torch_peer.update(find(name), threads, foreach=True)


CONTENDERS: dict[str, tuple[str, Callable[[str, int], Step]]] = {  # name: the package it needs, how it is prepared
    "gluongraph": ("gluongraph", gluongraph),
    "gluongraph-eager": ("gluongraph", gluongraph_eager),
    "torch": ("torch", torch),
    "torch.compile": ("torch", torch_compile),
    "jax": ("jax", jax),
    "bandwidth": ("numpy", lambda name, threads: bandwidth.triad(threads)),
}

UPDATING: dict[str, tuple[str, Callable[[str, int], Step]]] = {  # of updates alone
    "gluongraph-call": ("gluongraph", gluongraph_call),
    "torch-foreach": ("torch", torch_foreach),
    "in-place": ("numpy", lambda name, threads: bandwidth.in_place(threads)),
}


def prepare(contender: str, workload: str, threads: int) -> tuple[Step, dict[str, Any]]:
    """The step, warmed up, and what to tell about it."""
    package, make = {**CONTENDERS, **UPDATING}[contender]
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"{package} is not installed") from None
    started = time.perf_counter()
    step = make(workload, threads)
    step()
    prepared = time.perf_counter() - started
    for _ in range(2):
        step()
    once = block(step, 1)["seconds"]
    again = block(step, max(1, min(200, int(0.05 / once))))["seconds"]
    return step, {"prepare_seconds": prepared, "seconds": again, "about": {"package": package, "version": version}}


def block(step: Step, steps: int) -> dict[str, float]:
    """Seconds a step over `steps` steps, all costs in it; the last loss; how many cores other processes kept busy."""
    loss: Any = None
    others, started = _busy() - time.process_time(), time.perf_counter()
    for _ in range(steps):
        loss = step()
    elapsed = time.perf_counter() - started
    others = max(_busy() - time.process_time() - others, 0.0) / elapsed
    return {"seconds": elapsed / steps, "loss": float(loss.mean()), "others": others}


def _busy() -> float:
    """Core seconds that the whole machine has worked so far; 0 where the kernel does not tell."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def main(contender: str, workload: str, cores: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get among the answers

    def tell(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    on = {int(core) for core in cores.split(",")}
    os.sched_setaffinity(0, on)
    try:
        step, hello = prepare(contender, workload, len(on))
        tell(hello)
        for line in sys.stdin:
            answer = block(step, json.loads(line)["steps"])
            if not math.isfinite(answer["loss"]):
                raise ArithmeticError(f"the loss became {answer['loss']}")
            tell(answer)
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        tell({"error": text})


if __name__ == "__main__":
    main(*sys.argv[1:])
