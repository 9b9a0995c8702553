"""Processors by what Linux told of them: `cpuinfo/` has the recorded lines of /proc/cpuinfo, and where each is from.

Cooper Lake without a virtual machine, Ice Lake, Emerald Rapids, Alder Lake and EPYC of Zen 5 are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("cpuinfo")


@dataclass(frozen=True)
class Processor:
    """A recorded processor: its file, and the target that it is to get."""

    file: Path
    target: str

    @property
    def machine(self) -> str:
        """As `platform.machine` calls it."""
        return "aarch64" if self._named("Features") else "x86_64"

    @property
    def features(self) -> list[str]:
        """The names in the line that lists them."""
        return (self._named("flags") or self._named("Features")).split()

    def _named(self, key: str) -> str:
        lines = (line.partition(":") for line in self.file.read_text().splitlines())
        return next((value for name, _, value in lines if name.strip() == key), "")


_TARGETS = {
    "sapphirerapids": "granite_rapids sapphire_rapids sapphire_rapids_amx_guest",
    "avx512-bf16": "zen4 zen5 zen5_guest",
    # Intel's with AVX512-BF16 and without AMX are here too: the row above is for AMD's.
    "x86-64-v4": "cascade_lake cooper_lake_guest sapphire_rapids_guest skylake_x tiger_lake",
    # Xeon Phi has AVX-512 without BW, DQ and VL; Linux 4.4 did not tell of them.
    "x86-64-v3": "arrow_lake broadwell haswell raptor_lake skylake_x_old_linux xeon_phi zen zen3",
    # Piledriver has FMA without AVX2; VirtualBox gave its guest AVX2 without FMA.
    "x86-64": "bulldozer core2 ivy_bridge k10 lakefield piledriver sandy_bridge zen_plus_guest",
    "aarch64": "a64fx ampere_one apple_m1 grace_blackwell graviton graviton2 graviton3 neoverse_v2 thunderx2",
}
PROCESSORS = {
    name: Processor(FOLDER / f"{name}.txt", target) for target, names in _TARGETS.items() for name in names.split()
}
