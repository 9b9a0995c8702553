"""Checkpoints under fire, and what they cost.

python benchmarks/checkpoint.py kills            # 200 trainings killed while they save; each goes on from the last
python benchmarks/checkpoint.py stall            # how long training stands still for an asynchronous save of 1 GB

`kills` ends with an error unless every load gave exactly what had been saved, nothing that was reported as saved was
lost, and the training that was killed so often has the weights of one that was not. `stall` measures in the same run
how fast this machine copies memory, and torch.save where PyTorch is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon
from gluongraph.gluon import nn
from gluongraph.runtime.saving import Saver
from gluongraph.step import TrainStep

KEEP = 3
Training = tuple[Any, gluon.Trainer, TrainStep]


# -- kills


def training(units: int) -> Training:
    """A net of two layers of so many units with dropout between, its trainer, its step."""
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(units, activation="relu", in_units=units), nn.Dropout(0.5), nn.Dense(units, in_units=units))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
    return net, trainer, mx.compile(net, gluon.loss.L2Loss(), trainer)


def train(step: TrainStep, number: int, units: int) -> None:
    """Step so-and-so, on a batch of its own."""
    rng = np.random.default_rng(number)
    step(*(rng.normal(size=(2, units)).astype(np.float32) for _ in range(2)))


def digest(net: Any, trainer: gluon.Trainer) -> str:
    """Of weights, states, counts and the generator. In the order of the net: the trainer's is that of the names, where
    dense10 comes before dense9, and what a process calls its layers depends on what it has made before."""
    found = hashlib.sha256()
    for parameter in net.collect_params().values():
        for array in (parameter.data(), *trainer.state_arrays([parameter.name]).values()):
            found.update(array.asnumpy().tobytes())
    found.update(repr((sorted(trainer.optimizer.counts().values()), mx.random.get_state())).encode())
    return found.hexdigest()


def victim(run: str, units: int, training: Training) -> None:
    """Go on with a run for ever, saving after each step, and tell which steps are surely saved."""
    net, trainer, step = training
    step.load(run)
    number = trainer.optimizer.num_update
    tell(f"begun {number} {os.getpid()}")
    while True:
        number += 1
        train(step, number, units)
        asynchronous = number % 2 == 0
        step.save(run, extra={"digest": digest(net, trainer)}, keep=KEEP, asynchronous=asynchronous)
        tell(f"saved {number - asynchronous}")


def victims(run: str, units: int) -> None:
    """For each line of input a process that is a `victim`; when it has ended, a line."""
    net, trainer, step = made = training(units)
    step.save(run, extra={"digest": digest(net, trainer)})
    train(step, 1, units)  # what is traced and compiled here need not be in each of them
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            victim(run, units, made)
        os.waitpid(child, 0)
        tell("ended")


def kill(process: int) -> None:
    """SIGKILL to this one process. Never by os.kill, which takes -1 for all processes there are."""
    handle = os.pidfd_open(process)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


@dataclass
class Outcome:
    """Of so many kills: how many came within a save, and how many steps the run has got to."""

    kills: int
    within: int
    steps: int


def kills(run: Path, count: int, units: int, delay: float, seed: int = 0) -> Outcome:
    """Kill a training `count` times, each after up to `delay` seconds, and look every time at what it has left.

    Raises:
        AssertionError: a load that is not what was saved, or a step lost that was reported as saved.
    """
    rng, within, confirmed = random.Random(seed), 0, 0
    left: set[str] = set()  # half-written checkpoints
    command = [sys.executable, __file__, "victims", str(run), "--units", str(units)]
    net, trainer, step = training(units)
    environment = {**os.environ, "GG_BACKEND": "reference", "OMP_NUM_THREADS": "1"}  # no threads: it is forked
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")  # no checkpoint may be found damaged
        assert process.stdin is not None and process.stdout is not None
        for _ in range(count):
            print("one more", file=process.stdin, flush=True)
            for line in process.stdout:
                word, *numbers = line.split()
                if word == "begun":
                    assert int(numbers[0]) >= confirmed, f"began with step {numbers[0]}, and {confirmed} had been saved"
                    time.sleep(rng.uniform(0, delay))
                    kill(int(numbers[1]))
                elif word == "saved":
                    confirmed = max(confirmed, int(numbers[0]))
                elif word == "ended":
                    break
            now = {path.name for path in run.glob(".tmp-step-*")}
            within += bool(now - left)
            left = now
            extra = step.load(run)
            assert extra["digest"] == digest(net, trainer), "what is loaded is not what was saved"
            assert trainer.optimizer.num_update >= confirmed, "a step that was saved is lost"
        process.stdin.close()
    reached = trainer.optimizer.num_update
    killed = digest(net, trainer)
    net, trainer, step = training(units)
    for each in range(1, reached + 1):
        train(step, each, units)
    assert digest(net, trainer) == killed, f"after {reached} steps the weights are not those of an undisturbed training"
    return Outcome(count, within, reached)


# -- stall


def large(megabytes: int) -> tuple[Any, gluon.Trainer, TrainStep, tuple[Any, Any]]:
    """A step by Adam whose weights and states take that much, and a batch."""
    units = 2048
    layers = max(1, round(megabytes * 1e6 / (3 * 4 * units * units)))
    net = nn.HybridSequential()
    net.add(*(nn.Dense(units, in_units=units, activation="relu") for _ in range(layers)))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(16, units)).astype(np.float32) for _ in range(2))
    return net, trainer, mx.compile(net, gluon.loss.L2Loss(), trainer), (x, y)


def milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def stall(folder: Path, megabytes: int, saves: int) -> dict[str, float]:
    """Print and return milliseconds."""
    net, trainer, step, batch = large(megabytes)
    step(*batch)
    arrays = [p.data() for p in net.collect_params().values()]
    arrays += trainer.state_arrays(trainer.states).values()
    size = sum(a.storage.array.nbytes for a in arrays)
    results = {"step alone": statistics.median(milliseconds(lambda: step(*batch)) for _ in range(10))}
    results["memory copied (least of 5)"] = copied(arrays)
    calls, slowest, writing = [], [], []
    results["asynchronous save, the first, which takes memory"] = first_save(step, folder)
    step.reserve()
    while step._saver.reserving:
        step(*batch)
    for _ in range(saves + 1):
        started = time.perf_counter()
        calls.append(milliseconds(lambda: step.save(folder, keep=1, asynchronous=True)))
        steps = []
        while step._saver.busy:
            steps.append(milliseconds(lambda: step(*batch)))
        slowest.append(max(steps, default=0.0))
        writing.append((time.perf_counter() - started) * 1e3)
        step.wait()
    results["asynchronous save, the first, memory reserved"] = calls[0]
    results["asynchronous save, later (median)"] = statistics.median(calls[1:])
    results["slowest step while it is written (median)"] = statistics.median(slowest[1:])
    results["until it is on disk, training beside (median)"] = statistics.median(writing[1:])
    results["synchronous save"] = milliseconds(lambda: step.save(folder, keep=1))
    results["load"] = milliseconds(lambda: step.load(folder))
    results.update(torch_save(folder, arrays))
    print(f"{size / 1e6:.0f} MB of weights and states; milliseconds")
    for name, value in results.items():
        print(f"{name:52}{value:10.1f}")
    return results


def first_save(step: TrainStep, folder: Path) -> float:
    """Milliseconds that an asynchronous save takes when nothing has been reserved; what it took is given back."""
    took = milliseconds(lambda: step.save(folder, keep=1, asynchronous=True))
    step.wait()
    step._saver = Saver()
    return took


def copied(arrays: Sequence[Any]) -> float:
    """Milliseconds in which this machine copies them, now."""
    copies = [a.asnumpy() for a in arrays]

    def copy() -> None:
        for to, array in zip(copies, arrays, strict=True):
            np.copyto(to, array.storage.array)

    return min(milliseconds(copy) for _ in range(5))


def torch_save(folder: Path, arrays: Sequence[Any]) -> dict[str, float]:
    """The same arrays by torch.save, synchronized like ours; without digests or a rename."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: torch.save is left out")
        return {}
    tensors = {str(i): torch.from_numpy(array.storage.array) for i, array in enumerate(arrays)}

    def save() -> None:
        with open(folder / "peer.pt", "wb") as file:
            torch.save(tensors, file)
            os.fsync(file.fileno())

    return {"torch.save and fsync": milliseconds(save)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "stall", "victims"])
    parser.add_argument("run", nargs="?", help="a folder on the disk to be measured; a temporary one otherwise")
    parser.add_argument("--count", type=int, default=200, help="kills")
    parser.add_argument("--units", type=int, default=256, help="size of the net that is killed")
    parser.add_argument("--delay", type=float, default=0.3, help="seconds of life, at most")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args(argv)
    if options.what == "victims":
        victims(options.run, options.units)
        return
    with tempfile.TemporaryDirectory(dir=options.run) as folder:
        if options.what == "stall":
            stall(Path(folder), options.megabytes, options.saves)
            return
        from gluongraph import debug

        with debug.override(backend="reference"):  # as in the processes that are killed
            outcome = kills(Path(folder), options.count, options.units, options.delay)
        print(f"{outcome.kills} kills, {outcome.within} of them within a save; {outcome.steps} steps; no bad load")


if __name__ == "__main__":
    main()
