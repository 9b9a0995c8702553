"""What a contest says: tables for people, data for machines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluongraph.bench import bandwidth
from gluongraph.bench.interleaved_timing import Result, seconds
from gluongraph.bench.workloads import Workload
from gluongraph.errors import pluralize

BANDWIDTH = "bandwidth"  # what is no peer
BUSY = 0.2  # cores that other processes may take before a measurement is called unfair


class Report:
    """Everything that was measured, workload by workload."""

    def __init__(
        self, on: Sequence[int], own: str, precision: str, blocks: int, block_seconds: float, target: str = ""
    ):
        self.on, self.own, self.precision, self.blocks, self.block_seconds = on, own, precision, blocks, block_seconds
        self.target = target  # whose vectors all are held to; '' for all that each knows to use
        self.results: dict[str, dict[str, Result]] = {}
        self.workloads: dict[str, Workload] = {}

    def add(self, workload: Workload, results: dict[str, Result]) -> None:
        """One workload's contest."""
        self.workloads[workload.name], self.results[workload.name] = workload, results

    @property
    def failed(self) -> bool:
        """Did gluongraph's own step fail somewhere?"""
        return any(results[self.own].missing for results in self.results.values())

    def ratios(self) -> dict[str, dict[str, float]]:
        """workload -> peer -> how many times gluongraph's time."""
        found = {}
        for name, results in self.results.items():
            if (mine := results[self.own]).blocks:
                peers = {c: r for c, r in results.items() if r.blocks and c not in (self.own, BANDWIDTH)}
                found[name] = {c: r.median / mine.median for c, r in peers.items()}
        return found

    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        ratios = self.ratios()
        workloads: dict[str, Any] = {}
        for name, results in self.results.items():
            rows = {}
            for contender, result in results.items():
                rows[contender] = {k: v for k, v in vars(result).items() if k not in ("contender", "kernels")}
                rows[contender] |= {"median": result.median} if result.blocks else {}
            mine = results[self.own]
            told = {"ratios": ratios.get(name, {}), "share": self.share(name, self.own), "kernels": mine.kernels}
            workloads[name] = {"contenders": rows, **told}
        return {
            "machine": processor(),
            "threads": len(self.on),
            "precision": self.precision,
            "target": self.target,
            "blocks": self.blocks,
            "block_seconds": self.block_seconds,
            "workloads": workloads,
            "means": self.means(),
        }

    def means(self) -> dict[str, float]:
        """Geometric means over workloads: against each peer, and against the best of each workload."""
        columns: dict[str, list[float]] = {}
        for peers in self.ratios().values():
            for peer, ratio in peers.items():
                columns.setdefault(peer, []).append(ratio)
            if peers:
                columns.setdefault("best peer", []).append(min(peers.values()))
        return {peer: statistics.geometric_mean(values) for peer, values in columns.items()}

    def head(self) -> str:
        """What was measured on, and how."""
        how = f"{self.blocks} blocks of {self.block_seconds} s for each contender, alternated"
        target = f"vectors of {self.target}, " if self.target else ""
        return f"{processor()}, {target}{pluralize(len(self.on), 'thread')}, precision {self.precision}, {how}"

    def summary(self) -> str:
        """One line for each workload, and the geometric means."""
        ratios, means = self.ratios(), self.means()
        peers = [p for p in means if p != "best peer"]
        columns = [*peers, "best peer"]
        lines = [f"\n{'times as long':16}" + "".join(f"{peer:>15}" for peer in columns) + f"{'roofline':>10}"]
        for name, found in ratios.items():
            best = {"best peer": min(found.values())} if found else {}
            cells = "".join(_cell((found | best).get(peer), ".2f", 15) for peer in columns)
            lines.append(f"{name:16}{cells}{_cell(self.share(name, self.own), '.0%', 10)}")
        lines.append(f"{'geometric mean':16}" + "".join(_cell(means.get(peer), ".2f", 15) for peer in columns))
        return "\n".join(lines)

    def share(self, name: str, contender: str) -> float | None:
        """Of the roofline, by what our own step must do: another contender of ours does the same."""
        result = self.results[name][contender]
        bound = self.results[name][self.own].bound
        return bound / result.median if bound and result.blocks else None


def _cell(value: float | None, form: str, width: int) -> str:
    return f"{'' if value is None else format(value, form):>{width}}"


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")


