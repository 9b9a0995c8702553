"""A whole training step against PyTorch and JAX: time a step, and the ratio to each.

python benchmarks/training_step.py --workload mlp-8,lenet-128 --against torch,jax --json result.json
python benchmarks/training_step.py --quick        # small and short; says whether it works, not how fast it is
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bandwidth
from contest import Result, contest, cores, seconds
from worker import CONTENDERS
from workloads import QUICK, WORKLOADS

OWN = "gluongraph"
DEFAULT = ("mlp-8", "mlp-128", "lenet-128", "resnet18-32", "gpt", "update")


def main(argv: Sequence[str] | None = None, own: str = OWN, default: Sequence[str] = DEFAULT) -> dict[str, Any]:
    options = parse(argv, default)
    on = cores(options.threads)
    blocks, length = (3, 0.05) if options.quick else (options.blocks, options.block_seconds)
    report: dict[str, Any] = {"machine": machine(), "threads": len(on), "blocks": blocks, "workloads": {}}
    print(
        f"{report['machine']['cpu']}, {len(on)} threads, {blocks} blocks of {length} s for each contender, alternated"
    )
    for name in options.workload:
        results = contest((own, *options.against, "bandwidth"), name, on, blocks, length)
        report["workloads"][name] = describe(name, own, results)
        show(name, own, results)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def parse(argv: Sequence[str] | None, default: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [c for c in CONTENDERS if c not in (OWN, "bandwidth")]
    parser.add_argument("--workload", type=names(WORKLOADS), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--against", type=names(peers), default=["torch", "jax"], help=f"of {', '.join(peers)}")
    parser.add_argument("--threads", type=int, help="cores that all contenders are bound to; all by default")
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--block-seconds", type=float, default=0.5)
    parser.add_argument("--quick", action="store_true", help="3 short blocks of the small workloads")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args(argv)
    options.workload = options.workload or list(QUICK if options.quick else default)
    return options


def names(known: Any) -> Any:
    """A converter of 'a,b' to known names."""

    def convert(text: str) -> list[str]:
        chosen = [part for part in text.split(",") if part]
        if unknown := [part for part in chosen if part not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
        return chosen

    return convert


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "")
    return {"cpu": model or platform.processor(), "python": platform.python_version()}


def describe(name: str, own: str, results: dict[str, Result]) -> dict[str, Any]:
    """All that was measured for one workload, for the file."""
    rows = {c: {k: v for k, v in vars(r).items() if k != "contender"} for c, r in results.items()}
    for contender, result in results.items():
        if result.blocks:
            rows[contender]["median"] = result.median
    mine = results[own]
    ratios = {c: r.median / mine.median for c, r in results.items() if r.blocks and mine.blocks and c != "bandwidth"}
    return {"contenders": rows, "ratios": ratios, "targets": dict(WORKLOADS[name].target)}


def show(name: str, own: str, results: dict[str, Result]) -> None:
    """The table: median of the blocks, least and most, how many times `own`'s time."""
    print(f"\n{name}\n  {'':18}{'step':>10}{'least':>10}{'most':>10}{'ratio':>8}")
    mine = results[own]
    for contender, result in results.items():
        if not result.blocks:
            print(f"  {contender:18}did not run: {result.missing}")
        elif contender == "bandwidth":
            low, mid, high = (bandwidth.gigabytes_per_second(t) for t in extremes(result))
            print(f"  {contender:18}{mid:.0f} GB/s ({high:.0f} to {low:.0f})")
        else:
            low, mid, high = extremes(result)
            ratio = f"{mid / mine.median:.2f}" if mine.blocks else ""
            target = WORKLOADS[name].target.get(contender)
            verdict = "" if target is None or not mine.blocks or own != OWN else f"  at least {target} is wanted"
            print(f"  {contender:18}{seconds(mid):>10}{seconds(low):>10}{seconds(high):>10}{ratio:>8}{verdict}")
        if result.others and statistics.mean(result.others) > 0.2:
            print(f"  {'':18}other processes took {statistics.mean(result.others):.1f} cores: no fair measurement")
        if result.blocks and result.missing:
            print(f"  {'':18}stopped early: {result.missing}")


def extremes(result: Result) -> tuple[float, float, float]:
    return min(result.blocks), result.median, max(result.blocks)


if __name__ == "__main__":
    main()
