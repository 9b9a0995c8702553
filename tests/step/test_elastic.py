"""Steps that go on without a rank that is lost: weights stay equal, no update is lost or made twice."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import numpy as np
import pytest
from ranks import is_open_mpi, needs_mpi, try_ranks

import gluongraph as mx
from gluongraph import gluon
from gluongraph.runtime.communicator.environment import world

pytestmark = needs_mpi
STEPS, KILLED_AT = 60, 20


def training(strategy: str, how: str) -> None:
    """Rank 1 of 3 is killed after some steps, or ends; the others print what became of them."""
    mx.random.seed(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=20), gluon.nn.BatchNorm(in_channels=16))
    net.add(gluon.nn.Dense(10, in_units=16))
    net.initialize(mx.init.Xavier())
    store = {"kvstore": "dist_sync", "strategy": None if strategy == "allreduce" else strategy}
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2}, **store)
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    rank = world().rank
    rng = np.random.default_rng(0)
    x = rng.standard_normal((66, 20)).astype(np.float32)
    y = x @ rng.standard_normal((20, 10)).astype(np.float32)
    losses = []
    for i in range(STEPS):
        if i == KILLED_AT and rank == 1:
            if how == "exits":
                sys.exit(3)  # it waits for the others to come to their end, as they wait for it
            if how == "killed late":
                time.sleep(0.2)  # the others wait in the collective
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(float(step(x[rank::3], y[rank::3]).mean().asscalar()))
    after = losses[KILLED_AT : KILLED_AT + 3]
    assert max(after) < 1.3 * losses[KILLED_AT - 1] and losses[-1] < 0.7 * losses[KILLED_AT - 1], losses
    print(
        f"size {world().size} updates {trainer.optimizer.num_update} sum {float(net[0].weight.data().sum().asscalar())}"
    )


@pytest.mark.parametrize("how", ["killed", "killed late", "exits"])
def test_the_survivors_go_on(how: str) -> None:
    if not is_open_mpi():
        pytest.skip("going on without a rank needs Open MPI 5 (ULFM)")
    job = try_ranks(3, training, "allreduce", how, env={"GG_ELASTIC": "1"}, flags=("--with-ft", "ulfm"))
    told = [re.fullmatch(r"size 2 updates 60 sum (\S+)\n", job.outputs[rank]) for rank in (0, 2)]
    assert all(told) and len({found[1] for found in told if found}) == 1, str(job)
    assert "a rank is lost: going on with 2" in job.errors[0] and not job.orphans and not job.timed_out, str(job)


def test_a_lost_shard_ends_the_training() -> None:
    if not is_open_mpi():
        pytest.skip("going on without a rank needs Open MPI 5 (ULFM)")
    job = try_ranks(3, training, "zero1", "killed", env={"GG_ELASTIC": "1"}, flags=("--with-ft", "ulfm"))
    # The exit code of a fault-tolerant job is not always that of a rank: `gluongraph run` has its own.
    assert not job.orphans and not job.timed_out, str(job)
    assert any("its shard of the state" in error and "last checkpoint" in error for error in job.errors), str(job)
