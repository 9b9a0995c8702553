"""Kills ranks of a training at random moments, by hundreds, and counts what goes wrong.

python benchmarks/faults.py [--count 50] [--elastic]

A job of three ranks trains a small net; after a random time one rank gets SIGKILL, or with --freeze SIGSTOP, which it
does not survive. Good is: the job ends within 10 seconds, with an exit code other than 0 and a line that names the
rank, and no process is left. With --elastic: it ends with 0, the others have made all steps, with equal weights.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

RANKS, LIMIT = 3, 10.0  # seconds
PROGRAM = """
import os, sys, hashlib
import numpy as np
import gluongraph as mx
from gluongraph import gluon
mx.random.seed(3)
net = gluon.nn.Dense(10, in_units=20)
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2}, kvstore="dist_sync")
step = mx.compile(net, gluon.loss.L2Loss(), trainer)
rank = trainer.communicator.rank
rng = np.random.default_rng(rank)
x, y = rng.standard_normal((32, 20)).astype(np.float32), rng.standard_normal((32, 10)).astype(np.float32)
print(f"rank {rank} is process {os.getpid()}", flush=True)
for _ in range(int(sys.argv[1])):
    step(x, y)
print(f"weights {hashlib.sha256(net.weight.data().asnumpy().tobytes()).hexdigest()}", flush=True)
"""


def left_over(token: str) -> list[int]:
    """The processes of a job that live, by what its environment says."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"GG_FAULTS={token}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def fault(script: Path, number: int, sent: signal.Signals, elastic: bool) -> str:
    """One job; what went wrong, or 'good'."""
    token = f"{os.getpid()}-{number}"
    steps = "20000" if elastic else "100000000"
    options = ["--elastic"] if elastic else []
    line = [sys.executable, "-m", "gluongraph", "run", "-n", str(RANKS), "--threads", "1", *options, str(script), steps]
    job = subprocess.Popen(
        line, env=os.environ | {"GG_FAULTS": token}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert job.stdout is not None
    victims: dict[int, int] = {}
    text = ""
    while len(victims) < RANKS:
        if not (told := job.stdout.readline()):
            return f"it has not begun: {text[-300:]}"
        text += told
        if found := re.search(r"rank (\d+) is process (\d+)", told):
            victims[int(found[1])] = int(found[2])
    rank = random.randrange(RANKS)
    time.sleep(random.uniform(0.0, 1.5))
    os.kill(victims[rank], sent)
    start = time.monotonic()
    try:
        rest, _ = job.communicate(timeout=120 if elastic else 2 * LIMIT)
    except subprocess.TimeoutExpired:
        job.kill()
        return "it hangs"
    finally:
        time.sleep(0.2)
        orphans = left_over(token)
        for process in orphans:
            os.kill(process, signal.SIGKILL)
    if orphans:
        return "processes are left"
    if elastic:
        weights = re.findall(r"weights (\w+)", rest)
        fine = job.returncode == 0 and len(weights) == RANKS - 1 and len(set(weights)) == 1
        return "good" if fine else f"exit code {job.returncode}, weights {weights}: {rest[-3000:]}"
    if time.monotonic() - start > LIMIT:
        return "it ends too late"
    named = re.search(rf"rank {rank}\b", rest) is not None
    return "good" if job.returncode and named else f"exit code {job.returncode}, rank {rank}: {rest[-300:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print how many jobs went how; the exit code is 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    random.seed(options.seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(PROGRAM, encoding="utf-8")
        for number in range(options.count):
            result = fault(script, number, signal.SIGSTOP if options.freeze else signal.SIGKILL, options.elastic)
            found[result] += 1
            if result != "good":
                print(f"{number}: {result}", flush=True)
    print(", ".join(f"{count} {result.splitlines()[0]}" for result, count in found.most_common()))
    return int(set(found) != {"good"})


if __name__ == "__main__":
    sys.exit(main())
