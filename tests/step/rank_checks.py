"""Checks that run on several ranks of a real MPI, many in one job; and what they have in common.

A check is a function without arguments that every rank calls. One that raises ends the job, with its traceback in the
output of its rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from ranks import Job, Program, try_ranks

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon import nn
from gluongraph.runtime.communicator.base import CommunicationError, Communicator, Disagreement
from gluongraph.runtime.communicator.environment import world

Array = np.ndarray[Any, Any]
Check = Callable[[], None]
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
SAMPLES, CLASSES = 16, 3  # of a whole batch, which 2 and 4 ranks share evenly
RNG = np.random.RandomState(0)
X = RNG.randn(5, SAMPLES, 6).astype(np.float32)
Y = RNG.randint(0, CLASSES, (5, SAMPLES)).astype(np.float32)


# -- running them


def run_checks(checks: Sequence[Check]) -> None:
    """On each rank: run the checks one after another, and print the names of those that have passed."""
    _spoil()
    for check in checks:
        print(f"-- {check.__name__}", file=sys.stderr)
        check()
        world().barrier()
        print(check.__name__)


def _spoil() -> None:
    """Before every call of a compiled program its scratch and its outputs are NaN, as in the tests of one process."""
    from gluongraph.runtime.executor import Executor

    fill = Executor._fill

    def filled(self: Executor, inputs: Sequence[Any]) -> list[Any]:
        results = fill(self, inputs)
        shared = () if self._segments is None else (each.own for each in self._segments.shared)
        for array in (self._scratch, *shared, *results):
            array.reshape(-1).view(np.uint8).fill(0xFF)
        return results

    Executor._fill = filled  # type: ignore[method-assign]


@cache
def job(number: int, program: Program) -> Job:
    """The job of a program that calls `run_checks`, which is run once."""
    return try_ranks(number, program, timeout=400)


def assert_passed(number: int, program: Program, check: Check) -> None:
    """Fail unless a check has passed on all ranks of the job."""
    found = job(number, program)
    if not all(check.__name__ in output.split() for output in found.outputs):
        pytest.fail(f"{check.__name__} on {number} ranks: {found}")


def assert_clean(number: int, program: Program) -> None:
    """Fail unless the job has ended by itself, with exit code 0 and nothing left over."""
    found = job(number, program)
    assert found.code == 0 and not found.orphans and not found.timed_out, str(found)


# -- on the ranks


def own(batch: Array) -> Array:
    """This rank's part of a batch."""
    c = world()
    share = len(batch) // c.size
    return batch[c.rank * share : (c.rank + 1) * share]


def dense(prefix: str = "n_", ctx: Any = None) -> nn.HybridSequential:
    """A small classifier; the same weights at every call."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6, activation="tanh"), nn.Dense(CLASSES, in_units=8))
    return filled(net, ctx)


def filled(net: Any, ctx: Any = None) -> Any:
    """A net with weights that are the same on all ranks, since they are not drawn by its generator."""
    net.initialize(ctx=ctx)
    rng = np.random.RandomState(1)
    for p in net.collect_params().values():
        if p.grad_req != "null":
            p.set_data(nd.array(rng.randn(*p.shape) / np.sqrt(p.shape[-1]), dtype=p.dtype))
    return net


def trained(
    net: Any, optimizer: Any = "sgd", settings: Any = None, kvstore: Any = "dist_sync", **how: Any
) -> gluon.Trainer:
    """A trainer of all parameters."""
    given = ({"learning_rate": 0.1} if settings is None else settings,) if isinstance(optimizer, str) else ()
    return gluon.Trainer(net.collect_params(), optimizer, *given, kvstore=kvstore, **how)


def compiled(net: Any, trainer: gluon.Trainer, loss: Any = LOSS, **options: Any) -> Any:
    return mx.compile(net, loss, trainer, **options)


def weights(net: Any) -> dict[str, Array]:
    """Every parameter on its first context."""
    return {name: p.list_data()[0].asnumpy().astype(np.float64) for name, p in net.collect_params().items()}


def near(one: dict[str, Array], other: dict[str, Array], tolerance: float = 1e-6, what: str = "") -> None:
    """Equal up to a part of the largest element."""
    assert one.keys() == other.keys()
    for name, a in one.items():
        b = other[name]
        error = float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30)
        assert error <= tolerance, f"{what} {name}: {error:.2g} of the largest element, {tolerance} is allowed"


def same_everywhere(arrays: dict[str, Array], what: str = "") -> None:
    """The same bits on all ranks."""
    digest = str(hash_of(arrays))
    found = list(world().exchange(digest))
    assert len(set(found)) == 1, f"{what}: {found}"


def hash_of(arrays: dict[str, Array]) -> str:
    """A digest of names and bits."""
    import hashlib

    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@contextmanager
def refused(rank: int, error: type[Exception], match: str, elsewhere: str | None = None) -> Iterator[None]:
    """Within, that rank raises this error, and the others a Disagreement that names it."""
    if world().rank == rank:
        with pytest.raises(error, match=match):
            yield
    else:
        with pytest.raises(Disagreement, match=elsewhere or f"rank {rank} has refused"):
            yield


__all__ = ["CommunicationError", "Communicator", "nd"]
