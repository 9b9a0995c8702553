"""Gives the runner without Python artefacts that are not what was written, for as long as one likes.

python benchmarks/fuzz_runner.py --minutes 10
python benchmarks/fuzz_runner.py --minutes 10 --sanitize    # built so that it stops at the first wrong byte or number

The same as tests/runtime/native/test_fuzz.py, with other seeds. Findings are printed with their seeds and kept.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "runtime" / "native"))
from attempts import attempt, damaged, whole
from hostile import DAMAGE, says_otherwise

from gluongraph.artefact import bundle

SANITIZED = """#!/bin/sh
exec g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 "$@"
"""
# What is absurd is not given memory, as where there is none; the libraries of TVM leak what they register.
OPTIONS = {"ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=2048:detect_leaks=0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--sanitize", action="store_true", help="build with AddressSanitizer and UBSan, by g++")
    parser.add_argument("--seed", type=int, default=1, help="of the first file")
    options = parser.parse_args()
    found = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="gluongraph-fuzz-") as place:
        if options.sanitize:
            wrapper = Path(place, "c++")
            wrapper.write_text(SANITIZED)
            wrapper.chmod(0o755)
            os.environ |= {"CXX": str(wrapper), **OPTIONS}
        folder = Path(place, "data")
        folder.mkdir()
        data, runner, end = whole(folder), bundle.built(), time.monotonic() + 60 * options.minutes
        seed = options.seed
        while time.monotonic() < end:
            chance, kinds = random.Random(seed), sorted(DAMAGE)
            kind = kinds[seed % len(kinds)] if seed % 2 else "descriptor"
            try:
                if kind == "descriptor":
                    found[f"{kind}: exit code {attempt(runner, folder, *says_otherwise(data, chance))}"] += 1
                else:
                    damaged(runner, folder, data, kind, chance)
                    found[kind] += 1
            except Exception as error:  # whatever it is, it is what is looked for
                kept = Path(f"fuzz-{seed}.gga").absolute()
                kept.write_bytes((folder / "bad.gga").read_bytes())
                print(f"seed {seed}, {kind}: {error}\n  kept as {kept}", file=sys.stderr)
                return 1
            seed += 1
    for kind, count in sorted(found.items()):
        print(f"{count:8d}  {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
