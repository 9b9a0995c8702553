"""gluongraph's eager mode against PyTorch's on the MLP: is the baseline of the compiled step a straw man?

python benchmarks/eager.py
"""

from __future__ import annotations

import sys

import training_step

if __name__ == "__main__":
    training_step.main(["--against", "torch", *sys.argv[1:]], own="gluongraph-eager", default=("mlp-8", "mlp-128"))
