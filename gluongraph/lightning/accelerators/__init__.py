"""What is compiled for, as objects with Lightning's names: `Trainer(accelerator=CPUAccelerator())`."""

from __future__ import annotations

from gluongraph.lightning.absent import says_what_instead
from gluongraph.lightning.accelerators.accelerator import Accelerator, CPUAccelerator, CUDAAccelerator

__all__ = ["Accelerator", "CPUAccelerator", "CUDAAccelerator"]

__getattr__ = says_what_instead(
    __name__,
    dict.fromkeys(("MPSAccelerator", "XLAAccelerator"), "code is generated for CPUs and NVIDIA's GPUs"),
)
