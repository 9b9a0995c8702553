"""The update alone, every optimizer: GB/s, the share of what in-place streaming reaches in the same run, and PyTorch.

python benchmarks/optimizer_update.py                                      # 25.6 million parameters, ResNet-50's shapes
python benchmarks/optimizer_update.py --optimizer adam,lamb --parameters 200e6
python benchmarks/optimizer_update.py --small                              # 160 arrays of 64: microseconds a step

The bytes are those that the formula must read and write; with norms of a whole parameter everything is read twice.
`gluongraph` is Trainer.step, `gluongraph-call` the compiled call in it.

On two cores of a shared Sapphire Rapids (AVX-512; in-place streaming 24 to 39 GB/s), each beside the streaming of its
own run: at 25.6 million parameters all optimizers but SGLD reach 94 to 140 % of it (LAMB 94, LANS 105 %), at 200
million 81 to 141 % (GroupAdaGrad 81, LAMB 96 %, the others above 100). Adam takes 16 to 20 ms, and PyTorch's fused one
1.13 and 1.16 times as long; at 200 million, where both are held up by memory alone, 0.99 to 1.08 times. SGLD, held up
by its random numbers, reaches half of the bandwidth; normal_ and the update in PyTorch take 7 to 9 times as long. A
step of 160 arrays of 64 takes 35 us with Adam and 52 us with LAMB.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluongraph.bench import bandwidth
from gluongraph.bench.interleaved_timing import Result, contest, cores, seconds
from gluongraph.bench.report import processor
from gluongraph.bench.workloads import UPDATES, find, update_shapes
from gluongraph.cli import chosen

OWN, CALL, PROBE = "gluongraph", "gluongraph-call", "in-place"
AGAINST = ("torch-fused", "torch-foreach")
SHARE = 0.8  # of the bandwidth, which is wanted of every optimizer
RATIOS = {"adam": {"torch-fused": 1.1}, "sgld": {"torch-fused": 3.0}}  # wanted against a peer
SMALL, BEYOND = "160x64", 50e-6  # the small arrays, and what their step may cost beyond its bytes


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    options = parse(argv)
    on = cores(options.threads)
    blocks, length = (2, 0.05) if options.quick else (options.blocks, options.block_seconds)
    size = SMALL if options.small else options.parameters
    report: dict[str, Any] = {"machine": processor(), "threads": len(on), "size": size, "optimizers": {}}
    print(f"{report['machine']}, {len(on)} threads, {blocks} blocks of {length} s each, alternated; {size}")
    contenders = (OWN, *([CALL] if options.small else []), *options.against, PROBE)
    for name in options.optimizer:
        results = contest(contenders, f"update/{name}/{size}", on, blocks, length)
        row = report["optimizers"][name] = describe(name, size, results)
        show(name, row, results, options.small)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", type=chosen(UPDATES), default=list(UPDATES), help=f"of {', '.join(UPDATES)}")
    parser.add_argument("--against", type=chosen(AGAINST), default=list(AGAINST), help=f"of {', '.join(AGAINST)}")
    parser.add_argument("--parameters", default="25e6", help="so many, about: a multiple of ResNet-50's")
    parser.add_argument("--small", action="store_true", help="160 small arrays, and the time beyond their bytes")
    parser.add_argument("--threads", type=int, help="cores that all contenders are bound to; all by default")
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--block-seconds", type=float, default=0.5)
    parser.add_argument(
        "--quick", action="store_true", help="2 short blocks: says whether it works, not how fast it is"
    )
    parser.add_argument("--json", type=Path, help="write everything to this file")
    return parser.parse_args(argv)


def describe(name: str, size: str, results: dict[str, Result]) -> dict[str, Any]:
    """Bytes, medians, the bandwidth reached and its share of the probe's."""
    elements = sum(map(math.prod, update_shapes(find(f"update/{name}/{size}"))))
    row: dict[str, Any] = {"parameters": elements, "bytes": 4 * UPDATES[name].words * elements}
    row["medians"] = {c: r.median for c, r in results.items() if r.blocks}
    row["missing"] = {c: r.missing for c, r in results.items() if r.missing}
    row["others"] = max((max(r.others) for r in results.values() if r.others), default=0.0)
    if not {OWN, PROBE} <= row["medians"].keys():
        return row
    row["bound"] = bandwidth.gigabytes_per_second(row["medians"][PROBE])
    row["reached"] = row["bytes"] / row["medians"][OWN] / 1e9
    row["share"] = row["reached"] / row["bound"]
    fewest = row["bytes"] / row["bound"] / 1e9
    row["beyond"] = {c: row["medians"][c] - fewest for c in (OWN, CALL) if c in row["medians"]}
    return row


def show(name: str, row: dict[str, Any], results: dict[str, Result], small: bool) -> None:
    """One optimizer: what it took, what it had to move, what the peers took."""
    print(f"\n{name}: {row['bytes'] // row['parameters']} bytes a parameter, {row['parameters']:,} parameters")
    mine = row["medians"].get(OWN)
    for contender, result in results.items():
        if contender == PROBE:
            continue
        if contender not in row["medians"]:
            print(f"  {contender:16}{result.missing}")
            continue
        took, told = row["medians"][contender], ""
        if contender in AGAINST and mine:
            wanted = None if small else RATIOS.get(name, {}).get(contender)
            told = f"{took / mine:6.2f} times as long" + (f"; at least {wanted} is wanted" if wanted else "")
        elif contender == OWN and "share" in row and not small:
            told = f"{row['reached']:6.1f} GB/s of {row['bound']:.1f} in place: {row['share']:.0%}"
            told += "" if name == "sgld" else f"; at least {SHARE:.0%} is wanted"
        elif contender in row.get("beyond", ()) and small:
            told = f"{row['beyond'][contender] * 1e6:6.1f} us beyond its bytes; less than {BEYOND * 1e6:.0f} is wanted"
        print(f"  {contender:16}{seconds(took):>10}  {told}")
    if row["others"] > 0.2:
        print(f"  other processes took up to {row['others']:.1f} cores: no fair measurement")


if __name__ == "__main__":
    main()
