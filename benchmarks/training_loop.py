"""What a Trainer costs: gluongraph.lightning beside Lightning on PyTorch, and beside loops without a Trainer.

python benchmarks/training_loop.py overhead        # a linear model: microseconds of a step of Trainer.fit
python benchmarks/training_loop.py digits          # a CNN: fit against the bare loop over the compiled step
python benchmarks/training_loop.py whole           # ResNet-18, a transformer: fit against Lightning with torch.compile

Each contender is a process of its own, prepared before, and stopped by signal while another one runs; their runs
alternate. A run is one training; what its first batches take, where programs are compiled, is told apart. Caches of
compiled code are empty at first. Numbers are medians over the runs; those of others are also given as multiples of
gluongraph's.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluongraph.bench.interleaved_timing import cores, environment
from gluongraph.host.interrupts import guarded

WORKER = Path(__file__).with_name("training_loop_worker.py")
SECTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {  # workloads, contenders, steps of a run
    "overhead": (("linear",), ("gluongraph", "gluongraph+log", "torch", "lightning", "lightning+log"), 3000),
    "digits": (("digits",), ("gluongraph", "gluongraph+log", "step", "torch", "lightning", "lightning+log"), 1000),
    "whole": (("resnet18", "transformer"), ("gluongraph", "lightning", "lightning-compile"), 40),
}


class Contender:
    """A process that runs trainings on request, and is stopped otherwise."""

    def __init__(self, name: str, workload: str, steps: int, on: Sequence[int], caches: Path):
        self.name, self.log = name, tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close()
        environ = environment(len(on)) | {"GG_CACHE": str(caches / "gluongraph")}
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / name)
        line = [sys.executable, str(WORKER), name, workload, str(steps), str(len(on))]
        bound = guarded(["taskset", "-c", ",".join(map(str, on)), *line])
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
        self.process = subprocess.Popen(bound, env=environ, **pipes)
        self.runs: list[dict[str, float]] = []
        self.missing = ""
        self._answer()

    def run(self) -> None:
        """One training."""
        if self.missing:
            return
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self._answer()
        if answer is not None:
            self.runs.append(answer)

    def _answer(self) -> dict[str, float] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            self.missing = " | ".join(self.log.read().strip().splitlines()[-2:]) or f"ended with {self.process.wait()}"
            return None
        self.process.send_signal(signal.SIGSTOP)
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()


def contest(section: str, workload: str, steps: int, blocks: int, threads: int | None) -> list[Contender]:
    """All contenders on a workload, in turn; every round begins with another one."""
    on, made = cores(threads), []
    with tempfile.TemporaryDirectory() as caches:
        try:
            for name in SECTIONS[section][1]:
                made.append(Contender(name, workload, steps, on, Path(caches)))
            for turn in range(blocks):
                start = turn % len(made)
                for contender in made[start:] + made[:start]:
                    contender.run()
        finally:
            for contender in made:
                contender.close()
    return made


def table(made: list[Contender], steps: int) -> dict[str, dict[str, float]]:
    """Print and return, for each contender: microseconds of a step, and seconds of the first run's beginning."""
    told: dict[str, dict[str, float]] = {}
    print(f"  {'':20}{'a step':>12}{'least':>12}{'most':>12}{'ratio':>8}{'begins':>10}{'whole':>10}{'ratio':>8}")
    for contender in made:
        if contender.missing:
            print(f"  {contender.name:20} did not run: {contender.missing}")
            continue
        times = [run["steps"] / steps * 1e6 for run in contender.runs]
        first, whole = contender.runs[0]["first"], contender.runs[0]["first"] + statistics.median(times) * steps / 1e6
        told[contender.name] = {"step": statistics.median(times), "first": first, "whole": whole}
        base = told.get("gluongraph", told[contender.name])
        columns = "".join(f"{value:9.1f} us" for value in (statistics.median(times), min(times), max(times)))
        ratio, total = told[contender.name]["step"] / base["step"], whole / base["whole"]
        print(f"  {contender.name:20}{columns}{ratio:8.2f}{first:8.2f} s{whole:8.2f} s{total:8.2f}")
    return told


def machine(threads: int) -> str:
    """The processor, as the system names it, and how many of its cores are used."""
    found = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return f"{found[0] if found else platform.processor()}, {threads} cores"


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Print the tables, and return their numbers by workload and contender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=sorted(SECTIONS))
    parser.add_argument("--blocks", type=int, default=5, help="runs of each contender")
    parser.add_argument("--steps", type=int, help="steps of a run")
    parser.add_argument("--threads", type=int, help="cores to be used; all of them by default")
    options = parser.parse_args(argv)
    workloads, _, steps = SECTIONS[options.section]
    steps = options.steps or steps
    print(f"{machine(len(cores(options.threads)))}; {steps} steps of a run, {options.blocks} runs")
    results = {}
    for workload in workloads:
        print(workload)
        results[workload] = table(contest(options.section, workload, steps, options.blocks, options.threads), steps)
    return results


if __name__ == "__main__":
    main()
