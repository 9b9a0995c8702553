"""Whole training steps against PyTorch, JAX and MXNet: what `gluongraph bench` does.

python benchmarks/training_step.py --help
"""

from __future__ import annotations

import sys

from gluongraph.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
