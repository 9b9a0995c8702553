"""How long a process waits for its first training step: from an artefact, and from the program with a full cache.

    python benchmarks/artefact.py

The net is that of examples/digits.py. "load" is `mx.load`, "first step" the call after it, in fresh processes one after
the other, in turn with those that trace the same step and find its code in the cache. Both must give the same loss.
"""

from __future__ import annotations

import argparse
import importlib
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

import numpy as np

EXAMPLES = Path(__file__).parent.parent / "examples"
BATCH = 64


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Print and return what the processes report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5, help="of each kind")
    parser.add_argument("--inside", choices=("load", "compile"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help="an artefact of the digits example; one is made without")
    options = parser.parse_args(argv)
    if options.inside == "load":
        print(json.dumps(loaded(options.path)))
        return {}
    if options.inside == "compile":
        print(json.dumps(compiled()))
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = options.path or f"{folder}/digits.gga"
        if options.path is None:
            exported(path)
        process("compile")  # fills the cache
        reports: dict[str, list[dict[str, Any]]] = {"load": [], "compile": []}
        for _ in range(options.processes):
            for kind, of in reports.items():
                of.append(process(kind, path))
        size = Path(path).stat().st_size
    if len({report["loss"] for of in reports.values() for report in of}) > 1:
        raise SystemExit(f"the losses differ: {reports}")
    print(f"digits.gga: {size / 1e6:.1f} MB; medians of {options.processes} processes, in seconds")
    for kind, parts in (("load", ("import", "load", "first step")), ("compile", ("import", "build", "first step"))):
        medians = {part: statistics.median(r[part] for r in reports[kind]) for part in parts}
        both = statistics.median(r[parts[1]] + r[parts[2]] for r in reports[kind])
        listed = ", ".join(f"{part} {value:.3f}" for part, value in medians.items())
        print(f"  {'artefact' if kind == 'load' else 'program '}: {listed}; without the import {both:.3f}")
    return reports


def process(kind: str, path: str = "") -> dict[str, Any]:
    """One fresh process."""
    command = [sys.executable, __file__, "--inside", kind, *(["--path", path] if kind == "load" else [])]
    report = subprocess.run(command, env=os.environ, check=True, stdout=subprocess.PIPE, text=True).stdout
    answer: dict[str, Any] = json.loads(report.splitlines()[-1])
    return answer


def batch() -> tuple[Any, Any]:
    """A batch of 64 made-up scans."""
    rng = np.random.default_rng(0)
    return rng.random((BATCH, 1, 8, 8), np.float32), rng.integers(0, 10, BATCH).astype(np.int32)


def step_of() -> Any:
    """The step of the example, from a seed."""
    sys.path.insert(0, str(EXAMPLES))
    from digits import network

    import gluongraph as mx
    from gluongraph import gluon, nd

    mx.random.seed(0)
    np.random.seed(0)
    net = network()
    net(nd.array(batch()[0][:1]))
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    return mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)


def exported(path: str) -> None:
    """The artefact of a step that has not been taken."""
    step_of().export(path, batches=[batch()])


def loaded(path: str) -> dict[str, Any]:
    """Within a fresh process: import, load, one step."""
    x, y = batch()
    started = time.perf_counter()
    import gluongraph as mx

    imported = time.perf_counter()
    step = mx.load(path)
    there = time.perf_counter()
    loss = float(step(x, y).mean().asscalar())
    done = time.perf_counter()
    if "gluongraph.compiler.lower" in sys.modules:
        raise SystemExit("the compiler has been imported")
    return {"import": imported - started, "load": there - imported, "first step": done - there, "loss": loss}


def compiled() -> dict[str, Any]:
    """Within a fresh process: import, the net, one step that is traced and found in the cache."""
    x, y = batch()
    started = time.perf_counter()
    importlib.import_module("gluongraph")
    imported = time.perf_counter()
    step = step_of()
    there = time.perf_counter()
    loss = float(step(x, y).mean().asscalar())
    done = time.perf_counter()
    return {"import": imported - started, "build": there - imported, "first step": done - there, "loss": loss}


if __name__ == "__main__":
    main()
