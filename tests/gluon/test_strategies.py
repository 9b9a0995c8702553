"""Sharded state (zero1, zero2, fsdp) against replicated state: the same weights and states, in less memory, and
checkpoints for any number of ranks and any strategy."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import strategies_training
import variants
from rank_checks import Array, Check, assert_clean, assert_passed, near, own, run_checks
from ranks import needs_mpi
from strategies_training import (
    ADAM,
    BATCHES,
    LOSS,
    SAMPLES,
    SGD,
    STRATEGIES,
    Run,
    X,
    Y,
    assert_equal_results,
    filled,
    mlp,
)

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.errors import MXNetError, NotFiniteError
from gluongraph.gluon import nn, sharded
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import use_world, world

pytestmark = needs_mpi
HALF = {"dtype": "float16"}
MASTERS = ("adam", {"learning_rate": 0.05, "multi_precision": True})
KEEPING = ("zero1", "zero2")  # every rank has whole parameters

# -- one number of ranks


def check_precisions() -> None:
    for optimizer in (SGD, ADAM):
        for precision in ("32", "16-mixed", "bf16-mixed"):
            assert_equal_results(Run.train, optimizer=optimizer, precision=precision)
        assert_equal_results(Run.train, optimizer=optimizer, how={"dtype": "float64"}, tolerance=1e-14)
    for optimizer in (MASTERS, ("dcasgd", {"learning_rate": 0.05, "momentum": 0.9, "multi_precision": True})):
        assert_equal_results(Run.train, optimizer=optimizer, how=HALF)


def check_clipping() -> None:
    """By the norm of all gradients, of which each rank has a part."""

    def drive(run: Run) -> dict[str, Array]:
        norms = []
        for i in range(BATCHES):
            run.train([i])
            norms.append(run.step.grad_norm)
        return {"norms": np.array(norms)}

    others = [{"clip_norm": 0.05, "norm_type": p} for p in (1.0, 3.0, np.inf)]
    options = [
        {"grad_norm": True},
        *others,
        *({"clip_norm": 0.05, "precision": p} for p in ("32", "16-mixed", "bf16-mixed")),
    ]
    for each in options:
        assert_equal_results(drive, **each)


def check_accumulation() -> None:
    def drive(run: Run) -> None:
        for i in (0, 1):
            run.step.accumulate(run.part(X[i]), own(Y[i]))
        run.step.apply()
        run.train([2])
        run.step.accumulate(run.part(X[3]), own(Y[3]))
        run.step.apply()

    for options in ({}, {"precision": "16-mixed"}, {"clip_norm": 0.05}):
        assert_equal_results(drive, **options)


def check_averages() -> None:
    def drive(run: Run) -> dict[str, Array]:
        run.train()
        with run.step.averaged():
            return {f"average of {p.name}": p.list_data()[0].asnumpy() for p in run.params}

    assert_equal_results(drive, KEEPING, ema=0.5)
    with pytest.raises(MXNetError, match='ema= with strategy="fsdp"'):
        Run("fsdp", ema=0.5).train([0])


def check_multipliers() -> None:
    """Parameters that are updated by other numbers are in other buckets."""

    def drive(run: Run) -> None:
        run.train([0])
        run.params[0].lr_mult = 0.5
        run.train([1])
        run.params[1].wd_mult, run.params[2].lr_mult = 0.0, 0.5
        run.train([2])
        run.trainer.set_learning_rate(0.01)
        run.train([3])
        run.params[0].lr_mult = run.params[1].wd_mult = run.params[2].lr_mult = 1.0
        run.train([0])

    for optimizer in (SGD, ADAM):
        assert_equal_results(drive, optimizer=optimizer)
    assert_equal_results(drive, optimizer=MASTERS, how=HALF)
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.2)
    assert_equal_results(Run.train, optimizer=("sgd", {"lr_scheduler": schedule}))


def check_not_finite() -> None:
    """A rank's gradient that is not finite changes nothing anywhere."""

    def anomaly(run: Run) -> None:
        run.train([0])
        x, before = own(X[1]).copy(), run.left()
        if world().rank == 1:
            x[0, 0] = np.nan
        with pytest.raises(NotFiniteError):
            run.step(x, own(Y[1]))
        near(run.left(), before, 0.0)
        run.train([1, 2])

    def overflow(run: Run) -> None:
        run.train([0])
        x, before = own(X[1]).copy(), run.left()
        if world().rank == 1:
            x[0, 0] = 1e30
        run.step(x, own(Y[1]))
        near(run.left(), before, 0.0)
        assert run.step.skipped == 1
        run.train([1, 2])

    assert_equal_results(anomaly, detect_anomaly=True)
    assert_equal_results(anomaly, error_if_nonfinite=True, clip_norm=1.0)
    assert_equal_results(anomaly, detect_anomaly=True, precision="16-mixed")
    assert_equal_results(overflow, precision="16-mixed")
    assert_equal_results(overflow, KEEPING, precision="16-mixed", ema=0.5)


