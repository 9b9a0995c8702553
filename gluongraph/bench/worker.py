"""One contender in a process of its own: prepares, then runs blocks of steps for interleaved_timing.py.

It speaks JSON lines:

python gluongraph/bench/worker.py CONTENDER WORKLOAD PRECISION CORES

It is run by its path: a peer's process is to be as its users have it, without gluongraph's settings of threads and
memory, and MXNet's interpreter has no gluongraph at all. There the name means a package that is empty but for its
folder; or MXNet, whose names are the same, so that its nets are those of gluongraph.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import sys
import time
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

Step = Callable[[], Any]  # one whole step; returns its loss, however the library holds it
Make = Callable[[Any, int, str], Step]  # from workload, threads, precision
HERE = Path(__file__).resolve().parent


def stand_in(name: str, owner: types.ModuleType | None = None) -> None:
    """Let `gluongraph` be this module, or an empty package, whose folder `bench` is this one."""
    package = owner or types.ModuleType(name)
    if owner is None:
        package.__path__ = [str(HERE.parent)]
    bench = types.ModuleType(f"{name}.bench")
    bench.__path__ = [str(HERE)]
    sys.modules[name], sys.modules[bench.__name__] = package, bench


def _bench(module: str) -> Any:
    return importlib.import_module(f"gluongraph.bench.{module}")


def _own(how: str) -> Make:
    return lambda workload, threads, precision: getattr(_bench("own"), how)(workload, precision=precision)


def _torch(**how: bool) -> Make:
    def make(workload: Any, threads: int, precision: str) -> Step:
        stand_in("gluongraph")
        step: Step = _bench("torch_peer").contender(workload, threads, precision=precision, **how)
        return step

    return make


def _jax(workload: Any, threads: int, precision: str) -> Step:
    if precision != "32":
        raise SystemExit(f"the JAX twin has no precision {precision}")
    stand_in("gluongraph")
    step: Step = _bench("jax_peer").contender(workload, threads)
    return step


def _mxnet(workload: Any, threads: int, precision: str) -> Step:
    if precision != "32":
        raise SystemExit(f"the MXNet twin has no precision {precision}")
    mxnet = importlib.import_module("mxnet")
    stand_in("gluongraph", mxnet)
    for name in ("gluon", "gluon.nn", "gluon.rnn"):
        sys.modules[f"gluongraph.{name}"] = importlib.import_module(f"mxnet.{name}")
    step: Step = _bench("mxnet_peer").contender(workload, threads)
    return step


def _torch_update(workload: Any, threads: int, precision: str) -> Step:
    stand_in("gluongraph")
    step: Step = _bench("torch_peer").update(workload, threads, foreach=True)
    return step


def _probe(name: str) -> Make:
    def make(workload: Any, threads: int, precision: str) -> Step:
        stand_in("gluongraph")
        step: Step = getattr(_bench("bandwidth"), name)(threads)
        return step

    return make


def _zoo(how: str, **settings: Any) -> Make:
    """A model of torch_zoo, whose name stands in place of a workload's."""

    def make(model: Any, threads: int, precision: str) -> Step:
        if how == "peer":
            stand_in("gluongraph")
            step: Step = _bench("torch_zoo_steps").peer(model, threads, **settings)
            return step
        own: Step = getattr(_bench("torch_zoo_steps"), how)(model)
        return own

    return make


CONTENDERS: dict[str, tuple[str, Make]] = {  # name: the package it needs, how it is prepared
    "gluongraph": ("gluongraph", _own("compiled")),
    "gluongraph-eager": ("gluongraph", _own("eager")),
    "torch": ("torch", _torch(fused=False)),
    "torch-fused": ("torch", _torch()),
    "torch-compile": ("torch", _torch(compiled=True)),
    "jax": ("jax", _jax),
    "mxnet": ("mxnet", _mxnet),
    "bandwidth": ("numpy", _probe("triad")),
}
UPDATING: dict[str, tuple[str, Make]] = {  # of updates alone
    "gluongraph-call": ("gluongraph", _own("update_call")),
    "torch-foreach": ("torch", _torch_update),
    "in-place": ("numpy", _probe("in_place")),
}

MODELS: dict[str, tuple[str, Make]] = {  # of the models in torch_zoo
    "from-torch": ("gluongraph", _zoo("Own")),
    "eager": ("torch", _zoo("peer")),
    "compile": ("torch", _zoo("peer", compiled=True)),
    "check": ("gluongraph", _zoo("Check")),
}


def prepare(contender: str, workload: str, threads: int, precision: str) -> tuple[Step, dict[str, Any]]:
    """The step, warmed up, and what to tell about it."""
    package, make = {**CONTENDERS, **UPDATING, **MODELS}[contender]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{package} is not installed") from None
    if package != "gluongraph":
        stand_in("gluongraph")
    found = workload if contender in MODELS else _bench("workloads").find(workload)
    started = time.perf_counter()
    step = make(found, threads, precision)
    step()
    prepared = time.perf_counter() - started
    for _ in range(2):
        step()
    once = block(step, 1)["seconds"]
    again = block(step, max(1, min(200, int(0.05 / once))))["seconds"]
    about = {"package": package, "version": version, **getattr(step, "found", {})}
    return step, {"prepare_seconds": prepared, "seconds": again, "about": about}


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
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def answer_to(request: dict[str, Any], step: Any) -> dict[str, Any]:
    """A block of steps; of a compiled step what its kernels do, or what the machine needs for that."""
    if "kernels" in request:
        return dict(step.kernels(request["kernels"]))
    if "bound" in request:
        return {"bound": step.bound()}
    if "peak" in request:
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    answer = block(step, request["steps"])
    if not math.isfinite(answer["loss"]):
        raise ArithmeticError(f"the loss became {answer['loss']}")
    return answer


def main(contender: str, workload: str, precision: str, cores: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    if sys.path and Path(sys.path[0]).resolve() == HERE:
        del sys.path[0]  # this folder: its modules have names of their own

    def tell(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    on = {int(core) for core in cores.split(",")}
    os.sched_setaffinity(0, on)
    try:
        step, hello = prepare(contender, workload, len(on), precision)
        tell(hello)
        for line in sys.stdin:
            tell(answer_to(json.loads(line), step))
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        tell({"error": text})


if __name__ == "__main__":
    main(*sys.argv[1:])
