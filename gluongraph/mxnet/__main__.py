"""`python -m gluongraph.mxnet script.py arguments ...`: run a script written for MXNet."""

from __future__ import annotations

import os
import runpy
import sys

from gluongraph.mxnet.modules import install


def main(argv: list[str]) -> int:
    """Run argv[0] as a program with the arguments that follow."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m gluongraph.mxnet script.py [arguments ...]", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    script = argv[0]
    if not os.path.exists(script):
        print(f"python -m gluongraph.mxnet: there is no file {script}", file=sys.stderr)
        return 2
    install()
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # as `python script.py` has it
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