def mixed(ctx: Any = None) -> Any:
    class Mixed(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix="mixed_")
            with self.name_scope():
                self.a = nn.Dense(7, in_units=6, activation="tanh")
                self.b = nn.Dense(5, in_units=7, dtype="float64")
                self.c = nn.Dense(3, in_units=5)

        def forward(self, x: Any) -> Any:
            return self.c(self.b(self.a(x).astype("float64")).astype("float32"))

    return filled(Mixed(), ctx)


def with_frozen(ctx: Any = None) -> Any:
    net = mlp(ctx=ctx)
    net[0].weight.grad_req = "null"
    return net


def with_statistics(ctx: Any = None) -> Any:
    net = nn.HybridSequential(prefix="b_")
    with net.name_scope():
        net.add(nn.Dense(7, in_units=6), gluon.contrib.nn.SyncBatchNorm(in_channels=7), nn.Dense(3, in_units=7))
    return filled(net, ctx)


def with_tokens(ctx: Any = None) -> Any:
    net = nn.HybridSequential(prefix="e_")
    with net.name_scope():
        net.add(nn.Embedding(11, 5), nn.Dense(3, in_units=30))
    return filled(net, ctx)


class Regularized(gluon.HybridBlock):
    """Weights are read in the layers, and once more by a penalty; one is read there alone."""

    def __init__(self) -> None:
        super().__init__(prefix="r_")
        with self.name_scope():
            self.a, self.b = nn.Dense(7, in_units=6, activation="tanh"), nn.Dense(3, in_units=7)
            self.w = self.params.get("w", shape=(5, 4))

    def forward(self, x: Any) -> Any:
        penalty = (self.a.weight.data() ** 2).sum() + (self.b.weight.data() ** 4).sum() + (self.w.data() ** 3).sum()
        return self.b(self.a(x)) + penalty


def check_nets() -> None:
    for make in (mixed, with_frozen, with_statistics):
        assert_equal_results(Run.train, make=make)

    def tokens(run: Run) -> None:
        for x, y in zip(X, Y, strict=True):
            run.step(own(np.abs(x * 3).astype(np.int32) % 11), own(y))

    assert_equal_results(tokens, make=with_tokens)


def regularized(**how: Any) -> Any:
    return filled(Regularized(), **how)


def check_small_buckets() -> None:
    """Bounds of buckets lie between all parameters, and within shards."""
    whole = sharded.BUCKET
    try:
        for nbytes in (64, 100, 200):
            sharded.BUCKET = nbytes
            # The penalty's cubes amplify what the order of sums changes: in float32 up to 6e-6 on 4 ranks.
            for options in ({}, {"clip_norm": 0.1}, {"remat": "auto"}):
                how = {"dtype": "float64"}
                assert_equal_results(Run.train, make=regularized, how=how, tolerance=1e-13, **options)
            assert_equal_results(Run.train, make=regularized, tolerance=2e-5, precision="16-mixed")
    finally:
        sharded.BUCKET = whole


def check_changes_in_between() -> None:
    def freeze(run: Run) -> None:
        run.train([0, 1])
        run.params[0].grad_req = "null"
        run.train([2])
        run.params[0].grad_req = "write"
        run.train([3])

    def initialize_again(run: Run) -> None:
        run.train([0, 1])
        run.params[0].initialize(mx.init.Constant(0.25), force_reinit=True, ctx=run.trainer.contexts)
        run.train([2, 3])

    assert_equal_results(freeze)
    assert_equal_results(initialize_again)


def check_contexts() -> None:
    how = {"ctx": [mx.cpu(0), mx.cpu(1)]}
    for options in ({}, {"optimizer": SGD}, {"clip_norm": 0.05}, {"precision": "bf16-mixed"}):
        assert_equal_results(Run.train, how=how, **options)


