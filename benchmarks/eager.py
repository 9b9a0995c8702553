"""gluongraph's eager mode against PyTorch's on the MLP: is the baseline of the compiled step a straw man?

python benchmarks/eager.py
"""

from __future__ import annotations

import sys

from gluongraph.cli import main

if __name__ == "__main__":
    workloads = ["mlp-8", "mlp-128", "--own", "gluongraph-eager", "--against", "torch,torch-fused"]
    sys.exit(main(["bench", *workloads, *sys.argv[1:]]))
