"""Digests of every kernel's code over the benchmark's workloads and the targets: a change of the compiler's structure,
that of no rule, leaves all of them as they are.

    python tests/codegen/kernel_digests.py                       # compare with kernel_digests.json: all, minutes
    python tests/codegen/kernel_digests.py gpt mlp-8             # these workloads
    python tests/codegen/kernel_digests.py --update              # write the file anew, where a change was meant

A digest is TVM's structural hash of a kernel: names of variables and kernels do not count; loops, loads, stores,
constants and their order do. It holds for one version of TVM, which the file names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("kernel_digests.json")
TARGETS = ("sapphirerapids", "avx512-bf16", "x86-64-v4", "x86-64-v3", "x86-64", "aarch64", "cuda:sm_90")
WITH_BF16 = ("sapphirerapids", "avx512-bf16")  # whose matrix units change the kernels of mixed precision
SMALL = ("mlp-8", "lenet-128", "gpt-small", "dlrm")  # what the tests compare: seconds
Digests = dict[str, str]


def cases(workloads: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Workload, target and precision of each compilation."""
    for workload in workloads:
        for target in TARGETS:
            yield workload, target, "32"
            if target in WITH_BF16:
                yield workload, target, "bf16-mixed"


def digests(workload: str, target: str, precision: str) -> str:
    """One for each kernel, in the order of first launches; the last is of the entry point: launches and memory."""
    from gluongraph.bench.own import step_of
    from gluongraph.bench.workloads import find
    from gluongraph.codegen.targets import target as find_target
    from gluongraph.compiler.lower import Request
    from gluongraph.compiler.memory_options import ALL_KEPT
    from gluongraph.name import NameManager
    from gluongraph.tracing.step_graph import MODES_BY_NAME

    on = find_target(target)
    with NameManager():  # parameters are updated in the order of their names, as in MXNet: dense10 before dense9
        step, batches = step_of(find(workload), precision=precision, target=target)
    assert step.trainer is not None
    step._specializations.prepare(step.trainer, batches[0])
    step_graph, _, _ = step._specializations.step_graph(MODES_BY_NAME["step"], [part.asnumpy() for part in batches[0]])
    plan = Request(step_graph.graph, step_graph.roles, step_graph.forward, on, ALL_KEPT).choice.plan
    return " ".join([*(_kernel(launch, on) for launch in plan.kernels.values()), _entry_point(plan)])


def _kernel(launch: Any, on: Any) -> str:
    import tvm_ffi

    from gluongraph.codegen.build import kernel

    hashed = tvm_ffi.structural_hash(kernel(replace(launch, kernel="kernel"), on))
    return f"{hashed & 0xFFFFFFFF:08x}"


def _entry_point(plan: Any) -> str:
    from gluongraph.ir.entry_point import program_of

    number = {name: i for i, name in enumerate(plan.kernels)}
    calls = [(number[each.kernel], [plan.positions[b.name] for b in each.arguments]) for each in plan.launches]
    return hashlib.sha256(f"{program_of(plan).nameless().to_json()} {calls}".encode()).hexdigest()[:8]


def recorded() -> Digests:
    """What the file says, by 'workload target precision'.

    Raises:
        ValueError: it is of another version of TVM.
    """
    told = json.loads(FILE.read_text(encoding="utf-8"))
    if told["tvm"] != version("apache-tvm"):
        raise ValueError(f"{FILE.name} is of TVM {told['tvm']}: write it anew with --update on the commit before")
    return dict(told["digests"])


def changed(before: str, now: str) -> str:
    """How many digests of one compilation differ; '' where none does.

    >>> changed("aa bb cc dd", "aa bc cc dd")
    '1 of 3 kernels differ: [1]'
    """
    old, new = before.split(), now.split()
    if old == new:
        return ""
    if len(old) != len(new):
        return f"{max(0, len(old) - 1)} kernels were recorded, there are {len(new) - 1}"
    differ = [i for i, (a, b) in enumerate(zip(old[:-1], new[:-1], strict=True)) if a != b]
    return f"{len(differ)} of {len(old) - 1} kernels differ: {differ}" if differ else "the entry point differs"


def main(arguments: list[str]) -> int:
    """Compare, or write the file anew; 1 where something differs."""
    from gluongraph.bench.workloads import WORKLOADS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args(arguments)
    names = options.workloads or [name for name, each in WORKLOADS.items() if each.model != "update"]
    known = {} if options.update and not options.workloads else recorded()
    wrong = 0
    for case in cases(names):
        name, now = " ".join(case), digests(*case)
        difference = changed(known.get(name, ""), now)
        wrong += bool(difference)
        print(name, difference or "the same", flush=True)
        known[name] = now
    if options.update:
        told = {"tvm": version("apache-tvm"), "digests": dict(sorted(known.items()))}
        FILE.write_text(json.dumps(told, indent=0) + "\n", encoding="utf-8")
    return int(bool(wrong) and not options.update)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GG_CACHE"] = folder  # what a tuner has found here does not count
        sys.exit(main(sys.argv[1:]))
