"""Libraries written for MXNet, unpatched, on gluongraph: gluonts 0.15.1, gluonnlp 0.10.0, gluoncv 0.10.5.

python benchmarks/clients.py
python benchmarks/clients.py --only gluonts --path /folder/with/them

Each case imports its library, trains a network for two steps and predicts (benchmarks/clients_cases.py), in a process
of its own that is ended after --limit seconds. A library that is not installed is skipped, and said to be. They need
`pip install --no-deps gluonts==0.15.1 gluonnlp==0.10.0 gluoncv==0.10.5`, and "pandas<2.3", "pydantic<2", toolz, tqdm,
holidays, orjson, sacremoses, matplotlib, opencv-python-headless, pillow, yacs, portalocker, autocfg, pyyaml.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time

from clients_cases import names, perform


def run(name: str, limit: float, path: str) -> tuple[str, str]:
    """How a case ended: passed, failed or skipped; and why."""
    library = name.split(".")[0]
    if importlib.util.find_spec(library) is None:
        return "skipped", f"{library} is not installed"
    search = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, __file__, "--here", name],
        env={**os.environ, "PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "failed", f"longer than {limit:g} s"
    if process.returncode == 0:
        return "passed", ""
    return "failed", " | ".join(line.strip() for line in said.strip().splitlines()[-4:])[-400:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a case (default 300)")
    parser.add_argument("--path", default="", help="a folder that the libraries are installed in (pip --target)")
    parser.add_argument("--here", metavar="NAME", help="run this one case in this process, without a limit")
    options = parser.parse_args()
    if options.here:
        perform(options.here)
        return 0
    if options.path:
        sys.path.append(options.path)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in names():
        if name.startswith(options.only):
            since = time.monotonic()
            outcome, why = run(name, options.limit, options.path)
            counts[outcome] += 1
            print(f"{name:<42} {outcome:<8} {time.monotonic() - since:5.0f} s  {why}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
