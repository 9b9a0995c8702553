"""What only a machine with a GPU can show: every op on CUDA against numpy, training steps against the CPU's, and times.

python benchmarks/cuda_check.py [--ops exp matmul ...] [--workloads mlp-128 ...] [--jobs 8] [--torch]

Each op, and each workload of `gluongraph bench`, is checked in a process of its own, `--jobs` of them at a time, since
NVIDIA's compiler takes most of the time; a process that a fault of the GPU ends does not end the others. One workload
at a time is timed.

Ends with status 1, and one line that says so, where there is no GPU; with status 2 where a result is wrong.
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import ops
from gluongraph.bench import own
from gluongraph.bench.workloads import WORKLOADS, Workload
from gluongraph.codegen.cuda import rules
from gluongraph.codegen.targets import target
from gluongraph.compiler.lower import lower
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Op, TensorType
from gluongraph.runtime.device import Device

TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-11}  # of the largest element, by bytes of an element


STEPS = 5  # on both
# How far the first two losses may be apart, relative: the second follows from the first update. Later ones are printed
# only, since the order of sums is amplified: ResNet-18's fifth loss differs by 4e-3 between two targets of one CPU.
CLOSE = {"32": 1e-3, "bf16-mixed": 3e-2}
TRIALS = ("mlp-128", "digits-64", "resnet18-32", "mobilenet", "dcgan", "gpt-small", "bert", "lstm", "dlrm")
CASES = [*((name, "32") for name in TRIALS), ("mlp-128", "bf16-mixed"), ("gpt-small", "bf16-mixed")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks; the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", default=[n for n, op in OPS.items() if op.samples is not None])
    parser.add_argument("--workloads", nargs="*", default=[f"{name}:{precision}" for name, precision in CASES])
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for each process")
    parser.add_argument("--torch", action="store_true", help="the times of PyTorch's eager step on the GPU beside ours")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NAME"), help=argparse.SUPPRESS)  # this process is a job
    options = parser.parse_args(argv)
    if options.torch and find_spec("torch") is None:
        parser.error("--torch: PyTorch is not installed")
    if not Device().exists():
        print("no GPU here (or no driver that answers): nothing was checked", file=sys.stderr)
        return 1
    if options.only:
        kind, name = options.only
        if kind == "op":
            return check_op(name)
        workload, precision = name.split(":")
        return check_workload(workload, precision, options.torch)
    jobs = [("workload", name if ":" in name else f"{name}:32") for name in options.workloads]
    jobs += [("op", name) for name in options.ops if next(samples(OPS[name]), None) is not None]

    def run(job: tuple[str, str]) -> bool:
        return run_job(*job, options)

    with ThreadPoolExecutor(options.jobs) as pool:
        wrong = [name for (_, name), right in zip(jobs, pool.map(run, jobs), strict=True) if not right]
    print(f"{len(wrong)} of {len(jobs)} are wrong: {' '.join(wrong)}" if wrong else f"all {len(jobs)} are right")
    return 2 if wrong else 0


def run_job(kind: str, name: str, options: argparse.Namespace) -> bool:
    """One check in a process of its own; whether all is right."""
    command = [sys.executable, __file__, "--only", kind, name, *(["--torch"] if options.torch else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        print(f"{name:24} FAILED not complete after {options.timeout:g} s", flush=True)
        return False
    fault = (
        "" if done.returncode in (0, 2) else f"{name:24} FAILED exit code {done.returncode}: {done.stderr[-1500:]}\n"
    )
    print(done.stdout + fault, end="", flush=True)
    return done.returncode == 0


def check_op(name: str) -> int:
    """Every sample of an op in one artefact. 2 if one is not right, or none is computed."""
    found = list(samples(OPS[name]))
    inputs = {k: n for g, _ in found for k, n in g.inputs.items()}
    graph = Graph(inputs, {k: n for g, _ in found for k, n in g.outputs.items()})
    given = {k: a for _, arrays in found for k, a in arrays.items()}
    try:
        compiled = lower(graph, dict.fromkeys(graph.inputs, "input"), on=target("cuda"))
        executor = compiled.executor({})
        results = executor([np.ascontiguousarray(given[n]) for n in executor.input_names])
    except (MXNetError, RuntimeError) as error:
        print(f"{name:24} FAILED {type(error).__name__}: {str(error).strip()[:600]}")
        return 2
    got = dict(zip(executor.output_names, results, strict=True))
    want = interpreter.run(graph, given)[0]
    bad = [f"{k}: off by {off:.1e}" for k, w in want.items() if (off := error_of(got[k], w)) > limit(OPS[name], w)]
    used = ", ".join(dict.fromkeys(launch.candidate.described for launch in compiled.plan.launches))
    print(f"{name:24} {len(want) - len(bad)}/{len(want)} right  {used}", *bad, sep="\n  " if bad else "  ")
    return 2 if bad else 0


def samples(op: Op) -> Iterator[tuple[Graph, dict[str, Any]]]:
    """Graphs of one op each, with what to feed; inputs and outputs are numbered through."""
    if op.samples is None or op.name in ("input", "literal", "get_tuple_element", "call", "fused"):
        return
    for number, (arrays, attrs) in enumerate(op.samples(np.random.default_rng(zlib.crc32(op.name.encode())))):
        given = {f"s{number}_{i}": np.asarray(a) for i, a in enumerate(arrays)}
        inputs = {name: ops.input(name, TensorType(a.shape, dtype_name(a.dtype))) for name, a in given.items()}
        made = op(*inputs.values(), **attrs)
        results = (
            [ops.get_tuple_element(made, index=i) for i in range(len(made.types))]
            if isinstance(made.type, tuple)
            else [made]
        )
        yield Graph(inputs, {f"r{number}_{j}": n for j, n in enumerate(results)}), given


def error_of(got: Any, want: Any) -> float:
    """The largest difference, by the largest element; infinite where one is NaN or infinite and the other is not."""
    w = np.asarray(want).astype("f8")
    g = np.asarray(got).reshape(w.shape).astype("f8")
    finite = np.isfinite(w)
    if not np.array_equal(finite, np.isfinite(g)) or not np.array_equal(w[~finite], g[~finite], equal_nan=True):
        return float("inf")
    scale = max(1.0, float(np.abs(w[finite]).max(initial=0)))
    return float(np.abs(g[finite] - w[finite]).max(initial=0)) / scale


def limit(op: Op, want: Any) -> float:
    """What counts as right."""
    dtype = np.asarray(want).dtype
    if dtype.kind not in "fV":
        return 0.0
    return TOLERANCE[4 if op.kind == "random" and dtype.itemsize > 4 else dtype.itemsize]  # made in f32, whatever it is


def check_workload(name: str, precision: str, beside_torch: bool) -> int:
    """A workload's step on the CPU and on the GPU from the same start; kernels and times. 2 if losses are apart."""
    workload = WORKLOADS[name]
    losses = {}
    for where in ("cpu", "cuda"):
        mx.random.seed(0)
        step, batches = own.step_of(workload, target=where, **({} if precision == "32" else {"precision": precision}))
        losses[where] = [float(step(*batches[i % len(batches)]).asnumpy().mean()) for i in range(STEPS)]
    apart = np.abs(np.array(losses["cuda"]) / np.array(losses["cpu"]) - 1)
    right = bool(apart[:2].max() < CLOSE[precision])
    begin, end = losses["cpu"][0], losses["cpu"][-1]
    told = " ".join(f"{each:.0e}" for each in apart)
    print(f"\n{name} {precision}: losses {begin:.4f} to {end:.4f}, {'' if right else 'WRONG: '}apart {told}")
    with (Path(tempfile.gettempdir()) / "gluongraph-cuda-check.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one is timed at a time
        times = [f"gluongraph {timed(lambda: step(*batches[0]).asnumpy()):.3f} ms a step"]
        if beside_torch:
            times.append(f"PyTorch eager {timed(torch_step(workload, precision)):.3f} ms")
        print(", ".join(times))
        print(rules.table(step.plan, target("cuda")))
        print(step.profile(*batches[0]))
    return 0 if right else 2


def timed(call: Callable[[], Any], repeat: int = 30) -> float:
    """The median of milliseconds; `call` waits for its result."""
    for _ in range(5):
        call()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def torch_step(workload: Workload, precision: str) -> Callable[[], Any]:
    """The step in PyTorch's eager mode with its fused optimizer, on the GPU."""
    import torch

    from gluongraph.bench import torch_peer
    from gluongraph.bench.workloads import batches

    net = torch_peer.network(workload).cuda()
    trainer, criterion = torch_peer.optimizer(workload, list(net.parameters())), torch_peer.LOSSES[workload.loss]
    batch = [part.cuda() for part in torch_peer.tensors(batches(workload)[0])]

    def step() -> Any:
        trainer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = criterion(net(*batch[:-1]), batch[-1])
        loss.backward()
        trainer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    sys.exit(main())