def check_eager_steps() -> None:
    def eager(run: Run) -> None:
        for x, y in zip(X, Y, strict=True):
            with autograd.record():
                loss = LOSS(run.net(run.part(x)), nd.array(own(y)))
            loss.backward()
            run.trainer.step(SAMPLES)

    def both(run: Run) -> None:
        eager(run)
        run.train()
        eager(run)

    assert_equal_results(eager, KEEPING)
    assert_equal_results(both, KEEPING)
    with pytest.raises(MXNetError, match="fsdp"):
        eager(Run("fsdp"))


def check_plans() -> None:
    for options in ({"remat": "blocks"}, {"memory_budget": "10MB"}, {"activations": "bf16"}):
        assert_equal_results(Run.train, **options)


def check_other_programs() -> None:
    def drive(run: Run) -> dict[str, Array]:
        run.train([0, 1])
        x, y = run.part(X[2]), own(Y[2])
        found = {"evaluated": run.step.evaluate(x, y).asnumpy(), "predicted": run.step.predict(x).asnumpy()}
        for array in found.values():
            world().allreduce(array)
        run.train([2, 3])
        return found | {name: grad.asnumpy() for name, grad in run.step.grads(x, y).items()}

    assert_equal_results(drive)


def check_optimizers() -> None:
    """All whose formula is elementwise; the others are refused by name."""
    refused = set()
    for name, extra in (*variants.VARIANTS, *variants.TORCH_ON_RANKS):
        settings = {**variants.settings(name, 0.3), **extra}
        try:
            Run("zero1", (name, settings)).train([0])
        except MXNetError as error:
            assert name.removeprefix("torch.") in str(error).lower()
            refused.add(name)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Roots of differences, as centered RMSProp's, make the rounding of sums larger: 3.2e-6 on 4 ranks.
            assert_equal_results(Run.train, ("zero2", "fsdp"), 1e-5, optimizer=(name, settings))
    of_torch = {"torch.muon", "torch.nadam"}  # products of matrices; a number among the states
    assert refused == {"groupadagrad", "lamb", "lans", "lars", "lbsgd"} | of_torch, refused  # lbsgd as LARS


def check_memory() -> None:
    """What a rank keeps between steps is what docs/distributed.md says: parameters, and two states for each."""
    units, ranks = 192, world().size

    def deep(**how: Any) -> Any:
        net = nn.HybridSequential(prefix="d_")
        with net.name_scope():
            for _ in range(6):
                net.add(nn.Dense(units, in_units=units, activation="tanh"))
        return filled(net, **how)

    x = nd.zeros((4, units))
    parameters = 6 * 4 * units * (units + 1)
    kept = {None: 3.0, "zero1": 1 + 2 / ranks, "zero2": 1 + 2 / ranks, "fsdp": 3 / ranks}
    peaks = {}
    for strategy, share in kept.items():
        run = Run(strategy, make=deep, loss=gluon.loss.L2Loss())
        run.step(x, x)
        found = run.step.memory(x, x)
        expected = share * parameters
        assert abs(found.parameters + found.states - expected) < 0.02 * expected, (strategy, str(found))
        peaks[strategy] = found.peak
    assert peaks["zero1"] < peaks[None] and peaks["fsdp"] < peaks[None]


CHECKS: list[Check] = [
    check_precisions,
    check_clipping,
    check_accumulation,
    check_averages,
    check_multipliers,
    check_not_finite,
    check_nets,
    check_small_buckets,
    check_changes_in_between,
    check_eager_steps,
    check_plans,
    check_other_programs,
    check_optimizers,
    check_memory,
]


# What more than two ranks may do differently: parts of parameters, buckets, sums of squares. The rest is a rank's own.
ON_FOUR = [check_clipping, check_accumulation, check_nets, check_small_buckets, check_plans, check_memory]


def on_each_rank() -> None:
    run_checks(ON_FOUR if world().size != 2 else [*CHECKS, check_contexts])  # 12 samples are 6 twos for 2 ranks


