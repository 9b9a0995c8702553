"""What is not as in Lightning, and why. docs/lightning.md tells the same reasons."""

from __future__ import annotations

from parity_table import Difference

DIFFERENCES: tuple[Difference, ...] = ()
