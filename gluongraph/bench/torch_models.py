"""The models of torch_zoo beside PyTorch: pass rate, step times, memory, compile times, as one table."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph.bench.interleaved_timing import Result, Worker, contest
from gluongraph.host.terminal import table

OWN, EAGER, COMPILED = "from-torch", "eager", "compile"
# What counts as the same: the output and each gradient by their largest element, and the losses of five updates. (Some
# models of transformers compute norms and positions in float32, whatever their parameters are.)
BOUNDS = {"output": 1e-6, "gradient": 1e-5, "sgd": 1e-6, "adamw": 1e-6, "bf16": 0.05}
# PyTorch's own errors, where they are measured: "autocast" in 16 bit, large after batch norms of few samples; and how
# far its losses move with the last bits of the weights, which is far where training is chaotic (timm_selecsls42b: 7e-3
# at the fifth step of SGD). No implementation can be nearer to PyTorch than PyTorch is to itself.
OWN_ERRORS = {"bf16": "autocast", "sgd": "sgd_rounding", "adamw": "adamw_rounding"}
NOISE = 2  # times its own error may be ours


@dataclass
class Row:
    """What was found about one model."""

    name: str
    check: dict[str, float]
    results: dict[str, Result]
    missing: str = ""

    @property
    def passed(self) -> bool:
        """Is it computed as PyTorch does, as far as PyTorch agrees with itself?"""
        return bool(self.check) and all(self.check[key] <= self._bound(key) for key in BOUNDS)

    def _bound(self, key: str) -> float:
        """What the error may be: that of the table, or what PyTorch differs from itself by."""
        return max(BOUNDS[key], NOISE * self.check.get(OWN_ERRORS.get(key, ""), 0.0))

    @property
    def ratio(self) -> float | None:
        """How many times gluongraph's step the better of PyTorch's takes."""
        own = self.results.get(OWN)
        peers = [r.median for c in (EAGER, COMPILED) if (r := self.results.get(c)) is not None and r.blocks]
        return min(peers) / own.median if own is not None and own.blocks and peers else None


def names(wanted: Sequence[str]) -> list[str]:
    """The models wanted, or all whose packages are installed.

    Raises:
        KeyError: there is no such model.
    """
    from gluongraph.bench import torch_zoo

    for name in wanted:
        if name not in torch_zoo.ZOO:
            raise KeyError(f"there is no model {name}; there are {', '.join(torch_zoo.ZOO)}")
    installed = {p: importlib.util.find_spec(p) is not None for p in ("torchvision", "timm", "transformers")}
    return [n for n in wanted or torch_zoo.ZOO if installed.get(torch_zoo.package_of(n), True)]


def measure(
    name: str,
    on: Sequence[int],
    blocks: int,
    length: float,
    against: Sequence[str],
    further: Callable[[], None],
    checked: bool = True,
) -> Row:
    """One model: the check in a process of its own, then blocks of steps that alternate."""
    hello = _check(name, on) if checked else {}
    further()
    found = {k: v for k, v in hello.get("about", {}).items() if k in (*BOUNDS, *OWN_ERRORS.values())}
    results = contest([OWN, *against], name, on, blocks, length, progress=further) if blocks else {}
    return Row(name, found, results, hello.get("error", ""))


def _check(name: str, on: Sequence[int]) -> dict[str, Any]:
    """What the process that compares results says of itself."""
    worker = Worker("check", name, on)
    try:
        return worker.hello
    finally:
        worker.close()


ERRORS = ("output", "gradient", "adamw", "bf16")
HEAD = (
    *(">output", ">gradient", ">AdamW", ">bf16", *(f">{c} ms" for c in (OWN, EAGER, COMPILED)), ">ratio"),
    *(f">{c} first s" for c in (OWN, COMPILED)),
    *(f">{c} GB" for c in (OWN, EAGER, COMPILED)),
)
WIDTH = 8  # of a number, "12345.67" ms


def head(names: Sequence[str]) -> str:
    """The line above the rows of these models."""
    return table(_columns(names), [])


def line(row: Row, names: Sequence[str]) -> str:
    """A row, under that head: errors in float64, milliseconds a step, ratio, seconds to the first, memory."""
    errors = [f"{row.check[key]:.0e}" if row.check else "" for key in ERRORS]
    times = [_of(row, c, lambda r: f"{1e3 * r.median:.2f}") for c in (OWN, EAGER, COMPILED)]
    firsts = [_of(row, c, lambda r: f"{r.prepare_seconds:.1f}") for c in (OWN, COMPILED)]
    memory = [_of(row, c, lambda r: f"{r.peak / 1e9:.2f}") for c in (OWN, EAGER, COMPILED)]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    name = row.name if row.passed or not (row.check or row.missing) else f"{row.name}{FAILED}"
    return table(_columns(names), [[name, *errors, *times, ratio, *firsts, *memory]]).splitlines()[1]


FAILED = " FAILED"


def _columns(names: Sequence[str]) -> list[str]:
    """The heads, each as wide as anything that may stand below it, since rows are printed as they are found."""
    first = "model".ljust(max(map(len, names), default=0) + len(FAILED))
    return [first, *(">" + head.removeprefix(">").rjust(WIDTH) for head in HEAD)]


def _of(row: Row, contender: str, tell: Callable[[Result], str]) -> str:
    result = row.results.get(contender)
    return tell(result) if result is not None and result.blocks else ""


def summary(rows: Sequence[Row]) -> list[str]:
    """The pass rate, and the geometric mean of the ratios."""
    checked = [row for row in rows if row.check or row.missing]
    passed = sum(row.passed for row in checked)
    lines = [f"{passed} of {len(checked)} models computed as by PyTorch"] if checked else []
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        least = min((r for r in rows if r.ratio is not None), key=lambda r: r.ratio or 0.0)
        mean = statistics.geometric_mean(ratios)
        lines.append(
            f"PyTorch's better step by ours: geometric mean {mean:.2f}, least {least.ratio:.2f} ({least.name})"
        )
    lines += [f"{row.name}: {row.missing}" for row in rows if row.missing]
    for row in rows:
        lines += [f"{row.name}: {c} did not run: {r.missing}" for c, r in row.results.items() if r.missing]
    return lines
