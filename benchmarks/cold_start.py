"""How long a process waits for its first training step: with an empty cache, and with what an earlier process left.

python benchmarks/cold_start.py --workload lenet-128

"import" is that of gluongraph; "net" builds it, draws its weights and imports the rest; "first call" is the first step:
tracing, gradients, passes and code (or the cache), the step itself, which the next call takes too ("of it a step").
"first result" is all of it. The warm process must compile nothing and must not load TVM's compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Print and return what the processes report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="lenet-128")
    parser.add_argument("--warm", type=int, default=5, help="warm processes, one after the other")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.inside:
        print(json.dumps(inside(options.workload)))
        return {}
    with tempfile.TemporaryDirectory() as cache:
        cold = process(options.workload, cache)
        files = snapshot(cache)
        warm = [process(options.workload, cache) for _ in range(options.warm)]
        for report in warm:
            if report["compiled"] or report["compiler_loaded"] or snapshot(cache) != files:
                raise SystemExit(f"a warm process compiled: {report}")
    print(f"{options.workload}: {cold['compiled']} kernels compiled; warm: none, TVM's compiler not loaded")
    head = ("", "import", "net", "first call", "of it a step", "first result")
    print("{:22}{:>8}{:>8}{:>12}{:>14}{:>14}".format(*head))
    for name, reports in (("cold", [cold]), (f"warm, of {len(warm)} processes", warm)):
        parts = ("import_seconds", "net_seconds", "first_step_seconds", "step_seconds", "result_seconds")
        times = [statistics.median(report[part] for report in reports) for part in parts]
        print("{:22}{:8.3f}{:8.3f}{:12.3f}{:14.3f}{:14.3f}".format(name, *times))
    return {"cold": cold, "warm": warm}


def process(workload: str, cache: str) -> dict[str, Any]:
    """One fresh process with that cache folder."""
    command = [sys.executable, __file__, "--inside", "--workload", workload]
    environ = {**os.environ, "GG_CACHE": cache}
    report = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout
    answer: dict[str, Any] = json.loads(report)
    return answer


def snapshot(cache: str) -> dict[str, int]:
    """Every file in the cache and when it was written."""
    return {str(file): file.stat().st_mtime_ns for file in Path(cache).rglob("*")}


def inside(name: str) -> dict[str, Any]:
    """Within the fresh process: import, one step, the report."""
    started = time.perf_counter()
    import gluongraph as mx

    imported = time.perf_counter()
    from gluongraph.bench.own import network, trainer
    from gluongraph.bench.workloads import WORKLOADS, batches

    workload = WORKLOADS[name]
    ((x, y),) = batches(workload, 1)
    net = network(workload)
    step = mx.compile(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer(workload, net))
    made = time.perf_counter()
    loss = float(step(x, y).mean())
    finished = time.perf_counter()
    float(step(x, y).mean())
    again = time.perf_counter()
    maps = Path("/proc/self/maps")
    return {
        "import_seconds": imported - started,
        "net_seconds": made - imported,
        "first_step_seconds": finished - made,
        "step_seconds": again - finished,
        "result_seconds": finished - started,
        "compiled": step.artefact.compiled,
        "compile_seconds": step.artefact.seconds,
        "compiler_loaded": "tvm" in sys.modules or (maps.exists() and "libtvm_compiler" in maps.read_text()),
        "loss": loss,
    }


if __name__ == "__main__":
    main()
