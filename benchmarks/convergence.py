"""Does training in 16 bit end where float32 ends? Final losses over three seeds, steps that overflow among them.

python benchmarks/convergence.py            # handwritten digits, and a GPT on Python's own source files
python benchmarks/convergence.py --short    # smaller nets and fewer steps: what the tests run

With precision="16-mixed" the loss scale is set to its largest value three times, so that gradients overflow until it
has been halved often enough; a step that was left out is repeated, so that all precisions train on the same batches.
Exits with 1 where the mean of the final losses is further from float32's than float32's own vary from seed to seed.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon
from gluongraph.bench.own import network, trainer
from gluongraph.bench.workloads import Workload

Array = np.ndarray[Any, Any]
Batch = tuple[Array, Array]
SEEDS, PRECISIONS = (0, 1, 2), ("32", "bf16-mixed", "16-mixed")
OVERFLOWS = 3  # times that the loss scale becomes the largest
LAST = 1 / 6  # of the steps: over these the final loss is the mean


@dataclass(frozen=True)
class Task:
    """A net, what it is trained on (a function of seed, batch size, and number), and for how long."""

    workload: Workload
    batch: Callable[[int, int, int], Batch]
    steps: int


@dataclass(frozen=True)
class Outcome:
    """The final loss of one training, and how many steps were left out on the way."""

    loss: float
    skipped: int


def scans(seed: int, size: int, number: int) -> Batch:
    """Digits of 8 x 8 pixels from 0 to 1, and which they are."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    some = np.take(order, range(number * size, (number + 1) * size), mode="wrap")
    return (found.images[some, None] / 16).astype(np.float32), found.target[some].astype(np.int32)


def characters(length: int) -> Callable[[int, int, int], Batch]:
    """Pieces of a source file of so many characters: 0 is the end of a line, 1 a space; and what comes after each."""
    source = Path(sysconfig.get_path("stdlib"), "argparse.py").read_bytes()
    text = np.clip(np.frombuffer(source, np.uint8).astype(np.int32) - 31, 0, 95)

    def batch(seed: int, size: int, number: int) -> Batch:
        starts = np.random.default_rng((seed, number)).integers(0, len(text) - length - 1, size)
        piece = text[starts[:, None] + np.arange(length + 1)]
        return piece[:, :-1], piece[:, 1:]

    return batch


def task(model: str, batch: int, size: dict[str, Any], rate: float, data: Any, steps: int) -> Task:
    return Task(Workload(model, model, batch, size, "adam", {"learning_rate": rate}), data, steps)


_DIGITS = {"pixels": 8, "channels": (32, 64), "hidden": 128, "classes": 10}
_GPT = {"layers": 3, "width": 128, "heads": 4, "length": 64, "vocabulary": 96}
_SMALL_DIGITS = {**_DIGITS, "channels": (8,), "hidden": 32}
_SMALL_GPT = {**_GPT, "layers": 1, "width": 32, "heads": 2, "length": 32}
TASKS = {
    "digits": task("digits", 64, _DIGITS, 2e-3, scans, 200),
    "characters": task("gpt", 24, _GPT, 1e-3, characters(64), 600),
}
SHORT = {
    "digits": task("digits", 64, _SMALL_DIGITS, 1e-2, scans, 60),
    "characters": task("gpt", 16, _SMALL_GPT, 1e-2, characters(32), 150),
}


def train(task: Task, precision: str, seed: int) -> Outcome:
    """Train a new net."""
    mx.random.seed(seed)
    np.random.seed(seed)
    net = network(task.workload)
    teacher = trainer(task.workload, net)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), teacher, precision=precision)
    losses = []
    for number in range(task.steps):
        if step.loss_scale is not None and number % (task.steps // OVERFLOWS) == 0:
            step.loss_scale.scale[:] = 2.0**24
        batch = task.batch(seed, task.workload.batch, number)
        losses.append(float(step(*batch).mean()))
        while teacher.optimizer.num_update <= number:
            step(*batch)
            if step.skipped > task.steps:
                raise RuntimeError(f"{task.workload.name} in {precision}: more steps are left out than done")
    return Outcome(float(np.mean(losses[-round(task.steps * LAST) :])), step.skipped)


def compare(task: Task, say: Callable[[str], object] = print) -> dict[str, bool]:
    """Train in all precisions; whether the loss of each ends within what seeds make of float32's."""
    found, fine = {p: [train(task, p, seed) for seed in SEEDS] for p in PRECISIONS}, {}
    means = {p: float(np.mean([each.loss for each in outcomes])) for p, outcomes in found.items()}
    noise = float(np.std([each.loss for each in found["32"]], ddof=1))
    for precision, outcomes in found.items():
        fine[precision] = abs(means[precision] - means["32"]) <= noise
        skipped = sum(each.skipped for each in outcomes)
        off = f"off by {means[precision] - means['32']:+.4f}, noise {noise:.4f}"
        end = "" if fine[precision] else "  NOT WITHIN"
        say(f"{task.workload.name:10}{precision:12}{means[precision]:9.4f}  {off}, {skipped} steps left out{end}")
        if (skipped > 0) != (precision == "16-mixed"):
            raise RuntimeError(f"{precision}: {skipped} steps were left out")
    return fine


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each task and precision; 1 if a loss does not end where float32's does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--task", choices=TASKS, nargs="+", default=list(TASKS))
    options = parser.parse_args(argv)
    tasks = SHORT if options.short else TASKS
    found = [compare(tasks[name]) for name in options.task]
    return int(not all(all(fine.values()) for fine in found))


if __name__ == "__main__":
    sys.exit(main())
