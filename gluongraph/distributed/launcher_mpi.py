"""mpiexec: where it is, whose it is, and what it is to be told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gluongraph.distributed.launcher_rank import TOKEN
from gluongraph.errors import MXNetError

INSTALL = "pip install 'gluongraph[mpi]'"
Hosts = Sequence[tuple[str, int]]  # names, and how many ranks each takes

# What Open MPI reads: names of version 5 begin with PRTE, those of version 4 with OMPI.
_OPEN_MPI = {
    # Ranks spin where they wait. Two that share a core would keep each other from it for milliseconds.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # By default a rank may use one core only: its threads share that one.
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
# More ranks than cores are slow and right, as in tests. With a list of hosts it would put all ranks on the first.
_ONE_HOST = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_INTEL = {"I_MPI_PIN": "0"}  # no binding, as above


class LaunchError(MXNetError):
    """Ranks cannot be started here, or not in this way."""


@dataclass(frozen=True)
class Mpi:
    """An mpiexec, and whose it is: "Open MPI", "MPICH", "Intel MPI" or "" for another one."""

    path: str
    flavour: str
    version: int = 0  # the first number

    @property
    def survives(self) -> bool:
        """Can ranks go on when others are lost (ULFM)?"""
        return self.flavour == "Open MPI" and self.version >= 5

    def environ(self, hosts: bool, root: bool) -> dict[str, str]:
        """Settings by variables, which need no option of their own in each version. Those that are set already stay.

        >>> Mpi("mpiexec", "Intel MPI").environ(hosts=False, root=True)
        {'I_MPI_PIN': '0'}
        """
        if self.flavour == "Open MPI":
            return {**_OPEN_MPI, **({} if hosts else _ONE_HOST), **(_AS_ROOT if root else {})}
        return dict(_INTEL) if self.flavour == "Intel MPI" else {}

    def command(
        self, program: Sequence[str], ranks: int, hosts: Hosts = (), elastic: bool = False, more: Sequence[str] = ()
    ) -> list[str]:
        """The command that starts a program on each rank.

        >>> Mpi("mpiexec", "MPICH").command(["true"], 3, [("a", 2), ("b", 2)])
        ['mpiexec', '-bind-to', 'none', '-hosts', 'a:2,b:2', '-n', '3', 'true']
        """
        head = [self.path, *(["--with-ft", "ulfm"] if elastic else []), *more]
        listed = ",".join(f"{name}:{slots}" for name, slots in hosts)
        count = ["-n", str(ranks), *program]
        if self.flavour == "Open MPI":  # it takes to other hosts what it is told to
            return [*head, "-x", TOKEN, *(["--host", listed] if hosts else []), *count]
        if self.flavour == "MPICH":
            return [*head, "-bind-to", "none", *(["-hosts", listed] if hosts else []), *count]
        if self.flavour == "Intel MPI" and hosts:
            return [*head, *_by_host(program, ranks, hosts)]
        if hosts:
            raise LaunchError(f"{self.path} is of no MPI whose option for hosts is known: name them in --mpiexec-args")
        return [*head, *count]


def _by_host(program: Sequence[str], ranks: int, hosts: Hosts) -> list[str]:
    """A command for each host, after one another: Intel MPI has no list of hosts with unequal numbers of ranks."""
    words: list[str] = []
    for name, slots in hosts:
        here = min(slots, ranks)
        ranks -= here
        if here:
            words += [*([":"] if words else []), "-host", name, "-n", str(here), *program]
    return words


def find(environ: Mapping[str, str] = os.environ) -> Mpi:
    """The mpiexec beside the interpreter, as a wheel brings it, or else on PATH.

    Raises:
        LaunchError: there is none, or no mpi4py.
    """
    if find_spec("mpi4py") is None:
        raise LaunchError(f"ranks need mpi4py, which is not installed: {INSTALL}")
    places = (str(Path(sys.executable).parent), environ.get("PATH", ""))
    path = next((found for place in places if (found := shutil.which("mpiexec", path=place))), None)
    if path is None:
        beside = f"neither beside {sys.executable} nor on PATH"
        raise LaunchError(f"there is no mpiexec, {beside}: {INSTALL}, or load the MPI of this cluster")
    return recognized(path, _version_text(path))


def _version_text(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version does not work ({error}): is this mpiexec whole?") from None
    return done.stdout + done.stderr


def recognized(path: str, version_text: str) -> Mpi:
    """Whose mpiexec prints this for --version.

    >>> recognized("mpiexec", "mpiexec (Open MPI) 5.0.11")
    Mpi(path='mpiexec', flavour='Open MPI', version=5)
    """
    if found := re.search(r"\(?Open ?MPI\)? v?(\d+)|OpenRTE\D*(\d+)", version_text):
        return Mpi(path, "Open MPI", int(found[1] or found[2]))
    if "Intel(R) MPI" in version_text:
        return Mpi(path, "Intel MPI")
    if "HYDRA" in version_text.upper():
        return Mpi(path, "MPICH")
    return Mpi(path, "")
