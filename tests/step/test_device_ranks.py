"""Compiled steps of several ranks in the memory of a device, with the CPU as the device: the same bits as in the host's
memory. What a GPU adds to that, its kernels, streams and NCCL, is in tests/codegen/cuda and tests/runtime."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
from rank_checks import Array, Check, assert_clean, assert_passed, own, refused, run_checks
from ranks import needs_mpi
from strategies_training import ADAM, LOSS, SGD, STRATEGIES, Run, X, Y

import gluongraph as mx
from gluongraph import debug, gluon
from gluongraph.errors import IndexRangeError
from gluongraph.ir.entry_point import Program
from gluongraph.runtime.collectives import HostViews
from gluongraph.runtime.communicator import overlap
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.device import CPU, Device, DeviceExecutor

pytestmark = needs_mpi
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "momentum": (SGD, {}),
    "adam, clipped": (ADAM, {"clip_norm": 0.1}),
    "in bf16": (ADAM, {"precision": "bf16-mixed"}),
    "in f16": (SGD, {"precision": "16-mixed"}),
    "averaged": (SGD, {"ema": 0.9}),
    "16-bit states": (ADAM, {"optimizer_state": "bf16"}),
}


class Spoiled(DeviceExecutor):
    """Before every call the scratch memory is NaN, with what lies between arrays."""

    called: ClassVar[list[DeviceExecutor]] = []

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        self.called.append(self)
        for name, span in self._spans.items():
            if self.program.args[[arg.name for arg in self.program.args].index(name)].space == "scratch":
                memory = span._memory
                HostViews().flat(memory.address, memory.nbytes, "u8")[:] = 0xFF
                break
        return super().__call__(inputs)


@contextmanager
def on_a_device(mirror: bool = True) -> Iterator[list[DeviceExecutor]]:
    """Within: programs run as those for GPUs do. Yields their executors, one for each call."""

    def executor(entry: Any, program: Program, state: Any, refuse: Any, text: str, repeated: Any = None) -> Any:
        return Spoiled(entry, program, state, Device(CPU), mirror, refuse, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spoiled, "called", [])
        for name in ("gluongraph.compiler.lower", "gluongraph.artefact.load"):
            patch.setattr(importlib.import_module(name), "Executor", executor)
        yield Spoiled.called


def assert_equal_bits(train: Callable[[], Mapping[str, Array]], what: str) -> list[Program]:
    """`train` ends with the same bits in both memories; return the programs that ran in the device's."""
    mx.random.seed(5)
    expected = train()
    mx.random.seed(5)
    with on_a_device() as executors:
        found = train()
    assert_equal(found, expected, what)
    programs = [executor.program for executor in executors]
    assert any(program.collectives for program in programs), what
    return programs


def assert_equal(found: Mapping[str, Array], expected: Mapping[str, Array], what: str = "") -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), f"{what}: {name}"


def check_strategies() -> None:
    for strategy in (None, *STRATEGIES):
        for kind, (optimizer, options) in KINDS.items():
            if strategy and options.keys() & {"optimizer_state", "ema"}:  # of whole parameters
                continue
            ops = assert_equal_bits(
                lambda s=strategy, o=optimizer, how=options: Run(s, o, **how).train().left(),
                f"{strategy} {kind}",
            )
            used = {each.op for program in ops for each in program.collectives}
            assert used >= ({"reduce_scatter", "all_gather"} if strategy else {"all_reduce"})


def check_a_state_that_stays_there() -> None:
    """The host's arrays are sent once, and fetched at the end: shards of parameters are parts of them there, too."""
    for strategy in (None, *STRATEGIES):
        expected = Run(strategy, ADAM).train().left()
        with on_a_device(mirror=False) as executors:
            run = Run(strategy, ADAM).train()
            (executor,) = set(executors)
            before = {name: array.copy() for name, array in executor._state.items()}
            executor.fetch()
            assert not any(np.array_equal(array, before[name]) for name, array in executor._state.items())
            assert_equal(run.left(), expected, f"{strategy}")


