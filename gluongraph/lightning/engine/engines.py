"""Which engine trains a module, and the one that evaluates it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gluongraph.errors import MXNetError, TraceError, UnsupportedError, warn
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.batch import flatten, map_leaves
from gluongraph.lightning.engine.eager import EagerEngine, evaluate_eagerly
from gluongraph.lightning.engine.fused import EvaluationEngine, FusedEngine
from gluongraph.lightning.engine.gluon_steps import GluonSteps
from gluongraph.lightning.engine.staged import StagedEngine
from gluongraph.lightning.hooks import BATCH_HOOKS, GRADIENT_HOOKS
from gluongraph.ndarray import NDArray

JOINED = 128  # steps in one call, at most, where nobody looks in between
STACK_BYTES = 1 << 20  # of stacks of batches and results, at most, which the caches hold; but
LEAST_JOINED = 32  # may be stacked
JOINED_BYTES = 1 << 16  # of a batch, above which copying it into a stack is not worth it
JOINED_SECONDS = 300e-6  # of a step, above which the call is little of it


def steps_of(module: Any, torch: bool, stay: bool = False) -> Any:
    """The step functions of a module as a block. With `stay` the memory of its parameters does not move."""
    if not torch:
        return GluonSteps(module)
    import_whole("gluongraph.lightning.engine.torch_steps")
    from gluongraph.lightning.engine.torch_steps import TorchSteps

    return TorchSteps(module, stay)


class Engines:
    """Runs the steps of one module: `train` and `train_many` by the engine that fits it, `evaluate` compiled where the
    step can be traced.

    `mode` is "fused", "staged" or "eager", `why` says in words what decided it.
    """

    def __init__(self, trainer: Any, module: Any, torch: bool):
        self.trainer, self.module, self.torch = trainer, module, torch
        self.steps = steps_of(module, torch, stay=bool(trainer.sharding))
        self.mode, self.why = "", ""
        self.engine: Any = None
        self.skipped_last = False
        self._evaluation = EvaluationEngine(self.steps, trainer.compile_options(evaluation=True))
        self._eagerly: set[str] = {"all"} if trainer.eager else set()
        self._seconds: list[float] = []
        self._joins: int | None = None

    def choose(self) -> str:
        """Choose how steps are computed, which is told: "fused", "staged" or "eager"."""
        self.mode, self.why = self._mode()
        return self.mode

    def _mode(self) -> tuple[str, str]:
        trainer, module = self.trainer, self.module
        if trainer.eager:
            return "eager", "Trainer(eager=True)"
        if not module.automatic_optimization:
            return "eager", f"{type(module).__name__} has automatic_optimization = False"
        if trainer.hooks.overridden("backward"):
            return "eager", "backward is overridden"
        if not trainer.optimizers:
            return "eager", "configure_optimizers gave None"
        names = [name for name in GRADIENT_HOOKS if trainer.hooks.anybody(name)]
        if names:
            return "staged", f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} overridden"
        return "fused", "no hook looks at gradients"

    def prepare(self, gluon_trainer: Any) -> None:
        """Make the engine that trains, in the mode that has been chosen."""
        trainer, store = self.trainer, self.trainer.metric_log.stores["train"]
        if self.mode == "eager":
            self.engine = EagerEngine(trainer, self.module, self.steps, gluon_trainer, store, self.torch)
        elif self.mode == "staged":
            self.engine = StagedEngine(trainer, self.module, self.steps, gluon_trainer, store, self.torch)
        else:
            self.engine = FusedEngine(
                self.steps, gluon_trainer, store, trainer.compile_options(), self.module, trainer.optimizers
            )
            self.clip()

    def clip(self) -> None:
        """Have later updates clip gradients as the Trainer says. Other modes than the fused one ask it each time."""
        if self.mode == "fused":
            self.engine.clip(self.trainer.clip_norm, self.trainer.clip_value)

    # -- training

    def train(self, batch: Any, batch_idx: int, accumulates: bool) -> Any:
        """One batch, and the update where it ends a window; gives (loss, result), or None where training_step left the
        batch out."""
        counters = self.trainer.counters
        if self.mode != "fused":
            made = self.engine.train(batch, batch_idx, accumulates)
            counters.window = counters.window + 1 if accumulates else 0
            return made
        arrays, structure = flatten(batch)
        skipped = self.engine.skipped
        begin = time.perf_counter()
        every = self.trainer.accumulate_grad_batches > 1
        made = self.engine.train(arrays, structure, every)
        if every and not accumulates:
            if self.trainer.lightning_remainder:
                self.engine.divide_by(self.trainer.accumulate_grad_batches)
            self.engine.apply()
        if self._joins is None:
            self._measure(arrays, made, time.perf_counter() - begin)
        if not accumulates:
            self.count(made is None, self.engine.skipped > skipped)
        counters.window = counters.window + 1 if accumulates else 0
        return made

    def count(self, left_out: bool, skipped: bool = False) -> None:
        """Count an update, or one that was left out: was it `skipped` since a gradient was not finite?"""
        counters = self.trainer.counters
        self.skipped_last = skipped
        if left_out or skipped:
            counters.steps_skipped += 1
        else:
            counters.steps_applied += 1

    def train_many(self, stacks: Sequence[Any], structure: Any, count: int) -> None:
        """One update for each of several batches of one type, in one call: each of their arrays is a stack."""
        skipped = self.engine.skipped
        self.engine.train_many(stacks, structure, count)
        left_out = self.engine.skipped - skipped
        self.trainer.counters.steps_applied += count - left_out
        self.trainer.counters.steps_skipped += left_out

    @property
    def joins(self) -> int:
        """How many steps one call may make; 0 where each is a call of its own."""
        return self._joins or 0

    def stop_joining(self) -> None:
        """Make each step a call of its own from now on."""
        self._joins = 0

    def _measure(self, arrays: Sequence[Any], made: Any, seconds: float) -> None:
        """Decide, after a few steps, whether several of them are to be one call."""
        trainer = self.trainer
        if not arrays:  # a stack of nothing would not say how many steps it is
            self._joins = 0
            return
        if (asked := trainer.steps_per_call) is not None:
            self._joins = asked if self._may_join() else 0
            return
        read = sum(map(_nbytes, arrays))
        if read > JOINED_BYTES:
            self._joins = 0
            return
        self._seconds.append(seconds)
        if len(self._seconds) == 8:
            fast = sorted(self._seconds)[3] < JOINED_SECONDS
            results: list[Any] = []  # which are stacked as well
            map_leaves(results.append, made)
            stacked = read + sum(_nbytes(each) for each in results if isinstance(each, NDArray))
            most = min(JOINED, max(LEAST_JOINED, STACK_BYTES // max(1, stacked)))
            self._joins = most if fast and self._may_join() else 0

    def _may_join(self) -> bool:
        trainer = self.trainer
        every_step = any(c.interval == "step" for c in trainer.lr_scheduler_configs)
        looked_at = any(trainer.hooks.overridden(name) for name in BATCH_HOOKS)
        return trainer.accumulate_grad_batches == 1 and not (every_step or looked_at or trainer.transfers)

    # -- evaluation

    def evaluate(self, kind: str, batch: Any, batch_idx: int, loader: int | None, store: Any) -> Any:
        """What a step function of validation, test or prediction gives for a batch."""
        if not self._eagerly & {"all", kind}:
            try:
                arrays, structure = flatten(batch)
                return self._evaluation.run(kind, arrays, structure, loader, store)
            except MXNetError as error:
                if not self.torch or not _is_of_tracing(error):
                    raise
                self._eagerly.add(kind)
                reason = str(error).partition("\n  help")[0]
                warn(f"{kind} is not compiled, and runs in PyTorch: {reason}")
        return evaluate_eagerly(self.trainer, self.module, kind, batch, batch_idx, loader, store, self.torch)

    def describe(self) -> str:
        """The engine that trains and what decided it, in a sentence."""
        what = {
            "fused": "each batch is one compiled call",
            "staged": "gradients and update are two compiled calls, with the hooks between them",
            "eager": "steps are not compiled",
        }[self.mode]
        return f"{self.mode} mode: {what} ({self.why})"


def _nbytes(array: Any) -> int:
    return int(array.nbytes if hasattr(array, "nbytes") else array.type.nbytes)


def _is_of_tracing(error: MXNetError) -> bool:
    """Is it the error of a step that cannot be traced?"""
    return isinstance(error, (UnsupportedError, TraceError))