def extremes(result: Result) -> tuple[float, float, float]:
    """Least, median, most."""
    return min(result.blocks), result.median, max(result.blocks)


def show(report: Report, name: str, rows: int = 15) -> str:
    """A workload's table: median of the blocks, least and most, how many times `own`'s time, share of the roofline; and
    kernels."""
    results, mine = report.results[name], report.results[name][report.own]
    note = report.workloads[name].note
    lines = [f"\n{name}" + (f": {note}" if note else "")]
    lines.append(f"  {'':22}{'step':>10}{'least':>10}{'most':>10}{'ratio':>8}{'roofline':>10}{'prepared':>12}")
    for contender, result in results.items():
        if not result.blocks:
            lines.append(f"  {contender:22}did not run: {'; '.join(map(str.strip, result.missing.splitlines()))}")
            continue
        low, mid, high = extremes(result)
        if contender == BANDWIDTH:
            rates = [bandwidth.gigabytes_per_second(t) for t in (mid, high, low)]
            lines.append(f"  {contender:22}{rates[0]:.0f} GB/s ({rates[1]:.0f} to {rates[2]:.0f})")
        else:
            ratio = f"{mid / mine.median:.2f}" if mine.blocks else ""
            times = "".join(f"{seconds(t):>10}" for t in (mid, low, high))
            share = report.share(name, contender) if contender.startswith("gluongraph") else None
            lines.append(f"  {contender:22}{times}{ratio:>8}{_cell(share, '.0%', 10)}{result.prepare_seconds:>10.1f} s")
        if result.others and statistics.mean(result.others) > BUSY:
            lines.append(f"  {'':22}other processes took {statistics.mean(result.others):.1f} cores: not fair")
        if result.missing:
            lines.append(f"  {'':22}stopped early: {result.missing}")
    return "\n".join([*lines, *kernels(mine.kernels, rows)])


def kernels(profile: dict[str, Any], rows: int) -> list[str]:
    """The table of distinct kernels, from the data of `step.profile`: those that lose most come first."""
    if not profile:
        return []
    found: dict[str, list[dict[str, Any]]] = {}
    for row in profile["rows"]:
        found.setdefault(row["kernel"], []).append(row)
    worst = sorted(found.values(), key=lambda same: -sum(row["lost"] for row in same))
    rates = f"{'MB':>9}{'MFLOP':>10}{'GB/s':>8}{'GFLOP/s':>9}{'share':>7}"
    lines = [f"\n  {'kernel':7}{'rule':13}{'times':>5}{'each':>10}{'lost':>10}{rates}  {'limit':8}ops"]
    lines += [f"  {_kernel(same)}" for same in worst[:rows]]
    if len(worst) > rows:
        rest = sum(row["seconds"] for same in worst[rows:] for row in same)
        lines.append(f"  {len(worst) - rows} more kernels, {seconds(rest)}")
    launches = len(profile["rows"])
    total = f"{pluralize(launches, 'launch')}, {seconds(profile['seconds'])}: {profile['share']:.0%} of the roofline"
    machine = profile["machine"]
    peaks = ", ".join(f"{unit} {rate / 1e9:.0f} GFLOP/s" for unit, rate in machine["flops"].items())
    levels = ", ".join(
        f"{max(v['read'], v['write'], v['add']) / 1e9:.0f} GB/s within {v['nbytes'] / 2**20:g} MiB"
        for v in machine["levels"]
    )
    return [*lines, f"  {total}", f"  measured: {peaks}; {levels}"]


def _kernel(same: Sequence[dict[str, Any]]) -> str:
    """One kernel's line: how often it runs, its mean time, what all its launches lose."""
    first, time = same[0], statistics.mean(row["seconds"] for row in same)
    sizes = f"{first['nbytes'] / 1e6:>9.2f}{first['flops'] / 1e6:>10.1f}"
    rates = f"{first['nbytes'] / time / 1e9:>8.1f}{first['flops'] / time / 1e9:>9.1f}"
    times = f"{len(same):>5}{seconds(time):>10}{seconds(sum(row['lost'] for row in same)):>10}"
    name = f"{first['kernel']:7}{first['rule']:13}"
    return f"{name}{times}{sizes}{rates}{first['bound'] / time:>7.0%}  {first['limit']:8}{first['label']}"