def check_overlap() -> None:
    """Sums that run beside kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "BUCKET", 64)
        patch.setenv(overlap.VARIABLE, "1")
        overlap.bucket_size.cache_clear()
        programs = assert_equal_bits(lambda: Run(None, SGD).train().left(), "overlap")
    overlap.bucket_size.cache_clear()
    running = set()
    for program in programs:
        steps = program.steps
        for i, (what, number) in enumerate(steps):
            later = steps[i : steps.index(("wait", number))] if what == "start" else ()
            running |= {kind for kind, _ in later}
    assert "run" in running


def check_compression() -> None:
    for how in ({"type": "2bit", "threshold": 0.05}, {"type": "bf16"}):

        def train(how: Mapping[str, Any] = how) -> dict[str, Array]:
            run = Run(None, SGD)
            run.trainer = gluon.Trainer(
                run.net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_sync", compression_params=how
            )
            run.step = mx.compile(run.net, LOSS, run.trainer)
            return run.train().left()

        assert_equal_bits(train, str(how))


def check_modes() -> None:
    """What is accumulated, deterministic, or asked for without an update."""

    def accumulated() -> dict[str, Array]:
        run = Run(None, ADAM)
        for x, y in zip(X, Y, strict=True):
            run.step.accumulate(own(x), own(y))
        run.step.apply()
        return run.left() | {name: grad.asnumpy() for name, grad in run.step.grads(own(X[0]), own(Y[0])).items()}

    assert_equal_bits(accumulated, "accumulate")
    expected = Run(None, SGD, deterministic=True).train().left()
    with on_a_device() as executors:
        assert_equal(Run(None, SGD, deterministic=True).train().left(), expected, "deterministic")
    assert executors


def check_refusals() -> None:
    """A label out of range on one rank: nobody has changed anything, and all can go on."""
    with on_a_device():
        run = Run(None, ADAM).train([0])
        before = run.left()
        labels = own(Y[1]).copy()
        if world().rank == 1:
            labels[0] = 99
        with refused(1, IndexRangeError, "99"):
            run.step(own(X[1]), labels)
        run.trainer.set_learning_rate(0.1 + world().rank)
        with pytest.raises(Disagreement, match=r"on rank 0, .* on rank 1"):
            run.step(own(X[1]), own(Y[1]))
        assert_equal(run.left(), before)
        run.trainer.set_learning_rate(0.1)
        run.train([1])
        assert any(before[name].tobytes() != value.tobytes() for name, value in run.left().items())


def check_artefacts() -> None:
    path = f"{os.environ['TMPDIR']}/step{world().rank}.gga"
    run = Run(None, ADAM).train([0])
    run.step.export(path, modes=["step"])

    def train() -> dict[str, Array]:
        step = mx.load(path)
        losses = [step(own(X[i]), own(Y[i])).asnumpy() for i in (1, 2)]
        return {"losses": np.array(losses)} | {p.name: p.data().asnumpy() for p in step.trainer.params}

    assert_equal_bits(train, "an artefact")


def check_profile() -> None:
    """Launch by launch; the state is what it was."""
    with on_a_device():
        run = Run(None, ADAM).train([0])
        before = run.left()
        rows = run.step.profile(own(X[0]), own(Y[0]), repeat=1)
        assert any("all_reduce" in str(row) for row in rows)
        assert_equal(run.left(), before)


CHECKS: list[Check] = [
    check_strategies,
    check_a_state_that_stays_there,
    check_overlap,
    check_compression,
    check_modes,
    check_refusals,
    check_artefacts,
    check_profile,
]


def on_each_rank() -> None:
    assert not any(debug.how())
    run_checks(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_2_ranks(check: Check) -> None:
    assert_passed(2, on_each_rank, check)


def test_the_job_ends() -> None:
    assert_clean(2, on_each_rank)
