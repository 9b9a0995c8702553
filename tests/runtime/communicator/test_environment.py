"""Which communicator a process has, from the variables that its launcher has set."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from ranks import needs_mpi, run_ranks, try_ranks

from gluongraph.runtime.communicator import environment
from gluongraph.runtime.communicator.base import CommunicationError
from gluongraph.runtime.communicator.environment import Launch, launch, leave, use_world, world
from gluongraph.runtime.communicator.local import LocalCommunicator
from gluongraph.runtime.communicator.settings import seconds

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of a launcher around these tests, and no world from before."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_", "GG_COMM_")) or name in TORCHRUN:
            monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "_world", None)
    yield


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch("alone", 1)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, Launch("mpi", 2)),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, Launch("alone", 1)),
        ({"PMI_SIZE": "3", "PMI_RANK": "2"}, Launch("mpi", 3)),
        ({"MPI_LOCALNRANKS": "2", "PMI_FD": "5"}, Launch("mpi", 0)),
        ({"PMIX_RANK": "0"}, Launch("mpi", 0)),
        ({**SRUN, "PMIX_RANK": "1"}, Launch("mpi", 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "PMI_RANK": "1"}, Launch("mpi", 8)),
        (SRUN, Launch("alone", 1)),
        (TORCHRUN, Launch("torchrun", 4)),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, Launch("alone", 1)),
        ({**TORCHRUN, "OMPI_COMM_WORLD_SIZE": "2"}, Launch("mpi", 2)),  # a program's own variables under mpiexec
        ({**TORCHRUN, **SRUN, "PMI_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, Launch("torchrun", 4)),  # srun torchrun
        ({"RANK": "0", "WORLD_SIZE": "1"}, Launch("alone", 1)),
        ({"WORLD_SIZE": "4"}, Launch("alone", 1)),
    ],
)
def test_launchers(variables: Mapping[str, str], expected: Launch) -> None:
    assert launch(variables) == expected


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, "MASTER_ADDR and MASTER_PORT are not set"),
        ({**TORCHRUN, "MASTER_PORT": ""}, "MASTER_PORT are not set"),
        ({**TORCHRUN, "WORLD_SIZE": "four"}, "WORLD_SIZE=four are no numbers"),
    ],
)
def test_variables_that_lead_nowhere(variables: Mapping[str, str], said: str) -> None:
    with pytest.raises(CommunicationError, match=said):
        launch(variables)


def test_a_process_alone_is_a_world() -> None:
    assert isinstance(world(), LocalCommunicator)
    assert world() is world()
    leave()
    other = LocalCommunicator()
    use_world(other)
    assert world() is other


def test_tasks_of_srun_without_pmi_are_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match="srun --mpi=pmix makes them ranks of one job"):
        assert world().size == 1


def test_mpi4py_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == "mpi4py" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setenv("PMI_SIZE", "2")
    message = r"(?s)one of 2 ranks, and mpi4py, which connects them, is not installed.*pip install 'gluongraph\[mpi\]'"
    with pytest.raises(CommunicationError, match=message):
        world()
    monkeypatch.delenv("PMI_SIZE")
    monkeypatch.setenv("PMIX_RANK", "0")
    with pytest.raises(CommunicationError, match="one of ranks of MPI, and mpi4py"):
        world()


def python(source: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )


WORLD = "from gluongraph.runtime.communicator.environment import world; world()"


@needs_mpi
def test_a_launcher_of_another_mpi() -> None:
    result = python(WORLD, PMI_SIZE="3", PMI_RANK="0")
    assert "CommunicationError: the launcher has started 3 ranks, " in result.stderr
    assert "help: mpiexec (srun's --mpi=) must be that of the MPI that mpi4py loads" in result.stderr


@needs_mpi
def test_an_mpi_that_cannot_be_loaded() -> None:
    result = python(WORLD, PMI_SIZE="3", MPI4PY_LIBMPI="/no/libmpi.so", MPI4PY_MPIABI="openmpi")
    assert "CommunicationError: this process is one of several ranks, and MPI cannot be loaded: " in result.stderr
    assert "pip install 'gluongraph[mpi]'" in result.stderr


@needs_mpi
def test_an_mpi_without_threads() -> None:
    source = f"import mpi4py; mpi4py.rc.thread_level = 'serialized'\nfrom mpi4py import MPI\n{WORLD}"
    job = try_ranks(2, source)
    assert job.code != 0 and not job.timed_out, job
    assert "has been initialized without MPI_THREAD_MULTIPLE" in job.errors[0] + job.errors[1], job


def test_mpi4py_is_not_imported_without_need() -> None:
    source = f"import gluongraph, sys; {WORLD}; print('mpi4py' in sys.modules, 'mpi4py.MPI' in sys.modules)"
    assert python(source).stdout == "False False\n"


@needs_mpi
@pytest.mark.parametrize("before", ["sys.exit(0)", "from mpi4py import MPI; MPI.COMM_WORLD.Recv(bytearray(1), 0)"])
def test_ranks_that_do_not_come(before: str) -> None:
    """One ends before it has initialized MPI, or does not call `world`: the others wait no longer than asked."""
    rank = "os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))"
    job = try_ranks(2, f"import os, sys\nif {rank} == '1': {before}\n{WORLD}", env={"GG_COMM_TIMEOUT": "2"})
    assert job.code != 0 and not job.timed_out and not job.orphans, job
    assert "within 2 s (GG_COMM_TIMEOUT)" in job.errors[0] or "Timeout (0:00:02)!" in job.errors[0], job


def leaving() -> None:
    c = world()
    array = np.ones(2, np.float32)
    c.allreduce(array)
    leave()
    print(array[0], world().size, flush=True)


@needs_mpi
def test_ranks_leave_before_the_end_of_the_process() -> None:
    assert run_ranks(2, leaving) == ["2.0 1\n"] * 2


@pytest.mark.parametrize(("text", "value"), [("2.5", 2.5), (" 7 ", 7), ("", 30)])
def test_seconds(monkeypatch: pytest.MonkeyPatch, text: str, value: float) -> None:
    monkeypatch.setenv("GG_COMM_TIMEOUT", text)
    assert seconds("GG_COMM_TIMEOUT", 30) == value


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan"])
def test_no_seconds(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GG_COMM_TIMEOUT", text)
    with pytest.raises(CommunicationError, match=f"GG_COMM_TIMEOUT={text}: a number of seconds above 0 is needed"):
        seconds("GG_COMM_TIMEOUT", 30)


def starting() -> None:
    """What a rank starts is no rank of its job; the ranks of a job that it starts are ranks of that one."""
    if world().rank == 0:
        print(python(f"{WORLD}; print(world().size)").stdout.strip(), flush=True)
        print(run_ranks(3, f"{WORLD}\nprint(world().size)"), flush=True)


@needs_mpi
def test_processes_that_a_rank_starts() -> None:
    assert run_ranks(2, starting)[0] == "1\n['3\\n', '3\\n', '3\\n']\n"
