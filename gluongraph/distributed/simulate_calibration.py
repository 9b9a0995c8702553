"""The latency and the bandwidth of a network, fitted to timings of collectives: by least squares of relative errors."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gluongraph.distributed import launcher_mpi
from gluongraph.distributed.launcher_mpi import LaunchError
from gluongraph.distributed.launcher_rank import THREADS, TOKEN
from gluongraph.distributed.simulate_network import Link, Terms, terms
from gluongraph.errors import ArgumentError, with_user_location

_ROUNDS = 20  # choices of algorithms and fits in turn, at most
_PATIENCE = 120.0  # seconds for the ranks that are started


@dataclass(frozen=True)
class Timing:
    """Seconds of a collective of so many bytes on so many ranks."""

    op: str
    ranks: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A link, and by which factor timings differ from it: the typical one, and the largest."""

    link: Link
    typical: float
    largest: float

    def __str__(self) -> str:
        link = self.link
        added = "" if math.isinf(link.additions) else f" --addition-bandwidth {link.additions:.3g}"
        told = f"--latency {link.latency:.3g} --bandwidth {link.bandwidth:.3g}{added}"
        return f"{told}  (timings are within a factor {self.typical:.2f} of it, the worst {self.largest:.2f})"


def fit(timings: Sequence[Timing], algorithm: str = "best") -> Fit:
    """The link by which the alpha-beta model, with these algorithms, comes closest to the timings.

    Which algorithm is the fastest depends on the link, and the link on the algorithms: one is decided for the other, in
    turn, until they stay.

    Raises:
        ArgumentError: timings of one rank, or none.

    >>> link = Link(bandwidth=1e9, latency=1e-5)
    >>> sizes = (1 << 10, 1 << 16, 1 << 22)
    >>> timings = [Timing("all_gather", 4, size, link.seconds("all_gather", 4, size)) for size in sizes]
    >>> found = fit(timings).link
    >>> f"{found.bandwidth:.3g} {found.latency:.3g}"
    '1e+09 1e-05'
    """
    if not timings or any(timing.ranks < 2 for timing in timings):
        raise ArgumentError("a network is fitted to timings of collectives on 2 ranks or more")
    choices = [terms(timing.op, timing.ranks, algorithm) for timing in timings]
    chosen = [options[min(1, len(options) - 1)] for options in choices]  # at first those of few messages, few bytes
    link = _solved(timings, chosen, algorithm)
    for _ in range(_ROUNDS):
        best = [_fastest(options, link, timing.nbytes) for options, timing in zip(choices, timings, strict=True)]
        if best == chosen:
            break
        chosen, link = best, _solved(timings, best, algorithm)
    factors = np.array([link.seconds(t.op, t.ranks, t.nbytes) / t.seconds for t in timings])
    away = np.abs(np.log(np.maximum(factors, 1e-12)))
    return Fit(link, float(np.exp(np.median(away))), float(np.exp(np.max(away))))


def _fastest(options: Sequence[Terms], link: Link, nbytes: int) -> Terms:
    return min(options, key=lambda t: link.of(t, nbytes))


def _solved(timings: Sequence[Timing], chosen: Sequence[Terms], algorithm: str) -> Link:
    """Return the link of least relative errors with these algorithms. Latency, and times of a byte, are not negative:
    of the solutions with some of them 0 the best one counts."""
    rows = [
        (t.messages, t.sent * timing.nbytes, t.added * timing.nbytes) for timing, t in zip(timings, chosen, strict=True)
    ]
    matrix = np.array(rows) / np.array([[timing.seconds] for timing in timings])
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)  # seconds and seconds a byte differ by many powers of ten
    best: tuple[float, np.ndarray[tuple[int], np.dtype[np.float64]]] | None = None
    for count in (1, 2, 3):
        for columns in map(list, combinations(range(3), count)):
            part = np.zeros(3)
            part[columns] = np.linalg.lstsq(matrix[:, columns] / scale[columns], np.ones(len(rows)))[0]
            error = float(((matrix / scale) @ part - 1) @ ((matrix / scale) @ part - 1))
            if (part >= 0).all() and (best is None or error < best[0] * (1 - 1e-9)):
                best = error, part
    assert best is not None
    alpha, beta, gamma = (best[1] / scale).tolist()
    return Link(_rate(beta), alpha, _rate(gamma), algorithm)


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf


def measure_here(ranks: Sequence[int] = (2,)) -> list[Timing]:
    """Time collectives on so many ranks of this host, which are started one job after the other, with one thread each.

    Raises:
        LaunchError: mpi4py or mpiexec is missing; ranks could not be started, or did not end.
    """
    program = ["-m", "gluongraph.distributed.simulate_ranks", "--json"]
    return [Timing(**row) for number in ranks for row in json.loads(output_of_ranks(number, program, _PATIENCE))]


def output_of_ranks(ranks: int, program: Sequence[str], patience: float) -> str:
    """Run a program of Python on so many ranks of this host, with one thread each; the last line that it prints.

    Raises:
        LaunchError: mpi4py or mpiexec is missing; the program failed, or did not end within so many seconds.
    """
    mpi = launcher_mpi.find()
    settings = {**mpi.environ(hosts=False, root=os.geteuid() == 0), TOKEN: "none"}  # mpiexec is told to pass the token
    command = mpi.command([sys.executable, "-m", "mpi4py", *program], ranks)
    env = {**settings, **os.environ, **dict.fromkeys(THREADS, "1")}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=env, text=True, stdin=nothing, stdout=pipe, stderr=pipe) as job:
        try:
            output, error = job.communicate(timeout=patience)
        except BaseException as reason:
            _end(job)
            if not isinstance(reason, subprocess.TimeoutExpired):
                raise
            message = f"{ranks} ranks have not ended their measurements within {patience:g} s"
            raise LaunchError(with_user_location(message)) from None
    if job.returncode:
        lines = [line for line in error.splitlines() if line.strip()]
        message = f"{ranks} ranks could not measure: {lines[-1].strip() if lines else job.returncode}"
        raise LaunchError(with_user_location(message, help="gluongraph doctor says what is missing"))
    return output.strip().splitlines()[-1]


def _end(job: subprocess.Popen[str]) -> None:
    job.terminate()  # mpiexec ends its ranks then
    with suppress(subprocess.TimeoutExpired):
        job.wait(5)
    job.kill()