@pytest.mark.parametrize(
    ("check", "number"),
    [*((check, 2) for check in CHECKS), *((check, 4) for check in ON_FOUR)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_on_ranks(check: Check, number: int) -> None:
    assert_passed(number, on_each_rank, check)


def test_contexts() -> None:
    assert_passed(2, on_each_rank, check_contexts)


@pytest.mark.parametrize("number", [2, 4])
def test_jobs_end(number: int) -> None:
    assert_clean(number, on_each_rank)


# -- another number of ranks, another strategy

Chain = Sequence[tuple[int, str | None]]  # ranks, strategy
CHAINS: list[Chain] = [
    [(1, None), (3, "zero1"), (2, "fsdp"), (3, "zero2")],
    [(3, "fsdp"), (2, None), (1, "zero1"), (3, None)],
    [(2, "zero2"), (3, "fsdp"), (3, "zero1"), (1, None)],
]


def among(ranks: int, work: Callable[[], None]) -> None:
    """Let the first ranks of the job do some work as if they were all."""
    everyone = world()
    few = everyone.split(0 if everyone.rank < ranks else 1)
    if everyone.rank < ranks:
        use_world(few)
        try:
            work()
        finally:
            use_world(everyone)
    everyone.barrier()


def assert_resumes(chain: Chain, drive: Callable[[Run, int], Any], tolerance: float = 2e-6, **how: Any) -> None:
    """Each link of the chain goes on from the checkpoint of the one before; together they are one training."""
    left: dict[str, Array] = {}
    expected: dict[str, Array] = {}
    folder = world().exchange(tempfile.mkdtemp())[0]

    def link(i: int, strategy: str | None) -> None:
        run = Run(strategy, **how)
        if i:
            assert run.step.load(folder) == {"link": i - 1}
        drive(run, i)
        run.step.save(folder, extra={"link": i})
        left.clear()
        left.update(run.left())

    for i, (ranks, strategy) in enumerate(chain):
        among(ranks, lambda i=i, strategy=strategy: link(i, strategy))

    def whole() -> None:
        run = Run(None, **how)
        for i in range(len(chain)):
            drive(run, i)
        expected.update(run.left())

    among(3, whole)
    if world().rank < chain[-1][0]:
        near(left, expected, tolerance, str(chain))
    if world().rank == 0:
        shutil.rmtree(folder)


def one_batch(run: Run, i: int) -> None:
    run.train([i])


def check_chains() -> None:
    cases: list[Mapping[str, Any]] = [
        {"optimizer": ADAM},
        {"optimizer": SGD},
        {"optimizer": ("dcasgd", {"learning_rate": 0.05, "momentum": 0.9})},
        {"optimizer": MASTERS, "how": HALF, "tolerance": 2e-3},
        {"precision": "16-mixed", "tolerance": 2e-3},
    ]
    for case in cases:
        for chain in CHAINS:
            assert_resumes(chain, one_batch, **case)


def check_windows_in_chains() -> None:
    """A sum of gradients is open when the checkpoint is written."""

    def drive(run: Run, i: int) -> None:
        run.step.accumulate(run.part(X[i]), own(Y[i]))
        if i % 2:
            run.step.apply()

    for chain in CHAINS:
        assert_resumes(chain, drive)


def check_averages_in_chains() -> None:
    assert_resumes([(1, None), (3, "zero1"), (2, "zero2"), (3, None)], one_batch, ema=0.5)


def check_loading_into_a_trained_step() -> None:
    for strategy in STRATEGIES:
        folder = world().exchange(tempfile.mkdtemp())[0]
        run = Run(strategy).train([0])
        run.step.save(folder)
        before = run.left()
        after = run.train([1]).left()
        run.train([2, 3])
        run.step.load(folder)
        near(run.left(), before, 0.0)
        near(run.train([1]).left(), after, 0.0)
        world().barrier()
        if world().rank == 0:
            shutil.rmtree(folder)


def check_ranks_that_do_not_save_together() -> None:
    run = Run("zero1").train([0])
    with pytest.raises(Disagreement):
        if world().rank:
            run.train([1])
        else:
            run.step.save(tempfile.gettempdir() + "/never")


RESUMED: list[Check] = [
    check_chains,
    check_windows_in_chains,
    check_averages_in_chains,
    check_loading_into_a_trained_step,
    check_ranks_that_do_not_save_together,
]


def on_three_ranks() -> None:
    run_checks(RESUMED)


@pytest.mark.parametrize("check", RESUMED, ids=lambda check: check.__name__)
def test_resumed(check: Check) -> None:
    assert_passed(3, on_three_ranks, check)


def test_resumed_jobs_end() -> None:
    assert_clean(3, on_three_ranks)


def test_strategies_are_all_tested() -> None:
    assert strategies_training.STRATEGIES == sharded.STRATEGIES
