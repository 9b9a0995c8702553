"""Checkpoints of several ranks: written once, read by all; the same number goes on bit for bit, another one as well."""

from __future__ import annotations

import os
import pathlib
import random
import tempfile
from typing import Any

import numpy as np
import pytest
from rank_checks import (
    LOSS,
    SAMPLES,
    Array,
    Check,
    X,
    Y,
    assert_clean,
    assert_passed,
    compiled,
    dense,
    filled,
    near,
    own,
    refused,
    run_checks,
    same_everywhere,
    trained,
    weights,
)
from ranks import needs_mpi, run_ranks

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.checkpoint import Keep
from gluongraph.errors import FormatError
from gluongraph.gluon import nn
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world

pytestmark = needs_mpi


def shared_folder() -> str:
    """A new folder, the same on all ranks."""
    return world().exchange(tempfile.mkdtemp() if world().rank == 0 else "")[0]


def normalized(prefix: str = "b_") -> Any:
    """A net with running statistics and dropout."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dropout(0.3), nn.Dense(3, in_units=8))
    return filled(net)


class Training:
    """A training with all that a rank may have for itself."""

    def __init__(self, make: Any = normalized, **how: Any):
        self.net = make()
        settings = {"learning_rate": 0.1, "momentum": 0.9}
        self.trainer = trained(self.net, "sgd", settings, compression_params=how.pop("compression_params", None))
        self.step = compiled(self.net, self.trainer, **how)

    def go(self, first: int, last: int) -> list[Any]:
        """Train on: the losses, and numbers drawn by numpy and Python."""
        found = []
        for i in range(first, last):
            loss = self.step(own(X[i]), own(Y[i])).asnumpy().tolist()
            found.append([loss, float(np.random.rand()), random.random(), float(mx.random.uniform().asscalar())])
        return found

    def everything(self) -> dict[str, Array]:
        states = {k: a.asnumpy() for k, a in self.trainer.state_arrays(self.trainer.names).items()}
        residuals = {k: a.asnumpy() for k, a in self.trainer.residual_arrays(self.trainer.names).items()}
        return {**weights(self.net), **states, **residuals}


def check_going_on() -> None:
    """Every rank has its own running statistics, random numbers and extra back, and goes on bit for bit."""
    run, rank = shared_folder(), world().rank
    mx.random.seed(3)
    np.random.seed(rank)
    random.seed(rank)
    one = Training()
    one.go(0, 2)
    if rank == 1:
        mx.random.uniform()  # one rank has drawn more
    path = one.step.save(run, extra={"rank": rank})
    assert path == f"{run}/step-00000002" and sorted(os.listdir(run)) == ["last", "step-00000002"]
    for step in (one.step, Training().step):  # going back, and another process
        assert step.load(run) == {"rank": rank}
    numbers, after = one.go(2, 4), one.everything()
    other = Training()
    assert other.step.load(run) == {"rank": rank}
    assert other.go(2, 4) == numbers
    near(other.everything(), after, 0.0)
    same_everywhere({k: v for k, v in after.items() if "running" not in k})


def check_gradients_that_wait() -> None:
    """Sums of `accumulate`, of grad_req "add", and what compression keeps back are each rank's own."""
    for number, how in enumerate(({}, {"compression_params": {"type": "2bit", "threshold": 0.01}})):
        make = dense if number else adding
        one, other = Training(make, **how), Training(make, **how)
        run = shared_folder()
        one.go(0, 1)
        one.step.accumulate(own(X[1]), own(Y[1]))
        if world().rank == 1:
            one.step.accumulate(own(X[2])[:2], own(Y[2])[:2])
        one.step.save(run)
        other.step.load(run)
        assert other.step.accumulator.samples == SAMPLES + (world().rank == 1) * 2 * world().size
        for each in (one, other):
            each.step.accumulate(own(X[3]), own(Y[3]))
            each.step.apply()
            each.go(4, 5)
        near(other.everything(), one.everything(), 0.0)
        same_everywhere(weights(other.net))
        if number:
            residuals = {k: a.asnumpy() for k, a in other.trainer.residual_arrays(other.trainer.names).items()}
            assert any(array.any() for array in residuals.values())


def adding() -> Any:
    net = dense()
    net[1].bias.grad_req = "add"  # its gradients are never emptied here
    return net


def check_asynchronous() -> None:
    """Rank 0 writes while all train on."""
    one, run = Training(), shared_folder()
    one.go(0, 1)
    one.step.reserve()
    before = one.everything()
    one.step.save(run, asynchronous=True, metrics={"loss": 1.0})
    one.go(1, 2)
    one.step.save(run, asynchronous=True, keep=Keep(last=1, best=1, monitor="loss"), metrics={"loss": 2.0})
    one.step.wait()
    world().barrier()
    assert sorted(os.listdir(run)) == ["best", "last", "step-00000001", "step-00000002"]
    one.step.load(f"{run}/best")
    near(one.everything(), before, 0.0)


