"""Candidates of one kernel compared: compiled together, checked against each other, timed alternately."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gluongraph.codegen.build import kernel
from gluongraph.codegen.rule import Target
from gluongraph.codegen.tvm import machine_code
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.host import process
from gluongraph.host.interrupts import in_parallel
from gluongraph.ir.graph import TensorType
from gluongraph.ir.plan import Buffer, Candidate, Launch
from gluongraph.runtime import loader
from gluongraph.storage import Array, aligned_empty

FEWEST = 5  # runs of each candidate before slow ones are dropped
SLOW = 1.15  # times the best, above which a candidate is dropped
LONG = 0.05  # seconds of runs of each candidate that is not dropped
AGAIN = 15  # minimum runs in the final comparison with the default
LONGER = 0.15  # seconds of each in that comparison
WORTH = 0.97  # a candidate counts as faster below this fraction of the default's time
TOLERANCE = 1e-4  # of f32, relative to the largest element of an array
COARSER = {"f16": 40.0, "bf16": 200.0}  # factors of the tolerance


@dataclass
class Entrant:
    """A candidate, a function that runs it, and its time: the minimum of all runs, since other load on the machine only
    adds to it. `exact`: are its results equal to the default's to the bit?"""

    candidate: Candidate
    run: Callable[[], object]
    exact: bool = True
    seconds: float = math.inf
    runs: int = 0
    spent: float = 0.0

    def time(self) -> None:
        """Run and time it once."""
        started = time.perf_counter()
        self.run()
        taken = time.perf_counter() - started
        self.seconds, self.runs, self.spent = min(self.seconds, taken), self.runs + 1, self.spent + taken


class Contest:
    """Compares the candidates for one launch, on memory of its own. The first candidate is the rule's default."""

    def __init__(self, launch: Launch, on: Target):
        self.launch, self.on = launch, on
        rng = np.random.default_rng(0)
        self.memory = {b.name: _made_up(rng, b.type) for b in (*launch.reads, *launch.writes)}
        written = {b.name for b in launch.writes}
        self.before = {b.name: self.memory[b.name].copy() for b in launch.reads if b.name in written}
        self.meant: list[Array] = []

    def run(self, candidates: Sequence[Candidate]) -> tuple[Entrant, Entrant]:
        """Time the candidates; return the rule's default, the first of them, and the fastest, which may be the same."""
        entrants = [e for e in self._entrants(candidates) if self._right(e)]
        default = entrants[0]
        _race(entrants, LONG)
        best = min(entrants, key=lambda e: e.seconds)
        if best is not default:  # again, longer: the best of many may have been lucky
            default, best = (Entrant(e.candidate, e.run, e.exact) for e in (default, best))
            _race([default, best], LONGER, AGAIN, slow=math.inf)
        return default, best if best.seconds <= default.seconds * WORTH else default

    def _entrants(self, candidates: Sequence[Candidate]) -> list[Entrant]:
        launches = [self._launch(c, f"{self.launch.kernel}_{i}") for i, c in enumerate(candidates)]
        functions = _compiled(launches, self.on)
        # One workspace for all: pages that collide in cache sets would make a candidate slow by chance.
        space = aligned_empty((max(c.workspace for c in candidates),), np.uint8)
        made = []
        for launch, function in zip(launches, functions, strict=True):
            memory = {b.name: self.memory[b.name] for b in (*launch.reads, *launch.writes)}
            if launch.workspace is not None:
                memory[launch.workspace.name] = space[: launch.candidate.workspace]
            # `memory` is passed to keep the arrays alive.
            views = {name: loader.view(array) for name, array in memory.items()}
            arguments = [views[b.name] for b in launch.arguments]
            made.append(Entrant(launch.candidate, _call(function, arguments, memory)))
        return made

    def _launch(self, candidate: Candidate, name: str) -> Launch:
        nbytes = candidate.workspace
        space = Buffer("workspace", TensorType((nbytes,), "u8"), "scratch", 0) if nbytes else None
        return replace(self.launch, kernel=name, candidate=candidate, workspace=space)

    def _right(self, entrant: Entrant) -> bool:
        """Does it compute the same results as the default? Sets `exact`."""
        for name, before in self.before.items():
            self.memory[name][...] = before
        entrant.run()
        results = [self.memory[b.name].copy() for b in self.launch.writes]
        self.meant = self.meant or results
        entrant.exact = all(a.tobytes() == b.tobytes() for a, b in zip(results, self.meant, strict=True))
        right = entrant.exact or all(map(_alike, results, self.meant, [b.type.dtype for b in self.launch.writes]))
        if not right:
            what = f"{self.launch.label} by {entrant.candidate.rule}, {entrant.candidate.setting}"
            warnings.warn(f"a candidate is left out, its results are wrong: {what}", stacklevel=2)
        return right


def _call(function: Callable[..., object], arguments: Sequence[Any], memory: object) -> Callable[[], object]:
    def run(_keep: object = memory) -> object:
        return function(*arguments)

    return run


def _compiled(launches: Sequence[Launch], on: Target) -> list[Callable[..., object]]:
    """Compile some kernels in one module per thread, since compilation takes most of the time; return the functions."""
    parts = min(process.threads(), len(launches))
    written = [kernel(launch, on) for launch in launches]
    modules = in_parallel([partial(machine_code.build_kernels, written[i::parts], on.tvm) for i in range(parts)], parts)
    return [loader.function(modules[i % parts], launch.kernel) for i, launch in enumerate(launches)]


def _race(entrants: Sequence[Entrant], seconds: float, fewest: int = FEWEST, slow: float = SLOW) -> None:
    """Run the candidates alternately; drop those that are clearly slower than the best."""
    running = list(entrants)
    for each in running:
        each.run()
    while running:
        for each in running:
            each.time()
        if running[0].runs >= fewest:
            best = min(each.seconds for each in running)
            running = [e for e in running if e.seconds <= best * slow and e.spent < seconds]


def _made_up(rng: np.random.Generator, ty: TensorType) -> Array:
    """Return random values that are valid for any input of a kernel: floats between 0 and 1, integers 0 or 1."""
    made = aligned_empty(ty.shape, numpy_dtype(ty.dtype))
    given = rng.random(ty.shape, np.float32) if is_float(ty.dtype) else rng.integers(0, 2, ty.shape)
    made[...] = given.astype(made.dtype)
    return made


def _alike(made: Array, meant: Array, dtype: str) -> bool:
    a, b = (x.astype(np.float64) for x in (made, meant))
    with np.errstate(invalid="ignore"):
        apart = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        most = np.abs(a - b)[apart].max(initial=0.0)
    largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return bool(is_float(dtype) and most <= TOLERANCE * COARSER.get(dtype, 1.0) * largest)
