"""`python -m gluongraph.mxnet script.py arguments ...`: run a script written for MXNet; `-m module` runs a module."""

from __future__ import annotations

import os
import runpy
import sys

from gluongraph.mxnet.modules import install

USAGE = """usage: python -m gluongraph.mxnet script.py [arguments ...]
       python -m gluongraph.mxnet -m module [arguments ...]"""


def main(argv: list[str]) -> int:
    """Run the file argv[0], or the module argv[1] after "-m", as a program with the arguments that follow."""
    if not argv or argv[0] in ("-h", "--help") or argv == ["-m"]:
        helped = bool(argv) and argv != ["-m"]
        print(USAGE, file=sys.stdout if helped else sys.stderr)
        return 0 if helped else 2
    return _run_module(argv[1:]) if argv[0] == "-m" else _run_file(argv)


def _run_file(argv: list[str]) -> int:
    script = argv[0]
    if not os.path.exists(script):
        print(f"python -m gluongraph.mxnet: there is no file {script}", file=sys.stderr)
        return 2
    install()
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # as `python script.py` has it
    runpy.run_path(script, run_name="__main__")
    return 0


def _run_module(argv: list[str]) -> int:
    install()
    sys.argv = argv
    sys.path[0] = os.getcwd()  # as `python -m module` has it
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
