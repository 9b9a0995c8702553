"""Epochs that are interrupted, and the same ones gone on with in another process; run by test_position.py.

python resuming.py run         states after every batch, and what was read and drawn until the end, as JSON
python resuming.py go_on       reads that, and gives for every state what is read and drawn from there
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.lightning.data import ArrayLoader, CombinedLoader, EpochIterator
from gluongraph.lightning.data.loaders import set_epoch
from gluongraph.lightning.data.sampling import by_rank

EPOCHS = 2
SAMPLES = 11


def torch_draw() -> float:
    return float(torch.rand(1)) if torch is not None else 0.0


class Drawing:
    """A dataset whose samples are changed at random, by every generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[float, ...]:
        return i, torch_draw(), np.random.rand(), random.random(), float(mx.random.uniform().asscalar())


class Keeping:
    """A loader that says where it is, in tuples and arrays."""

    def __init__(self) -> None:
        self.number, self.order = 0, np.arange(5)

    def __iter__(self) -> Iterator[int]:
        while self.number < 5:
            if self.number == 0:
                np.random.shuffle(self.order)
            self.number += 1
            yield int(self.order[self.number - 1])
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": (self.number % 5,), "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.number,), self.order = state["at"], state["order"]


class Jumping(gluon.data.Sampler):
    """A sampler that does not say its state."""

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(SAMPLES).tolist())

    def __len__(self) -> int:
        return SAMPLES


def drawn_batches() -> Iterator[list[float]]:
    for i in range(5):
        yield [i, random.random(), np.random.rand()]


def of_torch(dataset: Any = None, **how: Any) -> Any:
    return torch.utils.data.DataLoader(Drawing() if dataset is None else dataset, batch_size=2, **how)


def tensors() -> Any:
    return torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.arange(SAMPLES) * 2)


def with_generator() -> Any:
    return of_torch(shuffle=True, generator=torch.Generator().manual_seed(5))


def with_replacement() -> Any:
    generator = torch.Generator().manual_seed(5)
    sampler = torch.utils.data.RandomSampler(range(SAMPLES), replacement=True, num_samples=80, generator=generator)
    return torch.utils.data.DataLoader(Drawing0(), batch_size=10, sampler=sampler, num_workers=2)


class Drawing0(Drawing):
    def __getitem__(self, i: int) -> tuple[float, ...]:
        return (i, torch_draw())


def of_stream() -> Any:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[float]:
            for i in range(SAMPLES):
                yield i + torch_draw()

    return of_torch(Stream())


def together() -> CombinedLoader:
    loaders = {"torch": of_torch(shuffle=True), "more": (of_gluon(shuffle=True), drawn_batches), "list": [1, 2]}
    return CombinedLoader(loaders, "max_size_cycle")


def of_gluon(dataset: Any = None, **how: Any) -> Any:
    return gluon.data.DataLoader(Drawing() if dataset is None else dataset, batch_size=2, **how)


def rolled_over() -> Any:
    return of_gluon(list(range(SAMPLES)), shuffle=True, last_batch="rollover")


def of_io(last: str) -> Any:
    return mx.io.NDArrayIter(nd.array(np.arange(SAMPLES)), batch_size=3, shuffle=True, last_batch_handle=last)


def part(loader: Any) -> Any:
    return by_rank(loader, 2, 1, shuffle=True)


def array_loader(**how: Any) -> ArrayLoader:
    return ArrayLoader(np.arange(SAMPLES), np.arange(SAMPLES) * 2, batch_size=2, **how)


FREE = {  # without PyTorch
    "gluon": lambda: of_gluon(shuffle=True),
    "gluon, processes": lambda: of_gluon(shuffle=True, num_workers=2),
    "gluon, rollover": rolled_over,
    "gluon, by rank": lambda: part(of_gluon(shuffle=True)),
    "gluon, a sampler without a state": lambda: of_gluon(sampler=Jumping()),
    "arrays in order": array_loader,
    "arrays, no seed": lambda: array_loader(shuffle=True),
    "arrays, by rank": lambda: part(array_loader(shuffle=True, seed=3)),
    "a list": lambda: [[1], [2], [3]],
    "a generator function": lambda: drawn_batches,
    "a loader with a state": Keeping,
    "NDArrayIter": lambda: of_io("pad"),
    "NDArrayIter, roll_over": lambda: of_io("roll_over"),
}
TORCH = {
    "torch": lambda: of_torch(shuffle=True),
    "torch, processes": lambda: of_torch(shuffle=True, num_workers=2),
    "torch, tensors": lambda: of_torch(tensors(), shuffle=True),
    "torch, tensors, processes": lambda: of_torch(tensors(), shuffle=True, num_workers=2),
    "torch, tensors one by one": lambda: torch.utils.data.DataLoader(tensors(), batch_size=None, shuffle=True),
    "torch, by rank": lambda: part(of_torch(shuffle=True)),
    "torch, a generator": with_generator,
    "torch, with replacement": with_replacement,
    "torch, a stream": of_stream,
    "several": together,
}
LIMITS = {"gluon, processes": 4, "torch, tensors": 3}  # the others are read to their end
torch: Any = None


def scenarios(kind: str) -> dict[str, Callable[[], Any]]:
    global torch
    if kind == "torch":
        import torch as found

        torch = found
    return TORCH if kind == "torch" else FREE


def draws() -> list[float]:
    return [torch_draw(), np.random.rand(), random.random(), float(mx.random.uniform().asscalar())]


def written(batch: Any) -> Any:
    """A batch in lists and numbers."""
    if isinstance(batch, mx.io.DataBatch):
        return written(batch.data)
    if isinstance(batch, dict):
        return {key: written(each) for key, each in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [written(each) for each in batch]
    if isinstance(batch, mx.nd.NDArray):
        batch = batch.asnumpy()
    return batch.tolist() if hasattr(batch, "tolist") else batch


def run(name: str, make: Callable[[], Any], begun: dict[str, Any] | None = None) -> dict[str, Any]:
    """Epochs with draws between the batches: all of them, or from a state on."""
    loader = make()
    seen: list[Any] = []
    states: list[dict[str, Any]] = []
    for epoch in range(begun["epoch"] if begun else 0, EPOCHS):
        set_epoch(loader, epoch)
        state, begun = (begun["state"] if begun else None), None
        batches = EpochIterator(loader, LIMITS.get(name), state)
        batches.restore()
        for batch in batches:
            if batches.taken == 2:
                assert batches.state_dict() == json.loads(json.dumps(batches.state_dict()))
            seen.append([epoch, batches.taken, written(batch), batches.is_last, draws()])
            states.append({"epoch": epoch, "state": json.loads(json.dumps(batches.state_dict())), "seen": len(seen)})
        assert batches.finished
        seen.append(draws())
    return {"seen": seen, "states": states}


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    mx.random.seed(number)
    if torch is not None:
        torch.manual_seed(number)


def main(what: str, kind: str) -> None:
    made: dict[str, Any] = {}
    given = json.load(sys.stdin) if what == "go_on" else {}
    for name, make in scenarios(kind).items():
        seed(1)
        if what == "run":
            made[name] = run(name, make)
        else:
            made[name] = []
            for i, state in enumerate(given[name]["states"]):
                seed(100 + i)  # wherever the generators are
                made[name].append(run(name, make, state)["seen"])
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
