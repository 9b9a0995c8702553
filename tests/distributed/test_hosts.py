"""`gluongraph run --hosts` on two hosts that are emulated: UTS namespaces of this machine, each with a name of its own.

They have this machine's network and files. What goes through ssh elsewhere goes through a script that enters such a
namespace; ranks find one another over TCP, since for MPI they are on two hosts.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from launched import PROGRAM, Launched, cores_given, launched
from ranks import is_open_mpi, needs_mpi

from gluongraph.distributed.launcher_server import own_addresses

# Called as ssh is: options, the name of the host, a command.
ENTER = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
host="$1"; shift
exec unshare --uts bash -c "hostname $host; $*"
"""


def hosts_missing() -> str:
    """Why two hosts cannot be emulated here, or ''."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "hosts are emulated by root, with unshare"
    if subprocess.run(["unshare", "--uts", "hostname", "gg-other"], capture_output=True).returncode:
        return "hosts are emulated where namespaces can be made"
    if own_addresses()[0].startswith("127.") or interface() is None:
        return "hosts are emulated where there is a network interface beside the loopback"
    return "" if is_open_mpi() else "hosts are emulated for Open MPI"


def interface() -> str | None:
    """A network interface that is up, beside the loopback."""
    folders = sorted(Path("/sys/class/net").iterdir())
    return next((each.name for each in folders if each.name != "lo" and _is_up(each)), None)


def _is_up(folder: Path) -> bool:
    return (folder / "operstate").read_text().strip() in ("up", "unknown")


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """What lets `gluongraph run` start ranks on the hosts nodea and nodeb."""
    if missing := hosts_missing():
        pytest.skip(missing)
    script = tmp_path / "enter"
    script.write_text(ENTER)
    script.chmod(0o755)
    mpiexec = f"--prtemca plm_ssh_agent {shlex.quote(str(script))} --prtemca prte_if_include {interface()}"
    return ["--mpiexec-args", f"{mpiexec} --mca btl_tcp_if_include lo --mca pml ob1 --mca btl tcp,self"]


def words_of(job: Launched) -> list[dict[str, object]]:
    """What the ranks have told, by rank."""
    done = job.end()
    assert done.code == 0, done.err
    lines = sorted(done.out.splitlines())
    assert [line[:4] for line in lines] == [f"[{rank}] " for rank in range(len(lines))]
    return [json.loads(line[4:]) for line in lines]


@needs_mpi
def test_ranks_on_two_hosts(options: list[str]) -> None:
    # Nobody has said how many threads: ranks share the cores with those of their own host alone.
    environ: dict[str, str | None] = dict.fromkeys(("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"))
    environ["GG_TOLD"] = "to all"
    with launched("--hosts", "nodea:2,nodeb:1", *options, str(PROGRAM), "hosts", environ=environ) as job:
        told = words_of(job)
        assert not job.left()
    assert [rank["host"] for rank in told] == ["nodea", "nodea", "nodeb"]
    assert all(rank["right"] for rank in told)
    shares = [max(1, cores_given() // 2)] * 2 + [max(1, cores_given())]
    assert [rank["environ"] for rank in told] == [{"GG_TOLD": "to all", "OMP_NUM_THREADS": str(n)} for n in shares]


@needs_mpi
def test_a_rank_on_another_host_fails(options: list[str], tmp_path: Path) -> None:
    with launched(
        "--hosts", "nodea:1,nodeb:1", *options, str(PROGRAM), "fails", "SIGKILL", str(tmp_path / "end")
    ) as job:
        done = job.end()
        assert not job.left()
    assert done.code == 137
    assert "gluongraph run: rank 1 on nodeb was killed by signal 9 (SIGKILL); the other ranks are ended" in done.err


@needs_mpi
def test_the_launcher_of_two_hosts_is_killed(options: list[str]) -> None:
    with launched("--hosts", "nodea:1,nodeb:1", *options, str(PROGRAM), "stays", "stubborn") as job:
        job.read_until("ready 2\n", times=2)
        job.process.send_signal(signal.SIGKILL)
        assert job.end().code == -signal.SIGKILL and not job.left()


@needs_mpi
def test_a_host_that_does_not_exist(options: list[str], tmp_path: Path) -> None:
    """What starts ranks there fails, and says so."""
    (tmp_path / "enter").write_text('#!/bin/bash\necho "no route to $*" | cut -c-20 >&2; exit 255\n')
    with launched("--hosts", "nodea:1,nodeb:1", *options, str(PROGRAM), "hosts") as job:
        done = job.end()
        assert not job.left()
    assert done.code not in (0, 2) and "no route to" in done.err and "rank" not in done.out
    assert "no rank was started: mpiexec ended with exit code" in done.err
    assert "without a password for each of nodea, nodeb" in done.err
