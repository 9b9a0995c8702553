"""MXNet 1.9.1's own unit tests, unchanged, with gluongraph in the place of mxnet.

python benchmarks/mxnet_suite.py /path/to/mxnet/tests/python/unittest
python benchmarks/mxnet_suite.py .../unittest --only test_gluon --failures

Needs the tests of MXNet's source, and `pip install nose scipy requests`, which they import. Every file is run by pytest
in a process of its own, `python -m gluongraph.mxnet -m pytest`, on a copy of the folder; a test that takes longer than
--limit is ended and has failed. What counts is passed / (passed + failed) of the tests that need nothing which is no
part of gluongraph: symbols (mx.sym, mx.mod, simple_bind, test_utils that take symbols, ...), sparse storage, mx.np, a
GPU, MXNet's C library. benchmarks/mxnet_suite_needs.py tells that from the source of a test, and of what it calls in
its file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from mxnet_suite_needs import NEEDS, needs

THERE = "fails in MXNet"
COLUMNS = ("passed", "failed", "skipped", *NEEDS, THERE)
START_LIMIT = 120  # seconds for the imports of a file


@dataclass
class File:
    """What happened to the tests of one file; `error` is why it could not be imported."""

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class How:
    """How tests are run: the command that pytest is a module of, and the seconds that a test may take."""

    command: tuple[str, ...]
    limit: float


OURS = (sys.executable, "-m", "gluongraph.mxnet")


def run_file(path: Path, excluded: dict[str, str], how: How) -> File:
    """Run the tests of a file, in another process after each that had to be ended."""
    found = File(path.name)
    chosen: set[str] | None = None
    while chosen is None or chosen:
        with tempfile.TemporaryDirectory(prefix="mxnet-suite-") as place:
            log, listed = Path(place, "log"), Path(place, "chosen")
            log.touch()
            listed.write_text(json.dumps(sorted(chosen or ())))
            ended = _watched(path, log, listed, replace(how, limit=START_LIMIT) if chosen is None else how)
            lines = [json.loads(line) for line in log.read_text().splitlines()]
        if chosen is None:
            found.error = next((line["error"] for line in lines if "error" in line), "")
            collected = {name for line in lines for name in line.get("collected", ())}
            if not collected:
                found.error = found.error or ended
                return found
            found.outcomes = {name: excluded[name] for name in collected if name in excluded}
            chosen = collected - set(found.outcomes)
            continue
        _take(found, lines, ended)
        left = chosen - set(found.outcomes)
        if left == chosen:  # nothing was even begun
            found.outcomes |= dict.fromkeys(left, "failed")
            found.messages |= dict.fromkeys(left, ended)
            return found
        chosen = left
    return found


def _take(found: File, lines: Iterable[dict[str, object]], ended: str) -> None:
    """Note the outcomes that a process reported; what it had begun and not finished has failed."""
    open_test = ""
    for line in lines:
        if "begun" in line:
            open_test = str(line["begun"])
        elif "done" in line:
            name, outcome = str(line["done"]), str(line["outcome"])
            worse = found.outcomes.get(name) == "failed"  # another of its parameters, or its setup
            found.outcomes[name] = "failed" if worse else outcome
            found.seconds[name] = float(str(line["seconds"]))
            if outcome == "failed":
                found.messages[name] = str(line["message"])
            open_test = ""
    if open_test:
        found.outcomes[open_test], found.messages[open_test] = "failed", ended


def _watched(path: Path, log: Path, listed: Path, how: How) -> str:
    """Run pytest on a file until it ends, or nothing has been reported for `how.limit` seconds; why it ended."""
    command = [*how.command, "-m", "pytest", "-q", "-p", "mxnet_suite_worker", "-p", "no:cacheprovider", "--noconftest"]
    command += ["-p", "no:warnings", "-c", os.devnull, "--rootdir", str(path.parent), path.name]
    own = {"GG_SUITE_LOG": str(log), "GG_SUITE_CHOSEN": str(listed)}
    search = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with open(log.with_name("output"), "w+") as output:
        process = subprocess.Popen(
            command,
            cwd=path.parent,
            env={**os.environ, **own, "PYTHONPATH": search},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.1)
            if log.stat().st_size != size:
                size, since = log.stat().st_size, time.monotonic()
            elif time.monotonic() - since > how.limit:
                os.killpg(process.pid, 9)
                process.wait()
                return f"longer than {how.limit:g} s"
        output.seek(0)
        return f"the process ended with {process.returncode}: {output.read()[-500:]}"


def table(files: Iterable[File]) -> str:
    """A line for each file, and one for all."""
    head = f"{'':<34}" + "".join(f"{c:>15}" for c in COLUMNS)
    lines, total = [head], Counter[str]()
    for file in files:
        total += Counter(file.outcomes.values())
        lines.append(_row(file))
    lines.append(f"{'all':<34}" + "".join(f"{total[c] or '':>15}" for c in COLUMNS))
    judged = total["passed"] + total["failed"]
    lines.append(f"\n{total['passed']} of {judged} pass: {100 * total['passed'] / max(judged, 1):.1f} %")
    return "\n".join(lines)


def _row(file: File) -> str:
    counts = Counter(file.outcomes.values())
    note = "  cannot be imported" if file.error else ""
    return f"{file.name:<34}" + "".join(f"{counts[c] or '':>15}" for c in COLUMNS) + note


def _told(file: File) -> File:
    """Say on standard error that a file is done."""
    print(_row(file), file=sys.stderr, flush=True)
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="tests/python/unittest of MXNet 1.9.1's source")
    parser.add_argument("--only", default="", help="files whose names begin so")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a test (default 120)")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default 2)")
    parser.add_argument("--failures", action="store_true", help="say why each failed")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    parser.add_argument("--mxnet-python", help="an interpreter that has MXNet 1.9.1: run that instead")
    parser.add_argument(
        "--reference", type=Path, help="what --mxnet-python --json wrote: what failed there is set apart"
    )
    options = parser.parse_args()
    how = How((options.mxnet_python,) if options.mxnet_python else OURS, options.limit)
    with tempfile.TemporaryDirectory(prefix="mxnet-tests-") as place:
        # its parent too: tests import ../common
        shutil.copytree(options.folder.resolve().parent, Path(place, "python"))
        folder = Path(place, "python", options.folder.resolve().name)
        table_of_needs = needs(folder)
        paths = sorted(p for p in folder.glob("test_*.py") if p.name.startswith(options.only))
        excluded = {
            p: {f"{p.name}::{n}": need for (file, n), need in table_of_needs.items() if file == p.name} for p in paths
        }
        if options.reference:
            for file in json.loads(options.reference.read_text()):
                failed = {name: THERE for name, outcome in file["outcomes"].items() if outcome == "failed"}
                for p in paths:
                    if p.name == file["name"]:
                        excluded[p] |= failed
        with ThreadPoolExecutor(options.jobs) as pool:
            files = list(pool.map(lambda p: _told(run_file(p, excluded[p], how)), paths))
    print(table(files))
    for file in files if options.failures else ():
        if file.error:
            print(f"\n{file.name}: {file.error}")
        for name, message in sorted(file.messages.items()):
            print(f"\n{name}  ({file.seconds.get(name, 0):.0f} s)\n  {message}")
    if options.json:
        options.json.write_text(json.dumps([vars(f) for f in files], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
