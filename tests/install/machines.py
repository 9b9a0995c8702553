"""The whole suite as on other machines: with the kernels that numpy's BLAS has for them, and for other targets.

    make test-machines                  # ARGS="tests/onnx" goes to pytest

What this processor cannot execute is left out, and said.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gluongraph.codegen.targets import TARGETS, usable_flags

ROOT = Path(__file__).resolve().parents[2]
# OpenBLAS's names of processors whose kernels differ, and what those need: it runs what it is told, without a look.
BLAS = {"Haswell": "avx2 fma", "Zen": "avx2 fma", "SkylakeX": "avx512f avx512bw avx512cd avx512dq avx512vl"}
# Each kernel set and each target once; "" is what this machine takes by itself.
ROWS = (("Haswell", "x86-64-v3"), ("Zen", "x86-64-v4"), ("SkylakeX", ""))


@dataclass(frozen=True)
class Run:
    """One run of the suite: what it sets in the environment, and what of its row is left out and why."""

    settings: dict[str, str]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items())


def runs(flags: Collection[str]) -> list[Run]:
    """Each row, as far as a processor with these features can execute it; without settings nothing is."""
    found = []
    for blas, target in ROWS:
        wanted = {"OPENBLAS_CORETYPE": (blas, BLAS[blas].split())}
        if target:
            wanted["GG_TARGET"] = (target, [*TARGETS[target].needs])
        lacking = {name: [need for need in needs if need not in flags] for name, (_, needs) in wanted.items()}
        reasons = [f"{n}={wanted[n][0]}: this processor lacks {', '.join(some)}" for n, some in lacking.items() if some]
        found.append(Run({n: value for n, (value, _) in wanted.items() if not lacking[n]}, tuple(reasons)))
    return found


def main(arguments: list[str]) -> int:
    """Run the suite once for each row, and say at the end what failed; 1 if anything did."""
    said = []
    for run in runs(usable_flags()):
        said += [f"left out: {reason}" for reason in run.left_out]
        if run.settings:
            print(f"== {run}", flush=True)
            line = [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                "2",
                "--dist",
                "loadfile",
                "--no-loadscope-reorder",
                *arguments,
            ]
            code = subprocess.run(line, cwd=ROOT, env={**os.environ, **run.settings}).returncode
            said.append(f"{'FAILED' if code else 'passed'}: {run}")
    print("\n".join(said))
    return int(any(line.startswith("FAILED") for line in said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
