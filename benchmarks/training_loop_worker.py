"""One contender of training_loop.py in a process of its own: prepares, then runs a training for each line it reads.

It speaks JSON lines:

python benchmarks/training_loop_worker.py CONTENDER WORKLOAD STEPS THREADS

A contender is a framework and what it is to do beside the bare training, as lightning, lightning+log, gluongraph,
lightning-compile; "torch" and "step" are loops without a Trainer. Lightning's processes do not import gluongraph: their
threads and memory are as their users have them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent / "gluongraph" / "bench"
WARM = 200  # batches before the clock starts, where steps take microseconds


class Batches:
    """So many batches, made before; knows when it was asked for the one numbered `at`."""

    def __init__(self, batches: list[Any], count: int, at: int):
        self.batches, self.count, self.at, self.asked = batches, count, at, 0.0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        many = len(self.batches)
        for number in range(self.count):
            if number == self.at:
                self.asked = time.perf_counter()
            yield self.batches[number % many]


def lightning() -> Any:
    """Lightning, without a look for MPI, which would start it."""
    module = importlib.import_module("lightning.pytorch")
    environments = importlib.import_module("lightning.fabric.plugins.environments")
    environments.MPIEnvironment.detect = staticmethod(lambda: False)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return module


def framework(name: str) -> Any:
    """The module that scripts import as L."""
    return importlib.import_module("gluongraph.lightning") if name == "gluongraph" else lightning()


def trainer(L: Any, **how: Any) -> Any:
    """A Trainer that does nothing but train, but for what is asked for."""
    bare = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", devices=1, max_epochs=1, **bare | how)


def module_of(L: Any, net: Any, loss: Callable[[Any, Any], Any], optimizer: Callable[[Any], Any], log: bool) -> Any:
    """A LightningModule around a net of PyTorch's."""

    class Model(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            value = loss(self.net, batch)
            if log:
                self.log("loss", value, prog_bar=True)
            return value

        def configure_optimizers(self) -> Any:
            return optimizer(self.parameters())

    return Model()


# -- the workloads: (net, loss of net and batch, optimizer of parameters, some batches)


def linear() -> tuple[Any, ...]:
    """The linear model of 32 inputs and 2 outputs, on 32 samples."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    batches = [torch.randn(32, 32) for _ in range(64)]
    return (
        torch.nn.Linear(32, 2),
        lambda net, batch: net(batch).pow(2).mean(),
        lambda p: torch.optim.SGD(p, lr=0.01),
        batches,
    )


def digits() -> tuple[Any, ...]:
    """The convolutional network of examples/lightning_digits.py, on 64 scans of 8x8."""
    torch = importlib.import_module("torch")
    nn = torch.nn
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)),
    )
    batches = [(torch.rand(64, 1, 8, 8), torch.randint(10, (64,))) for _ in range(20)]
    return net, cross_entropy, lambda p: torch.optim.AdamW(p, lr=2e-3), batches


def resnet18() -> tuple[Any, ...]:
    """ResNet-18 on 32 images of 32x32, SGD with momentum."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    batches = [(torch.randn(32, 3, 32, 32), torch.randint(10, (32,))) for _ in range(4)]

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)

    return torch_nets().resnet18(10), cross_entropy, optimizer, batches


def transformer() -> tuple[Any, ...]:
    """A decoder of four layers of width 256 on 8 pieces of 128 tokens, AdamW."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    net = torch_nets().Transformer(layers=4, width=256, heads=4, length=128, vocabulary=1000)
    batches = [(torch.randint(1000, (8, 128)), torch.randint(1000, (8, 128))) for _ in range(4)]
    return net, cross_entropy, lambda p: torch.optim.AdamW(p, lr=3e-4, weight_decay=0.01, fused=True), batches


WORKLOADS = {"linear": linear, "digits": digits, "resnet18": resnet18, "transformer": transformer}


def cross_entropy(net: Any, batch: Any) -> Any:
    """The mean over all positions; classes are the last axis."""
    scores = net(batch[0])
    functional = importlib.import_module("torch.nn.functional")
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), batch[1].reshape(-1))


def torch_nets() -> Any:
    """gluongraph/bench/torch_nets.py, without gluongraph."""
    for name, folder in (("gluongraph", BENCH.parent), ("gluongraph.bench", BENCH)):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
    return importlib.import_module("gluongraph.bench.torch_nets")


# -- the contenders: a function that trains so many steps, and tells the seconds of it


Run = Callable[[], dict[str, float]]


def of_a_trainer(contender: str, workload: str, steps: int) -> Run:
    """`Trainer.fit`, of Lightning or of gluongraph; each run is another Trainer and another fit of the same module."""
    name, _, more = contender.partition("+")
    name, _, compiled = name.partition("-")
    L, torch = framework(name), importlib.import_module("torch")
    small = workload in ("linear", "digits")
    warm = WARM if small else 3
    net, loss, optimizer, batches = WORKLOADS[workload]()
    module = module_of(L, net, loss, optimizer, log=bool(more))
    if compiled:
        module = torch.compile(module)
    how: dict[str, Any] = {}
    if more:
        how = {"callbacks": [L.callbacks.TQDMProgressBar()], "enable_progress_bar": True}

    def run() -> dict[str, float]:
        data = Batches(batches, warm + steps, warm)
        runner = trainer(L, **how)
        begin = time.perf_counter()
        runner.fit(module, data)
        end = time.perf_counter()
        assert runner.global_step == warm + steps
        return {"first": data.asked - begin, "steps": end - data.asked, "whole": end - begin}

    return run


def of_torch(workload: str, steps: int) -> Run:
    """The loop that one writes with PyTorch alone."""
    net, loss, optimizer, batches = WORKLOADS[workload]()
    update = optimizer(net.parameters())

    def run() -> dict[str, float]:
        data = Batches(batches, WARM + steps, WARM)
        begin = time.perf_counter()
        for batch in data:
            update.zero_grad()
            loss(net, batch).backward()
            update.step()
        end = time.perf_counter()
        return {"first": data.asked - begin, "steps": end - data.asked, "whole": end - begin}

    return run


def of_the_step(workload: str, steps: int) -> Run:
    """A loop over gluongraph's compiled step."""
    import gluongraph as mx
    from gluongraph import gluon

    net, _, optimizer, batches = WORKLOADS[workload]()
    block = mx.from_torch(net, (batches[0][0],), share=True)
    criterion = importlib.import_module("torch").nn.CrossEntropyLoss()
    step = mx.compile(block, criterion, gluon.Trainer.from_torch(optimizer(net.parameters())))

    def run() -> dict[str, float]:
        data = Batches(batches, WARM + steps, WARM)
        begin = time.perf_counter()
        for x, y in data:
            step(x, y)
        step.wait()
        end = time.perf_counter()
        return {"first": data.asked - begin, "steps": end - data.asked, "whole": end - begin}

    return run


def prepared(contender: str, workload: str, steps: int) -> Run:
    """The function that one run is."""
    if contender == "torch":
        return of_torch(workload, steps)
    if contender == "step":
        return of_the_step(workload, steps)
    return of_a_trainer(contender, workload, steps)


def main() -> None:
    """Prepare, say so, and run for each line."""
    contender, workload, steps, threads = sys.argv[1:]
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(here)]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - bars and tables go nowhere, until the process ends
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    importlib.import_module("torch").set_num_threads(int(threads))
    run = prepared(contender, workload, int(steps))
    answers.write(json.dumps({"prepared": time.perf_counter() - begin}) + "\n")
    for _ in sys.stdin:
        answers.write(json.dumps(run()) + "\n")


if __name__ == "__main__":
    main()