def check_deferred_shapes() -> None:
    """The shapes of parameters are those of the checkpoint."""

    def deferred() -> Any:
        net = nn.HybridSequential(prefix="f_")
        with net.name_scope():
            net.add(nn.Dense(8, activation="tanh"), nn.Dense(3))
        net.initialize(mx.init.Xavier())
        return net

    one, run = Training(deferred), shared_folder()
    one.go(0, 1)
    one.step.save(run)
    other = Training(deferred)
    other.step.load(run)
    one.go(1, 2), other.go(1, 2)
    near(other.everything(), one.everything(), 0.0)


def check_errors() -> None:
    """An error of rank 0 is raised on all ranks; one of another rank is a Disagreement elsewhere; nothing changes."""
    one, run, last = Training(dense), shared_folder(), world().size - 1
    odd = world().rank == last
    one.go(0, 1)
    before = one.everything()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        one.step.load(run)
    file = f"{run}/file"
    if world().rank == 0:
        pathlib.Path(file).write_text("")
    world().barrier()
    with pytest.raises(OSError, match=r"could not be saved in .*/file"):
        one.step.save(file)
    with refused(last, TypeError, "JSON does not hold"):
        one.step.save(run, extra={"x": nd.ones((1,)) if odd else 1})
    with pytest.raises(Disagreement, match=r"step\.save after 1 updates"):
        one.step.save(run) if odd else one.step(own(X[1]), own(Y[1]))
    assert not [name for name in os.listdir(run) if name.startswith("step-")]
    one.step.save(run)
    net = dense()
    parameters = net.collect_params()
    if odd:  # a layer more, which the trainer does not hold
        more = nn.Dense(1, in_units=3, prefix="more_")
        more.initialize()
        net.add(more)
    step = mx.compile(net, LOSS, gluon.Trainer(parameters, "sgd", {"momentum": 0.9}, kvstore="dist_sync"))
    with refused(last, FormatError, "missing in the checkpoint", f"rank {last} cannot go on from this checkpoint"):
        step.load(run)
    near(one.everything(), before, 0.0)
    if world().rank == 0:
        manifest = next(pathlib.Path(run).glob("step-*")) / "MANIFEST.json"
        manifest.write_text("{}")
    world().barrier()
    with pytest.raises(FormatError, match="has no whole checkpoint"):
        one.step.load(run)
    near(one.everything(), before, 0.0)


CHECKS: list[Check] = [
    check_going_on,
    check_gradients_that_wait,
    check_asynchronous,
    check_deferred_shapes,
    check_errors,
]


def on_each_rank() -> None:
    run_checks(CHECKS)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_ranks(check: Check, number: int) -> None:
    assert_passed(number, on_each_rank, check)


@pytest.mark.parametrize("number", [2, 4])
def test_jobs_end(number: int) -> None:
    assert_clean(number, on_each_rank)


# -- other numbers of ranks


def stage(run: str, file: str, first: str, last: str) -> None:
    """Go on from the checkpoint in `run`, if there is one, with these batches; the last one waits for its update."""
    one = Training(dense)
    if int(first):
        assert one.step.load(run) == {"batches": int(first)}
    for i in range(int(first), int(last)):
        one.step.accumulate(own(X[i]), own(Y[i]))
        if i % 2:
            one.step.apply()
    one.step.save(run, extra={"batches": int(last)})
    same_everywhere(weights(one.net))
    if world().rank == 0:
        np.savez(file, **weights(one.net))


def test_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    """2, then 1, then 4 ranks, in the middle of an accumulation each time: what one process does alone."""
    for number, first, last in ((2, 0, 1), (1, 1, 3), (4, 3, 4)):
        run_ranks(number, stage, tmp_path / "run", tmp_path / "weights.npz", first, last)
    net = dense()
    step = compiled(net, trained(net, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None))
    for i in range(4):
        step.accumulate(X[i], Y[i])
        if i % 2:
            step.apply()
    with np.load(tmp_path / "weights.npz") as found:
        near(dict(found), weights(net))


def statistics(run: str, first: str) -> None:
    """Running statistics: with another number of ranks, the mean of those that were saved."""
    one = Training()
    if int(first):
        one.go(0, 1)
        one.step.save(run)
        mine = {k: v for k, v in weights(one.net).items() if "running" in k}
        for array in mine.values():
            assert len(set(world().exchange(str(array.tolist())))) == world().size
            world().allreduce(array)
        if world().rank == 0:
            np.savez(f"{run}/means.npz", **{k: v / world().size for k, v in mine.items()})
        return
    one.step.load(run)
    with np.load(f"{run}/means.npz") as means:
        near({k: v for k, v in weights(one.net).items() if "running" in k}, dict(means))
    one.go(1, 2)
    same_everywhere({k: v for k, v in weights(one.net).items() if "running" not in k})


def test_running_statistics_of_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    for number, first in ((2, 1), (4, 0), (1, 0)):
        run_ranks(number, statistics, tmp_path, first)
