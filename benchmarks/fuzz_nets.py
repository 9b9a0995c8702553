"""Draws networks by a number and holds their compiled steps against eager mode (tests/nets/compare_nets.py says how).

python benchmarks/fuzz_nets.py --nets 100                            # numbers 0 to 99
python benchmarks/fuzz_nets.py --first 1000 --nets 10000 --processes 4 --log nets.jsonl
python benchmarks/fuzz_nets.py --show 417                            # one network: what it is, and what comes of it
python benchmarks/fuzz_nets.py --count nets.jsonl                    # what a log says so far

Each network is one line of the log: its number, what came of it (equal; parted, where rounding decides at a kink;
wrong; an error), how far it was from what is allowed, seconds. A log that is there is gone on with. The exit status is
1 if any was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "nets"))

BLOCK = 20  # networks of one task
FAILED = ("wrong", "error")


def tried(seed: int) -> dict[str, Any]:
    """What came of one network."""
    import compare_nets
    import random_nets

    start, found = time.perf_counter(), {"seed": seed, "is": "equal", "said": ""}
    try:
        drawn = random_nets.draw(seed)
        result = compare_nets.held(drawn)
        found |= {"worst": round(result.worst, 4), "optimizer": drawn.optimizer, "mixed": drawn.mixed}
        if result.parted:
            found |= {"is": "parted", "said": f"{drawn}: {result.parted}"}
    except compare_nets.WrongError as error:
        found |= {"is": "wrong", "said": str(error)}
    except Exception as error:  # whatever it is, it is what is looked for
        found |= {"is": "error", "said": f"{type(error).__name__}: {error}"}
    return {**found, "seconds": round(time.perf_counter() - start, 2)}


def block(seeds: list[int]) -> list[dict[str, Any]]:
    """Some networks, with a cache that is gone afterwards: hardly one is met again."""
    folder = tempfile.mkdtemp(prefix="gluongraph-nets-")
    os.environ["GG_CACHE"] = folder
    try:
        return [tried(seed) for seed in seeds]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_with(parent: int) -> None:
    """Let this process end when the one that started it has ended, however that was."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def results(seeds: list[int], processes: int, until: float) -> Iterator[dict[str, Any]]:
    """What came of each, as blocks are done; none is begun after `until`."""
    blocks = iter([seeds[i : i + BLOCK] for i in range(0, len(seeds), BLOCK)])
    # A process ends after some blocks: what it has compiled stays mapped until then.
    spawn, own = get_context("spawn"), (os.getpid(),)
    with ProcessPoolExecutor(processes, spawn, end_with, own, max_tasks_per_child=5) as pool:
        running = [pool.submit(block, each) for each in islice(blocks, processes)]
        while running:
            yield from running.pop(0).result()
            if time.monotonic() < until and (after := next(blocks, None)) is not None:
                running.append(pool.submit(block, after))


def counted(log: Path) -> Counter[str]:
    """Print what a log says: counts, and every network that was not equal."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    counts = Counter(line["is"] for line in lines)
    for line in lines:
        if line["is"] != "equal":
            print(f"{line['is']}: {line['seed']}\n    {line['said']}")
    seconds = sum(line["seconds"] for line in lines)
    print(f"{len(lines)} networks in {seconds:.0f} s: {', '.join(f'{n} {what}' for what, n in counts.most_common())}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first network")
    parser.add_argument("--nets", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more after so long")
    parser.add_argument("--log", type=Path, default=None)
    parser.add_argument("--show", type=int, default=None, metavar="NUMBER")
    parser.add_argument("--count", type=Path, default=None, metavar="LOG")
    options = parser.parse_args()
    if options.count is not None:
        return int(any(counted(options.count)[what] for what in FAILED))
    if options.show is not None:
        import random_nets

        print(random_nets.draw(options.show))
        found = tried(options.show)
        print(json.dumps(found, indent=1))
        return int(found["is"] in FAILED)
    log = options.log or Path(tempfile.mkdtemp(prefix="gluongraph-nets-"), "nets.jsonl")
    known = {json.loads(line)["seed"] for line in log.read_text().splitlines()} if log.exists() else set()
    seeds = [seed for seed in range(options.first, options.first + options.nets) if seed not in known]
    with log.open("a") as file:
        for found in results(seeds, options.processes, time.monotonic() + 60 * options.minutes):
            file.write(json.dumps(found) + "\n")
            file.flush()
            if found["is"] in FAILED:
                print(f"{found['is']}: {found['seed']}\n    {found['said']}", flush=True)
    return int(any(counted(log)[what] for what in FAILED))


if __name__ == "__main__":
    sys.exit(main())
