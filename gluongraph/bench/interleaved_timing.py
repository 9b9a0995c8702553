"""Contenders side by side: each its own process, kept alive; blocks of steps alternate; all on the same cores.

A worker prepares (imports, builds, compiles, warms up) and then takes blocks of steps on request. All workers but the
one at work are stopped by signal, so that no spinning thread of one is measured with another.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gluongraph.host.cores import cores as own_cores
from gluongraph.host.interrupts import guarded

WORKER = Path(__file__).with_name("worker.py")
Told = Callable[[], None]
# What holds each library to a target's vectors: PyTorch, oneDNN in it and in MXNet, MKL, and JAX.
VECTORS: dict[str, dict[str, str]] = {
    name: {
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "DNNL_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "XLA_FLAGS": f"--xla_cpu_max_isa={mkl}",
    }
    for name, aten, onednn, mkl in (
        ("x86-64-v3", "avx2", "AVX2", "AVX2"),
        ("x86-64-v4", "avx512", "AVX512_CORE", "AVX512"),
    )
}


@dataclass
class Result:
    """What one contender did: seconds a step of each block, or why it did not run."""

    contender: str
    missing: str = ""
    prepare_seconds: float = 0.0
    steps: int = 0
    blocks: list[float] = field(default_factory=list)
    loss: float = 0.0
    others: list[float] = field(default_factory=list)  # cores that other processes kept busy, by block
    about: dict[str, Any] = field(default_factory=dict)
    bound: float = 0.0  # seconds that the machine needs for what a step does, where that was asked for
    kernels: dict[str, Any] = field(default_factory=dict)  # what its kernels do, likewise
    peak: int = 0  # bytes of memory that its process has held at most, with all that it has loaded

    @property
    def median(self) -> float:
        return statistics.median(self.blocks)


def cores(threads: int | None) -> list[int]:
    """The cores that all contenders are bound to: physical ones."""
    mine = own_cores()
    if threads is not None and not 1 <= threads <= len(mine):
        raise ValueError(f"{threads} threads: this process may use 1 to {len(mine)} cores")
    return mine[:threads]


def environment(threads: int, target: str = "") -> dict[str, str]:
    """The environment in which every library uses that many threads, and the vectors of the target, if one is named."""
    names = ("OMP", "MKL", "OPENBLAS", "TVM", "NUMEXPR")
    environ = {**os.environ, **{f"{name}_NUM_THREADS": str(threads) for name in names}}
    environ["OPENBLAS_THREAD_TIMEOUT"] = "10"  # as gluongraph asks for where it is imported before numpy
    environ |= {"GG_TARGET": target, **VECTORS[target]} if target else {}
    return environ | {"NPROC": str(threads), "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


def interpreter(contender: str) -> str:
    """This one; of MXNet, which wants an environment of its own, the one that GG_MXNET_PYTHON names."""
    return os.environ.get("GG_MXNET_PYTHON") or sys.executable if contender == "mxnet" else sys.executable


class Worker:
    """One contender's process. It is stopped unless a request is under way."""

    def __init__(self, contender: str, workload: str, on: Sequence[int], precision: str = "32", target: str = ""):
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close()
        python = interpreter(contender)
        command = guarded([python, str(WORKER), contender, workload, precision, ",".join(map(str, on))])
        env = environment(len(on), target)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env
        )
        self.hello = self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Wake it, send the request, wait for the answer, stop it again."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the answer says how
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            last = self.log.read().strip().splitlines()[-3:]
            return {"error": f"ended with {self.process.wait()}: {' | '.join(last)}"}
        self.process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()


@contextmanager
def workers(
    contenders: Sequence[str], workload: str, on: Sequence[int], precision: str, target: str, started: Told
) -> Iterator[dict[str, Worker]]:
    """A worker for each, started one after the other."""
    made: dict[str, Worker] = {}
    try:
        for contender in contenders:
            made[contender] = Worker(contender, workload, on, precision, target)
            started()
        yield made
    finally:
        for worker in made.values():
            worker.close()


def contest(
    contenders: Sequence[str],
    workload: str,
    on: Sequence[int],
    blocks: int,
    block_seconds: float,
    precision: str = "32",
    progress: Told = lambda: None,
    bound: bool = False,
    kernels: int = 0,
    target: str = "",
) -> dict[str, Result]:
    """Each contender's blocks, taken in turn; every round begins with another one.

    `progress` is called when a contender is prepared, and for each round. After all blocks the first contender tells
    the `bound` of its step, and with `kernels` times each of its kernels so many times.
    """
    with workers(contenders, workload, on, precision, target, progress) as made:
        results = {c: _introduce(c, w.hello, block_seconds) for c, w in made.items()}
        running = [c for c in contenders if not results[c].missing]
        for turn in range(blocks):
            start = turn % max(len(running), 1)
            for contender in running[start:] + running[:start]:
                result = results[contender]
                answer = made[contender].ask(steps=result.steps)
                if "error" in answer:
                    result.missing = answer["error"]
                    running = [c for c in running if c != contender]
                else:
                    result.blocks.append(answer["seconds"])
                    result.loss = answer["loss"]
                    result.others.append(answer["others"])
            progress()
        for contender in running:
            results[contender].peak = made[contender].ask(peak=True).get("peak", 0)
        first = contenders[0]
        if bound and first in running:
            results[first].bound = made[first].ask(bound=True).get("bound", 0.0)
        if kernels and first in running:
            answer = made[first].ask(kernels=kernels)
            results[first].kernels = {} if "error" in answer else answer
        return results


def _introduce(contender: str, hello: dict[str, Any], block_seconds: float) -> Result:
    if "error" in hello:
        return Result(contender, missing=hello["error"])
    steps = max(1, round(block_seconds / hello["seconds"]))
    return Result(contender, "", hello["prepare_seconds"], steps, about=hello["about"])


def seconds(value: float) -> str:
    """A time with the unit that suits it."""
    unit, scale = next(pair for pair in (("s ", 1.0), ("ms", 1e-3), ("us", 0.0)) if value >= pair[1])
    return f"{value / (scale or 1e-6):.3g} {unit}"
