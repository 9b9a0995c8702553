"""Time of a step in the runner that is not spent in kernels: models so small that their kernels take next to nothing.

python benchmarks/runner.py

What is measured is the whole step, an upper bound, by gg-run's own clock around each call; beside it the same step from
Python. The last line is how long it takes to start, load, check and take one step.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from gluongraph.artefact import bundle
from overhead import microseconds, tiny


def of_the_runner(artefact: Path, data: str, blocks: int, calls: int) -> list[float]:
    """Mean microseconds a step, of each block."""
    line = [bundle.built() / "gg-run", artefact, "--data", data, "--steps", str(calls), "--threads", "1"]
    times = []
    for _ in range(blocks):
        told = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        found = re.search(r"([\d.]+) steps/s", told)
        assert found is not None, told
        times.append(1e6 / float(found[1]))
    return times


def start(artefact: Path, data: str, blocks: int) -> list[float]:
    """Milliseconds of a whole process that takes one step."""
    line = [bundle.built() / "gg-run", artefact, "--data", data, "--steps", "1", "--threads", "1"]
    times = []
    for _ in range(blocks):
        started = time.perf_counter()
        subprocess.run(line, capture_output=True, check=True)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Print and return the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20000)
    options = parser.parse_args(argv)
    medians = {}
    print(f"{'':22}{'kernels':>8}{'runner':>10}{'least':>10}{'most':>10}{'Python':>10}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "one.npy", np.ones((1, 1), np.float32))
        data = f"{folder}/one.npy,{folder}/one.npy"
        for layers, optimizer in ((1, "sgd"), (1, "adam"), (3, "adam"), (20, "adam")):
            step, *batch = tiny(layers, optimizer)
            step(*batch)
            artefact = folder / f"{layers}-{optimizer}.gga"
            step.export(artefact, modes=["step"])
            times = of_the_runner(artefact, data, options.blocks, options.calls)
            here = statistics.median(microseconds(partial(step, *batch), options.blocks, 2000))
            label = f"{2 * layers} parameters, {optimizer}"
            medians[label] = statistics.median(times)
            columns = (medians[label], min(times), max(times), here)
            print(f"{label:22}{len(step.plan.launches):8}" + "".join(f"{each:7.2f} us" for each in columns))
        medians["start"] = statistics.median(start(artefact, data, options.blocks))
    print(f"from the start of the process to its end, one step: {medians['start']:.1f} ms")
    return medians


if __name__ == "__main__":
    main()
