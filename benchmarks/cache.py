"""The cache of compiled code under kills and damage, and what its checks cost.

python benchmarks/cache.py kills     # 200 processes killed while they compile; after each, all that is there is used
python benchmarks/cache.py flips     # 300 times one bit of a file in it is turned, 100 times a file is cut
python benchmarks/cache.py warm      # a warm start with and without the checks, alternating in fresh processes

"bad" is an entry under its final name that is not whole, "wrong" a number that is not that of an undamaged cache,
"crashed" a process that a signal ended; all three are to be 0, or the exit status is 1. Half of the kills come at any
time, the others while something is written, which is a small part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import checkpoint
import gluongraph as mx
from gluongraph import gluon, ops
from gluongraph.compiler import lower
from gluongraph.gluon import nn
from gluongraph.host import disk, store
from gluongraph.ir.graph import Graph, TensorType

BAD, WRONG, CRASHED, FINE = "bad", "wrong", "crashed", "fine"


# -- kills


def graph(number: int) -> tuple[Graph, dict[str, str]]:
    """y = tanh(x w) + number, w = w + number: a graph that differs from all others by a constant."""
    x, w = ops.input("x", TensorType((6, 8))), ops.input("w", TensorType((8, 8)))
    return Graph({"x": x, "w": w}, {"y": ops.tanh(ops.matmul(x, w)) + float(number)}, {"w": w + float(number)}), {
        "x": "input",
        "w": "state",
    }


def is_right(number: int) -> bool:
    """Does this graph give its numbers, compiled now or from the cache?"""
    made = lower.lower(*graph(number))
    x, w = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8), np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    want, after = np.tanh(x @ w) + number, w + number
    (y,) = made.executor({"w": w})([x])
    return np.allclose(y, want, atol=1e-4 + 1e-6 * number) and np.allclose(w, after)


def victim(first: int) -> None:
    """Compile one graph after the other, for ever; the first may have been begun by another process."""
    checkpoint.tell(f"begun {os.getpid()}")
    while True:
        assert is_right(first)
        checkpoint.tell(f"made {first}")
        first += 1


def victims() -> None:
    """For each line of input, which names the first graph, a process that is a `victim`."""
    lower.lower(*graph(0))  # loads the compiler, once
    for line in sys.stdin:
        child = os.fork()
        if not child:
            victim(int(line))
        os.waitpid(child, 0)
        checkpoint.tell("ended")


def wait_for_draft(cache: Path) -> None:
    """Until something is being written; a second at most."""
    known, end = set(cache.glob(f"{disk.DRAFT}*")), time.monotonic() + 1
    while not set(cache.glob(f"{disk.DRAFT}*")) - known and time.monotonic() < end:
        pass


def not_whole(cache: Path) -> list[str]:
    """The entries and notes that are not as they were written."""
    found = []
    for path in cache.iterdir():
        try:
            if path.name.startswith(disk.DRAFT):
                continue
            if path.is_dir():
                store._checked(path)
            else:
                store._opened(path.name, store._bytes(path))
        except store._Damaged as why:
            found.append(f"{path.name}: {why}")
    return found


def kills(count: int, delay: float, seed: int = 0) -> Counter[str]:
    """Print and return the outcomes."""
    rng, outcomes, reached, within = random.Random(seed), Counter[str](), 1, 0
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name) / "cache"
        (Path(name) / "tmp").mkdir()
        environ = {**os.environ, "GG_CACHE": str(cache), "OMP_NUM_THREADS": "1", "TMPDIR": f"{name}/tmp"}
        os.environ["GG_CACHE"] = str(cache)
        command = [sys.executable, __file__, "victims"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            drafts: set[str] = set()
            for number in range(count):
                print(reached, file=process.stdin, flush=True)
                before = reached
                for line in process.stdout:
                    word, *numbers = line.split()
                    if word == "begun":
                        time.sleep(rng.uniform(0, delay))
                        if number % 2:
                            wait_for_draft(cache)
                            time.sleep(rng.uniform(0, 0.005))
                        checkpoint.kill(int(numbers[0]))
                    elif word == "made":
                        reached = int(numbers[0]) + 1
                    elif word == "ended":
                        break
                now = {path.name for path in cache.glob(f"{disk.DRAFT}*")}
                within += bool(now - drafts)
                drafts = now
                for each in not_whole(cache):
                    print(each)
                    outcomes[BAD] += 1
                right = all(map(is_right, range(before, reached)))
                outcomes[FINE if right else WRONG] += 1
            process.stdin.close()
        is_right(reached + 1)  # which nobody has begun: it is written in any case
        left = len(list(cache.glob(f"{disk.DRAFT}*")))
    print(f"{count} kills, {within} of them within a write, {reached} graphs compiled: {told(outcomes)}")
    print(f"drafts left after the next write: {left}")
    outcomes[BAD] += left
    return outcomes


# -- damage


def losses() -> list[float]:
    """Of five steps of a small net, from the cache or compiled."""
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(16, activation="relu", in_units=12), nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_"), trainer)
    x, y = np.linspace(-1, 1, 96, dtype=np.float32).reshape(8, 12), np.arange(8, dtype=np.float32) % 4
    return [float(step(x, y).mean().asscalar()) for _ in range(5)]


def apart(work: Callable[[], bool]) -> str:
    """The outcome of work in a process of its own."""
    child = os.fork()
    if not child:
        code = 2
        try:
            code = 0 if work() else 1
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return CRASHED if os.WIFSIGNALED(status) else {0: FINE, 1: WRONG}.get(os.WEXITSTATUS(status), BAD)


def flips(count: int, cuts: int, seed: int = 0) -> Counter[str]:
    """Print and return the outcomes."""
    rng, outcomes, kinds = random.Random(seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        os.environ["GG_CACHE"] = f"{name}/others"  # loads the compiler, once; what it remembers is of another folder
        losses()
        os.environ["GG_CACHE"] = f"{name}/cache"
        cache, whole = Path(name) / "cache", Path(name) / "whole"
        assert apart(lambda: bool(losses())) == FINE
        shutil.copytree(cache, whole)
        files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
        want = losses()
        for number in range(count + cuts):
            shutil.rmtree(cache)
            shutil.copytree(whole, cache)
            chosen = rng.choice(files) if number % 2 else max(files, key=lambda file: (whole / file).stat().st_size)
            data = bytearray((whole / chosen).read_bytes())
            at = rng.randrange(len(data))
            if number < count:
                data[at] ^= 1 << rng.randrange(8)
            else:
                del data[0 if number % 10 == 0 else at :]
            (cache / chosen).write_bytes(data)
            outcome = apart(lambda: losses() == want)
            if outcome == FINE:
                outcome = BAD if not_whole(cache) and "selections" not in chosen.name else FINE
            kinds[chosen.name.partition("-")[0]] += 1
            outcomes[outcome] += 1
    what = ", ".join(f"{kinds[kind]} of {kind}" for kind in sorted(kinds))
    print(f"{count} bits turned, {cuts} files cut ({what}): {told(outcomes)}")
    return outcomes


def told(outcomes: Counter[str]) -> str:
    return ", ".join(f"{outcomes[each]} {each}" for each in (FINE, BAD, WRONG, CRASHED))


# -- cost


def without_checks() -> None:
    """Within a process: files are read and believed."""

    def believed(path: Path, name: str, size: int, digest: str) -> bytes:
        return path.read_bytes()

    def opened(name: str, data: bytes) -> str:
        return data.decode().split("\n", 1)[1]

    store._file, store._opened = believed, opened


def first_result(workload: str) -> dict[str, float]:
    """Within a fresh process: seconds to the first result, and those in the store."""
    from cold_start import inside

    spent, get, noted = [0.0], store.get, store.noted

    def timed(call: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def run(path: Path) -> Any:
            started = time.perf_counter()
            try:
                return call(path)
            finally:
                spent[0] += time.perf_counter() - started

        return run

    store.get, store.noted = timed(get), timed(noted)
    report = inside(workload)
    return {"result": report["result_seconds"], "store": spent[0], "compiled": report["compiled"]}


def warm(workload: str, processes: int) -> Counter[str]:
    """Print the cost of the checks."""
    results: dict[str, list[dict[str, float]]] = {"checked": [], "believed": []}
    with tempfile.TemporaryDirectory() as cache:
        environ = {**os.environ, "GG_CACHE": cache}
        for number in range(2 * processes + 2):
            how = ("checked", "believed")[number % 2]
            command = [sys.executable, __file__, how, "--workload", workload]
            done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
            if number > 1:
                results[how].append(json.loads(done.stdout))
                assert not results[how][-1]["compiled"]
    for part in ("result", "store"):
        a, b = (statistics.median(each[part] for each in results[how]) * 1e3 for how in ("checked", "believed"))
        what = {"result": "to the first result", "store": "of it reading what is kept"}[part]
        print(f"{workload}, {what}: {a:.1f} ms with digests, {b:.1f} without")
    cost = [statistics.median(each["store"] for each in results[how]) for how in ("checked", "believed")]
    share = (cost[0] - cost[1]) / statistics.median(each["result"] for each in results["checked"])
    print(f"the digests are {share:.2%} of a warm start (medians of {processes} processes each)")
    return Counter()


def main(argv: Sequence[str] | None = None) -> Counter[str]:
    """Print and return what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "flips", "warm", "victims", "checked", "believed"])
    parser.add_argument("--count", type=int, help="kills (200), or bits (300)")
    parser.add_argument("--cuts", type=int, default=100, help="files that are cut")
    parser.add_argument("--delay", type=float, default=0.5, help="seconds of life, at most")
    parser.add_argument("--workload", default="lenet-128")
    parser.add_argument("--processes", type=int, default=11, help="warm starts of each kind")
    options = parser.parse_args(argv)
    if options.what == "victims":
        victims()
    elif options.what in ("checked", "believed"):
        if options.what == "believed":
            without_checks()
        print(json.dumps(first_result(options.workload)))
    elif options.what == "kills":
        return kills(options.count or 200, options.delay)
    elif options.what == "flips":
        return flips(options.count or 300, options.cuts)
    else:
        return warm(options.workload, options.processes)
    return Counter()


if __name__ == "__main__":
    found = main()
    sys.exit(any(found[each] for each in (BAD, WRONG, CRASHED)))
